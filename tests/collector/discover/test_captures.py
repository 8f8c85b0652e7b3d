"""Ranks profiled together become one capture, profiles at other times become others."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from npuscope.collector.discover.captures import KnownCapture, assign, capture_name
from npuscope.collector.model import RankSource

START_NS = 1_736_412_473_886_000_000
SECOND_NS = 10**9


def profile(rank: int, start_s: float | None, end_s: float | None, root: str = "") -> RankSource:
    def instant(seconds: float | None) -> int | None:
        return None if seconds is None else START_NS + int(seconds * SECOND_NS)

    return RankSource(
        root=root or f"/p/{rank}-{start_s}",
        framework="pytorch",
        rank=rank,
        rank_origin="test",
        files={},
        window_start_ns=instant(start_s),
        window_end_ns=instant(end_s),
    )


def captures_of(sources: list[RankSource], known: tuple[KnownCapture, ...] = ()) -> list[set[str]]:
    chosen = assign(sources, known).sources
    names = list(dict.fromkeys(name for name, _ in chosen))
    return [{source.root for name, source in chosen if name == wanted} for wanted in names]


def test_overlapping_windows_are_one_capture_named_by_its_start() -> None:
    found = assign([profile(1, 0.2, 1.2), profile(0, 0.0, 1.0)])

    assert {name for name, _ in found.sources} == {"20250109T084753.886Z"}
    assert [source.rank for _, source in found.sources] == [0, 1]


def test_two_profiles_of_a_rank_at_different_times_are_two_captures() -> None:
    sources = [profile(rank, start, start + 1) for start in (0, 10) for rank in (0, 1)]

    assert captures_of(sources) == [{"/p/0-0", "/p/1-0"}, {"/p/0-10", "/p/1-10"}]


def test_a_chain_of_overlaps_does_not_put_a_rank_into_one_capture_twice() -> None:
    sources = [profile(0, 0, 10), profile(1, 5, 20), profile(0, 12, 22)]

    assert captures_of(sources) == [{"/p/0-0", "/p/1-5"}, {"/p/0-12"}]


def test_a_copy_of_a_rank_in_the_same_window_is_passed_over_for_the_one_that_ended_last() -> None:
    early, late = profile(3, 0, 5, "/early"), profile(3, 1, 6, "/late")

    found = assign([early, late])

    assert [source.root for _, source in found.sources] == ["/late"]
    assert found.passed_over == ((early, late),)


def test_new_ranks_join_the_capture_that_is_already_published() -> None:
    known = KnownCapture("published", START_NS, START_NS + SECOND_NS)

    found = assign([profile(7, -0.5, 0.5), profile(8, 50, 51)], (known,))

    names = {source.rank: name for name, source in found.sources}
    assert names[7] == "published"
    assert names[8] != "published"


def test_a_profile_without_a_window_joins_the_only_capture() -> None:
    assert captures_of([profile(0, 0, 1), profile(1, None, None)]) == [{"/p/0-0", "/p/1-None"}]
    lonely = assign([profile(0, None, None), profile(0, None, None, "/z")])
    assert [name for name, _ in lonely.sources] == ["undated"]
    assert len(lonely.passed_over) == 1


def test_a_later_copy_makes_its_capture_as_long_as_itself() -> None:
    sources = [profile(1, 0, 1, "/p/short"), profile(1, 0, 2, "/p/long"), profile(0, 2, 3, "/p/b")]

    assert captures_of(sources) == [{"/p/long", "/p/b"}]


def test_order_of_sources_does_not_matter() -> None:
    sources = [profile(rank, start, start + 2) for start in (0, 5, 9) for rank in range(4)]

    assert assign(sources) == assign(sources[::-1])


WINDOWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(1, 25)), min_size=1, max_size=12
)


@given(windows=WINDOWS, data=st.data())
def test_whatever_others_published_meanwhile_captures_are_the_same(
    windows: Sequence[tuple[int, int, int]], data: st.DataObject
) -> None:
    sources = [
        profile(rank, start, start + length, f"/p/{n}")
        for n, (rank, start, length) in enumerate(windows)
    ]
    whole = assign(sources)
    done = data.draw(st.sets(st.integers(0, len(whole.sources) - 1), max_size=len(whole.sources)))
    spans: dict[str, list[RankSource]] = {}
    for n in done:
        name, source = whole.sources[n]
        spans.setdefault(name, []).append(source)
    known = [
        KnownCapture(
            name,
            min(s.window_start_ns or 0 for s in published),
            max(s.window_end_ns or 0 for s in published),
        )
        for name, published in spans.items()
    ]

    found = assign(sources, known)

    expected = {source.root: name for name, source in whole.sources}
    assert {source.root: name for name, source in found.sources} == expected
    assert found.passed_over == whole.passed_over


def test_names_of_clocks() -> None:
    assert capture_name(56_636_047_205_950) == "device-56636047205950"
    assert capture_name(None) == "undated"
