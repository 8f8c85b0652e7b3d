"""Constants of the model of cost out of a user's own captures.

Each is what makes the model's formula give the measured time: efficiencies of matmuls from their
shapes, of attention from its sequences, links from what HCCL measured, memory from kernels that
read and write each element once, the host from its launches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from ..flops.chips import peaks
from ..flops.kernels.count import counted_kernels
from ..flops.kernels.shapes import Tensor, tensors, tensors_of
from ..views import frame, open_views
from .constants import Constants, described_constants

Floats = npt.NDArray[np.float64]

_MATMUL = re.compile(r"(transpose)?(batch|grouped)?matmul(v\d+)?", re.IGNORECASE)
_STATISTIC = 8  # the softmax's maxima and sums are stored 8 times each
_LEAST = 3  # measurements of a constant
_RANGE = 4.0  # of sizes, over which what small ones lose can be told from what large ones do
_MOST_LOSS = 1.5  # of what the model says that small sizes take, to tell what large ones do
_LARGE_BYTES = 32 << 20  # of what a kernel moves, so that its launch does not count

# Kernels of vector cores that read and write each element once.
_MOVES = """
select input_shapes, input_dtypes, output_shapes, output_dtypes, count(*) as count,
    cast(sum(dur_ns) as bigint) as total_ns
from kernels
where is_compute and dur_ns > 0 and core in ('AI_VECTOR_CORE', 'MIX_AIV')
    and type in ('Add', 'Adds', 'Mul', 'Muls', 'Sub', 'Cast', 'SwiGlu', 'RmsNorm', 'Sigmoid')
group by all
order by all
"""
# From one operator to the next on a thread that launches kernels.
_LAUNCHES = """
select median(gap_ns) as gap_ns, count(*) as count
from (
    select operator_start_ns - lag(operator_start_ns) over (
        partition by run, capture, rank, operator_thread_id order by operator_start_ns) as gap_ns
    from (
        select distinct run, capture, rank, operator_thread_id, operator_start_ns
        from launches where target = 'kernel' and operator_start_ns is not null
    )
)
where gap_ns > 0
"""
_LINKS = """
select if(link = 'HCCS', 'HCCS', 'RDMA') as link,
    sum(size_bytes) * 1e9 / sum(time_ns) as bytes_per_s, cast(sum(op_count) as bigint) as count
from link_summary
where size_bytes > 0 and time_ns > 0 and link in ('HCCS', 'RDMA', 'ROCE')
group by all
"""


class MeasuredConstant(NamedTuple):
    """A constant's measured value, from how many kernels or operations, of which kind."""

    value: float
    number: int
    source: str


class _Products(NamedTuple):
    """Distinct shapes of matmuls: peak x time / FLOPs, 1/rows + 1/inner + 1/columns, time."""

    slowness: list[float]
    smallness: list[float]
    total_ns: list[float]
    number: int


# metric: calibration
# Which constants of the model of cost do these captures measure, and what are they there?
#
# Efficiencies are those that make the model's formula give the time of the kernels measured, by
# their shapes; a link's is that of one link while it transfers; the host's is the median from one
# operator to the next. What the captures do not show is kept.
#
# title: Calibrated constants
# meaning: Constants of the model of cost, as they are and as captures measure them.
# command: predict --calibrate
#
#   constant        varchar  its name
#   unit            varchar  of its values; empty: a ratio
#   usual           double   built in
#   value           double   in the captures; NULL: they do not show it, the usual is kept
#   changed_ratio   double   value / usual
#   measured_count  bigint   kernels or operations that it was measured from
#   source          varchar  of which kind; NULL: kept
def calibration(con: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """The rows of the metric, those measured first, in the order of constants.json."""
    described = described_constants()
    defaults = {name: constant.value for name, constant in described.items()}
    constants = measured_constants(con, defaults)
    rows = [
        {
            "constant": name, "unit": constant.unit, "usual": constant.value,
            "value": one.value if one else None,
            "changed_ratio": one.value / constant.value if one else None,
            "measured_count": one.number if one else 0, "source": one.source if one else None,
        }
        for name, constant in described.items() for one in (constants.get(name),)
    ]  # fmt: skip
    schema = {"constant": pl.String, "unit": pl.String, "usual": pl.Float64,
              "value": pl.Float64, "changed_ratio": pl.Float64,
              "measured_count": pl.Int64, "source": pl.String}  # fmt: skip
    is_kept = pl.col("value").is_null()
    return pl.DataFrame(rows, schema=schema).sort(is_kept, maintain_order=True)


def calibrate(rows: pl.DataFrame) -> Constants:
    """All constants, those that rows of the metric measured in the place of the others."""
    return dict(rows.select("constant", pl.coalesce("value", "usual")).iter_rows())


def measured_constants(
    con: duckdb.DuckDBPyConnection, defaults: Constants
) -> dict[str, MeasuredConstant]:
    """Constants that captures measure, by name; `defaults` are those that their formulas need."""
    counted = counted_kernels(con)
    limits = peaks(con)
    constants = _matmuls(counted, limits, defaults) | _attention(counted, limits, defaults)
    return constants | _memory(con) | _links(con) | _host(con)


def _matmuls(
    counted: pl.DataFrame, limits: Mapping[Any, Any], defaults: Constants
) -> dict[str, MeasuredConstant]:
    dense, grouped = (_products(counted, limits, is_grouped) for is_grouped in (False, True))
    constants: dict[str, MeasuredConstant] = {}
    half = defaults["matmul_half_size"]
    if dense.number >= _LEAST:
        efficiency, half = _matmul_constants(dense, defaults["matmul_efficiency"], half)
        for name, value in (("matmul_efficiency", efficiency), ("matmul_half_size", half)):
            if value != defaults[name]:
                constants[name] = MeasuredConstant(value, dense.number, "matmuls")
    if grouped.number >= _LEAST:
        slowness, loss, weights = _arrays(grouped, half)
        efficiency = 1 / float(np.average(slowness / loss, weights=weights))
        if efficiency <= 1 and np.average(loss, weights=weights) <= _MOST_LOSS:
            constants["expert_efficiency"] = MeasuredConstant(
                efficiency, grouped.number, "grouped matmuls"
            )
    return constants


def _matmul_constants(products: _Products, efficiency: float, half: float) -> tuple[float, float]:
    """Efficiency and half size of matmuls.

    Both, where sizes differ enough to tell one from the other. Else large ones tell the efficiency
    and small ones the half size, and the other is kept: above the peak nothing is extrapolated.
    """
    slowness, loss, weights = _arrays(products, half)
    smallness = (loss - 1) / half
    if smallness.max() > _RANGE * smallness.min():
        # peak x time / FLOPs = (1 + half x smallness) / efficiency, by relative errors.
        scaled = np.sqrt(weights)[:, None] * np.column_stack([1 / slowness, smallness / slowness])
        (large, small), *_ = np.linalg.lstsq(scaled, np.sqrt(weights), rcond=None)
        if large >= 1 and small > 0:
            return float(1 / large), float(small / large)
    alone = 1 / float(np.average(slowness / loss, weights=weights))
    if alone <= 1 and np.average(loss, weights=weights) <= _MOST_LOSS:
        return alone, half
    needed = np.average((slowness * efficiency - 1) / smallness, weights=weights)
    return (efficiency, float(needed)) if needed > 0 else (min(alone, 1.0), half)


def _arrays(products: _Products, half: float) -> tuple[Floats, Floats, Floats]:
    """Peak x time / FLOPs, what the model says that small sizes lose, shares of the time."""
    weights = np.array(products.total_ns)
    loss = 1 + half * np.array(products.smallness)
    return np.array(products.slowness), loss, weights / weights.sum()


def _products(counted: pl.DataFrame, limits: Mapping[Any, Any], is_grouped: bool) -> _Products:
    mine = counted.filter(
        family="matmul", is_rounded=False
    ).filter(pl.col("full_flops") > 0, pl.col("total_ns") > 0)  # fmt: skip
    products = _Products([], [], [], 0)
    for row in mine.iter_rows(named=True):
        kind = _MATMUL.fullmatch(row["type"] or "")
        peak = limits.get((row["run"], row["capture"], row["rank"]))
        rate = peak.of(row["dtype"]) if peak and row["dtype"] in ("bf16", "fp16") else None
        if kind is None or rate is None or is_grouped != ((kind[2] or "").lower() == "grouped"):
            continue
        sizes = _sizes(row, is_grouped)
        if sizes is not None:
            seconds = row["total_ns"] / row["count"] / 1e9
            products.slowness.append(rate * seconds / row["full_flops"])
            products.smallness.append(sum(1 / max(1.0, size) for size in sizes))
            products.total_ns.append(float(row["total_ns"]))
            products = products._replace(number=products.number + row["count"])
    return products


def _sizes(row: Mapping[str, Any], is_grouped: bool) -> tuple[float, float, float] | None:
    """Rows, inner and columns of one product; None where the shapes do not tell them."""
    inputs, outputs = map(_plain, tensors_of(row))
    if len(inputs) < 2 or not outputs or len(outputs[0].shape) < 2:
        return None
    shape, weights = outputs[0].shape, inputs[1].shape
    rows, columns, times = float(shape[-2]), float(shape[-1]), float(prod(shape[:-2]))
    if is_grouped and len(shape) == 2:
        if len(weights) != 3:
            return None
        rows, times = rows / weights[0], float(weights[0])
    elif not is_grouped and len(weights) == 2:
        rows, times = rows * times, 1.0
    if not rows * columns * times:
        return None
    return rows, row["full_flops"] / (2 * rows * columns * times), columns


def _plain(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """Tensors that lie as their shapes say."""
    return [one for one in tensors if one is not None and not (one.layout or "").startswith("FRAC")]


def _attention(
    counted: pl.DataFrame, limits: Mapping[Any, Any], defaults: Constants
) -> dict[str, MeasuredConstant]:
    """Efficiency of the forward, as the model counts it, and what a backward takes of it: of
    kernels with a mask, others compute no triangle."""
    mine = counted.filter(family="attention").filter(
        pl.col("causal_flops") > 0, pl.col("causal_flops") < pl.col("full_flops"),
        pl.col("total_ns") > 0,
    )  # fmt: skip
    slowness, lengths, weights, count = [], [], [], 0
    forward: dict[tuple[Any, ...], list[float]] = {}
    backward: dict[tuple[Any, ...], list[float]] = {}
    for row in mine.iter_rows(named=True):
        is_backward = row["type"].lower().endswith("grad")
        place = (row["run"], row["capture"], row["rank"])
        once = row["causal_flops"] * 2 // 5 if is_backward else row["causal_flops"]
        shape = (*place, row["tokens"], row["sequence_length"], once)
        times = (backward if is_backward else forward).setdefault(shape, [0.0, 0.0])
        times[0] += row["total_ns"]
        times[1] += row["count"]
        peak, heads = limits.get(place), _heads(row["output_shapes"])
        rate = peak.of(row["dtype"]) if peak else None
        if is_backward or rate is None or not heads:
            continue
        width = row["full_flops"] / (2 * row["tokens"] * row["sequence_length"] * heads)
        work = row["causal_flops"] * (1 + defaults["score_width"] / width)
        work = work / defaults["triangle_efficiency"] * row["count"]
        slowness.append(rate * row["total_ns"] / 1e9 / work)
        lengths.append(float(row["sequence_length"]))
        weights.append(row["total_ns"])
        count += row["count"]
    constants: dict[str, MeasuredConstant] = {}
    if count >= _LEAST:
        efficiency, half = _attention_constants(
            np.array(slowness), np.array(lengths), np.array(weights), defaults
        )
        for name, value in (("attention_efficiency", efficiency), ("attention_half_length", half)):
            if value != defaults[name]:
                constants[name] = MeasuredConstant(value, count, "attention")
    pairs = [(forward[one], backward[one]) for one in forward.keys() & backward.keys()]
    number = int(sum(times[1] for _, times in pairs))
    if number >= _LEAST:
        before = sum(one[0] / one[1] * other[1] for one, other in pairs)
        ratio = sum(other[0] for _, other in pairs) / before
        constants["attention_backward"] = MeasuredConstant(ratio, number, "attention's backward")
    return constants


def _attention_constants(
    slowness: Floats, lengths: Floats, weights: Floats, constants: Constants
) -> tuple[float, float]:
    """Efficiency and half length: long sequences tell the first, short ones the second."""
    efficiency, half = constants["attention_efficiency"], constants["attention_half_length"]
    loss = 1 + half / lengths
    alone = 1 / float(np.average(slowness / loss, weights=weights))
    is_long = np.average(loss, weights=weights) <= _MOST_LOSS
    if is_long and alone * constants["triangle_efficiency"] <= 1:
        return alone, half
    needed = float(np.average((slowness * efficiency - 1) * lengths, weights=weights))
    if needed >= 0:
        return efficiency, needed
    return 1 / float(np.average(slowness, weights=weights)), 0.0


def _heads(output_shapes: str | None) -> int:
    """Heads, from the softmax's maxima (B, N, S, 8); 0 where they are not told."""
    outputs = tensors(output_shapes)
    if outputs and outputs[0] is not None and len(outputs[0].shape) == 4:
        return outputs[0].shape[1] if outputs[0].shape[-1] == _STATISTIC else 0
    return 0


def _memory(con: duckdb.DuckDBPyConnection) -> dict[str, MeasuredConstant]:
    moved, total_ns, count = 0.0, 0.0, 0
    for row in frame(con, _MOVES).iter_rows(named=True):
        both = [
            *tensors(row["input_shapes"], row["input_dtypes"]),
            *tensors(row["output_shapes"], row["output_dtypes"]),
        ]
        sizes = [one.size_bytes for one in both if one is not None]
        once = sum(size or 0 for size in sizes)
        if None not in sizes and once >= _LARGE_BYTES:
            moved += once * row["count"]
            total_ns += row["total_ns"]
            count += row["count"]
    if count < _LEAST:
        return {}
    return {"memory_bytes_per_s": MeasuredConstant(moved / total_ns * 1e9, count, "vector kernels")}


def _links(con: duckdb.DuckDBPyConnection) -> dict[str, MeasuredConstant]:
    open_views(con, ["links"])
    names = {"HCCS": "hccs_link_bytes_per_s", "RDMA": "roce_bytes_per_s"}
    return {
        names[link]: MeasuredConstant(bytes_per_s, count, "transfers")
        for link, bytes_per_s, count in frame(con, _LINKS).iter_rows()
        if count >= _LEAST
    }


def _host(con: duckdb.DuckDBPyConnection) -> dict[str, MeasuredConstant]:
    ((gap_ns, count),) = frame(con, _LAUNCHES).rows()
    if count < _LEAST:
        return {}
    return {"operator_seconds": MeasuredConstant(gap_ns / 1e9, count, "launches")}
