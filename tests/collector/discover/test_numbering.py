"""Numbers of ranks that nobody tells."""

from __future__ import annotations

from npuscope.collector.discover.identity import OF_INFO, Identity
from npuscope.collector.discover.numbering import ORIGIN, with_ranks


def one(
    host: str, device: int, start: int | None = 0, rank: int | None = None, origin: str = OF_INFO
) -> Identity:
    end = None if start is None else start + 10
    return Identity(rank, "" if rank is None else origin, host, device, start, end)


def ranks(*found: Identity) -> list[int | None]:
    return [i.rank for i in with_ranks([(f"folder {n}", i) for n, i in enumerate(found)])]


def test_by_host_and_device() -> None:
    assert ranks(one("b", 0), one("a", 1), one("a", 0), one("b", 1)) == [2, 1, 0, 3]
    folders = [(f"rank_{n}", one("", -1)) for n in range(12)]
    assert [i.rank for i in with_ranks(folders)] == list(range(12))


def test_past_those_that_are_told() -> None:
    assert ranks(one("a", 0), one("a", 1, rank=0), one("a", 2)) == [1, 0, 2]


def test_a_device_at_another_time_is_the_same_rank() -> None:
    assert ranks(one("a", 0), one("a", 1), one("a", 1, 50), one("a", 0, 50)) == [0, 1, 1, 0]


def test_two_at_one_time_on_one_device_are_two() -> None:
    assert ranks(one("a", 0), one("a", 0, 5), one("a", 0, 50)) == [0, 1, 0]
    assert ranks(one("a", 0, None), one("a", 0, None)) == [0, 1]


def test_without_a_host_nobody_is_the_same() -> None:
    assert ranks(one("", 0), one("", 0, 50)) == [0, 1]
    assert ranks(one("a", -1), one("a", -1, 50)) == [0, 1]


def test_one_rank_for_several_devices_at_one_time_is_none() -> None:
    found = with_ranks([("x", one("a", 0, rank=0)), ("y", one("a", 1, rank=0))])
    assert [(i.rank, i.origin) for i in found] == [(0, ORIGIN), (1, ORIGIN)]
    assert "records rank 0: ignored" in found[0].warnings[0]


def test_a_rank_that_moved_to_another_device_stays() -> None:
    assert ranks(one("a", 0, rank=4), one("a", 1, 50, rank=4)) == [4, 4]


def test_a_copy_of_a_folder_has_its_rank() -> None:
    assert ranks(one("a", 0, rank=4), one("a", 0, rank=4)) == [4, 4]


def test_other_files_are_believed() -> None:
    told = "rank_id in profiler_info"
    assert ranks(one("a", 0, rank=4, origin=told), one("a", 1, rank=4, origin=told)) == [4, 4]
