"""Serve: the exporter, and what a training job's profiler is told."""
