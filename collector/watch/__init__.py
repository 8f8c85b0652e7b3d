"""Profiles are ingested as they land: see `watch.watch`."""
