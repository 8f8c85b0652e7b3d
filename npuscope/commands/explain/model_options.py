"""Options that say which model a job trains and how, for commands that tell its MFU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.flops.mfu import ModelUse
    from npuscope.analysis.flops.model.model import Attention, Recompute

ModelName = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="FILE|PRESET", help="The model trained, as `npuscope model` takes it."
    ),
]
Length = Annotated[
    int | None,
    typer.Option(
        "--sequence-length", metavar="N", min=1, help="Tokens.  [default: from kernel shapes]"
    ),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        "--tokens-per-step", metavar="N|auto", help="Of the whole job; auto: from kernel shapes."
    ),
]
AutoTokens = Annotated[
    str | None,
    typer.Option(
        "--tokens-per-step",
        metavar="N|auto",
        help="Of the whole job.  [default: auto, from kernel shapes]",
    ),
]
Counting = Annotated[
    Literal["causal", "full"],
    typer.Option("--attention", metavar="KIND", help="causal|full: how attention is counted."),
]
Again = Annotated[
    Literal["none", "selective", "full"] | None,
    typer.Option("--recompute", metavar="KIND", help="none|selective|full: for HFU."),
]
PeakText = Annotated[
    str | None,
    typer.Option(
        "--peak", metavar="FLOP/S", help="294.9T, or by type: bf16=294.9T,fp32=83T,hbm=1.6T."
    ),
]


def use_of(
    model: str | None,
    sequence_length: int | None,
    tokens_per_step: str | None,
    attention: Attention,
    recompute: Recompute | None,
    *,
    is_auto: bool = False,
) -> ModelUse | None:
    """What the options say of the model; None: nothing. Raises UsageError.

    `is_auto`: tokens per step are as shapes tell unless they are given.
    """
    from npuscope.analysis.flops.mfu import ModelUse
    from npuscope.analysis.flops.model.describe import model_of

    if model is None:
        for option, value in (
            ("--sequence-length", sequence_length),
            ("--tokens-per-step", tokens_per_step),
            ("--recompute", recompute),
        ):
            if value is not None:
                raise UsageError(f"{option} applies to a model: give --model too")
        return None
    return ModelUse(
        model_of(model),
        sequence_length,
        _tokens("auto" if is_auto and tokens_per_step is None else tokens_per_step),
        attention,
        recompute,
    )


def _tokens(text: str | None) -> int | Literal["auto"] | None:
    if text is None:
        return None
    if text == "auto":
        return "auto"
    from npuscope.analysis.flops.mfu import MOST_TOKENS

    if not text.isdecimal() or not 0 < int(text[:20]) <= MOST_TOKENS:
        raise UsageError(f"--tokens-per-step {text}: give the tokens of the whole job, or auto")
    return int(text)
