"""Plan, read, check and publish ranks."""
