"""Samples of a store as it is now: every gauge of the newest capture of every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import duckdb
import polars as pl

from npuscope.analysis.compare.difference import compare
from npuscope.analysis.compare.side import Side, measure
from npuscope.analysis.findings.findings import findings
from npuscope.analysis.flops.mfu import ModelUse
from npuscope.analysis.metric import Gauge
from npuscope.analysis.pipeline.answer import Answer, pipeline_overview
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.ranks.stragglers.blame import suspects
from npuscope.analysis.scope import Scope
from npuscope.analysis.views import open_views
from npuscope.collector.store import store as stores
from npuscope.collector.store.compact_files import without_torn
from npuscope.errors import UsageError
from npuscope.messages import Message
from npuscope.profile import summary_versions

from .expert_gauges import expert_gauges
from .flops_gauges import flops_gauges
from .gauges import BY_NAME, GAUGES, Frames, detail, gauges_of, metric_gauges
from .health_gauges import health_gauges
from .shown_captures import Run, newest_runs

# Measured: rendering takes 6 us a series, and a scrape should take less than half a second.
MAX_SERIES = 30_000
# Of the engine, for as long as samples are gathered.
MEMORY_BYTES = 2 << 30
_KEYS = ("run", "capture")


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of the labels after `run`, in the gauge's order."""

    run: str
    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Samples by gauge, in the order of GAUGES; when each run was last ingested (Unix time);
    what it took to gather them; whether no capture was left out as a file of it is torn."""

    samples: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    ingested_s: Mapping[str, float] = field(default_factory=dict)
    took_s: float = 0.0
    is_whole: bool = True

    def of_runs(self, runs: Collection[str]) -> Snapshot:
        """Only these runs."""
        names = set(runs)
        if names >= self.ingested_s.keys():
            return self
        return Snapshot(
            {
                name: tuple(one for one in samples if one.run in names)
                for name, samples in self.samples.items()
            },
            {run: at for run, at in self.ingested_s.items() if run in names},
            self.took_s,
            self.is_whole,
        )


@dataclass(frozen=True, slots=True)
class ShownSeries:
    """What is shown, and how many series of which metrics are not."""

    samples: Mapping[str, tuple[Sample, ...]]
    drops: Mapping[str, int]


def within(samples: Mapping[str, tuple[Sample, ...]], max_series: int) -> ShownSeries:
    """At most `max_series` series: whole metrics go, of least important detail first, of equal
    detail the largest. A metric is there whole or not at all: a sum over half of its series would
    be a wrong number."""
    left = sum(map(len, samples.values()))
    dropped: dict[str, int] = {}
    order = sorted(
        (name for name in samples if samples[name]),
        key=lambda name: (-detail(BY_NAME[name]), -len(samples[name]), name),
    )
    for name in order:
        if left <= max_series:
            break
        dropped[name] = len(samples[name])
        left -= dropped[name]
    return ShownSeries(
        {name: rows for name, rows in samples.items() if name not in dropped}, dropped
    )


def take_snapshot(
    store: Path,
    *,
    now_s: float,
    expire_s: float | None = None,
    with_experts: bool = False,
    run: str | None = None,
    use: ModelUse | None = None,
    given_peaks: Mapping[str, float] | None = None,
    baseline: Side | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Snapshot:
    """Gather everything; runs of which nothing was ingested for `expire_s` are not looked at.

    Only `run`, where it is given. `use` is the model that runs train, `given_peaks` the peaks of
    their chips, as `mfu` takes them; `baseline` is what runs are held against; `tell` gets why
    figures of the model are not known, or why a run cannot be compared. Unknown is no sample.
    Raises StoreError, OSError or duckdb.Error where the store cannot be read.
    """
    began = time.monotonic()
    names = [
        one
        for one in newest_runs(store)
        if run in (None, one.name) and (expire_s is None or now_s - one.ingested_s <= expire_s)
    ]
    runs = [whole for one in names if (whole := _whole(store, one, tell)) is not None]
    frames = _fresh(runs)
    if runs:
        flops = partial(flops_gauges, use=use, given_peaks=given_peaks, tell=tell)
        held = partial(_baseline_gauges, runs=runs, baseline=baseline, tell=tell)
        health = partial(health_gauges, store=store)
        frames |= _gather(store, runs, (flops, held, health), with_experts)
    samples = {
        gauge.name: samples_of(gauge, frames[gauge.name])
        for gauge in GAUGES
        if gauge.name in frames
    }
    ingested = {one.name: one.ingested_s for one in runs}
    is_whole = sum(len(one.captures) for one in names) == sum(len(one.captures) for one in runs)
    return Snapshot(samples, ingested, time.monotonic() - began, is_whole)


def _whole(store: Path, run: Run, tell: Callable[[str], None]) -> Run | None:
    """The run without captures of which a file is torn, which are told; None where none is left.
    The others, and other runs, are not to be missed because of them."""
    _, damage = without_torn(store, [one for ranks in run.captures for one in ranks])
    for reason in damage.values():
        tell(f"not shown: {reason}")
    captures = tuple(ranks for ranks in run.captures if (run.name, ranks[0].capture) not in damage)
    return replace(run, captures=captures) if captures else None


def samples_of(gauge: Gauge, rows: pl.DataFrame) -> tuple[Sample, ...]:
    """Rows of run, the gauge's labels and value as samples; a label that is NULL is empty, a value
    that is unknown or no finite number is no sample."""
    labels = [pl.col(name).cast(pl.String).fill_null("") for name in gauge.labels]
    plain = rows.select("run", *labels, pl.col("value").cast(pl.Float64)).filter(
        pl.col("value").is_finite()
    )
    return tuple(Sample(run, tuple(rest), value) for run, *rest, value in plain.iter_rows())


def _fresh(runs: Sequence[Run]) -> Frames:
    columns = {"run": [run.name for run in runs]}
    times: dict[str, list[float | None]] = {
        "npuscope_last_ingest_timestamp_seconds": [run.ingested_s for run in runs],
        "npuscope_profile_end_timestamp_seconds": [run.profile_end_s for run in runs],
    }
    return {
        name: pl.DataFrame(columns, schema={"run": pl.String})
        .with_columns(value=pl.Series(values, dtype=pl.Float64))
        .drop_nulls("value")
        for name, values in times.items()
    }


def _gather(
    store: Path,
    runs: Sequence[Run],
    questions: Sequence[Callable[[duckdb.DuckDBPyConnection, Sequence[str]], Frames]],
    with_experts: bool,
) -> Frames:
    newest = [one for run in runs for one in run.captures[0]]
    every = [one for run in runs for ranks in run.captures for one in ranks]
    frames: Frames = {}
    con = stores.over(store, every, summaries=summary_versions())
    try:
        _limit(con)
        open_across(store, con, memory_bytes=MEMORY_BYTES)
        frames |= _blame_gauges(con, {run.name: run.names for run in runs})
    finally:
        con.close()
    con = stores.over(store, newest, summaries=summary_versions())
    try:
        _limit(con)
        open_views(con)
        open_across(store, con, memory_bytes=MEMORY_BYTES)
        frames |= metric_gauges(con, _KEYS)
        for gauges in questions:
            frames |= gauges(con, _KEYS)
        frames |= expert_gauges(con, _KEYS, with_experts=with_experts)
        frames |= _gain_gauges(con)
        frames |= _pipeline_gauges(con)
    finally:
        con.close()
    return frames


def _limit(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(f"set memory_limit = '{MEMORY_BYTES >> 20}MiB'")
    con.execute("set threads = 2")


def _gain_gauges(con: duckdb.DuckDBPyConnection) -> Frames:
    """Predicted gains of findings; of what a replay cannot answer, none."""
    rows = [
        (one.run, one.capture, one.name, one.predicted_gain_ns)
        for one in findings(con)
        if one.predicted_gain_ns is not None
    ]
    columns = {"run": pl.String, "capture": pl.String, "finding": pl.String,
               "predicted_gain_ns": pl.Int64}  # fmt: skip
    return gauges_of("findings", pl.DataFrame(rows, schema=columns, orient="row"), _KEYS)


def _pipeline_gauges(con: duckdb.DuckDBPyConnection) -> Frames:
    """Phases and bubbles of captures whose passes are recognised, up to as many operations as
    findings replay."""
    rows: dict[str, list[pl.DataFrame]] = {
        "pipeline_phases": [], "pipeline_masking": [], "pipeline_bubbles": []
    }  # fmt: skip
    for run, capture in con.execute("select distinct run, capture from ranks").fetchall():
        answer = pipeline_overview(con, run, capture)
        if not isinstance(answer, Answer):
            continue
        rows["pipeline_phases"].append(answer.phases)
        rows["pipeline_masking"].append(answer.masking)
        if answer.bubbles is not None:
            rows["pipeline_bubbles"].append(answer.bubbles.filter(pl.col("cause") != "all"))
    frames: Frames = {}
    for name, parts in rows.items():
        if parts:
            frames |= gauges_of(name, pl.concat(parts), _KEYS)
    return frames


def _baseline_gauges(
    con: duckdb.DuckDBPyConnection,
    keys: Sequence[str],
    *,
    runs: Sequence[Run],
    baseline: Side | None,
    tell: Callable[[str], None],
) -> Frames:
    """Each run's newest capture beside the baseline, as `compare` tells it; `con` has the newest
    captures alone."""
    frames: list[pl.DataFrame] = []
    if baseline is None:
        return {}
    for run in runs:
        try:
            figures = compare(baseline, measure(con, Scope(run.name))).figures
        except UsageError as error:
            tell(Message("{place}: {note}", place=run.name, note=error.message))
            continue
        frames.append(
            figures.select(
                pl.lit(run.name).alias("run"), pl.lit(run.names[0]).alias("capture"), pl.all()
            )
        )
    return gauges_of("compare_measures", pl.concat(frames), keys) if frames else {}


def _blame_gauges(
    con: duckdb.DuckDBPyConnection, newest_first: Mapping[str, Sequence[str]]
) -> Frames:
    """Slow ranks of each run's newest capture; `newest_first` are its captures, which `con` has.

    `con` has what all ranks tell (`open_across`).
    """
    every = suspects(con)
    newest = pl.DataFrame(
        [(run, captures[0]) for run, captures in newest_first.items()],
        schema={"run": pl.String, "capture": pl.String},
        orient="row",
    )
    blames = every.join(newest, on=["run", "capture"], how="semi")
    steady = _steady(every, newest_first)
    rows = blames.join(steady, on=["run", "rank"], how="left").with_columns(
        pl.col("suspect_captures").fill_null(0)
    )
    return gauges_of("rank_suspects", rows, ("run", "capture"))


def _steady(every: pl.DataFrame, newest_first: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Captures, from the newest back without a gap, in which a rank has a verdict."""
    suspected = every.filter(pl.col("verdict").is_not_null())
    places = pl.DataFrame(
        [(run, one, at) for run, all_ in newest_first.items() for at, one in enumerate(all_)],
        schema={"run": pl.String, "capture": pl.String, "age": pl.Int64},
        orient="row",
    )
    nth = pl.int_range(pl.len()).over("run", "rank")
    return (
        suspected.join(places, on=["run", "capture"])
        .sort("run", "rank", "age")
        .filter(pl.col("age") == nth)
        .unique(["run", "rank"], keep="last", maintain_order=True)
        .select("run", "rank", (pl.col("age") + 1).alias("suspect_captures"))
    )
