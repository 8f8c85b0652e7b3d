"""Commands that findings name, as a person pastes them: of a store of many captures each shows its
own finding's figures and nothing of the others."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import rows_of
from tests.dashboard.app.pages.planted_jobs import PLANTED, publish

Row = dict[str, Any]
Figures = tuple[float, float]  # of the finding, of what its command prints


def per_step(rows: Iterable[Row], *columns: str, of: Iterable[Row] | None = None) -> float:
    """Of these columns together, a mean rank's step; `of`: rows with all ranks and steps."""
    rows = list(rows)
    steps = {(row["rank"], row["step"]) for row in of or rows if row["step"] is not None}
    return sum(row[name] or 0 for row in rows for name in columns) / len(steps)


def of_parts(*parts: str) -> Callable[[Row, list[Row]], Figures]:
    def figures(finding: Row, rows: list[Row]) -> Figures:
        mine = (row for row in rows if row["part"] in parts)
        return finding["at_stake_ns"], per_step(mine, "ns", of=rows)

    return figures


def of_types(finding: Row, rows: list[Row]) -> Figures:
    name = "type" if "type" in rows[0] else "core"
    every = {one[name] for one in finding["evidence"]}
    return finding["at_stake_ns"], per_step(
        (row for row in rows if row[name] in every), "total_ns", of=rows
    )


def of_slowest_rank(finding: Row, rows: list[Row]) -> Figures:
    """Kernels of several streams overlap: the share tells what it is of."""
    first = finding["evidence"][0]
    mine = next(r for r in rows if (r["rank"], r["step"]) == (first["rank"], first["step"]))
    return first["computing_ns"], mine["total_ns"] / mine["computing_share_ratio"]


def of_stage(finding: Row, rows: list[Row]) -> Figures:
    """Of the stage that computes longest: the second half of the ranks."""
    ranks = sorted({row["rank"] for row in rows})
    mine = (row for row in rows if row["rank"] >= ranks[len(ranks) // 2])
    return finding["evidence"][0]["computing_ns"], per_step(mine, "computing_ns")


def of_link(finding: Row, rows: list[Row]) -> Figures:
    """GB/s, as both print it: the finding's is weighted by bytes."""
    first = finding["evidence"][0]
    ends = {first["low_rank"], first["high_rank"]}
    mine = [row for row in rows if {row["src_rank"], row["dst_rank"]} == ends]
    rate = sum(row["size_bytes"] for row in mine) / sum(row["time_ns"] for row in mine)
    return round(first["bandwidth_bytes_per_s"] / 1e9, 2), round(rate, 2)


def of_host(finding: Row, rows: list[Row]) -> Figures:
    mine = next(row for row in rows if row["verdict"] == "host")
    [value] = [e["value"] for e in mine["evidence"] if e["what"] == "from launch to launch"]
    return finding["evidence"][0]["launch_interval_ns"], value


def of_calls(finding: Row, rows: list[Row]) -> Figures:
    first = finding["evidence"][0]
    names = [name for name in ("cause", "operator") if name in first]
    mine = (row for row in rows if all(row[name] == first[name] for name in names))
    return first["total_ns"], per_step(mine, "total_ns", of=rows)


def of_first(name: str, *same: str) -> Callable[[Row, list[Row]], Figures]:
    """A figure of the first row of evidence, from the row that is the same in these columns."""

    def figures(finding: Row, rows: list[Row]) -> Figures:
        first = finding["evidence"][0]
        mine = next(row for row in rows if all(row[one] == first.get(one) for one in same))
        return first[name], mine[name]

    return figures


def of_kernels(finding: Row, rows: list[Row]) -> Figures:
    first = finding["evidence"][0]
    mine = (row for row in rows if row["type"] == first["type"])
    return first["total_ns"], per_step(mine, "total_ns", of=rows)


def of_plan(finding: Row, rows: list[Row]) -> Figures:
    """The plan is of all steps, the finding of those whose cost is known."""
    first = finding["evidence"][0]
    mine = next(row for row in rows if row["layer"] == first["layer"])
    return round(first["max_over_mean"], 1), round(mine["max_over_mean_before"], 1)


FIGURES: dict[str, Callable[[Row, list[Row]], Figures]] = {
    "exposed_communication": of_parts("transfer", "unknown_communication"),
    "late_ranks": lambda finding, rows: (finding["at_stake_ns"], per_step(rows, "peer_wait_ns")),
    "device_idle": lambda finding, rows: (
        finding["at_stake_ns"], sum(row["free_ns"] for row in rows)
    ),
    "data_setting": of_types,
    "ai_cpu_kernels": of_types,
    "stragglers": of_slowest_rank,
    "uneven_stages": of_stage,
    "slow_links": of_link,
    "slow_hosts": of_host,
    "slow_kernels": of_kernels,
    "host_calls": of_calls,
    "synchronisation": of_calls,
    "slow_operators": of_first("headroom_ns", "type", "input_shapes", "evidence"),
    "expert_imbalance": of_plan,
}  # fmt: skip


@pytest.mark.slow
def test_commands_of_findings_show_their_figures(tmp_path: Path) -> None:
    store = tmp_path / "many runs"
    for planted in PLANTED:
        publish(store, planted)
    findings = rows_of("findings", store)
    assert {one["finding"] for one in findings} == FIGURES.keys()
    answers: dict[str, list[Row]] = {}
    for one in findings:
        program, *words = shlex.split(one["command"])
        assert (program, words[1 + (words[1] == "plan")]) == ("npuscope", str(store))
        if one["command"] not in answers:
            answers[one["command"]] = rows_of(*words)
        rows = answers[one["command"]]
        assert {(row["run"], row["capture"]) for row in rows} == {(one["run"], one["capture"])}
        told, shown = FIGURES[one["finding"]](one, rows)
        bound = 0.5 if told > 1_000 else 1e-9  # a stake is in whole ns
        assert shown == pytest.approx(told, rel=1e-9, abs=bound), one["command"]
    of_one = rows_of("findings", store, "--run", "garbage", "--step", 20, "--rank", 0)
    chosen = {"--run garbage", "--rank 0", "--step 20"}
    assert of_one and all(
        {word for word in chosen if f" {word}" in one["command"]} == chosen for one in of_one
    )
