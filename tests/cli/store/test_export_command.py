"""`npuscope export perfetto` as users meet it: options, messages, exit codes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from npuscope.collector.store import store
from npuscope.collector.store.folder_handles import process_space
from npuscope.dashboard.perfetto.choice import Choice, parse_choice
from npuscope.dashboard.perfetto.rank_tables import Trace, trace_of
from npuscope.dashboard.perfetto.trace_file import before
from npuscope.dashboard.perfetto.trace_size import ExpectedTrace
from npuscope.profile import OpenTables
from npuscope.sample_traces.generate import small
from tests.cli.command import Run
from tests.dashboard.perfetto.traces import file_events


@pytest.fixture
def sample(sample_store: Path) -> Path:
    return sample_store


def test_a_trace_of_a_profile_folder(
    run: Run, write_profile: Callable[..., Path], tmp_path: Path
) -> None:
    for rank in range(2):
        write_profile(tmp_path / "profile" / f"h{rank}_ascend_pt", rank)
    outcome = run("export", "perfetto", tmp_path / "profile", "-o", tmp_path / "x.json")
    assert (outcome.code, outcome.out) == (0, "")
    # 20 kernels of 10.5 us, one beginning every us, are 11 rows of a stream and a piece of overlap.
    assert re.search(
        r"x\.json: [\d,]+ events of ranks 0-1, [\d.]+ kB; 0 is 2025-01-09T", outcome.err
    )
    events = file_events(tmp_path / "x.json")
    assert [event["name"] for event in events if event.get("cat") == "overlap"] == ["computing"] * 2
    assert len([event for event in events if event.get("cat") == "kernel"]) == 40
    assert outcome.err.endswith("open it with ui.perfetto.dev or chrome://tracing\n")


def test_both_names_write_the_same(run: Run, sample: Path, tmp_path: Path) -> None:
    for form in ("perfetto", "chrome"):
        out = tmp_path / f"{form}.json"
        done = run("export", form, sample, "--ranks", "3,99", "--steps", 12, "-o", out)
        assert done.code == 0
        assert "--ranks: there is no rank 99 in 20251127T123437.000Z\n" in done.err
    assert (tmp_path / "perfetto.json").read_bytes() == (tmp_path / "chrome.json").read_bytes()


@pytest.mark.slow
def test_it_says_where_zero_is(run: Run, sample: Path, tmp_path: Path) -> None:
    outcome = run("export", "perfetto", sample, "--window", "5-6", "-o", tmp_path / "x.json")
    expected = "; 0 is 2025-11-27T12:34:37.005000000Z, 5.000000 ms after the capture's start;"
    assert expected in outcome.err
    told = json.loads((tmp_path / "x.json").read_text())["otherData"]
    assert told["start"] == "2025-11-27T12:34:37.005000000Z"
    assert told["ms_after_capture_start"] == "5.000000"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "8-9"), "no such rank in 20251127T123437.000Z: there is 0-7"),
        (("--ranks", "x"), "--ranks x: give numbers and ranges such as 0,7,8-15"),
        (("--steps", "20-30"), "no step 20-30 with a time in 20251127T123437.000Z: there is 12-13"),
        (("--steps", "12,14"), "--steps 12,14: one contiguous range, such as 12-14"),
        (("--window", "9-4"), "--window 9-4: it ends before it begins"),
        (("--window", "-"), "--window -: give milliseconds such as 120-180.5, 120- or -180.5"),
        (("--steps", "12", "--window", "4-9"), "--steps and --window both select"),
        (("--tracks", "steps,cpu"), "no 'cpu'; there are steps, overlap, kernels,"),
        (
            ("--capture", "x"),
            "no such capture: there is --run moe_8_ranks --capture 20251127T123437.000Z",
        ),
        (
            ("--window", "500-600"),
            "no events in that range: those of ranks 0-7 are from 0.000000 to",
        ),
    ],
)
def test_what_cannot_be_shown(
    run: Run, sample: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    outcome = run("export", "perfetto", sample, "-o", tmp_path / "x.json", *options)
    assert outcome.code == 2
    assert message in outcome.err
    assert list(tmp_path.glob("*x.json*")) == []


def test_a_wrong_format_lists_all(run: Run, sample: Path, tmp_path: Path) -> None:
    outcome = run("export", "Perfetto", sample, "-o", tmp_path / "x")
    assert outcome.code == 2
    listed = "duckdb, parquet, csv, perfetto, chrome, openmetrics"
    assert f"unknown export format Perfetto: one of {listed}\n" in outcome.err


def test_tables_are_not_chosen_from(run: Run, sample: Path, tmp_path: Path) -> None:
    outcome = run("export", "csv", sample, "--ranks", "0", "-o", tmp_path / "x")
    assert outcome.code == 2
    assert "--ranks is for traces (perfetto, chrome): csv exports everything" in outcome.err


_ONE_CAPTURE = "select distinct capture from ranks"


def test_one_run_of_several_is_not_what_all_are_asked_for(
    run: Run, write_profile: Callable[..., Path], tmp_path: Path
) -> None:
    both = tmp_path / "store"
    for name in ("a", "b"):
        folder = write_profile(tmp_path / name / "h0_ascend_pt", 0).parent
        assert run("ingest", folder, "--store", both, "--run", name).code == 0
    (capture,) = (row["capture"] for row in run("sql", both, _ONE_CAPTURE, "--json").rows)
    for words, runs in (
        (["--run", "a"], ["a"]),
        (["--capture", capture], ["a", "b"]),
        ([], ["a", "b"]),
    ):
        for form, read in (("csv", pl.read_csv), ("parquet", pl.read_parquet)):
            out = tmp_path / f"of_{form}"
            assert run("export", form, both, *words, "-o", out).code == 0
            for file in out.iterdir():
                found = set(read(file)["run"])
                assert found <= set(runs), file
            assert sorted(read(out / f"kernels.{form}")["run"].unique()) == runs
    told = run("export", "csv", both, "--run", "a", "--capture", "x", "-o", tmp_path / "x")
    assert told.code == 2 and "no capture x here" in told.err
    one = tmp_path / "one.duckdb"
    assert run("export", "duckdb", both, "--run", "b", "-o", one).code == 0
    assert {row["run"] for row in run("steps", one, "--json").rows} == {"b"}
    told = run("sql", both, "from ranks", "--run", "a")
    assert told.code == 2 and "reads all runs here: a, b" in told.err
    for command in (
        ("sql", both, "from ranks"),
        ("export", "csv", both, "-o", tmp_path / "x"),
        ("export", "openmetrics", both, "-o", tmp_path / "x"),
    ):
        told = run(*command, "--run", "c")
        assert told.code == 2 and "no run c here: there is a, b" in told.err
    # Where there is no other, all is of it.
    alone = tmp_path / "alone"
    assert run("ingest", tmp_path / "a", "--store", alone, "--run", "a").code == 0
    assert run("sql", alone, "from ranks", "--run", "a").code == 0


@pytest.mark.slow
def test_an_export_of_several_runs_compares_the_ranks_of_each(
    run: Run, written_job: Callable[..., Path], tmp_path: Path
) -> None:
    """Runs with equal names of capture, ranks, steps and groups, as repeated trainings have."""
    both, one = tmp_path / "store", tmp_path / "both.duckdb"
    for seed, name in enumerate("ab"):
        profiles = written_job(small(seed=seed, overloaded=0), "text")
        assert run("ingest", profiles, "--store", both, "--run", name).code == 0
    # One that was killed left what it had written so far, unlike one that still writes.
    pids = [2**22 + 1, os.getpid()]  # no process has a number as large
    killed, writing = (tmp_path / f".tmp-{process_space()}-{pid}-{'a' * 12}" for pid in pids)
    for left in (killed, writing):
        left.mkdir()
        (left / "both.duckdb.wal").touch()
    for form, out in (("duckdb", one), ("csv", tmp_path / "tables"), ("csv", tmp_path / "tables")):
        assert run("export", form, both, "-o", out).code == 0
    assert set(tmp_path.glob(".tmp*")) == {writing}
    told = {}
    for verb in (("comm", "--by", "part"), ("ranks",), ("comm",), ("findings",), ("steps",)):
        for name in "ab":
            here, there = (run(*verb, at, "--run", name, "--json") for at in (both, one))
            told[verb, name] = here.rows
            assert here.rows, verb
            assert json.loads(there.out.replace(str(one), str(both))) == here.json(), (verb, name)
    assert told[("ranks",), "a"] != told[("ranks",), "b"]


def test_one_of_several_captures(
    run: Run, write_profile: Callable[..., Path], tmp_path: Path
) -> None:
    for day in range(2):
        kernels = [(1, "k", f"{17364124740 + day * 86400}00001.250", "10.5")]
        write_profile(tmp_path / "profile" / f"d{day}_ascend_pt", 0, kernels)
    arguments = ("export", "perfetto", tmp_path / "profile", "-o", tmp_path / "x.json")
    outcome = run(*arguments)
    assert outcome.code == 2
    captures = re.findall(r"--capture (\S+?)(?:;|\n)", outcome.err)
    assert len(captures) == 2 and "a trace shows one of 2 captures" in outcome.err
    assert run(*arguments, "--capture", captures[1]).code == 0


def test_a_rank_without_the_step_is_left_out(
    run: Run, write_profile: Callable[..., Path], tmp_path: Path
) -> None:
    for rank, step in enumerate((7, 8)):
        kernels = [(step, "k", f"17364124740000{n:02}.250", "10.5") for n in range(3)]
        write_profile(tmp_path / "profile" / f"h{rank}_ascend_pt", rank, kernels)
    arguments = ("export", "perfetto", tmp_path / "profile", "-o", tmp_path / "x.json")
    outcome = run(*arguments, "--steps", "8")
    assert "rank 0: none of the steps, left out\n" in outcome.err
    assert {event["pid"] for event in file_events(tmp_path / "x.json")} == {1}


def test_times_that_do_not_compare_are_said(sample: Path) -> None:
    told = list(before(trace_for(sample, clock=None), ExpectedTrace(10, 1000, 0, 10)))
    assert told == [
        "note: not all ranks record wall-clock timestamps: their relative position has no meaning"
    ]
    assert list(before(trace_for(sample, clock="epoch"), ExpectedTrace(10, 1000, 0, 10))) == []


@pytest.mark.parametrize(
    ("options", "size_bytes", "message"),
    [
        ({}, 709_000_000, "709.0 MB, which a browser opens in 59 s and 1.8 GB of memory; --ranks 0"
         " or --steps 12 or --tracks overlap,communication makes it smaller"),
        ({"ranks": "3", "steps": "12"}, 5e9, "5,000.0 MB, more than most browsers open; --tracks"
         " overlap,communication makes it smaller"),
        ({"window": "1-9", "ranks": "3"}, 5e9, "browsers open; a shorter --window or --tracks"),
    ],
)  # fmt: skip
def test_what_is_large_is_said_before(
    sample: Path, options: dict[str, str], size_bytes: float, message: str
) -> None:
    expected = ExpectedTrace(3_300_000, int(size_bytes), 0, 10)
    (told,) = before(trace_for(sample, "epoch", parse_choice(**options)), expected)
    assert told.startswith("large: about 3,300,000 events, ")
    assert message in told


def trace_for(sample: Path, clock: str | None, choice: Choice | None = None) -> Trace:
    trace = trace_of(OpenTables(store.open(sample), sample), choice or Choice())
    return replace(trace, selection=replace(trace.selection, clock=clock))
