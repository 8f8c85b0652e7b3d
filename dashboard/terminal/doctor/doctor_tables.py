"""The doctor's reports for a terminal: equal ranks together, whoever deviates by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from npuscope.analysis.doctor.doctor import CaptureReport, RankReport
from npuscope.analysis.doctor.judge import Support
from npuscope.analysis.wording import UNKNOWN, number, numbers, percent, ranks_named

from ...units import size_text
from .doctor_rows import (
    NOT_LOOKED,
    RULES,
    Disk,
    config_of,
    farthest_apart,
    remarks,
    tables_of,
)

if TYPE_CHECKING:
    pass

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
    yield from _comparison(disk)
    yield from _beside(disk)
    if disk.beside is None:
        yield Text(f"note: {NOT_LOOKED}", style=DIM)


def _summary(report: CaptureReport, disk: Disk) -> Text:
    """Two lines for who has no time."""
    text = Text()
    present = len(report.ranks)
    missing = report.missing_ranks or ()
    world = report.world_size
    if present == 1 and world and world - len(missing) > 1:  # others are here: --rank chose it
        text.append(f"rank {report.ranks[0].rank} of {world}")
    elif report.missing_ranks is None:
        least = report.least_rank_count
        of = f" of at least {least}" if least and least > present else ""
        text.append(f"{present}{of} ranks ({numbers(r.rank for r in report.ranks)})")
    elif missing:
        text.append(f"{present} of {present + len(missing)} ranks")
    else:
        text.append(f"all {present} ranks ({numbers(r.rank for r in report.ranks)})")
    if missing:
        text.append("; ").append(f"missing: {numbers(missing)}", style="red")
    failed = [one.rank for one in disk.failures if one.capture == report.capture]
    damaged = [rank.rank for rank in report.ranks if rank.loss.is_any]
    if failed:
        text.append(f"; {ranks_named(failed)} could not be read", style="red")
    if damaged:
        text.append(f"; data of {ranks_named(damaged)} was lost", style="red")
    elif not failed and all(rank.loss.files is not None for rank in report.ranks):
        text.append("; nothing was lost")
    counts = Counter(verdict.support for verdict in report.verdicts)
    text.append(
        f"\n{counts['yes']} of {len(report.verdicts)} analyses possible, {counts['partly']} partly,"
        f" {counts['no']} not\n"
    )
    return text


def _capabilities(report: CaptureReport) -> Iterator[RenderableType]:
    table = plain_table("What it can answer")
    for heading in ("", "analysis", "answers"):
        table.add_column(heading, no_wrap=heading != "answers", overflow="fold")
    for verdict in report.verdicts:
        cell = Text(verdict.question)
        _explain(cell, "", verdict.reason, verdict.remedy)
        for one in verdict.deviations[:GROUPS]:
            who = Text.assemble(f"{ranks_named(one.ranks)}: ", _support(one.verdict.support))
            _explain(cell, who, one.verdict.reason, one.verdict.remedy)
        if len(verdict.deviations) > GROUPS:
            cell.append(f"\nand {len(verdict.deviations) - GROUPS} more: --json", style=DIM)
        table.add_row(_support(verdict.support), verdict.capability, cell)
    yield table
    overhead = report.overhead
    if overhead.ratio is not None:
        yield Text.assemble(
            ("\nprofiler's overhead", "bold"), f"  {overhead.ratio:+.1%}: the median of",
            f" {overhead.profiled_count} profiled steps is {overhead.profiled_s:.3f} s, of",
            f" {overhead.unprofiled_count} steps beside them {overhead.unprofiled_s:.3f} s",
        )  # fmt: skip


def _explain(cell: Text, who: str | Text, reason: str | None, remedy: str | None) -> None:
    """Add a line on why something is not possible, and one on what would help."""
    if reason or who:
        cell.append("\n").append(who)
        cell.append(", " if who and reason else "", style=DIM).append(reason or "", style=DIM)
    if remedy:
        cell.append("\n→ ").append(remedy)


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
    troubles = [(f"rank {one.rank}", one.root, one.error or "") for one in disk.failures]
    troubles += [("folder", one.path, one.message) for one in disk.problems]
    if troubles:
        table = plain_table("Not read")
        for heading in ("what", "where", "why, and what to do"):
            table.add_column(heading, overflow="fold")
        for what, where, why in troubles:
            table.add_row(what, where, why.removeprefix(f"{where}: "))
        yield table
        yield Text()


def _comparison(disk: Disk) -> Iterator[RenderableType]:
    if disk.comparisons:
        table = plain_table("Our steps compared with msprof-analyze's (cluster_analysis_output)")
        for heading in ("measure", "steps", "agree", "farthest apart"):
            justify: JustifyMethod = "right" if heading in ("steps", "agree") else "left"
            table.add_column(heading, justify=justify, overflow="fold")
        for one in disk.comparisons:
            counts = (number(one.compared_count), number(one.agreeing_count))
            table.add_row(one.measure, *counts, farthest_apart(one) or UNKNOWN)
        yield table
        if any(farthest_apart(one) for one in disk.comparisons):
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


# Dim: what is beside the point.
DIM = "bright_black"
# So many groups of unequal ranks are shown; the rest is in --json.
GROUPS = 12
K = TypeVar("K", bound=Hashable)
T = TypeVar("T", int, float)


def recording(ranks: Sequence[RankReport]) -> Iterator[Iterable[RenderableType]]:
    """What was recorded of ranks and how it was read, a section after the other."""
    yield _recording(ranks)
    yield _steps(ranks)
    yield _tables(ranks)
    yield _rules(ranks)
    yield _bullets(
        "Read by format descriptions only: not verified on real profiles",
        _by_sentence(ranks, lambda rank: rank.unverified or ()),
    )
    yield _bullets("Warnings when reading", _by_sentence(ranks, _other_warnings))


def losses(ranks: Sequence[RankReport]) -> Iterator[RenderableType]:
    """Rows, bytes and files that were not read, and why."""
    lost = [rank for rank in ranks if rank.loss.is_any]
    if not lost:
        return
    table = plain_table("Lost when reading")
    for heading in ("ranks", "rows", "bytes", "what, and why"):
        justify: JustifyMethod = "right" if heading in ("rows", "bytes") else "left"
        table.add_column(heading, justify=justify, overflow="fold")

    def reasons(rank: RankReport) -> tuple[str, ...]:
        files = sorted((rank.loss.files or {}).items())
        return tuple(f"{Path(path).name}: {why.removeprefix(f'{path}: ')}" for path, why in files)

    groups = [(who, why) for who, why in _alike(lost, reasons)]
    for who, why in groups[:GROUPS]:
        members = [rank for rank in lost if reasons(rank) == why]
        table.add_row(
            who,
            number(sum(rank.loss.rows or 0 for rank in members) or None),
            number(sum(rank.loss.bytes or 0 for rank in members) or None),
            "\n".join(why) or "see the warnings",
        )
    yield table
    if len(groups) > GROUPS:
        yield Text(f"and {len(groups) - GROUPS} more: --json", style=DIM)


def _recording(ranks: Sequence[RankReport]) -> Iterator[RenderableType]:
    headings = ("format", "export", "level", "framework", "CANN", "chip", "clock")
    table = plain_table("What was recorded")
    for heading in ("ranks", *headings):
        table.add_column(heading, overflow="fold")

    def facts(rank: RankReport) -> tuple[str, ...]:
        own = rank.facts
        framework = " ".join(filter(None, (own["framework"], own["framework_version"])))
        facts = (
            own["source_format"], _list_of((rank.options or {}).get("export_type")),
            own["profiler_level"], framework, own["cann_version"], own["chip_name"], own["clock"],
        )  # fmt: skip
        return tuple(one or UNKNOWN for one in facts)

    for who, values in _alike(ranks, facts):
        table.add_row(who, *values)
    yield table
    for who, options in _alike(ranks, lambda rank: _options(rank.options)):
        yield Text.assemble(("\noptions", "bold"), (f"  {who}: ", DIM), options)


def _list_of(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value or "")


def _options(options: Any) -> str:
    """Options that are on, and the numbers of the schedule."""
    if options is None:
        return "unknown: no profiler_info with a configuration"
    on: list[str] = []
    schedule: list[str] = []
    for name, value in options.items():
        if name in ("profiler_level", "export_type"):
            continue  # they have a column
        if name.startswith("schedule."):
            schedule.append(f"{name.partition('.')[2]} {value}")
        elif isinstance(value, list):
            on += [f"{name} {'+'.join(value)}"] if value else []
        elif value is True:
            on.append(name)
        elif value not in (None, False, ""):
            on.append(f"{name} {value}")
    if schedule:
        on.append(f"schedule {' '.join(schedule)}")
    return ", ".join(on) or "none"


def _steps(ranks: Sequence[RankReport]) -> Iterator[RenderableType]:
    table = plain_table("Steps")
    for heading in ("ranks", "steps", "missing", "told by", "basis", "session covered"):
        table.add_column(heading, overflow="fold")

    def steps(rank: RankReport) -> tuple[str, ...]:
        return (
            numbers(rank.steps.steps) or "not marked",
            numbers(rank.steps.missing) or "none",
            rank.rules.get("steps", UNKNOWN),
            rank.rules.get("basis", UNKNOWN),
        )

    members: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for rank in ranks:
        if rank.steps.covered_ratio is not None:
            members[steps(rank)].append(rank.steps.covered_ratio)
    for who, values in _alike(ranks, steps):
        table.add_row(who, *values, _span(members.get(values, []), percent))
    yield table


def _span(values: Sequence[T], form: Callable[[T], str]) -> str:
    if not values:
        return UNKNOWN
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


def _tables(ranks: Sequence[RankReport]) -> Iterator[RenderableType]:
    counted = [(rank, tables_of(rank)) for rank in ranks]
    names = sorted({name for _, tables in counted for name in tables} - {"ranks"})
    table = plain_table("Tables")
    table.add_column("table", overflow="fold")
    table.add_column("rows per rank", justify="right", no_wrap=True, overflow="fold")
    table.add_column("read by", overflow="fold")
    table.add_column("not on", overflow="fold")
    for name in names:
        rows = [tables[name] for _, tables in counted if name in tables]
        readers = sorted({rank.sources[name] for rank in ranks if name in rank.sources})
        lacking = [rank.rank for rank, tables in counted if name not in tables]
        table.add_row(
            name, _span(rows, number), ", ".join(readers) or UNKNOWN,
            ranks_named(lacking) if lacking else "",
        )  # fmt: skip
    yield table


def _rules(ranks: Sequence[RankReport]) -> Iterator[RenderableType]:
    rules: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in ranks:
        for name, value in rank.rules.items():
            if name not in ("steps", "basis"):
                rules[name, value].append(rank.rank)
    if not rules:
        return
    table = plain_table("Rules used")
    table.add_column("rule", overflow="fold")
    table.add_column("choice", overflow="fold")
    table.add_column("ranks", overflow="fold")
    for (name, value), members in sorted(rules.items(), key=lambda rule: ("." in rule[0][0], rule)):
        who = "all" if len(members) == len(ranks) else numbers(members)
        table.add_row(_rule_name(name), value, who)
    yield table


def _rule_name(name: str) -> str:
    place, dot, rest = name.rpartition(".")
    words = {"producers_communication": "producer's communication", "rank": "rank from"}
    words_of_rule = words.get(rest, rest.replace("_", " "))
    places = {"ascend_db": "DB", "kernels": "kernel table", "trace": "timeline"}
    return (
        f"{places.get(place, place.replace('_', ' '))}: {words_of_rule}" if dot else words_of_rule
    )


def _by_sentence(
    ranks: Sequence[RankReport], sentences: Callable[[RankReport], Iterable[str]]
) -> list[tuple[str, str]]:
    """(who, what) of every sentence, in order."""
    members: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        for sentence in sentences(rank):
            members[sentence].append(rank.rank)
    return [
        ("all ranks" if len(who) == len(ranks) > 1 else ranks_named(who), sentence)
        for sentence, who in members.items()
    ]


def _other_warnings(rank: RankReport) -> list[str]:
    """Warnings that are not told with a lost file."""
    lost = (rank.loss.files or {}).values()
    return [warning for warning in rank.warnings or () if not any(why in warning for why in lost)]


def _bullets(title: str, sentences: Sequence[tuple[str, str]]) -> Iterator[RenderableType]:
    if sentences:
        yield Text(title, style="bold")
        for who, sentence in sentences:
            yield Padding(
                Text.assemble("• ", (f"{who}: ", DIM), sentence), (0, 0, 0, 2), expand=False
            )


def _alike(ranks: Sequence[RankReport], key: Callable[[RankReport], K]) -> Iterator[tuple[str, K]]:
    """Groups of ranks with one key, the largest first."""
    members: dict[K, list[int]] = defaultdict(list)
    for rank in ranks:
        members[key(rank)].append(rank.rank)
    order = sorted(members, key=lambda k: (-len(members[k]), members[k][0]))
    for one in order:
        yield numbers(members[one]), one


def plain_table(title: str) -> Table:
    """A table with a title and one line below its headings."""
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
