"""Tokens that each rank's experts computed, without any hook: from kernels and all-to-alls.

    grouped matmuls   rows of their first tensor                  see `step_load`
    all-to-alls       bytes over bytes of a token: of each pair, one moves what the rank's own
                      tokens are sent as (always the same), the other what its experts got

Both count a rank (a device of the expert-parallel group), not its single experts.

The grouped matmuls of a rank's step, in launch order: which layer's tokens each computes.

One micro-batch of a gated expert layer, h the hidden size and f that of the experts, M its tokens:

    forward    (M x h)(h x 2f)   (M x f)(f x h)            layers 0, 1, ..., L-1
    backward   (M x h)(h x f)    (M x 2f)(2f x h)          layers L-1, ..., 1, 0

The first call of a step is forward, so the forward calls of the first matrix are those of its
sizes, and the gradients of its input those of its sizes exchanged: one for each layer and
micro-batch, however often the forward was recomputed. Whatever L is, every micro-batch goes back in
the reverse of the order in which it came: where one number of layers has that, it is certain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, Literal

import duckdb
import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.collector.readers.expert_load.load_frames import few_numbers
from npuscope.errors import TraceNotFound
from npuscope.messages import Message, join

from ...flops.kernels.shapes import Tensor, tensors
from ...scope import ALL, Scope
from ...views import frame, open_views
from .load import ExpertTables, with_trace
from .load_notes import trace_notes

SCHEMA: dict[str, type[pl.DataType]] = {
    "run": pl.String, "capture": pl.String, "rank": pl.Int32, "step": pl.Int64, "layer": pl.Int32,
    "tokens": pl.Int64, "basis": pl.String,
}  # fmt: skip
Place = tuple[str, str, int]

# Of a rank that was read with --steps, some kernels of neighbouring steps are there, too.
_KEPT_STEPS = """
with _kept_steps as (
    select run, capture, rank, any_value(kept_steps) as kept_steps from ranks group by all
)"""
_IS_KEPT = "(kept_steps is null or list_contains(kept_steps, step))"
_MATMULS = f"""
{_KEPT_STEPS}
select run, capture, rank, step, input_shapes, output_shapes
from kernels left join _kept_steps using (run, capture, rank)
{{where}} {{so}} {_IS_KEPT} and is_compute and lower(type) like '%groupedmatmul%'
    and lower(type) not like '%alltoall%' -- its rows are those before the exchange
order by run, capture, rank, step, start_ns"""
_EXCHANGES = f"""
{_KEPT_STEPS}
select o.run, o.capture, o.rank, o.step, o.size_bytes
from comm_ops o join groups g using (run, capture, rank, group_hash)
left join _kept_steps using (run, capture, rank)
where o.op_type in ('allToAll', 'allToAllV') and g.parallel_kind in ('ep', 'tp_ep', 'mp_ep')
    and {_IS_KEPT} {{where}}
order by o.run, o.capture, o.rank, o.step, o.start_ns"""
_PLACES = "select run, capture, rank, pp_rank, pp_size from ranks"
# Where stages reduce gradients with each other, each holds layers of two copies of the model.
_TWO_COPIES = """
select distinct run, capture
from groups join ranks using (run, capture, rank)
where parallel_kind in ('dp', 'dp_cp', 'dp_ep')
group by run, capture, group_hash, global_ranks
having count(distinct pp_rank) > 1"""
# So many sizes have no common divisor but a token's bytes.
_SIZES_AT_LEAST = 8
# More calls than this take seconds to be told apart into layers.
_CALLS_AT_MOST = 200_000


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Tokens that a rank's experts computed in a step, each once, whatever was recomputed.

    rows: run, capture, rank, step, layer, tokens, basis, in this order. `layer` counts MoE layers
    from 0, through the pipeline's stages; NULL where it is not certain which layer a kernel is of,
    and then `tokens` are those of all the rank's layers. `basis`: grouped_matmul or all_to_all.
    Ranks and steps of which nothing is certain have no row. `notes`: what was recognised or is not
    certain.
    """

    rows: pl.DataFrame
    notes: tuple[str, ...] = ()


def trace_load(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> DeviceLoad:
    """Tokens of devices as their kernels tell, with notes."""
    notes: list[str] = []
    calls = _calls(con, scope)
    loads: dict[Place, dict[int | None, _StepLoad]] = {}
    unsure: set[int] = set()
    for (*place, step), part in calls.group_by(
        ["run", "capture", "rank", "step"], maintain_order=True
    ):
        load = step_load(part["tokens"].to_list(), part.select("inner", "columns").rows())
        if load is None:
            unsure.add(place[2])
        else:
            loads.setdefault((place[0], place[1], place[2]), {})[step] = load
    if unsure:
        notes.append(
            Message(
                "ranks {ranks}: grouped matmuls of forward and backward have the same shapes and"
                " cannot be separated: not counted",
                ranks=few_numbers(sorted(unsure)),
            )
        )
    notes += _recomputation(loads)
    rows = _rows(loads, _layers(con, loads), notes)
    rows += _rows_by_exchange(con, scope, {(*place, s) for place in loads for s in loads[place]},
                       notes)  # fmt: skip
    ordered = pl.DataFrame(rows, schema=SCHEMA, orient="row").sort(
        "run", "capture", "rank", "step", "layer", nulls_last=True
    )
    return DeviceLoad(ordered, tuple(notes))


def device_loads(
    con: duckdb.DuckDBPyConnection, tables: ExpertTables, scope: Scope
) -> tuple[ExpertTables, list[str]]:
    """Tables whose load is of devices, by kernels and all-to-alls, and notes. Raises
    TraceNotFound where these do not tell."""
    loads = trace_load(con, scope)
    held = with_trace(tables, loads.rows)
    notes = trace_notes(loads.rows, loads.notes, held)
    if held.load.is_empty():
        raise TraceNotFound(join((Message("there is no expert load here"), *notes), "; "))
    return held, notes


def is_short_enough(
    con: duckdb.DuckDBPyConnection, *, run: str, capture: str, step: int | None = None
) -> bool:
    """Whether there are grouped matmuls with shapes, and not so many that telling them apart into
    layers takes seconds."""
    open_views(con, ["shapes"])
    clause, values = Scope(run, capture, step=step).where()
    [(calls,)] = con.execute(
        f"select sum(count) from shape_summary {clause} and type ilike '%groupedmatmul%'", values
    ).fetchall()
    return bool(calls) and int(calls) <= _CALLS_AT_MOST


def _calls(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """Grouped matmuls in launch order with tokens, inner and columns; those of weights left out."""
    clause, values = scope.where()
    query = _MATMULS.format(where=clause, so="and" if clause else "where")
    rows = frame(con, query, values)
    shapes = rows.select("input_shapes", "output_shapes").unique()
    calls = [call_of(inputs, outputs) or Call(-1, 0, 0) for inputs, outputs in shapes.rows()]
    shapes = shapes.with_columns(
        pl.Series("tokens", [one.tokens for one in calls], pl.Int64),
        pl.Series("inner", [one.inner for one in calls], pl.Int64),
        pl.Series("columns", [one.columns for one in calls], pl.Int64),
    )
    pairs = rows.join(
        shapes, on=["input_shapes", "output_shapes"], how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip
    return pairs.filter(pl.col("tokens") >= 0)


def _recomputation(loads: dict[Place, dict[int | None, _StepLoad]]) -> list[str]:
    notes: list[str] = []
    repeated: dict[int, set[int]] = {}
    partly: set[int] = set()
    for place, steps in loads.items():
        for load in steps.values():
            if load.passes is None:
                partly.add(place[2])
            elif load.passes > 1 and load.basis == "backward":
                repeated.setdefault(load.passes, set()).add(place[2])
    for passes, ranks in sorted(repeated.items()):
        notes.append(
            Message(
                "ranks {ranks}: forward grouped matmuls have {passes} times the tokens of the"
                " backward ones: recomputation, which is not counted (a count of all of them would"
                " be {passes} x tokens x top-k)",
                ranks=few_numbers(sorted(ranks)),
                passes=passes,
            )
        )
    if partly:
        notes.append(
            Message(
                "ranks {ranks}: the token ratio of forward to backward grouped matmuls is not a"
                " whole number (partial recomputation, or an incomplete step): the backward ones"
                " are counted",
                ranks=few_numbers(sorted(partly)),
            )
        )
    return notes


def _layers(
    con: duckdb.DuckDBPyConnection, loads: dict[Place, dict[int | None, _StepLoad]]
) -> dict[Place, tuple[int, int]]:
    """The number of a rank's first layer, and how many it has, where both are certain.

    All steps of all ranks of a stage have as many layers: what is possible in every one of them.
    The stages before must be known too; a rank whose stage is not known must be the only one. Of
    two copies of the model (DualPipe) none are: a rank has layers from both ends.
    """
    doubled = set(frame(con, _TWO_COPIES).rows())
    stages: dict[Place, tuple[int | None, int | None]] = {
        (run, capture, rank): (None if (run, capture) in doubled else 0 if size == 1 else at, size)
        for run, capture, rank, at, size in frame(con, _PLACES).rows()
    }
    alone = Counter((run, capture) for run, capture, _ in stages)
    counts: dict[tuple[str, str, int], set[int]] = {}
    for place, steps in loads.items():
        stage = stages.get(place, (None, None))[0]
        if stage is None and alone[place[:2]] <= 1:
            stage = 0
            stages[place] = (0, None)
        for load in steps.values() if stage is not None else ():
            if load.layer_counts and stage is not None:
                key = (place[0], place[1], stage)
                counts[key] = counts.get(key, set(load.layer_counts)) & set(load.layer_counts)
    layers: dict[Place, tuple[int, int]] = {}
    for place in loads:
        stage = stages.get(place, (None, None))[0]
        if stage is None:
            continue
        sets = [counts.get((place[0], place[1], one), set()) for one in range(stage + 1)]
        if all(len(one) == 1 for one in sets):
            *before, own = [next(iter(one)) for one in sets]
            layers[place] = (sum(before), own)
    return layers


def _rows(
    loads: dict[Place, dict[int | None, _StepLoad]],
    layers: dict[Place, tuple[int, int]],
    notes: list[str],
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    unnumbered: set[int] = set()
    unnumbered_steps: dict[int, set[int]] = {}  # of ranks whose other steps tell layers
    for place, steps in loads.items():
        for step, load in steps.items():
            first, count = layers.get(place, (0, 0))
            by_layer = load.by_layer(count)
            if by_layer is None:
                if count and step is not None:
                    unnumbered_steps.setdefault(place[2], set()).add(step)
                else:
                    unnumbered.add(place[2])
                rows.append((*place, step, None, load.tokens, "grouped_matmul"))
                continue
            rows += [
                (*place, step, first + number, tokens, "grouped_matmul")
                for number, tokens in enumerate(by_layer)
            ]
    if unnumbered:
        notes.append(
            Message(
                "ranks {ranks}: the layer of each grouped matmul is uncertain: tokens are summed"
                " over all layers of the rank",
                ranks=few_numbers(sorted(unnumbered)),
            )
        )
    if unnumbered_steps:
        notes.append(
            Message(
                "ranks {ranks}: the layer of each grouped matmul is uncertain in steps {steps}, as"
                " of an evaluation: figures of layers are of the other steps",
                ranks=few_numbers(sorted(unnumbered_steps)),
                steps=few_numbers(sorted(set().union(*unnumbered_steps.values()))),
            )
        )
    return rows


def _rows_by_exchange(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    facts: Iterable[tuple[Any, ...]],
    notes: list[str],
) -> list[tuple[Any, ...]]:
    """Rows by all-to-alls of ranks and steps that no grouped matmul tells."""
    parts_of_scope = scope.values()
    where = " ".join(f"and o.{name} = ?" for name in parts_of_scope)
    moved = frame(con, _EXCHANGES.format(where=where), list(parts_of_scope.values()))
    visited = set(facts)
    parts = {
        key: part["size_bytes"]
        for key, part in moved.group_by(["run", "capture", "rank", "step"], maintain_order=True)
        if key not in visited
    }
    rows: list[tuple[Any, ...]] = []
    numbers = {key: _differing_sizes(sizes) for key, sizes in parts.items()}
    sizes_bytes = [np.asarray(repeats) for repeats in numbers.values() if repeats is not None]
    token_bytes = _token_bytes(sizes_bytes)
    for key, repeats in numbers.items():
        passes = None if repeats is None else _repetition(repeats)
        if repeats is None or passes is None or token_bytes is None:
            continue
        rows.append((*key, None, int(repeats.sum()) // passes // token_bytes, "all_to_all"))
    if rows:
        ranks = sorted({row[2] for row in rows})
        notes.append(
            Message(
                "ranks {ranks}: tokens from bytes of all-to-alls, {bytes} bytes a token (the"
                " greatest common divisor of their sizes), assuming that the sizes include tokens"
                " that stay on the rank",
                ranks=few_numbers(ranks),
                bytes=token_bytes,
            )
        )
    return rows


def _differing_sizes(sizes: pl.Series) -> Numbers | None:
    """Of pairs of all-to-alls the sizes that differ, where the other one of each pair never does;
    None where neither is so."""
    if sizes.null_count() or len(sizes) % 2 or not len(sizes):
        return None
    pairs: Numbers = sizes.to_numpy().astype(np.int64).reshape(-1, 2)
    distinct = [len(np.unique(pairs[:, at])) for at in (0, 1)]
    if min(distinct) != 1 or max(distinct) == 1:
        return None
    which: Numbers = pairs[:, distinct.index(max(distinct))]
    return which


def _token_bytes(sizes_bytes: list[Numbers]) -> int | None:
    if not sizes_bytes:
        return None
    distinct = np.unique(np.concatenate(sizes_bytes))
    if len(distinct) < _SIZES_AT_LEAST:
        return None
    divisor = gcd(*(int(size) for size in distinct))
    return divisor if divisor > 1 else None


Numbers = npt.NDArray[np.int64]
# As many different counts rule out that their repetition is chance.
_DISTINCT_AT_LEAST = 3


@dataclass(frozen=True, slots=True)
class Call:
    """Rows (tokens), inner size and columns of a grouped matmul that is no weights' gradient."""

    tokens: int
    inner: int
    columns: int


@dataclass(frozen=True, slots=True)
class _StepLoad:
    """Tokens that a rank's experts computed in a step, every layer and micro-batch once.

    `passes`: how often the forward is there for each of its backwards; None where that is no whole
    number. `basis`: whether backwards tell, repeated counts, or neither. `layer_counts`: how many
    layers the rank may have; `backwards`: tokens of the backward calls in their order.
    """

    tokens: int
    passes: int | None
    basis: Literal["backward", "repetition", "forward"]
    layer_counts: tuple[int, ...] = ()
    backwards: tuple[int, ...] = ()

    def by_layer(self, layers: int) -> tuple[int, ...] | None:
        """Tokens of each of the rank's so many layers, in the order in which they are first seen;
        None where it cannot have so many."""
        if layers not in self.layer_counts:
            return None
        backward = np.asarray(self.backwards, np.int64).reshape(-1, layers)
        return tuple(int(tokens) for tokens in backward[:, ::-1].sum(axis=0))


def call_of(input_shapes: str | None, output_shapes: str | None) -> Call | None:
    """What the shapes of a grouped matmul say; None where they do not, and for the gradients of
    weights, whose result has a matrix for each expert.

    Its tokens are the rows of its first tensors: one, or one for each expert.
    """
    try:
        inputs, outputs = tensors(input_shapes), tensors(output_shapes)
    except ValueError:
        return None
    results = [one for one in outputs if one is not None]
    if any(len(one.shape) != 2 for one in results):
        return None
    entered = [one for one in inputs if one is not None]
    is_weight = [len(one.shape) > 2 for one in entered]
    if True in is_weight:
        leading = entered[: is_weight.index(True)]
    else:
        leading = entered[: len(results)]
    if not leading or len(entered) == len(leading) or any(len(one.shape) != 2 for one in leading):
        return None
    if len(leading) != max(1, len(results)):
        return None
    inner = leading[0].shape[1]
    # By the weights: an activation that is fused into the kernel halves the result.
    columns = _other(entered[len(leading)], inner) or (results[0].shape[1] if results else None)
    if columns is None:
        return None
    return Call(sum(one.shape[0] for one in leading), inner, columns)


def step_load(tokens: Sequence[int], sizes: Sequence[tuple[int, int]]) -> _StepLoad | None:
    """The load of a step from its calls in launch order: their tokens, and (inner, columns).

    None where forward and backward cannot be told apart.
    """
    counts = np.asarray(tokens, np.int64)
    kinds = np.asarray(sizes, np.int64).reshape(-1, 2)
    if not len(counts):
        return None
    inner, columns = kinds[0]
    is_forward = (kinds == kinds[0]).all(axis=1)
    second = kinds[1:][~is_forward[1:]][:1]
    returning = np.asarray((columns, inner))
    is_backward = (kinds == returning).all(axis=1)
    forward, backward = counts[is_forward], counts[is_backward]
    is_told_apart = inner != columns and len(second) > 0 and bool((second[0] != returning).any())
    if is_told_apart and len(backward):
        passes, rest = divmod(len(forward), len(backward))
        is_whole = rest == 0 and int(forward.sum()) == passes * int(backward.sum())
        return _StepLoad(
            int(backward.sum()),
            passes if is_whole else None,
            "backward",
            _layer_counts(forward, backward),
            tuple(int(tokens) for tokens in backward),
        )
    repeated = _repetition(forward)
    if is_told_apart and repeated in (None, 1):
        return _StepLoad(int(forward.sum()), 1, "forward")
    if repeated is None:
        return None
    return _StepLoad(int(forward.sum()) // repeated, repeated, "repetition")


def _repetition(counts: Numbers) -> int | None:
    """How often each count is there: the greatest number that divides all their occurrences. None
    where there are too few different ones to tell."""
    _, times = np.unique(counts, return_counts=True)
    if len(times) < _DISTINCT_AT_LEAST:
        return None
    return gcd(*(int(n) for n in times))


def _layer_counts(forward: Numbers, backward: Numbers) -> tuple[int, ...]:
    return tuple(
        count
        for count in range(1, len(backward) + 1)
        if len(backward) % count == 0 and _goes_back(forward, backward, count)
    )


def _goes_back(forward: Numbers, backward: Numbers, layers: int) -> bool:
    """Whether micro-batches of so many layers go back as they came: all of them, or the first,
    where the forward calls in between are repeated ones."""
    reverse = backward.reshape(-1, layers)[:, ::-1]
    if len(forward) == len(backward):
        return bool((forward.reshape(-1, layers) == reverse).all())
    return len(forward) > len(backward) and bool((forward[:layers] == reverse[0]).all())


def _other(weights: Tensor, inner: int) -> int | None:
    """The size of a weight matrix that is not its inner one, transposed or not."""
    rows, columns = weights.shape[-2:] if len(weights.shape) in (2, 3) else (0, 0)
    if inner not in (rows, columns):
        return None
    return columns if rows == inner else rows
