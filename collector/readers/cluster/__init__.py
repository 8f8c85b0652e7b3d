"""What msprof-analyze computed over all ranks."""
