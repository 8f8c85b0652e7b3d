"""Every page's script, run as Streamlit runs it, without a browser."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import ignore_patterns
from typing import Any

import polars as pl
import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from npuscope.analysis import memo
from npuscope.analysis.catalog import metrics
from npuscope.analysis.scope import Scope
from npuscope.analysis.summaries import summarise
from npuscope.analysis.trends import trends
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.answers import ANSWERS
from npuscope.collector.store.manifest import create_store
from npuscope.dashboard.answers.overview_answers import found_here
from npuscope.dashboard.app import sources
from npuscope.dashboard.app.page import PAGES
from npuscope.dashboard.app.served_stores import ENVIRONMENT
from npuscope.profile import Source, compare_ranks, open_tables
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job, small
from tests.cli.command import output_of
from tests.conftest import REPOSITORY, WriteProfile
from tests.dashboard.app.published_jobs import publish_job, publish_rank
from tests.dashboard.app.visited_pages import figures, visit

pytestmark = pytest.mark.slow
HOUR_NS = 3600 * 10**9
OVER_TIME = small(steps=2, layers=1, name="moe", noise=0.003)
LOG = pl.DataFrame(
    {"step": range(300), "elapsed_s": [(1.0 + (n >= 200)) * (1 + n % 7 / 500) for n in range(300)]}
)


def pick(visited: AppTest, label: str) -> object:
    return next(one.value for one in visited.selectbox if one.label == label)


def is_clean(visited: AppTest) -> bool:
    return not visited.exception and not visited.error


def test_every_page_shows_the_sample_in_both_languages(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    for lang in ("en", "zh"):
        visited = visit(monkeypatch, sample_store, starts_in=lang)
        assert is_clean(visited)
        for name in PAGES:
            visited.switch_page(f"{name}.py").run()
            assert is_clean(visited), (name, visited.exception, visited.error)
            assert len(visited.subheader) >= 1, name
            question = visited.subheader[0].value
            assert question.isascii() == (lang == "en"), (name, question)
            if lang == "zh":
                assert english_words(visited) == set(), name


# Words of the field that are Chinese as they are, and names that the sample brings.
_FIELD = {
    "rank", "step", "token", "host", "stage", "matmul", "vector", "world", "send", "receive",
    "hccl", "roofline", "dsa",
}  # fmt: skip
_RECORDED = {"table", "framework", "source_format", "clock"}  # columns of names
_ENGLISH = re.compile("[a-z]{3,}( [a-z]+)*")
_DRAWN = ("name", "text", "ticktext", "x", "y", "labels")


def english_words(visited: AppTest) -> set[str]:
    """Words of figures and of tables, in headings and in cells, that are English."""
    told: set[str] = set()

    def look(value: Any, key: str = "") -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                look(inner, name)
        elif isinstance(value, list):
            for inner in value:
                look(inner, key)
        elif isinstance(value, str) and key in _DRAWN:
            told.add(value)

    for figure in figures(visited):
        look({"data": figure["data"], "layout": figure["layout"] | {"template": None}})
    for table in visited.dataframe:
        told.update(one["label"] for one in json.loads(table.proto.columns).values()
                    if one.get("label"))  # fmt: skip
        cells = table.value
        told.update(
            one
            for name in cells
            if name not in _RECORDED
            for one in cells[name]
            if isinstance(one, str)
        )
    return {one for one in told if _ENGLISH.fullmatch(one) and one not in _FIELD}


def draw(node: Any) -> Iterator[Any]:
    """Elements of a page in order, with those inside of others."""
    for one in getattr(node, "children", {}).values():
        yield one
        yield from draw(one)


def test_every_figure_and_tile_names_its_metrics(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    files = {one.name: f"analysis/{one.file}" for one in metrics()}
    assert [file for file in files.values() if not (REPOSITORY / file).is_file()] == []
    counted: dict[str, int] = {}
    visited = visit(monkeypatch, sample_store)
    for name in PAGES:
        visited.switch_page(f"{name}.py").run()
        assert is_clean(visited)
        elements = list(draw(visited.main))
        for one, following in zip(elements, [*elements[1:], None], strict=True):
            if one.type == "plotly_chart":
                assert following is not None and following.type == "caption", one.proto.id
                told, named = following.help, re.findall("`(\\w+)`", following.value)
            elif one.type == "metric":
                told, named = one.help, re.findall("^`(\\w+)`: ", one.help, re.M)
            else:
                continue
            counted[one.type] = counted.get(one.type, 0) + 1
            assert named, (name, one)
            places = re.findall("^`(\\w+)`: (.+?) *$", told, re.M)
            assert places == [(metric, files[metric]) for metric in named]
    assert counted["metric"] == 4 and counted["plotly_chart"] > 15


def test_every_page_says_that_an_empty_store_is_empty(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create_store(tmp_path / "empty")
    visited = visit(monkeypatch, tmp_path / "empty")
    for name in PAGES:
        visited.switch_page(f"{name}.py").run()
        assert is_clean(visited), (name, visited.exception)
        assert "No data is ingested yet" in visited.info[0].value


def test_the_overview_opens_with_the_findings_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store)
    with open_tables(Source(sample_store)) as data:
        compare_ranks(data)
        found = found_here(data.con, Scope("moe_8_ranks"))
    shown = [one.value.replace("\\", "") for one in visited.markdown]
    places = [next(n for n, text in enumerate(shown) if one.statement in text) for one in found]
    assert len(found) >= 3
    assert places == sorted(places)


def test_what_pages_computed_is_kept_for_commands_and_servers_started_later(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(memo, "WORTH_S", 0.0)
    own, other = (
        shutil.copytree(sample_store, tmp_path / name, ignore=ignore_patterns(ANSWERS))
        for name in ("own", "other")
    )

    def answers(store: Path) -> dict[str, int]:
        return {one.name: one.stat().st_mtime_ns for one in store.glob(f"{ANSWERS}/*/*")}

    first = [one.value for one in visit(monkeypatch, own, rank="3").markdown]
    before = answers(own)
    sources.open_tables.clear()
    sources._compute.clear()
    assert [one.value for one in visit(monkeypatch, own, rank="3").markdown] == first
    visit(monkeypatch, own)
    kept = answers(own)
    assert before.items() < kept.items()  # none was written again
    told = [output_of("findings", store, "--json") for store in (own, other)]
    assert told[0].replace(str(own), str(other)) == told[1]
    asked = {*answers(other)}
    assert len(asked & {*kept}) > 4 * len(asked - {*kept})  # those are of all captures


def test_a_hostile_url_shows_the_default(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(
        monkeypatch, sample_store, run="../../x", rank="<script>alert(1)</script>",
        step="9" * 400, capture="'; drop view ranks; --", start_ns="1e30", end_ns="-5",
        lang="xx", store="/etc",
    )  # fmt: skip
    assert is_clean(visited)
    assert visited.query_params == {
        "run": "moe_8_ranks", "capture": "20251127T123437.000Z", "lang": "en",
    }  # fmt: skip


def test_choices_go_into_the_url_and_survive_a_change_of_page(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store, rank="3")
    assert pick(visited, "rank") == 3
    next(one for one in visited.selectbox if one.label == "step").select(13).run()
    assert is_clean(visited)
    assert (visited.query_params["rank"], visited.query_params["step"]) == ("3", "13")
    visited.query_params.clear()  # as the menu does
    visited.switch_page("quality.py").run()
    assert (pick(visited, "rank"), pick(visited, "step")) == (3, 13)


def test_a_new_capture_appears_without_a_restart(
    monkeypatch: pytest.MonkeyPatch, write_profile: WriteProfile, tmp_path: Path
) -> None:
    store = tmp_path / "growing"
    create_store(store)
    visited = visit(monkeypatch, store)
    assert "No data is ingested" in visited.info[0].value
    profile = write_profile(tmp_path / "profiles" / "one_ascend_pt", 0)
    assert ingest(profile, store, run="later", summarise=summarise, jobs=1).is_complete
    sources.version_of.clear()  # its two seconds are over
    visited.run()
    assert is_clean(visited)
    assert pick(visited, "run") == ("store0", "later")

    # A file of it is cut while it is looked at; another run is whole.
    assert ingest(profile, store, run="another", summarise=summarise, jobs=1).is_complete
    sources.version_of.clear()
    visited.query_params["run"] = "later"
    visited.run()
    assert is_clean(visited) and pick(visited, "run") == ("store0", "later")
    for file in (store / "run=later").rglob("*.parquet"):
        os.truncate(file, 100)
    for name in ("memory", "host", "quality"):
        visited.switch_page(f"{name}.py").run()
        assert not visited.exception and not visited.error, name
        assert pick(visited, "run") == ("store0", "another")
        told = visited.warning[-1].value.replace("\\", "")
        assert "left out: run later, capture" in told and "--force" in told
        assert str(store) not in told and "store0/run=later" in told
    for file in (store / "run=another").rglob("*.parquet"):
        file.unlink()
    sources.open_tables.clear()
    sources._captures.clear()
    visited.run()
    assert not visited.exception and "No data is ingested" in visited.info[0].value
    assert "run another" in visited.warning[-1].value


def test_kernels_without_types_are_told_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = Job(name="bare", layers=1, pp=1, dp=1, ep=1, experts=2, micro_batches=1, steps=1)
    frames = canonical_frames(job, tables=("ranks", "steps", "kernels"), capture="c")
    bare = [pl.lit(None, pl.String).alias(name) for name in ("type", "input_shapes")]
    tables = {name: rows.drop("run", "capture", "rank") for name, rows in frames.items()}
    tables["kernels"] = tables["kernels"].with_columns(bare)
    tables["ranks"] = tables["ranks"].with_columns(profiler_level=pl.lit("Level0"))
    create_store(tmp_path / "bare")
    publish_rank(tmp_path / "bare", ("bare", "c", 0), tables, 1.0)
    visited = visit(monkeypatch, tmp_path / "bare")
    visited.switch_page("operators.py").run()
    assert is_clean(visited)
    assert visited.segmented_control[0].value == "name"
    drawn = json.loads(visited.get("plotly_chart")[0].proto.spec)
    assert len(drawn["layout"]["yaxis"]["ticktext"]) > 1
    told = next(one.value for one in visited.info if "no types and shapes" in one.value)
    assert "Level1" in told.replace("\\", "")


def test_communication_of_which_only_the_time_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = tmp_path / "timed"
    create_store(store)
    for rank, communication_ns in ((0, 4e6), (1, 0.0)):
        row = {
            "step": 2,
            "computing_ns": 5e6,
            "communication_ns": communication_ns,
            "communication_not_overlapped_ns": communication_ns * 0.75,
            "overlapped_ns": communication_ns * 0.25,
            "free_ns": 1e6,
            "stage_ns": 10e6,
        }
        tables = {"ranks": pl.DataFrame({"host_name": ["h"]}), "profiler_steps": pl.DataFrame(row)}
        publish_rank(store, ("timed", "c", rank), tables, 1.0)
    for rank, what in ((0, "Only the time that communication takes"), (1, "No communication was")):
        visited = visit(monkeypatch, store, page="communication", rank=str(rank))
        assert is_clean(visited) and what in visited.info[0].value
        shown = [one.value for one in visited.dataframe]
        assert len(figures(visited)) == len(shown) == 1 - rank
        if shown:
            assert shown[0]["part"].to_list()[1] == "communication, bytes or waiting unknown"
            assert shown[0]["ns"].to_list() == [5.0, 3.0, 1.0]  # ms
        said = output_of("comm", store, "--rank", rank, "--json")
        assert what.lower() in said.lower()


def test_runs_of_one_name_in_two_stores_are_both_there(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.symlink_to(sample_store)
    visited = visit(monkeypatch, sample_store, other, store="store1")
    runs = next(one for one in visited.selectbox if one.label == "run")
    assert runs.options == ["moe_8_ranks (store0)", "moe_8_ranks (store1)"]
    assert runs.value == ("store1", "moe_8_ranks")


def test_an_error_is_told_without_the_place_of_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "secret-place"
    create_store(broken)
    (broken / "npuscope-store.json").write_text(json.dumps({"layout": 99}))
    visited = visit(monkeypatch, broken)
    assert not visited.exception
    assert "store0" in visited.error[0].value
    assert "secret-place" not in visited.error[0].value
    assert ENVIRONMENT not in visited.error[0].value


def test_tables_can_be_taken_away(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> None:
    from npuscope.dashboard.app import page

    frame = pl.DataFrame({"rank": [0], "groups": [["a", "b"]], "total_ns": [2**60]})
    assert page._csv(frame).decode() == "rank,groups,total_ns\n0,a b,1152921504606846976\n"
    assert pl.read_parquet(page._parquet(frame)).equals(frame)


def test_changes_are_marked_and_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for number in range(8):
        job = replace(OVER_TIME, seed=number, start_ns=OVER_TIME.start_ns + number * HOUR_NS)
        if number >= 4:
            job = replace(job, repeated_kernel="ApplyAdamWV2")
        name = f"20251127T{number:02}3437.000Z"
        publish_job(tmp_path / "store", job, name, published_s=number, more={"train_log": LOG})
    visited = visit(monkeypatch, tmp_path / "store", page="trends", lang="zh")
    over_time, log = figures(visited)
    table = visited.dataframe[0].value
    with store.open(tmp_path / "store") as con:
        changes = trends(con).changes
    logged = changes.filter(basis="train_log")
    assert logged["step"].to_list() == [200] and logged["delta_ratio"][0] == pytest.approx(
        1.0, abs=0.01
    )
    assert [line["x0"] for line in log["layout"]["shapes"]] == [200]
    steps = changes.filter(basis="captures", measure="step_ns").height
    assert len(over_time["layout"].get("shapes", [])) >= steps
    assert changes.filter(measure="computing_ns")["capture"].to_list() == ["20251127T043437.000Z"]
    assert list(table["since"]) == [
        row["capture"] or str(row["step"]) for row in changes.to_dicts()
    ]
    assert any("变化点" in one.label for one in visited.expander)
