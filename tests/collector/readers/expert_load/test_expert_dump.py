"""MindIE's dumps: layers and dumps from rows, slots to experts, and files that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.collector.discover.expert_folders import expert_source
from npuscope.collector.readers.expert_load.deployment_json import read_deployment
from npuscope.collector.readers.expert_load.load_frames import ExpertLoad
from npuscope.collector.readers.expert_load.mindie_dump import layers_in
from npuscope.errors import TraceFormatError, TraceNotFound
from tests.collector.readers.expert_load.expert_dumps import write_deployment, write_dump

TWO = {"num_moe_layers": 2, "num_of_experts": 4, "num_of_selected_experts": [1]}


def read(folder: Path) -> ExpertLoad:
    found = expert_source(folder)
    assert found is not None
    return found


def rows(found: ExpertLoad, *names: str) -> list[tuple[Any, ...]]:
    return found.load.select(names or found.load.columns).rows()


def test_the_real_dump_has_its_golden_figures(real_data: Path, goldens: dict[str, Any]) -> None:
    found = read(real_data / "expert_hotspot")
    layers = found.load.group_by("layer", maintain_order=True).agg(
        (pl.col("tokens").max() / pl.col("tokens").mean()).alias("ratio"), pl.col("tokens").sum()
    )
    golden = goldens["expert_hotspot"]["decode_0"]["per_layer"]
    assert layers["tokens"].to_list() == [one["sum"] for one in golden]
    assert layers["ratio"].to_list() == pytest.approx([one["max_over_mean"] for one in golden])
    ratios = layers["ratio"].to_numpy()
    assert len(ratios) == 58
    assert (round(ratios.mean(), 6), round(ratios.max(), 6)) == (1.599307, 2.966653)
    assert found.load["step"].null_count() == found.load.height
    facts = found.facts
    assert (facts.ranks_count, facts.ranks_expected, facts.slots_count) == (1, 64, 4)
    assert (facts.experts_count, facts.top_k) == (256, 8)
    assert facts.is_physical and len(found.notes) == 3
    assert "58 rows, but there are 59 MoE layers" in found.notes[0]


def test_a_dump_has_what_came_since_the_one_before(tmp_path: Path) -> None:
    dumps = [[1, 2], [3, 4], [5, 2], [3, 9]]
    write_dump(tmp_path, {"decode_0": dumps, "decode_1": [[0, 0]] * 4}, **TWO)
    found = read(tmp_path)
    first = found.load.filter(pl.col("ep_rank") == 0)
    assert first.select("step", "layer", "expert", "tokens").rows() == [
        (0, 0, 0, 1), (0, 0, 1, 2), (0, 1, 0, 3), (0, 1, 1, 4),
        (1, 0, 0, 4), (1, 0, 1, 0), (1, 1, 0, 0), (1, 1, 1, 5),
    ]  # fmt: skip
    assert set(rows(found, "ep_rank", "expert")) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert found.facts.top_k == 1 and found.facts.ranks_expected == 2
    assert found.placement.rows()[:3] == [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 2)]


def test_replicas_of_an_expert_are_told_for_each_rank(tmp_path: Path) -> None:
    write_dump(tmp_path, {"decode_0": [[1, 2, 4]], "decode_1": [[8, 16, 32]]}, num_moe_layers=1)
    write_deployment(tmp_path / "decode_global_deployment.json", [[[2, 0, 2], [1, 2, -1]]], first=3)
    found = read(tmp_path)
    assert rows(found, "layer", "expert", "ep_rank", "tokens") == [
        (3, 0, 0, 2), (3, 2, 0, 5), (3, 1, 1, 8), (3, 2, 1, 16), (3, None, 1, 32),
    ]  # fmt: skip
    assert found.facts.experts_count == 3 and not found.facts.is_physical
    assert len(found.placement) == 5 and found.notes == ()


def test_a_map_that_the_configuration_names_is_used_where_it_fits(tmp_path: Path) -> None:
    write_dump(
        tmp_path, {"prefill_0": [[1, 2]]}, num_moe_layers=1, eplb_expert_map_file="/a/m.json"
    )
    write_deployment(tmp_path / "expert_map.json", [[[1, 0]]])
    assert rows(read(tmp_path), "phase", "expert") == [("prefill", 0), ("prefill", 1)]
    write_deployment(tmp_path / "expert_map.json", [[[1, 0, 2]]])
    found = read(tmp_path)
    assert found.facts.is_physical
    assert any("does not match this dump (3 slots of a device" in note for note in found.notes)


def test_phases_stand_side_by_side_and_variants_are_passed_over(tmp_path: Path) -> None:
    names = ("decode_0", "prefill_0", "decode_topk_0", "decode_0_bak", "decode_info")
    write_dump(tmp_path / "node0", {name: [[1, 2]] for name in names}, num_moe_layers=1)
    write_dump(tmp_path / "node1", {"decode_1": [[3, 4]]}, num_moe_layers=1)
    (tmp_path / "model_gen_config.json").write_text(json.dumps({"num_moe_layers": 1}))
    found = read(tmp_path)
    assert rows(found, "phase", "ep_rank", "tokens") == [
        ("decode", 0, 1), ("decode", 0, 2), ("decode", 1, 3), ("decode", 1, 4),
        ("prefill", 0, 1), ("prefill", 0, 2),
    ]  # fmt: skip
    assert "the phases have different placements: that of decode is kept" in found.notes


def test_shared_experts_outside_are_left_out(tmp_path: Path) -> None:
    ranks = {f"decode_{rank}": [[rank]] for rank in range(3)}
    write_dump(tmp_path, ranks, num_moe_layers=1, num_dangling_shared_experts=1)
    found = read(tmp_path)
    assert rows(found, "expert", "ep_rank", "tokens") == [(0, 0, 1), (1, 1, 2)]
    assert "ranks below 1 hold shared experts only" in found.notes[0]
    write_dump(tmp_path, ranks, num_moe_layers=1, num_dangling_shared_experts=3)
    with pytest.raises(TraceNotFound, match="routed experts"):
        read(tmp_path)
    off = {"num_dangling_shared_experts": 1, "enable_dangling_shared_expert": False}
    write_dump(tmp_path, ranks, num_moe_layers=1, **off)
    assert rows(read(tmp_path), "expert", "tokens") == [(0, 0), (1, 1), (2, 2)]


def test_ranks_and_dumps_that_are_missing_are_told(tmp_path: Path) -> None:
    write_dump(tmp_path, {"decode_1": [[1], [2], [3], [4]]}, **TWO)
    assert "1 of 4 ranks are here" in read(tmp_path).notes[0]
    write_dump(tmp_path, {"decode_0": [[1], [2]]}, **TWO)
    found = read(tmp_path)
    assert found.load["step"].null_count() == found.load.height
    assert any("ranks 0 have 1 dump(s), others up to 2" in note for note in found.notes)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1,2\n3\n4,5\n", "line 2: 1 columns, but the first row has 2"),
        ("1,2\n3,x\n4,5\n", "line 2: no counts: '3,x'"),
        ("1,2\n3,-4\n", "line 2: no counts"),
        ("\n \n", "no rows"),
        ("1,2\n3,1" + "0" * 20 + "\n", "no counts"),
        ("5,5\n5,5\n4,4\n5,5\n1,1\n", "5 rows do not match dumps of 2 layers"),
    ],
)
def test_rows_that_are_wrong_are_refused(tmp_path: Path, text: str, what: str) -> None:
    write_dump(tmp_path, {}, **TWO)
    (tmp_path / "decode_0.csv").write_text(text)
    with pytest.raises(TraceFormatError, match=what):
        read(tmp_path)


def test_rows_as_others_write_them(tmp_path: Path) -> None:
    write_dump(tmp_path, {}, **TWO)
    (tmp_path / "decode_0.csv").write_bytes(b"\xef\xbb\xbf1, 2,\r\n\r\n3 ,4\r\n5")
    found = read(tmp_path)
    assert found.load["tokens"].to_list() == [1, 2, 3, 4]
    assert "the last line is incomplete" in found.notes[0]


def test_ranks_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    write_dump(tmp_path, {"decode_0": [[1, 2]] * 2, "decode_1": [[1]] * 2}, **TWO)
    with pytest.raises(TraceFormatError, match=r"decode_1.*1 slots, but another rank .* 2"):
        read(tmp_path)
    write_dump(tmp_path, {"decode_1": [[1, 2]]}, **TWO)
    with pytest.raises(TraceFormatError, match=r"decode_1.*1 layers, but another rank .* 2"):
        read(tmp_path)


def test_a_counter_that_began_anew_is_told(tmp_path: Path) -> None:
    write_dump(tmp_path, {"decode_0": [[9], [9], [2], [10], [3], [12]]}, **TWO)
    found = read(tmp_path)
    assert rows(found, "step", "tokens") == [(0, 9), (0, 9), (1, 2), (1, 10), (2, 1), (2, 2)]
    assert any("counters were reset at dump 1 (1 time(s))" in note for note in found.notes)


@settings(max_examples=60)
@given(
    st.integers(2, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_layers_are_found_whatever_the_configuration_counts(
    layers: int, dumps: int, slots: int, cut: int, seed: int
) -> None:
    """Rows of whole dumps, of one layer fewer than told, or with a last dump cut short."""
    chance = np.random.default_rng(seed)
    counts = chance.integers(1, 100, (dumps, layers, slots)).cumsum(axis=0).reshape(-1, slots)
    # One layer is so much larger that a wrong number of layers shows.
    counts[::layers] += 10**6
    notes: list[str] = []
    assert layers_in(counts, layers, Path("x"), notes) == layers and notes == []
    assert layers_in(counts, None, Path("x"), notes) == len(counts)
    if dumps > 1 and len(counts) % (layers + 1):
        assert layers_in(counts, layers + 1, Path("x"), notes) == layers
    kept = dumps * layers - cut % layers
    if dumps > 1 and kept % layers and kept % (layers - 1):
        assert layers_in(counts[:kept], layers, Path("x"), notes) == layers
        assert "left out" in notes[-1]


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda told: told.pop("layer_list"), "layer_list"),
        (lambda told: told["layer_list"].append(told["layer_list"][0]), "layers given twice: 0"),
        (lambda told: told["layer_list"][0]["device_list"].append(
            {"device_id": 0, "device_expert": [1]}), "devices given twice: 0"),
        (lambda told: told["layer_list"].clear(), "no device has an expert"),
        (lambda told: told["layer_list"][0]["device_list"][0].update(device_expert=["a"]),
         "Expected"),
        (lambda told: told["layer_list"][0].update(layer_id=-1), "below 0"),
        (lambda told: told["layer_list"][0].update(layer_id=2**40), "32 bits"),
    ],
)  # fmt: skip
def test_a_deployment_that_is_none_is_refused(tmp_path: Path, change: Change, what: str) -> None:
    path = write_deployment(tmp_path / "d.json", [[[0], [1]], [[1], [0]]])
    told = json.loads(path.read_text())
    change(told)
    path.write_text(json.dumps(told))
    with pytest.raises(TraceFormatError, match=what):
        read_deployment(path)


def test_what_does_not_fit_in_a_deployment_is_told(tmp_path: Path) -> None:
    path = write_deployment(tmp_path / "d.json", [[[0, 1], [2, 1]], [[0, 0], [1, 1]]])
    told = json.loads(path.read_text())
    told["moe_layer_count"], told["layer_list"][1]["device_count"] = 3, 4
    path.write_text(json.dumps(told))
    found = read_deployment(path)
    assert (found.experts_count, found.slots_count) == (3, 4)
    assert found.notes == (
        "d.json: 2 layers, but the header says 3",
        "d.json: other devices than it counts in layers 1",
        "d.json: not all of 3 experts have a slot in layers 1",
    )
    with pytest.raises(TraceNotFound):
        read_deployment(tmp_path / "gone.json")
