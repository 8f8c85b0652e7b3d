"""FLOPs of kernels from the shapes of their tensors."""
