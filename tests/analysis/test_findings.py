"""Findings: what each rule says of small hand-made jobs, and none without evidence."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from npuscope.analysis import query
from npuscope.analysis.findings import communication_rules
from npuscope.analysis.findings.finding import CERTAINTIES, EVIDENCE_ROWS, Finding, by_gain
from npuscope.analysis.findings.findings import finding_rows, findings
from npuscope.analysis.findings.list_findings import RULES
from npuscope.analysis.memo import remember
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay import captures
from npuscope.analysis.scope import ALL, Scope
from npuscope.collector.store import store
from npuscope.profile import summary_versions
from tests.analysis.findings_page import findings_markdown
from tests.analysis.tables import Row, answer, connect, fill, keep_summaries, kernel, op
from tests.conftest import REPOSITORY

MS = 1_000_000


def job(**tables: Iterable[Row]) -> duckdb.DuckDBPyConnection:
    con = connect()
    named = {"ranks": [{"rank": rank} for rank in range(8)], **tables}
    ranks = {row.get("rank", 0) for name, rows in named.items() if name != "ranks" for row in rows}
    for name, rows in named.items():
        told = [row for row in rows if name != "ranks" or row.get("rank", 0) in ranks]
        fill(con, name, told)
    return con


def of(con: duckdb.DuckDBPyConnection, name: str) -> Finding:
    return by_name(con)[name]


def findings_of(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, path: str = "PATH"
) -> list[Finding]:
    """Of the tables as they are now, as a command asks them."""
    keep_summaries(con)
    remember(con)
    return findings(con, scope, path=path)


def by_name(con: duckdb.DuckDBPyConnection) -> dict[str, Finding]:
    listed = findings_of(con)
    found = {one.name: one for one in listed}
    assert len(found) == len(listed)
    return found


def names(con: duckdb.DuckDBPyConnection) -> list[str]:
    return list(by_name(con))


def test_a_step_without_loss_has_no_findings() -> None:
    con = job(
        kernels=[kernel(0, 100 * MS, 1), kernel(100 * MS, 100 * MS, 2)],
        comm_ops=[op(10 * MS, 20 * MS, 1)],
    )
    assert names(con) == []


def test_exposed_communication_names_the_group_that_costs_most() -> None:
    con = job(
        kernels=[kernel(0, 60 * MS, 1)],
        comm_ops=[
            op(50 * MS, 30 * MS, 1, group_hash="e", op_type="allToAllV"),  # 20 exposed
            op(80 * MS, 5 * MS, 1, group_hash="d"),
            op(85 * MS, 15 * MS, 1, group_hash="p", op_type="receive"),
        ],
        groups=[
            {"group_hash": "e", "parallel_kind": "ep"}, {"group_hash": "d", "parallel_kind": "dp"},
            {"group_hash": "p", "parallel_kind": "pp"},
        ],
    )  # fmt: skip
    listed = by_name(con)
    found = listed["exposed_communication"]
    assert found.at_stake_ns == 25 * MS
    assert found.step_share_ratio == 0.25
    assert found.certainty == "measured"
    assert "allToAllV of ep groups, 20.000 ms" in found.statement
    told = "25.000 ms of communication per step is exposed and not known to wait (masked: 20.0 %)."
    assert found.statement.startswith(told)
    assert found.statement.endswith(" Whether 25.000 ms of it move bytes or wait is unknown.")
    assert found.evidence.rows()[0] == ("ep", "allToAllV", None, 20.0 * MS)
    assert "receive" not in found.evidence["op_type"].to_list()
    bubble = listed["pipeline_bubble"]
    assert bubble.at_stake_ns == 15 * MS
    assert (
        bubble.command == "npuscope comm PATH --by part"
    )  # has the waiting, `steps` the transfers


def test_no_nanosecond_of_a_step_is_at_stake_twice() -> None:
    con = job(
        kernels=[kernel(0, 40 * MS, 1), kernel(70 * MS, 10 * MS, 1)],
        comm_ops=[op(30 * MS, 20 * MS, 1), op(45 * MS, 15 * MS, 1, op_type="receive")],
    )
    parts = ("exposed_communication", "pipeline_bubble", "device_idle")
    found = by_name(con)
    stakes = [found[name].at_stake_ns for name in parts]
    assert stakes == [7.5 * MS, 12.5 * MS, 10 * MS]  # 5 ms of both are shared
    step = query.steps(con).row(0, named=True)
    assert sum(stake or 0 for stake in stakes) == 80 * MS - step["computing_ns"]


def test_calls_of_the_host_point_to_where_they_are_listed() -> None:
    called = "torch/utils/data/dataloader.py(625): __next__"
    call = {"kind": "python", "name": called, "start_ns": 0, "dur_ns": 20 * MS, "thread_id": 1}
    step = {"step": 1, "window_start_ns": 0, "window_end_ns": 100 * MS}
    after = {**call, "start_ns": 110 * MS, "dur_ns": 90 * MS}
    con = job(kernels=[kernel(0, 100 * MS, 1)], host_ops=[call, after], steps=[step])
    found = of(con, "host_calls")
    assert (found.at_stake_ns, found.command) == (20 * MS, "npuscope host PATH --by call")
    told = [(row["step"], row["total_ns"]) for row in answer(con, "host_calls")]
    assert told == [(None, 90 * MS), (1, 20 * MS)]
    # Those of a warm-up step count in no mean, but where that step was chosen.
    ends = (1000, 1100, 1200, 1300)
    call = {"kind": "gc", "name": "GC", "thread_id": 1}
    con = job(
        kernels=[kernel(0, MS, 0), *(
            kernel((end - 100) * MS, 90 * MS, step) for step, end in enumerate(ends)
        )],
        host_ops=[{**call, "start_ns": MS, "dur_ns": 800 * MS},
                  {**call, "start_ns": 1110 * MS, "dur_ns": 30 * MS}],
        steps=[{"step": step, "window_start_ns": start * MS, "window_end_ns": end * MS}
               for step, (start, end) in enumerate(zip((0, *ends), ends, strict=False))],
    )  # fmt: skip
    assert of(con, "host_calls").at_stake_ns == 10 * MS  # one of three steps
    chosen = {one.name: one for one in findings_of(con, Scope(step=0))}
    assert chosen["host_calls"].at_stake_ns == 800 * MS
    # A rank with a single step counts once, as in the mean step that shares are of.
    fill(con, "kernels", [kernel(1010 * MS, 90 * MS, 1, rank=1)])
    fill(con, "steps", [{"rank": 1, "step": 1, "window_start_ns": 1000 * MS,
                         "window_end_ns": 1100 * MS}])  # fmt: skip
    found = of(con, "host_calls")
    assert found.at_stake_ns == 7.5 * MS and found.step_share_ratio == pytest.approx(7.5 / 90)


def test_idle_time_points_to_the_worst_rank() -> None:
    con = job(kernels=[
        kernel(0, 10 * MS, 1), kernel(11 * MS, 9 * MS, 1),
        kernel(0, 10 * MS, 1, rank=3), kernel(15 * MS, 5 * MS, 1, rank=3),
    ])  # fmt: skip
    found = of(con, "device_idle")
    assert found.at_stake_ns == 3 * MS
    assert "rank 3" in found.statement
    assert found.evidence["rank"].to_list() == [3, 0]
    assert found.advice.startswith("Usually the host launches too slowly")  # launches tell nothing
    assert found.statement.endswith(" How much of it the host launched too late is unknown.")
    # Launched while the kernel before ran: no host is late, and none is blamed.
    fill(con, "launches", [
        {"rank": rank, "device_start_ns": at * MS, "api_start_ns": by * MS,
         "latency_ns": (at - by) * MS}
        for rank, launched in ((0, {0: -5, 11: 3}), (3, {0: -5, 15: 4}))
        for at, by in launched.items()
    ])  # fmt: skip
    found = of(con, "device_idle")
    assert "In 0.000 ms of it the host had not launched" in found.statement
    assert "unknown" not in found.statement
    assert found.advice.startswith("Most of it the next kernel had been launched")
    # Launched after it: all of it is the host's.
    con.execute("update launches set api_start_ns = device_start_ns - 1, latency_ns = 1")
    assert of(con, "device_idle").advice.startswith("Usually the host launches too slowly")


def test_time_between_steps_is_a_mean_over_neighbours_only() -> None:
    con = job(kernels=[
        kernel(0, 10 * MS, 1), kernel(12 * MS, 10 * MS, 2),
        kernel(90 * MS, 10 * MS, 5), kernel(99 * MS, 10 * MS, 6),
    ])  # fmt: skip
    found = of(con, "between_steps")
    # 2 ms between 1 and 2, nothing between 5 and 6, and 2 is no neighbour of 5.
    assert found.at_stake_ns == 1 * MS
    assert found.evidence["gap_ns"].to_list() == [2 * MS, 0]
    # From start to start 12 and 9 ms.
    assert found.step_share_ratio == pytest.approx(1 / 10.5)
    assert found.certainty == "measured"


def test_time_between_steps_is_never_more_than_the_whole() -> None:
    con = job(kernels=[kernel(at * 40 * MS, 10 * MS, at) for at in range(3)])
    found = of(con, "between_steps")
    assert (found.at_stake_ns, found.step_share_ratio) == (30 * MS, 0.75)


def test_kernels_outside_of_steps_make_the_time_between_them_less_sure() -> None:
    con = job(
        kernels=[kernel(0, 10 * MS, 1), kernel(11 * MS, MS), kernel(15 * MS, 10 * MS, 2)],
        steps=[{"step": 1}, {"step": 2}],
    )
    assert of(con, "between_steps").certainty == "estimated"


def test_stragglers_are_compared_inside_of_their_stage() -> None:
    stages = {0: 0, 1: 0, 2: 1, 3: 1}
    compute_ms = {0: 50, 1: 50, 2: 10, 3: 14}
    con = job(
        ranks=[{"rank": rank, "pp_rank": stage} for rank, stage in stages.items()],
        kernels=[kernel(0, took * MS, 1, rank=rank) for rank, took in compute_ms.items()],
    )
    found = of(con, "stragglers")
    assert found.at_stake_ns == 2 * MS
    assert found.evidence.select("pp_rank", "rank").rows()[0] == (1, 3)
    assert found.command == "npuscope kernels PATH --rank 3"


@pytest.mark.slow
def test_uneven_steps_need_enough_steps() -> None:
    def steps(lengths_ms: list[int]) -> list[Row]:
        return [kernel(n * 1000 * MS, length * MS, n) for n, length in enumerate(lengths_ms)]

    assert "uneven_steps" not in names(job(kernels=steps([10, 10, 10, 60])))
    found = of(job(kernels=steps([10, 10, 10, 10, 60])), "uneven_steps")
    assert found.at_stake_ns == 10 * MS
    assert found.evidence["step"].to_list() == [4]


@pytest.mark.slow
def test_kernels_that_only_move_or_set_data() -> None:
    con = job(kernels=[
        kernel(0, 80 * MS, 1, type="MatMulV3", core="AI_CORE"),
        kernel(80 * MS, 6 * MS, 1, type="TransposeD", core="AI_VECTOR_CORE"),
        kernel(86 * MS, 4 * MS, 1, type="PadV3", core="AI_VECTOR_CORE"),
        kernel(90 * MS, 2 * MS, 1, type="ZerosLike", core="AI_VECTOR_CORE"),
        kernel(92 * MS, 8 * MS, 1, type="Unique", core="AI_CPU"),
    ])  # fmt: skip
    found = {one.name: one.at_stake_ns for one in findings_of(con)}
    assert found == {
        "data_movement": 10 * MS, "ai_cpu_kernels": 8 * MS, "slow_operators": 6 * MS,
        "data_setting": 2 * MS,
    }  # fmt: skip
    assert of(con, "data_movement").evidence["type"].to_list() == ["TransposeD", "PadV3"]


@pytest.mark.slow
def test_memory_that_lies_unused_costs_no_known_time_and_comes_last() -> None:
    gib = 1 << 30
    con = job(
        kernels=[kernel(0, 10 * MS, 1), kernel(12 * MS, 8 * MS, 1)],
        memory=[{
            "component": "PTA", "source": "record", "timestamp_ns": 5, "allocated_bytes": 8 * gib,
            "reserved_bytes": 12 * gib,
        }],
    )  # fmt: skip
    found = findings_of(con)
    assert [one.name for one in found] == ["device_idle", "memory_fragmentation"]
    assert found[-1].at_stake_ns is None
    assert found[-1].certainty == "hint"


def test_what_is_unknown_is_not_at_stake() -> None:
    con = job(comm_ops=[op(0, 10 * MS, 1)])  # no kernel: what is hidden is unknown
    assert findings_of(con) == []


@pytest.mark.slow
def test_the_choice_of_a_rank_and_step_holds_for_all_of_it() -> None:
    con = job(kernels=[
        kernel(0, 10 * MS, 1), kernel(15 * MS, 5 * MS, 1),
        kernel(0, 10 * MS, 1, rank=1), kernel(20 * MS, 80 * MS, 1, rank=1),
    ])  # fmt: skip
    [found] = findings_of(con, Scope(rank=0))
    assert (found.name, found.at_stake_ns) == ("device_idle", 5 * MS)


def test_commands_name_the_path_as_a_shell_wants_it() -> None:
    con = job(kernels=[kernel(0, 10 * MS, 1), kernel(12 * MS, 8 * MS, 1)])
    [found] = findings_of(con, path="/data/my job")
    assert found.command == "npuscope host '/data/my job'"


def test_none_without_evidence() -> None:
    con = job(kernels=[kernel(0, 10 * MS, 1), kernel(12 * MS, 8 * MS, 1)])
    [found] = findings_of(con)
    bare = {name: getattr(found, name) for name in Finding.__dataclass_fields__}
    with pytest.raises(ValueError, match="no evidence"):
        by_gain([Finding(**{**bare, "evidence": pl.DataFrame()})])


def check(target: Path) -> list[Finding]:
    """What holds for every list of findings, whatever the job."""
    con = store.open(target, summaries=summary_versions())
    open_across(target, con)
    remember(con)
    found = findings(con)
    assert found
    with_others = ("uncaptured_ranks", "exposed_communication")
    by_stake = {
        one.name for one in found if one.predicted_gain_ns is None and one.name in with_others
    }
    gains = [one.predicted_gain_ns for one in found if one.name not in by_stake]
    priced = [gain for gain in gains if gain is not None]
    assert priced == sorted(priced, reverse=True) and gains[: len(priced)] == priced
    stakes = [
        one.at_stake_ns or 0
        for one in found
        if one.name not in by_stake and one.predicted_gain_ns is None
    ]
    assert stakes == sorted(stakes, reverse=True)
    steps = query.steps(con)
    for one in found:
        assert 1 <= one.evidence.height <= EVIDENCE_ROWS
        assert one.certainty in CERTAINTIES
        assert one.statement.endswith(".")
        if one.step_share_ratio is not None and one.step_share_ratio < 0.01:
            step_ns = captures.capture_job(con, Scope()).measured.lengths().mean()
            assert (one.predicted_gain_ns or 0) >= 0.01 * step_ns
            assert "It stands here for its gain, " in one.statement
    known = steps.drop_nulls(["computing_ns", "exposed_communication_ns", "free_ns"])
    lost = {rule.__name__ for rule in RULES if rule.__module__ == communication_rules.__name__}
    lost |= {"device_idle"}
    at_stake_ns = sum(one.at_stake_ns or 0 for one in found if one.name in lost)
    total_ns = int(known["exposed_communication_ns"].sum()) + int(known["free_ns"].sum())
    # What is not worth a line is missing from the sum: below 1 % of a step for each of six.
    assert at_stake_ns <= total_ns / known.height + 1
    length_ns = (total_ns + int(known["computing_ns"].sum())) / known.height
    assert at_stake_ns >= total_ns / known.height - 0.06 * length_ns
    return found


@pytest.mark.slow
def test_the_sample_job(sample_store: Path) -> None:
    found = check(sample_store)
    rows: list[dict[str, Any]] = finding_rows(found)
    [moving] = [row for row in rows if row["finding"] == "exposed_communication"]
    assert moving["evidence"][0]["op_type"] == "allToAllV"
    # The planted overload of experts makes rank 5 compute longest in its stage.
    straggler = next(one for one in found if one.name == "stragglers")
    assert "rank 5" in straggler.statement
    experts = next(one for one in found if one.name == "expert_imbalance")
    assert "most in layer 1, whose most loaded device has 1.32 times the mean" in experts.statement
    # Single experts are not told in the sample: a plan would be refused.
    assert experts.command.endswith("--by cost") and "Record tokens" in experts.advice
    assert experts.evidence["layer"].to_list() == [1, 0, 3, 2]
    worst_ns = experts.evidence["excess_ns"].to_list()
    # Layers 0 and 1 are of one stage, the other stage's layers cost less.
    assert experts.at_stake_ns == round(worst_ns[0] + worst_ns[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["alexnet_ddp_db_level1", "alexnet_ddp_text_level0", "qwen3_pp2_dp2_text_level2"]
)
def test_real_profiles(name: str, real_stores: Callable[[str], Path]) -> None:
    found = check(real_stores(name))
    first = "uncaptured_ranks" if name.startswith("qwen3") else "exposed_communication"
    assert found[0].name == first
    # The host waits for what is on its way anyhow, and loses its lead: little is free meanwhile.
    assert ("synchronisation" in {one.name for one in found}) != name.startswith("qwen3")


def test_every_rule_says_what_it_is_for() -> None:
    assert all(rule.__doc__ for rule in RULES)
    assert len({rule.__name__ for rule in RULES}) == len(RULES)


def test_the_page_of_findings_is_up_to_date() -> None:
    path = REPOSITORY / "docs" / "findings.md"
    if os.environ.get("UPDATE_DOCS"):
        path.write_text(findings_markdown())
    assert path.read_text() == findings_markdown(), "make it anew with UPDATE_DOCS=1"
