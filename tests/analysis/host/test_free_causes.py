"""Free time by cause: against a count of every nanosecond, and what each record makes of a gap."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median_low
from typing import Any

import pytest

from npuscope.analysis.host.free_time import free_time, host_episodes, mean_free_time
from npuscope.analysis.scope import Scope
from npuscope.collector.store import store as stores
from npuscope.profile import summary_versions
from npuscope.sample_traces.generate import Form, small
from tests.analysis.tables import answer, connect, fill, kernel, op
from tests.conftest import WrittenJob

Row = dict[str, Any]
# Who comes first of what goes on at once.
NAMES = (
    ("gc", "Python GC", "garbage_collection"),
    ("operator", "enumerate(DataLoader)#_Next", "data_loading"),
    ("python", "torch/serialization.py(618): save", "checkpoint"),
    ("python", "logging/__init__.py(1477): info", "logging"),
    ("python", "torch_npu/profiler/profiler.py(120): step", "profiler"),
    ("operator", "aten::item", "synchronisation"),
    ("api", "aclrtSynchronizeStream", "synchronisation"),
)
TASKS = (("EVENT_WAIT", "event"), ("MEMCPY_ASYNC", "copy"), ("AI_OTHER", "task"))


def random_rank(rank: int, chance: random.Random) -> dict[str, list[Row]]:
    """Kernels with gaps, each launched somehow; what host and device did meanwhile."""
    tables: dict[str, list[Row]] = {
        name: [] for name in ("kernels", "launches", "host_ops", "device_tasks", "ranks")
    }
    tables["ranks"].append({"rank": rank})
    at = 1000
    for number in range(chance.randrange(2, 7)):
        at += chance.randrange(1, 120)
        dur_ns = chance.randrange(5, 40)
        tables["kernels"].append({**kernel(at, dur_ns, 1, stream_id=2), "rank": rank})
        launch = at - chance.randrange(-40, 150)  # below 0: clocks differ
        chain = sorted(launch - chance.randrange(0, 60) for _ in range(4))
        row: Row = {"device_start_ns": at, "api_start_ns": launch, "api_thread_id": 9,
                    "stream_id": 2, "connection_id": f"{number}", "rank": rank}  # fmt: skip
        if chance.random() < 0.8:
            row |= {"operator_name": f"op{number}", "operator_start_ns": chain[0],
                    "operator_thread_id": 8}  # fmt: skip
        if chance.random() < 0.9:
            tables["launches"].append(row)
        at += dur_ns
    for _ in range(chance.randrange(0, 5)):
        kind, name, _cause = chance.choice(NAMES)
        tables["host_ops"].append({
            "kind": kind, "name": name, "thread_id": 8, "rank": rank,
            "start_ns": chance.randrange(950, at), "dur_ns": chance.randrange(1, 80),
        })  # fmt: skip
    for _ in range(chance.randrange(0, 4)):
        tables["device_tasks"].append({
            "type": chance.choice(TASKS)[0], "stream_id": chance.choice((2, 3)), "rank": rank,
            "start_ns": chance.randrange(950, at), "dur_ns": chance.randrange(1, 50),
        })  # fmt: skip
    for one in [*tables["device_tasks"]]:  # another begins with it, and is listed before or after
        if chance.random() < 0.5:
            at = chance.randrange(len(tables["device_tasks"]) + 1)
            tables["device_tasks"].insert(at, {**one, "dur_ns": chance.randrange(1, 50)})
    return tables


def count(tables: dict[str, list[Row]]) -> Counter[tuple[str, str]]:
    """The cause and stage of every free nanosecond of which a launch tells."""
    launches = {row["device_start_ns"]: row for row in tables["launches"]}
    gaps, until = [], None
    for row in tables["kernels"]:
        if until is not None and row["start_ns"] > until:
            gaps.append((until, row["start_ns"]))
        until = row["start_ns"] + row["dur_ns"]
    known = [(a, b, launches[b]) for a, b in gaps if b in launches]
    after = [(b - row["api_start_ns"], row["api_start_ns"] > a) for a, b, row in known]
    found: Counter[tuple[str, str]] = Counter()
    if not known or median_low([ns for ns, _ in after]) < 0:
        return found
    late = [max(ns, 0) for ns, is_late in after if is_late]
    reach_ns = median_low(late) if late else 0
    whole = [dict(row, end_ns=row["start_ns"] + row["dur_ns"]) for row in tables["host_ops"]]
    cause_of = {name: cause for _, name, cause in NAMES}
    order = [name for _, name, _ in NAMES]
    for a, b, row in known:
        launch = min(row["api_start_ns"], b)
        host_until = min(launch + reach_ns, b) if launch > a else a
        waits = any(
            cause_of[one["name"]] == "synchronisation" and one["start_ns"] <= a
            and max(one["start_ns"], a) < min(one["end_ns"], launch)
            for one in whole
        ) and launch > a  # fmt: skip
        for t in range(a, b):
            here = sorted((order.index(one["name"]), one["name"]) for one in whole
                          if one["start_ns"] <= t < one["end_ns"])  # fmt: skip
            if t < host_until:
                stage = "launch" if t >= launch else "unknown" if "operator_name" not in row else (
                    "python" if t < row["operator_start_ns"] else "prepare")  # fmt: skip
                if here and t < launch:
                    found[cause_of[here[0][1]], "call"] += 1
                else:
                    found["synchronisation" if waits else "dispatch", stage] += 1
                continue
            tasks = sorted([name for name, _ in TASKS].index(one["type"])
                           for one in tables["device_tasks"] if one["stream_id"] == 2
                           and one["start_ns"] <= t < one["start_ns"] + one["dur_ns"])  # fmt: skip
            found["device", TASKS[tasks[0]][1] if tasks else "between"] += 1
    return found


def test_every_nanosecond_has_the_cause_that_counting_gives_it() -> None:
    chance = random.Random(7)
    ranks = [random_rank(rank, chance) for rank in range(150)]
    con = connect()
    for table in ranks[0]:
        fill(con, table, [row for tables in ranks for row in tables[table]])
    found = [Counter[tuple[str, str]]() for _ in ranks]
    for row in answer(con, "free_causes"):
        if row["by_key"] == "cause":
            found[row["rank"]][row["cause"], row["stage"]] += row["free_ns"]
    assert found == [count(tables) for tables in ranks]
    assert len({key for one in found for key in one}) > 15


def test_the_stages_of_a_launch_through_the_task_queue() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 100, 1), kernel(1000, 10, 1)])
    fill(con, "launches", [{
        "device_start_ns": 1000, "api_start_ns": 900, "api_thread_id": 9,
        "operator_name": "aten::add", "operator_start_ns": 300, "operator_thread_id": 8,
    }])  # fmt: skip
    queue: Row = {"connection_id": "7", "name": "add"}
    fill(con, "host_ops", [
        {"kind": "enqueue", "thread_id": 8, "start_ns": 500, "dur_ns": 60, **queue},
        {"kind": "dequeue", "thread_id": 9, "start_ns": 600, "dur_ns": 350, **queue},
    ])  # fmt: skip
    rows = [row for row in answer(con, "free_causes") if row["by_key"] == "cause"]
    assert {row["stage"]: (row["free_ns"], row["thread_id"]) for row in rows} == {
        "python": (200, 8), "prepare": (200, 8), "enqueue": (60, 8), "queue": (40, 9),
        "dequeue": (300, 9), "launch": (100, 9),
    }  # fmt: skip


def test_episodes_join_gaps_with_less_work_than_free_time_between_them() -> None:
    con = connect()
    starts = (0, 100, 200, 1000)
    fill(con, "kernels", [kernel(at, 10, 1) for at in starts[:3]] + [kernel(210, 700, 1)])
    fill(con, "kernels", [kernel(1000, 10, 1)])
    fill(con, "launches", [{"device_start_ns": at, "api_start_ns": at - 20} for at in starts])
    found = host_episodes(con)
    assert found.select("start_ns", "end_ns", "count", "free_ns").rows() == [
        (10, 200, 2, 180), (910, 1000, 1, 90),
    ]  # fmt: skip


def test_what_no_launch_tells_of_is_unknown() -> None:
    con = connect()
    fill(con, "kernels", [kernel(0, 10, 1), kernel(100, 10, 1)])
    fill(con, "comm_ops", [op(200, 10, 1)])
    fill(con, "launches", [{"device_start_ns": 100, "api_start_ns": 60}])
    told = [(row["cause"], row["stage"], row["free_ns"]) for row in free_time(con).to_dicts()]
    assert told == [("unknown", None, 90), ("dispatch", "unknown", 50), ("dispatch", "launch", 40)]


def check_sums(con: Any) -> None:
    steps = con.execute("select rank, step, free_ns, host_ns, idle_ns from step_summary"
                        " where free_ns is not null").fetchall()  # fmt: skip
    rows = free_time(con).to_dicts()
    assert steps
    for rank, step, free_ns, host_ns, idle_ns in steps:
        mine = [row for row in rows if (row["rank"], row["step"]) == (rank, step)]
        assert sum(row["free_ns"] for row in mine) == free_ns
        assert all(row["free_ns"] > 0 for row in mine)
        idle = sum(row["free_ns"] for row in mine if row["cause"] == "device")
        unknown = sum(row["free_ns"] for row in mine if row["cause"] == "unknown")
        assert idle == (idle_ns or 0) and unknown == free_ns - (host_ns or 0) - (idle_ns or 0)


def test_causes_of_a_generated_job_add_up(sample_store: Path) -> None:
    with stores.open(sample_store, summaries=summary_versions()) as con:
        check_sums(con)
        mean = mean_free_time(con, Scope(rank=3), by="operator")
        assert mean["share_ratio"].sum() == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet_ddp_db_level0", "alexnet_ddp_db_level1",
    "alexnet_ddp_text_level0", "alexnet_ddp_text_level1", "qwen3_pp2_dp2_text_level2",
    "msprof_timeline_2023"])  # fmt: skip
def test_causes_of_real_profiles_add_up(real_stores: Callable[[str], Path], name: str) -> None:
    with stores.open(real_stores(name), summaries=summary_versions()) as con:
        check_sums(con)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "db"])
def test_causes_of_both_exports_add_up(stored_job: WrittenJob, form: Form) -> None:
    with stores.open(stored_job(small(steps=3), form), summaries=summary_versions()) as con:
        check_sums(con)
        waits = mean_free_time(con, by="cause").filter(cause="synchronisation")
        # The host waits once a step, and launches nothing until the device stood still.
        assert waits["free_ns"].item() > 9_000
