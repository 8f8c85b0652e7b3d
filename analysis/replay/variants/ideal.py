"""The ideal step: operations of one type alike on all ranks, in all steps; and what alone makes of
it what it is."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.errors import UsageError
from npuscope.messages import Message

from ...ranks.stages import rank_stages
from ..captures import CaptureJob, Other
from ..changes import Change
from ..operations import Operations, programs
from ..points import Flags, Integers

_MOST = 64  # contributions of one kind: each is a replay


def ideal(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`ideal`: kernels of one type and shape take their mean over ranks and steps (those whose
    first dimension differs between peers, such as tokens of experts, the mean of all such), and
    transfers of one kind, type and size their median."""
    if change.name or change.value:
        raise UsageError(Message("{change}: ideal stands alone", change=change.word))
    alike = _alike(job.ops)
    ops = job.ops
    durations = own.waits.transfer.copy()
    kernels = ops.is_kernel
    count = int(alike.max(initial=-1)) + 1
    its = alike[kernels]
    sums = np.bincount(its, weights=durations[:-1][kernels], minlength=count)
    means = sums / np.maximum(np.bincount(its, minlength=count), 1)
    durations[:-1][kernels] = np.round(means[its]).astype(np.int64)
    comm = np.flatnonzero(ops.is_communication & ~ops.exogenous)
    middle = pl.DataFrame({"alike": alike[comm], "ns": durations[comm]}).select(
        pl.col("ns").median().over("alike").round().cast(pl.Int64)
    )
    durations[comm] = middle.to_series().to_numpy()
    return own.with_durations(durations, durations)


def _alike(ops: Operations) -> Integers:
    """A number for each operation that those share which an ideal step makes alike."""
    is_same = np.ones(len(ops.rank), bool)
    place = np.zeros(len(ops.rank), np.int64)
    shapes = ops.names["shapes"].rank("dense").fill_null(0).to_numpy()
    for number, at in enumerate(programs(ops)):
        is_same[at] = (shapes[at] == shapes[at][:1]).all(axis=0)
        step = ops.step[at[0]]
        in_step = np.arange(at.shape[1]) - np.searchsorted(step, step)
        place[at] = number * len(ops.rank) + in_step
    shape = pl.col("shapes")
    text = (
        pl.when("is_comm")
        .then(pl.when(pl.col("type").str.to_lowercase().str.starts_with("alltoall").not_())
              .then(pl.col("size_bytes").cast(pl.String)))
        .when(shape.is_null()).then(pl.col("place").cast(pl.String))
        .when("is_same").then(shape)
        .otherwise(shape.str.replace_all(r"(^|;)\d+", "${1}?"))
    )  # fmt: skip
    rows = ops.names.with_columns(
        is_comm=ops.is_communication, is_same=is_same, place=place, kind=ops.kind,
        type=pl.Series(ops.types).gather(ops.type),
    )  # fmt: skip
    keys = rows.select(
        pl.struct("is_comm", "kind", "type", pl.when(~pl.col("is_comm")).then("name"), text=text)
        .rank("dense").cast(pl.Int64) - 1
    )  # fmt: skip
    numbers: Integers = keys.to_series().to_numpy()
    return numbers


def contributions(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, other: Other, usual: list[int]
) -> list[dict[str, str | float | None]]:
    """S_x of the ideal step `other`: the mean step where only x takes its own time, by the ideal
    one. x is an optype (kernels by type, communication by kind), a stage or a worker; of each the
    `_MOST` that differ most from the ideal."""
    ops = job.ops
    own, alike = job.waits.transfer, other.waits.transfer
    off = np.abs(own - alike)[:-1].astype(float)
    kinds = np.array([f"communication {name}" for name in ops.kinds] + ["communication"])
    optype = np.where(ops.is_communication, kinds[ops.kind], np.array(ops.types)[ops.type])
    stages = rank_stages(con, job.run, job.capture)
    stage = np.array([str(stages.get(rank, "")) for rank in ops.ranks])[ops.rank]
    worker = np.array([str(rank) for rank in ops.ranks])[ops.rank]
    whole = float(job.span(other.waits).lengths()[usual].mean())

    def slowdown(mask: Flags) -> float | None:
        mixed = np.where(np.append(mask, False), own, alike)
        length = job.span(replace(other.waits, transfer=mixed)).lengths()[usual].mean()
        return float(length) / whole if whole else None

    rows: list[dict[str, str | float | None]] = []
    of_each: tuple[tuple[str, NDArray[np.str_]], ...] = (
        ("optype", optype), ("stage", stage), ("worker", worker),
    )  # fmt: skip
    for kind, names in of_each:
        unique_names, at = np.unique(names, return_inverse=True)
        weight = np.bincount(at, weights=off)
        rows += [
            {"kind": kind, "name": str(unique_names[one]), "slowdown": slowdown(at == one)}
            for one in np.argsort(-weight, kind="stable")[:_MOST].tolist() if unique_names[one]
        ]  # fmt: skip
    return sorted(rows, key=lambda row: (str(row["kind"]), -float(row["slowdown"] or 0)))
