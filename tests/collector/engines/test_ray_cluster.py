"""Ingest on a Ray cluster of two nodes: real ones, on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.engines import ray_cluster
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store.manifest import manifests
from npuscope.errors import StoreError
from tests.collector.engines.engine_tasks import dies_on_two, reads, task
from tests.collector.store.stores_compared import assert_equal_stores
from tests.conftest import WriteProfile
from tests.private_mounts import in_private_mounts

pytestmark = pytest.mark.slow

RANKS = 64
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node, to which tests add theirs."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install '.[cluster]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    running = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    yield running
    running.shutdown()


@pytest.fixture
def second_node(cluster: Any) -> Iterator[Any]:
    before = alive(cluster)
    node = cluster.add_node(**NODE)
    yield node
    if node in cluster.worker_nodes:  # no test has killed it
        cluster.remove_node(node)
    wait_until(lambda: alive(cluster) <= before)  # a killed one seems alive for some seconds


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile) -> Path:
    """A folder with the profiles of 64 ranks, and the store of a local ingest beside it."""
    folder = tmp_path_factory.mktemp("shared")
    for rank in range(RANKS):
        write_profile(folder / "source" / f"host_{rank}_ascend_pt", rank)
    result = ingest(folder / "source", folder / "store", run="job", summarise=summarise)
    assert len(result.publications) == RANKS
    return folder


def test_sixty_four_ranks_on_four_shards_make_the_same_store(source: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "npuscope", "ingest", str(source / "source"), "--run", "job"]
    line += ["--store", str(tmp_path / "s"), "--jobs", "1", "--shard"]
    started = [subprocess.Popen([*line, f"{n}/4"]) for n in range(4)]

    assert [process.wait(timeout=300) for process in started] == [0] * 4
    assert_equal_stores(source / "store", tmp_path / "s")


def test_sixty_four_ranks_on_two_nodes_make_the_same_store(
    cluster: Any, second_node: Any, source: Path, tmp_path: Path
) -> None:
    result = ingest(
        source / "source", tmp_path / "s", run="job", summarise=summarise,
        engine="ray", address=cluster.address,
    )  # fmt: skip

    assert result.is_complete
    assert len(result.publications) == RANKS
    assert_equal_stores(source / "store", tmp_path / "s")


def test_a_node_killed_midway_costs_nothing_that_others_see(
    cluster: Any, second_node: Any, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "s"
    killed, over = threading.Event(), threading.Event()

    def kill() -> None:
        while not over.wait(0.05):
            if len(list(target.rglob("manifest.json"))) >= 8:
                cluster.remove_node(second_node, allow_graceful=False)
                killed.set()
                return

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = ingest(
            source / "source", target, run="job", summarise=summarise,
            engine="ray", address=cluster.address,
        )  # fmt: skip
    finally:
        over.set()
        killer.join()

    assert killed.is_set()
    assert result.is_complete
    assert len(result.publications) == RANKS
    assert_equal_stores(source / "store", target)


@contextlib.contextmanager
def node_with_mounts(cluster: Any, mounts: str, *arguments: str) -> Iterator[Callable[[], None]]:
    """A node that sees file systems of its own, as a machine with a local disk does; yields what
    ends it."""
    ray = Path(sys.executable).with_name("ray")
    start = [str(ray), "start", "--block", f"--address={cluster.address}", "--num-cpus=1"]
    start += ["--object-store-memory=100000000", "--disable-usage-stats"]
    script = f'{mounts}; shift {len(arguments)}; exec "$@"'
    before = alive(cluster)
    process = subprocess.Popen(
        in_private_mounts(script, *arguments, *start),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def end() -> None:
        process.terminate()
        process.wait(timeout=60)
        wait_until(lambda: alive(cluster) <= before)  # of these another may have died meanwhile

    try:
        wait_until(lambda: bool(alive(cluster) - before))
        yield end
    finally:
        end()


def alive(cluster: Any) -> set[str]:
    return {node["NodeID"] for node in cluster.global_state.node_table() if node["Alive"]}


def wait_until(condition: Callable[[], bool], timeout_s: float = 90) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.2)


@pytest.fixture
def disks(tmp_path: Path, write_profile: WriteProfile) -> Path:
    """A folder `profiles` that the first node sees with ranks 0 and 1, and `other disk` with what
    another node shall see there: ranks 1, as it is, 2 and 3."""
    for rank in (0, 1):
        write_profile(tmp_path / "profiles" / f"host_{rank}_ascend_pt", rank)
    for rank in (2, 3):
        write_profile(tmp_path / "other disk" / f"host_{rank}_ascend_pt", rank)
    shutil.copytree(
        tmp_path / "profiles" / "host_1_ascend_pt", tmp_path / "other disk" / "host_1_ascend_pt"
    )
    return tmp_path


BOUND = 'mount --bind "$1" "$2"'


def test_each_rank_is_read_on_the_node_whose_disk_holds_it(cluster: Any, disks: Path) -> None:
    places = str(disks / "other disk"), str(disks / "profiles")
    with node_with_mounts(cluster, BOUND, *places):
        result = ingest(
            disks / "profiles", disks / "store", run="job", engine="ray", address=cluster.address
        )
        again = ingest(
            disks / "profiles", disks / "store", run="job", engine="ray", address=cluster.address
        )

    assert result.is_complete
    assert [m.rank for m in manifests(disks / "store")] == [0, 1, 2, 3]
    assert sorted(o.rank for o in result.publications) == [0, 1, 2, 3]
    assert len(again.unchanged) == 4
    # The other node is away now: what it holds is not gone.
    alone = ingest(
        disks / "profiles", disks / "store", run="job", engine="ray", address=cluster.address
    )
    assert [m.rank for m in alone.unchanged] == [0, 1]
    assert alone.drops == ()
    assert [m.rank for m in manifests(disks / "store")] == [0, 1, 2, 3]


def test_ranks_on_the_disk_of_a_node_that_dies_are_reported(cluster: Any, disks: Path) -> None:
    places = str(disks / "other disk"), str(disks / "profiles")
    with node_with_mounts(cluster, BOUND, *places) as end:
        with ray_cluster.open_cluster(cluster.address, None) as engine:
            found, _ = engine.look(disks / "profiles")
            end()
            tasks = [replace(task(source.rank), source=source) for source in found.ranks]
            outcomes = list(engine.map(reads, tasks, lambda n_bytes: None, lambda: True))

    assert {o.rank for o in outcomes if o.error is None} == {0, 1}
    reasons = {o.rank: o.error for o in outcomes if o.error is not None}
    assert set(reasons) == {2, 3}
    assert all("left" in str(reason) for reason in reasons.values())


def test_a_store_that_a_node_does_not_see_is_refused(cluster: Any, disks: Path) -> None:
    (disks / "local").mkdir()
    with node_with_mounts(cluster, 'mount -t tmpfs none "$1"', str(disks / "local")):
        with pytest.raises(StoreError, match="every node mounts"):
            ingest(
                disks / "profiles", disks / "local" / "store", engine="ray", address=cluster.address
            )


def test_the_command_reads_on_the_cluster_and_says_where_there_is_none(
    cluster: Any, disks: Path
) -> None:
    def command(address: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "npuscope", "ingest", str(disks / "profiles")]
        line += ["--store", str(disks / "store"), "--engine", "ray", "--address", address]
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)

    done = command(cluster.address)
    assert done.returncode == 0, done.stderr
    assert "2 rank(s) read" in done.stderr
    none = command("127.0.0.1:1")
    assert none.returncode == 2
    assert "nothing answers" in none.stderr


def test_nothing_starts_once_the_engine_is_told_not_to_go_on(
    cluster: Any, ranks_alone: None
) -> None:
    answers = iter([True] * 3)
    with ray_cluster.open_cluster(cluster.address, None) as engine:
        outcomes = list(
            engine.map(
                reads, [task(n) for n in range(9)], lambda n_bytes: None,
                lambda: next(answers, False),
            )
        )  # fmt: skip
    assert len(outcomes) == 3


def test_a_reader_that_dies_costs_its_rank_alone(cluster: Any) -> None:
    with ray_cluster.open_cluster(cluster.address, None) as engine:
        outcomes = list(
            engine.map(dies_on_two, [task(n) for n in range(4)], lambda n_bytes: None, lambda: True)
        )
    assert sorted(o.rank for o in outcomes) == [0, 1, 2, 3]
    assert [o.rank for o in outcomes if o.error] == [2]
