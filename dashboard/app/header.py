"""The head of every page: what to look at, in which language, and how fresh it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TypeVar

import streamlit as st

from npuscope.console.printable import visible
from npuscope.messages import Message

from ..locale.language import Say, languages
from ..theme import DARK, LIGHT
from . import sources
from .plain_text import plain, sentence
from .state import Choices, View, move_view, params_of, unknown_choices, view_of

_POLL_S = 5
_VIEW, _GAPS = "view", "lacking"
_MOST_TOLD, _ELLIPSIS = 3, "…"
_ALL = -1  # of a picker: nothing chosen, since None would read as a question
_BAR_PX, _MENU_PX = 48, 44
# The bar stays below the menu while the page scrolls under it; what names a figure's metrics stands
# close to it; halves beside each other stand below each other in a narrow window; where a part is
# being computed stands a bar, or a block as high as a small figure.
# Streamlit sets the page's colour-scheme, which `light-dark` follows.
_LOOK = f"""<style>
[data-testid="stHeader"] {{height: {_MENU_PX}px; min-height: {_MENU_PX}px;}}
[data-testid="stMainBlockContainer"] {{padding: {_MENU_PX}px 2rem 2rem;}}
[data-testid="stMainBlockContainer"] > [data-testid="stVerticalBlock"] {{gap: 0.6rem;}}
[data-testid="stMainBlockContainer"] [data-testid="stTabPanel"] > div {{gap: 0.6rem;}}
[data-testid="stLayoutWrapper"]:has(> .st-key-bar) {{
    position: sticky; top: {_MENU_PX}px; z-index: 99; height: {_BAR_PX}px;
    flex: 0 0 {_BAR_PX}px; width: calc(100% + 4rem); max-width: none; margin: 0 -2rem;
    padding: 0 2rem;
    background: light-dark({LIGHT[1]}, {DARK[1]});
    border-bottom: 1px solid light-dark({LIGHT[3]}, {DARK[3]});
}}
.st-key-bar {{height: {_BAR_PX}px; gap: 0.5rem; flex-wrap: nowrap;}}
.st-key-bar > div {{min-width: 0; flex: 1 1 0;}}
.st-key-bar [data-baseweb="select"] > div {{min-height: 36px; height: 36px;}}
[data-testid="stMain"] h3 {{font-size: 1rem; font-weight: 500; padding: 0 0 0.5rem; opacity: 0.75;}}
.st-key-verdict p {{font-size: 1.2rem; line-height: 1.45; font-weight: 600;}}
.st-key-headline > .stElementContainer:first-child p {{font-size: 2rem; line-height: 1.2;
    font-weight: 700; white-space: nowrap;}}
.st-key-fresh {{position: absolute; right: 2rem; width: auto; z-index: 98; padding: 0 0.3rem;
    background: light-dark({LIGHT[1]}, {DARK[1]});}}
@media (max-width: 1000px) {{
    .st-key-fresh {{position: static;}}
    .st-key-halves > * > [data-testid="stHorizontalBlock"] > [data-testid="stColumn"] {{
        min-width: 100%;}}
}}
.stElementContainer:has(.stPlotlyChart) + .stElementContainer {{margin-top: -0.6rem;}}
[data-testid="stMetricValue"] {{font-size: 1.7rem;}}
[data-testid="stMetricLabel"] p {{font-size: 0.85rem;}}
@keyframes awaited {{50% {{opacity: 0.35;}}}}
.awaited, .stCacheSpinner {{height: 1.8rem; border-radius: 6px;
    animation: awaited 1.6s ease-in-out infinite;
    background: light-dark({LIGHT[2]}, {DARK[2]});}}
.stElementContainer:has(> .stCacheSpinner) {{width: 100%;}}
.stCacheSpinner {{height: 12rem;}}
.stCacheSpinner > * {{visibility: hidden;}}
</style>"""
# What the menu has no room for, Streamlit calls "2 more" in every language.
_MORE = """<style>
[data-testid="stTopNavSection"] p {{font-size: 0;}}
[data-testid="stTopNavSection"] p::after {{font-size: 0.875rem; content: "{more}";}}
</style>"""
Option = TypeVar("Option")


def current_view(choices: Choices) -> View:
    """The view of this visit: from the URL, or, where a page was opened from the menu, the one
    before. The URL then says it in full."""
    params = _asked_view() or st.session_state.get(_VIEW, {})
    view = view_of(params, choices)
    if lacks := unknown_choices(params, choices):
        st.session_state[_GAPS] = (view.store, view.scope), lacks
    look_at(view)
    return view


def not_there(view: View, say: Say) -> None:
    """What the URL named and is not there, until the visitor looks at something else: the URL no
    longer says it."""
    place, lacks = st.session_state.get(_GAPS, (None, ()))
    if place == (view.store, view.scope):
        st.warning("  \n".join(sentence(say(one)) for one in lacks))


def left_out(names: Sequence[str], say: Say) -> None:
    """Captures that are not shown as their files are torn, and what to do."""
    if names:
        lines = [*names[:_MOST_TOLD], *([_ELLIPSIS] if names[_MOST_TOLD:] else [])]
        st.warning("  \n".join(sentence(sources.without_paths(say(one))) for one in lines))


def look_at(view: View) -> None:
    """Make a view the current one."""
    params = params_of(view)
    st.session_state[_VIEW] = params
    if _asked_view() != params:
        st.query_params.from_dict(params)


def _asked_view() -> dict[str, str]:
    """What the URL says; of a repeated key the last."""
    return {name: st.query_params[name] for name in st.query_params}


def language_of_visit() -> str:
    """Before any store is looked at: for the menu and for errors."""
    code = _asked_view().get("lang") or st.session_state.get(_VIEW, {}).get("lang")
    return code if code in languages() else sources.what_is_served().lang


def pickers(view: View, choices: Choices, say: Say) -> None:
    """Run, capture, rank, step and language, as they are in the view."""
    capture = choices.capture(view)
    assert capture is not None
    is_several = len(choices.stores) > 1

    def move(**changes: str | int | None) -> None:
        look_at(move_view(view, choices, **changes))

    def run_named(one: tuple[str, str]) -> str:
        return f"{one[1]} ({one[0]})" if is_several else one[1]

    def rank_named(one: int) -> str:
        return say("all ranks") if one == _ALL else Message("rank {number}", number=one)

    def step_named(one: int) -> str:
        return say("all steps") if one == _ALL else Message("step {number}", number=one)

    def run_picked(one: tuple[str, str]) -> None:
        move(store=one[0], run=one[1], capture=None, start_ns=None, end_ns=None)

    def capture_picked(one: str) -> None:
        move(capture=one, start_ns=None, end_ns=None)

    def rank_picked(one: int) -> None:
        move(rank=None if one == _ALL else one)

    def step_picked(one: int) -> None:
        # A window is of one moment, a step of another: the later choice counts.
        move(step=None if one == _ALL else one, start_ns=None, end_ns=None)

    captures = [one.capture for one in choices.of_run(capture.store, capture.run)]
    ranks, steps = [_ALL, *capture.ranks], [_ALL, *capture.steps]
    rank = _ALL if view.rank is None else view.rank
    step = _ALL if view.step is None else view.step
    st.html(_LOOK + ("" if view.lang == "en" else _MORE.format(more=say("more"))))
    with st.container(key="bar", horizontal=True, vertical_alignment="center", wrap=False):
        here = (capture.store, capture.run)
        _pick(say("run"), choices.runs, here, run_picked, run_named)
        _pick(say("capture"), captures, capture.capture, capture_picked, str)
        _pick(say("rank"), ranks, rank, rank_picked, rank_named)
        _pick(say("step"), steps, step, step_picked, step_named)
        _pick(
            say("language"), tuple(languages()), view.lang, lambda one: move(lang=one),
            lambda one: languages()[one],
        )  # fmt: skip


def _pick(
    label: str,
    options: Sequence[Option],
    current: Option,
    change: Callable[[Option], None],
    named: Callable[[Option], str],
) -> None:
    """A list to choose from that shows what the URL says, whatever was chosen in it before."""
    key = f"pick_{change.__qualname__}"
    st.session_state[key] = current

    def move() -> None:
        value = st.session_state[key]
        if value is not None:
            change(value)

    st.selectbox(
        label, options, key=key, on_change=move, format_func=lambda one: visible(named(one)),
        label_visibility="collapsed",
    )  # fmt: skip


def nothing_yet(say: Say) -> None:
    """Of an empty store."""
    st.info(
        f"**{say('No data is ingested yet.')}**  \n"
        + plain(say("Read a profile into this store: npuscope ingest PATH --store STORE"))
    )


def watch(say: Say, published_at: str | None, tokens: tuple[str, ...]) -> None:
    """How fresh the data is; starts the page anew when the stores are no longer in the versions
    `tokens`."""

    @st.fragment(run_every=_POLL_S)
    def fresh() -> None:
        if sources.versions() != tokens:
            st.rerun()
        if published_at is not None:
            now = datetime.now(timezone.utc)
            st.caption(plain(say(freshness(published_at, now))))

    with st.container(key="fresh"):
        fresh()


def freshness(published_at: str, now: datetime) -> str:
    """How old what is shown is, in words: `published_at` is an ISO moment in UTC."""
    moment = datetime.fromisoformat(published_at.replace("Z", "+00:00"))
    age_s = max(0, int((now - moment).total_seconds()))
    for unit, length_s in (("{count} d", 86400), ("{count} h", 3600), ("{count} min", 60)):
        if age_s >= length_s:
            age: str = Message(unit, count=age_s // length_s)
            break
    else:
        age = Message("less than a minute")
    return Message(
        "last published {moment} UTC, {age} ago", moment=f"{moment:%Y-%m-%d %H:%M:%S}", age=age
    )
