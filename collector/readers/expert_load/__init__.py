"""Tokens per expert, whoever counted them, and where experts are placed."""
