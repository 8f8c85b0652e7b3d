"""Damage to JSON: tokens of the text, and values of what it says."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from tests.prove.fuzz.odd_values import REAL, TEXT, WHOLE

_TOKEN = re.compile(
    rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null|[\[\]{}:,]'
)
_ODD = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"0.0", b"1E5", b"01", b"1.", b".5", b"+1",
    b"0x1", b"'a'", b"undefined", b"True", b'"\\u0000"', b'"\\ud800"', b'"\xff"', b'"\n"', b"/*x*/",
    b"[]", b"{}", b"[[]]", b'""', b'{"":0}', b"[" * 1500 + b"]" * 1500, b'{"a":' * 900 + b"1",
)  # fmt: skip


def mutate(chance: random.Random, data: bytes) -> tuple[bytes, str]:
    """The document damaged once, and what was done."""
    if chance.random() < 0.2:
        return _tokens(chance, data)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _tokens(chance, data)
    document, told = _values(chance, document)
    indent = chance.choice([None, None, None, 0, 1])
    spaced = json.dumps(document, indent=indent, ensure_ascii=chance.random() < 0.8)
    return spaced.encode("utf-8", "surrogatepass"), told


def _tokens(chance: random.Random, data: bytes) -> tuple[bytes, str]:
    tokens = [match.span() for match in _TOKEN.finditer(data)]
    if not tokens:
        return chance.choice(_ODD), "a lone token"
    start, end = chance.choice(tokens)
    match chance.randrange(5):
        case 0:
            return data[:start] + data[end:], f"token {data[start:end][:20]!r} missing"
        case 1:
            low, high = chance.choice(tokens)
            other = data[low:high]
            return data[:start] + other + data[end:], f"{other[:20]!r} at {start}"
        case 2:
            odd = chance.choice(_ODD)
            return data[:start] + odd + data[end:], f"{odd[:20]!r} at {start}"
        case 3:
            twice = data[:end] + data[start:end] + data[end:]
            return twice, f"token {data[start:end][:20]!r} twice"
        case _:
            value = json.dumps(_value(chance)).encode()
            return data[:start] + value + data[end:], f"{value[:20]!r} at {start}"


def _values(chance: random.Random, document: Any) -> tuple[Any, str]:
    places = list(_places(document))
    if not places:
        return _value(chance), "another document"
    holder, key = chance.choice(places)
    found = holder[key]
    where = f"{key!r} ({str(found)[:20]})"
    match chance.randrange(9):
        case 0 | 1 | 2 | 3:
            holder[key] = _value(chance)
            return document, f"{where} is {str(holder[key])[:30]!r}"
        case 4:
            del holder[key]
            return document, f"{where} missing"
        case 5:
            holder[key] = chance.choice([[found], {"x": found}, str(found), [found] * 3])
            return document, f"{where} wrapped"
        case 6:
            other, name = chance.choice(places)
            if name in other if isinstance(other, dict) else name < len(other):
                holder[key] = json.loads(json.dumps(other[name]))
            return document, f"{where} is what {name!r} is"
        case 7 if isinstance(holder, list):
            holder.insert(chance.randrange(len(holder) + 1), found)
            return document, f"{where} twice"
        case 7 | 8 if isinstance(holder, dict):
            holder[chance.choice([*TEXT, f" {key}", str(key).upper(), f"{key}@"])] = holder.pop(key)
            return document, f"{where} renamed"
        case _:
            return [document, found], f"beside {where}"


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of every value inside."""
    pending = [document]
    while pending:
        value = pending.pop()
        if not isinstance(value, (dict, list)):
            continue
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            pending.append(value[key])


def _value(chance: random.Random) -> Any:
    kinds: list[Any] = [None, True, False, [], {}, [[]], {"a": {}}, [1, "a", None]]
    kinds += [chance.choice(WHOLE)] * 8 + [chance.choice(REAL)] * 6 + [chance.choice(TEXT)] * 12
    return chance.choice(kinds)
