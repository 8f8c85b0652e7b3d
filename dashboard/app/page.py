"""What every page script uses: the header with its choices, cached frames, figures and tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import plotly.graph_objects as go
import polars as pl
import pyarrow as pa
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from npuscope.analysis.catalog import Metric, drawn_in, shown_in
from npuscope.collector.csv_cells import quoted_cells
from npuscope.console.printable import visible
from npuscope.messages import Message

from ..figures.layout import apply_theme, visible_names
from ..locale.language import Say, label_of, language_of
from ..terminal.parts_table import CHANGES, WORDS
from ..units import Readable, readable
from . import aside, header, sources
from .plain_text import plain, sentence
from .served_stores import Place
from .state import SHARES, Choices, KnownCapture, View, move_view, params_of

PAGES = {
    "overview": "Overview", "timeline": "Timeline", "communication": "Communication",
    "experts": "Experts", "operators": "Operators", "host": "Host", "ranks": "Ranks",
    "memory": "Memory", "pipeline": "Pipeline", "whatif": "What if", "strategy": "Strategy",
    "trends": "Trends", "health": "Health", "compare": "Compare", "quality": "Data quality",
}  # fmt: skip
_PLOTLY = {"displaylogo": False, "scrollZoom": False, "responsive": True}


@dataclass(frozen=True)
class Page:
    """One visit of one page: what is chosen, and ways to show it."""

    name: str
    view: View
    choices: Choices
    place: Place
    version: str
    say: Say

    @property
    def capture(self) -> KnownCapture:
        """The chosen capture: its ranks, steps and window."""
        capture = self.choices.capture(self.view)
        assert capture is not None  # open_page stops where there is none
        return capture

    @property
    def store_path(self) -> Path:
        """The store or exported file of the chosen run; for reading, never to be shown."""
        return Path(self.place.path)

    @property
    def is_across(self) -> bool:
        """Whether results over all ranks are there: waits, clocks, stragglers."""
        return sources.open_tables(self.place.path, self.version).is_across

    @property
    def warnings(self) -> tuple[str, ...]:
        """What was lost or guessed when the capture's ranks were read and compared."""
        one = self.capture
        return sources.warnings(self.place.path, self.version, one.run, one.capture)

    @property
    def is_dark(self) -> bool:
        """Whether the visitor looks at the dark theme."""
        return st.context.theme.type == "dark"

    def at(self, capture: KnownCapture) -> Page:
        """The same visit looking at all of another capture, maybe of another store."""
        store = capture.store if len(self.choices.stores) > 1 else None
        view = View(capture.run, capture.capture, lang=self.view.lang, store=store)
        place = sources.place_named(capture.store)
        return replace(self, view=view, place=place, version=sources.version_of(place.path))

    def frame(self, fn: Callable[..., Any], **arguments: Any) -> Any:
        """`fn(con, scope, **arguments)`, computed once per store version.

        The scope is what the visitor chose, but for a run, capture, rank or step that `arguments`
        name: None where `fn` does not heed it, as it is computed once for each scope.
        Arguments are hashable; `fn` depends on nothing else. Raises NpuscopeError as `fn` does.
        """
        call_arguments = sources.arguments_of(fn, self.view.scope, arguments)
        return sources.answer_of(self.place.path, self.version, fn, call_arguments)

    def later(self, fn: Callable[..., Any], **arguments: Any) -> Any:
        """As `frame`, for what takes seconds where all ranks have many operations: None while that
        is computed. A line says so, and the page starts anew when it is there."""
        if not self.frame(aside.is_large):
            return self.frame(fn, **arguments)
        call_arguments = sources.arguments_of(fn, self.view.scope, arguments)

        def is_ready() -> bool:
            return aside.is_computed(self.place.path, self.version, fn, call_arguments)

        if is_ready():
            return self.frame(fn, **arguments)
        aside.wait(self.say, is_ready)
        return None

    def picked_share(self) -> str:
        """One of SHARES, what the colours of a timeline tell: a control that shows and sets it."""
        share = self.view.share or SHARES[0]
        st.session_state["share"] = share
        st.segmented_control(
            self.say("share of time"), SHARES, required=True, format_func=self.say, key="share",
            on_change=lambda: self.look_at(share=st.session_state["share"]),
        )  # fmt: skip
        return share

    def title(self, question: str) -> None:
        """The question this page answers."""
        st.subheader(self.say(question), anchor=False)

    def verdict(self, words: str) -> None:
        """What the page found, in a sentence, before any figure."""
        with st.container(key="verdict"):
            st.markdown(sentence(self.say(words)))

    def of_all(self) -> None:
        """Below a verdict on the whole capture, since figures follow the choice above."""
        if (self.view.rank, self.view.step) != (None, None):
            self.text(Message("Of all ranks and steps, whatever is chosen above."))

    def headline(self, figure: str, *sentences: str) -> None:
        """The one figure that counts most, large, and what it is made of."""
        with st.container(
            key="headline", horizontal=True, vertical_alignment="center", gap="medium"
        ):
            st.markdown(plain(self.say(figure)), width="content")
            with st.container(key="verdict"):
                st.markdown("  \n".join(sentence(self.say(one)) for one in sentences))

    def slot(self) -> DeltaGenerator:
        """The place of the verdict, where a bar stands until it is known."""
        place = st.empty()
        place.html('<div class="awaited"></div>')
        return place

    def parts(self, *titles: str) -> Sequence[AbstractContextManager[object]]:
        """Parts of the page beside each other, of which one is seen: a title for each."""
        return st.tabs([self.say(one) for one in titles])

    def heading(self, text: str) -> None:
        """Of a part of the page."""
        st.markdown(f"##### {plain(self.say(text))}")

    def text(self, *sentences: str) -> None:
        """Sentences below a figure, a line each: what it counts, how to read it."""
        if sentences:
            st.caption("  \n".join(sentence(self.say(one)) for one in sentences))

    def figure(self, figure: go.Figure, *, key: str, name: str = "") -> None:
        """Draw a figure in the page's colours, with the metrics it is drawn from: by `name`, which
        is the key where it does not change."""
        apply_theme(visible_names(figure), is_dark=self.is_dark)
        st.plotly_chart(figure, key=key, theme=None, config=_PLOTLY)
        self.sources(name=name or key)

    def click(self, figure: go.Figure, *, key: str) -> Any:
        """Draw a figure in the page's colours; the `customdata` of the point that the visitor
        clicked, or None."""
        apply_theme(visible_names(figure), is_dark=self.is_dark)
        event: Any = st.plotly_chart(
            figure, key=key, theme=None, config=_PLOTLY, on_select="rerun", selection_mode="points"
        )
        self.sources(name=key)
        points = event["selection"]["points"] if event else []
        return points[0].get("customdata") if points else None

    def tile(self, label: str, value: str, *, name: str) -> None:
        """One number; its help names the metrics it is from."""
        st.metric(self.say(label), value, help=self._help(drawn_in(name)))

    def sources(self, *, name: str) -> None:
        """The metrics that a figure is drawn from, below it."""
        metrics = drawn_in(name)
        st.caption(", ".join(f"`{one.name}`" for one in metrics), help=self._help(metrics))

    def _help(self, metrics: Sequence[Metric]) -> str:
        """What each metric means, and where it is computed."""
        return "  \n".join(f"{sentence(self.say(one.meaning))}  \n{_place(one)}" for one in metrics)

    def table(
        self,
        frame: pl.DataFrame,
        *,
        name: str,
        title: str | None = None,
        columns: Sequence[str] | None = None,
        links: Sequence[str] = (),
        titles: Mapping[str, str] = MappingProxyType({}),
        is_open: bool = False,
    ) -> None:
        """A table for people, folded but where no figure stands above it: units chosen per column,
        with the raw frame as CSV and Parquet.

        `columns` are those shown, in this order (None: all); downloads have all of them. `links`
        are columns of URLs as `go` makes them, `titles` words of columns that need others than
        their names.
        """
        if columns is None:  # what the page's head says of all rows is not said again
            columns = [
                one
                for one in frame.columns
                if one not in ("run", "capture") or frame[one].n_unique() > 1
            ]
        label = self.say(title or Message("The figures as a table"))
        with st.expander(f"{plain(label)} ({frame.height:,})", expanded=is_open):
            draw_table(frame, self.say, name=name, columns=columns, links=links, titles=titles)

    def translate(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with its words in the visitor's language, where they are known."""
        if self.view.lang == "en":
            return frame
        return frame.with_columns(
            pl.Series(name, [one if one is None else self.say(one) for one in frame[name]])
            for name, kind in frame.schema.items()
            if kind == pl.String
        )

    def empty(self, what: str, how: str = "") -> None:
        """Say that something is not there, and what to collect to have it."""
        text = f"**{sentence(self.say(what))}**"
        st.info(f"{text}  \n{sentence(self.say(how))}" if how else text)

    def notes(self, sentences: Sequence[str]) -> None:
        """What to know about the figures above."""
        notes = list(dict.fromkeys(sentences))
        if notes:
            with st.expander(f"{self.say('What to know about these figures')} ({len(notes)})"):
                st.markdown("\n".join(f"- {sentence(self.say(one))}" for one in notes))

    def go(self, page: str, **changes: str | int | None) -> str:
        """Link to a page with this view and some changes: `go("timeline", rank=3)`."""
        params = params_of(move_view(self.view, self.choices, **changes))
        return f"{'.' if page == 'overview' else page}?{urlencode(params)}"

    def link(self, label: str, page: str, **changes: str | int | None) -> None:
        """A link to a page of this app with this view and some changes, in the same tab."""
        params = params_of(move_view(self.view, self.choices, **changes))
        st.page_link(f"{page}.py", label=self.say(label), query_params=params)

    def visit(self, page: str, **changes: str | int | None) -> None:
        """Go to a page of this app with this view and some changes."""
        params = params_of(move_view(self.view, self.choices, **changes))
        st.switch_page(f"{page}.py", query_params=params)

    def look_at(self, **changes: str | int | None) -> None:
        """Put other choices into the URL, when a visitor made them: for callbacks, after which the
        page starts anew by itself."""
        header.look_at(move_view(self.view, self.choices, **changes))

    def change(self, **changes: str | int | None) -> None:
        """Look at something else on this page: puts it into the URL and starts the page anew."""
        self.look_at(**changes)
        st.rerun()


def open_page(name: str) -> Page:
    """Header and connection of a page; ends the script where there is nothing to show yet."""
    versions = sources.versions()  # before anything is read: what is published meanwhile is newer
    choices = sources.choices()
    view = header.current_view(choices)
    say = language_of(view.lang)
    capture = choices.capture(view)
    left_out = sources.left_out()
    if capture is None:
        header.left_out(left_out, say)
        header.nothing_yet(say)
        header.watch(say, None, versions)
        st.stop()
    place = sources.place_named(capture.store)
    version = sources.version_of(place.path)
    header.pickers(view, choices, say)
    header.not_there(view, say)
    header.left_out(left_out, say)
    header.watch(
        say, sources.published_at(place.path, version, capture.run, capture.capture), versions
    )
    return Page(name, view, choices, place, version, say)


_ROW_PX, _MOST_ROWS_SHOWN = 35, 12
# Columns of codes that have words.
_CODES = {"part": WORDS, "term": WORDS, "change": CHANGES}
# Columns of words that say what they mean.
_PHRASES = frozenset({
    "basis", "preparing_basis", "cause", "holder", "measure", "level", "class", "source", "phase",
})  # fmt: skip
_MOST_ROWS_SENT = 5_000  # to the browser: the files have all
_SAMPLE, _SHORT_LETTERS = 200, 12
_LETTER_PX, _BESIDE_PX, _MOST_TEXT_PX = 7, 24, 420


def arrow_table(frame: pl.DataFrame) -> pa.Table:
    """The frame for Streamlit, which would have polars make pandas of it: that waits for polars'
    threads without letting go of the interpreter, and a thread that frees what Python made waits
    for it, so that a figure computed beside the page could stop both for good."""
    return pa.table(frame.rechunk())


def draw_table(
    frame: pl.DataFrame,
    say: Say,
    *,
    name: str,
    columns: Sequence[str] | None = None,
    links: Sequence[str] = (),
    titles: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Draw a frame, with buttons that give it as CSV and Parquet: all its columns, raw.

    `links` are columns that hold URLs of this app; `titles` are words for columns whose names are
    not enough.
    """
    _, csv, parquet = st.columns([8, 1, 1.2], vertical_alignment="bottom")
    with csv:
        st.download_button(
            "CSV", lambda: _csv(frame), f"{name}.csv", "text/csv", key=f"csv_{name}",
            on_click="ignore", type="tertiary", icon=":material/download:",
        )  # fmt: skip
    with parquet:
        st.download_button(
            "Parquet", lambda: _parquet(frame), f"{name}.parquet", "application/octet-stream",
            key=f"parquet_{name}", on_click="ignore", type="tertiary",
            icon=":material/download:",
        )  # fmt: skip
    table = frame.select(columns) if columns is not None else frame
    table = table.head(_MOST_ROWS_SENT)
    series: dict[str, pl.Series] = {}
    config: dict[str, Any] = {}
    helps = _helps(name, say)
    columns_shown = readable(table, of_memory=name.startswith("memory"))
    for column, one in zip(table.columns, columns_shown, strict=True):
        values = one.values
        if column in _CODES:
            values = values.replace({code: say(words) for code, words in _CODES[column].items()})
        elif column in _PHRASES and values.dtype == pl.String:
            values = values.replace({word: say(word) for word in values.drop_nulls().unique()})
        series[column] = _visible(values)
        label = titles.get(column) or label_of(column, one.words, say)
        help_text = helps.get(column, helps.get(""))
        config[column] = (
            st.column_config.LinkColumn(label, display_text=f"{say('open')} →", help=help_text)
            if column in links
            else _column_config(one, label, help_text)
        )
    rows = min(max(table.height, 1), _MOST_ROWS_SHOWN) + 1
    st.dataframe(
        arrow_table(pl.DataFrame(series)),
        hide_index=True,
        column_config=config,
        height=rows * _ROW_PX + 3,
        placeholder="-",
        key=f"table_{name}",
    )
    if table.height < frame.height:
        help_text = Message(
            "The first {count} of {every} rows: the files have all.",
            count=f"{table.height:,}",
            every=f"{frame.height:,}",
        )
        st.caption(plain(say(help_text)))


def _visible(values: pl.Series) -> pl.Series:
    if values.dtype != pl.String:
        return values
    texts = [None if one is None else visible(one) for one in values]
    return pl.Series(values.name, texts, pl.String)


def _helps(name: str, say: Say) -> dict[str, str]:
    """What each column of the table of that name means, and where that is computed; of columns that
    are no metric's own by ''."""
    entry = shown_in(name)
    if entry is None:
        return {}
    place = _place(entry)
    return {
        "": place,
        **{column.name: f"{sentence(say(column.meaning))}  \n{place}" for column in entry.columns},
    }


def _place(metric: Metric) -> str:
    return f"`{metric.name}`: analysis/{metric.file}"


def _column_config(one: Readable, label: str, help_text: str | None) -> Any:
    label += f" ({one.unit})" if one.unit else ""
    if not one.is_number:
        return st.column_config.Column(label, width=_text_px(one.values), help=help_text)
    if one.decimals is None:
        form = "localized" if one.is_grouped else "%d"
        return st.column_config.NumberColumn(label, format=form, help=help_text)
    return st.column_config.NumberColumn(label, format=f"%.{one.decimals}f", help=help_text)


def _text_px(values: pl.Series) -> int | None:
    """Room for the longest text of a column, up to a limit; None where it is short. By itself a
    table makes room for most of the texts, and cuts a long one among short ones."""
    if values.dtype != pl.String:
        return None
    # Chinese letters are as wide as two, and take three bytes.
    texts = values.head(_SAMPLE).str
    chars = texts.len_chars().cast(pl.Int64)
    most = (chars + (texts.len_bytes().cast(pl.Int64) - chars) // 2).max()
    if not isinstance(most, int) or most <= _SHORT_LETTERS:
        return None
    return min(_LETTER_PX * most + _BESIDE_PX, _MOST_TEXT_PX)


def _csv(frame: pl.DataFrame) -> bytes:
    flat = frame.with_columns(
        pl.col(name).list.eval(pl.element().cast(pl.String)).list.join(" ")
        for name, kind in frame.schema.items()
        if kind == pl.List
    )
    return quoted_cells(flat).write_csv().encode()


def _parquet(frame: pl.DataFrame) -> bytes:
    written = io.BytesIO()
    frame.write_parquet(written)
    return written.getvalue()
