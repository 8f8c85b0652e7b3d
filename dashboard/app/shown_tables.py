"""Frames as tables for people: a unit chosen per column; the frame itself to download."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import polars as pl
import streamlit as st

from npuscope.collector.store.csv_cells import quoted_cells
from npuscope.console.printable import visible
from npuscope.dashboard.locale.language import Say, labelled
from npuscope.dashboard.terminal.waterfall_table import WORDS
from npuscope.dashboard.units import Readable, readable

from .plain_text import plain

_ROW_PX, _MOST_ROWS_SHOWN = 35, 12
_CODED = ("part", "term")  # columns of codes that have words
_MOST_ROWS_SENT = 5_000  # to the browser: the files have all
_MEASURED, _SHORT_LETTERS = 200, 12
_LETTER_PX, _BESIDE_PX, _MOST_TEXT_PX = 7, 24, 420


def table(
    frame: pl.DataFrame,
    say: Say,
    *,
    name: str,
    title: str | None = None,
    columns: Sequence[str] | None = None,
    links: Sequence[str] = (),
    titles: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Draw a frame, with buttons that give it as CSV and Parquet: all its columns, raw.

    `links` are columns that hold URLs of this app; `titles` are words for columns whose names are
    not enough.
    """
    heading, csv, parquet = st.columns([8, 1, 1.2], vertical_alignment="bottom")
    with heading:
        if title:
            st.markdown(f"**{plain(say(title))}**")
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
    chosen = frame.select(columns) if columns is not None else frame
    chosen = chosen.head(_MOST_ROWS_SENT)
    shown: dict[str, pl.Series] = {}
    config: dict[str, Any] = {}
    columns_shown = readable(chosen, of_memory=name.startswith("memory"))
    for column, one in zip(chosen.columns, columns_shown, strict=True):
        values = one.values
        if column in _CODED:
            values = values.replace({code: say(words) for code, words in WORDS.items()})
        shown[column] = _visible(values)
        label = titles.get(column) or labelled(column, one.words, say)
        config[column] = (
            st.column_config.LinkColumn(label, display_text=f"{say('open')} →")
            if column in links
            else _configured(one, label)
        )
    rows = min(max(chosen.height, 1), _MOST_ROWS_SHOWN) + 1
    st.dataframe(
        pl.DataFrame(shown),
        hide_index=True,
        column_config=config,
        height=rows * _ROW_PX + 3,
        placeholder="-",
        key=f"table_{name}",
    )
    if chosen.height < frame.height:
        told = f"The first {chosen.height:,} of {frame.height:,} rows: the files have all."
        st.caption(plain(say(told)))


def _visible(values: pl.Series) -> pl.Series:
    if values.dtype != pl.String:
        return values
    texts = [None if one is None else visible(one) for one in values]
    return pl.Series(values.name, texts, pl.String)


def _configured(one: Readable, label: str) -> Any:
    label += f" ({one.unit})" if one.unit else ""
    if not one.is_number:
        return st.column_config.Column(label, width=_text_px(one.values))
    if one.decimals is None:
        return st.column_config.NumberColumn(label, format="localized" if one.is_grouped else "%d")
    return st.column_config.NumberColumn(label, format=f"%.{one.decimals}f")


def _text_px(values: pl.Series) -> int | None:
    """Room for the longest text of a column, up to a limit; None where it is short. By itself a
    table makes room for most of the texts, and cuts a long one among short ones."""
    if values.dtype != pl.String:
        return None
    # Chinese letters are as wide as two, and take three bytes.
    texts = values.head(_MEASURED).str
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
