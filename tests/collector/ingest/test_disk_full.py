"""A disk that fills while ranks are read: the store stays whole, and the user learns what to do."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from npuscope.collector.store.space import file_system_of, is_out_of_space, is_refused_by_store
from npuscope.errors import StoreError
from tests.conftest import WriteProfile
from tests.private_mounts import in_private_mounts

RANKS = 6
KERNELS = 6000

# Runs a command that finds an almost empty disk at a folder.
MOUNTED = 'mount -t tmpfs -o size={size} none "$1"; shift; exec "$@"'
INGEST_TWICE = """
import json, os, subprocess, sys
from pathlib import Path
from npuscope.analysis.summaries import summarise
from npuscope.collector.store import store
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store.manifest import manifests

def main():
    source, target, jobs = Path(sys.argv[1]), Path(sys.argv[2]) / "store", int(sys.argv[3])
    told = []
    for size in (None, "64m"):
        if size:
            subprocess.run(["mount", "-o", f"remount,size={size}", sys.argv[2]], check=True)
        result = ingest(source, target, run="job", summarise=summarise, jobs=jobs)
        told.append({
            "published": sorted(o.rank for o in result.publications),
            "unchanged": sorted(m.rank for m in result.unchanged),
            "failed": {o.rank: o.error for o in result.failures},
            "problems": [p.message for p in result.problems],
            "kernels": dict(store.query(
                target, "select rank, count(*) from kernels group by rank").iter_rows()),
            "summarised": store.query(
                target, "select distinct rank from step_summary order by 1")["rank"].to_list(),
            "litter": [str(p) for p in target.rglob(".tmp-*")],
        })
    print(json.dumps(told))

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, write_profile: WriteProfile) -> Path:
    folder = tmp_path_factory.mktemp("profiles")
    digits = random.Random(1)
    for rank in range(RANKS):
        kernels = [
            (7, f"kernel_{digits.getrandbits(64):x}", f"1736412474{n * 50:06}.250", "10.500")
            for n in range(KERNELS)
        ]
        write_profile(folder / f"host_{rank}_ascend_pt", rank, kernels)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_disk_that_fills_midway_leaves_a_valid_store(
    source: Path, tmp_path: Path, jobs: int
) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "run.py").write_text(INGEST_TWICE)
    small = str(tmp_path / "small")
    run = [sys.executable, str(tmp_path / "run.py"), str(source), small, str(jobs)]
    command = in_private_mounts(MOUNTED.format(size="600k"), small, *run)

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    full, repeated = json.loads(done.stdout)
    there = full["published"]
    assert 0 < len(there) < RANKS
    assert full["summarised"] == there
    assert full["kernels"] == {str(rank): KERNELS for rank in there}
    assert full["litter"] == []
    reasons = list(full["failed"].values())
    assert len(reasons) == RANKS - len(there)
    tried = [reason for reason in reasons if not reason.startswith("not tried")]
    assert 1 <= len(tried) <= jobs
    assert all("no space left" in reason for reason in reasons)
    [message] = full["problems"]
    assert f"{tmp_path / 'small'} (tmpfs)" in message
    assert "of 614.4 kB free" in message
    assert f"{len(reasons)} rank(s) are left" in message
    assert "take about" in message
    assert "--store" in message
    assert repeated["unchanged"] == there
    assert repeated["kernels"] == {str(rank): KERNELS for rank in range(RANKS)}
    assert not repeated["failed"] and not repeated["problems"]


@pytest.mark.slow
def test_a_store_that_cannot_hold_one_rank_says_so(source: Path, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = str(tmp_path / "small")
    run = [sys.executable, "-m", "npuscope", "ingest", str(source), "--store", f"{small}/store"]
    command = in_private_mounts(MOUNTED.format(size="100k"), small, *run)

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 3
    assert "no space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_way_of_being_full_is_known(tmp_path: Path) -> None:
    con = duckdb.connect(config={"memory_limit": "64MiB", "temp_directory": str(tmp_path / "t")})
    con.execute("set max_temp_directory_size = '1MiB'")
    rows = "select range as a, md5(range::varchar) as b from range(3000000)"
    full_device = Path("/dev/full")
    with pytest.raises(OSError, match="space") as python, full_device.open("wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
    with pytest.raises(duckdb.Error) as writing:
        con.execute(f"copy (select 1) to '{full_device}' (format csv)")
    with pytest.raises(duckdb.Error) as spilling:
        con.execute(f"create table spilled as {rows}")
    for error in (python, writing, spilling):
        assert is_out_of_space(error.value), error.value
    assert is_out_of_space(OSError(errno.EDQUOT, "Disk quota exceeded"))
    with pytest.raises(duckdb.Error) as other:
        con.execute("select nothing")
    assert not is_out_of_space(other.value)
    con.close()
    refusals = (StoreError("s3://b: refused"), OSError(errno.EROFS, ""), OSError(errno.ESTALE, ""))
    assert all(map(is_refused_by_store, refusals))
    assert not is_refused_by_store(OSError(errno.ENOENT, "gone"))


def test_the_file_system_of_a_path_is_the_innermost_mount() -> None:
    assert file_system_of(Path("/proc/self/fd"))[0] == "/proc"
    assert file_system_of(Path("/proc/self/fd"))[1] == "proc"
