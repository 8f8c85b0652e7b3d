"""What a capture is: what was recorded, what is missing, what it can answer, what would help.

Facts of ranks come from the tables, the story of their reading from manifests. Nothing scans
events: what is counted of them was counted when they were read (metric `contents`).

How much longer steps take while the profiler watches, from what the trainer logged.

    step      10   11   12   13   14   15   16   17
    logged   1.0  1.0  1.1  1.3  1.3  1.6  1.0  1.0  s
             before .. warm-up profiled writing  after       (1.3 / 1.0) - 1 = 30 %

Steps of the profiler's warm-up and the step after the last one, in which it writes, count as
neither.

Which ranks and steps of a job a capture has, and how much of each profiling session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import duckdb

from npuscope.collector.readers.unverified_forms import unverified_parts as unverified_texts
from npuscope.collector.store.manifest import Manifest

from ..experts.load.dropped_tokens import doubts
from ..flops.chips import unknown_peaks
from ..scope import ALL, Scope
from ..views import open_views
from .judge import (
    CaptureVerdict,
    Verdict,
    across_ranks,
    judge,
    rank_record,
    whole_capture,
)
from .profiler_options import Options
from .reading_rules import reading_rules

Key = tuple[str, str, int]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loss:
    """What was lost of a rank: rows and bytes, files that were not read in full and why. None:
    unknown, as in an exported file."""

    rows: int | None = None
    bytes: int | None = None
    files: Mapping[str, str] | None = None

    @property
    def is_any(self) -> bool:
        return bool(self.rows or self.bytes or self.files)


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank. `facts` is its row of the table `ranks`; `counts` the metric `contents`.

    sources: table -> reader that filled it. rules: what was chosen when it was read. options,
    unverified, warnings, origin, root, npuscope_version: None where its manifest does not tell.
    """

    rank: int
    facts: Row
    counts: Mapping[str, int]
    steps: Steps
    sources: Mapping[str, str]
    rules: Mapping[str, str]
    loss: Loss
    verdicts: Sequence[Verdict]
    options: Options | None = None
    unverified: tuple[str, ...] | None = None
    warnings: tuple[str, ...] | None = None
    origin: str | None = None
    root: str | None = None
    npuscope_version: str | None = None


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """One capture. missing_ranks: None where nothing tells how many the job has; then
    `least_rank_count` are as many as its largest group has members. doubts: what does not fit in
    what was counted."""

    run: str
    capture: str
    ranks: tuple[RankReport, ...]
    world_size: int | None
    least_rank_count: int | None
    missing_ranks: tuple[int, ...] | None
    verdicts: tuple[CaptureVerdict, ...]
    overhead: Overhead
    doubts: tuple[str, ...] = ()


# metric: doctor
# What was recorded of each rank, what was lost, and which questions does that answer?
#
# One row per rank. What was counted is the metric contents; each capability is judged by what it
# needs of it (analysis/doctor/capabilities.py), and its remedies become one call of the profiler.
#
# title: Data quality
# meaning: What was recorded of each rank, what is missing, and what can be answered by it.
# by: run, capture, rank
# command: doctor
# table: capabilities, recorded, tables, losses
# figure: support, recorded_ranks, possible_analyses, lost_rows, profiler_overhead
#
#   status                     varchar    read, in_part (lost or not selected), not_read
#   framework                  varchar    pytorch, mindspore, msprof, kineto (a GPU)
#   source_format              varchar    db, text, db+text, light, cluster
#   profiler_level             varchar    Level_none, Level0, Level1, Level2
#   aic_metrics                varchar    PMU events that were recorded
#   framework_version          varchar    torch_npu's or MindSpore's
#   cann_version               varchar    version of CANN
#   chip_name                  varchar    e.g. Ascend910B
#   host_name                  varchar    host it ran on
#   device_id                  integer    device of the host
#   clock                      varchar    epoch, device: origin of timestamps
#   window_start_ns            bigint     start of the profiling session
#   window_end_ns              bigint     its end
#   world_size                 integer    ranks of the whole job; NULL where not recorded
#   left_out_tables            varchar[]  tables that were not selected
#   kept_steps                 bigint[]   steps that were selected; NULL: all
#   rank_origin                varchar    what its number is from
#   source_root                varchar    folder it was read from
#   npuscope_version           varchar    that read it
#   options                    json       options of the profiler, as recorded
#   expected_rank_count        integer    ranks of the job
#   least_rank_count           integer    ranks that groups name, at least
#   missing_ranks              integer[]  ranks of the job that are not here; NULL: unknown
#   steps                      bigint[]   steps with figures
#   missing_steps              bigint[]   steps between these that are not here
#   window_covered_ratio       double     of the profiling session, in steps
#   tables                     json       rows of each table, and what they were read from
#   contents                   json       rows of each kind: the metric contents
#   rows_lost                  bigint     rows that could not be read
#   bytes_lost                 bigint     bytes that could not be read
#   failed_files               json       files that could not be read, and why
#   warnings                   varchar[]  what readers warned of
#   rules                      json       rules that reading followed
#   not_verified_on_real_data  varchar[]  of what it was read by
#   capabilities               json       whether each question can be answered, else why not
#   profiler_config            varchar    the profiler call that records what is missing
#   profiler_overhead_ratio    double     length of profiled steps over others, less 1
#   profiler_overhead_reason   varchar    why it is not known
#   reason                     varchar    why a rank could not be read
def examine(
    con: duckdb.DuckDBPyConnection, read: Iterable[Manifest] = (), scope: Scope = ALL
) -> list[CaptureReport]:
    """A report on every capture of `con`, or on the one that is named, or on one rank of it.

    `read` are the manifests of the store behind `con`; without them what only they know is unknown.
    What is said of a capture as a whole takes all its ranks into account.
    """
    open_views(con, ("steps", "contents"))
    manifests = {(m.run, m.capture, m.rank): m for m in read}
    facts = _facts(con, scope.job)
    counts = _counts(con)
    steps = step_coverage(
        con, {key: (row["window_start_ns"], row["window_end_ns"]) for key, row in facts.items()}
    )
    rules = reading_rules(con, facts, counts, manifests)
    no_peaks = unknown_peaks(con)
    reports: dict[tuple[str, str], list[RankReport]] = defaultdict(list)
    for key in sorted(facts):
        reports[key[:2]].append(
            _rank_report(
                facts[key],
                counts.get(key, {}),
                steps[key],
                rules[key],
                manifests.get(key),
                no_peaks.get(key),
            )
        )
    members = group_members(con)
    logged = _logged_seconds(con)
    verdicts = []
    for (its_run, its_capture), ranks in reports.items():
        whole = _capture_report(
            (its_run, its_capture), ranks, members.get((its_run, its_capture), frozenset()),
            logged.get(its_run, {}),
        )  # fmt: skip
        if any(one.counts.get("expert_load") for one in ranks):
            whole = replace(whole, doubts=tuple(doubts(con, run=its_run, capture=its_capture)))
        verdicts.append(_only(whole, scope.rank))
    return [report for report in verdicts if report.ranks]


def _only(report: CaptureReport, rank: int | None) -> CaptureReport:
    if rank is None:
        return report
    ranks = tuple(one for one in report.ranks if one.rank == rank)
    verdicts = whole_capture([(one.rank, one.verdicts) for one in ranks])
    apart = tuple(one for one in report.verdicts if one.capability == "ranks")
    return CaptureReport(
        report.run, report.capture, ranks, report.world_size, report.least_rank_count,
        report.missing_ranks, (*verdicts, *apart), report.overhead, report.doubts,
    )  # fmt: skip


def _facts(con: duckdb.DuckDBPyConnection, job: Scope) -> dict[Key, Row]:
    """Rows of `ranks` by run, capture and rank."""
    clause, values = job.where()
    seconds_by_step = con.execute(f"select * from ranks {clause}", values)
    names = [column[0] for column in seconds_by_step.description or []]
    rows = [dict(zip(names, values, strict=True)) for values in seconds_by_step.fetchall()]
    return {(row["run"], row["capture"], row["rank"]): row for row in rows}


def _counts(con: duckdb.DuckDBPyConnection) -> dict[Key, dict[str, int]]:
    counts: dict[Key, dict[str, int]] = defaultdict(dict)
    query = "select run, capture, rank, content, count from rank_contents"
    for run, capture, rank, content, count in con.execute(query).fetchall():
        counts[run, capture, rank][content] = count
    return counts


def _logged_seconds(con: duckdb.DuckDBPyConnection) -> dict[str, dict[int, float]]:
    """Seconds of each step that a run's trainer logged: the median over the ranks that log."""
    query = """
        select run, step, median(elapsed_s) from train_log
        where step is not null and elapsed_s is not null group by run, step"""
    seconds_by_step: dict[str, dict[int, float]] = defaultdict(dict)
    for run, step, seconds in con.execute(query).fetchall():
        seconds_by_step[run][step] = seconds
    return seconds_by_step


def _rank_report(
    facts: Row,
    counts: Mapping[str, int],
    steps: Steps,
    rules: Mapping[str, str],
    manifest: Manifest | None,
    no_peak: str | None,
) -> RankReport:
    verdicts = judge(replace(rank_record(facts, counts, manifest), no_peak=no_peak))
    if manifest is None:
        return RankReport(facts["rank"], facts, counts, steps, {}, rules, Loss(), verdicts)
    sources = {
        name.removeprefix("from."): reader
        for name, reader in manifest.rules.items()
        if name.startswith("from.")
    }
    if counts.get("comm_ops") and "comm_ops" in manifest.rules:
        sources.setdefault("comm_ops", manifest.rules["comm_ops"])
    keys = manifest.unverified
    return RankReport(
        rank=manifest.rank,
        facts=facts,
        counts=counts,
        steps=steps,
        sources=sources,
        rules=rules,
        loss=Loss(manifest.rows_lost, manifest.bytes_lost, dict(manifest.failed_files)),
        verdicts=verdicts,
        options=manifest.options,
        unverified=None if keys is None else tuple(unverified_texts(keys)),
        warnings=tuple(manifest.warnings),
        origin=manifest.rank_origin,
        root=manifest.source_root,
        npuscope_version=manifest.npuscope_version,
    )


def _capture_report(
    key: tuple[str, str],
    ranks: Sequence[RankReport],
    members: frozenset[int],
    logged_s: Mapping[int, float],
) -> CaptureReport:
    world_size = max((r.facts["world_size"] or 0 for r in ranks), default=0) or None
    largest = max((r.counts.get("largest_group", 0) for r in ranks), default=0) or None
    present = [r.rank for r in ranks]
    missing = missing_ranks(present, world_size, members)
    profiled = {step for r in ranks for step in r.steps.steps}
    warmups = [r.options.get("schedule.warmup") for r in ranks if r.options]
    counts = [warmup for warmup in warmups if isinstance(warmup, int)]
    overhead = profiler_overhead(logged_s, profiled, warmup=max(counts, default=1))
    verdicts = whole_capture([(r.rank, r.verdicts) for r in ranks])
    apart = across_ranks(
        present=present,
        world_size=world_size,
        least_rank_count=largest,
        missing=missing,
        lacking_steps={r.rank: r.steps.missing for r in ranks if r.steps.missing},
        clocks={r.facts["clock"] for r in ranks},
        levels={r.facts["profiler_level"] for r in ranks},
    )
    return CaptureReport(
        *key, tuple(ranks), world_size, largest, missing, (*verdicts, apart), overhead
    )


# Neighbours on each side: near enough to be the same work, enough for a median.
_NEIGHBOURS = 10
_WRITING_STEPS = 1
_NO_LOG = "no step times from the training log: `npuscope ingest PATH --train-log FILE`"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Median seconds of profiled and of neighbouring steps, their ratio less one, or why not."""

    ratio: float | None = None
    profiled_s: float | None = None
    unprofiled_s: float | None = None
    profiled_count: int = 0
    unprofiled_count: int = 0
    reason: str | None = None


def profiler_overhead(
    logged_s: Mapping[int, float], profiled: Collection[int], *, warmup: int = 1
) -> Overhead:
    """The overhead, of seconds per logged step and the steps that were profiled.

    `warmup` steps before the first of a window are the profiler's own. Steps of the log and of the
    profiler must count alike.
    """
    if not logged_s:
        return Overhead(reason=_NO_LOG)
    if not profiled:
        return Overhead(reason="no profiled step has a number")
    positive_s = {step: seconds for step, seconds in logged_s.items() if seconds > 0}
    watched = [positive_s[step] for step in sorted(profiled) if step in positive_s]
    if not watched:
        return Overhead(reason="the training log has no times for the profiled steps")
    touched = {step + near for step in profiled for near in range(-warmup, _WRITING_STEPS + 1)}
    free = sorted(step for step in positive_s if step not in touched)
    before = [step for step in free if step < min(profiled)][-_NEIGHBOURS:]
    after = [step for step in free if step > max(profiled)][:_NEIGHBOURS]
    between = [step for step in free if min(profiled) < step < max(profiled)]
    beside = [positive_s[step] for step in (*before, *between, *after)]
    if not beside:
        return Overhead(reason="the training log has only the profiled steps")
    profiled_s, unprofiled_s = median(watched), median(beside)
    return Overhead(
        profiled_s / unprofiled_s - 1, profiled_s, unprofiled_s, len(watched), len(beside)
    )


_MEMBERS = """
    select run, capture, list(distinct member) from (
        select run, capture, unnest(global_ranks) as member
        from (select distinct run, capture, global_ranks from groups)
    ) group by run, capture"""
# What a step spans: its range on the host where it was recorded, and its events.
_SPANS = """
    select run, capture, rank, step, min(start_ns), max(end_ns)
    from (
        select run, capture, rank, step,
            coalesce(window_start_ns, device_start_ns) as start_ns,
            coalesce(window_end_ns, device_end_ns) as end_ns
        from steps
        union all
        select run, capture, rank, step, start_ns, end_ns from step_summary
    ) group by run, capture, rank, step"""


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a rank: their numbers, those that only other ranks have, and the share of the
    session they span (None: unknown)."""

    steps: tuple[int, ...]
    missing: tuple[int, ...]
    covered_ratio: float | None


def group_members(con: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], frozenset[int]]:
    """Ranks that groups of a capture name, by run and capture."""
    rows = con.execute(_MEMBERS).fetchall()
    return {(run, capture): frozenset(members) for run, capture, members in rows}


def missing_ranks(
    present: Iterable[int], world_size: int | None, members: Iterable[int]
) -> tuple[int, ...] | None:
    """Ranks of the job that are not here; None where neither world size nor groups tell."""
    expected = {*range(world_size or 0), *members}
    return tuple(sorted(expected - set(present))) if expected else None


def step_coverage(
    con: duckdb.DuckDBPyConnection, windows: Mapping[Key, tuple[int | None, int | None]]
) -> dict[Key, Steps]:
    """Steps of every rank; `windows` are the sessions of the ranks that count."""
    spans: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    steps: dict[Key, set[int]] = {key: set() for key in windows}
    whole: dict[tuple[str, str], set[int]] = defaultdict(set)
    for run, capture, rank, step, start_ns, end_ns in con.execute(_SPANS).fetchall():
        key = (run, capture, rank)
        if key not in windows:
            continue
        if step is not None:
            steps[key].add(step)
            whole[run, capture].add(step)
        if start_ns is not None and end_ns is not None:
            spans[key].append((start_ns, end_ns))
    return {
        key: Steps(
            tuple(sorted(coverage)),
            tuple(sorted(whole[key[:2]] - coverage)),
            _covered_ratio(spans[key], *windows[key]),
        )
        for key, coverage in steps.items()
    }


def _covered_ratio(
    spans: Iterable[tuple[int, int]], start_ns: int | None, end_ns: int | None
) -> float | None:
    if start_ns is None or end_ns is None or end_ns <= start_ns:
        return None
    covered_ns, reached_ns = 0, start_ns
    end = False
    for first_ns, last_ns in sorted(spans):
        end = True
        covered_ns += max(0, min(last_ns, end_ns) - max(first_ns, reached_ns))
        reached_ns = max(reached_ns, last_ns)
    return covered_ns / (end_ns - start_ns) if end else None
