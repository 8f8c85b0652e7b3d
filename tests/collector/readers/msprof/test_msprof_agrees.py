"""Exports of msprof and of torch_npu of one job give the same rows, but for what msprof cannot
carry: it knows no framework, no groups' members, no steps but iterations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.analysis import query
from npuscope.collector import schema
from npuscope.collector.store import store
from npuscope.sample_traces.generate import Form
from tests.collector.readers.msprof.msprof_stores import rows, table

pytestmark = pytest.mark.slow

FORMS: tuple[Form, ...] = ("text", "db", "msprof", "msprof_db")
# Of the job and of the framework: only torch_npu's metadata has it. The session's end is told by
# msprof in microseconds. Cores are told by info.json alone.
OF_FRAMEWORK = {
    "framework", "framework_version", "cann_version", "profiler_level", "aic_metrics",
        "environment", "model_config",
    "world_size", *(f"{kind}_{what}" for kind in ("tp", "pp", "dp", "cp", "ep")
                    for what in ("size", "rank")),
    "source_format", "window_start_ns", "window_end_ns", "ai_core_count",
}  # fmt: skip
NOT_CARRIED = {
    "ranks": OF_FRAMEWORK,
    "comm_ops": {"group_size", "peer_ranks"},  # the members of groups
    "comm_tasks": {"src_rank", "dst_rank"},
    "launches": {"operator_name", "operator_thread_id", "operator_start_ns"},
    "steps": {"window_start_ns", "window_end_ns"},  # the host's range of a step
}
MACHINE = {"host_name", "host_uid", "chip_name", "ai_core_frequency_mhz"}  # text has none
# Where msprof has nothing, something else, or only a part (tested below).
NOTHING = {"groups", "marks", "profiler_steps"}
OTHERWISE = {"comm_matrix", "host_ops"}
OF_TEXT_ONLY = {"comm_times", "comm_links", "operator_memory", "memory"}


@pytest.fixture(scope="module")
def places(agreeing_stores: Callable[[Form], Path]) -> dict[Form, Path]:
    return {form: agreeing_stores(form) for form in FORMS}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(schema.tables().keys() - OTHERWISE - NOTHING))
def test_text_of_both(places: dict[Form, Path], name: str) -> None:
    without = NOT_CARRIED.get(name, set()) | (MACHINE if name == "ranks" else set())
    wanted = table(places["text"], name, without)
    assert table(places["msprof"], name, without) == wanted
    assert wanted or name in ("expert_load", "expert_counts", "expert_placement", "train_log")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(schema.tables().keys() - OTHERWISE - NOTHING - OF_TEXT_ONLY)
)
def test_databases_of_both(places: dict[Form, Path], name: str) -> None:
    without = NOT_CARRIED.get(name, set())
    assert table(places["msprof_db"], name, without) == table(places["db"], name, without)


def test_what_msprof_cannot_carry_is_unknown(places: dict[Form, Path]) -> None:
    for name in NOTHING:
        assert table(places["text"], name) and not table(places["msprof"], name)
        assert not table(places["msprof_db"], name)
    for name in OF_TEXT_ONLY - {"memory"}:
        assert not table(places["msprof_db"], name)
    for name, columns in NOT_CARRIED.items():
        for column in columns & {"group_size", "src_rank", "dst_rank", "operator_name"}:
            sql = f"select count({column}) from {name}"
            assert rows(places["text"], sql) > rows(places["msprof"], sql) == [(0,)]


def test_calls_of_cann_are_the_same(places: dict[Form, Path]) -> None:
    pairs: tuple[tuple[Form, Form], ...] = (("msprof", "text"), ("msprof_db", "db"))
    for ours, theirs in pairs:
        calls = table(places[theirs], "host_ops", where="kind = 'api'")
        assert table(places[ours], "host_ops") == calls


def test_modules_memory_is_the_same(places: dict[Form, Path]) -> None:
    modules = table(places["db"], "memory", where="source = 'module'")
    assert table(places["msprof_db"], "memory") == modules


def test_a_matrix_by_operations_adds_up_to_that_by_kinds(places: dict[Form, Path]) -> None:
    """msprof writes each operation's links, torch_npu those of a kind and a step together, and
    lets reduceScatter and allToAllV lose their ends."""
    sql = """
        select rank, step, regexp_replace(op_type, '(Scatter|V)$', '') as kind, group_hash,
            src_group_rank, dst_group_rank, link, round(sum(size_bytes)), round(sum(time_ns))
        from comm_matrix where variant = '{}' group by all order by all"""
    assert rows(places["msprof"], sql.format("op")) == rows(places["text"], sql.format("total"))


def test_figures_are_the_same(places: dict[Form, Path]) -> None:
    """Of steps all but what needs the host's range, which msprof has not."""
    unlike = ["run", "capture", "window_start_ns", "window_end_ns", "preparing_ns"]
    found = []
    for form in FORMS:
        with store.open(places[form]) as con:
            kernels = query.kernels(con, by="type").sort("type", "rank", "step")
            found.append((query.steps(con).drop(unlike).to_dicts(), kernels.to_dicts()))
    assert found[0][0] and found[0][1]
    assert all(one == found[0] for one in found[1:])
