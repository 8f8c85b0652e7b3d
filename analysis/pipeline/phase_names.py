"""What the phases of a pipeline are called; for who shows them, without what measures them."""

from __future__ import annotations

STEADY, STEP = "steady", "step"
PHASES = ("warm-up", STEADY, "cool-down")
