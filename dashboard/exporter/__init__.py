"""From a store to samples for a monitoring system: what is gathered, how much, how often."""
