"""Expert load, as terminal tables and a heat map."""
