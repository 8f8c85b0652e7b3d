"""What is computed for each rank when it is read, so that no page scans its events again.

The collector knows no metrics: whoever starts an ingest hands it `summarise`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import duckdb

from npuscope.collector import schema

from . import rules
from .catalog import Metric, sql_metrics


@dataclass(frozen=True, slots=True)
class Summary:
    """A table to keep beside a rank's canonical tables.

    `version` changes with the rule that makes it, those of views that it reads, or the tables;
    rows of another version are stale. It has no row where all tables of `rows_from` are empty.
    """

    name: str
    version: str
    query: str
    rows_from: tuple[str, ...]


@cache  # ingest asks for each rank; the files of rules stay while a process runs
def _summary(metric: Metric, sql: str, digest: str) -> Summary:
    file = metric.file.rpartition("/")[2]
    reached = rules.sources([file])
    del reached[file]  # `sql` is that file with what is put into it
    text = "\n".join(
        [
            rules.without_remarks(sql),
            *(reached[file] for file in sorted(reached)),
            digest,
        ]
    )
    version = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Summary(metric.view, version, sql, metric.rows_from)


def summaries() -> tuple[Summary, ...]:
    """Every summary in its current version."""
    return tuple(
        _summary(metric, metric.sql, schema.digest())
        for metric in sql_metrics()
        if metric.rows_from
    )


def summarise(con: duckdb.DuckDBPyConnection | None) -> Iterable[Summary]:
    """The summaries of a rank, for `copy (query) to ...` on `con`.

    `con` has the canonical tables with their key columns, holding one rank's rows or more; it is
    None where only names and versions are asked for.
    """
    return summaries()
