"""Tables of the text export: kernels, tasks, memory, the producer's steps."""
