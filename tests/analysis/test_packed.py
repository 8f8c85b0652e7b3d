"""Answers as bytes: what an analysis tells comes back the same, and nothing of a file is run."""

from __future__ import annotations

import io
import math
import random
from datetime import datetime, timezone
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest

from npuscope.analysis import packing as module
from npuscope.analysis.findings.finding import Finding
from npuscope.analysis.packing import pack, unpack
from npuscope.analysis.scope import Scope
from npuscope.messages import Message

FRAME = pl.DataFrame(
    {
        "rank": pl.Series([0, None, 2], dtype=pl.Int32),
        "ns": [1 << 62, -1, None],
        "ratio": [0.1 + 0.2, math.nan, -0.0],
        "names": [["a", None], [], None],
        "is_it": [True, None, False],
        "made": [{"x": 1, "y": "é"}, None, {"x": None, "y": ""}],
        "at": [datetime(2026, 1, 1, tzinfo=timezone.utc), None, None],
    }
)
FINDING = Finding(
    "late", "job", "made", Message("{rank}: {why}", rank=Message("rank {n}", n=3), why="slow"), 5,
    None, "hint", "", "look", FRAME, "npuscope ranks PATH", changes=("rank:3=like-peers",),
)  # fmt: skip


@pytest.mark.parametrize("told", [
    None, True, 1, -(1 << 63), 1 << 80, 1.5, "kernels", (1, (2, "x"), []), [1, None, [True]],
    {"b": 1, "a": {(1, "x"): 2.0}}, {3, 4}, frozenset({"a"}), Scope("job", rank=3),
    Message("{n} of {all}", n=1, all=None),
])  # fmt: skip
def test_values_come_back_as_they_were(told: object) -> None:
    found = unpack(pack(told))
    assert found == told and type(found) is type(told)


def test_frames_and_records_come_back_as_they_were() -> None:
    found = unpack(pack([FINDING, FRAME.clear(), FRAME["ns"]]))
    one, nothing, series = found
    assert one.evidence.equals(FRAME) and one.evidence.schema == FRAME.schema
    assert nothing.schema == FRAME.schema and nothing.is_empty()
    assert series.equals(FRAME["ns"]) and series.name == "ns"
    assert math.copysign(1, one.evidence["ratio"][2]) == -1
    assert one.statement == "rank 3: slow"
    assert one.statement.template == "{rank}: {why}"
    assert one.statement.values["rank"].values["n"] == 3
    assert (one.at_stake_ns, one.step_share_ratio, one.changes) == (5, None, FINDING.changes)


def test_arrays_come_back_as_they_were() -> None:
    for told in (np.arange(6, dtype=np.int32).reshape(2, 3), np.array([0.5, np.nan])):
        found = unpack(pack(told))
        assert found.dtype == told.dtype and np.array_equal(found, told, equal_nan=told.size == 2)
    one = unpack(pack(np.float64(0.1)))
    assert isinstance(one, np.float64) and one == 0.1
    assert math.isnan(unpack(pack(math.nan)))


@pytest.mark.parametrize("told", [
    object(), io.BytesIO(), [lambda: 1], np.array([object()]), "a\udc80",
    pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}),
])  # fmt: skip
def test_other_kinds_are_refused(told: object) -> None:
    with pytest.raises(TypeError, match="is not kept"):
        pack(told)


def test_a_frame_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME_BYTES", 100)
    with pytest.raises(TypeError, match="is not kept"):
        pack([FRAME])


@pytest.mark.parametrize("told", [
    ["record", "os", "system", {}],
    ["record", "npuscope.analysis.catalog", "write_docs", {}],
    ["record", "npuscope.analysis.memo", "duckdb", {}],
    ["record", "npuscope.analysis.scope", "Scope", {"other": 1}],
    ["record", "npuscope.analysis.nothing", "Scope", {}],
    ["record", "npuscope.analysis.scope", ["Scope"], {}],
    ["frame", b"ARROW1 and no more"], ["frame"], ["array", "O", [1], b"12345678"],
    ["array", "(,)i4", [1], b"12345678"], ["array", ["i4"], [1], b"1234"],
    ["array", "<i8", [2], b"1"], ["what", 1], [], ["message", "{x}", ["dict", [[1, 2]]]],
])  # fmt: skip
def test_what_somebody_else_made_up_is_refused(told: Any) -> None:
    with pytest.raises(ValueError):
        unpack(msgspec.msgpack.encode(told))


def test_damage_is_a_value_error_or_another_answer() -> None:
    whole = pack([FINDING])
    dice = random.Random(5)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        for content in (bytes(damaged), whole[: dice.randrange(len(whole))]):
            try:
                unpack(content)
            except ValueError:
                continue
