"""Time and memory of a training job before it runs, and the search for its best strategy."""
