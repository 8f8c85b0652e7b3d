"""A trainer's log beside the figures of a profile: where it comes from, and how it is counted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from npuscope.analysis.views import frame, where
from npuscope.collector.discover.train_logs import logged_facts
from npuscope.collector.readers.train_log.train_log import LogFacts, TrainLog, read_log
from npuscope.collector.store.manifest import is_store, manifests

from .log_figures import flops_by_convention, reconcile_log
from .mfu import Figures, ModelUse
from .tokens import sequence_length_of

_ROWS = """
select step, elapsed_s, tokens_per_s, loss, grad_norm, learning_rate, mfu_ratio, tflops_per_s
from train_log {where} order by step"""


def trainer_log(
    con: duckdb.DuckDBPyConnection,
    target: Path,
    file: Path | None,
    chosen: Mapping[str, Any],
) -> TrainLog | None:
    """The log in `file`, else the one kept with the first chosen capture; None where neither is.

    chosen: run and capture (None: any). Raises as `read_log`.
    """
    if file is not None:
        return read_log(file)
    place = {name: chosen.get(name) for name in ("run", "capture")}
    clause, values = where(place)
    first = frame(
        con,
        f"select run, capture from train_log {clause} group by all order by all limit 1",
        values,
    )
    if first.is_empty():
        return None
    run, capture = first.row(0)
    clause, values = where({"run": run, "capture": capture})
    rows = frame(con, _ROWS.format(where=clause), values)
    facts = LogFacts()
    for one in manifests(target, run=run) if is_store(target) else []:
        if one.capture == capture and logged_facts(one) != LogFacts():
            facts = logged_facts(one)
    return TrainLog(rows, facts)


def reconciled(log: TrainLog, figures: Figures, use: ModelUse) -> pl.DataFrame:
    """Rows of `reconcile_log` for the model, length, tokens, devices and peaks of `figures`; none
    where the length of sequences is unknown."""
    sequence = (
        use.sequence_length or log.facts.sequence_length or sequence_length_of(figures.counted)
    )
    rows = figures.rows
    peaks = dict(
        rows.select("dtype", "peak_flops_per_s").drop_nulls().unique().sort("dtype").rows()
    )
    tokens = use.tokens_per_step if isinstance(use.tokens_per_step, int) else None
    world = rows["world_size"].drop_nulls().to_list()
    return reconcile_log(
        log.rows,
        model_flops_by_convention=(
            flops_by_convention(use.model, sequence_length=sequence) if sequence else {}
        ),
        peaks=peaks,
        world_size=max(world) if world else log.facts.world_size,
        tokens_per_step=tokens or log.facts.tokens_per_step,
        tokens_per_s_of=log.facts.tokens_per_s_of,
    )
