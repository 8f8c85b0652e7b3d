"""Causes that shapes, cores and clocks of kernels tell: each function is one test.

Rows of `mean_operators` --> rows of EVIDENCE (launch_order) for what is beyond how other kernels of
the capture do the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass

import duckdb
import numpy as np
import polars as pl

from npuscope.messages import Message

from ..flops.chips import peaks
from ..flops.kernels.shapes import tensors
from ..views import frame, open_views
from .launch_order import EVIDENCE, base_type
from .pace import Pace, pace

_LAYOUT = frozenset({"TransData", "Transpose", "Cast", "TensorMove", "ViewCopy", "AsStrided"})
# What a model that keeps to one layout never runs; others (a cast of weights) it may need.
_AVOIDABLE = frozenset({"TransData", "Transpose", "ViewCopy", "AsStrided"})
_BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "int8": 8, "fp8": 8}
_TILE, _TILE_BYTES, _LINE_BYTES = 16, 32, 512
_BLOCK_TILE = 128 * 128  # of a result in fp32: what L0C holds, and a core works on
_CORE_BYTES = 16 * 1024  # per core, below which spreading a vector kernel does not pay
_PRODUCTS = ("matmul", "matmul_batched", "matmul_grouped")
_CUBE, _VECTOR = ("AI_CORE", "MIX_AIC"), ("AI_VECTOR_CORE", "MIX_AIV")
_MARGIN = 2 * pl.col("error_ns")  # by which one mean step may differ from the next
_MOSTLY = 0.5  # of a kernel's time, beyond which others run beneath it, not it beneath them
_LOWER = 0.99  # of the others' clock
# What gives a kernel the same inputs in every layer.
_TABLES = frozenset({"Cos", "Sin", "Range", "Arange"})
# Environment variables that trade speed for something: the values that do not.
_MODES = {
    "ASCEND_LAUNCH_BLOCKING": ("0",), "HCCL_DETERMINISTIC": ("false", "0"),
    "LCCL_DETERMINISTIC": ("0", "false"), "TASK_QUEUE_ENABLE": ("1", "2"),
    "ASCEND_GLOBAL_LOG_LEVEL": ("2", "3", "4"), "ASCEND_SLOG_PRINT_TO_STDOUT": ("0",),
    "CLOSE_MATMUL_K_SHIFT": ("0",), "ATB_MATMUL_SHUFFLE_K_ENABLE": ("1",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paces:
    """Lines of one capture: of vector kernels over bytes, of even products over FLOPs by element
    type, with what even means (is_aligned, else is_tiled); None or missing: too few."""

    vector: Pace | None
    products: dict[str | None, tuple[Pace, str]]


def paces(rows: pl.DataFrame) -> Paces:
    """Of rows of `mean_operators` of one capture, with the columns of `with_tiling`."""
    vector = rows.filter(
        pl.col("core").is_in(list(_VECTOR)), pl.col("class") == "vector", pl.col("moved_bytes") > 0
    )
    products: dict[str | None, tuple[Pace, str]] = {}
    for (dtype,), mine in rows.filter("is_tiled", pl.col("flops") > 0).group_by("dtype"):
        for even in ("is_aligned", "is_tiled"):
            line = _line(mine.filter(even), "flops")
            if line is not None:
                products.setdefault(None if dtype is None else str(dtype), (line, even))
    return Paces(_line(vector, "moved_bytes"), products)


def _line(rows: pl.DataFrame, work: str) -> Pace | None:
    columns = (rows[name].cast(pl.Float64).to_numpy() for name in (work, "usual_ns", "kernels"))
    return pace(*columns)


_SIZES = {
    "is_aligned": pl.Boolean, "is_tiled": pl.Boolean, "tile_waste_ratio": pl.Float64,
    "line_waste_ratio": pl.Float64, "line_kept_ratio": pl.Float64, "odd": pl.String,
}  # fmt: skip


def with_tiling(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with is_tiled (columns and inner axes fill the cube's tiles; NULL: no matrix product of
    known sizes), is_aligned (and lines of 512 bytes), tile_waste_ratio and line_waste_ratio (sizes
    rounded up to tiles, and inner axes to lines, over the sizes), line_kept_ratio (inner axes
    rounded down to lines: what is a little too large is cut, not filled), and what is odd."""
    keys = ["class", "input_shapes", "input_dtypes", "input_formats", "output_shapes", "dtype",
            "flops"]  # fmt: skip
    shapes = rows.select(keys).unique(maintain_order=True)
    cells = [
        _sizes(one) if one["class"] in _PRODUCTS and one["flops"] else _NO_SIZES
        for one in shapes.iter_rows(named=True)
    ]
    shapes_with_tiles = shapes.hstack(pl.DataFrame(cells, schema=_SIZES, orient="row"))
    return rows.join(
        shapes_with_tiles, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )


_Sizes = tuple[bool | None, bool | None, float | None, float | None, float | None, str | None]
_NO_SIZES: _Sizes = (None, None, None, None, None, None)


def _sizes(row: dict[str, object]) -> _Sizes:
    """M, N and K of a product: its result is (..., M, N); K follows from the FLOPs."""
    bits = _BITS.get(str(row["dtype"]))
    try:
        inputs = tensors(_text(row["input_shapes"]), _text(row["input_dtypes"]),
                        _text(row["input_formats"]))  # fmt: skip
        outputs = tensors(_text(row["output_shapes"]))
    except ValueError:
        return _NO_SIZES
    if bits is None or len(inputs) < 2 or not outputs:
        return _NO_SIZES
    one, other, result = inputs[0], inputs[1], outputs[0]
    if one is None or other is None or result is None:
        return _NO_SIZES
    if min(len(one.shape), len(other.shape), len(result.shape)) < 2 or not result.element_count:
        return _NO_SIZES
    if any("NZ" in (tensor.layout or "") for tensor in (one, other)):
        return _NO_SIZES
    m, n = result.shape[-2:]
    k = int(str(row["flops"])) // (2 * result.element_count)
    if k < 1:
        return _NO_SIZES
    tiles = {"M": (m, _TILE), "N": (n, _TILE), "K": (k, _TILE_BYTES * 8 // bits)}
    line = _LINE_BYTES * 8 // bits
    inner = {one.shape[-1], other.shape[-1], result.shape[-1]}
    odd = [f"{name} = {size}" for name, (size, tile) in tiles.items() if size % tile]
    odd += [f"{size * bits // 8} B" for size in sorted(inner) if size % line]
    tile_waste = math.prod(_up(size, tile) / size for size, tile in tiles.values())
    lines = {name: line if size in inner else tile for name, (size, tile) in tiles.items()}
    line_waste = math.prod(_up(size, lines[name]) / size for name, (size, _) in tiles.items())
    line_kept = math.prod(
        size // lines[name] * lines[name] / size
        for name, (size, _) in tiles.items() if size in inner and size >= lines[name]
    )  # fmt: skip
    # Rows of tokens come in any number: they cost what they fill of a tile.
    is_tiled = not any(size * bits // 8 % _TILE_BYTES for size in inner) and n % _TILE == 0
    is_aligned = is_tiled and not any(size % line for size in inner)
    return is_aligned, is_tiled, tile_waste, line_waste, line_kept, ", ".join(odd)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _up(size: int, to: int) -> int:
    return -(-size // to) * to


def evidence(
    rows: pl.DataFrame, cause: str, basis: str, text: pl.Expr | None = None,
    target: pl.Expr | None = None,
) -> pl.DataFrame:  # fmt: skip
    """Rows with headroom_ns, headroom_low_ns and headroom_high_ns as rows of EVIDENCE. `target`: of
    the what-if without the cause; else the kernels of their type, by as much as the headroom."""
    saved = pl.struct(
        target=pl.lit("kernel:") + pl.col("type") if target is None else target,
        input_shapes=pl.col("input_shapes"),
        own_ns=pl.col("total_ns"),
        saved_ns=pl.col("headroom_ns") if target is None else pl.lit(None, pl.Float64),
    )
    literal = pl.lit(None, pl.String) if text is None else text
    return rows.select(
        "run", "capture", pl.lit(cause).alias("cause"), "type", "input_shapes", "dtype", "count",
        "total_ns", "headroom_ns", "headroom_low_ns", "headroom_high_ns",
        pl.lit(basis).alias("basis"), literal.alias("evidence"),
        *(pl.lit(None, pl.String).alias(name)
          for name in ("asked_by", "replacement", "condition", "source")),
        pl.concat_list(saved).alias("saved"),
    ).cast(pl.Schema(EVIDENCE))  # fmt: skip


def padding(rows: pl.DataFrame, paces: Paces) -> pl.DataFrame:
    """Products of odd sizes that take longer than the line of aligned ones says, by more than a
    tenth of those do; each of its kernels, not some."""
    frames = [pl.DataFrame(schema=EVIDENCE)]
    for dtype, (line, even) in paces.products.items():
        mine = rows.filter(
            pl.col(even).eq(False), pl.col("dtype").eq_missing(pl.lit(dtype, pl.String))
        )

        def beyond(waste: str, factor: float, line: Pace = line) -> pl.Expr:
            flops = pl.col("flops") * pl.col(waste)
            ns = line.start_ns + line.ns_per_work * flops
            return (pl.col("total_ns") - pl.col("count") * factor * ns).clip(0)

        mine = mine.with_columns(
            headroom_ns=beyond("tile_waste_ratio", 1.0),
            headroom_low_ns=(beyond("line_waste_ratio", line.high) - _MARGIN).clip(0),
            headroom_high_ns=beyond("line_kept_ratio", line.low) + _MARGIN,
        ).filter(
            beyond("tile_waste_ratio", line.high) > 0,
            pl.col("least_ns")
            > line.start_ns + line.ns_per_work * pl.col("flops") * pl.col("tile_waste_ratio"),
        )
        frames.append(evidence(mine, "padding", "capture", pl.col("odd")))
    return pl.concat(frames)


def blocks(rows: pl.DataFrame, paces: Paces, cores: int | None) -> pl.DataFrame:
    """Kernels on fewer cores than there are, or in a last wave that fills few of them, though their
    tensors would fill all; no further than at the highest rate of the capture."""
    if not cores:
        return pl.DataFrame(schema=EVIDENCE)
    is_vector = pl.col("core").is_in(list(_VECTOR))
    on = pl.when(is_vector).then(2 * cores).otherwise(cores)
    block_count = pl.col("most_blocks_count")
    result = pl.col("output_shapes").map_elements(_elements, return_dtype=pl.Int64)
    fills = (
        pl.when(is_vector)
        .then(pl.col("moved_bytes") >= on * _CORE_BYTES)
        .otherwise(result >= on * _BLOCK_TILE)
    )
    waves = (block_count / on).ceil()
    start_ns = paces.vector.start_ns if paces.vector is not None else 0.0
    best = paces.vector.best_rate if paces.vector is not None else None
    spread = (pl.col("total_ns") - pl.col("count") * start_ns).clip(0) * (
        1 - block_count / (waves * on)
    )
    at_best = pl.col("count") * pl.col("moved_bytes") / best if best else pl.lit(0.0)
    most = pl.when(is_vector).then((pl.col("total_ns") - at_best).clip(0)).otherwise(spread)
    mine = (
        rows.filter(pl.col("core").is_in([*_VECTOR, *_CUBE]), block_count > 0, fills)
        .with_columns(headroom_high_ns=spread, headroom_ns=pl.min_horizontal(spread, most),
                      headroom_low_ns=pl.lit(0.0))
        .filter(pl.col("headroom_ns") > 0)
    )  # fmt: skip
    return evidence(
        mine, "blocks", "cores",
        pl.format("{} / {}", pl.col("most_blocks_count"), on),
    )  # fmt: skip


def _elements(shapes: str) -> int:
    try:
        outputs = tensors(shapes)
    except ValueError:
        return 0
    return max((one.element_count for one in outputs if one is not None), default=0)


def layout(rows: pl.DataFrame) -> pl.DataFrame:
    """Kernels that change layout or element type. TransData, Transpose and copies: all of their
    time; others: what goes there and comes back. At least the latter, at most all."""
    base = pl.col("type").map_elements(base_type, return_dtype=pl.String)
    mine = rows.filter(pl.col("core").is_in(list(_VECTOR))).filter(base.is_in([*_LAYOUT]))
    if mine.is_empty():
        return pl.DataFrame(schema=EVIDENCE)
    there = ["run", "capture", "type", "input_shapes", "output_shapes"]
    back = mine.select(
        "run", "capture", "type", pl.col("output_shapes").alias("input_shapes"),
        pl.col("input_shapes").alias("output_shapes"),
        pl.col("output_dtypes").alias("input_dtypes"),
        pl.col("input_dtypes").alias("output_dtypes"),
        pl.col("output_formats").alias("input_formats"),
        pl.col("input_formats").alias("output_formats"), pl.col("count").alias("back"),
    )  # fmt: skip
    changes = (
        (pl.col("input_dtypes") != pl.col("output_dtypes"))
        | (pl.col("input_shapes") != pl.col("output_shapes"))
        | (pl.col("input_formats") != pl.col("output_formats"))
    )
    keys = [*there, "input_dtypes", "output_dtypes", "input_formats", "output_formats"]
    returns = pl.when(changes).then(pl.min_horizontal("count", pl.col("back").fill_null(0)))
    mine = mine.join(back.group_by(keys).agg(pl.col("back").sum()), on=keys, how="left",
                     maintain_order="left").with_columns(
        headroom_low_ns=returns.fill_null(0) * pl.col("mean_ns"),
        headroom_high_ns=pl.col("total_ns") + _MARGIN,
    )  # fmt: skip
    avoidable = base.is_in([*_AVOIDABLE])
    mine = mine.with_columns(
        headroom_ns=pl.when(avoidable).then("total_ns").otherwise("headroom_low_ns")
    )
    tensor = "{} {} {} -> {} {} {}"
    text = pl.format(tensor, *(pl.col(name).fill_null("") for name in (
        "input_shapes", "input_dtypes", "input_formats", "output_shapes", "output_dtypes",
        "output_formats")))  # fmt: skip
    return evidence(mine, "layout", "kernels", text)


def ai_cpu(rows: pl.DataFrame, paces: Paces) -> pl.DataFrame:
    """Kernels on the AI CPU: what they take beyond a vector kernel that moves as many bytes; where
    those are unknown, at most all."""
    mine = rows.filter(pl.col("core") == "AI_CPU")
    total, count, moved = pl.col("total_ns"), pl.col("count"), pl.col("moved_bytes")
    # What runs beneath other kernels gives a step nothing back; what others run beneath, all of it,
    # as these then run beneath the next ones.
    alone = pl.when(total > 0).then((pl.col("computing_ns") / total).clip(0, 1))
    most = pl.when(alone > _MOSTLY).then(1.0).otherwise(alone)
    line = paces.vector
    if line is None:
        point = low = pl.lit(None, pl.Float64)
        high = total
    else:
        ns = line.start_ns + line.ns_per_work * moved
        point = (total - count * ns).clip(0) * most
        low = (total - count * line.high * ns - _MARGIN).clip(0) * alone
        high = (total - count * line.low * ns + _MARGIN).clip(0).fill_null(total)
    mine = mine.with_columns(
        headroom_ns=point, headroom_low_ns=low.fill_null(0.0), headroom_high_ns=high * most
    )
    return evidence(mine, "ai_cpu", "capture" if line is not None else "kernels",
                    pl.col("input_dtypes"))  # fmt: skip


_CLOCKS = """
    with _cycles as (
        select run, capture, rank,
            1000 * sum(cube_cycles_count) / nullif(sum(cube_core_time_ns), 0) as mhz
        from shape_summary where core in ('AI_CORE', 'MIX_AIC') group by all
    ),
    _counter as (
        select run, capture, rank, max(value) as highest_mhz
        from counters where name = 'AI Core Freq' and series = 'MHz' and value > 0 group by all
    )
    select rank, coalesce(mhz, highest_mhz, ai_core_frequency_mhz) as mhz
    from ranks left join _cycles using (run, capture, rank)
    left join _counter using (run, capture, rank) where run = ? and capture = ?"""


def clocks(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> pl.DataFrame:
    """Clock of the AI cores of each rank while kernels ran: rank, mhz (from cycles over time, else
    the highest recorded, as it is low between kernels), full_mhz (the highest here, or the
    chip's)."""
    open_views(con, ["shapes"])
    readings = frame(con, _CLOCKS, [run, capture]).drop_nulls("mhz").filter(pl.col("mhz") > 0)
    nominal = [one.mhz for (a, b, _), one in peaks(con).items() if (a, b) == (run, capture)]
    full = max((one for one in nominal if one is not None), default=None)
    return readings.with_columns(
        full_mhz=pl.max_horizontal(pl.col("mhz").max(), pl.lit(full, pl.Float64))
    )


def clock(ranked: pl.DataFrame, rest: pl.DataFrame) -> pl.DataFrame:
    """Ranks below the clock of the others, or the chip's: what their AI-core kernels take beyond
    the same kernels of ranks at full clock; of kernels that those do not run, beyond the clocks'
    proportion. `ranked`: rows of `operators_of` of one capture, of all its ranks and steps."""
    steps = max(ranked.select("rank", "step").n_unique(), 1)
    rows = ranked.filter(pl.col("core").is_in([*_VECTOR, *_CUBE])).join(rest, on="rank")
    is_low = pl.col("mhz") < _LOWER * pl.col("full_mhz")
    keys = ["type", "input_shapes", "input_dtypes", "output_shapes"]
    usual = rows.filter(~is_low).group_by(keys).agg(
        (pl.col("total_ns").sum() / pl.col("count").sum()).alias("usual_ns")
    )  # fmt: skip
    low = rows.filter(is_low)
    if low.is_empty():
        return pl.DataFrame(schema=EVIDENCE)
    less = (1 - pl.col("mhz") / pl.col("full_mhz")) * pl.col("total_ns")
    expected = pl.col("count") * pl.col("usual_ns")
    low = low.join(usual, on=keys, how="left", nulls_equal=True).with_columns(
        less=less,
        matched_ns=pl.when(pl.col("usual_ns").is_not_null()).then("total_ns"),
        expected_ns=expected,
    )
    cube = pl.col("core").is_in(list(_CUBE))
    by_type = low.group_by("run", "capture", "rank", "type", "core", "mhz", "full_mhz").agg(
        pl.col("count", "total_ns", "less", "matched_ns", "expected_ns").sum(),
    )
    compared = pl.col("total_ns") * (1 - pl.col("expected_ns") / pl.col("matched_ns")).clip(0)
    point = pl.when(pl.col("matched_ns") > 0).then(compared).otherwise("less")
    by_type = by_type.with_columns(
        headroom_ns=point,
        headroom_low_ns=pl.min_horizontal(point, pl.when(cube).then("less").otherwise(0.0)),
        headroom_high_ns=pl.max_horizontal(point, "less"),
    ).with_columns(
        pl.col("total_ns", "headroom_ns", "headroom_low_ns", "headroom_high_ns") / steps,
        count=pl.col("count") / steps, input_shapes=pl.lit(None, pl.String),
        dtype=pl.lit(None, pl.String),
    )  # fmt: skip
    text = pl.format("rank {}: {} / {} MHz", "rank", pl.col("mhz").round().cast(pl.Int64),
                     pl.col("full_mhz").round().cast(pl.Int64))  # fmt: skip
    target = pl.format("rank:{}", "rank")
    return evidence(by_type, "clock", "capture", text, target)


def recompute(rows: pl.DataFrame, ranked: pl.DataFrame) -> pl.DataFrame:
    """Forward kernels that run more often than their gradients, once more for it at most; and
    tables of positions that are computed again in each layer. `ranked` as in `clock`."""
    base = pl.col("type").map_elements(base_type, return_dtype=pl.String)
    rows = rows.with_columns(base=base)
    names = {one: base_type(one) for one in ranked["type"].drop_nulls().unique()}
    ran = ranked.drop_nulls("type").group_by(
        "rank", "step", base=pl.col("type").replace_strict(names, return_dtype=pl.String)
    ).agg(pl.col("count").sum())  # fmt: skip
    gradients = ran.filter(pl.col("base").str.ends_with("Grad")).with_columns(
        pl.col("base").str.strip_suffix("Grad")
    )
    # A step without any gradient (of an evaluation) computes nothing again.
    both = ran.join(gradients, on=["rank", "step", "base"], nulls_equal=True, suffix="_grad")
    sums = both.group_by("base").agg(pl.col("count", "count_grad").sum()).join(
        ran.group_by("base").agg(every=pl.col("count").sum()), on="base"
    )  # fmt: skip
    again = {
        name: (count - gradients) / every
        for name, count, gradients, every in sums.iter_rows()
        if 1.0 < count / gradients <= 2.0
    }
    factor = pl.col("base").replace_strict(again, default=None, return_dtype=pl.Float64)
    table = pl.when(pl.col("base").is_in([*_TABLES]) & (pl.col("count") > 1)).then(
        1 - 1 / pl.col("count")
    )  # fmt: skip
    mine = rows.with_columns(share=pl.coalesce(factor, table)).drop_nulls("share")
    share_ns = pl.col("share") * pl.col("total_ns")
    mine = mine.with_columns(
        headroom_ns=share_ns, headroom_low_ns=share_ns, headroom_high_ns=share_ns
    )
    text = pl.format("{} / {}", (pl.col("count") * pl.col("share")).round(1),
                     pl.col("count").round(1))  # fmt: skip
    return evidence(mine, "recompute", "kernels", text)


def modes(
    con: duckdb.DuckDBPyConnection, run: str, capture: str
) -> tuple[pl.DataFrame, str | None]:
    """Variables of the environment that trade speed for determinism or debugging, and why nothing
    is told of what they cost, or of any; None: none of those that were recorded does."""
    query = "select environment, count(*) from ranks where run = ? and capture = ? group by all"
    values: dict[str, int] = {}
    why: str | None = Message("no environment variables were recorded")
    recorded = frame(con, query, [run, capture]).drop_nulls("environment")
    if recorded.height:
        why = Message("environment variables were recorded, but all of them are empty")
    for text, ranks in recorded.iter_rows():
        settings = json.loads(text)
        why = None if settings else why
        for name, value in _slow_modes(settings.items()):
            values[f"{name}={value}"] = values.get(f"{name}={value}", 0) + ranks
    nothing = dict.fromkeys(EVIDENCE) | {"run": run, "capture": capture, "cause": "mode"}
    rows = [nothing | {"evidence": text, "saved": []} for text in sorted(values)]
    if rows:
        why = Message("what a mode costs is not recorded: run some steps without it")
    return pl.DataFrame(rows, schema=EVIDENCE), why


def _slow_modes(variables: Iterable[tuple[str, object]]) -> Iterable[tuple[str, str]]:
    for name, value in variables:
        text = str(value).strip()
        if name in _MODES and text and text.lower() not in _MODES[name]:
            yield name, text


def core_count(con: duckdb.DuckDBPyConnection, run: str, capture: str) -> int | None:
    """AI cores of the capture's chip; None: not known."""
    core_counts = {one.cores for (a, b, _), one in peaks(con).items() if (a, b) == (run, capture)}
    counts = [one for one in core_counts if one]
    return max(counts) if counts and np.ptp(counts) == 0 else None
