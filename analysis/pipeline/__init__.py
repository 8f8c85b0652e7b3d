"""Pipelines: which pass runs where and when, and what its schedule costs."""

# What phases are called: for who shows them, too, without what measures them.
STEADY, STEP = "steady", "step"
PHASES = ("warm-up", STEADY, "cool-down")
