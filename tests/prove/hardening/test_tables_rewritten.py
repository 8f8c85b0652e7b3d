"""Every CSV file of a rank written otherwise: by a spreadsheet, an editor, another version."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.prove.hardening.captures import beside_light, copy, write_small
from tests.prove.hardening.cases import Rank, complaints, link_tree, replace_file, run_ingest

Table = list[list[str]]
Rewrite = Callable[[bytes], bytes]


def parse(content: bytes) -> Table:
    return list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))


def write(rows: Table, *, delimiter: str = ",", is_all_quoted: bool = False) -> bytes:
    text = io.StringIO(newline="")
    if is_all_quoted:
        writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    else:
        writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows(rows)
    return text.getvalue().encode()


def mark(content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content


def dos_lines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def unix_lines(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n")


def all_quoted(content: bytes) -> bytes:
    return write(parse(content), is_all_quoted=True)


def reorder(content: bytes) -> bytes:
    rows = parse(content)
    order = list(range(len(rows[0])))
    random.Random(3).shuffle(order)
    return write([[row[place] for place in order] for row in rows])


def with_more_columns(content: bytes) -> bytes:
    rows = parse(content)
    titles, *cells = rows
    more = [['"odd"', *titles, "New Column(us)", "新"], *(["x,y", *row, "7", ""] for row in cells)]
    return write(more)


def with_blank_lines(content: bytes) -> bytes:
    return content.replace(b"\n", b"\n\n", 3) + b"\n\r\n\n"


def pad(content: bytes) -> bytes:
    """Blanks around titles, and a tab behind each cell, as producers write them."""
    titles, *cells = parse(content)
    return write([[f" {title} " for title in titles], *([f"{c}\t" for c in r] for r in cells)])


HARMLESS: tuple[Rewrite, ...] = (
    mark, dos_lines, unix_lines, all_quoted, reorder, with_more_columns, with_blank_lines,
    pad,
)  # fmt: skip


def without_a_column(content: bytes) -> bytes:
    """The one in the middle."""
    rows = parse(content)
    place = len(rows[0]) // 2
    return write([row[:place] + row[place + 1 :] for row in rows])


def with_zero_bytes(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(200) + content[middle:]


def with_a_stray_quote(content: bytes) -> bytes:
    middle = content.index(b"\n", len(content) // 2) + 1
    return content[:middle] + b'"' + content[middle:]


def with_short_rows(content: bytes) -> bytes:
    rows = parse(content)
    return write([row if n % 5 else row[: len(row) // 2] for n, row in enumerate(rows, start=1)])


def as_utf16(content: bytes) -> bytes:
    return content.decode().encode("utf-16")


def with_semicolons(content: bytes) -> bytes:
    return write(parse(content), delimiter=";")


def twice(content: bytes) -> bytes:
    """The file behind itself, title and all."""
    return content + content


HARMFUL: tuple[Rewrite, ...] = (
    without_a_column, with_zero_bytes, with_a_stray_quote, with_short_rows, as_utf16,
    with_semicolons, twice,
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, light: Path
) -> tuple[Path, str, dict[int, Rank]]:
    """A profile of a light rank and of one to be rewritten, the folder of this, and what it
    tells."""
    folder = tmp_path_factory.mktemp("whole")
    rank = write_small(folder / "full", "text")[1]
    source = copy(beside_light(1, rank, light), folder / "beside")
    return source, rank.name, run_ingest(source, folder / "beside").ranks


def rewritten(whole: tuple[Path, str, dict[int, Rank]], work: Path, rewrite: Rewrite) -> Path:
    origin, name, _ = whole
    source = link_tree(origin, work / "source")
    for path in (source / name).rglob("*.csv"):
        replace_file(path, rewrite(path.read_bytes()))
    return source


def slowly(rewrites: tuple[Rewrite, ...], quick: int) -> list[object]:
    """All of them, but only the first few in a quick run."""
    return [
        pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] if n >= quick else [])
        for n, one in enumerate(rewrites)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rewrite", slowly(HARMLESS, 1))
def test_what_says_the_same_is_read_the_same(
    rewrite: Rewrite, whole: tuple[Path, str, dict[int, Rank]], tmp_path: Path
) -> None:
    source = rewritten(whole, tmp_path, rewrite)
    told = run_ingest(source, tmp_path)
    assert (told.code, told.ranks, told.changed) == (0, whole[2], ())


@pytest.mark.slow
@pytest.mark.parametrize("rewrite", slowly(HARMFUL, 2))
def test_what_is_lost_is_told(
    rewrite: Rewrite, whole: tuple[Path, str, dict[int, Rank]], tmp_path: Path
) -> None:
    source = rewritten(whole, tmp_path, rewrite)
    told = run_ingest(source, tmp_path)
    assert complaints(told, whole[2], 1, looks_whole=rewrite is without_a_column) == []
    if rewrite not in (without_a_column, twice):
        assert told.code == 4
        assert "kernel_details.csv" in told.errors
