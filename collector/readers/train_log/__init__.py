"""A trainer's log, line by line."""
