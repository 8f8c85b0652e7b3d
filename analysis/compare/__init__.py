"""Two runs compared: whether the difference is real, and where it comes from."""
