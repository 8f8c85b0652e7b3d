"""What PyTorch's profiler writes of a GPU: *.pt.trace.json."""
