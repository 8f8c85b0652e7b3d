"""A side of a comparison as a small file, so that no profile has to be kept.

It holds the measures of each step, the parts of a mean rank and step, its kernels by type (none
where types were not recorded), and what the captures know of themselves.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl

from npuscope.errors import TraceFormatError

from .side import ENDS, FACTS, KERNEL, MEASURES, Side
from .waterfall import ORDER

_VERSION = 1
_MARK = b'{"npuscope_baseline":'
_MOST_BYTES = 16 << 20
_JOB = ("run", "capture")


class _Steps(msgspec.Struct):
    """Steps of one capture; of each measure a figure per step, or None. Files of before have no
    `to_end_ns` and `is_last`."""

    run: str
    capture: str
    step: list[int | None]
    step_ns: list[int]
    measures: dict[str, list[float | None]]
    to_end_ns: list[int | None] = []
    is_last: list[bool | None] = []


class _Baseline(msgspec.Struct):
    npuscope_baseline: int
    steps: list[_Steps]
    parts: list[tuple[str, str | None, float]]
    kernels: list[tuple[str, float, float]]
    facts: dict[str, list[str]]
    ranks: list[int] = []
    between_ns: float | None = None


def is_baseline(path: Path) -> bool:
    """Whether the path is such a file, by its content."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


def baseline_bytes(side: Side) -> bytes:
    """The side as a file holds it."""
    kernels = side.kernels
    if kernels["type"].null_count() == kernels.height:
        kernels = kernels.clear()
    by_type = kernels.group_by(pl.coalesce("type", "name")).agg(pl.col("count", "total_ns").sum())
    baseline = _Baseline(
        _VERSION,
        [
            _Steps(
                str(run),
                str(capture),
                rows["step"].to_list(),
                rows["step_ns"].cast(pl.Int64).to_list(),
                {name: rows[name].to_list() for name in MEASURES if rows[name].count()},
                *(rows[name].to_list() for name in ENDS),
            )
            for (run, capture), rows in side.steps.group_by(_JOB, maintain_order=True)
        ],
        side.parts.select("part", "name", "ns").rows(),
        by_type.drop_nulls().sort("type").rows(),
        {name: sorted(values) for name, values in side.facts.items() if values},
        sorted(side.ranks),
        side.between_ns,
    )
    return msgspec.json.encode(baseline) + b"\n"


def read_baseline(path: Path) -> Side:
    """The side that a file holds. Raises TraceFormatError."""
    if path.stat().st_size > _MOST_BYTES:
        raise TraceFormatError(path, "size", f"more than {_MOST_BYTES >> 20} MiB: no baseline")
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=_Baseline)
        if baseline.npuscope_baseline != _VERSION:
            raise ValueError(
                f"version {baseline.npuscope_baseline}: this npuscope reads {_VERSION}"
            )
        return _side(baseline)
    except (ValueError, pl.exceptions.PolarsError) as error:  # msgspec's are ValueErrors
        raise TraceFormatError(path, "baseline", str(error)) from None


def _side(baseline: _Baseline) -> Side:
    steps = pl.concat([_rows(one) for one in baseline.steps]) if baseline.steps else pl.DataFrame()
    if steps.is_empty():
        raise ValueError("no steps")
    if unknown := {part for part, _, _ in baseline.parts} - {*ORDER}:
        raise ValueError(f"unknown parts {sorted(unknown)}")
    text, figure = pl.String(), pl.Float64()
    parts = pl.DataFrame(baseline.parts, {"part": text, "name": text, "ns": figure}, orient="row")
    types = {"type": text, "count": figure, "total_ns": figure}
    kernels = pl.DataFrame(baseline.kernels, types, orient="row").with_columns(
        pl.lit(None, pl.String).alias(name) for name in ("name", "operator", "shape", "core")
    )
    facts = {name: frozenset(baseline.facts.get(name, ())) for name in FACTS}
    order = (*KERNEL, "count", "total_ns")
    ranks, between_ns = frozenset(baseline.ranks), baseline.between_ns
    return Side(steps, parts, kernels.select(order), facts, ranks=ranks, between_ns=between_ns)


def _rows(one: _Steps) -> pl.DataFrame:
    unknown = [None] * len(one.step)
    return pl.DataFrame(
        {
            "run": [one.run] * len(one.step), "capture": [one.capture] * len(one.step),
            "step": one.step, "step_ns": one.step_ns,
            "to_end_ns": one.to_end_ns or unknown, "is_last": one.is_last or unknown,
            **{name: one.measures.get(name, unknown) for name in MEASURES},
        },
        {"run": pl.String, "capture": pl.String, "step": pl.Int64, "step_ns": pl.Int64,
         "to_end_ns": pl.Int64, "is_last": pl.Boolean,
         **dict.fromkeys(MEASURES, pl.Float64)},
    )  # fmt: skip
