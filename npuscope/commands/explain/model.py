"""`npuscope model`: a model's FLOPs per token, term by term, and what is published of its MFU."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from npuscope.commands.command import Json, say_notes
from npuscope.console import print_json, show
from npuscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

_SEQUENCE_LENGTH = 4096

What = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE|PRESET",
        help="config.json, Megatron or MindSpeed-LLM script or log, .toml, or a preset's name."
        " [default: list the presets]",
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--sequence-length", metavar="N", min=1, help=f"Tokens.  [default: {_SEQUENCE_LENGTH}]"
    ),
]
Counting = Annotated[
    Literal["causal", "full"] | None,
    typer.Option("--attention", metavar="KIND", help="causal|full  [default: causal]"),
]
Blocks = Annotated[
    int | None,
    typer.Option("--mtp", metavar="N", min=0, help="MTP blocks counted.  [default: the model's]"),
]
Router = Annotated[bool, typer.Option("--router", help="Count the experts' router.")]
Again = Annotated[
    Literal["none", "selective", "full"] | None,
    typer.Option("--recompute", metavar="KIND", help="none|selective|full  [default: none]"),
]
Reconcile = Annotated[
    bool, typer.Option("--reconcile", help="Find the conventions that give a published MFU.")
]


def model(
    what: What = None,
    sequence_length: Length = None,
    attention: Counting = None,
    mtp: Blocks = None,
    router: Router = False,
    recompute: Again = None,
    reconcile: Reconcile = False,
    json: Json = False,
) -> None:
    """FLOPs per token of a model, term by term; its parameters; how its published MFU was counted.

    \b
    Examples:
      npuscope model                                     which models are known by name?
      npuscope model deepseek-v3 --attention full --mtp 0
      npuscope model ./config.json --sequence-length 8192 --recompute full
      npuscope model ./pretrain.sh --json
      npuscope model pangu-ultra-moe-718b --reconcile
    """
    from npuscope.analysis.flops.model import model as flops
    from npuscope.analysis.flops.model.describe import model_of, presets
    from npuscope.dashboard.terminal import model_tables

    wish = (sequence_length, attention, mtp, recompute)
    has_conventions = router or any(value is not None for value in wish)
    if what is None:
        if reconcile or has_conventions:
            raise UsageError(
                "no model given: give a file or a preset; `npuscope model` lists the presets"
            )
        rows = model_tables.preset_rows(presets())
        _answer("models", rows, [], json, lambda: model_tables.presets_table(rows))
    elif reconcile:
        if has_conventions:
            raise UsageError("--reconcile tries all conventions: do not combine it with them")
        _reconcile(what, json)
    else:
        counted = flops.count(
            model_of(what),
            sequence_length=sequence_length or _SEQUENCE_LENGTH,
            attention=attention or "causal",
            mtp=mtp,
            router=router,
            recompute=recompute or "none",
        )
        row = model_tables.model_row(counted)
        notes = []
        if sequence_length is None:
            notes.append(f"sequence length not given: {_SEQUENCE_LENGTH} (--sequence-length N)")
        _answer("model", [row], notes, json, lambda: model_tables.model_table(row))


def _reconcile(what: str, json: bool) -> None:
    from npuscope.analysis.flops.model import reconcile
    from npuscope.analysis.flops.model.describe import model_of
    from npuscope.dashboard.results import records
    from npuscope.dashboard.terminal import model_tables

    described = model_of(what)
    training = reconcile.published_of(described)
    reconciliations = reconcile.reconcile(described, training)
    notes = []
    if reconciliations:
        as_mfu = [row for row in reconciliations if row.reading != "hfu"]
        notes.append(
            f"{sum(row.reconciles for row in as_mfu)} of {len(as_mfu)} conventions give the"
            f" published MFU within {reconcile.TOLERANCE * 100:g} %; a match is no proof"
        )
    rows = records(reconciliations) or model_tables.bubble_rows(training.pipelines)
    metric = "model_reconcile" if reconciliations else "model_bubbles"
    _answer(
        metric, rows, notes, json, lambda: model_tables.reconcile_table(reconciliations, training)
    )


def _answer(
    metric: str,
    rows: list[dict[str, Any]],
    notes: list[str],
    json: bool,
    table: Callable[[], RenderableType],
) -> None:
    """Rows as JSON, or the table made of them, with notes."""
    if json:
        print_json(metric, rows, notes)
        return
    show(table())
    say_notes(notes)
