"""What imbalance costs beside what was planted, and the fit of times by tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest

from npuscope.analysis.experts.cost import cost, token_times
from npuscope.analysis.experts.cost.cost_answer import cost_notes
from npuscope.analysis.experts.cost.token_times import grouped_shape
from npuscope.analysis.experts.load import imbalance
from npuscope.analysis.experts.load.load import ExpertTables, expert_rows
from npuscope.analysis.flops.lengths import step_lengths
from npuscope.sample_traces import kernels
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job, groups, local_experts, routed_tokens
from tests.analysis.tables import connect, fill, keep_summaries, put

SKEWED = Job(layers=2, experts=16, ep=4, expert_skew=1.2)
TABLES = ("ranks", "groups", "steps", "kernels", "expert_load", "expert_placement")


@cache
def tables_of(job: Job) -> tuple[ExpertTables, pl.DataFrame, pl.DataFrame]:
    """Expert tables, grouped matmuls, and lengths of steps of a job."""
    with connect() as con:
        put(con, canonical_frames(job, tables=TABLES, pipes=False))
        keep_summaries(con)
        return expert_rows(con), token_times.grouped_kernels(con), step_lengths(con)


def planted_ns(job: Job) -> dict[tuple[int, int], float]:
    """By step and stage: tokens too many on the fullest device, times what they take.

    Products of a token: hidden x 2 ffn and ffn x hidden forward, and their two gradients.
    """
    without, one = (
        sum(
            kernels.grouped_matmul(tokens, 1, inner, columns).dur_ns
            for inner, columns in (
                (job.hidden, 2 * job.ffn), (job.ffn, job.hidden), (job.hidden, job.ffn),
                (2 * job.ffn, job.hidden),
            )
        )
        for tokens in (0, 10**6)
    )  # fmt: skip
    found: dict[tuple[int, int], float] = {}
    expert_groups = [group for role, group in groups(job) if role == "ep"]
    size = job.tp * job.dp
    for step in range(job.first_step, job.first_step + job.steps):
        for layer in range(job.layers):
            stage = layer // (job.layers // job.pp)
            excess = []
            for group in expert_groups:
                if group.ranks[0] // size == stage:
                    held = [
                        sum(
                            routed_tokens(job, step, m, layer, source)[e]
                            for m in range(job.micro_batches)
                            for source in group.ranks
                            for e in local_experts(job, place)
                        )
                        for place in range(job.ep)
                    ]
                    excess.append(max(held) - sum(held) / len(held))
            cost_ns = sum(excess) / len(excess) * (one - without) / 1e6
            found[step, stage] = found.get((step, stage), 0.0) + cost_ns
    return found


def globally(tables: ExpertTables) -> ExpertTables:
    """The same load, told by one rank for all."""
    counted = imbalance.expert_loads(tables.load).with_columns(
        rank=pl.lit(0, pl.Int32), ep_rank=pl.lit(None, pl.Int32)
    )
    return replace(tables, load=counted.select(tables.load.columns))


def counted_stages(job: Job) -> pl.DataFrame:
    """Stages of layers where every rank counted what it routed; of one more layer, all ranks."""
    of_stage = job.tp * job.dp
    with connect() as con:
        ranks = canonical_frames(job, tables=("ranks",), pipes=False)
        put(con, ranks)
        place = ranks["ranks"].select("run", "capture").row(0, named=True)
        fill(con, "expert_counts", [
            {**place, "rank": 0, "step": step, "phase": "train", "layer": layer,
             "counted_by": rank, "tokens": [1, 2]}
            for step in (1, 2) for layer in range(job.layers + 1) for rank in range(job.world_size)
            if layer in (rank // of_stage * job.layers // job.pp + n
                         for n in range(job.layers // job.pp)) or layer == job.layers
        ])  # fmt: skip
        stages = expert_rows(con).stages
    assert stages.height == job.layers + (job.pp == 1)
    return stages


@pytest.mark.parametrize(
    "job",
    [
        SKEWED,
        pytest.param(Job(), marks=pytest.mark.slow),
        pytest.param(Job(expert_skew=0.4), marks=pytest.mark.slow),
        pytest.param(Job(noise=0.05), marks=pytest.mark.slow),
        *(
            pytest.param(Job(noise=0.1, expert_skew=skew, seed=seed), marks=pytest.mark.slow)
            for skew, seed in ((0.2, 2), (0.2, 3), (0.4, 2))
        ),
        pytest.param(Job(slow_rank=1), marks=pytest.mark.slow),
        pytest.param(Job(tp=2, dp=2, micro_batches=4), marks=pytest.mark.slow),
    ],
)
def test_planted_cost(job: Job) -> None:
    tables, timed, steps = tables_of(job)
    planted = planted_ns(job)
    costs = cost.token_cost(tables, timed)
    layers = cost.imbalance_cost(tables, costs, steps)
    assert costs["passes"].to_list() == pytest.approx([4.0])
    assert costs["timed_ratio"].to_list() == [1.0]
    found = cost.step_cost(layers)
    assert {(r["step"], r["stage"]): r["excess_ns"] for r in found.to_dicts()} == pytest.approx(
        planted, rel=0.05
    )
    assert (found["excess_share_ratio"] * found["step_ns"]).to_list() == pytest.approx(
        found["excess_ns"].to_list()
    )
    assert "load imbalance between devices costs" in cost_notes(costs, layers)[0]
    # Counted globally, who counted a layer tells its stage.
    other = globally(tables)
    counted = replace(other, stages=counted_stages(job))
    by_stage = cost.step_cost(cost.imbalance_cost(counted, costs, steps))
    # Groups added up are evener than each of them, which a stage that is nearly even shows.
    assert {(r["step"], r["stage"]): r["excess_ns"] for r in by_stage.to_dicts()} == pytest.approx(
        planted, abs=0.05 * max(planted.values())
    )
    # Where that is not told either, all layers are added up.
    together = cost.step_cost(cost.imbalance_cost(other, cost.token_cost(other, timed), steps))
    sums = {(s, None): sum(v for (t, _), v in planted.items() if t == s) for s, _ in planted}
    assert {(r["step"], r["stage"]): r["excess_ns"] for r in together.to_dicts()} == pytest.approx(
        sums, rel=0.05
    )


def test_a_layer_is_not_told() -> None:
    tables, timed, _ = tables_of(Job(layers=3, pp=1, dp=2, ep=2, micro_batches=1))
    part = replace(tables, load=tables.load.filter(pl.col("layer") != 1))
    costs = cost.token_cost(part, timed)
    assert costs["off_ratio"][0] > 0.1
    told = cost_notes(costs, cost.imbalance_cost(part, costs))
    assert any("which is not a whole number" in note for note in told)


def test_one_device_of_a_group_has_no_cost() -> None:
    """Its tokens are no fewer and no more than those of nobody: unknown, not 0."""
    tables, timed, steps = tables_of(SKEWED)
    alone = replace(tables, load=tables.load.filter(pl.col("rank") == 0))
    costs = cost.token_cost(alone, timed)
    layers = cost.imbalance_cost(alone, costs, steps)
    assert layers.height > 0
    for name in ("device_max_over_mean", "excess_tokens", "grouped_excess_ns", "excess_ns",
                 "excess_error_ns", "excess_share_ratio"):  # fmt: skip
        assert layers[name].null_count() == layers.height, name
    assert cost.step_cost(layers)["excess_ns"].null_count() == len(set(layers["step"]))
    assert not any(
        ("load imbalance between devices costs") in note for note in cost_notes(costs, layers)
    )
    # The only one of its group holds all there is: then nothing can be uneven.
    only = replace(alone, ranks=alone.ranks.with_columns(ep_size=pl.lit(1, pl.Int32)))
    told = cost.imbalance_cost(only, costs, steps)
    assert set(told["excess_ns"]) == {0.0} and set(told["device_max_over_mean"]) == {1.0}


def test_nothing_to_fit() -> None:
    tables, timed, steps = tables_of(SKEWED)
    costs = cost.token_cost(tables, timed.filter(pl.col("step") == -1))
    assert costs.is_empty()
    layers = cost.imbalance_cost(tables, costs, steps)
    assert layers.is_empty()
    assert "is unknown" in cost_notes(costs, layers)[0]
    even = timed.with_columns(tokens=pl.lit(1000, pl.Int64))
    assert token_times.fit_times(even)["ns_per_token"].null_count() == 4
    assert cost.token_cost(tables, even).is_empty()


def test_the_line_stands_hiccups() -> None:
    tokens = np.arange(100.0, 2100.0, 20.0)
    times = 6000 + 30 * tokens
    times[::9] *= 2
    found = token_times.curve(tokens, times, np.ones_like(tokens))
    assert found["ns_per_token"] == pytest.approx(30, rel=1e-3)
    assert found["base_ns"] == pytest.approx(6000, rel=1e-2)
    assert found["floor_tokens"] == 0.0


def test_the_floor_of_small_batches() -> None:
    tokens = np.arange(10.0, 2010.0, 20.0)
    times = np.maximum(25_000, 5_000 + 40 * tokens) * (1 + 0.002 * np.sin(tokens))
    found = token_times.curve(tokens, times, np.ones_like(tokens))
    assert found["ns_per_token"] == pytest.approx(40, rel=0.03)
    assert found["floor_ns"] == pytest.approx(25_000, rel=0.01)
    assert found["floor_tokens"] == pytest.approx(500, rel=0.06)
    line = token_times.curve(tokens, 5_000 + 40 * tokens, np.ones_like(tokens))
    assert line["floor_tokens"] == 0.0
    assert line["floor_ns"] == pytest.approx(5_000)


SIZES = ((1024, 2816), (1408, 1024), (1024, 1408), (2816, 1024))


def noisy(chance: np.random.Generator, spread: float, rates: tuple[float, ...]) -> pl.DataFrame:
    """Grouped kernels of four products, 64 calls each, of 10 % noise and some hiccups; a rate by
    product (of all: 1)."""
    rows = []
    for (inner, columns), rate in zip(SIZES, rates, strict=True):
        tokens = np.rint(4096 * (1 + spread * chance.uniform(-1, 1, 64)))
        times = 6000 + 2.0 * tokens * inner * columns / 206_438 / rate
        times *= chance.lognormal(0.0, 0.1, 64)
        times[chance.random(64) < 0.01] *= 3
        rows.append(
            pl.DataFrame({"tokens": tokens.astype(np.int64), "total_ns": np.rint(times)})
            .with_columns(inner=pl.lit(inner, pl.Int64), columns=pl.lit(columns, pl.Int64))
        )  # fmt: skip
    return pl.concat(rows).select(
        run=pl.lit("r"), capture=pl.lit("c"), rank=pl.lit(0, pl.Int32), step=pl.lit(1, pl.Int64),
        type=pl.lit("GroupedMatmul"), dtype=pl.lit("bf16"), experts=pl.lit(4, pl.Int64),
        inner="inner", columns="columns", tokens="tokens", count=pl.lit(1, pl.Int64),
        total_ns=pl.col("total_ns").cast(pl.Int64),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spread", "rates", "most_ratio"),
    [
        (0.1, (1.0, 1.0, 1.0, 1.0), 0.065),
        (0.4, (1.0, 1.0, 1.0, 1.0), 0.05),
        (0.4, (1.05, 1.0, 0.97, 1.0), 0.08),  # rates that are not alike: own slopes count more
    ],
)
def test_many_noisy_captures(spread: float, rates: tuple[float, ...], most_ratio: float) -> None:
    """95 % of costs are within that ratio, and 90 % at least within the interval that is told."""
    chance = np.random.default_rng(11)
    truth = sum(2.0 * a * b / 206_438 / rate for (a, b), rate in zip(SIZES, rates, strict=True))
    off, inside = [], []
    for _ in range(100):
        found = token_times.fit_times(noisy(chance, spread, rates))
        names = ("ns_per_token", "error_ns_per_token", "common_error_ns_per_token")
        total, own, common = (found[name].to_numpy() for name in names)
        off.append(abs(total.sum() / truth - 1))
        error = np.hypot(np.hypot.reduce(own), common.sum())
        inside.append(off[-1] <= 1.96 * error / truth)
    assert np.quantile(off, 0.95) < most_ratio
    assert np.mean(inside) >= 0.9


def test_rates_that_contradict_each_other() -> None:
    """Own slopes without noise count alone, whatever lies between products."""
    chance = np.random.default_rng(5)
    rows = noisy(chance, 0.4, (1.0, 1.0, 1.0, 1.0)).with_columns(
        total_ns=(
            5000 + pl.col("tokens") * pl.col("inner") * pl.col("columns") / 1e5
            * pl.when(pl.col("columns") > 2000).then(1.3).otherwise(1.0)
        ).round().cast(pl.Int64)
    )  # fmt: skip
    found = token_times.fit_times(rows)
    assert found["shared_weight"].max() == pytest.approx(0.0, abs=1e-3)
    area = found["inner"] * found["columns"] / 1e5
    slow = found["columns"] > 2000
    expected = (area * pl.select(pl.when(slow).then(1.3).otherwise(1.0)).to_series()).to_list()
    assert found["ns_per_token"].to_list() == pytest.approx(expected, rel=1e-3)


def test_a_cost_that_noise_hides_is_told_as_an_interval() -> None:
    tables, timed, steps = tables_of(SKEWED)
    costs = cost.token_cost(tables, timed)
    unsure = costs.with_columns(error_ns_per_token=pl.col("ns_per_token") * 0.2)
    notes = cost_notes(unsure, cost.imbalance_cost(tables, unsure, steps))
    assert any("bounds that cost only to" in note and "(95 %)" in note for note in notes)
    assert not any("bounds that cost only to" in note for note in cost_notes(
        costs, cost.imbalance_cost(tables, costs, steps)
    ))  # fmt: skip


def test_few_tokens_take_as_long_as_some_more() -> None:
    """A floor above the fullest device: imbalance costs nothing; above the mean: it costs less."""
    tables, timed, steps = tables_of(SKEWED)
    costs = cost.token_cost(tables, timed)
    plain = cost.imbalance_cost(tables, costs, steps)
    per_token, fixed = costs.select("ns_per_token", "fixed_ns").row(0)
    high = cost.imbalance_cost(tables, costs.with_columns(floor_ns=pl.lit(1e12)), steps)
    assert high["excess_ns"].to_list() == pytest.approx([0.0] * high.height)
    device = tables.load.group_by("step", "layer", "ep_rank").agg(pl.col("tokens").sum())
    tokens = pl.col("tokens")
    most = device.group_by("step", "layer").agg(level=(tokens.max() + tokens.mean()) / 2)
    level = most.sort("step", "layer")["level"][0]
    half = costs.with_columns(floor_ns=pl.lit(fixed + per_token * level))
    row = cost.imbalance_cost(tables, half, steps).row(0, named=True)
    assert row["excess_ns"] == pytest.approx(plain["excess_ns"][0] / 2)


@pytest.mark.slow
def test_the_error_holds_the_truth() -> None:
    chance = np.random.default_rng(3)
    tokens = np.linspace(500.0, 1500.0, 60)
    off = []
    for _ in range(200):
        times = (6000 + 30 * tokens) * chance.lognormal(0.0, 0.05, len(tokens))
        found = token_times.curve(tokens, times, np.ones_like(tokens))
        slope, error = found["ns_per_token"], found["error_ns_per_token"]
        assert slope is not None and error is not None
        off.append((slope - 30) / error)
    assert 0.85 < np.std(off) < 1.3
    assert abs(np.mean(off)) < 0.35


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("640,1024;4,1024,2816;;;;;4;", "640,2816", ("bf16", 4, 1024, 2816, 640)),
        ("1024,640;640,2816;4", "4,1024,2816", ("bf16", 4, 1024, 2816, 640)),
        ("10,64;20,64;64,8;64,8", "10,8;20,8", ("bf16", 2, 64, 8, 30)),
        ("640,1024;1024,2816", "640,2816", None),
        ("640,-1;4,1024,2816", "640,2816", None),
        ("", "", None),
        (None, None, None),
    ],
)
def test_tokens_by_shape(inputs: str | None, outputs: str | None, expected: object) -> None:
    dtypes = ";".join(["DT_BF16"] * ((inputs or "").count(";") + 1))
    assert grouped_shape(inputs, dtypes, outputs) == expected
