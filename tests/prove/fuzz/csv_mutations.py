"""Damage to tables as text: cells, rows, headers, and what spreadsheets and editors do to them."""

from __future__ import annotations

import random
import re

from tests.prove.fuzz.odd_values import REAL, TEXT, WHOLE

_CELLS = re.compile(rb'(?:"(?:[^"]|"")*"|[^,"]*)(?=,|$)')


def mutate(chance: random.Random, data: bytes) -> tuple[bytes, str]:
    """The table damaged once, and what was done."""
    lines = data.split(b"\n")
    last = len(lines) - 1
    at = chance.randrange(1, len(lines)) if len(lines) > 1 and chance.random() < 0.8 else 0
    other = chance.randrange(len(lines))
    match chance.randrange(16):
        case 0 | 1 | 2 | 3 | 4:
            lines[at], told = _cell_changed(chance, lines[at])
            return b"\n".join(lines), f"line {at}: {told}"
        case 5 | 6:
            lines[at], told = _cells_moved(chance, lines[at])
            return b"\n".join(lines), f"line {at}: {told}"
        case 7:
            lines.insert(at, lines[other])
            return b"\n".join(lines), f"line {other} again before line {at}"
        case 8:
            del lines[at]
            return b"\n".join(lines), f"line {at} deleted"
        case 9:
            lines[at], lines[other] = lines[other], lines[at]
            return b"\n".join(lines), f"lines {at} and {other} swapped"
        case 10:
            joined = lines[at] + (lines.pop(at + 1) if at < last else b"")
            lines[at] = joined
            return b"\n".join(lines), f"no line end after line {at}"
        case 11:
            lines[0], told = _header_changed(chance, lines[0])
            return b"\n".join(lines), told
        case 12:
            end = chance.choice([b"\r\n", b"\r", b"\n\n", b"\n\r", b"\r\r\n", b"\n \n", b"\0\n"])
            some = chance.random() < 0.5
            ends = [b"\n" if some and chance.random() < 0.5 else end for _ in lines]
            changed = b"".join(line + e for line, e in zip(lines, ends, strict=True))
            return changed, f"line ends {end!r}{', some' if some else ''}"
        case 13:
            mark = chance.choice([b",", b";", b"\t", b"|", b", "])
            return data.replace(b",", mark), f"commas as {mark!r}"
        case 14:
            code = chance.choice(["utf-8-sig", "utf-16", "utf-16-le", "latin-1", "gb18030"])
            text = data.decode("utf-8", "replace")
            return text.encode(code, "replace"), f"written as {code}"
        case _:
            column = chance.randrange(max(1, len(_CELLS.findall(lines[0]))))
            value = _value(chance)
            for n in range(1, len(lines)):
                cells = _split(lines[n])
                if column < len(cells):
                    cells[column] = value
                    lines[n] = b",".join(cells)
            return b"\n".join(lines), f"column {column} is {value[:20]!r} everywhere"


def _split(line: bytes) -> list[bytes]:
    return _CELLS.findall(line) if line else []


def _value(chance: random.Random) -> bytes:
    value = chance.choice([*map(str, WHOLE), *map(repr, REAL), *TEXT])
    if chance.random() < 0.3:
        value = '"' + value.replace('"', '""') + '"'
    return value.encode("utf-8", "surrogatepass")


def _cell_changed(chance: random.Random, line: bytes) -> tuple[bytes, str]:
    cells = _split(line) or [b""]
    column, value = chance.randrange(len(cells)), _value(chance)
    cells[column] = value
    return b",".join(cells), f"cell {column} is {value[:20]!r}"


def _cells_moved(chance: random.Random, line: bytes) -> tuple[bytes, str]:
    cells = _split(line) or [b""]
    column, other = chance.randrange(len(cells)), chance.randrange(len(cells))
    match chance.randrange(4):
        case 0:
            cells[column], cells[other] = cells[other], cells[column]
            told = f"cells {column} and {other} swapped"
        case 1:
            del cells[column]
            told = f"cell {column} missing"
        case 2:
            cells.insert(column, cells[other])
            told = f"cell {other} again before {column}"
        case _:
            cells[column] = chance.choice([b'"', b'"x', b'x"', b'"a"b', b'"a\n']) + cells[column]
            told = f"a quote in cell {column}"
    return b",".join(cells), told


def _header_changed(chance: random.Random, header: bytes) -> tuple[bytes, str]:
    names = _split(header) or [b""]
    column, other = chance.randrange(len(names)), chance.randrange(len(names))
    match chance.randrange(7):
        case 0:
            names[column] = chance.choice(
                [b"", b"x", b"Name", b"Duration(us)", b"id", b"aic_x(us)"]
            )
        case 1:
            del names[column]
        case 2:
            names.insert(column, names[other])
        case 3:
            names[column], names[other] = names[other], names[column]
        case 4:
            return header.lower() if chance.random() < 0.5 else header.upper(), "header's case"
        case 5:
            return header.replace(b"(us)", "(\u03bcs)".encode()), "micro signs in the header"
        case _:
            names[column] = b"it's_a_" + names[column].replace(b" ", b"_")
    return b",".join(names), f"header: title {column} changed"
