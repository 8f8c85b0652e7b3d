"""One ingest spread over processes, by us or by a launcher: the same store as from one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.summaries import summarise
from npuscope.collector.engines.local import local_engine
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.ingest.shards import Shard, parse_shard, share_of
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.collector.store.sweep import sweep
from npuscope.errors import UsageError
from npuscope.profile import Source, spread
from tests.collector.engines.engine_tasks import asks_until_it_fails, dies_on_two, reads, task
from tests.collector.store.stores_compared import assert_equal_stores
from tests.conftest import WriteProfile
from tests.private_mounts import in_private_mounts


def stagger(folder: Path, write_profile: WriteProfile, ranks: int) -> Path:
    """Ranks whose windows overlap in a chain only: the last has nothing in common with the first.

    Kernels last 10.5 us, one starting every 10 us; a rank starts 150 us after the one before.
    """
    for rank in range(ranks):
        kernels = [
            (7, f"k{n % 3}", f"1736412474{rank * 150 + n * 10:06}.250", "10.500") for n in range(20)
        ]
        write_profile(folder / f"host_{rank}_ascend_pt", rank, kernels)
    return folder


def command(source: Path, into: Path, *options: str) -> list[str]:
    line = [sys.executable, "-m", "npuscope", "ingest", str(source), "--store", str(into)]
    return [*line, "--run", "job", "--jobs", "1", *options]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile) -> Path:
    """A folder with the profiles of eight ranks, and the store of a local ingest beside it."""
    folder = tmp_path_factory.mktemp("shared")
    stagger(folder / "source", write_profile, 8)
    ingest(folder / "source", folder / "store", run="job", summarise=summarise, jobs=1)
    return folder


@pytest.mark.slow
def test_shards_started_together_make_the_store_of_a_whole_ingest(
    source: Path, tmp_path: Path
) -> None:
    started = [
        subprocess.Popen(command(source / "source", tmp_path / "s", "--shard", f"{n}/3"))
        for n in range(3)
    ]

    assert [process.wait(timeout=120) for process in started] == [0, 0, 0]
    assert len({m.capture for m in manifests(source / "store")}) == 1
    assert assert_equal_stores(source / "store", tmp_path / "s") > 8 * 20


@pytest.mark.slow
def test_shards_one_after_the_other_in_any_order_name_captures_alike(
    source: Path, tmp_path: Path
) -> None:
    for n in (3, 0, 2, 1):
        ingest(source / "source", tmp_path / "s", run="job", summarise=summarise, shard=Shard(n, 4))

    assert_equal_stores(source / "store", tmp_path / "s")


@pytest.mark.slow
def test_a_shard_that_starts_again_reads_nothing_twice(source: Path, tmp_path: Path) -> None:
    first = ingest(source / "source", tmp_path / "s", run="job", shard=Shard(1, 3))
    again = ingest(source / "source", tmp_path / "s", run="job", shard=Shard(1, 3))

    assert not again.publications
    assert {m.rank for m in again.unchanged} == {o.rank for o in first.publications} != set()


def test_more_shards_than_ranks(write_profile: WriteProfile, tmp_path: Path) -> None:
    stagger(tmp_path / "source", write_profile, 1)

    results = [
        ingest(tmp_path / "source", tmp_path / "s", run="job", shard=Shard(n, 3)) for n in (2, 1, 0)
    ]

    assert [len(result.publications) for result in results] == [0, 0, 1]
    assert all(result.is_complete for result in results)


def test_only_a_whole_ingest_drops_what_vanished(
    write_profile: WriteProfile, tmp_path: Path
) -> None:
    source = stagger(tmp_path / "source", write_profile, 2)
    ingest(source, tmp_path / "s", run="job")
    (source / "host_1_ascend_pt").rename(tmp_path / "elsewhere")

    for n in range(2):
        assert not ingest(source, tmp_path / "s", run="job", shard=Shard(n, 2)).drops
    assert [m.rank for m in manifests(tmp_path / "s")] == [0, 1]
    assert [m.rank for m in ingest(source, tmp_path / "s", run="job").drops] == [1]


def test_a_problem_is_told_by_the_first_shard_only(
    write_profile: WriteProfile, tmp_path: Path
) -> None:
    source = stagger(tmp_path / "source", write_profile, 2)
    (source / "raw_ascend_pt" / "PROF_1").mkdir(parents=True)

    results = [ingest(source, tmp_path / "s", run="job", shard=Shard(n, 2)) for n in range(2)]

    assert [len(result.problems) for result in results] == [1, 0]


RACE = """
import sys
from pathlib import Path
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest

print("ready", flush=True)
sys.stdin.readline()
source, target = Path(sys.argv[1]), Path(sys.argv[2])
for _ in range(3):
    result = ingest(source, target, run="job", summarise=summarise, force=True)
    assert result.is_complete, result
"""


@pytest.mark.slow
def test_racing_for_one_rank_publishes_one_and_damages_nothing(
    write_profile: WriteProfile, tmp_path: Path
) -> None:
    source, target = stagger(tmp_path / "source", write_profile, 1), tmp_path / "store"
    arguments = [sys.executable, "-c", RACE, str(source), str(target)]
    racers = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    seen: set[tuple[object, ...]] = set()
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            if manifests(target):
                seen.update(
                    store.query(
                        target, "select capture, rank, count(*) from kernels group by all"
                    ).iter_rows()
                )

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for racer in racers:
            assert racer.stdout and racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.communicate("go\n", timeout=120)
    finally:
        done.set()
        reader.join()

    assert [racer.returncode for racer in racers] == [0, 0]
    assert seen == {("20250109T084754.000Z", 0, 20)}
    [published] = manifests(target)
    generations = {path.parent.name for path in target.rglob("kernels.parquet")}
    assert published.generation in generations
    assert len(generations) == 6, "what lost the race stays for readers of the moment"
    assert not list(target.rglob(".tmp-*"))
    sweep(target, grace_s=-1)
    assert {path.parent.name for path in target.rglob("kernels.parquet")} == {published.generation}
    assert store.query(target, "select count(*) as n from kernels")["n"].to_list() == [20]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 10])
def test_a_reader_that_dies_costs_its_rank_alone(ranks: int) -> None:
    told: list[int] = []

    outcomes = list(
        local_engine(2).map(dies_on_two, [task(n) for n in range(ranks)], told.append, lambda: True)
    )

    assert sorted(o.rank for o in outcomes) == list(range(ranks))
    assert [o.rank for o in outcomes if o.error] == [2]
    assert "--memory" in str(next(o.error for o in outcomes if o.error))
    # Small blocks stay at hand in processes that read, and in no other that this one starts.
    # And none draws how far a long statement is, into what the command prints.
    seen = {w for o in outcomes for w in o.warnings}
    assert seen == {"glibc.malloc.tcache_count=1000", "False False"}
    assert "GLIBC_TUNABLES" not in os.environ


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_starts_once_the_engine_is_told_not_to_go_on(jobs: int, ranks_alone: None) -> None:
    first = threading.Event()
    outcomes = []
    for outcome in local_engine(jobs).map(
        reads, [task(n) for n in range(20)], lambda n_bytes: None, lambda: not first.is_set()
    ):
        outcomes.append(outcome.rank)
        first.set()

    assert len(outcomes) == jobs, "what had begun when the first one ended, and nothing after it"


@pytest.mark.slow
def test_ctrl_c_is_no_damage(ranks_alone: None) -> None:
    """The engine makes errors of it, which would cost the rank that is being read, and no more."""
    for _ in range(4):
        pressed = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
        pressed.start()
        with pytest.raises(KeyboardInterrupt):
            list(
                local_engine(1).map(
                    asks_until_it_fails, [task(0)], lambda n_bytes: None, lambda: True
                )
            )
        pressed.join()


@given(
    sizes=st.lists(st.integers(0, 10**12), max_size=40),
    count=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_every_rank_is_in_one_share_and_shares_are_even(
    sizes: Sequence[int], count: int, seed: int
) -> None:
    chosen = [("capture", task(rank, size).source) for rank, size in enumerate(sizes)]
    shares: list[list[int]] = []
    for index in range(count):
        share = share_of(Shard(index, count), chosen)
        shares.append([source.rank for _, source in share])
        shuffled = random.Random(seed).sample(chosen, len(chosen))
        again = share_of(Shard(index, count), shuffled)
        assert {s.rank for _, s in again} == set(shares[-1]), "whatever the order of discovery"

    assert sorted(rank for share in shares for rank in share) == list(range(len(sizes)))
    loads = [sum(sizes[rank] for rank in share) for share in shares]
    # The heaviest share was the lightest before its last rank.
    assert max(loads) <= sum(sizes) / count + max(sizes, default=0)


STAGING_NAME = "from npuscope.collector.store.folder_handles import staging_name as n; print(n())"


@pytest.mark.slow
def test_a_container_that_shares_its_hosts_name_keeps_what_it_writes(
    source: Path, tmp_path: Path
) -> None:
    contained = 'exec unshare --pid --fork --mount-proc "$@"'
    dead = [sys.executable, "-c", STAGING_NAME]
    names = [
        subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()
        for line in (dead, in_private_mounts(contained, *dead))
    ]
    ingest(source / "source", tmp_path / "s", run="job", shard=Shard(0, 8))
    [rank] = (tmp_path / "s").glob("run=*/capture=*/rank=*")
    for name in names:
        (rank / name).mkdir()

    sweep(tmp_path / "s")

    # The container's process may be alive: its number means nothing here.
    assert [(rank / name).exists() for name in names] == [False, True]


@pytest.mark.slow
def test_ray_that_is_not_installed_is_asked_for(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(UsageError, match="needs Ray"):
        ingest(source / "source", tmp_path / "s", engine="ray")


@pytest.mark.parametrize(
    ("store_given", "shard", "engine", "told"),
    [
        (False, "0/2", "local", "--store"),
        (False, None, "ray", "--store"),
        (True, "0/2", "ray", "give only one"),
        (True, "2/2", "local", "0/2 to 1/2"),
    ],
)
def test_ways_to_spread_that_contradict_each_other_are_refused(
    tmp_path: Path,
    store_given: bool,
    shard: str | None,
    engine: str,
    told: str,
) -> None:
    source = Source(tmp_path, store=tmp_path / "s" if store_given else None)

    with pytest.raises(UsageError, match=told):
        spread(source, shard, engine, None)


def test_an_engine_that_is_none_is_refused(tmp_path: Path, write_profile: WriteProfile) -> None:
    source = write_profile(tmp_path / "source" / "r0_ascend_pt", 0).parent
    with pytest.raises(UsageError, match="local, ray"):
        ingest(source, tmp_path / "s", engine="spark")
    with pytest.raises(UsageError, match="--engine ray"):
        ingest(source, tmp_path / "s", address="head:6379")


@pytest.mark.parametrize("text", ["4/4", "1", "0/0", "-1/4", "a/b", "1/2/3", ""])
def test_a_shard_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--shard"):
        parse_shard(text)
    assert str(parse_shard("3/16")) == "3/16"
