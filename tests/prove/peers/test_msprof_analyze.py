"""Figures that msprof-analyze computes, too: of the same databases the same, or a rule why not.

docs/peers.md has the table of what is compared here. The capture is the generated job of eight
ranks as databases; the peer reads a copy, as some recipes write into what they read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest

from npuscope.analysis import query
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.sample_traces.generate import COMMITTED_JOB, write_job
from tests.conftest import REPOSITORY
from tests.prove.peers.msprof_analyze import Row, install, rows, run_recipes

pytestmark = pytest.mark.slow

RECIPES = (
    "compute_op_sum", "hccl_sum", "cann_api_sum", "communication_group_map",
    "communication_time_sum", "communication_matrix_sum", "cluster_time_summary",
    "computational_op_masking", "freq_analysis", "ep_load_balance", "communication_time",
)  # fmt: skip
STEPS, RANKS = (12, 13), range(8)


@dataclass(frozen=True, slots=True)
class Both:
    """One capture in our store and in the peer's results."""

    con: duckdb.DuckDBPyConnection
    results: dict[str, Path]

    def theirs(self, recipe: str, sql: str) -> list[Row]:
        return rows(self.results[recipe], sql)

    def ours(self, sql: str) -> list[Row]:
        return self.con.execute(sql).fetchall()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    peer = install()
    if peer.why_not:
        reason = f"msprof-analyze could not be install: {peer.why_not}"
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("peers")
    write_job(COMMITTED_JOB, folder / "job", forms=("db",))
    assert ingest(folder / "job", folder / "store", summarise=summarise).is_complete
    copy, out = shutil.copytree(folder / "job", folder / "copy"), folder / "out"
    made = run_recipes(peer, out, {recipe: (recipe, copy) for recipe in RECIPES})
    results = {recipe: path for recipe, path in made.items() if isinstance(path, Path)}
    assert results == made
    with store.open(folder / "store") as con:
        yield Both(con, results)


def round_all(found: Iterable[Sequence[object]], digits: int = 6) -> set[Row]:
    return {tuple(round(v, digits) if isinstance(v, float) else v for v in row) for row in found}


def test_kernels_by_type(both: Both) -> None:
    theirs = set(both.theirs(
        "compute_op_sum",
        "select Rank, OpType, TaskType, Count, cast(SumNs as integer), cast(MinNs as integer),"
        " cast(MaxNs as integer) from ComputeOpPerRankStatsByOpType",
    ))  # fmt: skip
    columns = "rank, type, core, count(*), sum(dur_ns)::bigint, min(dur_ns), max(dur_ns)"
    ours = set(both.ours(f"select {columns} from kernels where is_compute group by all"))
    assert len(ours) == 164
    # HCCL's own kernels stand among the kernels: communication for us, an operator for them.
    assert ours < theirs
    assert {row[:3] for row in theirs - ours} == {
        (rank, "aiv_all_reduce_float_AivKernel", "AI_VECTOR_CORE") for rank in RANKS
    }
    assert theirs - ours == set(
        both.ours(f"select {columns} from kernels where not is_compute group by all")
    )
    by_type = query.kernels(both.con, by="type").to_dicts()
    assert sum(row["total_ns"] for row in by_type) == sum(row[4] for row in ours)


def test_collectives(both: Both) -> None:
    theirs = both.theirs(
        "hccl_sum",
        "select Rank, lower(OpType), Count, cast(SumNs as integer) from HcclPerRankStats",
    )
    ours = both.ours(
        "select rank, 'hcom_' || lower(op_type) || '_', count(*), sum(dur_ns)::bigint"
        " from comm_ops group by all"
    )
    assert len(ours) == 48
    assert set(ours) == set(theirs)
    told = query.comm(both.con).to_dicts()
    assert sum(row["op_count"] for row in told) == sum(row[2] for row in theirs)
    assert sum(row["total_ns"] for row in told) == sum(row[3] for row in theirs)


def test_calls_of_cann(both: Both) -> None:
    theirs = both.theirs(
        "cann_api_sum",
        "select rank, name, totalCount, totalTimeNs, minNs, maxNs from CannApiSumRank",
    )
    ours = both.ours(
        "select rank, name, count(*), sum(dur_ns)::bigint, min(dur_ns), max(dur_ns)"
        " from host_ops where kind = 'api' group by all"
    )
    assert len(ours) == 244
    assert set(ours) == set(theirs)


def test_groups(both: Both) -> None:
    theirs = set(both.theirs(
        "communication_group_map",
        "select rank_set, group_name, group_id, pg_name from CommunicationGroupMapping",
    ))  # fmt: skip
    ours = set(both.ours(
        "select distinct '(' || array_to_string(global_ranks, ',') || ')', group_hash, group_name,"
        " group_label from groups",
    ))  # fmt: skip
    # Groups that never communicate are in the metadata alone: theirs come from operations.
    assert theirs < ours
    assert {label for *_, label in ours - theirs} == {"tp"}
    used = {name for (name,) in both.ours("select distinct group_hash from comm_ops")}
    assert {row[1] for row in theirs} == used


def test_times_that_hccl_measured(both: Both) -> None:
    theirs = round_all(both.theirs(
        "communication_time_sum",
        "select step, cast(rank_id as integer), hccl_op_name, group_name, elapsed_time,"
        " transit_time, wait_time, synchronization_time, idle_time from ClusterCommunicationTime",
    ))  # fmt: skip
    ours = round_all(both.ours(
        "select 'step' || step, rank, name, group_hash, elapse_ns / 1e6, transit_ns / 1e6,"
        " wait_ns / 1e6, synchronization_ns / 1e6, idle_ns / 1e6 from comm_times",
    ))  # fmt: skip
    assert len(ours) == 408
    # The sums that the profiler adds are rows of theirs: adding up their table counts twice.
    assert ours < theirs
    assert {row[2] for row in theirs - ours} == {"Total Op Info"}
    for place in (0, 1, 3):  # step, rank and group have the same totals in both
        assert {row[place] for row in theirs - ours} == {row[place] for row in ours}


def test_traffic_of_links(both: Both) -> None:
    theirs = round_all(both.theirs(
        "communication_time_sum",
        "select step, cast(rank_id as integer), hccl_op_name, group_name, band_type, transit_size,"
        " transit_time, bandwidth, package_size, cast(count as integer), total_duration"
        " from ClusterCommunicationBandwidth where hccl_op_name <> 'Total Op Info'",
    ))  # fmt: skip
    ours = round_all(both.ours(
        "select 'step' || step, rank, name, group_hash, link, size_bytes / 1e6, time_ns / 1e6,"
        " bandwidth_bytes_per_s / 1e9, p.size_bytes / 1e6, p.packet_count, p.time_ns / 1e6"
        " from (select *, unnest(coalesce(packets, [{'size_bytes': 0, 'packet_count': 0,"
        " 'time_ns': 0}])) as p from comm_links)",
    ))  # fmt: skip
    assert len(ours) == 688
    assert ours == theirs


def test_the_link_matrix(both: Both) -> None:
    theirs = round_all(both.theirs(
        "communication_matrix_sum",
        "select step, hccl_op_name, group_name, cast(src_rank as integer),"
        " cast(dst_rank as integer), transport_type, op_name, transit_size, transit_time"
        " from ClusterCommunicationMatrix where hccl_op_name <> 'Total Op Info'",
    ))  # fmt: skip
    # They keep the file's words for types, which are lower case and fewer than the operations.
    words = {"reduceScatter": "reduce", "allToAllV": "alltoall"}
    cases = "".join(f" when '{name}' then '{word}'" for name, word in words.items())
    word = f"case op_type{cases} else lower(op_type) end"
    ours = round_all(both.ours(
        f"select 'step' || step, {word} || '-' || variant, group_hash, src_rank, dst_rank, link,"
        " coalesce(name, ''), size_bytes / 1e6, time_ns / 1e6 from comm_matrix",
    ))  # fmt: skip
    assert len(ours) == 1040
    assert ours == theirs


def test_the_producers_steps(both: Both) -> None:
    names = (
        "computing", "communication_not_overlapped", "overlapped", "communication", "free", "stage",
        "bubble", "communication_not_overlapped_and_exclude_receive", "preparing",
    )  # fmt: skip
    theirs = both.theirs(
        "communication_time",
        f"select cast(step as integer), cast([index] as integer), {', '.join(names)}"
        " from ClusterStepTraceTime where type = 'rank'",
    )
    times = ", ".join(f"{name}_ns / 1e3" for name in names)
    ours = both.ours(f"select step, rank, {times} from profiler_steps")
    assert len(ours) == 16
    assert round_all(ours) == round_all(theirs)


def test_the_parts_of_steps(both: Both) -> None:
    theirs = {
        (rank, int(step)): [round(us * 1000) for us in figures]
        for rank, step, *figures in both.theirs(
            "cluster_time_summary",
            "select rank, step, stepTime, computation, communication,"
            " communicationOverlapComputation, communicationNotOverlapComputation, free,"
            " memoryNotOverlapComputationCommunication from ClusterTimeSummary",
        )
    }
    ours = {(row["rank"], row["step"]): row for row in query.steps(both.con).to_dicts()}
    assert theirs.keys() == ours.keys() == {(rank, step) for rank in RANKS for step in STEPS}
    for (rank, step), figures in theirs.items():
        row = ours[rank, step]
        step_ns, computing_ns, communication_ns, overlapped_ns, exposed_ns, free_ns, copy_ns = (
            figures
        )
        assert step_ns == row["window_end_ns"] - row["window_start_ns"]
        assert computing_ns == row["computing_ns"]
        assert communication_ns == row["communication_ns"]
        # They look for cover among the step's own kernels: the operation that ends under the next
        # step's first ones is exposed for them. We look among all of the rank's.
        kernels = intervals(both, f"kernels where is_compute and rank = {rank} and step = {step}")
        ops = intervals(both, f"comm_ops where rank = {rank} and step = {step}")
        assert overlapped_ns == length(ops) - length(outside(ops, kernels))
        assert exposed_ns == communication_ns - overlapped_ns
        assert (overlapped_ns < row["overlapped_ns"]) == (step == STEPS[0]), "it crosses one edge"
        # Copies of memory are a part of their own for them, and free time for us.
        assert free_ns + copy_ns == row["free_ns"]
        assert (copy_ns > 0) == (rank < 4), "the first stage loads data"


def test_masking_by_parallel_kind(both: Both) -> None:
    windows = {
        (step, start_ns, end_ns): rank for step, start_ns, end_ns, rank in both.ours(
            "select step, window_start_ns, window_end_ns, rank from steps")
    }  # fmt: skip
    theirs = both.theirs(
        "computational_op_masking",
        "select stepId, parallelType, stepStartTime, stepEndTime, totalCommunicationOperatorTime,"
        " totalTimeWithoutCommunicationBlackout from ComputationalOperatorMaskingLinearity",
    )
    assert len(theirs) == 48
    for step, kinds, start_ns, end_ns, total_ns, exposed_ns in theirs:
        rank = windows[int(step), start_ns, end_ns]
        # "edp" is a label that nobody wrote: their group is then what is left of the pair.
        [kind] = set(kinds.split("+")) - {"edp"}
        # An operation is booked where it runs, by the host's clock; for us, where it was launched.
        ops = intervals(
            both,
            f"comm_ops join groups using (rank, group_hash) where rank = {rank}"
            f" and parallel_kind = '{kind}' and start_ns < {end_ns}"
            f" and start_ns + dur_ns > {start_ns}",
        )
        kernels = intervals(both, f"kernels where is_compute and rank = {rank}")
        assert total_ns == length(ops), (rank, step, kinds)
        assert exposed_ns == length(outside(ops, kernels)), (rank, step, kinds)


def test_frequencies(both: Both) -> None:
    theirs = {
        rank: [int(mhz) for mhz in re.findall(r"\((\d+)\)", told) or re.findall(r"\d+", told)]
        for rank, told in both.theirs(
            "freq_analysis", "select rankId, aicoreFrequency from AbnormalFrequencyRanks"
        )
    }
    ours = both.ours(
        "select rank, list(distinct value::integer) from counters where name = 'AI Core Freq'"
        " and value not in (800, 1800) group by rank"
    )
    assert theirs == dict(ours) == {5: [1440]}


def test_tokens_of_experts(both: Both) -> None:
    theirs = {
        int(rank): int(tokens)
        for rank, tokens in both.theirs(
            "ep_load_balance", "select rank, inputShapesSummary from EPTokensSummary"
        )
    }
    ours = both.ours(
        "select rank, sum(regexp_extract(input_shapes, '(\\d+)', 1)::bigint)::bigint from kernels"
        " where type = 'GroupedMatmul' group by rank"
    )
    assert len(ours) == 8
    assert theirs == dict(ours)


def test_the_table_of_documents_names_every_recipe_compared() -> None:
    table = (REPOSITORY / "docs" / "peers.md").read_text(encoding="utf-8")
    for recipe in RECIPES:
        assert f"`{recipe}`" in table, recipe


Spans = list[tuple[int, int]]


def intervals(both: Both, rows_from: str) -> Spans:
    """Start and end of kernels or operations."""
    found = both.ours(f"select start_ns, start_ns + dur_ns from {rows_from}")
    return [(int(start), int(end)) for start, end in found]


def union(spans: Spans) -> Spans:
    merged: Spans = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def outside(spans: Spans, cover: Spans) -> Spans:
    """What of the union of `spans` lies in none of `cover`."""
    left: Spans = []
    for start, end in union(spans):
        for from_, to in union(cover):
            if to > start and from_ < end:
                if from_ > start:
                    left.append((start, from_))
                start = to
        if start < end:
            left.append((start, end))
    return left


def length(spans: Spans) -> int:
    return sum(end - start for start, end in union(spans))
