"""One part of a step has one value, whichever way it is asked for: the committed sample."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from npuscope.analysis import means
from npuscope.analysis.parts import COMMUNICATION, FREE
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.collector.store import store as stores
from npuscope.dashboard.exporter.snapshot import Snapshot, take_snapshot
from npuscope.dashboard.figures.steps import parts_figure
from npuscope.dashboard.terminal.parts_table import PART_WORDS
from tests.cli.command import rows_of

NOW_S = 1_764_300_000.0
Values = dict[str, float]


def gauge(taken: Snapshot, name: str) -> Values:
    return {sample.labels[-1]: sample.value for sample in taken.samples[name]}


def test_every_outlet_tells_the_same_parts(sample_store: Path) -> None:
    def same(found: Values, expected: Values) -> None:
        assert {name: value for name, value in found.items() if value} == pytest.approx(
            {name: value for name, value in expected.items() if value}, rel=1e-9
        )

    # The command line's rows, added up by hand.
    rows = rows_of("comm", sample_store, "--by", "part")
    over = len({(row["rank"], row["step"]) for row in rows})
    truth: Values = {}
    for row in rows:
        truth[row["part"]] = truth.get(row["part"], 0) + row["ns"] / over
    assert {"computing", "transfer", "peer_wait", "pipeline_wait", "host", "idle"} <= set(truth)
    waits = {part: truth.get(part, 0) for part in COMMUNICATION}
    free = {part: truth.get(part, 0) for part in FREE}

    [reported] = rows_of("report", sample_store)
    same({row["part"]: row["ns"] for row in reported["mean_parts"]}, truth)
    [step] = reported["mean_step"]
    assert sum(waits.values()) == pytest.approx(step["exposed_communication_ns"])
    assert (sum(free.values()), truth["computing"]) == pytest.approx(
        (step["free_ns"], step["computing_ns"])
    )
    fallen: Values = {}
    for row in reported["waterfall"]:
        if row["term"] in (*COMMUNICATION, *FREE):
            fallen[row["term"]] = fallen.get(row["term"], 0) + row["ns"]
    same(fallen, {**waits, **free})

    told: Values = {}
    for row in rows_of("ranks", sample_store):
        for part in COMMUNICATION:
            told[part] = told.get(part, 0) + (row[f"{part}_ns"] or 0) / over
    same(told, waits)

    taken = take_snapshot(sample_store, now_s=NOW_S)
    same(gauge(taken, "npuscope_exposed_part_seconds"), {k: v / 1e9 for k, v in waits.items()})
    same(gauge(taken, "npuscope_free_part_seconds"), {k: v / 1e9 for k, v in free.items()})
    causes = gauge(taken, "npuscope_free_cause_seconds")
    assert sum(causes.values()) == pytest.approx(sum(free.values()) / 1e9)

    # The pages' figures: a bar of all ranks, and one of each.
    with closing(stores.open(sample_store)) as con:
        open_across(sample_store, con)
        job, ranks = means.mean_parts(con), means.mean_parts(con, by="rank")
    words = {told: part for part, told in PART_WORDS.items()}
    drawn = {words[bar.name]: bar.x[0] * 1e6 for bar in parts_figure(job, str).data}
    same(drawn, truth)
    by_rank = ranks.group_by("part").agg(pl.col("ns").sum() / ranks["rank"].n_unique())
    same(dict(by_rank.iter_rows()), truth)
