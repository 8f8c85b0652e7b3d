"""FLOPs of a model and of kernels, the peak they are held against, and where the rest went."""
