"""TensorBoard's event files as lines of a log: what was written of a step is one line.

    events.out.tfevents.<time>.<host>.<pid>[.N] ─ records ─ scalars ─ by step ─ columns

A folder of them is one training: each start of it writes a file, in the order of their names.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from npuscope.errors import TraceFormatError, UsageError

from .log_lines import COLUMNS, MORE_COLUMNS, PER_DEVICE, POSITIVE, column_of

_MARK = "tfevents"
# Groups that trainers put before a figure's name. Those of an evaluation are none of a step.
_GROUPS = ("train/", "training/")
_MAY_DIVERGE = ("loss", "grad_norm")
_NAMES = (*COLUMNS, *MORE_COLUMNS)


def event_files(path: Path) -> list[Path]:
    """The event files that a path is, or that lie in it, in the order of their writing."""
    if path.is_file():
        return [path] if _MARK in path.name else []
    if not path.is_dir():
        return []
    return sorted(one for one in path.iterdir() if _MARK in one.name and one.is_file())


def read_events(
    paths: list[Path], advance: Callable[[int], None] = lambda n_bytes: None
) -> pl.DataFrame:
    """Every step of event files as `train_log.read_lines` gives lines.

    Raises UsageError without the package that reads them, TraceFormatError for what is none.
    """
    parts = [_lines_of(path, advance) for path in paths]
    return pl.concat(parts) if parts else pl.DataFrame(schema=_schema())


def _lines_of(path: Path, advance: Callable[[int], None]) -> pl.DataFrame:
    column_numbers, steps, values, times = array("b"), array("q"), array("d"), array("d")
    places = {name: number for number, name in enumerate(_NAMES)}
    values_of: dict[str, tuple[int, float, bool, bool]] = {}
    for event in _events(path):
        for value in event.summary.value:
            tag = value.tag
            if tag not in values_of:
                name, divisor, is_of_device = _column(tag)
                values_of[tag] = (places.get(name, -1), divisor, is_of_device, name in POSITIVE)
            place, divisor, is_of_device, is_positive = values_of[tag]
            number = _number(value) if place >= 0 else None
            if number is None or (is_positive and not number > 0):
                continue
            figures = [(place, number / divisor)]
            if is_of_device:
                figures.append((places["per_device"], 1.0))
            for at, figure in figures:
                column_numbers.append(at)
                steps.append(event.step)
                values.append(figure)
                times.append(event.wall_time)
    advance(path.stat().st_size)
    frame = pl.DataFrame({
        "column": np.array(column_numbers), "step": np.array(steps),
        "value": np.array(values), "at_s": np.array(times),
    })  # fmt: skip
    # A writer that goes back to an earlier step begins again.
    frame = frame.with_columns((pl.col("step").diff() < 0).fill_null(value=False).alias("back"))
    lines = frame.group_by(pl.col("back").cum_sum().alias("part"), "step", maintain_order=True).agg(
        pl.col("at_s").max().alias("written_s"),
        *(
            pl.col("value").filter(pl.col("column") == number).last().alias(name)
            for name, number in places.items()
        ),
    )
    strange = pl.sum_horizontal(
        (~pl.col(name).is_finite()).fill_null(value=False) for name in _MAY_DIVERGE
    )
    finite = [pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in places]
    return (
        lines.with_columns(strange.alias("strange"))
        .with_columns(*finite)
        .with_columns(
            pl.when(pl.col("strange") > 0)
            .then(pl.col("strange").cast(pl.Float64))
            .alias("not_finite_count"),
            pl.col("written_s").alias("at_s"),
        )
        .filter(pl.any_horizontal(pl.col(*COLUMNS, "not_finite_count").is_not_null()))
        .select(pl.col(name).cast(dtype) for name, dtype in _schema().items())
    )


def _schema() -> dict[str, type[pl.DataType]]:
    return {"step": pl.Int64, **dict.fromkeys(_NAMES, pl.Float64)}


def _column(tag: str) -> tuple[str, float, bool]:
    """The column of a tag, '' for none, what its figures are divided by, and whether they are one
    device's."""
    plain = tag.lower()
    for group in _GROUPS:
        plain = plain.removeprefix(group)
    for name in (plain, plain.replace("-", " ")):
        column, divisor = column_of(name, is_percent=False)
        if column:
            return column, divisor, name in PER_DEVICE
    return "", 1.0, False


def _number(value: Any) -> float | None:
    """The one figure of a value; None for a picture, a histogram, a text."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or value.tensor.dtype not in _FLOATS:
        return None
    tensor, form = value.tensor, _FLOATS[value.tensor.dtype]
    numbers = [*tensor.float_val, *tensor.double_val]
    if not numbers and len(tensor.tensor_content) == struct.calcsize(form):
        numbers = [*struct.unpack(form, tensor.tensor_content)]
    return float(numbers[0]) if len(numbers) == 1 else None


_FLOATS = {1: "<f", 2: "<d"}  # DT_FLOAT, DT_DOUBLE


def _events(path: Path) -> Iterator[Any]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError:
        raise UsageError(
            f"{path}: event files need TensorBoard's reader: pip install 'npuscope[tensorboard]'"
        ) from None
    from google.protobuf.message import DecodeError

    if not path.stat().st_size:
        return
    try:
        # Ends quietly at a record that is still being written.
        for record in RawEventFileLoader(str(path)).Load():
            yield Event.FromString(record)
    except (DecodeError, ValueError, OSError) as error:
        raise TraceFormatError(path, "event file", f"{type(error).__name__}: {error}") from error
