"""What commands print, in the shape in which pages draw it."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import rows_of

Rows = list[dict[str, Any]]


def command_output(store: Path, name: str, *options: str) -> Rows:
    """What a command says of a store for programs."""
    return rows_of(name, store, *options)


def of_run(stores: dict[str, Path], name: str) -> dict[str, str]:
    """URL parameters that choose that store."""
    return {"store": stores[name].name, "run": str(command_output(stores[name], "steps")[0]["run"])}


def steps_of(rows: Rows) -> Rows:
    """Rows inside steps, where there are steps."""
    marked = [row for row in rows if row["step"] is not None]
    return marked or rows


def mean_by(rows: Rows, key: str, column: str) -> dict[Any, float]:
    found = defaultdict(list)
    for row in rows:
        if row[column] is not None:
            found[row[key]].append(row[column])
    return {name: sum(values) / len(values) for name, values in found.items()}


def scale(values: list[float], unit: str) -> list[float]:
    """ns of values in a unit of time that stands on an axis."""
    word = re.match(r"(s|ms|us|ns)\b", unit)
    assert word, unit
    return [value * {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}[word[1]] for value in values]


def ranks_of(store: Path) -> Rows:
    """Ranks with the stage each is on."""
    return rows_of("sql", store, "select rank, pp_rank from ranks")


def chosen_store(stores: dict[str, Path], name: str) -> dict[str, str]:
    """URL parameters that choose that store; skips where it is not there."""
    if name not in stores:
        pytest.skip("no real profiles beside the repository")
    return of_run(stores, name)
