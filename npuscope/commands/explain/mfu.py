"""`npuscope mfu`: how much of the peak the kernels and the model use."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from npuscope.analysis.scope import Scope
from npuscope.commands.command import Request, TopOrAll, command, largest, notes_of
from npuscope.commands.explain.model_options import (
    Again,
    Counting,
    Length,
    ModelName,
    PeakText,
    Tokens,
    use_of,
)
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.flops.mfu import Figures
    from npuscope.profile import OpenTables

By = Literal["step", "stage", "job", "kernel", "log"]
Key = Annotated[By, typer.Option("--by", metavar="KEY", help="|".join(get_args(By)))]
Fall = Annotated[bool, typer.Option("--waterfall", help="Losses from peak to achieved FLOP/s.")]
LogFile = Annotated[
    Path | None,
    typer.Option("--log", metavar="FILE", help="Training log, to compare its MFU."),
]


@command("run", "capture", "rank", "step")
def mfu(
    request: Request,
    model: ModelName = None,
    sequence_length: Length = None,
    tokens_per_step: Tokens = None,
    attention: Counting = "causal",
    recompute: Again = None,
    peak: PeakText = None,
    by: Key = "step",
    waterfall: Fall = False,
    log: LogFile = None,
    *,
    top: TopOrAll = None,
) -> None:
    """How much of the chip's peak kernels and model use, from shapes; each kernel's roofline.

    \b
    Examples:
      npuscope mfu ./profiles
      npuscope mfu ./profiles --model deepseek-v3 --tokens-per-step 15728640 --peak 353.9T
      npuscope mfu ./profiles --by kernel --rank 0 --step 13 --top 20
      npuscope mfu ./profiles --waterfall
      npuscope mfu ./profiles --model qwen3-8b --log train.log --by log
    """
    from npuscope.analysis.catalog import column_names
    from npuscope.analysis.flops import chips, job_mfu
    from npuscope.analysis.flops.kernels import roofline
    from npuscope.analysis.flops.kernels.count import counted_kernels
    from npuscope.analysis.flops.mfu import mfu as figures_of
    from npuscope.analysis.flops.peaks import parse_peaks
    from npuscope.dashboard.terminal import mfu_tables as tables

    if waterfall and by != "step":
        raise UsageError("--waterfall has rows of its own: leave --by out")
    peaks = parse_peaks(peak) if peak is not None else None
    use = use_of(model, sequence_length, tokens_per_step, attention, recompute)
    if use is None and (by == "log" or log is not None):
        raise UsageError("--log compares the log with a model's FLOPs: give --model too")
    with request.tables() as (data, scope):
        logged = None
        if use is not None:
            from npuscope.analysis.flops.log_figures import trainer_log  # reads logs: seldom met

            logged = trainer_log(data.con, data.target, log, scope)
        if use is not None and use.tokens_per_step is None and logged is not None:
            use = replace(
                use,
                tokens_per_step=logged.facts.tokens_per_step,
                tokens_from=("as in the training log"),
            )
        figures = figures_of(data.con, scope, given_peaks=peaks, use=use)
        notes = figures.notes + notes_of(data, scope)
        beside = None
        if use is not None and logged is not None:
            from npuscope.analysis.flops.log_figures import reconcile_figures, verdict_notes

            beside = reconcile_figures(data.con, scope, logged, figures, use)
            notes += [*logged.notes, *verdict_notes(beside)]
        if waterfall:
            _show_waterfall(request, data, figures, notes, scope, attention)
        elif by == "log":
            if beside is None:
                raise UsageError("no training log is stored: give --log FILE")
            from npuscope.analysis.flops.log_figures import verdicts

            rows = verdicts(beside) if not request.json else beside
            request.answer("mfu_log", rows, notes, tables.log_table)
        elif by == "kernel":
            kernels = roofline.kernel_table(
                counted_kernels(data.con, scope),
                chips.peaks(data.con, peaks),
                attention=attention,
                top=top,
            )
            request.answer("mfu_kernels", kernels, notes, tables.roofline_table)
        elif by == "step":
            rows = figures.rows.select(column_names("mfu"))
            rows = largest(rows, top, "step_ns")
            table = partial(tables.mfu_table, conventions=figures.conventions)
            request.answer("mfu", rows, notes, table)
        else:
            together = job_mfu.gather_figures(data.con, figures.rows, by)
            request.answer(f"mfu_{by}", together, notes, tables.gathered_table)


def _show_waterfall(
    request: Request,
    data: OpenTables,
    figures: Figures,
    notes: list[str],
    scope: Scope,
    attention: str,
) -> None:
    """The losses of each rank and step, or of the job and its stages as a table."""
    from npuscope.analysis.flops.kernels.count import counted_kernels, kernel_work
    from npuscope.analysis.flops.losses import loss_notes, losses, together
    from npuscope.dashboard.terminal.parts_table import waterfall_table
    from npuscope.profile import compare_ranks

    compare_ranks(data, is_needed=False)
    work = kernel_work(counted_kernels(data.con, scope), attention=attention)
    rows = losses(data.con, figures.rows, work, scope)
    sentences = [*notes, *loss_notes(figures.rows, rows)]
    stages = together(data.con, rows, by="stage")
    request.answer(
        "mfu_waterfall", rows, sentences,
        lambda each: waterfall_table(together(data.con, each), stages),
    )  # fmt: skip
