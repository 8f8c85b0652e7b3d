"""One module per on-disk format; each fills canonical tables of a staging database."""
