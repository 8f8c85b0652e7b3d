"""What real msprof folders are like: slices in any order, files missing, damaged or exported
twice, headers of several versions, clocks that are no epoch."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.collector.discover.search import discover
from npuscope.sample_traces.capture import Capture, captures
from npuscope.sample_traces.forms.msprof import write_msprof
from npuscope.sample_traces.generate import small
from tests.collector.readers.msprof.msprof_stores import Rows, only_manifest, read, rows, table

COMPARED = ("kernels", "comm_ops", "comm_tasks", "host_ops", "launches", "steps", "counters",
            "memory", "operator_memory", "comm_times", "comm_links")  # fmt: skip


@pytest.fixture(scope="module")
def capture() -> Capture:
    return captures(small(seed=3))[0]


@pytest.fixture(scope="module")
def plain(capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """Tables of an untouched export."""
    out = tmp_path_factory.mktemp("plain") / "job"
    out.mkdir()
    write_msprof([capture], out)
    place, _ = read(out)
    return {name: table(place, name) for name in COMPARED}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def same(place: Path, plain: dict[str, Rows]) -> bool:
    return {name: table(place, name) for name in COMPARED} == plain


@pytest.mark.slow
def test_slices_whose_metadata_stands_in_one(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    root = write_msprof([capture], job, slices=11)
    pieces = sorted((root / "mindstudio_profiler_output").glob("msprof_slice_*.json"))
    assert len(pieces) == 11
    named = [path for path in pieces if '"process_name"' in path.read_text()]
    assert [path.name.split("_")[2] for path in named] == ["0"]
    # The slice with the names comes last.
    last = named[0].with_name(named[0].name.replace("slice_0", "slice_10"))
    for source, target in ((last, job / "kept"), (named[0], last), (job / "kept", named[0])):
        source.rename(target)

    place, result = read(job)

    assert result.is_complete
    assert same(place, plain)


@pytest.mark.slow
def test_a_damaged_slice_costs_itself_only(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    root = write_msprof([capture], job, slices=3)
    output = root / "mindstudio_profiler_output"
    (trace,) = output.glob("msprof_slice_1_*.json")
    (kernels,) = output.glob("op_summary_slice_2_*.csv")
    trace.write_bytes(b"\x00\x01 no JSON at all")
    kernels.write_text("")

    place, _ = read(job)

    manifest = only_manifest(place)
    assert manifest.failed_files.keys() == {str(trace), str(kernels)}
    for name in ("kernels", "comm_tasks", "host_ops"):
        left = table(place, name)
        assert 0 < len(left) < len(plain[name])
    assert {row[7] for row in table(place, "kernels")} <= {row[7] for row in plain["kernels"]}


@pytest.mark.slow
def test_only_the_newest_of_several_exports(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    root = write_msprof([capture], job, slices=2)
    output = root / "mindstudio_profiler_output"
    for path in [*output.iterdir()]:
        older = path.with_name(re.sub(r"_(\d{14})\.", "_20200101000000.", path.name))
        older.write_bytes(path.read_bytes()[:400])
    (output / "op_summary_20190101000000.csv").write_text("nothing\n")

    place, result = read(job)

    assert result.is_complete
    assert same(place, plain)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["host", "device_0", "both"])
def test_without_info_json(
    job: Path, capture: Capture, plain: dict[str, Rows], missing: str
) -> None:
    root = write_msprof([capture], job)
    for folder in ("host", "device_0"):
        if missing in (folder, "both"):
            shutil.rmtree(root / folder)

    place, result = read(job)

    (manifest,) = [only_manifest(place)]
    assert result.is_complete and manifest.rank == 0
    untold = missing != "host"
    assert ("numbered 0" in " ".join(manifest.warnings)) == untold
    assert table(place, "kernels") == plain["kernels"]
    (pid,) = rows(place, "select distinct process_id from host_ops")
    assert (pid[0] == capture.process_id) == (missing != "both")


def test_a_database_beside_text_is_believed_and_text_fills_the_rest(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    write_msprof([capture], job, database=True)

    place, result = read(job)

    assert result.is_complete
    rules = only_manifest(place).rules
    assert rules["from.kernels"] == "ascend_db"
    assert rules["from.operator_memory"] == "memory_record"
    assert rules["from.comm_times"] == "communication"
    for name in ("comm_ops", "comm_times", "comm_links", "steps", "operator_memory", "host_ops"):
        assert table(place, name) == plain[name], name
    assert rows(place, "select source_format from ranks") == [("db+text",)]


def test_a_database_among_the_text_files(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    root = write_msprof([capture], job, text=False, database=True)
    (database,) = root.glob("msprof_*.db")
    database.rename(root / "mindstudio_profiler_output" / database.name)

    place, result = read(job)

    assert result.is_complete
    assert table(place, "comm_ops") == plain["comm_ops"]


def relabel(text: str) -> str:
    return text.replace(",COMMUNICATION,", ",HCCL,")


def newer(text: str) -> str:
    return text.replace("Mix Block Dim", "Mix Block Num").replace("Block Dim", "Block Num")


def older(text: str) -> str:
    head, _, body = text.partition("\n")
    return head.replace("Task Start Time(us)", "Start Time(us)") + "\n" + body.replace("\t", "")


def crlf(text: str) -> str:
    return "\ufeff" + text.replace("\n", "\r\n")


@pytest.mark.slow
@pytest.mark.parametrize("change", [relabel, newer, older, crlf])
def test_headers_of_other_versions(
    job: Path, capture: Capture, plain: dict[str, Rows], change: Callable[[str], str]
) -> None:
    root = write_msprof([capture], job)
    (kernels,) = (root / "mindstudio_profiler_output").glob("op_summary_*.csv")
    before = kernels.read_text()
    assert change(before) != before
    kernels.write_bytes(change(before).encode())

    place, result = read(job)

    assert result.is_complete
    assert same(place, plain)


def test_the_process_of_communication_had_another_name(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    root = write_msprof([capture], job)
    (trace,) = (root / "mindstudio_profiler_output").glob("msprof_*.json")
    text = trace.read_text().replace(
        '"args": {"name": "Communication"}', '"args": {"name": "HCCL"}'
    )
    trace.write_text(text.replace('"level": "communication"', '"level": "hccl"'))

    place, _ = read(job)

    assert only_manifest(place).rules["trace.communication_process"] == "HCCL"
    assert same(place, plain)


def test_a_clock_that_is_no_epoch(job: Path, capture: Capture, plain: dict[str, Rows]) -> None:
    """Times of the machine's own clock: the session is told on both, and the right one is taken."""
    root = write_msprof([capture], job)
    output = root / "mindstudio_profiler_output"
    start = json.loads((root / "device_0" / "start_info.0").read_text())
    shift_us = int(start["collectionTimeBegin"]) - int(start["clockMonotonicRaw"]) // 1000

    def shifted(found: re.Match[str]) -> str:
        return str(int(found[0]) - shift_us)

    for path in output.iterdir():
        path.write_text(re.sub(r"(?<![\d.])176\d{13}(?!\d)", shifted, path.read_text()))

    place, result = read(job)

    assert result.is_complete
    (row,) = rows(place, "select clock, window_start_ns, window_end_ns from ranks")
    ends = [json.loads((root / "device_0" / f"{e}_info.0").read_text()) for e in ("start", "end")]
    assert row == ("device", *(int(end["clockMonotonicRaw"]) for end in ends))
    moved = rows(place, f"select start_ns + {shift_us * 1000}, dur_ns, step, name from kernels")
    assert sorted(moved) == sorted(
        (k.start_ns, k.dur_ns, k.step, k.work.name) for k in capture.kernels
    )
    assert len(table(place, "comm_tasks")) == len(plain["comm_tasks"])


def test_tasks_stand_in_for_kernels(job: Path, capture: Capture, plain: dict[str, Rows]) -> None:
    """task_time alone tells when kernels ran, and what they were."""
    root = write_msprof([capture], job)
    for path in (root / "mindstudio_profiler_output").iterdir():
        if not path.name.startswith("task_time"):
            path.unlink()
    shutil.rmtree(root / "analyze")

    place, result = read(job)

    assert result.is_complete
    assert only_manifest(place).rules["kernels"] == "task_time"
    sql = "select name, core, is_compute, stream_id, task_id, start_ns, dur_ns from kernels"
    found = rows(place, f"{sql} order by all")
    assert found == sorted(
        (k.work.name, k.work.core, k.work.is_compute, k.stream_id, k.task_id, k.start_ns, k.dur_ns)
        for k in capture.kernels
    )
    copies = rows(place, "select type, stream_id, task_id, start_ns, dur_ns from device_tasks"
                         " where type = 'MEMCPY_ASYNC' order by all")  # fmt: skip
    assert copies and copies == sorted(
        ("MEMCPY_ASYNC", copy.stream_id, copy.task_id, copy.start_ns, copy.dur_ns)
        for copy in capture.copies
    )


def test_what_to_do_where_nothing_was_exported(job: Path, capture: Capture) -> None:
    root = write_msprof([capture], job)
    shutil.rmtree(root / "mindstudio_profiler_output")
    shutil.rmtree(root / "analyze")

    found = discover(job)

    assert not found.ranks
    (problem,) = found.problems
    assert problem.path == str(root.resolve())
    assert "msprof --export=on" in problem.message


@pytest.mark.parametrize("place", ["", "mindstudio_profiler_output"])
def test_a_renamed_folder_and_one_inside(job: Path, capture: Capture, place: str) -> None:
    root = write_msprof([capture], job)
    renamed = root.rename(job / "what we measured")

    (source,) = discover(renamed / place).ranks

    assert (source.rank, source.rank_origin) == (0, "rank_id in info.json")
    assert source.framework == "msprof"
    assert {"trace", "kernels", "info", "session"} <= source.files.keys()


@pytest.mark.slow
def test_exports_inside_of_a_frameworks_folder_tell_the_same(
    job: Path, capture: Capture, plain: dict[str, Rows]
) -> None:
    """Exported by msprof in place of analyse(): what HCCL measured has steps there, too."""
    inside = job / "host_1_20250101000000000_ascend_pt"
    (inside / "FRAMEWORK").mkdir(parents=True)
    write_msprof([capture], inside)

    place, result = read(job)

    assert result.is_complete
    for name in ("comm_times", "comm_links", "steps", "kernels", "comm_ops"):
        assert table(place, name) == plain[name], name
    assert rows(place, "select distinct step from comm_times order by 1") == [(12,), (13,)]
