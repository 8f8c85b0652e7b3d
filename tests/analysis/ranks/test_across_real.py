"""Groups, clocks and waits of real captures, of which two ranks of four or two were profiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npuscope.analysis.doctor.limits import limits
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.summaries import summaries, summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from tests.analysis.tables import select

pytestmark = pytest.mark.slow
VERSIONS = {summary.name: summary.version for summary in summaries()}


def answers(source: Path, into: Path) -> dict[str, list[dict[str, Any]]]:
    ingest(source, into, summarise=summarise, jobs=1)
    with store.open(into, summaries=VERSIONS) as con:
        open_across(into, con)
        names = ("capture_groups", "clocks", "arrivals", "comm_waits")
        return {name: select(con, f"from {name} order by all") for name in names}


def test_two_ranks_of_four(real_data: Path, tmp_path: Path) -> None:
    told = answers(real_data / "qwen3_pp2_dp2_text_level2", tmp_path)
    groups = {(row["kind"], tuple(row["global_ranks"])) for row in told["capture_groups"]}
    assert groups == {
        ("world", (0, 1, 2, 3)), ("dp_cp", (0, 1)), ("tp", (0,)), ("tp", (1,)),
        *((kind, members) for kind in ("mp", "pp", "embd") for members in ((0, 2), (1, 3))),
    }  # fmt: skip
    assert {row["basis"] for row in told["capture_groups"]} == {"metadata"}
    # Members that were not profiled leave every operation but those of ranks 0 and 1 incomplete.
    complete = {row["kind"] for row in told["arrivals"] if row["is_complete"]}
    assert complete == {"dp_cp"}
    (late,) = [row for row in told["comm_waits"] if row["kind"] == "dp_cp" and row["rank"] == 1]
    assert late["coverage_ratio"] == 1
    assert late["wait_min_duration_ns"] == 11_368_000
    assert late["disagreement_ns"] <= 0.005 * late["wait_min_duration_ns"]
    (_, other) = told["clocks"]
    assert abs(other["offset_ns"]) < 10_000, "both ranks ran in one machine"
    assert other["lower_ns"] <= other["offset_ns"] <= other["upper_ns"]
    assert other["drift_ppm"] is None and "drift cannot be determined" in other["note"]


@pytest.mark.parametrize("export", ["text", "db"])
@pytest.mark.parametrize("level", [0, 1])
def test_one_program_has_one_kind(
    export: str, level: int, real_stores: Callable[[str], Path]
) -> None:
    """Whatever was exported at which level: also where only names of operations tell a group."""
    target = real_stores(f"alexnet_ddp_{export}_level{level}")
    with store.open(target, summaries=VERSIONS) as con:
        open_across(target, con)
        (group,) = select(con, "from capture_groups")
        assert (group["kind"], group["seen_ranks"]) == ("dp", [0, 1])
        assert group["basis"] in ("inferred", "matrix")
        kinds = {row["kind"] for row in select(con, "from comm_summary where kind is not null")}
        assert kinds == {"dp"}
        (told,) = [one for one in limits(con) if "communication groups" in one]
        assert "unknown" not in told and "inferred" in told


@pytest.mark.parametrize("name", ["alexnet_ddp_text_level1", "alexnet_ddp_db_level1"])
def test_without_metadata(name: str, real_data: Path, tmp_path: Path) -> None:
    told = answers(real_data / name, tmp_path)
    (group,) = told["capture_groups"]
    assert group["basis"] == "inferred" and group["seen_ranks"] == [0, 1]
    assert len(told["arrivals"]) == 8
    assert {row["rank_count"] for row in told["arrivals"]} == {2}
    if name == "alexnet_ddp_db_level1":
        (clock,) = told["clocks"]
        assert (clock["host"], clock["ranks"]) == ("ubuntu", [0, 1])
    else:
        assert abs(told["clocks"][1]["offset_ns"]) < 20_000, "both ranks ran in one machine"
