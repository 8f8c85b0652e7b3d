"""Other orders of a pipeline's passes: as files, and as they would run."""
