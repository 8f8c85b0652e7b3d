"""The pages, each a script that answers one question."""
