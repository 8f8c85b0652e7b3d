"""What a device did besides kernels: events, copies; streams and peers of communication."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.store import store

ALEXNET = tuple(f"alexnet_ddp_{form}_level{level}" for form in ("db", "text") for level in (0, 1))


@pytest.mark.parametrize("name", ALEXNET)
def test_both_exports_tell_the_events_of_real_streams(
    real_stores: Callable[[str], Path], name: str
) -> None:
    with closing(store.open(real_stores(name))) as con:
        counts = con.sql("""
            select rank, type, count(*), count(distinct stream_id) from device_tasks
            group by all order by all""")
        expected = [("EVENT_RECORD", 16, 3), ("EVENT_WAIT", 10, 2), ("MEMCPY_ASYNC", 24, 2)]
        assert counts.fetchall() == [(rank, *one) for rank in (0, 1) for one in expected]
        # A stream that waits goes on right after another one's record.
        lags = con.sql("""
            with w as (select rank, stream_id, start_ns + dur_ns as until_ns from device_tasks
                       where type = 'EVENT_WAIT' and dur_ns > 1000)
            select min(until_ns - r.start_ns - r.dur_ns) from w join device_tasks r using (rank)
            where r.type = 'EVENT_RECORD' and r.stream_id <> w.stream_id
                and r.start_ns + r.dur_ns <= until_ns
            group by w.rank, until_ns""").fetchall()
        assert len(lags) >= 4 and all(300 <= lag <= 600 for (lag,) in lags)
        streams = con.sql("select distinct stream_id, peer_ranks from comm_ops").fetchall()
        assert streams == [(4, None)]


def test_who_is_at_the_other_end_of_a_pair(real_stores: Callable[[str], Path]) -> None:
    with closing(store.open(real_stores("qwen3_pp2_dp2_text_level2"))) as con:
        found = con.sql("""
            select distinct op_type, peer_ranks from comm_ops
            where peer_ranks is not null or op_type = 'batchSendRecv'""").fetchall()
        assert found == [("batchSendRecv", [2])]
