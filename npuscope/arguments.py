"""Arguments of the Python interface: what is none is told before anything is asked of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from npuscope.errors import UsageError

if TYPE_CHECKING:
    from npuscope.analysis.flops.mfu import ModelUse
    from npuscope.analysis.flops.model.model import Attention, Recompute

_MOST = (1 << 63) - 1  # what the engine's integers hold


def path_of(name: str, value: object) -> Path:
    """A place as a path. Raises UsageError."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or not text or "\0" in text:
        raise UsageError(f"{name} {value!r}: give the path of a profile folder, a store or a file")
    return Path(text)


def check_text(**texts: object) -> None:
    """Raises UsageError where one is neither None nor a text."""
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{name} {value!r}: give a text")


def check_whole(least: int | None = None, **numbers: object) -> None:
    """Raises UsageError where one is neither None nor a whole number, from `least` on."""
    for name, value in numbers.items():
        if value is None:
            continue
        low = -_MOST if least is None else least
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MOST:
            from_on = "" if least is None else f" from {least} on"
            raise UsageError(f"{name} {value!r}: give a whole number{from_on}")


def model_use(
    model: str | None,
    sequence_length: int | None,
    tokens_per_step: int | Literal["auto"] | None,
    attention: Attention,
    recompute: Recompute | None,
) -> ModelUse | None:
    """How a model is trained; None where none is told. Raises UsageError."""
    from npuscope.analysis.flops.mfu import MOST_TOKENS, ModelUse
    from npuscope.analysis.flops.model.describe import model_of

    check_attention(attention)
    check_whole(1, sequence_length=sequence_length)
    if model is None:
        if (sequence_length, tokens_per_step, recompute) != (None, None, None):
            raise UsageError("sequence_length, tokens_per_step and recompute need model=")
        return None
    if isinstance(tokens_per_step, int) and not isinstance(tokens_per_step, bool):
        is_count = 0 < tokens_per_step <= MOST_TOKENS
    else:
        is_count = tokens_per_step in (None, "auto")
    if not is_count:
        raise UsageError(
            f"tokens_per_step {tokens_per_step!r}: give the tokens of the whole job, or auto"
        )
    return ModelUse(model_of(model), sequence_length, tokens_per_step, attention, recompute)


def check_attention(attention: str) -> None:
    """Raises UsageError where attention is counted in no such way."""
    from npuscope.analysis.flops.model.model import Attention

    if attention not in (choices := get_args(Attention)):
        raise UsageError(f"attention {attention!r}: choose one of {', '.join(choices)}")


def check_key(what: str, key: str, choices: tuple[str, ...]) -> None:
    """Raises UsageError where rows are by no such key."""
    if key not in choices:
        raise UsageError(f"{what} by {key!r}: choose one of {', '.join(choices)}")
