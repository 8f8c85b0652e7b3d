"""Counts of tokens per expert in the store: found or given, kept with one rank, never lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from npuscope.cli import main
from npuscope.collector.discover.expert_folders import expert_facts, own_folder
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.selection import parse_selection
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.errors import TraceNotFound, UsageError
from npuscope.sample_traces.generate import small, write_job
from npuscope.sample_traces.truth import expert_load
from tests.collector.readers.expert_load.expert_dumps import (
    line,
    write_deployment,
    write_dump,
    write_hook,
)

pytestmark = pytest.mark.slow

JOB = small()
ROWS = "select rank, step, layer, expert, tokens from expert_load order by all"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ranks 0 and 1, steps 12 and 13."""
    folder = tmp_path_factory.mktemp("experts") / "job"
    write_job(JOB, folder, forms=("text",))
    return folder


@pytest.fixture
def profiles(job: Path, tmp_path: Path) -> Path:
    """A folder of the same profiles that a test may add to."""
    folder = tmp_path / "job"
    folder.mkdir()
    for child in job.glob("*_ascend_pt"):
        (folder / child.name).symlink_to(child)
    return folder


@pytest.fixture
def read(profiles: Path, tmp_path: Path) -> Any:
    def run(expert_load: Path | None = None, **options: Any) -> IngestResult:
        selection = parse_selection(**options.pop("selected", {}))
        return ingest(
            profiles, tmp_path / "store", jobs=1, expert_load=expert_load, selection=selection,
            **options,
        )  # fmt: skip

    return run


def rows(tmp_path: Path) -> list[tuple[Any, ...]]:
    return store.query(tmp_path / "store", ROWS).rows()


def test_a_folder_beside_the_profiles_is_found(read: Any, profiles: Path, tmp_path: Path) -> None:
    assert read().is_complete and rows(tmp_path) == [] and own_folder(profiles) is None
    hook = write_hook(JOB, profiles / "tokens_per_expert")
    assert own_folder(profiles) == hook
    write_deployment(hook / "expert_map.json", [[[0, 1], [2, 3]]])
    # It came later: the one rank that holds it is read again.
    result = read()
    assert result.is_complete and [outcome.rank for outcome in result.publications] == [0]
    assert rows(tmp_path) == [(0, *row) for row in expert_load(JOB)]
    placed = store.query(tmp_path / "store", "select rank, device, slot, expert from"
                         " expert_placement order by all").rows()  # fmt: skip
    assert placed == [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 2), (0, 1, 1, 3)]
    holder, other = manifests(tmp_path / "store")
    facts = expert_facts(holder.rules)
    assert facts is not None and (facts.source, facts.ranks_count, facts.experts_count) == (
        "hook", 2, 4,
    )  # fmt: skip
    assert expert_facts(other.rules) is None
    # A running job counts on: that alone is no reason to read the rank again.
    with (hook / "rank0.jsonl").open("a") as file:
        file.write(line(14, 0, [1, 1, 1, 1]))
    assert read().publications == ()


@pytest.mark.slow
def test_it_is_read_anew_when_it_is_named(read: Any, tmp_path: Path) -> None:
    hook = write_hook(JOB, tmp_path / "elsewhere")
    assert len(read(hook).publications) == 2 and len(rows(tmp_path)) == 8
    assert read(hook).publications == () and read().publications == ()
    for rank in range(2):
        with (hook / f"rank{rank}.jsonl").open("a") as file:
            file.write(line(14, 0, [1, 1, 1, rank]))
    assert read().publications == () and len(rows(tmp_path)) == 8
    result = read(hook)
    assert [outcome.rank for outcome in result.publications] == [0]
    assert rows(tmp_path)[-1] == (0, 14, 0, 3, 1)
    # Dumps instead of it.
    dump = write_dump(tmp_path / "dump", {"decode_0": [[1, 2]]}, num_moe_layers=1)
    read(dump)
    assert rows(tmp_path) == [(0, None, 0, 0, 1), (0, None, 0, 1, 2)]


@pytest.mark.slow
def test_parts_in_each_ranks_profile_are_merged(read: Any, profiles: Path, tmp_path: Path) -> None:
    hook = write_hook(JOB, tmp_path / "elsewhere")
    first, second = (profiles / f"of_host_{rank}" for rank in range(2))
    first.mkdir()
    (hook / "rank0.jsonl").rename(first / "rank0.jsonl")
    read()
    assert len(rows(tmp_path)) == 8 and rows(tmp_path) != [(0, *row) for row in expert_load(JOB)]
    # The other host's folder came later.
    second.mkdir()
    (hook / "rank1.jsonl").rename(second / "rank1.jsonl")
    result = read()
    assert [outcome.rank for outcome in result.publications] == [0]
    assert rows(tmp_path) == [(0, *row) for row in expert_load(JOB)]
    assert read().publications == ()
    facts = expert_facts(manifests(tmp_path / "store")[0].rules)
    assert facts is not None and facts.ranks_count == 2
    assert read(force=True).is_complete
    assert rows(tmp_path) == [(0, *row) for row in expert_load(JOB)]


@pytest.mark.slow
def test_what_was_read_of_a_folder_that_is_gone_stays(read: Any, tmp_path: Path) -> None:
    hook = write_hook(JOB, tmp_path / "elsewhere")
    read(hook)
    for file in hook.iterdir():
        file.unlink()
    assert read().publications == () and len(rows(tmp_path)) == 8
    result = read(selected={"stacks": True})
    assert [outcome.rank for outcome in result.failures] == [0] and len(rows(tmp_path)) == 8
    assert "rank0.jsonl" in result.failures[0].error and "--force" in result.failures[0].error
    assert read(force=True).is_complete and rows(tmp_path) == []
    with pytest.raises(TraceNotFound, match=r"no rank\*.jsonl"):
        read(hook)


@pytest.mark.slow
def test_one_that_cannot_be_read_spoils_nothing(read: Any, profiles: Path, tmp_path: Path) -> None:
    hook = profiles / "tokens_per_expert"
    hook.mkdir()
    (hook / "rank0.jsonl").write_text("no counts\n")
    result = read()
    assert not result.failures and len(result.publications) == 2 and rows(tmp_path) == []
    assert [(rank, Path(path).name) for rank, path, _ in result.unread_files] == [
        (0, "tokens_per_expert")
    ]
    kernels = store.query(tmp_path / "store", "select count(distinct rank) from kernels").row(0)
    assert kernels == (2,)


@pytest.mark.slow
def test_with_a_selection(read: Any, tmp_path: Path) -> None:
    hook = write_hook(JOB, tmp_path / "elsewhere")
    read(hook, selected={"ranks": "1", "steps": "12", "tables": "kernels"})
    assert {(rank, step) for rank, step, *_ in rows(tmp_path)} == {(1, 12), (1, 13)}
    with pytest.raises(UsageError, match=r"--expert-load: rank 1 .*--ranks"):
        read(hook, selected={"ranks": "0"})
    read(hook, selected={"light": True})
    assert {rank for rank, *_ in rows(tmp_path)} == {1} and len(rows(tmp_path)) == 8


@pytest.mark.slow
def test_the_command(
    profiles: Path, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["npuscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    code, _, err = run("ingest", profiles, "--expert-load", tmp_path / "absent")
    assert code == 3 and "give the folder" in err
    hook = write_hook(JOB, tmp_path / "hook")
    (hook / "rank1.jsonl").rename(hook / "rank2.jsonl")
    code, _, err = run("ingest", profiles, "--expert-load", hook)
    assert code == 0 and "no file of rank(s) 1" in err
    query = "select count(*) as n, count(distinct rank) as ranks from expert_load"
    code, out, _ = run("sql", profiles, query, "--json")
    assert code == 0 and json.loads(out)["rows"] == [{"n": 8, "ranks": 1}]
