"""What runs inside a training process: nothing beyond the standard library at import."""
