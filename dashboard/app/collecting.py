"""What to collect where a page has nothing to show: in the words of `npuscope doctor`."""

from __future__ import annotations

from npuscope.analysis.doctor.limits import Lack, lacks
from npuscope.messages import Message

from .page import Page


def how_to_collect(page: Page, name: str) -> str:
    """What would make a capability possible, else why it is not; nothing where a rank has it."""
    lacks_here: list[Lack] = [one for one in page.frame(lacks, step=None) if one.capability == name]
    ranks = {rank for one in lacks_here for rank in one.ranks}
    capture_ranks = page.capture.ranks if page.view.rank is None else (page.view.rank,)
    if not ranks.issuperset(capture_ranks):
        return ""
    best = min(lacks_here, key=lambda one: one.support == "no")
    if best.remedy is None:
        return best.reason
    return Message("To know it: {remedy}", remedy=best.remedy)
