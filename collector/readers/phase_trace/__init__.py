"""Phase-level traces: a row per phase of a worker, as straggler studies publish them."""
