"""The search finds what predicting every strategy one by one finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.strategy.describe import space_of
from npuscope.analysis.strategy.job import Machine, balanced_stages, even_stages
from npuscope.analysis.strategy.notes import search_notes
from npuscope.analysis.strategy.predict import predict
from npuscope.analysis.strategy.search import RECOMPUTES, Space, search, sensitivity
from npuscope.errors import UsageError
from tests.analysis.strategy.jobs import DENSE, JOB

_SPACE = Space(2048, 16)
_MACHINE = Machine(353.9e12)


def test_the_best_of_all_by_hand() -> None:
    found = search(DENSE, _MACHINE, 8, _SPACE)
    steps = {}
    for row in found.to_dicts():
        even = even_stages(DENSE.layers, row["pp"], row["vpp"])
        balanced = balanced_stages(DENSE, row["pp"], row["vpp"], 2048)
        job = replace(
            JOB, stages=even if row["layers"] == "even" else balanced, tp=float(row["tp"]),
            cp=float(row["cp"]), micro_batch=float(row["micro_batch"]), sequence_parallel=True,
            distributed_optimizer=True, software=_SPACE.software, world=8.0,
            recompute=RECOMPUTES[row["recompute"]],
        )  # fmt: skip
        one = predict(job)
        assert row["step_ns"] == pytest.approx(one.step_s.predicted * 1e9, rel=1e-6)
        assert row["peak_bytes"] == pytest.approx(one.peak_bytes.predicted, rel=1e-6)
        if row["fits"]:
            steps[row["step_ns"]] = row
    assert len(found) > 100
    assert found.row(0, named=True)["step_ns"] == min(steps)


def test_nothing_on_the_front_is_beaten_and_all_that_is_not_beaten_is_there() -> None:
    model, machine = model_of("llama3-8b"), Machine(353.9e12, node_devices=8)
    fitting = search(model, machine, 16, Space(8192, 128)).filter("fits")
    steps, peaks = fitting["step_ns"].to_numpy(), fitting["peak_bytes"].to_numpy()
    for at, row in enumerate(fitting.to_dicts()):
        no_worse = (steps <= steps[at]) & (peaks <= peaks[at])
        is_beaten = np.any(no_worse & ((steps < steps[at]) | (peaks < peaks[at])))
        is_repeated = np.any(no_worse[:at])
        assert row["is_front"] == (not is_beaten and not is_repeated)
    # The first stages hold the most micro-batches: fewer layers on the last are more on these.
    assert {*fitting.filter("is_front")["layers"]} == {"even", "balanced"}
    sizes = ["tp", "pp", "vpp", "cp", "ep", "micro_batch", "recompute"]
    both = fitting.filter(layers="even").join(fitting.filter(layers="balanced"), on=sizes)
    lighter = both.filter(pl.col("peak_bytes") < pl.col("peak_bytes_right"))
    assert len(lighter) > 10 and (both["last_layers"] > both["last_layers_right"]).all()


def test_where_nothing_fits_the_nearest_stands_first() -> None:
    # Of nodes that eight do not divide, some groups of eight lie on two.
    odd = search(DENSE, replace(_MACHINE, node_devices=12), 24, Space(2048, 24))
    assert {*odd["tp"]} == {1, 2, 4}
    found = search(DENSE, replace(_MACHINE, memory_bytes=1e6), 8, _SPACE)
    assert len(found) > 100 and not found["fits"].any()
    assert found["peak_bytes"].is_sorted()
    told = search_notes(found, found.clear())
    assert f"needs {found['peak_bytes'][0] / 2**30:.1f} GiB" in told[1]


def test_constants_that_would_change_the_order_are_named() -> None:
    found = search(DENSE, _MACHINE, 8, _SPACE)
    changes = sensitivity(DENSE, _MACHINE, 8, _SPACE, found, top=5)
    assert all(row["best"] > 1 and row["lost_ratio"] > 0 for row in changes.to_dicts())


def test_what_is_searched_in_words() -> None:
    space = space_of("gbs=512,seq=8192,tp=4+8,recompute=full,mc2=1")
    assert (space.tp, space.pp, list(space.recompute)) == ([4, 8], None, ["full"])
    assert space.software == replace(_SPACE.software, tp_overlap=True, fused_overlap=True)
    for text in ("tp=8", "gbs=1,seq=2,tpp=1", "gbs=0,seq=2", "gbs=1,seq=2,recompute=some"):
        with pytest.raises(UsageError):
            space_of(text)


def test_a_space_in_which_nothing_divides() -> None:
    with pytest.raises(UsageError, match="no strategy divides"):
        search(DENSE, _MACHINE, 7, Space(2048, 16, pp=[3]))


def test_the_last_stage_has_fewer_layers_beside_the_head() -> None:
    """As published: 61 layers and a block of multi-token prediction with its head count as 64."""
    model = model_of("pangu-ultra-moe-718b")
    stages = balanced_stages(model, 16, 1, 8192)
    assert [sum(map(len, chunks)) for chunks in stages] == [4] * 15 + [1]
    assert [layer for chunks in stages for chunk in chunks for layer in chunk] == [*range(61)]
