"""All findings of the open captures, by the time at stake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import duckdb

from .. import query
from ..experts.load.load_overview import Overview
from . import communication_rules, expert_rules, kernel_rules, memory_rules, time_rules
from .finding import CERTAINTIES, Finding, addressed, ranked
from .material import Material, material
from .weigh import WORTH_RATIO

Rule = Callable[[Material], Iterator[Finding]]
# A rule looks at one capture; its docstring says what for.
RULES: tuple[Rule, ...] = (
    communication_rules.uneven_stages,
    communication_rules.pipeline_bubble,
    communication_rules.uncaptured_ranks,
    communication_rules.late_ranks,
    communication_rules.exposed_communication,
    time_rules.device_idle,
    time_rules.between_steps,
    time_rules.stragglers,
    time_rules.uneven_steps,
    expert_rules.expert_imbalance,
    kernel_rules.data_movement,
    kernel_rules.data_setting,
    kernel_rules.ai_cpu_kernels,
    memory_rules.memory_fragmentation,
    memory_rules.memory_growth,
)


def findings(
    con: duckdb.DuckDBPyConnection,
    *,
    run: str | None = None,
    capture: str | None = None,
    rank: int | None = None,
    step: int | None = None,
    path: str = "PATH",
    experts: Overview | None = None,
) -> list[Finding]:
    """What is worth changing in the chosen captures, the most time at stake first.

    `path` stands in the commands that show more; `experts` is of the one capture chosen, where it
    is known already.
    """
    found: list[Finding] = []
    for one in query.capture_facts(con, run=run, capture=capture).to_dicts():
        seen = material(
            con, run=one["run"], capture=one["capture"], rank=rank, step=step, experts=experts
        )
        for rule in RULES:
            found += rule(seen)
    return addressed(ranked(found), path)


def finding_rows(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as JSON can hold them; `evidence` is a list of rows."""
    return [
        {
            "finding": one.name,
            "run": one.run,
            "capture": one.capture,
            "statement": one.statement,
            "at_stake_ns": one.at_stake_ns,
            "step_share_ratio": one.step_share_ratio,
            "certainty": one.certainty,
            "reason": one.reason,
            "advice": one.advice,
            "evidence": query.rows(one.evidence),
            "command": one.command,
        }
        for one in found
    ]


def findings_markdown() -> str:
    """The rules as a Markdown page."""
    lines = [
        "# Findings",
        "",
        "Written from `analysis/findings`: change that.",
        "",
        "`npuscope findings PATH`, the report and its page open with what to change first, by the"
        " time per step at stake: a mean over steps and ranks. What costs less than"
        f" {WORTH_RATIO:.0%} of a step is left out, and so is a rule whose input is unknown.",
        "",
        "A step's length is computing + exposed communication + free time. The first six rules"
        " share out what is not computing and count no nanosecond twice; the others may overlap"
        " with them. Uneven stages stand first where there are any: other waiting follows from"
        " them.",
        "",
        "| finding | what it is |",
        "| --- | --- |",
    ]
    lines += [f"| {rule.__name__} | {' '.join((rule.__doc__ or '').split())} |" for rule in RULES]
    lines += ["", "| how sure | meaning |", "| --- | --- |"]
    lines += [f"| {name} | {meaning} |" for name, meaning in CERTAINTIES.items()]
    return "\n".join(lines) + "\n"
