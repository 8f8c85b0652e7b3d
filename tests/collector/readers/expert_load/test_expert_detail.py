"""What single ranks and micro-batches routed: all of it, as much as there is room for, in order."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from npuscope.collector import schema
from npuscope.collector.discover.expert_folders import expert_source, folder_files
from npuscope.collector.readers.expert_load import routed_detail
from npuscope.collector.readers.expert_load.load_frames import ExpertLoad
from npuscope.collector.readers.expert_load.routed_detail import COUNTS_SCHEMA
from npuscope.collector.store import store
from npuscope.sample_traces.job import Job, coordinates, routed_tokens, stage_layers
from tests.collector.readers.expert_load.expert_dumps import line, write_hook

JOB = Job(layers=2, experts=4, dp=2, pp=2, ep=2, steps=2, sequence=64)


def read(folder: Path) -> ExpertLoad:
    found = expert_source(folder)
    assert found is not None
    return found


def test_every_micro_batch_of_every_rank_is_kept(tmp_path: Path) -> None:
    found = read(write_hook(JOB, tmp_path / "hook", first_layer=3))
    assert dict(found.counts.schema) == COUNTS_SCHEMA
    assert found.counts.rows() == [
        (step, "train", 3 + layer, rank, micro, list(routed_tokens(JOB, step, micro, layer, rank)))
        for step in (12, 13)
        for layer in range(JOB.layers)
        for rank in range(JOB.world_size)
        if layer in stage_layers(JOB, coordinates(JOB, rank)["pp"])
        for micro in range(JOB.micro_batches)
    ]


def test_micro_batches_that_are_told_together_have_no_number(tmp_path: Path) -> None:
    told = line(1, 0, [1, 2], n_micro=2) + line(2, 0, [3, 4], n_micro=1) + line(3, 0, [[5, 6]])
    (tmp_path / "rank0.jsonl").write_text(told)
    counts = read(tmp_path).counts
    assert counts.select("step", "micro_batch", "tokens").rows() == [
        (1, None, [1, 2]), (2, 0, [3, 4]), (3, 0, [5, 6]),
    ]  # fmt: skip


def test_a_step_that_not_all_ranks_told_is_left_out_here_too(tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_text(line(1, 0, [1, 2]) + line(2, 0, [3, 4]))
    (tmp_path / "rank1.jsonl").write_text(line(1, 0, [5, 6]))
    assert read(tmp_path).counts["step"].to_list() == [1, 1]


def test_rotated_files_follow_each_other(tmp_path: Path) -> None:
    """The tenth comes after the second, and what is still being written is passed over."""
    for name, step, tokens in (
        ("rank0.jsonl", 1, [1, 0]), ("rank0.2.jsonl", 2, [2, 0]), ("rank0.10.jsonl", 2, [9, 1]),
        ("rank0.11.jsonl.part", 3, [7, 7]), ("rank0.12.part", 4, [7, 7]),
        ("rank1.jsonl", 1, [4, 4]), ("rank1.1.jsonl", 2, [5, 5]),
    ):  # fmt: skip
        (tmp_path / name).write_text(line(step, 0, tokens))
    assert len(folder_files(tmp_path)) == 5
    found = read(tmp_path)
    assert found.load.select("step", "tokens").rows() == [(1, 5), (1, 4), (2, 14), (2, 6)]
    assert found.facts.ranks_count == 2
    assert found.counts.select("step", "counted_by", "tokens").rows() == [
        (1, 0, [1, 0]), (1, 1, [4, 4]), (2, 0, [9, 1]), (2, 1, [5, 5]),
    ]  # fmt: skip
    assert found.notes == (
        "rank0.10.jsonl: 1 line(s) repeat a layer and step (a restart): the last one is used",
    )


def test_an_export_from_before_there_were_counts_of_ranks_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "old.duckdb"
    with duckdb.connect(path) as con:
        for table in schema.tables().values():
            if table.name != "expert_counts":
                con.execute(schema.create_sql(table, keys=True))
    with store.open(path) as opened:
        rows = opened.sql("from expert_counts")
        assert [name for name in rows.columns if name not in ("run", "capture", "rank")] == [
            *COUNTS_SCHEMA
        ]
        assert rows.fetchall() == []


@pytest.mark.parametrize(
    ("room", "by_micro_batch", "rows"), [(64, True, 16), (63, False, 8), (31, False, 0)]
)
def test_what_there_is_no_room_for_is_added_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, by_micro_batch: bool, rows: int
) -> None:
    job = Job(layers=1, experts=4, dp=4, pp=1, ep=2, steps=2, micro_batches=2, sequence=64)
    hook = write_hook(job, tmp_path / "hook")
    whole = read(hook)
    monkeypatch.setattr(routed_detail, "COUNTS_AT_MOST", room)
    found = read(hook)
    assert found.load.equals(whole.load)
    assert found.counts.height == rows
    assert (found.notes == ()) is by_micro_batch
    if by_micro_batch:
        assert found.counts.equals(whole.counts)
        return
    assert f"more than {room} counts by " in found.notes[0]
    if rows:
        assert found.counts["micro_batch"].null_count() == rows
        total = [sum(row) for row in zip(*found.counts["tokens"].to_list(), strict=True)]
        assert total == [sum(row) for row in zip(*whole.counts["tokens"].to_list(), strict=True)]
