"""Tables of communication: means, shares, ranks without events."""

from __future__ import annotations

import duckdb
import pytest
from rich.console import Console, RenderableType

from npuscope.analysis import means, query
from npuscope.analysis.communication import volume
from npuscope.analysis.memo import remember
from npuscope.analysis.scope import Scope
from npuscope.dashboard.report.report import report
from npuscope.dashboard.terminal.comm_tables import links_table, masking_table, matrix_table
from npuscope.dashboard.terminal.tables import FittedTable
from tests.analysis.tables import connect, fill, keep_summaries, kernel, op

MS = 1_000_000


def draw(part: RenderableType, width: int = 140) -> list[list[str]]:
    console = Console(width=width, highlight=False)
    with console.capture() as text:
        console.print(part)
    return [line.split() for line in text.get().splitlines()]


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    """Two ranks of two steps, rank 1 with more exposed; of rank 2, HCCL's times alone."""
    made = connect()
    for rank in (0, 1):
        for step in (1, 2):
            at = step * 100 * MS
            fill(made, "kernels", [kernel(at, 10 * MS, step, rank=rank)])
            fill(made, "comm_ops", [
                op(at, (20 + rank) * MS, step, rank=rank, group_hash="1234567"),
                op(at, 5 * MS, step, rank=rank, group_hash="9", op_type="send"),
            ])  # fmt: skip
        fill(made, "comm_ops", [op(900 * MS, 50 * MS, rank=rank, group_hash="9")])
        fill(made, "groups", [{"rank": rank, "group_hash": "1234567", "parallel_kind": "dp"}])
    fill(made, "comm_times", [{"rank": 2, "step": 1, "op_type": "send", "elapse_ns": 77.0 * MS,
                               "wait_ns": 3.0 * MS}])  # fmt: skip
    fill(made, "profiler_steps", [{"rank": 2, "step": 1, "computing_ns": 5.0 * MS}])
    keep_summaries(made)
    remember(made)  # as a command does
    return made


def test_means_are_of_steps_and_of_ranks_with_events(con: duckdb.DuckDBPyConnection) -> None:
    lines = draw(masking_table(query.comm(con), means.mean_comm(con)))
    assert " ".join(lines[0]) == (
        "Communication by kind: ms of a rank's step (mean of 2 ranks, 2 steps)"
    )
    assert lines[3] == ["dp", "1.0", "20.500", "20.500", "48.8", "%", "10.500", "100.0", "%",
                        "-", "-", "1", "11.000", "-"]  # fmt: skip
    assert lines[4][:3] == ["unknown", "1.0", "5.000"]
    light = [line for line in lines if line[:3] == ["2", "1", "unknown"]]
    assert light == [["2", "1", "unknown", "1", "77.000", "-", "-", "-", "-", "-", "3.000", "-"]]


def test_the_longest_few_keep_their_shares(con: duckdb.DuckDBPyConnection) -> None:
    chosen = query.comm(con, Scope(rank=0, step=1), by="op")
    lines = draw(masking_table(chosen, means.mean_comm(con, Scope(rank=0, step=1), by="op"), 1))
    assert [line for line in lines if line[:2] == ["0", "1"]] == [
        ["0", "1", "dp", "allReduce", "...567", "1", "20.000", "20.000", "50.0", "%", "10.000",
         "100.0", "%", "-", "-", "-"]
    ]  # fmt: skip
    of_step = draw(masking_table(query.comm(con, by="op"), means.mean_comm(con, by="op"), 1))
    assert sum(line[:1] == ["dp"] for line in of_step) == 1
    assert any(line[:3] == ["and", "1", "more;"] for line in of_step)


@pytest.mark.slow
def test_the_report_leaves_out_ranks_without_operations(con: duckdb.DuckDBPyConnection) -> None:
    titles = {
        rank: [
            block.title for block in report(con, Scope(rank=rank), top=5)
            if isinstance(block, FittedTable) and "Communication" in (block.title or "")
        ]
        for rank in (None, 2)
    }  # fmt: skip
    title = "Communication by group and operation: of a rank's step"
    assert titles == {
        None: [f"{title} (mean of 2 ranks, 2 steps)"],
        2: [f"{title} (mean of 1 rank, 1 step, as HCCL measured it)"],
    }


def test_means_of_packets_are_whole() -> None:
    """Of three steps one moves two packets more that are no multiple of 512 bytes."""
    con = connect()
    for step in (1, 2, 3):
        fill(con, "comm_ops", [op(step * MS, MS, step, op_id=step, name=f"allReduce_{step}")])
        sizes = [1000, 1001, *([1002, 1003] if step == 3 else [])]
        fill(con, "comm_tasks", [
            {"op_id": step, "start_ns": step * MS, "dur_ns": 1000, "size_bytes": size,
             "task_type": "Memcpy", "transport": "SDMA", "link": "HCCS"}
            for size in sizes
        ])  # fmt: skip
    mean = means.mean_links(con)
    assert mean["unaligned_count"].to_list() == pytest.approx([8 / 3])
    lines = draw(links_table(volume.links(con), mean), width=200)
    [row] = [line for line in lines[: lines.index([])] if "HCCS" in line]
    assert row.count("3") == 2  # packets, and those that are unaligned


@pytest.mark.slow
def test_a_table_tells_what_is_the_mean_of_fewer() -> None:
    made = connect()
    for rank in (0, 1):
        fill(made, "kernels", [kernel(0, MS, 1, rank=rank)])
        size = 6_000_000 if rank == 0 else None
        fill(made, "comm_ops", [op(MS, MS, 1, rank=rank, group_hash="1", size_bytes=size)])
    keep_summaries(made)
    remember(made)
    lines = draw(masking_table(query.comm(made), means.mean_comm(made)))
    assert lines[3][-1] == "6.0"
    assert " ".join(lines[4]).startswith("MB: mean of 1 of 2 ranks; exposed: ")
    texts = [
        block.caption for block in report(made, Scope(), top=5)
        if isinstance(block, FittedTable) and "Communication" in (block.title or "")
    ]  # fmt: skip
    assert texts == ["MB: mean of 1 of 2 ranks"]


def test_without_steps_a_mean_is_of_the_whole_capture() -> None:
    made = connect()
    for rank in (0, 1):
        fill(made, "kernels", [kernel(0, MS, rank=rank)])
        fill(made, "comm_ops", [op(MS, MS, rank=rank, name="a", group_hash="1")])
        fill(made, "comm_links", [{"rank": rank, "name": "a", "group_hash": "1", "link": "HCCS",
                                   "op_type": "allReduce", "size_bytes": 6e6}])  # fmt: skip
    fill(made, "comm_matrix", [{"variant": "total", "op_type": "send", "link": "HCCS",
                                "src_rank": 0, "dst_rank": 1, "size_bytes": 6e6}])  # fmt: skip
    over = "of a rank's whole capture (mean of 2 ranks, no steps)"
    keep_summaries(made)
    remember(made)
    lines = draw(masking_table(query.comm(made), means.mean_comm(made)))
    assert " ".join(lines[0]) == f"Communication by kind: ms {over}"
    lines = draw(links_table(volume.links(made), means.mean_links(made)))
    assert " ".join(lines[0]) == f"Traffic by link: {over}"
    lines = draw(matrix_table(volume.matrix(made), volume.mean_pairs(made)))
    words = " ".join(word for line in lines for word in line)
    assert words.startswith("MB from rank to rank (whole capture, all kinds and links)")
    assert "Pairs of ranks that exchange most (whole capture)" in words
    fill(made, "comm_matrix", [{"capture": "d", "variant": "total", "link": "HCCS", "src_rank": 0,
                                "dst_rank": 1, "size_bytes": 8e6}])  # fmt: skip
    keep_summaries(made)
    lines = draw(matrix_table(volume.matrix(made), volume.mean_pairs(made)))
    assert [line[-1] for line in lines if line[:1] == ["0"] and len(line) == 3] == ["6.0", "8.0"]
    assert "most, job d" in " ".join(word for line in lines for word in line)
    titles = [
        block.title
        for block in report(made, Scope(), top=5)
        if isinstance(block, FittedTable) and "whole capture" in (block.title or "")
    ]
    assert titles == [f"Top kernels by name: {over}",
                      f"Communication by group and operation: {over}"]  # fmt: skip
