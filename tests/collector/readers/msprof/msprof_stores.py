"""Folders of msprof exports ingested for tests, and what their stores hold."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from npuscope.collector import schema
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import Manifest, manifests

Rows = list[tuple[Any, ...]]


def read(source: Path) -> tuple[Path, IngestResult]:
    """A store beside `source`, and what became of it."""
    out = source.parent / f"{source.name}-store"
    return out, ingest(source, out, run="job")


def rows(place: Path, sql: str) -> Rows:
    with store.open(place) as con:
        return con.execute(sql).fetchall()


def table(place: Path, name: str, without: Collection[str] = (), where: str = "true") -> Rows:
    """Every row of a canonical table, but for some columns."""
    columns = [c.name for c in schema.tables()[name].columns if c.name not in without]
    listed = ", ".join(f'"{column}"' for column in columns)
    return rows(place, f"select rank, {listed} from {name} where {where} order by all")


def only_manifest(place: Path) -> Manifest:
    (found,) = manifests(place)
    return found
