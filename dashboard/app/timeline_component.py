"""The timeline as a component: what it is told once, since it asks the server for all else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import polars as pl
import streamlit as st

from npuscope.analysis.timeline.event_details import event_columns
from npuscope.analysis.timeline.operator_classes import CLASSES
from npuscope.analysis.timeline.rank_events import HOST_KINDS, STATES
from npuscope.analysis.timeline.replay_tracks import PARTS
from npuscope.analysis.timeline.shared_axis import Extent
from npuscope.messages import Message

from .. import theme
from ..locale.language import label_of
from ..units import words_of
from .page import Page

# What the component says.
WORDS = (
    Message("search events"),
    Message("colour of the overview"),
    Message("back"),
    Message("all of it"),
    Message("closer"),
    Message("further"),
    Message("previous"),
    Message("next"),
    Message("mark the selection"),
    Message("save as a picture"),
    Message("keys"),
    Message("details"),
    Message("Timeline: W and S zoom, A and D move, arrows go from event to event."),
    Message("rank"),
    Message("overview"),
    Message("host threads"),
    Message("memory and counters"),
    Message("overlap"),
    Message("critical path"),
    Message("steps with the change"),
    Message("predicted"),
    Message("slack"),
    Message("how much longer may it take?"),
    Message("being computed"),
    Message("events"),
    Message("length"),
    Message("start"),
    Message("size"),
    Message("bandwidth"),
    Message("waited for the last member"),
    Message("launched by"),
    Message("launch latency"),
    Message("to its launch"),
    Message("measured"),
    Message("type"),
    Message("time"),
    Message("busy"),
    Message("no event found"),
    Message("note"),
    Message("mark"),
    Message("close"),
    Message("closer, further"),
    Message("earlier, later"),
    Message("closer and further at the pointer"),
    Message("move"),
    Message("measure a stretch"),
    Message("fit the selection"),
    Message("pin the track"),
    Message("move the track"),
    Message("move the rank"),
    Message("drag a name"),
    Message("move track or rank"),
    Message("next hit"),
    Message("event before and after"),
    Message("scroll"),
    Message("nothing selected"),
    Message("step"),
    Message("steps that begin together"),
    Message("wheel"),
    Message("drag"),
    Message("shift + drag"),
    Message("computing"),
    Message("masked communication"),
    Message("exposed communication"),
    Message("free"),
    Message("matmul"),
    Message("attention"),
    Message("norm"),
    Message("routing"),
    Message("optimizer"),
    Message("movement"),
    Message("vector"),
    Message("other"),
    *map(Message, PARTS),
)


@cache
def _component() -> Any:
    folder = resources.files("npuscope.dashboard").joinpath("timeline_component")
    return st.components.v2.component(
        "npuscope_timeline",
        html='<div class="timeline"></div>',
        css=folder.joinpath("timeline.css").read_text(encoding="utf-8"),
        js=folder.joinpath("timeline.js").read_text(encoding="utf-8"),
    )


@dataclass(frozen=True, slots=True)
class Timeline:
    """A capture on the timeline, by `name`: where its ranks are in time, rows of `step_borders`,
    and the step that begins with one of the other capture, where there are two."""

    page: Page
    name: str
    at: Extent
    borders: pl.DataFrame
    step: int | None = None


def draw_timeline(
    upper: Timeline,
    beneath: Timeline | None = None,
    *,
    open_ranks: Sequence[int],
    window_ns: tuple[int, int] | None,
    kinds: Sequence[str],
) -> None:
    """Draw the timeline of a capture, and of another one beneath it: `open_ranks` unfolded,
    `window_ns` of it in sight, where the visitor has not looked elsewhere; `kinds` are those that
    its groups have."""
    page = upper.page
    one = _capture_facts(upper)
    zero = int(one["zero"])
    base = str(st.get_option("server.baseUrlPath")).strip("/")
    config = {
        "base": f"/{base}/timeline-data" if base else "/timeline-data",
        **one,
        "beside": beneath and _capture_facts(beneath) | {"align": [upper.step, beneath.step]},
        "change": page.view.change or "", "lang": page.view.lang, "parts": list(PARTS),
        "window": window_ns and [window_ns[0] - zero, window_ns[1] - zero],
        "open": list(open_ranks),
        "colours": _colours(), "states": list(STATES), "classes": list(CLASSES),
        "kinds": list(kinds), "texts": _texts(page),
    }  # fmt: skip
    _component()(data=config, key="timeline")


def _texts(page: Page) -> dict[str, str]:
    """What the component says, and what columns of an event are called: their units stand with
    their values, and some words mean something else in tables."""
    columns = page.frame(event_columns)
    return {
        **{name: label_of(f"event {name}", words_of(name), page.say) for name in columns},
        **{str(one): str(page.say(one)) for one in WORDS},
    }


def _capture_facts(timeline: Timeline) -> dict[str, Any]:
    """What is told of each capture: names by which the server is asked, and its time."""
    page, whole = timeline.page, timeline.at.window_ns
    assert whole is not None
    zero, capture = whole[0], page.capture
    return {
        "place": {"store": capture.store, "run": capture.run, "capture": capture.capture},
        "name": timeline.name, "version": f"{hash(page.version)}",
        "zero": str(zero), "extent": whole[1] - zero,
        "ranks": list(capture.ranks), "silent": _silent(page, timeline.at),
        "steps": [
            {"step": step, "start": start - zero, "end": end - zero}
            for step, start, end in timeline.borders["step", "start_ns", "end_ns"].rows()
        ],
    }  # fmt: skip


def _silent(page: Page, at: Extent) -> Mapping[int, str]:
    """Why nothing is drawn of some ranks."""
    ranks_with_events = set(at.ranks["rank"])
    sentence = str(page.say("no events"))
    return {rank: sentence for rank in page.capture.ranks if rank not in ranks_with_events}


def _colours() -> dict[str, Any]:
    return {
        "states": [theme.COMPUTING, theme.MASKED, theme.EXPOSED, theme.FREE],
        "classes": [theme.OPERATORS[one] for one in CLASSES],
        "groups": dict(theme.KINDS),
        "host": [theme.HOST[one] for one in HOST_KINDS],
        "path": [theme.PATH[one] for one in PARTS], "whatif": [theme.MEASURED, theme.PREDICTED],
        "memory": theme.MEMORY, "counter": theme.COUNTER,
    }  # fmt: skip
