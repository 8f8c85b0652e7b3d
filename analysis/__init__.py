"""From the store to metrics."""
