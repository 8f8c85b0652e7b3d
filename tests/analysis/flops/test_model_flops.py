"""FLOPs and parameters of models against published figures, and against masks."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuscope.analysis.flops.model.architecture import (
    Experts,
    GroupedQueries,
    Model,
    parameters,
)
from npuscope.analysis.flops.model.describe import model_of, presets
from npuscope.analysis.flops.model.model import Attention, count
from npuscope.analysis.flops.model.reconcile import bubble_ratio
from npuscope.errors import UsageError

DEEPSEEK = model_of("deepseek-v3")
PANGU = model_of("pangu-ultra-moe-718b")


def giga(flops: int | Fraction) -> str:
    return f"{float(flops) / 1e9:.2f}"


@pytest.mark.parametrize(
    ("attention", "flops", "tflops", "mfu"),
    [("full", "280.51", "432.5", "43.73"), ("causal", "249.81", "385.1", "38.94")],
)
def test_deepseek_v3_as_published(attention: Attention, flops: str, tflops: str, mfu: str) -> None:
    """ "Insights into DeepSeek-V3", table 4: the same throughput, by both ways of counting."""
    counted = count(DEEPSEEK, sequence_length=4096, attention=attention, mtp=0)
    assert giga(counted.train_flops) == flops
    per_device = float(1541.7 * counted.train_flops)
    assert f"{per_device / 1e12:.1f}" == tflops
    assert f"{per_device / 989e12 * 100:.2f}" == mfu


# s, attention, MTP blocks; then matmul, attention and total of Pangu Ultra MoE and of DeepSeek-V3,
# GFLOP of training per token with the router.
TABLE = [
    (4096, "full", 0, "235.14", "61.40", "296.54", "219.75", "61.40", "281.15"),
    (4096, "full", 1, "246.66", "62.41", "309.08", "229.44", "62.41", "291.85"),
    (4096, "causal", 0, "235.14", "30.70", "265.84", "219.75", "30.70", "250.45"),
    (4096, "causal", 1, "246.66", "31.21", "277.87", "229.44", "31.21", "260.64"),
    (8192, "full", 0, "235.14", "122.81", "357.95", "219.75", "122.81", "342.56"),
    (8192, "full", 1, "246.66", "124.82", "371.49", "229.44", "124.82", "354.26"),
    (8192, "causal", 0, "235.14", "61.40", "296.54", "219.75", "61.40", "281.15"),
    (8192, "causal", 1, "246.66", "62.41", "309.08", "229.44", "62.41", "291.85"),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_table_of_conventions(
    row: tuple[int, Attention, int, str, str, str, str, str, str],
) -> None:
    length, attention, mtp, *figures = row
    told = []
    for model in (PANGU, DEEPSEEK):
        counted = count(
            model, sequence_length=length, attention=attention, mtp=mtp, router=True
        )  # fmt: skip
        parts = (counted.matmul_flops, counted.attention_flops, counted.forward_flops)
        told += [giga(3 * part) for part in parts]
    assert told == figures


def test_pangu_ultra_135b() -> None:
    dense = model_of("pangu-ultra-135b")
    told: tuple[tuple[int, Attention], ...] = ((4096, "full"), (4096, "causal"), (8192, "full"))
    full, causal, long = (
        float(count(dense, sequence_length=s, attention=attention).train_flops) / 1e9
        for s, attention in told
    )
    assert (f"{full:.1f}", f"{causal:.1f}", f"{long:.1f}") == ("848.7", "820.3", "905.5")
    assert f"{parameters(dense).total / 1e9:.2f}" == "133.88"


def test_bubbles_of_pangu_ultra_135b() -> None:
    assert bubble_ratio(8, 16) == Fraction(7, 23)
    assert f"{float(bubble_ratio(8, 16)):.2%}" == "30.43%"
    assert f"{float(bubble_ratio(8, 16, 6)):.2%}" == "6.80%"
    assert bubble_ratio(1, 4) == 0
    with pytest.raises(UsageError):
        bubble_ratio(8, 0)


# What a published total holds besides matrices, which ours leave out: norms of a layer and behind
# the last one, and DeepSeek's bias of the router.
def norms(model: Model) -> int:
    per_layer = 2 * model.hidden_size
    if model.name.startswith("qwen3"):
        per_layer += 2 * 128
    if model.name == "deepseek-v3":
        per_layer += 1536 + 512
    bias = 58 * 256 if model.name == "deepseek-v3" else 0
    return model.layers * per_layer + model.hidden_size + bias


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("deepseek-v3", 671_026_419_200),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-14b", 14_768_307_200),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_parameters_of_presets_to_the_digit(name: str, total: int) -> None:
    model = model_of(name)
    assert parameters(model).total + norms(model) == total


def test_parameters_of_the_large_mixtures() -> None:
    pangu, deepseek, pro = (
        parameters(model) for model in (PANGU, DEEPSEEK, model_of("pangu-pro-moe"))
    )
    assert f"{pangu.total / 1e9:.1f} {pangu.active / 1e9:.1f}" == "719.1 39.2"
    assert f"{(pangu.total + pangu.mtp_total) / 1e9:.2f}" == "731.54"
    assert f"{pangu.mtp_active / 1e9:.2f} {deepseek.mtp_active / 1e9:.2f}" == "0.74 0.69"
    assert f"{deepseek.active / 1e9:.2f}" == "36.62"
    assert f"{(deepseek.total + deepseek.mtp_total) / 1e9:.2f}" == "682.64"
    assert f"{pro.total / 1e9:.2f}" == "71.99"
    assert f"{(pro.active + pro.embedding) / 1e9:.2f}" == "16.50"  # published with the embedding


def test_every_preset_counts_what_its_active_parameters_say() -> None:
    """Products with weights are 2 FLOPs for each active parameter: two counts, made apart."""
    for model in presets().values():
        counted = count(model, sequence_length=4096, mtp=model.mtp_depth, router=True)
        held = parameters(model)
        heads = model.mtp_depth * held.head
        assert counted.matmul_flops == 2 * (held.active + held.mtp_active + heads), model.name


def test_recompute() -> None:
    plain, selective, full = (
        count(PANGU, sequence_length=8192, recompute=recompute)
        for recompute in ("none", "selective", "full")
    )
    assert plain.hardware_flops == plain.train_flops == 3 * plain.forward_flops
    assert plain.backward_flops == 2 * plain.forward_flops
    assert selective.hardware_flops - selective.train_flops == selective.attention_flops
    assert 3 * full.hardware_flops == 4 * full.train_flops
    assert plain.train_flops == selective.train_flops == full.train_flops


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from(["causal", "full"]))
def test_packed_documents_against_a_mask(
    lengths: list[int], attention: Literal["causal", "full"]
) -> None:
    """The core of attention is 2 FLOPs for each score that is not masked, for keys and values."""
    model = Model("small", 2, 8, 16, GroupedQueries(2, 1, 4), 16)
    counted = count(model, sequence_length=40, attention=attention, document_lengths=lengths)
    documents = [document for document, length in enumerate(lengths) for _ in range(length)]
    scores = sum(
        documents[key] == document and (attention == "full" or key <= query)
        for query, document in enumerate(documents)
        for key in range(len(documents))
    )
    assert counted.attention_flops * sum(lengths) == 2 * (2 * scores * 2 * 4) * model.layers
    dense = count(model, sequence_length=40, attention=attention)
    assert counted.matmul_flops == dense.matmul_flops


def test_one_document_is_the_whole_sequence() -> None:
    full = count(DEEPSEEK, sequence_length=4096, attention="full")
    packed = count(DEEPSEEK, sequence_length=4096, attention="full", document_lengths=[4096])
    assert packed.forward_flops == full.forward_flops
    assert type(packed.forward_flops) is int
    causal = count(DEEPSEEK, sequence_length=4096)
    diagonal = count(DEEPSEEK, sequence_length=4096, document_lengths=[4096])
    assert diagonal.attention_flops == causal.attention_flops * Fraction(4097, 4096)


def test_conventions_are_said() -> None:
    counted = count(DEEPSEEK, sequence_length=4096, attention="full", mtp=0)
    told = "; ".join(counted.conventions)
    for said in (
        "sequence length 4096", "attention full", "MTP blocks counted: 0 of 1",
        "router not counted", "LM head counted once, embedding not", "nothing recomputed",
    ):  # fmt: skip
        assert said in told
    packed = count(DEEPSEEK, sequence_length=64, router=True, document_lengths=[5, 9])
    told = "; ".join(packed.conventions)
    assert "s_i (s_i + 1) / 2" in told and "router counted" in told
    assert "LM head counted 2 times" in told


def test_noop_layers_compute_nothing() -> None:
    padded = replace(DEEPSEEK, layers=64, noop_layers=(61, 62, 63))
    count_of = [count(model, sequence_length=4096).train_flops for model in (DEEPSEEK, padded)]
    assert count_of[0] == count_of[1]
    assert parameters(padded) == parameters(DEEPSEEK)
    assert "3 no-op layers not counted" in count(padded, sequence_length=1).conventions


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence_length": 0},
        {"mtp": -1},
        {"attention": "half"},
        {"recompute": "some"},
        {"document_lengths": []},
        {"document_lengths": [4097]},
        {"document_lengths": [0]},
    ],
)
def test_senseless_conventions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        count(DEEPSEEK, **{"sequence_length": 4096, **wrong})


@pytest.mark.parametrize(
    "changes",
    [
        {"noop_layers": (61,)},
        {"noop_layers": tuple(range(61))},
        {"ffn_size": None},
        {"attention": GroupedQueries(5, 2, 64)},
        {"experts": Experts(4, 5, 64)},
        {"experts": Experts(4, 2, 64, layer_frequency=0)},
        {"experts": Experts(4, 2, 64, layer_frequency=(0, 1))},
    ],
)
def test_contradicting_sizes_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="deepseek-v3: "):
        replace(DEEPSEEK, **changes)
