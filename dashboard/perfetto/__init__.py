"""A capture on one axis of time, as a trace that timeline viewers open."""
