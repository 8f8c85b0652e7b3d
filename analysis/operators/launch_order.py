"""What the order of launches tells: chains that could be one kernel, runs of small kernels.

One step of one rank stands for its pipeline stage, as ranks of a stage run the same program:

kernels of a step by stream and start --> tokens: type and tensors, bytes from them
    --> runs of one type that take little longer than a kernel's start
    --> sequences that a fused operator of torch_npu replaces (fused_operators.json)
    --> maximal chains of element-wise kernels, each reading what the one before wrote
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from ..flops.kernels.count import SHAPE
from ..flops.kernels.shapes import Tensor, tensors_of
from ..scope import Scope
from ..views import frame
from .classes import moved_bytes
from .pace import Pace

_MOST_STAGES = 4  # whose step is looked at
_LONGEST_CHAIN = 16
_SHORTEST_RUN = 4
_ENOUGH_PLACES = 3  # ranks and steps, for a median that one of them does not move
_HICCUP_NS = 20_000  # of a pause beyond the usual one
_UNKNOWN = chr(0xF8FF)
_VERSION = re.compile(r"(V\d+)?D?$")
# Of an element of the result only the same elements of the inputs are needed.
POINTWISE = frozenset({
    "Abs", "Add", "AddN", "Adds", "Addcdiv", "Addcmul", "Axpy", "Clip", "ClipByValue", "Cos",
    "Div", "DivNoNan", "Equal", "Erf", "Exp", "Gelu", "GeluGrad", "Greater", "GreaterEqual",
    "Less", "LessEqual", "Log", "LogicalAnd", "LogicalNot", "LogicalOr", "MaskedFill", "Maximum",
    "Minimum", "Mul", "Muls", "Neg", "NotEqual", "Pow", "Pows", "RealDiv", "Reciprocal", "Relu",
    "ReluGrad", "Rsqrt", "Select", "Sigmoid", "SigmoidGrad", "Silu", "SiluGrad", "Sin", "Sqrt",
    "Square", "Sub", "Swish", "SwishGrad", "Tanh", "TanhGrad", "ForeachAddList",
    "ForeachAddScalar", "ForeachAddcdivScalar", "ForeachAddcmulScalar", "ForeachDivList",
    "ForeachMulList", "ForeachMulScalar", "ForeachSqrt",
})  # fmt: skip
_PLACES = """
    with _steps as (
        select s.run, s.capture, s.rank, s.step, s.computing_ns, coalesce(r.pp_rank, 0) as stage
        from step_summary as s join ranks as r using (run, capture, rank)
        where s.run = ? and s.capture = ? and computing_ns > 0
            and (?::bigint is null or s.step = ?) and (?::integer is null or s.rank = ?)
    ),
    _stages as (
        select *, count(distinct rank) over (partition by stage) / count(distinct rank) over ()
            as weight, min(rank) over (partition by stage) as first_rank
        from _steps
    ),
    _near as (
        select *, abs(computing_ns - median(computing_ns) over (partition by stage)) as off_ns
        from _stages where rank = first_rank
    )
    select stage, rank, step, weight from _near
    qualify row_number() over (partition by stage order by off_ns, step desc) = 1
    order by stage"""
_KERNELS = """
    select stream_id, start_ns, dur_ns, type, core, input_shapes, input_dtypes, input_formats,
        output_shapes, output_dtypes, output_formats, connection_id
    from kernels
    where run = ? and capture = ? and rank = ? and step is not distinct from ? and is_compute
        and dur_ns > 0 and start_ns is not null and type is not null
    order by stream_id, start_ns"""
_COMPILES = """
    with _calls as (  -- a call that launches several kernels has a row for each
        select distinct operator_name, api_thread_id, api_start_ns, api_end_ns
        from launches as l join kernels as k using (run, capture, rank, connection_id)
        where run = ? and capture = ? and rank = ? and k.step is not distinct from ?
            and l.api_name ilike '%compile%'
    )
    select operator_name, count(*) as count, sum(api_end_ns - api_start_ns)::double as host_ns
    from _calls
    group by all order by host_ns desc nulls last"""
_QUESTION = """
    select connection_id, any_value(operator_name) as asked_by from launches
    where run = ? and capture = ? and rank = ? and operator_name is not null
        and connection_id in (select unnest(?))
    group by connection_id"""


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of one rank. kernels: by stream and start, with token (type and tensors), base
    (type without its version) and idle_ns of its stream before it; tokens: what each is; weight:
    ranks of its stage among all."""

    run: str
    capture: str
    rank: int
    step: int | None
    weight: float
    kernels: pl.DataFrame
    tokens: Sequence[Token]


@dataclass(frozen=True, slots=True)
class Token:
    """A type with its tensors: bytes moved (None: unknown), of its largest result, tensors."""

    type: str
    moved_bytes: int | None
    largest_bytes: int
    inputs: frozenset[Tensor]
    outputs: tuple[Tensor, ...]
    input_shapes: str | None


def base_type(type_: str) -> str:
    """The type without its version: MatMulV3 and MatMulV2 are MatMul."""
    return _VERSION.sub("", type_)


@cache
def fused_operators() -> Mapping[str, list[dict[str, Any]]]:
    """Fused operators of torch_npu: `sequences` of types, and those for `repeated` kernels. With
    `kernels` null it is not documented how many then run: they are one where it is not said."""
    text = resources.files(__package__).joinpath("fused_operators.json").read_text("utf-8")
    by_kind: Mapping[str, list[dict[str, Any]]] = json.loads(text)
    return by_kind


def stages(con: duckdb.DuckDBPyConnection, scope: Scope) -> list[Stage]:
    """A middle step of the first rank of each pipeline stage of one capture, of four at most."""
    parameters: list[Any] = [
        scope.run,
        scope.capture,
        scope.step,
        scope.step,
        scope.rank,
        scope.rank,
    ]
    places = frame(con, _PLACES, parameters)
    if places.height > _MOST_STAGES:
        places = places.gather(np.linspace(0, places.height - 1, _MOST_STAGES).astype(int))
        places = places.with_columns(pl.col("weight") / pl.col("weight").sum())
    stages_here: list[Stage] = []
    for one in places.to_dicts():
        here: list[Any] = [scope.run, scope.capture, one["rank"], one["step"]]
        rows = frame(con, _KERNELS, here)
        if rows.is_empty():
            continue
        key = pl.concat_str([pl.col(name).fill_null("") for name in SHAPE], separator="|")
        rows = rows.with_columns(token=key.rank("dense").cast(pl.Int64) - 1).with_row_index("at")
        before = (pl.col("start_ns") + pl.col("dur_ns")).shift(1).over("stream_id")
        rows = rows.with_columns(idle_ns=(pl.col("start_ns") - before).clip(0).fill_null(0))
        distinct = rows.unique("token", maintain_order=True).sort("token")
        tokens = [_token(row) for row in distinct.iter_rows(named=True)]
        bases = pl.Series("base", [base_type(one.type) for one in tokens])
        rows = rows.with_columns(base=bases.gather(rows["token"]))
        stages_here.append(Stage(scope.run or "", scope.capture or "", one["rank"], one["step"],
                           one["weight"], rows, tokens))  # fmt: skip
    return stages_here


def as_mean(job_stages: Sequence[Stage], means: pl.DataFrame) -> list[Stage]:
    """Stages whose kernels take, type by type, as long altogether as those of a mean rank and step
    (rows of `mean_operators`): ranks may have more to do than others, as with experts. With
    usual_ns: as long as the same kernels usually take, where other ranks and steps tell; what a
    hiccup adds to a mean no change of the kernels gives back."""
    here = pl.concat(
        one.kernels.group_by("type").agg(pl.col("dur_ns").sum() * one.weight) for one in job_stages
    ).group_by("type").agg(pl.col("dur_ns").sum())  # fmt: skip
    factors = (
        here.join(means.group_by("type").agg(pl.col("total_ns").sum()), on="type")
        .select("type", factor=pl.col("total_ns") / pl.col("dur_ns"))
    )  # fmt: skip
    usual = (
        means.filter(pl.col("places") >= _ENOUGH_PLACES)
        .group_by(SHAPE)
        .agg(pl.col("usual_ns").median())
    )
    return [
        replace(
            one,
            kernels=one.kernels.join(factors, on="type", how="left", maintain_order="left")
            .join(usual, on=SHAPE, how="left", nulls_equal=True, maintain_order="left")
            .with_columns(pl.col("dur_ns") * pl.col("factor").fill_null(1.0))
            .with_columns(pl.col("usual_ns").fill_null(pl.col("dur_ns"))),
        )
        for one in job_stages
    ]


def _token(row: Mapping[str, Any]) -> Token:
    try:
        inputs, outputs = tensors_of(row)
    except ValueError:
        inputs, outputs = (), ()
    moved = moved_bytes(row["type"], inputs, outputs)
    # Kernels over lists of tensors record their results flat.
    is_list = row["type"].startswith("Foreach")
    read, results = (
        tuple(Tensor((one.element_count,) if is_list else one.shape, one.dtype)
              for one in some if one is not None)
        for some in (inputs, outputs)
    )  # fmt: skip
    return Token(
        row["type"],
        moved,
        max((one.size_bytes or 0 for one in results), default=0),
        frozenset(read),
        results,
        row["input_shapes"],
    )


# What a cause rests on: columns of the metric `operator_cause_rows`, of a mean rank and step; and
# `saved`: targets of a what-if with what their kernels (of these shapes) take and would take less
# (NULL: it is no matter of time).
EVIDENCE: dict[str, pl.DataType | type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "cause": pl.String, "type": pl.String,
    "input_shapes": pl.String, "dtype": pl.String, "count": pl.Float64, "total_ns": pl.Float64,
    "headroom_ns": pl.Float64, "headroom_low_ns": pl.Float64, "headroom_high_ns": pl.Float64,
    "basis": pl.String, "evidence": pl.String, "asked_by": pl.String, "replacement": pl.String,
    "condition": pl.String, "source": pl.String,
    "saved": pl.List(pl.Struct({
        "target": pl.String, "input_shapes": pl.String, "own_ns": pl.Float64,
        "saved_ns": pl.Float64,
    })),
}  # fmt: skip
_SHOWN_TYPES = " > "


def sequences(stage: Stage, vector: Pace) -> pl.DataFrame:
    """Rows of EVIDENCE of the causes small, replacement and fusion: each kernel is in one at most.

    A run of small kernels gives back the starts of all but one and the idle time between them;
    a chain the starts of all but one and the bytes of what passes between its kernels, written and
    read once each, at the pace of its own kernels. Low: those read alone at the highest rate of the
    capture; high: one kernel with what is left at that rate."""
    token = stage.kernels["token"].to_numpy()
    moved = np.array([one.moved_bytes or 0 for one in stage.tokens], dtype=np.float64)[token]
    took = Took(
        stage.kernels["dur_ns"].to_numpy().astype(np.float64),
        stage.kernels["usual_ns"].to_numpy().astype(np.float64), moved, _links(stage),
    )  # fmt: skip
    free = np.ones(len(token), dtype=bool)
    rows = _small_runs(stage, vector, free)
    rows += _replaceable(stage, vector, took, free)
    rows += _chains(stage, vector, took, free)
    return (
        pl.DataFrame(rows, schema=EVIDENCE, orient="row") if rows else pl.DataFrame(schema=EVIDENCE)
    )


@dataclass(frozen=True, slots=True)
class Took:
    """Of each kernel of a stage, in order: its time in a mean step and the usual one, the bytes it
    moves, and those that it passes on to the next (-1: none)."""

    dur_ns: npt.NDArray[np.float64]
    usual_ns: npt.NDArray[np.float64]
    traffic: npt.NDArray[np.float64]
    links: npt.NDArray[np.float64]


def _links(stage: Stage) -> npt.NDArray[np.float64]:
    """Bytes that each kernel writes and the next on its stream reads; -1 where there are none."""
    token, stream = stage.kernels["token"].to_numpy(), stage.kernels["stream_id"].to_numpy()
    pairs = np.stack([token[:-1], token[1:]], axis=1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    bytes_of = np.array(
        [_bytes_between(stage.tokens[one], stage.tokens[next_]) for one, next_ in distinct]
    )
    links = np.full(len(token), -1.0)
    if len(token) > 1:
        same = (stream[:-1] == stream[1:]) if stream.dtype != object else np.ones(len(which), bool)
        links[:-1] = np.where(same, bytes_of[which.ravel()], -1.0)
    return links


def _bytes_between(one: Token, other: Token) -> float:
    sizes = [tensor.size_bytes for tensor in one.outputs if tensor in other.inputs]
    return float(sum(size or 0 for size in sizes)) if sizes else -1.0


Row = tuple[object, ...]


def _small_runs(stage: Stage, vector: Pace, free: npt.NDArray[np.bool_]) -> list[Row]:
    """Runs of kernels of one type that take less than twice a kernel's start."""
    runs = (
        stage.kernels.select(
            "at", "base", "core", "stream_id", "dur_ns", "usual_ns", "idle_ns", "token"
        )
        .with_columns(run=pl.struct("base", "stream_id").rle_id())
        .filter(
            pl.len().over("run") >= _SHORTEST_RUN,
            pl.col("usual_ns").mean().over("run") < 2 * vector.start_ns,
            ~pl.col("core").is_in(["AI_CPU", "DSA_SQE"]).fill_null(False),
        )
        .with_columns(is_first=pl.int_range(pl.len()).over("run") == 0)
    )
    if runs.is_empty():
        return []
    free[runs["at"].to_numpy()] = False
    # A pause that is far beyond the usual one is a hiccup of the host: it comes anywhere.
    usual = pl.col("idle_ns").filter(~pl.col("is_first")).median().over("base")
    is_hiccup = pl.col("idle_ns") > pl.max_horizontal(2 * usual, usual + _HICCUP_NS)
    runs = runs.with_columns(idle_ns=pl.when(is_hiccup).then(usual).otherwise("idle_ns"))
    idle = pl.col("idle_ns").filter(~pl.col("is_first")).sum()
    rows: list[Row] = []
    grouped = runs.group_by("base", maintain_order=True).agg(
        pl.len().alias("count"),
        pl.col("run").n_unique().alias("runs"),
        pl.col("dur_ns", "usual_ns").sum(),
        idle.alias("idle"),
        pl.col("token").mode().min(),  # of equally common ones the first of the step
    )
    for one in grouped.to_dicts():
        token = stage.tokens[one["token"]]
        more = one["count"] - one["runs"]
        mean_ns = one["usual_ns"] / one["count"]
        entry = next((row for row in fused_operators()["repeated"] if one["base"] in row["types"]),
                     {})  # fmt: skip
        start_ns = min(vector.start_ns, mean_ns)
        targets: Targets = {
            (f"kernel:{token.type}", token.input_shapes): (one["dur_ns"], more * start_ns),
            (f"fuse:{token.type}", None): None,
        }
        rows.append(_row(
            stage, "small", token, one["count"], one["dur_ns"],
            (more * start_ns + one["idle"], more * start_ns * vector.low, more * mean_ns
             + one["idle"]),
            f"{one['runs']} x {one['count'] / one['runs']:.1f} x {mean_ns / 1e3:.1f} us",
            entry, targets,
        ))  # fmt: skip
    return rows


def _replaceable(stage: Stage, vector: Pace, took: Took, free: npt.NDArray[np.bool_]) -> list[Row]:
    """Sequences of types that a fused operator replaces, at least half of them linked."""
    names = stage.kernels["base"].unique(maintain_order=True).to_list()
    letters = {name: chr(0xE000 + at) for at, name in enumerate(names)}
    program = "".join(letters[name] for name in stage.kernels["base"])
    rows: list[Row] = []
    for entry in fused_operators()["sequences"]:
        pattern = "".join(
            re.sub(r"[A-Za-z]\w*", lambda name: letters.get(name[0], _UNKNOWN), one)
            for one in entry["types"]
        )
        spans = np.array([one.span() for one in re.finditer(pattern, program)], dtype=np.int64)
        if not len(spans):
            continue
        is_linked = np.concatenate([[0], np.cumsum(took.links >= 0)])
        used_count = np.concatenate([[0], np.cumsum(~free)])
        begin, end = spans[:, 0], spans[:, 1]
        is_wanted = (2 * (is_linked[end - 1] - is_linked[begin]) >= end - 1 - begin) & (
            used_count[end] == used_count[begin]
        )
        rows += _group_sequences(stage, vector, spans[is_wanted], took, free, entry)
    return rows


def _chains(stage: Stage, vector: Pace, took: Took, free: npt.NDArray[np.bool_]) -> list[Row]:
    """Maximal chains of element-wise kernels that are in no other sequence."""
    base = stage.kernels["base"]
    may = base.is_in([*POINTWISE]).to_numpy() & free
    # A chain goes on from one kernel to the next where both may, and something passes between.
    goes_on = np.zeros(len(may), dtype=bool)
    goes_on[1:] = may[1:] & may[:-1] & (took.links[:-1] > 0)
    begin = np.flatnonzero(may & ~goes_on)
    if not len(begin):
        return []
    chain = np.cumsum(may & ~goes_on)
    counts = np.bincount(chain[may], minlength=len(begin) + 1)[1:]
    spans = np.stack([begin, begin + np.minimum(counts, _LONGEST_CHAIN)], axis=1)
    return _group_sequences(stage, vector, spans[counts > 1], took, free, None)


def _group_sequences(
    stage: Stage, vector: Pace, spans: npt.NDArray[np.int64], took: Took,
    free: npt.NDArray[np.bool_], entry: dict[str, Any] | None,
) -> list[Row]:  # fmt: skip
    """A row for each distinct sequence of types and tensors."""
    if not len(spans):
        return []
    token = stage.kernels["token"].to_numpy()
    begin, end = spans[:, 0], spans[:, 1]
    lengths = end - begin
    longest = int(lengths.max())
    at = begin[:, None] + np.arange(longest)[None, :]
    within = at < end[:, None]
    at = np.minimum(at, len(token) - 1)
    free[at[within]] = False
    words = np.where(within, token[at], -1)
    total = np.where(within, took.dur_ns[at], 0).sum(axis=1)
    usual = np.where(within, took.usual_ns[at], 0).sum(axis=1)
    bytes_ = np.where(within, took.traffic[at], 0).sum(axis=1)
    linked = np.where(within[:, 1:], np.maximum(took.links[at[:, :-1]], 0), 0).sum(axis=1)
    distinct, which = np.unique(words, axis=0, return_inverse=True)
    which = which.ravel()
    rows: list[Row] = []
    for number, word in enumerate(distinct):
        mine = which == number
        tokens = [stage.tokens[one] for one in word if one >= 0]
        if any(one.moved_bytes is None for one in tokens):
            continue
        count, dur = int(mine.sum()), float(usual[mine].sum())
        before, passing = float(bytes_[mine][0]), float(linked[mine][0])
        after = before - 2 * passing
        if entry is not None and entry["tensors"] is not None:
            after = min(entry["tensors"] * float(max(one.largest_bytes for one in tokens)), before)
        saved = before - after
        more = len(tokens) - 1
        start_ns = min(vector.start_ns, dur / count / len(tokens))
        own = max(dur / count - len(tokens) * start_ns, 0.0) / before if before else 0.0
        point = count * (more * start_ns + saved * own)
        is_one = entry is None or entry.get("kernels", 1) is not None
        low = count * saved / 2 / vector.best_rate if is_one else 0.0  # as many may run, on as much
        high = dur - count * after / vector.best_rate
        rows.append(_row(
            stage, "fusion" if entry is None else "replacement", tokens[0], count,
            float(total[mine].sum()),
            (point, min(low, point), min(max(high, point), dur)),
            f"{_SHOWN_TYPES.join(one.type for one in tokens)}: -{saved / 1e6:,.1f} MB", entry,
            _share_savings(tokens, took.dur_ns[at[mine]][:, : len(tokens)].sum(axis=0), point),
        ))  # fmt: skip
    return rows


# Targets of a what-if with the shapes of their kernels; what those take, and take less.
Targets = Mapping[tuple[str, str | None], tuple[float, float] | None]


def _share_savings(
    tokens: Sequence[Token], took_ns: npt.NDArray[np.float64], saved_ns: float
) -> Targets:
    """What each kernel of a sequence saves, in proportion to its time; no gap before all but the
    first."""
    targets = dict[tuple[str, str | None], tuple[float, float] | None]()
    share = saved_ns / max(float(took_ns.sum()), 1.0)
    for token, ns in zip(tokens, took_ns.tolist(), strict=True):
        key = (f"kernel:{token.type}", token.input_shapes)
        own_ns, own_saved_ns = targets.get(key) or (0.0, 0.0)
        targets[key] = (own_ns + ns, own_saved_ns + share * ns)
    first = tokens[0].type
    return targets | {(f"fuse:{one.type}", None): None for one in tokens[1:] if one.type != first}


def _row(
    stage: Stage, cause: str, token: Token, count: float, total_ns: float,
    headroom: tuple[float, float, float], evidence: str, entry: Mapping[str, Any] | None,
    targets: Targets,
) -> Row:  # fmt: skip
    point, low, high = (one * stage.weight for one in headroom)
    sizes = ";".join(",".join(map(str, one.shape)) for one in token.outputs)
    dtype = token.outputs[0].dtype if token.outputs else None
    entry = entry or {}
    return (
        stage.run, stage.capture, cause, token.type, sizes or None, dtype, count * stage.weight,
        total_ns * stage.weight, point, low, high, "capture", evidence, None,
        entry.get("replacement"), entry.get("condition"), entry.get("source"),
        [{"target": target, "input_shapes": shapes,
          "own_ns": None if ns is None else ns[0] * stage.weight,
          "saved_ns": None if ns is None else ns[1] * stage.weight}
         for (target, shapes), ns in targets.items()],
    )  # fmt: skip


def asked_by(con: duckdb.DuckDBPyConnection, stage: Stage, types: Sequence[str]) -> pl.DataFrame:
    """What launched the kernels of these types, and what ran after them on their stream, most
    often: type, input_shapes, asked_by (NULL: no launches), before."""
    following = pl.col("type").shift(-1).over("stream_id")
    rows = stage.kernels.with_columns(before=following).filter(pl.col("type").is_in(list(types)))
    here: list[Any] = [stage.run, stage.capture, stage.rank,
                       rows["connection_id"].drop_nulls().to_list()]  # fmt: skip
    data_settings = frame(con, _QUESTION, here)
    return (
        rows.join(data_settings, on="connection_id", how="left")
        .group_by("type", "input_shapes")
        .agg(pl.col("asked_by", "before").drop_nulls().mode().sort().first())
    )


def compilations(con: duckdb.DuckDBPyConnection, stage: Stage) -> pl.DataFrame:
    """Launches that compile first: operator_name, count, host_ns."""
    here: list[Any] = [stage.run, stage.capture, stage.rank, stage.step]
    return frame(con, _COMPILES, here)
