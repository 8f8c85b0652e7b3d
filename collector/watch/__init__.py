"""Profiles are ingested as they land: see `watching`."""
