"""Whether two stores hold the same: every canonical table and every summary, row by row."""

from __future__ import annotations

from pathlib import Path

from npuscope.collector.store import manifest, store
from npuscope.collector.store.manifest import manifests


def assert_equal_stores(one: Path, other: Path) -> int:
    """The same ranks, and in every table and summary the same rows; returns how many rows."""
    here, there = (manifests(path) for path in (one, other))
    assert [(m.run, m.capture, m.rank) for m in here] == [(m.run, m.capture, m.rank) for m in there]
    assert manifest.summary_versions(here) == manifest.summary_versions(there)
    filled = {name for m in here for name in (*m.tables, *m.summaries)}
    rows = 0
    with store.open(one) as first, store.open(other) as second:
        for name in sorted(filled):
            if not any(name in m.tables or m.summaries[name].file for m in here):
                continue
            question = f'select * from "{name}" order by all'
            expected, found = first.sql(question).pl(), second.sql(question).pl()
            assert expected.equals(found), name
            rows += len(expected)
    return rows
