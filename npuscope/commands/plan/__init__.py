"""Plan: experts and where they should be."""
