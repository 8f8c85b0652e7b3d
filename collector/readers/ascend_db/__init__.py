"""The profiler's databases of one rank: ascend_pytorch_profiler_*.db and analysis.db."""
