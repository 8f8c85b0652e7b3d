"""Health of a whole training: what its log tells of every step, and where it went wrong."""
