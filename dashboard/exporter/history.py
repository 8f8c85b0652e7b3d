"""The history of a store as OpenMetrics text with timestamps, for back-filling Prometheus.

    promtool tsdb create-blocks-from openmetrics FILE DATA

Every step of every capture is a sample of its metric, at the time the last rank ended the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars as pl

from npuscope.analysis.flops.mfu import ModelUse
from npuscope.analysis.means import within_steps
from npuscope.analysis.metric import Gauge
from npuscope.analysis.scope import ALL, JOB, Scope
from npuscope.analysis.views import frame, open_views
from npuscope.collector.wall_clock import EPOCH_FROM_NS
from npuscope.errors import TraceNotFound

from ..whole_files import write_whole
from .expert_gauges import expert_gauges
from .flops_gauges import flops_gauges
from .gauges import GAUGES, Frames, gauges_of, metric_gauges

_KEYS = ("run", "capture", "step")
_TIMES = f"""
select run, capture, step, max(coalesce(end_ns, window_end_ns)) // 1000000 as at_ms
from step_summary {{where}} group by all having at_ms >= {EPOCH_FROM_NS // 10**6}
"""
_LOG = """
select *, step as last_step from train_log where step is not null
order by run, capture, rank, step"""
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class History:
    """What was written; `steps_left_out`: steps whose time is not known."""

    sample_count: int
    steps_count: int
    steps_left_out: int


def write_history(
    con: duckdb.DuckDBPyConnection,
    out: Path,
    scope: Scope = ALL,
    *,
    use: ModelUse | None = None,
    given_peaks: Mapping[str, float] | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> History:
    """Write every step's samples to `out`, which appears whole or not at all.

    `use`, `given_peaks` and `tell` are those of `flops_gauges`. Raises TraceNotFound where no step
    has a time since the epoch.
    """
    open_views(con)
    clause, values = scope.where(JOB)
    times = within_steps(frame(con, _TIMES.format(where=clause), values))
    if times.is_empty():
        raise TraceNotFound("no step here has a wall-clock time: nothing can be back-filled")
    frames_here: Frames = {
        **metric_gauges(con, _KEYS),
        **flops_gauges(con, _KEYS, use=use, given_peaks=given_peaks, tell=tell),
        **expert_gauges(con, _KEYS),
        **_logged_steps(con),
    }
    frames = [
        frames_here[gauge.name].select(_KEYS) for gauge in GAUGES if gauge.name in frames_here
    ]
    frame_of = (
        pl.concat(frames)
        .unique()
        .join(
            frame(con, f"select distinct run, capture from ranks {clause}", values),
            on=["run", "capture"],
            how="semi",
        )
    )
    timeless = frame_of.join(times, on=_KEYS, how="anti", nulls_equal=True)
    count = 0
    with write_whole(out) as file:
        for gauge in GAUGES:
            if gauge.name in frames_here:
                for line in _lines(gauge, frames_here[gauge.name], times):
                    count += not line.startswith("#")
                    file.write(line.encode())
        file.write(b"# EOF\n")
    return History(count, times.height, timeless.height)


def _lines(gauge: Gauge, rows: pl.DataFrame, times: pl.DataFrame) -> Iterator[str]:
    series = ["run", *gauge.labels]
    labels = [pl.col(name).cast(pl.String).fill_null("") for name in gauge.labels]
    dated = (
        rows.join(times, on=_KEYS, nulls_equal=True)
        .select("run", *labels, "at_ms", pl.col("value").cast(pl.Float64))
        .filter(pl.col("value").is_finite())
        .unique([*series, "at_ms"], keep="last", maintain_order=True)
        .sort(*series, "at_ms")
    )
    if dated.is_empty():
        return
    yield f"# HELP {gauge.name} {gauge.meaning}\n"
    yield f"# TYPE {gauge.name} gauge\n"
    for *values, at_ms, value in dated.iter_rows():
        pairs = zip(series, values, strict=True)
        named = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in pairs)
        yield f"{gauge.name}{{{named}}} {value!r} {at_ms // 1000}.{at_ms % 1000:03}\n"


def _logged_steps(con: duckdb.DuckDBPyConnection) -> Frames:
    """What the trainer logged of steps that were profiled: only their time is known."""
    rows = frame(con, _LOG)
    return {
        name: values.unique(_KEYS, keep="first", maintain_order=True)
        for name, values in gauges_of("last_logged", rows, _KEYS).items()
    }
