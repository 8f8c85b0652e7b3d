"""Why a pipeline waits: its bubble, taken apart by what the order would cost without each cause.

The order that ran is executed again and again, each time with one more of what was measured:

    equal passes            --> schedule      what it costs with ideal equal stages
    + means of each stage   --> imbalance     layers, embedding, head, ... are not equal
    + means of each rank    --> slow rank
    + times of each pass    --> variation     micro-batches are not equal
    + lags of transfers     --> transfers
    + gaps between passes   --> host
    as it was measured      --> other
    the job's whole window  --> late start, late end
"""

from __future__ import annotations

import numpy as np
import polars as pl

from npuscope.errors import CannotAnswer
from npuscope.messages import Message

from .execution import ORDER, Precedence, Times
from .measurement import MeasuredPasses, measure_passes
from .passes import Pipeline

CAUSES = (
    "schedule", "imbalance", "slow rank", "variation", "transfers", "host", "other", "late start",
    "late end",
)  # fmt: skip


def rank_bubbles(pipeline: Pipeline) -> pl.DataFrame:
    """Step, rank, stage, window_ns (from the first start of any rank of the step to the last end),
    bubble_ns (of it, no pass of the rank ran), and a column for each of CAUSES: these add up to
    bubble_ns. Raises CannotAnswer where no order was recognised, or passes of stages are missing.
    """
    order = pipeline.schedule.order
    if order is None:
        raise CannotAnswer(
            Message("no schedule was recognised, so its bubbles have no causes to tell apart")
        )
    job = measure_passes(pipeline.passes, order)
    shares = step_pauses(pipeline, job)
    devices = _devices(job.graph)
    parts = {
        cause: np.stack([pauses[devices == at].sum(axis=0) for at in range(job.devices)])
        for cause, pauses in shares.items()
    }
    work = np.zeros_like(parts["other"])
    np.add.at(work, devices[: len(job.graph.entries)], job.ends_ns - job.starts_ns)
    bubbles: Times = np.sum([*parts.values()], axis=0)
    rows = {
        "step": [step for step in job.steps for _ in range(job.devices)],
        "rank": [rank for ranks in job.ranks for rank in ranks],
        "stage": [at for _ in job.steps for at in range(job.devices)],
        "window_ns": _column(bubbles + work),
        "bubble_ns": _column(bubbles),
    }
    rows |= {cause: _column(part) for cause, part in parts.items()}
    schema = {"step": pl.Int64, "rank": pl.Int32, "stage": pl.Int32}
    return pl.DataFrame(rows, schema_overrides=schema).sort("step", "rank")


def step_pauses(pipeline: Pipeline, job: MeasuredPasses) -> dict[str, Times]:
    """What each of CAUSES makes of each pause x column of a pipeline that ran: pauses before
    entries, then behind the last one of each device. Whole ns, some negative; they add up to the
    pauses, in a window from the first start of any rank of the step to the last end."""
    graph = job.graph
    shares = order_pauses(job, graph, job.ends_ns - job.starts_ns)
    executed: Times = np.sum([*shares.values()], axis=0)
    starts, ends = _windows(pipeline, job)
    firsts, lasts = _edges(job, starts, ends)
    none = np.zeros_like(executed)
    leading, trailing = _ends(graph)
    late_start, late_end = none.copy(), none.copy()
    late_start[leading] = firsts
    late_end[trailing] = lasts
    other = _pauses(graph, job.starts_ns, job.ends_ns - job.starts_ns) - executed
    return {**shares, "other": other, "late start": late_start, "late end": late_end}


def order_pauses(job: MeasuredPasses, graph: Precedence, own: Times) -> dict[str, Times]:
    """The same of an order whose entries take `own`, executed: all causes but `other` and those of
    the window."""
    kinds = _numbers([tuple(one.kind for one in entry) for _, entry in graph.entries])
    places = _numbers([(device, *((one.kind, one.chunk) for one in entry))
                       for device, entry in graph.entries])  # fmt: skip
    of_rank = np.stack([_means(own[:, [at]], places) for at in range(own.shape[1])], axis=1)
    everywhere = np.ones((1, own.shape[1]))
    gaps = np.rint(job.entry_gaps(graph))
    lags = np.rint(job.link_lags(graph))
    runs = [
        (_means(own, kinds)[:, None] * everywhere, None, None),
        (_means(own, places)[:, None] * everywhere, None, None),
        (of_rank, None, None),
        (own, None, None),
        (own, None, lags),
        (own, gaps, lags),
    ]
    before: Times | None = None
    shares = {}
    for cause, run in zip(CAUSES, runs, strict=False):
        after = _pauses(graph, graph.starts(*run), run[0])
        shares[cause] = after if before is None else after - before
        before = after
    return shares


def _devices(graph: Precedence) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Of pauses."""
    before = [device for device, _ in graph.entries]
    return np.array([*before, *range(len(graph.schedule.orders))])


def _ends(graph: Precedence) -> tuple[list[int], list[int]]:
    """Which pauses come before all passes of a device, and which behind them."""
    devices = [device for device, _ in graph.entries]
    count = len(graph.schedule.orders)
    return [devices.index(at) for at in range(count)], [*range(len(devices), len(devices) + count)]


def _pauses(graph: Precedence, starts: Times, durations: Times) -> Times:
    """Pauses x columns, from the first start of a device (0) to the last end."""
    ends = starts + durations
    length = ends.max(axis=0)
    before = np.zeros_like(starts)
    is_next = graph.link == ORDER
    before[graph.target[is_next]] = ends[graph.source[is_next]]
    devices = _devices(graph)[: len(starts)]
    last = np.zeros((len(graph.schedule.orders), starts.shape[1]))
    np.maximum.at(last, devices, ends)
    pauses: Times = np.concatenate([starts - before, length - last])
    return pauses


def _column(values: Times) -> list[int]:
    """By column, then by device, whole ns."""
    return np.rint(values).astype(np.int64).T.ravel().tolist()


def _numbers(keys: list[tuple[object, ...]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The same number for equal keys."""
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _means(times: Times, of: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Times:
    """Of each entry the mean over those of its number, over all columns; whole ns."""
    sums = np.bincount(of, weights=times.sum(axis=1))
    means: Times = np.rint(sums / (np.bincount(of) * times.shape[1]))[of]
    return means


def _windows(pipeline: Pipeline, job: MeasuredPasses) -> tuple[Times, Times]:
    """First start and last end of each column, since `ops.zero_ns`."""
    zero_ns = pipeline.ops.zero_ns
    spans = pipeline.passes.group_by("step", "rank").agg(
        start=pl.col("start_ns").min() - zero_ns, end=pl.col("end_ns").max() - zero_ns
    )
    span_of = {(step, rank): (start, end) for step, rank, start, end in spans.iter_rows()}
    its = [[span_of[step, rank] for rank in ranks]
           for step, ranks in zip(job.steps, job.ranks, strict=True)]  # fmt: skip
    starts = np.array([min(one[0] for one in column) for column in its], np.float64)
    ends = np.array([max(one[1] for one in column) for column in its], np.float64)
    return starts, ends


def _edges(job: MeasuredPasses, starts: Times, ends: Times) -> tuple[Times, Times]:
    """How long a column waits before its first pass and after its last for others of the step."""
    steps = _numbers([(step,) for step in job.steps])
    first = np.full(int(steps.max()) + 1, np.inf)
    last = np.full(int(steps.max()) + 1, -np.inf)
    np.minimum.at(first, steps, starts)
    np.maximum.at(last, steps, ends)
    return starts - first[steps], last[steps] - ends


# metric: pipeline_bubbles
# Why does each stage of the pipeline wait?
#
# A bubble is the time of a step in which no pass of a rank runs: a transfer behind a pass is none.
# The order that ran is executed with equal passes, then with the means of each stage, of each rank,
# the times of each pass, lags of transfers, gaps between passes; what the bubble changes by is its
# cause's, and may be negative. What remains of the measured bubble is other; a pipeline that starts
# after or ends before others of the job starts late or ends early. Means over ranks and steps.
#
# title: Bubbles of the pipeline
# meaning: What the bubble of each pipeline stage is made of; causes add up to it.
# table: pipeline_bubbles
# gauge: npuscope_pipeline_bubble_seconds{stage, cause} = bubble_ns: Bubble of a pipeline stage by
#     cause.
#
#   run           varchar  run of the training job
#   capture       varchar  ranks profiled at the same time
#   stage         integer  pipeline stage
#   cause         varchar  schedule, imbalance, slow rank, variation, transfers, host, other, late
#     start, late end; all: their sum
#   bubble_ns     bigint   bubble that it makes, per rank and step
#   bubble_ratio  double   over the step's window, from the first start of any rank to the last end
def pipeline_bubbles(pipeline: Pipeline) -> pl.DataFrame:
    """Rows of the metric. Raises CannotAnswer as `rank_bubbles`."""
    sums = rank_bubbles(pipeline).group_by("stage").agg(
        pl.col("window_ns", "bubble_ns", *CAUSES).sum(), count=pl.len().cast(pl.Int64)
    ).sort("stage")  # fmt: skip
    named = [cause for cause in CAUSES if cause != "other"]
    whole = sums.with_columns(pl.col("bubble_ns", *named) // pl.col("count"))
    # Floors leave a remainder: it is of the part that is a remainder itself.
    whole = whole.with_columns(other=pl.col("bubble_ns") - pl.sum_horizontal(named))
    return (
        whole.rename({"bubble_ns": "all"})
        .unpivot([*CAUSES, "all"], index=["stage", "window_ns", "count"], variable_name="cause",
                 value_name="bubble_ns")
        .sort("stage", pl.col("cause").cast(pl.Enum([*CAUSES, "all"])))
        .select(
            pl.lit(pipeline.run).alias("run"), pl.lit(pipeline.capture).alias("capture"), "stage",
            "cause", "bubble_ns",
            bubble_ratio=pl.col("bubble_ns") * pl.col("count") / pl.col("window_ns"),
        )
    )  # fmt: skip
