"""Stores: fill, watch, tidy and export them."""
