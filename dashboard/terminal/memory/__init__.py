"""Memory, as terminal tables and a curve."""
