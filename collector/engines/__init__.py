"""Engines: where ranks are found and read. One interface, several ways to spread the work."""
