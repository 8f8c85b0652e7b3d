"""Findings as cards: what is the matter, what it costs, what to try, and where to see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from npuscope.analysis.findings.finding import CERTAINTIES, Certainty, Finding, gain_words
from npuscope.analysis.timeline.evidence_place import evidence_place
from npuscope.analysis.timeline.shared_axis import extent
from npuscope.analysis.wording import ms, percent
from npuscope.messages import Message

from ..answers.overview_answers import found_here, page_of, place_of
from ..answers.timeline_answers import evidence_asked, shown_evidence
from ..locale.language import Say
from .page import PAGES, Page
from .plain_text import plain, sentence

_OPEN_CARDS = 3
_MARKS: dict[Certainty, Literal["blue", "orange", "gray"]] = {
    "measured": "blue",
    "estimated": "orange",
    "hint": "gray",
}


def finding_cards(page: Page, findings: Sequence[Finding]) -> None:
    """The first findings in full, the others folded."""
    if not findings:
        page.empty(
            "No finding costs 1 % of a step or more.",
            "The page Data quality lists what this profile cannot show.",
        )
    for number, one in enumerate(findings[:_OPEN_CARDS]):
        _card(page, one, number)
    if more := findings[_OPEN_CARDS:]:
        with st.expander(f"{page.say('more')} ({len(more)})"):
            for number, one in enumerate(more, start=_OPEN_CARDS):
                _card(page, one, number)


def verdict_here(page: Page, slot: DeltaGenerator, answer: str | None = None) -> None:
    """What the findings of the whole capture say of this page's question, into its place before
    the figures: called when these stand. `answer` is what the page itself has to say, before them.
    """
    with slot.container():
        findings = page.later(found_here, rank=None, step=None)
        if findings is None:
            return
        mine = [one for one in findings if page_of(one) == page.name]
        sentences = [*([answer] if answer else []), *(one.statement for one in mine)]
        page.verdict(
            sentences[0]
            if sentences
            else Message("Nothing found here costs 1 % of a step or more.")
        )
        if mine or answer is None:
            page.of_all()
        page.text(*sentences[1:])
        if mine:
            with st.container(horizontal=True, gap="small"):
                _links(page, mine[0])


def _card(page: Page, finding: Finding, number: int) -> None:
    say = page.say
    with st.container(border=True, key=f"finding_{number}"):
        cost, column = st.columns([1, 4], vertical_alignment="center")
        with cost:
            _figures(say, finding)
        with column:
            st.markdown(sentence(say(finding.statement)))
            # The longest name of a page leaves its row room for the badge at 1280 px.
            with st.container(horizontal=True, gap="xsmall", vertical_alignment="center"):
                _links(page, finding)
                with st.popover(say("why, and what to try"), type="tertiary"):
                    st.markdown(f"**{plain(say('try'))}:** {sentence(say(finding.advice))}")
                    st.markdown(
                        f"**{plain(say('predicted gain'))}:** {sentence(say(gain_words(finding)))}"
                    )
                    st.caption(sentence(say(finding.reason)))
                st.badge(
                    say(finding.certainty),
                    color=_MARKS[finding.certainty],
                    help=plain(say(CERTAINTIES[finding.certainty])),
                )


def _figures(say: Say, finding: Finding) -> None:
    """What ending it gains, as far as that is known, and what it takes now."""
    gain, stake, share = finding.predicted_gain_ns, finding.at_stake_ns, finding.step_share_ratio
    if gain is not None:
        st.markdown(f"**{ms(gain)} ms**  \n{plain(say('predicted gain'))}")
    if stake is None:
        st.markdown(f"**{plain(say('time unknown'))}**" if gain is None else "")
        return
    part = f" ({percent(share)})" if share is not None else ""
    words = f"{plain(say('at stake in a step'))}{part}"
    if gain is None:
        st.markdown(f"**{ms(stake)} ms**  \n{words}")
    else:
        st.caption(f"{ms(stake)} ms {words}")


def _evidence(page: Page, finding: Finding) -> dict[str, str | int]:
    """Where on the timeline the finding is seen: window, ranks and what stands out there."""
    request = evidence_asked(finding)
    if request is None:
        return {}
    at = page.frame(extent)
    place = page.frame(evidence_place, at=at, **request)
    if place is None or at.window_ns is None:
        return {}
    return shown_evidence(place, at.window_ns[0], str(page.say(finding.statement)))


def _links(page: Page, finding: Finding) -> None:
    """To the page that shows most of it, and to its place in time."""
    place: dict[str, str | int | None] = {**place_of(finding)}
    name = page_of(finding)
    if name not in ("timeline", page.name):
        rank = {"rank": place["rank"]} if name == "ranks" and "rank" in place else {}
        page.link(f"{page.say(PAGES[name])} →", name, **rank)
    page.link(f"{page.say(PAGES['timeline'])} →", "timeline", **place, **_evidence(page, finding))
    if finding.predicted_gain_ns is not None:
        page.link(f"{page.say(PAGES['whatif'])} →", "whatif", change=" ".join(finding.changes))
