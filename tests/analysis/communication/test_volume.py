"""What communication moves: against exact goldens, against its own tasks, and planted jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis.catalog import metric
from npuscope.analysis.communication import volume
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store
from npuscope.errors import UsageError
from npuscope.profile import summary_versions
from npuscope.sample_traces.generate import Job
from tests.analysis.tables import connect, fill, kernel, op
from tests.conftest import WrittenJob

SETS = ("alexnet_ddp_text_level1", "alexnet_ddp_db_level1", "qwen3_pp2_dp2_text_level2")


@pytest.fixture(scope="module")
def stores(real_stores: Callable[[str], Path]) -> dict[str, Path]:
    return {name: real_stores(name) for name in SETS}


def _expected(golden: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Bytes and ns by link over all steps and categories, SDMA's sum left out."""
    if "CommAnalyzerBandwidth" in golden:
        parts = list(golden["CommAnalyzerBandwidth"].values())
    else:
        told = list(golden["communication"].values())
        parts = [category["transport"] for step in told for category in step.values()]
    found: dict[str, tuple[float, float]] = {}
    for part in parts:
        for link, figures in part.items():
            size, time = found.get(link, (0.0, 0.0))
            found[link] = size + figures["size_mb"] * 1e6, time + figures["time_ms"] * 1e6
    return {link: sums for link, sums in found.items() if link != "SDMA"}


@pytest.mark.parametrize("name", SETS)
def test_links_of_real_profiles(name: str, stores: dict[str, Path], goldens: Any) -> None:
    with closing(store.open(stores[name], summaries=summary_versions())) as con:
        found = volume.links(con)
    assert set(found["basis"]) == {"hccl"}
    for rank, golden in goldens[name].items():
        sums = found.filter(pl.col("rank") == int(rank)).group_by("link").agg(
            pl.col("size_bytes").sum(), pl.col("time_ns").sum()
        )  # fmt: skip
        ours = {link: (size, time) for link, size, time in sums.iter_rows()}
        expected = _expected(golden)
        assert ours.keys() == expected.keys()
        for link, figures in expected.items():
            assert ours[link] == pytest.approx(figures, rel=1e-9)


@pytest.mark.parametrize("name", SETS[:2])
def test_tasks_tell_what_hccl_measured(name: str, stores: dict[str, Path]) -> None:
    """The same figures from the tasks of operations, where HCCL's own are taken away."""
    columns = "rank, step, op_type, group_hash, link, op_count, packet_count, size_bytes"
    with closing(store.open(stores[name], summaries=summary_versions())) as con:
        measured = con.execute(
            f"select {columns}, large_packet_ratio, time_ns, unaligned_count"
            f" from ({metric('links').sql}) order by all"
        ).fetchall()
        con.execute("create temp view comm_links as select * from memory.main.comm_links limit 0")
        rows = con.execute(
            f"select {columns}, large_packet_ratio, time_ns, basis, unaligned_count"
            f" from ({metric('links').sql}) order by all"
        ).fetchall()
    assert [row[:7] for row in rows] == [row[:7] for row in measured] != []
    for (*_, packets, size, large, time_ns, basis, unaligned), known in zip(
        rows, measured, strict=True
    ):
        assert (size, large) == pytest.approx(known[7:9])
        assert time_ns == pytest.approx(known[9], abs=packets)  # 1 ns per task
        assert basis == "tasks" and 0 <= unaligned <= packets
        assert unaligned == known[10]


@pytest.mark.slow
def test_matrix_of_a_real_profile(stores: dict[str, Path]) -> None:
    """What a rank sends to all others is what its links moved."""
    with closing(store.open(stores["qwen3_pp2_dp2_text_level2"])) as con:
        pairs, links = volume.matrix(con), volume.links(con)
    sent = pairs.group_by("src_rank").agg(pl.col("size_bytes").sum()).sort("src_rank")
    moved = links.group_by("rank").agg(pl.col("size_bytes").sum()).sort("rank")
    assert sent["src_rank"].to_list() == [0, 1]
    assert sent["size_bytes"].to_list() == pytest.approx(moved["size_bytes"].to_list(), rel=1e-9)


JOB = Job(name="volume", layers=1, pp=1, dp=4, ep=4, experts=8, ranks_per_host=2, seed=3)


@pytest.fixture
def text(stored_job: WrittenJob) -> Iterator[duckdb.DuckDBPyConnection]:
    """A job whose expert groups lie across two hosts."""
    with store.open(stored_job(JOB, "text")) as con:
        yield con


@pytest.fixture
def db(stored_job: WrittenJob) -> Iterator[duckdb.DuckDBPyConnection]:
    """The same job from databases."""
    with store.open(stored_job(JOB, "db")) as con:
        yield con


@pytest.mark.slow
def test_both_forms_move_the_same(
    text: duckdb.DuckDBPyConnection, db: duckdb.DuckDBPyConnection
) -> None:
    for rows in (volume.links, volume.matrix, volume.bandwidth):
        of_text, of_db = (rows(con).drop("capture") for con in (text, db))
        # Chips are known to databases only, and both round times of their own.
        exact = [name for name, kind in of_text.schema.items() if not kind.is_float()]
        figures = [name for name in of_text.columns if name not in exact and name != "peak_ratio"]
        assert of_text.select(exact).rows() == of_db.select(exact).rows() != []
        for name in figures:
            for one, other in zip(of_text[name], of_db[name], strict=True):
                assert one is other is None or one == pytest.approx(other, rel=1e-6)


@pytest.mark.slow
def test_hosts_tell_inside_from_between(db: duckdb.DuckDBPyConnection) -> None:
    pairs = volume.matrix(db)
    assert pairs["is_between_hosts"].null_count() == 0
    for row in pairs.iter_rows(named=True):
        assert row["is_between_hosts"] == (row["src_rank"] // 2 != row["dst_rank"] // 2)
        assert row["link"] == ("RDMA" if row["is_between_hosts"] else "HCCS")
    mine = volume.matrix(db, Scope(rank=1), top=3)
    assert mine.height == 6 and ((mine["src_rank"] == 1) | (mine["dst_rank"] == 1)).all()
    assert volume.matrix(db, top=2).height == 4


def test_links_beside_compute() -> None:
    """Two operations hidden, one exposed, one in between, by one link of 10, 10, 20 and 99 B/ns."""
    con = connect()
    ops = [("a", 0, 1000.0), ("b", 100, 1000.0), ("c", 300, 2000.0), ("d", 170, 9900.0)]
    for name, start_ns, size_bytes in ops:
        values = {"name": name, "start": start_ns, "size": size_bytes}
        con.execute(
            "insert into comm_ops by name select 'r' run, 'c' capture, 0 rank, 5 step,"
            " $name as name, 'allReduce' op_type, '1' group_hash, $start start_ns, 100 dur_ns",
            {"name": name, "start": start_ns},
        )
        for link in ("HCCS", "SDMA"):
            con.execute(
                "insert into comm_links by name select 'r' run, 'c' capture, 0 rank, 5 step,"
                " $name as name, 'allReduce' op_type, '1' group_hash, $link link,"
                " $size size_bytes, 100.0 time_ns",
                {"name": name, "size": values["size"], "link": link},
            )
    con.execute(
        "insert into kernels by name select 'r' run, 'c' capture, 0 rank, 5 step,"
        " true is_compute, 0 start_ns, 200 dur_ns"
    )
    # HCCL's file may say another step than the kernels do: the operation's counts.
    con.execute("update comm_links set step = 4 where name = 'b'")
    [row] = volume.contention(con).iter_rows(named=True)
    con.close()
    assert row["step"] == 5
    assert (row["link"], row["beside_count"], row["alone_count"]) == ("HCCS", 2, 1)
    assert row["beside_bandwidth_bytes_per_s"] == 10e9
    assert row["alone_bandwidth_bytes_per_s"] == 20e9
    assert row["slowdown_ratio"] == 2


def test_traffic_of_a_name_that_repeats_stands_in_its_step() -> None:
    con = connect()
    for step in (1, 2, 3):
        fill(con, "kernels", [kernel(step * 1000, 100, step)])
        fill(con, "comm_ops", [
            op(step * 1000 + beside, 100, step, name=name, group_hash="1")
            for name, beside in (("a", 0), ("b", 500))
        ])  # fmt: skip
    fill(con, "comm_links", [
        {"step": step, "name": name, "op_type": "allReduce", "group_hash": "1", "link": "HCCS",
         "size_bytes": 1000.0 * step, "time_ns": 100.0}
        for step in (2, 3) for name in ("a", "b")
    ])  # fmt: skip
    rows = volume.contention(con).select("step", "beside_bandwidth_bytes_per_s").rows()
    con.close()
    assert rows == [(2, 20e9), (3, 30e9)]


@pytest.mark.slow
def test_what_both_ends_recorded_counts_once(db: duckdb.DuckDBPyConnection) -> None:
    with closing(db.cursor()) as con:
        con.execute("create temp table pair_summary as from memory.main.pair_summary")
        one = volume.matrix(con, Scope(step=12))
        con.execute(
            "insert into pair_summary by name select * replace (dst_rank as rank) from pair_summary"
        )
        con.execute("update pair_summary set size_bytes = 7 * size_bytes where rank = dst_rank")
        assert volume.matrix(con, Scope(step=12)).rows() == one.rows() != []
        # Of a source that recorded nothing, the other end is believed.
        con.execute("delete from pair_summary where rank = 0 and src_rank = 0")
        told = volume.matrix(con, Scope(step=12)).filter(pl.col("src_rank") == 0)
    before = one.filter(pl.col("src_rank") == 0)
    assert told["size_bytes"].sum() == 7 * before["size_bytes"].sum() > 0


@pytest.mark.slow
def test_schemes_between_hosts(db: duckdb.DuckDBPyConnection) -> None:
    [row] = volume.hierarchy(db, experts=8, top_k=2).iter_rows(named=True)
    pairs = volume.matrix(db).filter(pl.col("kind") == "ep")
    assert (row["rank_count"], row["host_count"], row["kind"]) == (4, 2, "ep")
    assert row["size_bytes"] == pytest.approx(float(pairs["size_bytes"].sum()) / 2)
    between = float(pairs.filter("is_between_hosts")["size_bytes"].sum()) / 2
    assert row["between_hosts_bytes"] == pytest.approx(between)
    # Flat: 2 experts, half of them on the other host: 1 copy. Once per host: 1 - C(4,2)/C(8,2).
    assert row["all_gather_bytes"] == pytest.approx(between)
    assert row["host_deduplicated_bytes"] == pytest.approx(between * (1 - 6 / 28))
    # Once per rank: two ranks there, each of two experts: 2 (1 - C(6,2)/C(8,2)).
    assert row["rank_deduplicated_bytes"] == pytest.approx(between * 2 * (1 - 15 / 28))
    for experts, top_k in ((8, 0), (8, 9), (6, 2)):
        with pytest.raises(UsageError):
            volume.hierarchy(db, experts=experts, top_k=top_k)


@pytest.mark.slow
def test_schemes_of_a_group_in_part(db: duckdb.DuckDBPyConnection) -> None:
    """Nothing is said of other schemes where a rank or a host of the group is unknown."""
    others = ["all_gather_bytes", "host_deduplicated_bytes", "rank_deduplicated_bytes"]
    with closing(db.cursor()) as con:
        con.execute("create temp table pair_summary as from memory.main.pair_summary")
        con.execute("create temp table ranks as from memory.main.ranks")
        con.execute("delete from pair_summary where rank = 3")
        # Three ranks cannot share eight experts: no error, for the group has four.
        [row] = volume.hierarchy(con, experts=8, top_k=2).to_dicts()
        assert (row["group_size"], row["rank_count"], row["host_count"]) == (4, 3, 2)
        assert [row[name] for name in others] == [None] * 3 and not volume.is_whole(row)
        con.execute("update ranks set host_uid = null, host_name = null where rank = 3")
        [row] = volume.hierarchy(con, experts=8, top_k=2).to_dicts()
        assert (row["host_count"], row["between_hosts_bytes"]) == (None, None)
        assert row["size_bytes"] > 0


@pytest.mark.slow
def test_places_in_groups_without_a_hash_are_each_ranks_own(db: duckdb.DuckDBPyConnection) -> None:
    with closing(db.cursor()) as con:
        con.execute("create temp table pair_summary as from memory.main.pair_summary")
        con.execute("update pair_summary set group_hash = null, src_rank = null, dst_rank = null")
        sums = "select sum(size_bytes) from pair_summary"
        [(expected,)] = con.execute(sums).fetchall()
        assert volume.matrix(con)["size_bytes"].sum() == pytest.approx(expected)


def test_bandwidth_is_of_what_was_measured_whole(text: duckdb.DuckDBPyConnection) -> None:
    with closing(text.cursor()) as con:
        con.execute("create temp table comm_summary as from memory.main.comm_summary")
        before = volume.bandwidth(con, Scope(rank=0, step=12))
        con.execute("update comm_summary set measured_count = 1 where op_type = 'allToAllV'")
        after = volume.bandwidth(con, Scope(rank=0, step=12))
    for one, other in zip(before.to_dicts(), after.to_dicts(), strict=True):
        if one["op_type"] == "allToAllV":
            assert one["op_count"] > 1 and one["bus_bandwidth_bytes_per_s"] > 0
            assert other["bus_bandwidth_bytes_per_s"] is None
            assert other["algorithm_bandwidth_bytes_per_s"] is None
        else:
            assert one == other


def test_schemes_of_published_sizes() -> None:
    """Copies between hosts for 8 of 256 experts and 8 ranks per host, as published."""
    con = connect()
    con.execute(
        "insert into ranks by name select 'r' run, 'c' capture, n rank,"
        " (n // 8)::varchar host_uid from range(32) t(n)"
    )
    con.execute(
        "insert into comm_matrix by name"
        " select 'r' run, 'c' capture, a.n rank, 1 step, 'allToAllV' op_type, 'total' variant,"
        " '1' group_hash, a.n src_group_rank, b.n dst_group_rank, a.n src_rank, b.n dst_rank,"
        " 'HCCS' link, 1.0 size_bytes, 1.0 time_ns"
        " from range(32) a(n), range(32) b(n) where a.n <> b.n"
    )
    [row] = volume.hierarchy(con, experts=256, top_k=8).iter_rows(named=True)
    con.close()
    assert row["between_hosts_bytes"] == 32 * 24
    flat = row["between_hosts_bytes"] / 6.0  # copies of a token
    assert row["all_gather_bytes"] / flat == pytest.approx(3)
    assert row["host_deduplicated_bytes"] / flat == pytest.approx(2.711, abs=5e-4)
    assert row["rank_deduplicated_bytes"] / flat == pytest.approx(5.45, abs=5e-3)
