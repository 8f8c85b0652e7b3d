"""Files of a training hook: their sum over ranks, and what is said of those that lack something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.collector.discover.expert_folders import expert_source
from npuscope.collector.readers.expert_load.load_frames import LOAD_SCHEMA, ExpertLoad
from npuscope.errors import TraceFormatError, TraceNotFound
from npuscope.sample_traces.generate import Job
from npuscope.sample_traces.truth import expert_load
from tests.collector.readers.expert_load.expert_dumps import line, write_deployment, write_hook

JOB = Job(layers=2, experts=8, dp=4, pp=2, ep=2, tp=2, sequence=64)


def read(folder: Path) -> ExpertLoad:
    found = expert_source(folder)
    assert found is not None
    return found


def read_hook(folder: Path, *ranks: str) -> ExpertLoad:
    """What is read of files of ranks 0, 1, ..."""
    folder.mkdir(exist_ok=True)
    for rank, text in enumerate(ranks):
        (folder / f"rank{rank}.jsonl").write_text(text)
    return read(folder)


@pytest.mark.parametrize("nested", [True, False])
def test_the_planted_load_is_recovered(tmp_path: Path, nested: bool) -> None:
    write_hook(JOB, tmp_path / "tokens_per_expert", nested=nested)
    found = read(tmp_path)
    assert found.load.select("step", "layer", "expert", "tokens").rows() == expert_load(JOB)
    assert dict(found.load.schema) == LOAD_SCHEMA
    assert found.load["phase"].unique().to_list() == ["train"]
    assert found.load["ep_rank"].null_count() == found.load.height
    assert found.placement.is_empty() and found.notes == ()
    facts = found.facts
    assert (facts.source, facts.ranks_count, facts.experts_count) == ("hook", 16, 8)
    assert facts.micro_batches == JOB.micro_batches and not facts.is_physical


def test_a_rank_that_is_missing_is_told(tmp_path: Path) -> None:
    write_hook(JOB, tmp_path / "hook")
    (tmp_path / "hook" / "rank5.jsonl").unlink()
    found = read(tmp_path / "hook")
    assert (found.facts.ranks_count, found.facts.ranks_expected) == (15, 16)
    assert found.notes == ("no file of rank(s) 5: the tokens they routed are missing",)
    (tmp_path / "hook" / "rank5.jsonl").symlink_to(tmp_path / "nowhere")
    assert read(tmp_path / "hook").notes == found.notes


def test_a_step_that_not_all_ranks_told_is_left_out(tmp_path: Path) -> None:
    both = line(1, 0, [1, 2]) + line(1, 1, [5, 5])
    found = read_hook(
        tmp_path, both + line(2, 0, [3, 4]) + line(2, 1, [6, 6]), both + line(2, 1, [1, 0])
    )
    assert found.load.select("step", "layer", "tokens").rows() == [
        (1, 0, 2), (1, 0, 4), (1, 1, 10), (1, 1, 10), (2, 1, 7), (2, 1, 6),
    ]  # fmt: skip
    (note,) = found.notes
    assert note.startswith("step(s) 2: layer(s) 0 were not recorded by all")


def test_of_a_step_that_is_told_again_the_last_line_counts(tmp_path: Path) -> None:
    found = read_hook(tmp_path, line(1, 0, [1, 2]) + line(2, 0, [3, 4]) + line(2, 0, [7, 0]))
    assert found.load["tokens"].to_list() == [1, 2, 7, 0]
    assert "1 line(s) repeat a layer and step" in found.notes[0]


def test_multi_token_prediction_comes_after_the_last_layer(tmp_path: Path) -> None:
    found = read_hook(
        tmp_path,
        line(1, 3, [1, 2]) + line(1, 0, [3, 4], block="mtp", mtp_idx=0) + line(1, 4, [5, 6]),
    )
    assert found.load.select("layer", "tokens").rows() == [
        (3, 1), (3, 2), (4, 5), (4, 6), (5, 3), (5, 4),
    ]  # fmt: skip
    assert found.notes == ("layer 5 is multi-token prediction block 0",)


def test_a_line_that_is_being_written_is_no_damage(tmp_path: Path) -> None:
    found = read_hook(tmp_path, line(1, 0, [1, 2]) + line(2, 0, [3, 4])[:-6])
    assert found.load["tokens"].to_list() == [1, 2] and found.notes == ()
    text = (line(1, 0, [1, 2]) + line(2, 0, [3, 4])).replace("\n", "\r\n")
    (tmp_path / "rank0.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read(tmp_path).load["tokens"].to_list() == [1, 2, 3, 4] and read(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("tpe", "more", "what"),
    [
        ([1, -2], {}, "negative"),
        ([1.5, 2], {}, "not a whole number"),
        ([[1, 2], [3]], {}, "different numbers of experts"),
        ([[1, 2], [3, 4]], {"n_micro": 3}, "n_micro says 3"),
        ([], {}, "no experts"),
        (["a"], {}, "Expected"),
        ([2**70], {}, "beyond"),
        ([2**62], {}, "implausibly"),
        ([1, 2], {"n_micro": "2"}, "Expected"),
    ],
)
def test_lines_that_cannot_be_right_are_told(
    tmp_path: Path, tpe: object, more: dict[str, object], what: str
) -> None:
    wrong = line(1, 0, tpe, **more)
    found = read_hook(tmp_path, line(1, 0, [1, 2]) + wrong + "no object\n" + line(2, 0, [3.0, 4.0]))
    assert found.load["tokens"].to_list() == [1, 2, 3, 4]
    (note,) = found.notes
    assert note.startswith("rank0.jsonl: 2 line(s) cannot be read") and "line 2" in note
    assert what in note
    with pytest.raises(TraceFormatError, match=what):
        read_hook(tmp_path, wrong)


def test_a_layer_below_0_is_no_layer(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="negative"):
        read_hook(tmp_path, line(1, -1, [1, 2]))


@pytest.mark.parametrize(
    "wrong",
    [{"iter": 2**70}, {"iter": -1}, {"layer": 3_000_000_000}, {"mtp_idx": -4}, {"mtp_idx": 2**40}],
)
def test_a_number_that_no_step_or_layer_has(tmp_path: Path, wrong: dict[str, int]) -> None:
    told_wrong = json.loads(line(1, 0, [1, 2])) | wrong
    found = read_hook(tmp_path, line(1, 0, [1, 2]) + json.dumps(told_wrong) + "\n")
    assert found.load.select("step", "layer").unique().rows() == [(1, 0)]
    (note,) = found.notes
    assert "line 2: a step or layer is negative or implausibly large" in note


def test_ranks_that_tell_of_different_experts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TraceFormatError, match=r"rank1.*line 1: 3 experts, but earlier lines have 2"
    ):
        read_hook(tmp_path, line(1, 0, [1, 2]), line(1, 0, [1, 2, 3]))


def test_a_rank_with_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank_0.jsonl").write_text(line(1, 0, [1, 2]))
    with pytest.raises(TraceFormatError, match="two files of ranks 0"):
        read_hook(tmp_path, line(1, 0, [1, 2]))


def test_a_file_without_anything_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="they are empty"):
        read_hook(tmp_path, "", "\n\n")
    (tmp_path / "empty").mkdir()
    assert expert_source(tmp_path / "empty") is None
    with pytest.raises(TraceNotFound, match="no such"):
        expert_source(tmp_path / "gone")


def test_a_deployment_beside_the_files_places_experts(tmp_path: Path) -> None:
    write_deployment(tmp_path / "expert_map.json", [[[1], [0]]])
    found = read_hook(tmp_path, line(1, 0, [1, 2]))
    assert found.placement.rows() == [(0, 0, 0, 1), (0, 1, 0, 0)]
    write_deployment(tmp_path / "expert_map2.json", [[[1], [0]]])
    found = read(tmp_path)
    assert found.placement.is_empty() and "2 deployment files" in found.notes[0]
