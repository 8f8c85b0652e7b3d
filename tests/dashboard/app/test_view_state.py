"""The view in the URL: what is there gets through, everything else is harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuscope.dashboard.app.state import (
    BASE,
    MOST_LANES,
    SHARES,
    Choices,
    KnownCapture,
    View,
    move_view,
    params_of,
    unknown_choices,
    view_of,
)

SECOND_NS = 10**9
NEWEST = KnownCapture("a", "moe", "c2", (0, 3, 5), (12, 13), 100 * SECOND_NS, 102 * SECOND_NS)
OLDER = KnownCapture("a", "moe", "c1", (0, 1), (7,), 50 * SECOND_NS, 51 * SECOND_NS)
CLOCKLESS = KnownCapture("a", "dense", "c1", (0,), (), None, None)
OTHER = KnownCapture("b", "moe", "c1", (9,), (1,), 10 * SECOND_NS, 11 * SECOND_NS)
ALONE = Choices((NEWEST, OLDER, CLOCKLESS))
SEVERAL = Choices((NEWEST, OLDER, CLOCKLESS, OTHER))

names = st.sampled_from(
    ["store", "run", "capture", "rank", "step", "start_ns", "end_ns", "lang", "share",
     "lanes", "shown", *BASE]
)  # fmt: skip
values = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.sampled_from(["moe", "c1", "c2", "a", "b", "dense", "0", "3", "12", "zh", "9"]),
    st.sampled_from(["free", "computing", "0-3", "3-0", "0-5", "3.5", "3.3.4", "none", "0-²", "."]),
    st.sampled_from(["../../x", "1e30", "<script>alert(1)</script>", "'; drop table ranks; --"]),
    st.integers(90 * SECOND_NS, 110 * SECOND_NS).map(str),
)


@settings(max_examples=60)
@given(st.dictionaries(names | st.text(max_size=8), values), st.sampled_from([ALONE, SEVERAL]))
def test_whatever_a_url_says_the_view_exists(params: dict[str, str], known: Choices) -> None:
    view = view_of(params, known)
    capture = known.capture(view)
    assert capture is not None
    assert (view.run, view.capture) == (capture.run, capture.capture)
    assert view.rank is None or view.rank in capture.ranks
    assert view.step is None or view.step in capture.steps
    assert view.lang in ("en", "zh")
    assert view.share is None or view.share in SHARES
    assert len(view.lanes or ()) <= MOST_LANES and set(view.lanes or ()) <= set(capture.ranks)
    assert (view.start_ns is None) == (view.end_ns is None)
    if view.start_ns is not None and view.end_ns is not None:
        assert 0 <= view.start_ns < view.end_ns < 2**63
    assert view_of(params_of(view), known) == view  # a link shows the same
    assert known.base(view) is not capture


def test_without_parameters_the_newest_capture_is_shown() -> None:
    assert view_of({}, ALONE) == View(run="moe", capture="c2")
    assert view_of({}, SEVERAL).store == "a"
    assert view_of({}, Choices((), lang="zh")) == View(lang="zh")


def test_a_capture_is_compared_with_the_one_before_unless_another_is_asked_for() -> None:
    def base(**asked: str) -> KnownCapture | None:
        return SEVERAL.base(view_of(asked, SEVERAL))

    assert base(run="moe", capture="c2", store="a") == OLDER
    assert base(run="moe", capture="c1", store="a") == NEWEST  # the first of its run
    assert base(run="dense") is None  # the only one of its run, and of its job: not any other
    assert base(run="moe", store="b") == NEWEST  # the run has its name
    asked = {"base_store": "b", "base_run": "moe", "base_capture": "c1"}
    assert base(run="moe", capture="c2", **asked) == OTHER
    assert base(store="b", run="moe", capture="c1", **asked) == NEWEST  # not with itself
    assert base(run="moe", capture="c2", base_run="moe", base_capture="c9") == OLDER
    # A run alone is its newest other capture, a capture alone one of the run that is looked at.
    assert base(run="moe", capture="c2", base_run="dense") == CLOCKLESS
    assert base(run="moe", capture="c1", store="a", base_run="moe") == NEWEST
    assert base(run="moe", capture="c2", store="a", base_capture="c1", base_store="b") == OTHER
    assert Choices((NEWEST,)).base(view_of({}, Choices((NEWEST,)))) is None


def test_a_run_of_the_same_layout_is_a_baseline_its_own_store_first() -> None:
    sizes = (8, 1, 2, 4, None, None)
    dense = replace(CLOCKLESS, layout=sizes)
    far, near = (replace(OTHER, store=store, run="v2", layout=sizes) for store in ("b", "a"))
    for others, expected in (((far, near), near), ((far, NEWEST), far), ((NEWEST,), None)):
        known = Choices((*others, dense))
        assert known.base(view_of({"run": "dense"}, known)) == expected
    unknown = replace(dense, layout=(None,) * 6)
    known = Choices((replace(far, layout=unknown.layout), unknown))
    assert known.base(view_of({"run": "dense"}, known)) is None


def test_the_preferred_run_is_shown_first() -> None:
    assert view_of({}, replace(ALONE, run="dense")).run == "dense"
    assert view_of({"run": "moe"}, replace(ALONE, run="dense")).run == "moe"


@pytest.mark.parametrize(
    ("rank", "shown"),
    [
        ("3", 3),
        ("+3", 3),
        ("1", None),
        ("../../x", None),
        ("9" * 30, None),
        ("³", None),
        ("", None),
    ],
)
def test_a_rank_is_one_that_is_there(rank: str, shown: int | None) -> None:
    assert view_of({"rank": rank}, ALONE).rank == shown


def test_runs_of_one_name_are_told_apart_by_their_store() -> None:
    assert view_of({"run": "moe", "store": "b"}, SEVERAL) == View(
        run="moe", capture="c1", lang="en", store="b"
    )
    assert view_of({"run": "moe", "store": "a", "capture": "c1"}, SEVERAL).store == "a"
    assert SEVERAL.capture(view_of({"store": "b"}, SEVERAL)) == OTHER


def test_a_window_is_cut_to_what_may_hold_events() -> None:
    def window(start: int, end: int) -> tuple[int | None, int | None]:
        view = view_of({"start_ns": str(start), "end_ns": str(end)}, ALONE)
        return view.start_ns, view.end_ns

    inside = (100 * SECOND_NS + 5, 101 * SECOND_NS)
    assert window(*inside) == inside
    assert window(0, 10**29) == (98 * SECOND_NS, 104 * SECOND_NS)
    assert window(-(10**25), 1) == (None, None)
    assert window(inside[1], inside[0]) == (None, None)


def test_what_the_timeline_shows_is_in_the_link() -> None:
    asked = {"share": "free", "lanes": "5.0"}
    view = view_of(asked, ALONE)
    assert (view.share, view.lanes) == ("free", (5, 0))
    assert params_of(view) | asked == params_of(view)
    usual = {"share": "computing", "lanes": "1.x"}  # and ranks that are not there
    assert view_of(usual, ALONE) == view_of({}, ALONE)
    assert view_of({"lanes": "none"}, ALONE).lanes == ()
    assert view_of({"shown": '{"open":["3"]}'}, ALONE).shown == '{"open":["3"]}'
    assert view_of({"shown": "x" * 2_001}, ALONE).shown is None
    assert view_of({"shown": "a\x00"}, ALONE).shown is None
    assert view_of({"by": "stage"}, ALONE).by == "stage" == params_of(View(by="stage"))["by"]
    assert view_of({"by": "select 1"}, ALONE).by is None
    assert move_view(view, ALONE, capture="c1").lanes == (0,)  # it has no rank 5


def test_a_change_leaves_the_rest_as_it_is() -> None:
    view = view_of({"rank": "3", "step": "12", "lang": "zh"}, ALONE)
    assert move_view(view, ALONE, rank=5) == replace(view, rank=5)
    assert move_view(view, ALONE, rank=None) == replace(view, rank=None)
    assert move_view(view, ALONE, capture="c1") == View("moe", "c1", lang="zh")
    assert move_view(view, ALONE, rank="<b>") == replace(view, rank=None)


@pytest.mark.parametrize(
    "asked, told",
    [
        ({"run": "moe", "capture": "c1", "store": "b", "rank": "9", "step": "1"}, []),
        ({"rank": "+3", "lang": "fr"}, []),
        ({"run": "gone"}, ["Run gone is not in this store: this is moe/c2 (a)."]),
        ({"run": "moe", "store": "x"}, ["Store x does not hold this run: this is moe/c2 (a)."]),
        ({"run": "dense", "capture": "c9"},
         ["Run dense has no capture c9: this is dense/c1 (a)."]),
        ({"run": "moe", "base_run": "gone", "base_capture": "c1"},
         ["The baseline gone, c1 is not here."]),
        ({"run": "dense", "rank": "7", "step": "x" * 99},
         ["dense/c1 (a) has no rank 7: these are all ranks.",
          f"dense/c1 (a) has no step {'x' * 80}: these are all steps."]),
    ],
)  # fmt: skip
def test_what_a_link_names_and_is_not_there_is_told(asked: dict[str, str], told: list[str]) -> None:
    assert unknown_choices(asked, SEVERAL) == told
    assert unknown_choices(params_of(view_of(asked, SEVERAL)), SEVERAL) == []
    assert unknown_choices(asked, Choices()) == []
    assert unknown_choices({"run": "moe", "base_run": "dense"}, SEVERAL) == []
