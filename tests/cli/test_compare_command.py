"""`npuscope compare`: two places on one command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from npuscope.sample_traces.job import small
from tests.cli.command import Run

BASE = small()
TWICE = replace(BASE, repeated_kernel="ApplyAdamWV2")


@pytest.fixture(scope="module")
def stores(stored_job: Callable[..., Path]) -> tuple[Path, Path]:
    return stored_job(BASE, "text"), stored_job(TWICE, "db")


@pytest.mark.slow
def test_text_against_database(run: Run, stores: tuple[Path, Path]) -> None:
    outcome = run("compare", *stores, "--json")
    assert outcome.code == 0
    answer = json.loads(outcome.out)
    assert answer["metric"] == "compare" and answer["verdict"] == "different"
    assert answer["delta_ns"] == answer["step_b_ns"] - answer["step_a_ns"] > 0
    assert answer["delta_low_ns"] < answer["delta_ns"] < answer["delta_high_ns"]
    assert sum(row["delta_ns"] for row in answer["rows"]) == answer["delta_ns"]
    most = max(answer["rows"], key=lambda row: row["delta_ns"])
    assert (most["part"], most["name"], most["change"]) == ("computing", "ApplyAdamWV2", "count")
    assert most["delta_ns"] == pytest.approx(answer["delta_ns"], rel=0.1)


def test_the_table_says_it_first(run: Run, stores: tuple[Path, Path]) -> None:
    outcome = run("compare", *stores)
    assert outcome.code == 0
    first = next(line for line in outcome.out.splitlines() if line.startswith("step "))
    assert first.endswith(": different") and "%" in first
    assert "ApplyAdamWV2" in outcome.out and "ran more or less often" in outcome.out
    assert run("compare", f"{stores[0]}@job", stores[1]).out == outcome.out
    place = run("compare", f"{stores[0]}@other", stores[1])
    assert place.code == 2 and "no run other here: there is job" in place.err


@pytest.mark.slow
def test_the_answer_as_a_page_and_as_markdown(
    run: Run, stores: tuple[Path, Path], tmp_path: Path
) -> None:
    page, text = tmp_path / "change.html", tmp_path / "change.md"
    assert run("compare", *stores, "--html", page, "--lang", "zh").code == 0
    assert run("compare", *stores, "--markdown", "-o", text).code == 0
    told = page.read_text(encoding="utf-8")
    assert all(words in told for words in ("差异是否真实？", "ApplyAdamWV2", "执行次数增减"))
    assert "ran more or less often" not in told and "http" not in told.partition("<body")[2]
    (bars,) = re.findall(r"Plotly\.newPlot\(\s*\"[\w-]+\",\s*(\[\{.*?\}\]),", told, re.DOTALL)
    (waterfall,) = json.loads(bars)
    lines = text.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# npuscope compare" and f"* B: {stores[1]}" in [
        line.replace("\\", "") for line in lines
    ]
    answer = run("compare", *stores, "--json").json()
    ends = [answer["step_a_ns"], answer["step_b_ns"], answer["delta_ns"]]
    assert waterfall["customdata"][0] == waterfall["customdata"][-1] == ends
    assert sum(row[2] for row in waterfall["customdata"][1:-1]) == answer["delta_ns"]
    table = [line.split(" | ") for line in lines[lines.index("## Is it real?") :]]
    told_ms = next(row for row in table if row[0] == "| step of the job")[1:4]
    assert told_ms == [
        f"{answer[key] / 1e6:,.3f}" for key in ("step_a_ns", "step_b_ns", "delta_ns")
    ]
    for words in (("--html", page, "--json"), ("-o", text), ("--markdown", "--lang", "xx")):
        assert run("compare", *stores, *words).code == 2


@pytest.mark.slow
def test_by_rank_and_per_token(run: Run, stores: tuple[Path, Path]) -> None:
    answer = run("compare", *stores, "--by", "rank", "--json").json()
    assert answer["metric"] == "compare_rank"
    for rank in (0, 1):
        rows = [row for row in answer["rows"] if row["rank"] == rank]
        assert sum(row["delta_ns"] for row in rows) == answer["delta_ns"]
    asked = ("--tokens-a", 1000, "--tokens-b", 2000)
    told = run("compare", *stores, *asked)
    assert "ns of a rank per token" in told.out and "tokens per step differ" in told.err
    answer = run("compare", *stores, *asked, "--json").json()
    assert (answer["tokens_a"], answer["tokens_b"]) == (1000, 2000)
    each = sum(row["a_ns_per_token"] for row in answer["rows"])
    assert each == pytest.approx(answer["step_a_ns"] * BASE.world_size / 1000)
    assert run("compare", *stores, "--by", "colour").code == 2


@pytest.mark.slow
def test_a_trace_of_kineto_against_one_of_ascend(
    run: Run, stored_job: Callable[..., Path], stores: tuple[Path, Path]
) -> None:
    answer = run("compare", stored_job(BASE, "kineto"), stores[0], "--json").json()
    for side in ("a", "b", "delta"):
        known = answer["delta_ns"] if side == "delta" else answer[f"step_{side}_ns"]
        assert sum(row[f"{side}_ns"] for row in answer["rows"]) == known
    paired = [row["name"] for row in answer["rows"] if row["change"] == "kernels"]
    assert {"aten::matmul", "npu::npu_grouped_matmul"} <= {*paired}
    assert any("matched by the framework's operator" in note for note in answer["notes"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "Missing argument"),
        (("A",), 2, "Missing argument"),
        (("none", "none"), 3, "none"),
        (("none@", "none"), 2, "PATH@RUN"),
    ],
)
def test_wrong_usage(
    run: Run, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    outcome = run("compare", *(str(tmp_path / word) if word != "A" else word for word in words))
    assert outcome.code == code and said in outcome.err


def test_one_step_is_not_enough(run: Run, small_store: Path) -> None:
    outcome = run("compare", small_store, small_store, "--json")
    answer = json.loads(outcome.out)
    assert answer["delta_ns"] == 0 and {row["delta_ns"] for row in answer["rows"]} == {0}
    assert answer["verdict"] in ("not_enough", "same")
