"""Immutable segments and their manifests: publish, open, sweep, keep, export."""
