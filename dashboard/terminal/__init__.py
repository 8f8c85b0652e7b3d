"""Answers as terminal tables."""
