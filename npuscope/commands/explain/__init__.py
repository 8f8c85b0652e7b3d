"""Explain: steps, kernels, communication, ranks, clocks, MFU, models, memory."""
