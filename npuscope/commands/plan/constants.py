"""Constants of the model of cost that a command was asked to take from captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.console import say

if TYPE_CHECKING:
    import polars as pl

    from npuscope.analysis.strategy.constants import Constants
    from npuscope.profile import OpenTables

Calibrate = Annotated[
    Path | None,
    typer.Option(
        "--calibrate",
        metavar="PATH",
        help="Profiles or a store: constants that they measure take the place of the built-in.",
        show_default=False,
    ),
]


def calibration_of(
    path: Path | None,
) -> tuple[pl.DataFrame | None, Constants | None, list[OpenTables]]:
    """Rows of the metric `calibration` of captures, the constants by them, and what was opened for
    it, which may be partial. Raises TraceNotFound, StoreError."""
    if path is None:
        return None, None, []
    from npuscope.analysis.strategy.calibration import calibrate, calibration
    from npuscope.profile import Source, open_tables

    with open_tables(Source(path)) as data:
        for message in data.messages:
            say(message)
        rows = calibration(data.con)
        return rows, calibrate(rows), [data]
