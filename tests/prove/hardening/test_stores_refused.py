"""Stores that cannot be written, were written by a newer program, or are damaged themselves."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npuscope.collector.store import store
from npuscope.collector.store.manifest import MARKER, manifests
from npuscope.collector.store.sweep import sweep
from tests.conftest import REPOSITORY, WriteProfile
from tests.private_mounts import in_private_mounts
from tests.prove.hardening.cases import Done, run_here

READ_ONLY = 'mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"'
FEW_FILES = 'mount -t tmpfs -o size=64m,nr_inodes={inodes} none "$1"; shift; exec "$@"'
SMALL = 'mount -t tmpfs -o size={size} none "$1"; shift; exec "$@"'


@pytest.fixture
def source(tmp_path: Path, write_profile: WriteProfile) -> Path:
    for rank in range(2):
        write_profile(tmp_path / "source" / f"r{rank}_ascend_pt", rank)
    return tmp_path / "source"


@pytest.fixture
def target(source: Path, tmp_path: Path) -> Path:
    done = run("ingest", source, "--store", tmp_path / "store", home=tmp_path)
    assert done.code == 0, done.errors
    return tmp_path / "store"


def npuscope(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "npuscope", *map(str, arguments)]


def execute(command: list[str], home: Path) -> Done:
    """A command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HOME": str(home)}
    environment.pop("XDG_CACHE_HOME", None)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def run(*arguments: object, home: Path) -> Done:
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache")}
    done = run_here([str(one) for one in arguments], places, home)
    assert "Traceback" not in done.errors, done.errors
    return done


@pytest.mark.slow
def test_a_read_only_store_is_read(target: Path, tmp_path: Path) -> None:
    expected = run("steps", target, "--json", home=tmp_path)
    for arguments in (
        ("steps", target, "--json"),
        ("sql", target, "from ranks"),
        ("report", target),
    ):
        done = execute(in_private_mounts(READ_ONLY, str(target), *npuscope(*arguments)), tmp_path)
        assert done.code == 0, done.errors
        if arguments[0] == "steps":
            assert json.loads(done.out)["rows"] == json.loads(expected.out)["rows"]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ingest", "steps"])
def test_a_read_only_store_is_not_written(
    source: Path, target: Path, tmp_path: Path, write_profile: WriteProfile, verb: str
) -> None:
    """What is there is shown; what would be new is named, with what to do."""
    command = npuscope(verb, source, "--store", target)
    done = execute(in_private_mounts(READ_ONLY, str(target), *command), tmp_path)
    assert done.code == 0, done.errors
    write_profile(source / "r2_ascend_pt", 2)
    done = execute(in_private_mounts(READ_ONLY, str(target), *command), tmp_path)
    assert done.code == 4
    assert "rank 2" in done.errors
    assert "Read-only file system: give --store DIR where you may write" in done.errors
    assert {m.rank for m in manifests(target)} == {0, 1}


@pytest.mark.slow
def test_a_read_only_store_is_named(
    source: Path, target: Path, tmp_path: Path, write_profile: WriteProfile
) -> None:
    """Also where a run is new to it, and where its files are to be merged."""
    write_profile(source / "r2_ascend_pt", 2)
    again = run("ingest", source, "--store", target, home=tmp_path)
    assert again.code == 0, again.errors
    for arguments, told in (
        (("ingest", source, "--store", target, "--run", "new"), f"{target}/run=new: "),
        (("compact", target), ": cannot be compacted: "),
    ):
        done = execute(in_private_mounts(READ_ONLY, str(target), *npuscope(*arguments)), tmp_path)
        assert done.code == 3
        assert f"npuscope: {target}/" in done.errors
        assert f"{told}Read-only file system\n" in done.errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["export duckdb STORE -o", "bundle STORE -o", "exporter STORE --textfile"]
)
def test_an_output_that_cannot_be_written_is_named(
    target: Path, tmp_path: Path, command: str
) -> None:
    """By the name that was asked for, not by that of a file on the way to it."""
    out = tmp_path / "outputs" / "out.prom"
    out.parent.mkdir()
    asked = npuscope(*(target if one == "STORE" else one for one in command.split()), out)
    done = execute(in_private_mounts(READ_ONLY, str(out.parent), *asked), tmp_path)
    assert done.code == 3
    assert f"npuscope: {out}: cannot be written (Read-only file system)\n" in done.errors


@pytest.mark.slow
@pytest.mark.parametrize("form", ["duckdb", "parquet"])
def test_an_export_without_room_blames_no_file_of_the_store(
    target: Path, tmp_path: Path, form: str
) -> None:
    out = tmp_path / "outputs" / "out"
    out.parent.mkdir()
    command = npuscope("export", form, target, "-o", out)
    small = SMALL.format(size="16k").replace('exec "$@"', '"$@" || code=$?')
    small += f"; ls -A {out.parent}; exit $code"
    done = execute(in_private_mounts(small, str(out.parent), *command), tmp_path)
    assert (done.code, done.out) == (3, "")  # nothing half is left
    assert f"npuscope: {out}: cannot be written (no space left)\n" in done.errors
    assert "damaged" not in done.errors


@pytest.mark.slow
def test_a_read_only_cache_is_read(source: Path, tmp_path: Path) -> None:
    """A profile whose own store is up to date needs nothing to be written."""
    home = tmp_path / "home"
    home.mkdir()
    first = run("steps", source, "--json", home=home)
    command = in_private_mounts(READ_ONLY, str(home), *npuscope("steps", source, "--json"))
    again = execute(command, home)
    assert (first.code, again.code) == (0, 0), again.errors
    assert again.out == first.out


@pytest.mark.slow
def test_a_home_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    """Where the cache has no place, the message names the option that gives one."""
    home = tmp_path / "home"
    home.mkdir()
    command = in_private_mounts(READ_ONLY, str(home), *npuscope("steps", source))
    done = execute(command, home)
    assert done.code == 3
    assert "Read-only file system" in done.errors
    assert "--store" in done.errors


@functools.cache
def _as_stranger() -> tuple[str, ...]:
    """How to run a command that may read and write only what permissions allow."""
    if os.geteuid() != 0:
        return ()
    powers = "-dac_override,-dac_read_search"
    command = ("setpriv", f"--bounding-set={powers}", f"--inh-caps={powers}")
    try:
        done = subprocess.run([*command, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        pytest.skip("root may do everything here, and cannot give that up")
    return command


@pytest.mark.slow
def test_a_store_that_permissions_protect(source: Path, target: Path, tmp_path: Path) -> None:
    stranger = _as_stranger()
    folders = [target, *(path for path in target.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        done = execute([*stranger, *npuscope("steps", target, "--json")], tmp_path)
        assert (done.code, len(json.loads(done.out)["rows"])) == (0, 2), done.errors
        (source / "r1_ascend_pt" / "profiler_info_1.json").write_text('{"rank_id": 1, "a": 1}')
        done = execute([*stranger, *npuscope("ingest", source, "--store", target)], tmp_path)
        assert done.code == 4
        assert "Permission denied: give --store DIR where you may write" in done.errors
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert {m.rank for m in manifests(target)} == {0, 1}


@pytest.mark.slow
def test_files_that_permissions_protect(source: Path, tmp_path: Path) -> None:
    stranger = _as_stranger()
    table = source / "r1_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    shutil.copytree(source / "r0_ascend_pt", source / "closed" / "r3_ascend_pt")
    table.chmod(0)
    (source / "closed").chmod(0)
    try:
        command = npuscope("ingest", source, "--store", tmp_path / "store")
        done = execute([*stranger, *command], tmp_path)
    finally:
        (source / "closed").chmod(0o755)
    assert done.code == 4
    assert str(source / "r1_ascend_pt") in done.errors
    assert "kernel_details.csv: opening: Permission denied: check its permissions" in done.errors
    assert str(source / "closed") in done.errors
    assert done.errors.count("Permission denied") >= 2
    assert [m.rank for m in manifests(tmp_path / "store")] == [0]


COMMANDS = ("steps", "report", "sql", "export", "compact", "ingest", "ingest -o")


def test_a_store_of_a_newer_layout_is_refused(source: Path, target: Path, tmp_path: Path) -> None:
    (target / MARKER).write_text('{"layout": 99}')
    out = tmp_path / "out.duckdb"
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
    for verb in COMMANDS:
        name, *rest = verb.split()
        arguments = {
            "sql": [target, "from ranks"],
            "export": ["duckdb", target, "-o", out],
            "ingest": [source, "--store", target, *rest, *([out] if rest else [])],
        }.get(name, [target])  # fmt: skip
        done = run(name, *arguments, home=tmp_path)
        assert done.code == 3, (verb, done.errors)
        assert str(target) in done.errors
        assert "layout 99" in done.errors and "upgrade" in done.errors
        assert not out.exists()
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*")} == before


def test_a_store_whose_layout_cannot_be_read_is_refused(target: Path, tmp_path: Path) -> None:
    for marker in ('{"layout": "x"}', "{", "[]", ""):
        (target / MARKER).write_text(marker)
        done = run("steps", target, home=tmp_path)
        assert done.code == 3, (marker, done.errors)
        assert str(target) in done.errors
        assert (target / MARKER).read_text() == marker


@pytest.mark.slow
def test_a_disk_without_room_for_another_file(source: Path, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = str(tmp_path / "small")
    for inodes in (8, 14):
        command = in_private_mounts(
            FEW_FILES.format(inodes=inodes),
            small,
            *npuscope("ingest", source, "--store", f"{small}/s"),
        )
        done = execute(command, tmp_path)
        assert done.code in (3, 4), done.errors
        assert "no space left" in done.errors
        assert f" of {inodes} inodes free" in done.errors


@pytest.mark.slow
def test_results_that_do_not_fit(target: Path, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    small = tmp_path / "small"
    rows = "select *, repeat(md5(k.start_ns::varchar || n), 40) from kernels k, range(2000) t(n)"
    for command in (
        npuscope("sql", target, rows, "--csv", "-o", small / "out.csv"),
        npuscope("export", "parquet", target, "-o", small / "out"),
        npuscope("export", "duckdb", target, "-o", small / "out.duckdb"),
    ):
        size = "300k" if "sql" in command else "12k"
        done = execute(in_private_mounts(SMALL.format(size=size), str(small), *command), tmp_path)
        assert done.code == 3, done.errors
        assert "No space left" in done.errors or "no space left" in done.errors


@pytest.mark.slow
def test_a_bundle_is_whole_where_its_cache_is_full(target: Path, tmp_path: Path) -> None:
    page, cache = tmp_path / "case.npuscope.html", tmp_path / ".cache"
    assert run("bundle", target, "-o", page, home=tmp_path).code == 0
    cache.mkdir()
    looked = SMALL.format(size="60k").replace('exec "$@"', '"$@" || code=$?')
    looked += f"; find {cache} -type f; exit $code"
    done = execute(in_private_mounts(looked, str(cache), *npuscope("steps", page)), tmp_path)
    assert done.code == 3 and "damaged" not in done.errors
    assert "cannot be unpacked below" in done.errors and "(no space left)" in done.errors
    assert done.out == ""  # nothing half is left


def test_a_damaged_segment_says_what_to_do(source: Path, target: Path, tmp_path: Path) -> None:
    segments = [*target.rglob("kernels*.parquet"), *target.rglob("step_summary*.parquet")]
    for path in segments:
        path.write_bytes(path.read_bytes()[:50])
    done = run("steps", target, home=tmp_path)
    assert done.code == 3
    assert "--force" in done.errors
    mended = run("ingest", source, "--store", target, "--force", home=tmp_path)
    assert mended.code == 0, mended.errors
    assert run("steps", target, home=tmp_path).code == 0


def test_a_damaged_manifest_costs_its_rank_until_the_next_ingest(
    source: Path, target: Path, tmp_path: Path
) -> None:
    [path] = target.rglob("rank=1/manifest.json")
    path.write_bytes(path.read_bytes()[:100])
    assert [m.rank for m in manifests(target)] == [0]
    assert run("ingest", source, "--store", target, home=tmp_path).code == 0
    assert [m.rank for m in manifests(target)] == [0, 1]


@pytest.mark.slow
def test_a_reader_across_a_replaced_and_collected_generation(
    source: Path, target: Path, tmp_path: Path, write_profile: WriteProfile
) -> None:
    question = "select rank, count(*) as n from kernels group by rank order by rank"
    con = store.open(target)
    write_profile(
        source / "r1_ascend_pt",
        1,
        [(7, "k", f"17364124740000{n:02}.250", "10.5") for n in range(9)],
    )
    assert run("ingest", source, "--store", target, home=tmp_path).code == 0
    sweep(target)
    assert con.execute(question).fetchall() == [(0, 20), (1, 20)], "it ends on what it began with"
    assert store.query(target, question).rows() == [(0, 20), (1, 9)]
    sweep(target, grace_s=-1)
    assert store.query(target, question).rows() == [(0, 20), (1, 9)]
    con.close()
    shutil.rmtree(target)
