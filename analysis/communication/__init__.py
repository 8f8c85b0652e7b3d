"""Communication gathered by kind, type, operation, link and pair."""
