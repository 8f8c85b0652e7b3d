"""What the commands print and write, whatever names are in a profile and whoever looks at it."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from rich.cells import cell_len

from npuscope.collector.csv_cells import quoted_cells
from tests.cli.command import Run

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
STEERING = "mat\x1b[31mmul\x1b]0;owned\x07\u202etxt\u2066\x9b2J:smile:"
FORMULA = "=cmd|'/c calc'!A1"
CHINESE = "矩阵乘é😀"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, write_profile: Callable[..., Path]) -> Path:
    """A profile of kernels with odd names, read once."""
    folder = tmp_path_factory.mktemp("odd")
    names = (STEERING, FORMULA, CHINESE, "-1+2", "@x", "-7")
    kernels = [(7, name, f"17364124740000{n:02}.250", "10.5") for n, name in enumerate(names)]
    write_profile(folder / "profile" / "h_ascend_pt", 0, kernels)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("kernels", "--by", "name"),
        ("kernels", "--by", "name", "--json"),
        ("report",),
        pytest.param(("report", "--markdown"), marks=pytest.mark.slow),
        ("sql", "select name from kernels"),
        ("sql", "select name from kernels", "--csv"),
        ("sql", "select name from kernels", "--json"),
        ("steps", "--run", "\x1b[2J\u202e"),
        ("steps", "--\x1b[2J"),
        ("sql", "select name from '\x1b[2J'"),
    ],
    ids=" ".join,
)
def test_names_do_not_steer_the_terminal(run: Run, folder: Path, command: tuple[str, ...]) -> None:
    outcome = run(command[0], folder / "profile", *command[1:])
    assert not OBEYED.search(outcome.out.rstrip("\n")), repr(outcome.out)
    assert not OBEYED.search(outcome.err), repr(outcome.err)
    if "--json" in command:
        names = {row["name"] for row in json.loads(outcome.out)["rows"]}
        assert STEERING in names
    elif "name" in " ".join(command) and "'" not in command[1]:
        assert "mat\ufffd[31mmul" in outcome.out and ":smile:" in outcome.out


def test_names_do_not_steer_a_log(run: Run, folder: Path) -> None:
    """`watch` and `exporter` write a line for each event: a name can begin none of its own."""
    place = folder / "no\nsuch\x1b[2J\u202e"
    told = run("watch", place, "--store", place, "--once").err
    assert "no such" in told and not OBEYED.search(told)
    told = run("exporter", place, "--textfile", folder / "x.prom").err
    assert not OBEYED.search(told)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk"])
@pytest.mark.parametrize(
    "command",
    [
        ("kernels", "--by", "name"),
        ("report",),
        ("sql", f"select name, '{CHINESE}' as b from kernels", "--csv"),
        ("sql", f"select name, '{CHINESE}' as b from kernels", "--json"),
        ("kernels", "--by", "name", "--json"),
        ("--help",),
    ],
    ids=" ".join,
)
def test_an_encoding_lacks_a_character(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, command: tuple[str, ...]
) -> None:
    """A pipe of an encoding that lacks some: a replacement each, never a traceback."""
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, encoding=encoding))
    outcome = run(
        command[0], *([] if command[0] == "--help" else [folder / "profile"]), *command[1:]
    )
    assert outcome.code == 0 and outcome.err.count("Traceback") == 0
    told = pipe.getvalue().decode(encoding)
    if "--json" in command:
        assert CHINESE in {row["name"] for row in json.loads(told)["rows"]}
    elif "name" in " ".join(command):
        assert re.search("[矩?][阵?][乘?][é?][?]", told)


def test_text_cells_are_no_formulas(run: Run, folder: Path, tmp_path: Path) -> None:
    """In every CSV: exported tables, results of SQL in a file and on stdout."""
    profile = folder / "profile"
    assert run("export", "csv", profile, "-o", tmp_path / "out").code == 0
    query = 'select name, -dur_ns as dur_ns, name as "=1+1" from kernels'
    told = run("sql", profile, query, "--csv").out
    assert run("sql", profile, query, "-o", tmp_path / "x.csv").code == 0
    for text in (
        (tmp_path / "out" / "kernels.csv").read_text(),
        told,
        (tmp_path / "x.csv").read_text(),
    ):
        rows = list(csv.DictReader(io.StringIO(text)))
        names = {row["name"] for row in rows}
        assert {"'" + FORMULA, "'-1+2", "'@x", "-7", CHINESE} <= names
        assert {row["dur_ns"].lstrip("-") for row in rows} == {"10500"}
    assert told.startswith("name,dur_ns,'=1+1\n") and ",-10500," in told


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("=1", "'=1"), ("+1+1", "'+1+1"), ("-x", "'-x"), ("@a", "'@a"), ("\tx", "'\tx"),
        ("\r=1", "'\r=1"), ("＝1", "'＝1"), ("-1.5e-3", "-1.5e-3"), ("+.5", "+.5"), ("a=b", "a=b"),
        ("", ""), (None, None), ("-1\n=2", "'-1\n=2"),
    ],
)  # fmt: skip
def test_what_a_formula_is(cell: str | None, told: str | None) -> None:
    frame = pl.DataFrame({"x": [cell], "n": [-1]}, schema={"x": pl.String, "n": pl.Int64})
    assert quoted_cells(frame).rows() == [(told, -1)]
    category = frame.with_columns(pl.col("x").cast(pl.Categorical))
    assert quoted_cells(category).rows() == [(told, -1)]


@pytest.mark.parametrize(
    "columns", [40, *(pytest.param(n, marks=pytest.mark.slow) for n in (60, 80))]
)
@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (("sql", "select * from kernels limit 2"), ("input_shapes", "67108864", "start_ns")),
        (("steps",), ("computing", "masked", "12.392")),
        (("kernels", "--by", "shape", "--step", "12"), ("of computing",)),
        (("doctor",), ("what kernels", "communicates")),
        (("mfu",), ("kernel MFU",)),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value, tuple) else str(value),
)
def test_tables_are_read_in_a_narrow_terminal(
    run: Run,
    sample_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
    command: tuple[str, ...],
    whole: tuple[str, ...],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    told = run(command[0], sample_store, *command[1:]).out
    assert max(map(cell_len, told.splitlines())) <= columns
    for words in whole:
        assert words in told
    short = [len(line.strip()) < 4 for line in told.splitlines() if line.strip()]
    # The last piece of a folded cell may be short, but not its pieces.
    assert not any(one and next_one for one, next_one in pairwise(short)), "one letter a line"
    assert sum(short) < len(short) / 15
