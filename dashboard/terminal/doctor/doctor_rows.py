"""The doctor's reports as rows for programs, and the sentences beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuscope.analysis.doctor.compared_steps import StepComparison
from npuscope.analysis.doctor.doctor import CaptureReport, RankReport
from npuscope.analysis.doctor.judge import known_options
from npuscope.analysis.doctor.profiler_options import idle_options, snippet
from npuscope.analysis.wording import ranks_named
from npuscope.messages import Message

if TYPE_CHECKING:
    from npuscope.analysis.doctor.compared_steps import StepComparison
    from npuscope.collector.discover.search import Problem
    from npuscope.collector.discover.unread_files import UnreadFile
    from npuscope.collector.ingest.read_rank import RankOutcome

NOT_LOOKED = "other files are listed only where PATH is a profile folder"
_FACTS = (
    "framework", "source_format", "profiler_level", "aic_metrics", "framework_version",
    "cann_version", "chip_name", "host_name", "device_id", "clock", "window_start_ns",
    "window_end_ns", "world_size", "left_out_tables", "kept_steps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Disk:
    """What an ingest met beside the ranks it read. `beside` None: nobody looked, as in a store.

    `comparisons`: our steps beside those of msprof-analyze, where its results lie there.
    """

    failures: Sequence[RankOutcome] = ()
    problems: Sequence[Problem] = ()
    beside: Sequence[UnreadFile] | None = None
    comparisons: Sequence[StepComparison] = ()


def doctor_rows(reports: Sequence[CaptureReport], disk: Disk) -> list[dict[str, Any]]:
    """One object per rank, with lists of its tables, losses, rules and capabilities.

    `status`: read, in_part (something was lost or not selected), or not_read with its reason.
    """
    rows = [_rank_row(report, rank) for report in reports for rank in report.ranks]
    row_of_run = {row["run"]: None for row in rows}
    for outcome in disk.failures:
        place = {"run": outcome.run, "capture": outcome.capture, "rank": outcome.rank}
        if not row_of_run or outcome.run in row_of_run:
            record = {"status": "not_read", "reason": outcome.error, "source_root": outcome.root}
            rows.append({**place, **record})
    return rows


def _rank_row(report: CaptureReport, rank: RankReport) -> dict[str, Any]:
    is_whole = not (
        rank.loss.is_any or rank.facts["left_out_tables"] or rank.facts["kept_steps"] is not None
    )
    return {
        "run": report.run,
        "capture": report.capture,
        "rank": rank.rank,
        "status": "read" if is_whole else "in_part",
        **{name: rank.facts[name] for name in _FACTS},
        "rank_origin": rank.origin,
        "source_root": rank.root,
        "npuscope_version": rank.npuscope_version,
        "options": rank.options,
        "expected_rank_count": report.world_size,
        "least_rank_count": report.least_rank_count,
        "missing_ranks": report.missing_ranks,
        "steps": rank.steps.steps,
        "missing_steps": rank.steps.missing,
        "window_covered_ratio": rank.steps.covered_ratio,
        "tables": [
            {"table": name, "row_count": count, "source": rank.sources.get(name)}
            for name, count in sorted(tables_of(rank).items())
        ],
        "contents": dict(sorted(rank.counts.items())),
        "rows_lost": rank.loss.rows,
        "bytes_lost": rank.loss.bytes,
        "failed_files": None
        if rank.loss.files is None
        else [{"file": file, "reason": why} for file, why in sorted(rank.loss.files.items())],
        "warnings": rank.warnings,
        "rules": dict(rank.rules),
        "not_verified_on_real_data": rank.unverified,
        "capabilities": [
            {
                "capability": verdict.capability,
                "support": verdict.support,
                "reason": verdict.reason,
                "remedy": verdict.remedy,
            }
            for verdict in rank.verdicts
        ]
        + [
            {
                "capability": one.capability,
                "support": one.support,
                "reason": one.reason,
                "remedy": one.remedy,
            }
            for one in report.verdicts
            if one.capability == "ranks"
        ],
        "profiler_config": config_of([rank]),
        "profiler_overhead_ratio": report.overhead.ratio,
        "profiler_overhead_reason": report.overhead.reason,
    }


def tables_of(rank: RankReport) -> dict[str, int]:
    """Rows of each canonical table that has any."""
    return {
        name: count
        for name, count in rank.counts.items()
        if "." not in name and name != "largest_group"
    }


def config_of(ranks: Sequence[RankReport]) -> str | None:
    """The profiler call that records what these ranks lack, on top of what most of them have.

    None where nothing that they lack can be asked of torch_npu's profiler.
    """
    settings = dict.fromkeys(s for rank in ranks for v in rank.verdicts for s in v.settings)
    ranks_here = [rank for rank in ranks if rank.facts["framework"] in (None, "pytorch")]
    if not settings or not ranks_here:
        return None
    options = [known_options(rank.facts, rank.options) for rank in ranks_here]
    counted = Counter(map(repr, options))
    return snippet(max(options, key=lambda one: counted[repr(one)]), settings)


def doctor_notes(reports: Sequence[CaptureReport], disk: Disk) -> list[str]:
    """What concerns captures and the disk, each a sentence."""
    notes: list[str] = []
    for report in reports:
        sentences = [*_missing_ranks(report), *remarks(report)]
        if len(reports) > 1:
            of_one = "{run}, {capture}: {note}"
            place = {"run": report.run, "capture": report.capture}
            sentences = [Message(of_one, **place, note=one) for one in sentences]
        notes += sentences
    notes += compared_notes(disk.comparisons)
    notes += [f"{problem.path}: {problem.message}" for problem in disk.problems]
    if disk.beside is None:
        notes.append(NOT_LOOKED)
    for one in disk.beside or ():
        notes.append(f"{one.count} x {one.what} ({one.example}): not read: {one.why}")
    return notes


def _missing_ranks(report: CaptureReport) -> Iterator[str]:
    if report.missing_ranks:
        sentence = "{ranks} of {count} missing" if report.world_size else "{ranks} missing"
        yield Message(sentence, ranks=ranks_named(report.missing_ranks), count=report.world_size)


def remarks(report: CaptureReport) -> Iterator[str]:
    """What is unknown of a capture, and what was recorded in vain: a sentence each."""
    if report.missing_ranks is None:
        least = report.least_rank_count
        sentence = "how many ranks the job has is unknown"
        if least and least > len(report.ranks):
            sentence = "how many ranks the job has is unknown, at least {count}"
        yield Message(sentence, count=least)
    if report.overhead.reason:
        yield Message("the profiler's overhead is unknown: {reason}", reason=report.overhead.reason)
    if all(rank.root is None for rank in report.ranks):
        yield "an exported file does not record how its ranks were read"
    yield from report.doubts
    others = {rank.facts["framework"] for rank in report.ranks} - {None, "pytorch", "kineto"}
    if others:
        names = " and ".join(sorted(others))
        yield Message(
            "remedies are given as torch_npu options; options of {frameworks} differ",
            frameworks=names,
        )
    needless = sorted({name for rank in report.ranks for name in idle_options(rank.options)})
    if needless:
        yield Message(
            "recorded at a cost, but used by no analysis here: {names}", names=", ".join(needless)
        )


RULES = "where the rules differ: docs/steps-and-the-profiler.md"


def compared_notes(comparisons: Sequence[StepComparison]) -> Iterator[str]:
    """A sentence per measure."""
    for one in comparisons:
        sentence = f"{one.agreeing_count} of {one.compared_count} steps agree"
        farthest = farthest_apart(one)
        rest = f"; farthest apart: {farthest}; {RULES}" if farthest else ""
        yield f"compared with msprof-analyze ({one.folder}): {one.measure}: {sentence}{rest}"


def farthest_apart(one: StepComparison) -> str | None:
    """Where the two differ most; None where all agree."""
    if one.agreeing_count == one.compared_count:
        return None
    step = "" if one.step is None else f", step {one.step}"
    figures = f"{one.ours_ns / 1e6:.3f} ms here, {one.theirs_ns / 1e6:.3f} ms there"
    return f"rank {one.rank}{step}: {figures}"
