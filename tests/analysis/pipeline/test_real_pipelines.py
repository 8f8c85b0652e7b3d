"""Pipelines of real profiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from npuscope.analysis.pipeline.answer import Answer, pipeline_answer
from npuscope.analysis.pipeline.passes import pipeline
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.collector.store import store
from npuscope.errors import TraceNotFound

Stores = Callable[[str], Path]


def answer_of(path: Path) -> tuple[Answer, pl.DataFrame]:
    """What is answered, and the passes that it is about."""
    with closing(store.open(path)) as con:
        open_across(path, con)
        ((run, capture),) = con.execute("select distinct run, capture from ranks").fetchall()
        return pipeline_answer(con, run, capture), pipeline(con, run, capture).passes


def test_two_micro_batches_of_a_stage(real_stores: Stores) -> None:
    found, ran = answer_of(real_stores("qwen3_pp2_dp2_text_level2"))
    (facts,) = found.facts.to_dicts()
    assert (facts["micro_batches"], facts["stages"], facts["seen_stages"]) == (2, 2, 1)
    # From the first stage alone, GPipe looks the same.
    assert (facts["schedule"], facts["confidence"]) == ("1f1b", "low")
    assert "gpipe" in facts["also"]
    assert ran.filter(rank=0)["kind"].to_list() == ["F", "F", "BW", "BW"]
    assert found.stages["layer_count"].to_list() == [14]


@pytest.mark.slow
def test_results_over_all_ranks_have_no_passes(real_stores: Stores) -> None:
    with pytest.raises(TraceNotFound, match="profiler's own bubble"):
        answer_of(real_stores("cluster16_pp2"))
