"""Pipelines: which pass runs where and when, and what its schedule costs."""
