"""What the timeline is drawn from: sums as the commands print them, and what is refused."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import polars as pl
import pyarrow as pa
import pytest

pytest.importorskip("streamlit")

from starlette.requests import Request
from starlette.responses import Response

from npuscope.analysis.timeline import replay_tracks
from npuscope.analysis.timeline.evidence_place import EvidencePlace
from npuscope.dashboard.answers.timeline_answers import shown_evidence
from npuscope.dashboard.app import sources, timeline_tiles
from npuscope.dashboard.app.served_stores import Place, ServedStores, environment_of
from npuscope.sample_traces.job import small
from tests.cli.command import rows_of
from tests.conftest import REPOSITORY
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.report.printed_figures import command_output

WHOLE = 40  # of which one tile is all of a capture


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, sample_store: Path) -> Mapping[str, str]:
    """The sample is served; its names."""
    for name, value in environment_of(ServedStores([Place(str(sample_store), "sample")])).items():
        monkeypatch.setenv(name, value)
    one = sources.choices().captures[0]
    return {"store": "sample", "run": one.run, "capture": one.capture}


def ask(answer: str, params: Mapping[str, object], **headers: str) -> Response:
    query = urlencode(params).encode()
    named = [
        (name.replace("_", "-").encode(), text.encode("latin-1")) for name, text in headers.items()
    ]
    return timeline_tiles.answer(
        answer, Request({"type": "http", "query_string": query, "headers": named})
    )


def decode(
    answer: str, params: Mapping[str, object]
) -> dict[str, dict[str, list[dict[str, object]]]]:
    found: dict[str, dict[str, list[dict[str, object]]]] = json.loads(
        bytes(ask(answer, params).body)
    )
    return found


def rows(params: Mapping[str, object]) -> pl.DataFrame:
    found = pl.from_arrow(pa.ipc.open_stream(bytes(ask("tile", params).body)).read_all())
    assert isinstance(found, pl.DataFrame)
    return found


def test_sums_of_tracks_are_those_of_the_commands(
    place: Mapping[str, str], sample_store: Path
) -> None:
    ranks = "0.1.2.3.4.5.6.7"
    tracks = decode("tracks", {**place, "part": "device", "ranks": ranks})
    drawn = pl.concat(
        rows({**place, "part": "device", "ranks": ranks, "level": WHOLE, "index": index})
        for index in (-1, 0)
    )
    sums: dict[tuple[str, int], int] = defaultdict(int)
    for rank, track, class_, total in (
        drawn.group_by("rank", "track", "class").agg(pl.col("dur_ns").sum()).rows()
    ):
        kind = tracks[str(rank)]["tracks"][track]["kind"]
        sums[str(kind if kind != "overlap" else class_), rank] += total
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for row in command_output(sample_store, "kernels", "--by", "type"):
        expected["stream", row["rank"]] += row["total_ns"]
    for row in command_output(sample_store, "comm", "--by", "op"):
        expected["group", row["rank"]] += row["total_ns"]
    finest = "select * from timeline_bins where level = 0"
    for row in command_output(sample_store, "sql", finest):
        expected["0", row["rank"]] += row["computing_ns"] - row["overlapped_ns"]
        expected["1", row["rank"]] += row["overlapped_ns"]
        expected["2", row["rank"]] += row["exposed_communication_ns"]
    assert sums == expected


def test_an_event_tells_who_took_part_and_what_launched_it(place: Mapping[str, str]) -> None:
    found = json.loads(
        bytes(ask("found", {**place, "part": "device", "ranks": "0", "text": "allToAll"}).body)
    )
    first = found["rows"][0]
    event = {**place, "rank": 0, "kind": "group", **{k: first[k] for k in ("start_ns", "dur_ns")}}
    told_of = json.loads(bytes(ask("event", event).body))
    assert {one["rank"] for one in told_of["members"]} == {0, 1}
    assert told_of["row"]["op_type"] == "allToAllV" and told_of["row"]["size_bytes"] > 0
    assert told_of["launch"]["start_ns"] < first["start_ns"]


def test_curves_are_between_their_bounds(place: Mapping[str, str]) -> None:
    asked_of = {**place, "part": "curves", "ranks": "0"}
    tracks = decode("tracks", asked_of)["0"]["tracks"]
    drawn = rows({**asked_of, "level": 20, "index": 0})
    assert {one["kind"] for one in tracks} == {"memory"}
    for track, value in drawn.select("track", "high").rows():
        assert float(str(tracks[track]["least"])) <= value <= float(str(tracks[track]["most"]))


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"run": "../../etc"}, 404),
        ({"store": "/etc/passwd"}, 404),
        ({"capture": "' or 1=1 --"}, 404),
        ({"ranks": "0;drop table kernels"}, 400),
        ({"ranks": "99"}, 404),
        ({"ranks": ".".join(map(str, range(17)))}, 400),
        ({"ranks": ""}, 400),
        ({"part": "kernels"}, 400),
        ({"level": "51"}, 400),
        ({"level": "-1"}, 400),
        ({"level": "1e3"}, 400),
        ({"index": "9" * 19}, 400),
        ({"index": "9" * 400}, 400),
        ({"index": "\u0661"}, 400),
        ({"index": "--1"}, 400),
    ],
)
def test_hostile_tiles_are_refused(
    place: Mapping[str, str], changes: Mapping[str, str], status: int
) -> None:
    usual: dict[str, str] = {**place, "part": "device", "ranks": "0", "level": "20", "index": "0"}
    assert ask("tile", usual).status_code == 200
    assert ask("tile", {**usual, **changes}).status_code == status


@pytest.mark.slow
def test_who_has_a_tile_is_told_so_until_the_store_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = small(steps=1, layers=1, name="moe")
    publish_job(tmp_path, job, "20251127T043437.000Z", published_s=1, ranks=(0, 1))
    for name, value in environment_of(ServedStores([Place(str(tmp_path), "store")])).items():
        monkeypatch.setenv(name, value)
    one = sources.choices().captures[0]
    tile: dict[str, object] = {
        "run": one.run, "capture": one.capture, "part": "device", "ranks": "0", "level": 20,
        "index": 0,
    }  # fmt: skip

    def etag_of(**changes: object) -> str:
        return ask("tile", {**tile, **changes}).headers["etag"]

    first = ask("tile", tile)
    etag = first.headers["etag"]
    assert (first.status_code, first.headers["cache-control"]) == (200, "private, no-cache")
    assert etag == etag_of() and "Accept-Encoding" in first.headers["vary"]
    same = ask("tile", tile, if_none_match=f'"other", {etag}')
    assert (same.status_code, bytes(same.body), same.headers["etag"]) == (304, b"", etag)
    assert same.headers["cache-control"] == "private, no-cache"

    others = {etag_of(index=1), etag_of(level=19), etag_of(ranks="1"), etag_of(part="overlap")}
    assert len(others - {etag}) == 4
    packed = ask("tile", tile, accept_encoding="zstd", if_none_match=etag)
    assert packed.status_code == 200 and packed.headers["etag"] != etag
    for hostile in ("*" * 9_999, etag[:-1], etag + "\x00", "\xff\r\nSet-Cookie: a=b", ",,,"):
        answer = ask("tile", tile, if_none_match=hostile)
        assert answer.status_code == 200 and "set-cookie" not in answer.headers
    assert ask("tile", {**tile, "ranks": "99"}, if_none_match=etag).status_code == 404

    publish_job(tmp_path, job, "20251128T043437.000Z", published_s=2, ranks=(0,))
    sources.version_of.clear()  # which is looked for every few seconds
    changed = ask("tile", tile, if_none_match=etag)
    assert changed.status_code == 200 and changed.headers["etag"] != etag


def test_hostile_questions_are_refused(place: Mapping[str, str]) -> None:
    of_event = {**place, "rank": 0, "kind": "stream", "start_ns": 1, "dur_ns": 1}
    assert ask("event", of_event).status_code == 404
    assert ask("event", of_event | {"kind": "ranks"}).status_code == 400
    assert ask("event", of_event | {"rank": 77}).status_code == 404
    search = {**place, "part": "device", "ranks": "0"}
    assert ask("found", search | {"text": "x" * 201}).status_code == 400
    assert ask("found", search | {"text": "a\x00b"}).status_code == 400
    assert ask("measured", search | {"from_ns": 5, "to_ns": 5}).status_code == 400
    assert ask("__class__", search).status_code == 404
    assert ask("overview", {**place, "columns": 10**9}).status_code == 400
    # Of what the server computes before anybody asks, else nothing would be found.
    asked = (REPOSITORY / "dashboard/timeline_component/src/side.js").read_text()
    assert f'"overview", {{ columns: {timeline_tiles.MAP_COLUMNS} }}' in asked


def test_the_critical_path_is_as_long_as_the_command_says(
    place: Mapping[str, str], sample_store: Path
) -> None:
    drawn = rows({**place, "part": "path", "level": WHOLE, "index": 0})
    path = command_output(sample_store, "critical-path")
    sums = dict(drawn.group_by("class").agg(pl.col("dur_ns").sum()).rows())
    for position, part in enumerate(
        replay_tracks.PARTS[:-1]
    ):  # of gaps only those above 0 are drawn
        assert sums.get(position, 0) == sum(one["path_ns"] for one in path if one["part"] == part)
    short = rows({**place, "part": "path", "level": 12, "index": 0})
    ranks = {int(name.partition(" ")[0]) for name in short["name"].cast(pl.String)}
    assert ranks and ranks <= {row["rank"] for row in path}


def test_predicted_steps_are_those_of_the_command(
    place: Mapping[str, str], sample_store: Path
) -> None:
    change = "comm:all=0.5"
    drawn = rows({**place, "part": "whatif", "change": change, "level": 10, "index": 0})
    steps = [row for row in rows_of("whatif", sample_store, change) if row["step"] is not None]
    for track, column in enumerate(("measured_step_ns", "predicted_step_ns")):
        mine = drawn.filter(track=track)
        assert mine["dur_ns"].to_list() == [row[column] for row in steps][: mine.height]
        assert mine["name"].to_list()[0] == str(steps[0]["step"])


def test_slack_of_an_event_is_the_commands(place: Mapping[str, str], sample_store: Path) -> None:
    looked_for = {**place, "part": "device", "ranks": "0", "text": "matmul"}
    found = json.loads(bytes(ask("found", looked_for).body))
    slack = [row for row in rows_of("critical-path", sample_store, "--slack") if row["rank"] == 0]
    for one in found["rows"][:3]:
        event = {**place, "ranks": 0, "kind": "stream", "start_ns": one["start_ns"]}
        answer = json.loads(bytes(ask("slack", {**event, "dur_ns": one["dur_ns"]}).body))
        alike = {row["slack_ns"] for row in slack if row["dur_ns"] == one["dur_ns"]}
        assert answer["slack_ns"] in alike or (None in alike and "waits" in answer["reason"])


def test_a_replay_that_cannot_answer_says_why_in_the_readers_language(
    place: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_tracks, "MOST_OPERATIONS", 10)
    asked_of = {**place, "part": "whatif", "change": "host=0.5", "lang": "zh"}
    answer = decode("tracks", asked_of)["-1"]
    assert answer["tracks"] == [] and "\u592a\u591a" in str(answer["reason"])
    assert ask("tile", {**asked_of, "level": 1, "index": 0}).status_code == 503
    assert ask("tracks", {**asked_of, "change": "x" * 201}).status_code == 400


def test_a_link_to_an_evidence_says_window_rank_and_event() -> None:
    one = EvidencePlace(3, 10_000, 12_000, "group", "g", "send")
    told = shown_evidence(one, 10**18, "told")
    assert (told["start_ns"], told["end_ns"]) == (10**18 + 3_000, 10**18 + 19_000)
    kept = json.loads(str(told["shown"]))
    assert kept["open"] == ["3"] and kept["find"] == "send"
    assert [kept["event"][name] for name in ("kind", "key", "start", "dur")] == [
        "group", "g", 10_000, 2_000,
    ]  # fmt: skip
    gap = json.loads(str(shown_evidence(EvidencePlace(3, 5, 9), 0, "x" * 99)["shown"]))
    assert gap == {"open": ["3"], "marks": [{"from": 5, "to": 9, "text": "x" * 59 + "…"}]}
