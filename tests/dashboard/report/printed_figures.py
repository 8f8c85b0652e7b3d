"""What commands print, in the shape in which pages draw it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npuscope.cli import app

Rows = list[dict[str, Any]]


def printed(store: Path, *command: str) -> Rows:
    """What a command says for programs."""
    name, *options = command
    done = CliRunner().invoke(app, [name, str(store), *options, "--json"])
    assert done.exit_code == 0, done.output
    rows: Rows = json.loads(done.stdout)["rows"]
    return rows


def of_run(stores: dict[str, Path], name: str) -> dict[str, str]:
    """URL parameters that choose that store."""
    return {"store": stores[name].name, "run": str(printed(stores[name], "steps")[0]["run"])}


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


def scaled(values: list[float], unit: str) -> list[float]:
    """ns of values in a unit of time that stands on an axis."""
    word = re.match(r"(s|ms|us|ns)\b", unit)
    assert word, unit
    return [value * {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}[word[1]] for value in values]


def ranks_of(store: Path) -> Rows:
    """Ranks with the stage each is on."""
    query = ["sql", str(store), "select rank, pp_rank from ranks", "--json"]
    done = CliRunner().invoke(app, query)
    assert done.exit_code == 0, done.output
    rows: Rows = json.loads(done.stdout)["rows"]
    return rows


def chosen_store(stores: dict[str, Path], name: str) -> dict[str, str]:
    """URL parameters that choose that store; skips where it is not there."""
    if name not in stores:
        pytest.skip("no real profiles beside the repository")
    return of_run(stores, name)
