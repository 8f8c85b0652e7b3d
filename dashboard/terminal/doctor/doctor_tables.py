"""The doctor's reports for a terminal: equal ranks together, whoever deviates by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import JustifyMethod, RenderableType
from rich.text import Text

from npuscope.analysis.doctor.doctor import CaptureReport
from npuscope.analysis.doctor.judge import Support
from npuscope.analysis.wording import UNKNOWN, number, numbers, ranks_named

from ...units import size_text
from .doctor_compared import RULES, farthest_apart
from .doctor_details import DIM, GROUPS, losses, plain_table, recording
from .doctor_rows import NOT_LOOKED, Disk, config_of, remarks

_STYLES: dict[Support, str] = {"yes": "green", "partly": "yellow", "no": "red"}


def doctor(reports: Sequence[CaptureReport], disk: Disk) -> Iterator[RenderableType]:
    """Everything to draw, in order."""
    yield from _not_read(disk)
    for report in reports:
        yield Text(f"{report.run}  {report.capture}", style="bold reverse")
        yield _summary(report, disk)
        for section in (
            losses(report.ranks),
            _capabilities(report),
            _configuration(report),
            *recording(report.ranks),
        ):
            parts = list(section)
            yield from parts
            if parts:
                yield Text()
        yield from (Text(f"note: {remark}", style=DIM) for remark in remarks(report))
        yield Text()
    yield from _compared(disk)
    yield from _beside(disk)
    if disk.beside is None:
        yield Text(f"note: {NOT_LOOKED}", style=DIM)


def _summary(report: CaptureReport, disk: Disk) -> Text:
    """Two lines for who has no time."""
    text = Text()
    present = len(report.ranks)
    if report.missing_ranks is None:
        least = report.least_rank_count
        of = f" of at least {least}" if least and least > present else ""
        text.append(f"{present}{of} ranks ({numbers(r.rank for r in report.ranks)})")
    elif report.missing_ranks:
        expected = present + len(report.missing_ranks)
        text.append(f"{present} of {expected} ranks; ")
        text.append(f"missing: {numbers(report.missing_ranks)}", style="red")
    else:
        text.append(f"all {present} ranks ({numbers(r.rank for r in report.ranks)})")
    failed = [one.rank for one in disk.failed if one.capture == report.capture]
    damaged = [rank.rank for rank in report.ranks if rank.loss.is_any]
    if failed:
        text.append(f"; {ranks_named(failed)} could not be read", style="red")
    if damaged:
        text.append(f"; data of {ranks_named(damaged)} was lost", style="red")
    elif not failed and all(rank.loss.files is not None for rank in report.ranks):
        text.append("; nothing was lost")
    said = Counter(verdict.support for verdict in report.verdicts)
    text.append(
        f"\n{said['yes']} of {len(report.verdicts)} analyses possible, {said['partly']} partly,"
        f" {said['no']} not\n"
    )
    return text


def _capabilities(report: CaptureReport) -> Iterator[RenderableType]:
    table = plain_table("What it can answer")
    for heading in ("", "analysis", "answers"):
        table.add_column(heading, no_wrap=heading != "answers", overflow="fold")
    for verdict in report.verdicts:
        told = Text(verdict.question)
        _explain(told, "", verdict.reason, verdict.remedy)
        for one in verdict.deviations[:GROUPS]:
            who = Text.assemble(f"{ranks_named(one.ranks)}: ", _support(one.verdict.support))
            _explain(told, who, one.verdict.reason, one.verdict.remedy)
        if len(verdict.deviations) > GROUPS:
            told.append(f"\nand {len(verdict.deviations) - GROUPS} more: --json", style=DIM)
        table.add_row(_support(verdict.support), verdict.capability, told)
    yield table
    overhead = report.overhead
    if overhead.ratio is not None:
        yield Text.assemble(
            ("\nprofiler's overhead", "bold"), f"  {overhead.ratio:+.1%}: the median of",
            f" {overhead.profiled_count} profiled steps is {overhead.profiled_s:.3f} s, of",
            f" {overhead.unprofiled_count} steps beside them {overhead.unprofiled_s:.3f} s",
        )  # fmt: skip


def _explain(told: Text, who: str | Text, reason: str | None, remedy: str | None) -> None:
    """Add a line on why something is not possible, and one on what would help."""
    if reason or who:
        told.append("\n").append(who)
        told.append(", " if who and reason else "", style=DIM).append(reason or "", style=DIM)
    if remedy:
        told.append("\n→ ").append(remedy)


def _support(support: Support) -> Text:
    return Text(support, style=_STYLES[support])


def _configuration(report: CaptureReport) -> Iterator[RenderableType]:
    code = config_of(report.ranks)
    if code is None:
        return
    yield Text("To record what is missing, in your training script", style="bold")
    yield Text("Leave out what you do not need: each new option costs time and bytes.", style=DIM)
    lines = Text(overflow="fold")
    is_new = False
    for line in code.splitlines():
        if line.lstrip().startswith("#"):
            is_new = True
            lines.append(f"  {line}\n", style=DIM)
        else:
            lines.append(f"  {line}\n", style="green" if is_new else "")
            is_new = False
    yield lines


def _not_read(disk: Disk) -> Iterator[RenderableType]:
    troubles = [(f"rank {one.rank}", one.root, one.error or "") for one in disk.failed]
    troubles += [("folder", one.path, one.message) for one in disk.problems]
    if troubles:
        table = plain_table("Not read")
        for heading in ("what", "where", "why, and what to do"):
            table.add_column(heading, overflow="fold")
        for what, where, why in troubles:
            table.add_row(what, where, why.removeprefix(f"{where}: "))
        yield table
        yield Text()


def _compared(disk: Disk) -> Iterator[RenderableType]:
    if disk.compared:
        table = plain_table("Our steps compared with msprof-analyze's (cluster_analysis_output)")
        for heading in ("measure", "steps", "agree", "farthest apart"):
            justify: JustifyMethod = "right" if heading in ("steps", "agree") else "left"
            table.add_column(heading, justify=justify, overflow="fold")
        for one in disk.compared:
            counts = (number(one.compared_count), number(one.agreeing_count))
            table.add_row(one.measure, *counts, farthest_apart(one) or UNKNOWN)
        yield table
        if any(farthest_apart(one) for one in disk.compared):
            yield Text(RULES, style=DIM)
        yield Text()


def _beside(disk: Disk) -> Iterator[RenderableType]:
    if disk.beside:
        table = plain_table("Other files in these folders, not read")
        table.add_column("what", overflow="fold")
        table.add_column("count", justify="right")
        table.add_column("size", justify="right")
        table.add_column("why", overflow="fold")
        table.add_column("for example", overflow="fold")
        for one in disk.beside:
            example = "/".join(Path(one.example).parts[-2:])
            table.add_row(one.what, number(one.count), size_text(one.size_bytes), one.why, example)
        yield table
        yield Text()
