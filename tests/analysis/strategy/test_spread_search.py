"""A search over the nodes of a Ray cluster finds what one process finds."""

from __future__ import annotations

import os
from functools import partial

import pytest

from npuscope.analysis.strategy.job import Machine
from npuscope.analysis.strategy.search import Space, search
from npuscope.collector.engines.ray_cluster import spread
from tests.analysis.strategy.jobs import DENSE

NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.mark.slow
def test_two_nodes_find_what_one_process_finds() -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install '.[cluster]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        space, machine = Space(2048, 16, cp=[1]), Machine(353.9e12)
        over = partial(spread, address=cluster.address)
        assert search(DENSE, machine, 8, space, spread=over).equals(
            search(DENSE, machine, 8, space)
        )
    finally:
        cluster.shutdown()
