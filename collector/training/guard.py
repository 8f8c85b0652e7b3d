"""What keeps training safe from us: the kill switch, one warning, and who this process is."""

from __future__ import annotations

import logging
import operator
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import SupportsIndex

KILL_SWITCH = "NPUSCOPE"

log = logging.getLogger(__name__)

_RANKS = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


def is_killed() -> bool:
    """Whether the environment switches npuscope off (NPUSCOPE=0)."""
    return os.environ.get(KILL_SWITCH, "").strip().lower() in ("0", "off", "false", "no")


def warn(message: str) -> None:
    """Tell the user; by the log, as a warning could be an error in somebody's script."""
    try:
        log.warning("npuscope: %s", message)
    except Exception:  # somebody's handler: training is worth more than the message
        return


def rank_here() -> int:
    """This process's global rank, in torch_npu's order: RANK, else torch.distributed's, else 0."""
    rank = os.environ.get("RANK", "").strip()
    if rank.isdecimal():
        return int(rank)
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return 0


def whole(name: str, value: object, least: int | None = None) -> int:
    """An argument as an int, which JSON needs: numpy's are none, nor what a checkpoint gave as 3.0.

    Raises ValueError for any other.
    """
    number: int | None = None
    if isinstance(value, SupportsIndex):
        with suppress(TypeError):  # an array of several has none
            number = operator.index(value)
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        most = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name}={value!r}: give an integer{most}")
    return number


def is_chosen(rank: int, ranks: str | int | Iterable[int] | None) -> bool:
    """Whether a rank is among those named: None all, 3, [0, 8] or "0,7,8-15".

    Raises ValueError for text that is no such list.
    """
    if ranks is None:
        return True
    if not isinstance(ranks, Iterable):
        return rank == whole("ranks", ranks)
    if not isinstance(ranks, str):
        return rank in set(ranks)
    is_found = False
    for part in ranks.split(","):
        span = _RANKS.fullmatch(part)
        if span is None:
            raise ValueError(f"ranks={ranks!r}: write it like 0,7,8-15")
        first, last = int(span[1]), int(span[2] or span[1])
        is_found |= first <= rank <= last
    return is_found
