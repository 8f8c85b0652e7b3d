"""A small dense job on two stages."""

from __future__ import annotations

from npuscope.analysis.flops.model.architecture import GroupedQueries, Model
from npuscope.analysis.strategy.job import Job, Machine, even_stages

DENSE = Model("tiny", 8, 1024, 32000, GroupedQueries(8, 8, 128), 4096)
JOB = Job(DENSE, Machine(353.9e12), 8, even_stages(8, 2), 2048, 16)
