"""Cells of CSV files that a spreadsheet would run as formulas: a quote in front makes them text.

A cell is a formula where it begins with = + - @, a tab or a carriage return. Names of kernels, runs
and files come from profiles, which may come from anybody. Numbers stay as they are.
"""

from __future__ import annotations

import polars as pl

_FORMULA = r"^[=+\-@\t\r＝＋－＠]"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def quoted_cells(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with what a spreadsheet would run, headings too, as text."""
    texts = [
        pl.col(name).cast(pl.String)
        for name, kind in frame.schema.items()
        if kind in (pl.String, pl.Categorical, pl.Enum)
    ]
    cells = frame.with_columns(
        pl.when(text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER))
        .then(pl.lit("'") + text)
        .otherwise(text)
        .name.keep()
        for text in texts
    )
    heads = pl.Series(cells.columns, dtype=pl.String)
    formulas = heads.str.contains(_FORMULA).to_list()
    return cells.rename(
        {
            name: f"'{name}"
            for name, is_formula in zip(cells.columns, formulas, strict=True)
            if is_formula
        }
    )


def quoted_cell(column: str) -> str:
    """The same of a text column, a quoted identifier, as an expression of DuckDB's."""
    is_formula = f"regexp_matches({column}, '{_FORMULA}')"
    is_number = f"regexp_matches({column}, '{_NUMBER}')"
    return f"case when {is_formula} and not {is_number} then '''' || {column} else {column} end"
