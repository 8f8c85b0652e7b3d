"""Summaries: made per rank, the same as over all ranks, renewed when their rule changes."""

from __future__ import annotations

import dataclasses
import pickle
import random
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis import metric as metric_room
from npuscope.analysis import summaries
from npuscope.analysis.catalog import metric, metrics
from npuscope.analysis.metric import sql_text
from npuscope.analysis.views import open_views
from npuscope.collector import schema
from npuscope.collector.store import store
from npuscope.profile import summary_versions
from tests.analysis.tables import Event, Row, answer, connect, fill, insert, kernel, select


def events(rank: int) -> list[Event]:
    dice = random.Random(rank)
    return [
        Event(
            rank,
            dice.choice([None, 1, 2, 3]),
            dice.choice(["compute", "compute", "allReduce", "receive"]),
            dice.randrange(2000),
            dice.randrange(1, 60),
        )
        for _ in range(300)
    ]


def levels(rank: int) -> list[Row]:
    dice = random.Random(rank)
    return [
        {"rank": rank, "source": "record", "component": dice.choice(["PTA", "GE"]),
         "timestamp_ns": dice.randrange(2000), "allocated_bytes": dice.randrange(100),
         "reserved_bytes": dice.randrange(100, 200)}
        for _ in range(100)
    ]  # fmt: skip


def blocks(rank: int) -> list[Row]:
    dice = random.Random(rank)
    return [
        {"rank": rank, "name": dice.choice(["a", "b"]), "size_bytes": dice.randrange(1, 9),
         "allocated_at_ns": dice.randrange(2000), "released_at_ns": dice.randrange(2000)}
        for _ in range(100)
    ]  # fmt: skip


def pairs(rank: int) -> list[Row]:
    return [
        {"rank": rank, "step": 1, "variant": "total", "op_type": "send", "link": "HCCS",
         "src_rank": rank, "dst_rank": other, "size_bytes": 8e6, "time_ns": 1e3 * (other + 1)}
        for other in range(4) if other != rank
    ]  # fmt: skip


def links(rank: int) -> list[Row]:
    return [{"rank": rank, "step": 1, "link": "HCCS", "size_bytes": 8e6, "time_ns": 400.0,
             "op_type": "allReduce", "name": "a", "group_hash": "1"}]  # fmt: skip


def measure(rank: int) -> list[Row]:
    """The operation that `links` are of."""
    return [{"rank": rank, "step": 1, "name": "a", "op_type": "allReduce", "group_hash": "1",
             "start_ns": 5, "dur_ns": 40}]  # fmt: skip


def test_names() -> None:
    found = list(summaries.summarise(connect()))
    assert {one.name for one in found} == {
        "step_summary", "kernel_summary", "kernel_kinds", "timeline_bins", "shape_summary",
        "comm_summary",
        "stretched_kernels", "link_summary", "pair_summary", "contention_summary",
        "comm_progress", "rank_work",
        "link_transfers", "outside_steps", "rank_contents", "memory_summary", "memory_holders",
        "memory_steps", "operator_summary", "free_causes", "host_pace",
        "host_calls", "host_placement",
    }  # fmt: skip
    assert len({one.version for one in found}) == len(found)


def test_ranks_one_by_one_give_what_all_at_once_give(tmp_path: Path) -> None:
    together = connect()
    for rank in range(3):
        alone = connect()
        insert(alone, events(rank))
        insert(together, events(rank))
        for con in (alone, together):
            fill(con, "ranks", [{"rank": rank}])
            fill(con, "profiler_steps", [{"rank": rank, "step": 1}])
            fill(con, "memory", levels(rank))
            fill(con, "operator_memory", blocks(rank))
            fill(con, "comm_matrix", pairs(rank))
            fill(con, "comm_links", links(rank))
            fill(con, "comm_ops", measure(rank))
            fill(con, "host_ops", [
                {"rank": rank, "kind": "gc", "name": "GC", "start_ns": 1, "dur_ns": rank + 1}
            ])  # fmt: skip
            fill(con, "counters", [
                {"rank": rank, "name": "NUMA node", "series": one, "timestamp_ns": 1, "value": rank}
                for one in ("device", "thread 7")
            ])  # fmt: skip
            fill(con, "launches", [
                {"rank": rank, "device_start_ns": one.start_ns, "api_start_ns": one.start_ns - 3,
                 "target": "kernel"} for one in events(rank)
            ])  # fmt: skip
        for one in summaries.summarise(alone):
            path = tmp_path / f"{one.name}-{rank}.parquet"
            alone.execute(f"copy ({one.query}) to '{path}' (format parquet)")
    for known in metrics():
        if known.rows_from:
            files = [str(tmp_path / f"{known.view}-{rank}.parquet") for rank in range(3)]
            kept = select(together, f"from read_parquet({files})")
            live = answer(together, known.name)
            assert sorted(map(repr, kept)) == sorted(map(repr, live))
            assert live, known.name


def test_a_summary_keeps_its_types_without_rows(tmp_path: Path) -> None:
    con = connect()
    for one in summaries.summarise(con):
        path = tmp_path / f"{one.name}.parquet"
        con.execute(f"copy ({one.query}) to '{path}' (format parquet)")
        described = con.execute(f"describe from '{path}'").fetchall()
        known = next(known for known in metrics() if known.view == one.name)
        assert [kind.lower() for _, kind, *_ in described] == [c.type for c in known.columns]


def test_workers_can_be_handed_the_function() -> None:
    assert pickle.loads(pickle.dumps(summaries.summarise)) is summaries.summarise


def test_a_changed_rule_has_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {one.name: one.version for one in summaries.summaries()}
    changed = tuple(
        dataclasses.replace(known, file="sql/comm/comm.sql") if known.name == "steps" else known
        for known in metrics()
    )
    monkeypatch.setattr(summaries, "sql_metrics", lambda: changed)
    after = {one.name: one.version for one in summaries.summaries()}
    assert {name for name in before if before[name] != after[name]} == {"step_summary"}
    monkeypatch.setattr(metric_room, "sql_text", lambda file: f"-- a remark\n{sql_text(file)}")
    assert {one.name: one.version for one in summaries.summaries()} == after
    monkeypatch.setattr(schema, "digest", lambda: "another")
    assert not set(after.values()) & {one.version for one in summaries.summaries()}


def test_a_lone_thread_with_little_memory_is_enough(tmp_path: Path) -> None:
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1, "memory_limit": "256MiB", "temp_directory": str(tmp_path)
    }  # fmt: skip
    con = duckdb.connect(config=config)
    for table in schema.tables().values():
        con.execute(schema.create_sql(table, keys=True))
    fill(con, "kernels", [kernel(0, 10, 1)])
    assert con.execute(metric("steps").sql).fetchall()[0][9] == 10


@pytest.mark.slow
def test_summaries_without_rows_are_not_computed_again(small_store: Path) -> None:
    """A store knows of them; only their columns are left to be told."""
    with store.open(small_store, summaries=summary_versions()) as con:
        ((empty,),) = con.execute("select getvariable('empty_summaries')").fetchall()
        assert "outside_steps" in empty and "step_summary" not in empty
        open_views(con)
        views = dict(con.execute("select view_name, sql from duckdb_views()").fetchall())
        bare = connect()
        open_views(bare)
        for name in empty:
            assert "kernels" not in views[name] and "comm_ops" not in views[name]
            assert con.execute(f'from "{name}"').fetchall() == []
            described = f'select column_name, column_type from (describe from "{name}")'
            assert con.execute(described).fetchall() == bare.execute(described).fetchall()
