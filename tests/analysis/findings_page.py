"""The page docs/findings.md, made of the rules."""

from __future__ import annotations

from npuscope.analysis.findings.finding import CERTAINTIES
from npuscope.analysis.findings.list_findings import RULES
from npuscope.analysis.findings.weigh import WORTH_RATIO
from npuscope.analysis.replay.captures import LESS, MOST_OPERATIONS


def findings_markdown() -> str:
    """The rules as a Markdown page."""
    lines = [
        "# Findings",
        "",
        "Written from `analysis/findings`: change that.",
        "",
        "`npuscope findings PATH`, the report and its page open with what to change first, by the"
        " predicted gain: what a replay of the job says a mean step would be shorter by"
        " ([what if](whatif.md)), with its range. What costs less than"
        f" {WORTH_RATIO:.0%} of a step and gains less than {WORTH_RATIO:.0%} of one is left out,"
        " and so is a rule whose input is unknown. Free time and calls of the host bound no gain:"
        " without a wait the host is ahead again, and a call on one rank keeps all waiting. What"
        " stands here for its gain alone says so.",
        "",
        "Each finding names the changes that were replayed, in the words of `npuscope whatif`, so"
        " that anybody can repeat them: a rank, host, link or stage becomes as its like are, the"
        " time between steps goes, a pipeline without uneven stages runs as ZB-H1, which is named"
        " only where all of its range is a gain; of"
        " what has nothing to be alike (exposed communication, launches, copies) it is what"
        f" {1 - LESS:.0%} less time would gain. Time at stake, a mean over steps and ranks (of slow"
        " links over the ranks at their ends), is what the loss takes now: it is no gain, and where"
        " ranks wait for each other in turn, a step"
        " may get shorter by more. Where a replay cannot answer, the gain is unknown, with the"
        " reason, and the finding stands below the others, by its time at stake; communication"
        " with ranks that were not captured stands by it among the others, whose gains hang on"
        " what those ranks do."
        f" Captures of more than {MOST_OPERATIONS:,} operations have no gains here: `npuscope"
        " whatif` takes the time to work them out.",
        "",
        "A step's length is computing + exposed communication + free time. Shares of time at stake"
        " are of its mean over ranks and steps; time between steps is no part of it, and has its"
        " share of the time from one step's start to the next on a rank. Gains, and shares of them,"
        " are of the job's step, as `npuscope whatif` has it: from the latest start over ranks to"
        " that of the next step (of the last one: to the latest end), so the two may differ. The"
        " first six rules share out what is not computing and count no nanosecond twice; the others"
        " may overlap with them.",
        "",
        "| finding | what it is |",
        "| --- | --- |",
    ]
    lines += [
        f"| {rule.__name__.lstrip('_')} | {' '.join((rule.__doc__ or '').split())} |"
        for rule in RULES
    ]
    lines += ["", "| how sure | meaning |", "| --- | --- |"]
    lines += [f"| {name} | {meaning} |" for name, meaning in CERTAINTIES.items()]
    return "\n".join(lines) + "\n"
