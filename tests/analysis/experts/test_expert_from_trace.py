"""Tokens on devices from kernels and all-to-alls alone, against what was planted."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis.experts.load.from_trace import (
    Call,
    DeviceLoad,
    call_of,
    device_loads,
    step_load,
    trace_load,
)
from npuscope.analysis.experts.load.load import expert_rows
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store
from npuscope.errors import TraceNotFound
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job, coordinates, local_experts
from npuscope.sample_traces.truth import expert_load
from tests.analysis.tables import connect, fill, put

SAMPLE = Path(__file__).parents[3] / "sample_traces" / "moe_8_ranks"
H, F = 16, 24
# (inner, columns) of one layer's calls: forward two, backward two.
FORWARD = ((H, 2 * F), (F, H))
BACKWARD = ((H, F), (2 * F, H))

Sizes = tuple[int, int]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    made = connect()
    yield made
    made.close()


def plant(job: Job, con: duckdb.DuckDBPyConnection, *tables: str) -> None:
    """The canonical tables of a job's ranks, without reading any file."""
    put(con, canonical_frames(job, tables=tables))


def by_device(
    job: Job, planted_rows: Sequence[Sequence[int]] | None = None
) -> dict[tuple[int, int, int], int]:
    """Planted tokens of (step, layer, expert-parallel rank), all its groups together."""
    held = {expert: ep for ep in range(job.ep) for expert in local_experts(job, ep)}
    found: dict[tuple[int, int, int], int] = {}
    for step, layer, expert, tokens in planted_rows or expert_load(job):
        key = (step, layer, held[expert])
        found[key] = found.get(key, 0) + tokens
    return found


def total(rows: pl.DataFrame, job: Job) -> dict[tuple[int, int, int], int]:
    found: dict[tuple[int, int, int], int] = {}
    for _, _, rank, step, layer, tokens, _ in rows.rows():
        key = (step, layer, coordinates(job, rank)["ep"])
        found[key] = found.get(key, 0) + tokens
    return found


@pytest.mark.parametrize(
    "job",
    [
        Job(sequence=256, comm_tasks=False, memory=False),
        Job(sequence=256, comm_tasks=False, memory=False, layers=6, pp=1, dp=2, micro_batches=3),
        Job(sequence=256, comm_tasks=False, memory=False, pp=4, layers=4, dp=4, ep=4, seed=5),
    ],
    ids=["pp2", "pp1", "pp4"],
)
@pytest.mark.slow
def test_the_planted_load_of_devices_is_recovered(job: Job, con: Any) -> None:
    plant(job, con, "kernels", "ranks")
    found = trace_load(con)
    assert total(found.rows, job) == by_device(job) and found.notes == ()
    assert set(found.rows["basis"]) == {"grouped_matmul"}
    one = trace_load(con, Scope(rank=1, step=12)).rows
    assert one.equals(found.rows.filter((pl.col("rank") == 1) & (pl.col("step") == 12)))


@pytest.mark.slow
def test_the_committed_sample_agrees(sample_store: Path) -> None:
    con = store.open(sample_store)
    try:
        found = trace_load(con).rows
    finally:
        con.close()
    told = json.loads((SAMPLE / "truth.json").read_text())
    job = Job(**{n: told["job"][n] for n in ("layers", "experts", "dp", "pp", "ep")})
    truth = by_device(job, told["expert_load"])
    got = total(found, job)
    assert got.keys() == truth.keys() and len(got) == 16
    assert all(abs(got[key] / truth[key] - 1) <= 0.005 for key in truth)
    assert got == truth


@pytest.mark.slow
def test_bytes_of_all_to_alls_tell_it_where_shapes_do_not(con: Any) -> None:
    job = Job(sequence=256, memory=False)
    plant(job, con, "kernels", "comm_ops", "groups", "ranks")
    con.execute("update kernels set input_shapes = null, output_shapes = null")
    found = trace_load(con)
    truth: dict[tuple[int, None, int, int], int] = {}
    for (step, layer, ep), tokens in by_device(job).items():
        key = (step, None, ep, layer // 2)
        truth[key] = truth.get(key, 0) + tokens
    got: dict[tuple[int, None, int, int], int] = {}
    for _, _, rank, step, layer, tokens, basis in found.rows.rows():
        assert basis == "all_to_all" and layer is None
        at = coordinates(job, rank)
        key = (step, None, at["ep"], at["pp"])
        got[key] = got.get(key, 0) + tokens
    assert got == truth
    assert f"{2 * job.hidden} bytes a token" in found.notes[0]
    # Of two stages layers are missing, without groups devices, too: what would tell is said.
    with pytest.raises(TraceNotFound, match=r"no shapes, which NPUs record from .* Level1"):
        device_loads(con, expert_rows(con), Scope())
    con.execute("delete from groups")
    with pytest.raises(TraceNotFound, match="kernels do not show token counts"):
        device_loads(con, expert_rows(con), Scope())
    con.execute("delete from kernels")
    plant(job, con, "kernels")
    with pytest.raises(TraceNotFound, match="no expert-parallel groups were recorded"):
        device_loads(con, expert_rows(con), Scope())


def test_no_experts_no_rows(con: Any) -> None:
    found = trace_load(con).rows
    assert found.is_empty() and found.columns == [
        "run", "capture", "rank", "step", "layer", "tokens", "basis",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "made", "call"),
    [
        ("70,16;4,16,48;;;;;4;", "70,48", Call(70, 16, 48)),
        ("70,16;4,48,16;;;;;4;", "70,48", Call(70, 16, 48)),
        ('"70,16;4,16,48;4"', '"70,24"', Call(70, 16, 48)),  # with SwiGLU in it
        ("70,16;4,16,48;4", None, Call(70, 16, 48)),
        ("70,16;4,3,1,16,16;4", "70,48", Call(70, 16, 48)),  # weights as FRACTAL_NZ
        ("0,16;4,16,48;4", "0,48", Call(0, 16, 48)),
        ("30,16;40,16;16,48;16,48;2", "30,48;40,48", Call(70, 16, 48)),
        ("16,70;70,48;4", "4,16,48", None),  # the weights' gradient
        ("16,70;70,48;4", None, None),
        ("70,16", "70,48", None),
        ("N/A", "N/A", None),
        (None, None, None),
        ("70,-1;4,16,48", "70,48", None),
    ],
)
def test_shapes(given: str | None, made: str | None, call: Call | None) -> None:
    assert call_of(given, made) == call


def layer_calls(tokens: int, sizes: Sequence[Sizes]) -> list[tuple[int, Sizes]]:
    return [(tokens, one) for one in sizes]


def train(
    counts: Sequence[Sequence[int]], *, warm_up: int = 1, again: int = 0
) -> list[tuple[int, Sizes]]:
    """Calls of micro-batches x layers, 1F1B; `again`: forwards repeated before each backward."""

    def forward(one: Sequence[int]) -> list[tuple[int, Sizes]]:
        return [call for tokens in one for call in layer_calls(tokens, FORWARD)]

    def backward(one: Sequence[int]) -> list[tuple[int, Sizes]]:
        return [
            call for tokens in reversed(one)
            for call in layer_calls(tokens, [*FORWARD * again, *BACKWARD])
        ]  # fmt: skip

    calls = [call for one in counts[:warm_up] for call in forward(one)]
    for done, one in enumerate(counts):
        calls += [call for more in counts[done + warm_up : done + warm_up + 1]
                  for call in forward(more)]  # fmt: skip
        calls += backward(one)
    return calls


@pytest.mark.parametrize("seed", range(20))
def test_layers_and_recomputation_of_random_steps(seed: int) -> None:
    chance = random.Random(seed)
    micro, layers = chance.randint(1, 6), chance.randint(1, 5)
    counts = [[chance.randint(0, 10**6) for _ in range(layers)] for _ in range(micro)]
    again = chance.randint(0, 2)
    calls = train(counts, warm_up=chance.randint(0, micro), again=again)
    found = step_load([tokens for tokens, _ in calls], [sizes for _, sizes in calls])
    assert found is not None and found.basis == "backward" and found.passes == 1 + again
    assert found.tokens == sum(map(sum, counts))
    assert found.layer_counts == (layers,)
    assert found.by_layer(layers) == tuple(map(sum, zip(*counts, strict=True)))
    assert found.by_layer(layers + 1) is None


def test_layers_are_unknown_where_all_have_as_many_tokens() -> None:
    calls = train([[8] * 3] * 4)
    found = step_load([tokens for tokens, _ in calls], [sizes for _, sizes in calls])
    assert found is not None and (found.tokens, found.layer_counts) == (96, (1, 2, 3, 4, 6, 12))


def test_layers_are_unknown_where_chunks_of_a_stage_alternate() -> None:
    # Two chunks of two layers for two micro-batches: forward 0 1 | 0 1, backward 1 1 | 0 0.
    counts = {(0, 0): [1, 2], (0, 1): [3, 4], (1, 0): [5, 6], (1, 1): [7, 8]}
    calls = [c for key in sorted(counts) for n in counts[key] for c in layer_calls(n, FORWARD)]
    for key in ((1, 0), (1, 1), (0, 0), (0, 1)):
        calls += [c for n in reversed(counts[key]) for c in layer_calls(n, BACKWARD)]
    found = step_load([tokens for tokens, _ in calls], [sizes for _, sizes in calls])
    assert found is not None and (found.tokens, found.layer_counts, found.passes) == (36, (), 1)


def test_experts_without_a_gate_are_told_by_repetition() -> None:
    plain = ((H, F), (F, H))  # backward has the shapes of forward
    calls = [c for n in (5, 6, 7, 7, 6, 5) for c in layer_calls(n, plain)]
    found = step_load([tokens for tokens, _ in calls], [sizes for _, sizes in calls])
    assert found is not None and (found.tokens, found.passes) == (18, 2)
    calls = [c for n in (5, 5, 5, 5) for c in layer_calls(n, plain)]
    assert step_load([tokens for tokens, _ in calls], [sizes for _, sizes in calls]) is None
    assert step_load([], []) is None


def test_inference_has_no_backward() -> None:
    calls = [c for n in (5, 6, 5) for c in layer_calls(n, FORWARD)]
    found = step_load([tokens for tokens, _ in calls], [sizes for _, sizes in calls])
    assert found is not None and (found.tokens, found.passes, found.basis) == (16, 1, "forward")


def load_of(con: Any, ranks: dict[int, list[tuple[int, Sizes]]], **places: Any) -> DeviceLoad:
    """What is found of grouped matmuls of ranks; `places`: pp_rank and pp_size of each."""
    for rank, calls in ranks.items():
        fill(con, "ranks", [{"rank": rank, **{k: v[rank] for k, v in places.items()}}])
        fill(con, "kernels", [
            {"rank": rank, "step": 3, "start_ns": 10 * at, "is_compute": True,
             "type": "GroupedMatmul", "input_shapes": f"{n},{k};2,{k},{c};2",
             "output_shapes": f"{n},{c}"}
            for at, (n, (k, c)) in enumerate(calls)
        ])  # fmt: skip
    return trace_load(con)


def test_recomputation_is_recognised_and_not_counted(con: Any) -> None:
    found = load_of(con, {0: train([[5, 6], [8, 9]], again=1)})
    assert found.rows.select("layer", "tokens").rows() == [(0, 13), (1, 15)]
    assert "2 times the tokens of the backward ones: recomputation" in found.notes[0]
    con.execute("delete from kernels where start_ns = 10 * (select count(*) - 1 from kernels)")
    again = trace_load(con)
    assert any("is not a whole number" in note for note in again.notes)


def test_stages_follow_each_other(con: Any) -> None:
    calls = {0: train([[5, 6, 7]]), 1: train([[8, 9]]), 2: train([[3, 3]])}
    found = load_of(con, calls, pp_rank={0: 0, 1: 1, 2: None}, pp_size={0: 2, 1: 2, 2: 2})
    got = found.rows.select("rank", "layer", "tokens").rows()
    assert got == [
        (0, 0, 5), (0, 1, 6), (0, 2, 7), (1, 3, 8), (1, 4, 9), (2, None, 6),
    ]  # fmt: skip
    assert found.notes[-1].startswith("ranks 2: the layer of each")
    # Stages that reduce gradients together hold two copies of the model, from both ends.
    both = {"parallel_kind": "dp_ep", "group_hash": "7", "global_ranks": [0, 1]}
    fill(con, "groups", [{**both, "rank": rank} for rank in (0, 1)])
    assert trace_load(con).rows["layer"].null_count() == 3
    assert trace_load(con).rows["tokens"].to_list() == [18, 17, 6]


def test_a_stage_of_which_the_one_before_is_not_there_has_no_layers(con: Any) -> None:
    found = load_of(con, {1: train([[8, 9]])}, pp_rank={1: 1}, pp_size={1: 2})
    assert found.rows.select("layer", "tokens").rows() == [(None, 17)]


def test_other_steps_and_ranks_tell_the_layers_of_even_ones(con: Any) -> None:
    calls = {0: train([[8, 8], [8, 8]]), 1: train([[5, 6], [7, 8]])}
    found = load_of(con, calls, pp_rank={0: 0, 1: 0}, pp_size={0: 1, 1: 1})
    got = found.rows.select("rank", "layer", "tokens").rows()
    assert got == [(0, 0, 16), (0, 1, 16), (1, 0, 12), (1, 1, 14)] and found.notes == ()


def test_what_is_not_certain_has_no_row(con: Any) -> None:
    plain = ((H, F), (F, H))
    found = load_of(con, {0: [c for _ in range(4) for c in layer_calls(5, plain)]})
    assert found.rows.is_empty() and "not counted" in found.notes[0]
