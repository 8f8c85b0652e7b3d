"""Memory that generated jobs plant comes back exactly: from text, from DB, from both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces import memory
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.generate import Job, small, write_job
from tests.analysis.memory import memory_twins as twins
from tests.analysis.memory.memory_twins import Block, Record, Step

JOBS = {
    "two ranks": small(steps=6),
    "stages": Job(name="moe", layers=2, slow_rank=3, ranks_per_host=4, seed=7),
}
pytestmark = pytest.mark.slow
FORMS: dict[str, tuple[Literal["text", "db"], ...]] = {
    "text": ("text",), "db": ("db",), "both": ("db", "text"),
}  # fmt: skip

Planted = tuple[list[Record], list[Block], list[Step]]


def plant(job: Job) -> Planted:
    """Records, blocks and steps of a job, straight from the simulation."""
    records: list[Record] = []
    blocks: list[Block] = []
    steps: list[Step] = []
    for c in captures(job):
        levels, held = memory.curve(c)
        records += [
            Record(level.timestamp_ns, level.allocated_bytes + extra, level.reserved_bytes + extra,
                   level.allocated_bytes, c.rank, c.device_id, "record", component)
            for level in levels for component, extra in (("PTA", 0), ("PTA+GE", level.ge_bytes))
        ]  # fmt: skip
        records += [
            Record(at_ns, None, size, None, c.rank, c.device_id, "module", module)
            for module, at_ns, size in memory.module_samples(c)
        ]
        blocks += [
            Block(block.name, block.size_bytes, block.allocated.timestamp_ns,
                  None if block.released is None else block.released.timestamp_ns,
                  c.rank, c.device_id)
            for block in held
        ]  # fmt: skip
        steps += [Step(s.step, s.window_start_ns, s.window_end_ns, c.rank) for s in c.steps]
    return records, blocks, steps


@pytest.fixture(
    scope="module",
    params=[*(("two ranks", form) for form in FORMS), ("stages", "db")],
    ids="-".join,
)
def read(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Planted, duckdb.DuckDBPyConnection]]:
    """What a job plants, and the job read from one form."""
    name, form = request.param
    folder: Path = tmp_path_factory.mktemp("planted")
    write_job(JOBS[name], folder / "job", forms=FORMS[form])
    assert ingest(folder / "job", folder / "store", summarise=summarise).is_complete
    con = store.open(folder / "store")
    yield plant(JOBS[name]), con
    con.close()


def curve_of(row: dict[str, Any]) -> twins.Curve:
    return row["rank"], row["device_id"], row["source"], row["component"]


Read = tuple[Planted, duckdb.DuckDBPyConnection]


def test_peaks(read: Read) -> None:
    (records, _, _), con = read
    names = ("peak_bytes", "peak_ns", "peak_allocated_bytes", "peak_allocated_ns",
             "peak_active_bytes", "fragmentation_bytes")  # fmt: skip

    found = {
        curve_of(row): tuple(row[name] for name in names) for row in query.memory(con).to_dicts()
    }

    expected = twins.peaks(records)
    assert {curve: found[curve] for curve in expected} == expected
    # Text repeats the process's own curve.
    assert {curve[3] for curve in found.keys() - expected.keys()} <= {"APP"}


def test_holders(read: Read) -> None:
    (records, blocks, _), con = read
    found: dict[Any, dict[Any, Any]] = {}

    for row in query.memory_holders(con).to_dicts():
        here = found.setdefault((row["rank"], row["device_id"]), {})
        here[row["holder"], row["name"]] = tuple(
            row[name] for name in
            ("held_bytes", "block_count", "largest_block_bytes", "since_ns", "released_ns")
        )  # fmt: skip

    assert found == twins.holders(records, blocks)
    assert any(len(here) > 2 for here in found.values())


def test_what_is_unexplained_is_what_was_there_before(read: Read) -> None:
    """Parameters and optimizer states are planted as one base level."""
    _, con = read
    found = query.memory_holders(con, top=1)
    assert found.height
    for row in found.to_dicts():
        assert row["holder"] == "unexplained"
        assert row["held_bytes"] == memory._BASE_BYTES + memory._GE_BYTES


def test_steps(read: Read) -> None:
    (records, _, steps), con = read

    found = {
        (curve_of(row), row["step"]): (row["end_bytes"], row["peak_bytes"], row["sample_count"])
        for row in query.memory_steps(con).to_dicts()
    }

    expected = twins.steps(records, steps)
    assert {key: found[key] for key in expected} == expected
    assert len(expected) > len(steps)


def test_growth_is_what_no_backward_frees(read: Read) -> None:
    """Outputs without a backward kernel stay: as many bytes in every step."""
    (_, blocks, steps), con = read
    facts = query.memory_facts(con)

    grown = facts.growth.filter(facts.growth["level"] == "allocated")
    assert grown.height
    for row in grown.to_dicts():
        mine = [step for step in steps if step.rank == row["rank"]]
        kept = sum(
            block.size_bytes or 0 for block in blocks
            if block.rank == row["rank"] and block.released_at_ns is None
        )  # fmt: skip
        assert row["step_count"] == len(mine)
        assert row["last_bytes"] == row["growth_bytes"] * len(mine) / (len(mine) - 1) + (
            memory._BASE_BYTES + (memory._GE_BYTES if row["component"] == "PTA+GE" else 0)
        )
        assert row["growth_per_step_bytes"] * len(mine) == kept
        assert row["is_steady"] is (None if len(mine) < 5 else kept > 0)
