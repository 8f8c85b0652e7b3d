"""Waits of the host and what they waited for, on real profiles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.analysis.views import open_views
from npuscope.collector.store import store


@pytest.mark.parametrize("level", [0, 1])
def test_long_waits_of_a_real_host_are_for_copies_and_the_last_kernel(
    real_stores: Callable[[str], Path], level: int
) -> None:
    with closing(store.open(real_stores(f"alexnet_ddp_db_level{level}"))) as con:
        open_views(con, ["host_syncs"])
        rows = con.sql("""
            select rank, dur_ns, target, target_name, stream_id, device_end_ns - start_ns, return_ns
            from host_syncs order by rank, start_ns""").fetchall()
    assert len(rows) == 16
    told = [row for row in rows if row[1] > 1_000_000]
    assert [row[2] for row in told] == ["task", "kernel"] * 2
    assert [row[3].split("_")[0] for row in told] == ["MEMCPY", "aclnnForeachAddListV2"] * 2
    for _, dur_ns, _, _, stream, waited_ns, return_ns in told:
        assert stream == 2 and waited_ns + return_ns == dur_ns and 0 < return_ns < 200_000
    assert all(row[2:5] == (None, None, None) for row in rows if row[1] < 25_000)


def test_a_profile_without_calls_tells_no_waits(real_stores: Callable[[str], Path]) -> None:
    with closing(store.open(real_stores("qwen3_pp2_dp2_text_level2"))) as con:
        open_views(con, ["host_syncs"])
        assert con.sql("from host_syncs").fetchall() == []
