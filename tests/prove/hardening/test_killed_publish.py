"""Publishing that ends at any of its steps: by a kill, or because the disk is full then.

The process that publishes is told what it does to files and folders, and dies before it does it
for the n-th time: so every moment between two steps is met.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests, read_manifest
from npuscope.collector.store.sweep import sweep
from tests.conftest import REPOSITORY, WriteProfile
from tests.private_mounts import in_private_mounts

RANKS = 3
FIRST_IS_QUICK = [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, RANKS))]
# Publishes one staged generation again and again, each time in a process of its own that is killed
# one step later, until one lives to the end; tells what was done where, and the state after each.
KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
import msgspec
from npuscope.collector.store import store
from npuscope.collector.store.folder_handles import make_staging
from npuscope.collector.store.manifest import (read_manifest)

target, rank = Path(sys.argv[1]), Path(sys.argv[2])
former = read_manifest(rank)
STEPS = {"open", "os.rename", "os.remove", "os.mkdir", "os.utime", "os.chmod", "os.listdir"}
told = []
for last in range(1000):
    generation = f"20300101T000000-{last:012x}"
    exchange = lambda found: {
        name: msgspec.structs.replace(one, file=one.file.replace(former.generation, generation))
        for name, one in found.items()
    }
    manifest = msgspec.structs.replace(
        former, generation=generation, tables=exchange(former.tables),
        summaries=exchange(former.summaries),
    )
    staged = make_staging(rank)
    shutil.copytree(rank / former.generation, staged, dirs_exist_ok=True)
    child = os.fork()
    if not child:
        done = 0
        def step(event, arguments):
            global done
            if event in STEPS:
                done += 1
                if done > last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(step)
        store.publish(target, staged, manifest)
        os._exit(0)
    _, code = os.waitpid(child, 0)
    now = read_manifest(rank)
    kernels = store.query(target, "select rank, count(*) as n from kernels group by 1 order by 1")
    told.append({
        "code": code, "is_new": now.generation == generation, "rows": kernels.rows(),
        "is_whole": all((rank / s.file).is_file() for s in now.tables.values() if s.file),
    })
    shutil.rmtree(staged, ignore_errors=True)
    if code == 0:
        break
print(json.dumps(told))
"""
# Reads all ranks, and is killed as soon as the n-th is published.
KILLED_AFTER = """
import os, signal, sys
from pathlib import Path
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest import ingest, read_batch
from npuscope.collector.store import store

read_batch.MOST_RANKS = int(sys.argv[4])
published = 0
publish = store.publish

def counted(*arguments):
    global published
    publish(*arguments)
    published += 1
    if published == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

store.publish = counted
ingest.ingest(Path(sys.argv[1]), Path(sys.argv[2]), run="job", summarise=summarise, jobs=1)
"""
MOUNTED = 'mount -t tmpfs -o size=8m none "$1"; cp -a "$2" "$1/store"; shift 2; exec "$@"'
# Fills the disk before the n-th renaming of a publishing, publishes, makes room, publishes again.
FILLED = """
import json, os, shutil, sys
from pathlib import Path
from npuscope.analysis.summaries import summarise
from npuscope.collector.store import store
from npuscope.collector.ingest import read_batch
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store.manifest import manifests

source, small, nth = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
read_batch.MOST_RANKS = int(sys.argv[4])
target = small / "store"
renamed = 0

def fill(event, arguments):
    global renamed
    if event == "os.rename" and ".tmp-" in str(arguments[0]) and renamed >= 0:
        renamed += 1
        if renamed == nth:
            renamed = -1
            with open(small / "filler", "wb", buffering=0) as file:
                for size in (65536, 4096, 1):
                    try:
                        while True:
                            file.write(b"x" * size)
                    except OSError:
                        pass

sys.addaudithook(fill)
told = []
for _ in range(2):
    before = {m.rank: m.generation for m in manifests(target)}
    result = ingest(source, target, run="job", summarise=summarise, jobs=1, force=True)
    now = {m.rank: m.generation for m in manifests(target)}
    listed = [p.name for p in target.glob("run=*/capture=*/rank=*/2*")]
    told.append({
        "filled": (small / "filler").exists(), "errors": [o.error for o in result.failures],
        "published": sorted(o.rank for o in result.publications),
        "changed": sorted(rank for rank in now if now[rank] != before[rank]),
        "kernels": dict(store.query(
            target, "select rank, count(*) from kernels group by rank").iter_rows()),
        "litter": [p.name for p in target.rglob(".tmp-*")],
        "orphans": sorted(set(listed) - set(before.values()) - set(now.values())),
        "batches": sorted({p.name for p in target.glob("run=*/capture=*/batch-*")}
                          - {m.batch for m in manifests(target)}),
    })
    (small / "filler").unlink(missing_ok=True)
print(json.dumps(told))
"""


def python(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


def execute(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for rank in range(RANKS):
        write_profile(folder / f"h{rank}_ascend_pt", rank)
    return folder


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory, ranks_alone: None) -> Path:
    target = tmp_path_factory.mktemp("whole") / "store"
    ingest(source, target, run="job", summarise=summarise, jobs=1)
    return target


def kernels(target: Path) -> dict[int, int]:
    found = store.query(target, "select rank, count(*) from kernels group by rank order by rank")
    return dict(found.iter_rows())


@pytest.mark.slow
def test_killed_before_every_step_of_a_publishing(whole: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(whole, tmp_path / "store"))
    expected = [[rank, n] for rank, n in kernels(target).items()]
    [rank] = target.glob("run=*/capture=*/rank=1")
    done = execute(python(KILLED, target, rank))
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    assert [one["code"] for one in told] == [9] * (len(told) - 1) + [0] and len(told) > 10
    assert all(one["is_whole"] and one["rows"] == expected for one in told)
    news = [one["is_new"] for one in told]
    assert news == sorted(news) and news[-1] and not news[0], "once and for all"
    for path in target.rglob("*"):
        os.utime(path, (1e9, 1e9))
    sweep(target, grace_s=0)
    current = read_manifest(rank)
    assert current
    assert {path.name for path in rank.iterdir()} == {"manifest.json", current.generation}
    assert [[r, n] for r, n in kernels(target).items()] == expected


@pytest.mark.slow
@pytest.mark.parametrize("together", [1, pytest.param(RANKS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("published", FIRST_IS_QUICK)
def test_killed_after_a_publishing(
    source: Path, whole: Path, tmp_path: Path, published: int, together: int
) -> None:
    """After the first, the second and the last rank; what is there stays, and the rest follows."""
    target = tmp_path / "store"
    done = execute(python(KILLED_AFTER, source, target, published, together))
    assert done.returncode == -9, done.stderr
    before = {m.rank: m.generation for m in manifests(target)}
    assert len(before) == published
    assert kernels(target) == {rank: kernels(whole)[rank] for rank in before}
    resumed = ingest(source, target, run="job", summarise=summarise, jobs=1)
    assert resumed.is_complete and len(resumed.publications) == RANKS - published
    now = {m.rank: m.generation for m in manifests(target)}
    assert {rank: now[rank] for rank in before} == before
    assert kernels(target) == kernels(whole)
    assert not [*target.rglob(".tmp-*")]


@pytest.mark.parametrize("step", FIRST_IS_QUICK)
def test_a_disk_that_is_full_when_a_rank_is_published(
    source: Path, whole: Path, tmp_path: Path, step: int
) -> None:
    """Where its folder gets its name, where its manifest is replaced, and at the next rank's."""
    (tmp_path / "small").mkdir()
    small = tmp_path / "small"
    command = in_private_mounts(
        MOUNTED, str(small), str(whole), *python(FILLED, source, small, step, 1)
    )
    done = execute(command)
    assert done.returncode == 0, done.stderr
    full, repeated = json.loads(done.stdout)
    expected = {str(rank): n for rank, n in kernels(whole).items()}
    assert full["filled"] and full["kernels"] == expected
    assert full["errors"] and all("no space left" in one for one in full["errors"])
    assert full["changed"] == full["published"] and len(full["published"]) < RANKS
    assert full["litter"] == [] and full["orphans"] == [], "they take room that is needed"
    assert repeated["published"] == list(range(RANKS)) and not repeated["errors"]
    assert repeated["kernels"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, RANKS])
def test_a_disk_that_is_full_when_a_batch_is_published(
    source: Path, whole: Path, tmp_path: Path, step: int
) -> None:
    """As above for ranks that are read together. A manifest that is replaced makes room for the
    next: then all may be published."""
    (tmp_path / "small").mkdir()
    small = tmp_path / "small"
    filled = python(FILLED, source, small, step, RANKS)
    done = execute(in_private_mounts(MOUNTED, str(small), str(whole), *filled))
    assert done.returncode == 0, done.stderr
    full, repeated = json.loads(done.stdout)
    expected = {str(rank): n for rank, n in kernels(whole).items()}
    assert full["filled"] and full["kernels"] == expected
    assert all("no space left" in one for one in full["errors"])
    assert len(full["errors"]) + len(full["published"]) == RANKS
    assert full["changed"] == full["published"] and (step > 1 or not full["published"])
    assert full["litter"] == [] and full["batches"] == [], "they take room that is needed"
    assert repeated["published"] == list(range(RANKS)) and not repeated["errors"]
    assert repeated["kernels"] == expected


# Reads all ranks again, and is killed before it gives anything a name for the n-th time; told is
# how often that went before the first that lives to the end.
KILLED_BATCH = """
import os, signal, sys
from pathlib import Path
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests

source, target = Path(sys.argv[1]), Path(sys.argv[2])
for last in range(100):
    child = os.fork()
    if not child:
        done = 0
        def step(event, arguments):
            global done
            if event == "os.rename":
                done += 1
                if done > last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(step)
        ingest(source, target, run="job", jobs=1, force=True)
        os._exit(0)
    _, code = os.waitpid(child, 0)
    told = store.query(target, "select rank, count(*) from kernels group by rank order by rank")
    print(code, len({m.batch for m in manifests(target)}), told.rows())
    if code == 0:
        break
"""


@pytest.mark.slow
def test_killed_before_every_renaming_of_a_batch(source: Path, whole: Path, tmp_path: Path) -> None:
    """First its folder gets its name, then rank after rank is published; and each is whole."""
    target = Path(shutil.copytree(whole, tmp_path / "store"))
    done = execute(python(KILLED_BATCH, source, target))
    assert done.returncode == 0, done.stderr
    told = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [code for code, *_ in told] == ["9"] * (len(told) - 1) + ["0"] and len(told) > RANKS
    assert {rows for *_, rows in told} == {str(list(kernels(whole).items()))}
    assert [int(batches) for _, batches, _ in told][:: len(told) - 1] == [1, 1]
    assert max(int(batches) for _, batches, _ in told) > 1, "killed between two ranks"
    sweep(target, grace_s=-1)
    assert not [*target.rglob(".tmp-*")] and kernels(target) == kernels(whole)
    assert len([*target.glob("run=*/capture=*/batch-*")]) == 1
