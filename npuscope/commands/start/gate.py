"""`npuscope gate`: limits on the change from one run to another; `npuscope baseline save`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npuscope.commands.command import (
    Jobs,
    Json,
    Memory,
    leave_where_partial,
    list_failures,
    say_notes,
)
from npuscope.commands.start.compare import compare_sides, side_of
from npuscope.commands.start.report import Markdown, document, write
from npuscope.console import print_json, print_text, say, show
from npuscope.errors import UsageError

_LIMITS = (
    "step_time, computing_time, exposed_communication_time, free_time, masking_ratio, mfu,"
    " peak_memory, expert_imbalance"
)
Before = Annotated[
    str,
    typer.Option(
        "--baseline", metavar="A", help="What may change: a PATH of compare, or a saved baseline."
    ),
]
After = Annotated[str, typer.Option("--candidate", metavar="B", help="What is judged, likewise.")]
AlsoBefore = Annotated[
    list[str] | None,
    typer.Option(
        "--also-baseline", metavar="PATH", help="Another capture like A: tells the noise."
    ),
]
AlsoAfter = Annotated[
    list[str] | None,
    typer.Option("--also-candidate", metavar="PATH", help="Another capture like B."),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=LIMIT",
        help=f"How far it may change: + grow, - fall. NAME is one of {_LIMITS}.",
    ),
]
LimitFile = Annotated[
    Path | None,
    typer.Option("--limits", metavar="FILE", help='TOML file of lines such as step_time = "+3 %".'),
]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="FILE", help="JUnit XML, a test per limit.")
]
Annotations = Annotated[
    bool, typer.Option("--annotations", help="On stdout, as GitHub's workflow commands.")
]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="OUT", help="Where to write the Markdown.")
]
MarkdownLanguage = Annotated[
    str, typer.Option("--lang", metavar="LANG", help="For --markdown: en|zh")
]
To = Annotated[Path, typer.Option("-o", "--out", metavar="OUT", help="The file to write.")]
Of = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="Profile folder, store, .duckdb export, or PATH@RUN or PATH@RUN/CAPTURE of one.",
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option("--also", metavar="PATH", help="Another capture like it: tells the noise."),
]


def gate(
    baseline: Before,
    candidate: After,
    limit: Limits = None,
    limits: LimitFile = None,
    also_baseline: AlsoBefore = None,
    also_candidate: AlsoAfter = None,
    junit: Junit = None,
    annotations: Annotations = False,
    markdown: Markdown = False,
    out: Out = None,
    lang: MarkdownLanguage = "en",
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Does a change keep its limits? Exit code 1 where one is broken and the difference is real.

    Where none is broken, but a capture or rank could not be read, the exit code is 4.

    \b
    Examples:
      npuscope gate --baseline base.json --candidate ./profiles --limit "step_time=+3 %"
      npuscope gate --baseline ./before --candidate ./after --limits limits.toml --junit gate.xml
      npuscope gate --baseline base.json --candidate ./profiles --limits limits.toml \\
          --annotations --markdown -o comment.md
      npuscope baseline save ./profiles -o base.json
    """
    from npuscope.analysis.compare.difference import recorded_differently
    from npuscope.analysis.compare.limits import judge, limits_of
    from npuscope.dashboard.locale.language import language_of
    from npuscope.dashboard.report import gate_results

    language_of(lang)
    if json + annotations + (markdown and out is None) > 1:
        raise UsageError("one of --json, --annotations and --markdown without -o has stdout")
    if out is not None and not markdown:
        raise UsageError("-o goes with --markdown")
    limits_of_job = limits_of(limit or [], limits)
    comparison, beside = compare_sides(
        [baseline, *(also_baseline or [])], [candidate, *(also_candidate or [])], jobs, memory
    )
    judged = judge(limits_of_job, comparison)
    notes = [*recorded_differently(comparison), *beside.notes]
    in_full = [*beside.left_out, *notes]
    warnings = gate_results.warnings(judged, comparison.unit)
    if junit is not None:
        write(gate_results.junit(judged, comparison), junit)
    if markdown:
        blocks = gate_results.gate_blocks(judged, comparison, (baseline, candidate), in_full)
        document(blocks, None, out, lang)
    if json:
        print_json("gate", judged.to_dicts(), [*warnings, *in_full])
    elif annotations:
        print_text(gate_results.workflow_commands(judged, comparison.unit))
    elif not markdown or out is not None:
        show(gate_results.limits_table(judged))
        say_notes(notes)
    for warning in warnings:
        say(f"warning: {warning}")
    broken = judged.filter(verdict="broken")["limit"].to_list()
    if broken:
        for place in beside.places:
            if place.result is not None:
                list_failures(place.result)
        say(f"npuscope: broken: {', '.join(broken)}")
        raise typer.Exit(1)
    leave_where_partial(*beside.places)


def save(path: Of, out: To, also: Also = None, jobs: Jobs = None, memory: Memory = None) -> None:
    """Keep what `gate` and `compare` need of a run as a file of a few kB.

    \b
    Examples:
      npuscope baseline save ./profiles -o base.json
      npuscope baseline save ./monday --also ./tuesday -o base.json
    """
    from npuscope.analysis.compare.baseline import baseline_bytes
    from npuscope.dashboard.whole_files import write_whole

    side, beside = side_of([path, *(also or [])], jobs, memory)
    with write_whole(out) as file:
        size = file.write(baseline_bytes(side))
    say_notes(beside.notes)
    say(f"written: {out} ({side.steps.height} steps, {size / 1000:.1f} kB)")
    leave_where_partial(*beside.places)
