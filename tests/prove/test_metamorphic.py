"""Real profiles written otherwise: the same figures, or the change that is said here.

* later: every instant is later by as much, and nothing else changes (a capture's name is its
  start);
* in another order, by a spreadsheet, by a producer of another year, in slices: nothing changes;
* without optional columns: what they alone tell is unknown, everything else stays;
* everything twice: lengths of unions (computing, communication, overlapped, exposed, free) stay,
  while counts and sums of durations double. A database cannot hold the same operation twice.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector import schema
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from tests.prove import rewritten_profiles as rewritten

pytestmark = pytest.mark.slow

# One rank of each set, whole otherwise.
TEXT = {
    "alexnet_ddp_text_level0": "rank0_ascend_pt",
    "alexnet_ddp_text_level1": "rank1_ascend_pt",
    "qwen3_pp2_dp2_text_level2": "rank_0_ascend_pt",
}
DATABASES = {"alexnet_ddp_db_level0": "rank1_ascend_pt", "alexnet_ddp_db_level1": "rank0_ascend_pt"}
LIGHT = {"cluster16_pp2": "cluster_analysis_output"}
OLD = {"msprof_timeline_2023": "."}
PLACES = {**TEXT, **DATABASES, **LIGHT, **OLD}

INSTANT = re.compile(r"(start|end|timestamp|_at)_ns")
Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Told:
    """Rows of each canonical table, and of `steps` as they are answered."""

    tables: Rows
    steps: list[dict[str, Any]]


def read(source: Path, into: Path, later_ns: int = 0) -> Told:
    """What is read of a profile, its instants `later_ns` earlier than they stand there."""
    result = ingest(source, into, run="same", summarise=summarise, jobs=1)
    assert result.is_complete
    tables: Rows = {}
    with closing(store.open(into)) as con:
        for name, table in schema.tables().items():
            moved = [c.name for c in table.columns if c.type == "bigint" and _is_instant(c.name)]
            earlier = ", ".join(f"{column} - {later_ns} as {column}" for column in moved)
            replaced = f"replace ({earlier})" if earlier else ""
            sql = f"select * exclude (run, capture) {replaced} from {name} order by all"
            found = con.execute(sql)
            names = [column[0] for column in found.description or []]
            tables[name] = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        steps = query.steps(con).drop("run", "capture").to_dicts()
    for row in steps:
        for column, value in row.items():
            if _is_instant(column) and value is not None:
                row[column] = value - later_ns
    return Told(tables, steps)


def _is_instant(column: str) -> bool:
    return INSTANT.search(column) is not None


@pytest.fixture(scope="module")
def plain(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Told]:
    """What a set tells as it is; read once."""

    @cache
    def told(name: str) -> Told:
        return read(real_data / name / PLACES[name], tmp_path_factory.mktemp(name))

    return told


@pytest.fixture
def rewriter(real_data: Path, tmp_path: Path) -> Callable[..., Told]:
    """A set after its files were rewritten in place."""

    def told(name: str, rewrite: Callable[[Path], None], later_ns: int = 0) -> Told:
        copy = tmp_path / PLACES[name] if PLACES[name] != "." else tmp_path / "copy"
        shutil.copytree(real_data / name / PLACES[name], copy)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        rewrite(copy)
        return read(copy, tmp_path / "store", later_ns)

    return told


def assert_same(ours: Told, plain: Told, but: frozenset[str] = frozenset()) -> None:
    for table, rows in plain.tables.items():
        if table not in but:
            assert len(ours.tables[table]) == len(rows), table
            differing = [
                (one, other)
                for one, other in zip(ours.tables[table], rows, strict=True)
                if one != other
            ]
            assert not differing[:2], table
    assert ours.steps == plain.steps


@pytest.mark.parametrize("name", list(PLACES))
def test_later(plain: Any, rewriter: Any, name: str) -> None:
    ours = rewriter(name, rewritten.later, rewritten.LATER_US * 1000)

    # The old layout tells its session in files that count from the host's start: they stay.
    but = frozenset({"ranks"} if name in OLD else ())
    assert_same(ours, plain(name), but)
    assert ours.steps


@pytest.mark.parametrize("name", list(PLACES))
@pytest.mark.parametrize("rewrite", [rewritten.shuffle, rewritten.by_a_spreadsheet])
def test_written_otherwise(
    plain: Any, rewriter: Any, name: str, rewrite: Callable[[Path], None]
) -> None:
    assert_same(rewriter(name, rewrite), plain(name))


@pytest.mark.parametrize("name", [*TEXT, *DATABASES])
def test_a_producer_of_another_year_says_the_same(plain: Any, rewriter: Any, name: str) -> None:
    assert_same(rewriter(name, rewritten.of_another_year), plain(name))


@pytest.mark.parametrize("name", list(TEXT))
def test_tables_in_slices(plain: Any, rewriter: Any, name: str) -> None:
    assert_same(rewriter(name, rewritten.in_slices), plain(name))


@pytest.mark.parametrize("name", [*DATABASES, *TEXT])
def test_optional_columns_cost_only_themselves(plain: Any, rewriter: Any, name: str) -> None:
    lost = {told for columns in rewritten.OPTIONAL.values() for told in columns.values()}
    ours, theirs = rewriter(name, rewritten.without_optional), plain(name)

    unknown: set[str] = set()
    for table, rows in theirs.tables.items():
        kept = [column for column in (rows[0] if rows else {}) if column not in lost]
        mine = Counter(str([row[c] for c in kept]) for row in ours.tables[table])
        assert mine == Counter(str([row[c] for c in kept]) for row in rows), table
        for column in lost.intersection(rows[0] if rows else ()):
            values = {str(row[column]) for row in ours.tables[table]}
            assert values <= {"None"} or values == {str(row[column]) for row in rows}
            unknown |= {column} if values == {"None"} else set()
    assert len(unknown) >= 3
    figures = [column for column in theirs.steps[0] if not column.startswith("preparing")]
    assert [[row[c] for c in figures] for row in ours.steps] == [
        [row[c] for c in figures] for row in theirs.steps
    ]


@pytest.mark.parametrize("name", [*TEXT, *DATABASES, *OLD])
def test_everything_twice(plain: Any, rewriter: Any, name: str) -> None:
    ours, theirs = rewriter(name, rewritten.twice), plain(name)

    assert ours.steps == theirs.steps and theirs.steps
    if name in OLD:
        return  # its slices overlap: rows of one instant and name are one
    kernels = Counter(str(row) for row in theirs.tables["kernels"])
    assert Counter(str(row) for row in ours.tables["kernels"]) == kernels + kernels


def test_results_twice_are_the_same(plain: Any, rewriter: Any) -> None:
    assert_same(rewriter("cluster16_pp2", rewritten.twice), plain("cluster16_pp2"))
