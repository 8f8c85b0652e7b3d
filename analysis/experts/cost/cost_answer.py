"""What tokens and imbalance cost in a store or export: events to rows, for every way out."""

from __future__ import annotations

import duckdb
import polars as pl

from npuscope.analysis.flops.lengths import step_lengths

from ..load.load import ExpertTables
from ..load.load_rows import unseen_notes
from . import exchanges
from .activations import activation_times
from .cost import imbalance_cost, token_cost
from .cost_notes import cost_notes
from .hidden_share import exposed_ratios
from .token_times import grouped_kernels


def cost_rows(
    con: duckdb.DuckDBPyConnection,
    tables: ExpertTables,
    *,
    run: str | None = None,
    capture: str | None = None,
    step: int | None = None,
) -> tuple[pl.DataFrame, list[str]]:
    """Rows of `cost.imbalance_cost` with their notes.

    All-to-alls and waits need a connection that `open_across` prepared: without it their columns
    are NULL. Steps are as long as for MFU (`flops.lengths`).
    """
    moved = exchanges.exchanges(con, run=run, capture=capture, step=step)
    kernels = grouped_kernels(con, run=run, capture=capture, step=step)
    between = activation_times(con, kernels, run=run, capture=capture, step=step)
    times = exchanges.exchange_times(moved)
    costs = token_cost(tables, kernels, moved, between, times)
    lengths = step_lengths(con, run=run, capture=capture, step=step)
    hidden = exposed_ratios(moved, times, tables)
    rows = imbalance_cost(tables, costs, lengths, exchanges.waits(moved, tables), hidden)
    return rows, cost_notes(costs, rows) + unseen_notes(tables)


def plan_costs(
    con: duckdb.DuckDBPyConnection,
    tables: ExpertTables,
    *,
    run: str | None = None,
    capture: str | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What a token takes (`cost.token_cost`) and a device's link (`exchanges.links`), for plans."""
    moved = exchanges.exchanges(con, run=run, capture=capture)
    times = exchanges.exchange_times(moved)
    kernels = grouped_kernels(con, run=run, capture=capture)
    return token_cost(tables, kernels, moved, times=times), exchanges.links(moved, times)
