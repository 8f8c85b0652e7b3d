"""Names and shapes of folders that a file system allows, however odd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import npuscope
from npuscope.analysis.wording import shell_word
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.console.printable import json_text, visible
from npuscope.errors import TraceNotFound
from tests.cli.command import runner
from tests.conftest import WriteProfile
from tests.prove.hardening.captures import write_small
from tests.prove.hardening.cases import Told, run_ingest

NAMES = (
    "it's", 'say "so"', "two  words ", "new\nline", "模型训练", "a[1]", "a*", "a?b", "{x,y}",
    "%41%2f", "-rf", "$(id) `id`", "'; drop table kernels; --", "[red]x[/blue]", "back\\slash",
    "#", "~", "tab\t", "é\u0301\u202e",
)  # fmt: skip
NOT_UTF8 = os.fsdecode(b"caf\xe9 \xff")


def ranks_read(told: Told) -> list[int]:
    assert "Traceback" not in told.errors
    assert not told.changed
    return sorted(told.ranks)


@pytest.mark.slow
def test_any_name_is_a_name(tmp_path: Path, write_profile: WriteProfile) -> None:
    root = tmp_path / "all '[of]* them\n"
    for rank, name in enumerate((*NAMES, NOT_UTF8)):
        write_profile(root / name / name / f"{name}_ascend_pt", rank)

    told = run_ingest(root, tmp_path / "work")

    assert (told.code, ranks_read(told)) == (0, list(range(len(NAMES) + 1)))
    [counts] = {tuple(rank.row_counts.items()) for rank in told.ranks.values()}
    assert dict(counts)["kernels"] == 20
    again = run_ingest(root, tmp_path / "work")
    assert (again.code, again.ranks) == (0, told.ranks)
    assert "0 rank(s) read" in again.errors


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_every_reader_takes_any_name(form: str, tmp_path: Path) -> None:
    name = f"a*[b]?'\"{NOT_UTF8}"
    write_small(tmp_path / "plain", form)
    whole = run_ingest(tmp_path / "plain", tmp_path / "one")
    odd = (tmp_path / "plain").rename(tmp_path / name)
    # What would be read too, if the name were a pattern.
    shutil.copytree(odd, tmp_path / f"axbz'\"{NOT_UTF8}")

    told = run_ingest(odd, tmp_path / "two", target=tmp_path / "store *[s]?")

    assert (told.code, told.ranks) == (0, whole.ranks)
    damaged = next((odd).rglob("analysis.db" if form == "db" else "memory_record.csv"))
    damaged.write_bytes(damaged.read_bytes()[:-3])
    told = run_ingest(odd, tmp_path / "three")
    assert told.code == 4
    assert damaged.name in told.errors
    assert "Traceback" not in told.errors


def test_a_store_needs_a_name_that_can_be_written_down(
    tmp_path: Path, write_profile: WriteProfile
) -> None:
    write_profile(tmp_path / "source", 0)
    told = run_ingest(tmp_path / "source", tmp_path / "work", target=tmp_path / NOT_UTF8)
    assert told.code == 3
    assert "not UTF-8" in told.errors and "--store" in told.errors
    assert not (tmp_path / NOT_UTF8).exists()


@pytest.mark.slow
def test_answers_and_outputs_where_names_are_not_utf8(
    tmp_path: Path, write_profile: WriteProfile, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What npuscope writes itself takes any name; what the engine writes is refused by it."""
    run = runner(tmp_path / "cache", monkeypatch, capsys)
    source = tmp_path / f"new\nline {NOT_UTF8}"
    write_profile(source / "0_ascend_pt", 0)
    assert json.loads(run("doctor", source, "--json").out)["schema_version"] == 1
    # What ranks were read from is known again.
    assert "no rank was read from it" not in run("doctor", source).out
    assert json.loads(json_text({"path": str(source)})) == {"path": str(source)}
    assert visible(NOT_UTF8) == r"caf\udce9 \udcff"
    word = shell_word(str(source))
    assert word.isprintable() and word.endswith(r"/new\x0aline caf\xe9 \xff'")
    said = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True)
    assert said.stdout == os.fsencode(source)

    for form in ("duckdb", "parquet", "csv", "perfetto"):
        done = run("export", form, source, "-o", source / "out")
        assert done.code == 3
        assert done.err.endswith(
            r"line caf\xe9 \xff/out: this name is not UTF-8, and the query engine takes no other:"
            " rename the folder or the file, or give another\n"
        )
    assert sorted(path.name for path in source.iterdir()) == ["0_ascend_pt"]


def test_a_path_with_detours(tmp_path: Path, write_profile: WriteProfile) -> None:
    write_profile(tmp_path / "source" / "x_ascend_pt", 3)
    (tmp_path / "elsewhere").mkdir()
    detour = tmp_path / "elsewhere" / ".." / "source" / "x_ascend_pt" / ".." / "."
    told = run_ingest(detour, tmp_path / "work")
    assert (told.code, ranks_read(told)) == (0, [3])
    roots = {m.source_root for m in manifests(tmp_path / "work" / "store")}
    assert roots == {str(tmp_path / "source" / "x_ascend_pt")}
    straight = run_ingest(tmp_path / "source", tmp_path / "work")
    assert "0 rank(s) read, 1 unchanged" in straight.errors


@pytest.mark.slow
def test_names_inside_files_lead_nowhere(tmp_path: Path, write_profile: WriteProfile) -> None:
    """What a profile says of paths, jobs and groups is text."""
    folder = write_profile(tmp_path / "source" / "x_ascend_pt", 0)
    evil = "../../../../evil'; drop table ranks; --\x00"
    (folder / "profiler_metadata.json").write_text(
        json.dumps({
            "job_name": evil,
            "parallel_group_info": {evil: {"group_name": evil, "global_ranks": [0]}},
            "distributed_args": {"world_size": 1, evil: evil},
        })
    )  # fmt: skip
    told = run_ingest(tmp_path / "source", tmp_path / "work")
    assert (told.code, ranks_read(told)) == (0, [0])
    assert not list(tmp_path.glob("evil*"))
    assert [m.run for m in manifests(tmp_path / "work" / "store")] == [evil]


@pytest.mark.slow
def test_links_in_circles(
    tmp_path: Path, write_profile: WriteProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    one = write_profile(source / "a" / "x_ascend_pt", 0)
    two = write_profile(source / "b" / "y_ascend_pt", 1)
    (source / "self").symlink_to(source / "self")
    (source / "tick").symlink_to(source / "tock")
    (source / "tock").symlink_to(source / "tick")
    (source / "a" / "up").symlink_to(source)
    (source / "b" / "twin_ascend_pt").symlink_to(one)
    (two / "ASCEND_PROFILER_OUTPUT" / "home").symlink_to(source)
    told = run_ingest(source, tmp_path / "work")
    assert (told.code, ranks_read(told)) == (0, [0, 1])

    # The circle itself is no profile, also where its store would be in the cache.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(TraceNotFound, match="no such file or folder"):
        npuscope.open(source / "self")

    # A file that is needed, though, is missed.
    (two / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").symlink_to("trace_view.json")
    told = run_ingest(source, tmp_path / "more")
    assert (told.code, ranks_read(told)) == (4, [0, 1])
    assert "trace_view.json" in told.errors and "symbolic links" in told.errors


def test_a_profile_ten_levels_deep(tmp_path: Path, write_profile: WriteProfile) -> None:
    deep = tmp_path / "source" / "/".join(f"level{n}" for n in range(10))
    write_profile(deep / "x_ascend_pt", 5)
    told = run_ingest(tmp_path / "source", tmp_path / "work")
    assert (told.code, ranks_read(told)) == (0, [5])


@pytest.mark.slow
def test_files_of_one_byte(tmp_path: Path) -> None:
    folders = write_small(tmp_path / "source", "text", "db")
    whole = run_ingest(tmp_path / "source", tmp_path / "truth")
    short = [path for path in folders[1].rglob("*.*") if path.is_file()]
    for number, path in enumerate(short):
        path.write_bytes((b"{", b"[", b"\n", b"1", b"\0", b'"')[number % 6])

    told = run_ingest(tmp_path / "source", tmp_path / "work")

    assert told.code == 4
    assert ranks_read(told) == [0]
    assert told.ranks[0] == whole.ranks[0]
    assert "rank 1" in told.errors
    assert store.query(tmp_path / "work" / "store", "from ranks").height == 1
