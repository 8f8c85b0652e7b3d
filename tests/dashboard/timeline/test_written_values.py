"""How the timeline writes instants and values of columns: its own modules, run by Node."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "dashboard" / "timeline_component" / "src"
NODE = shutil.which("node")


def evaluate(module: str, *calls: str) -> list[str]:
    """What expressions give that use what a module exports, as `it`."""
    assert NODE is not None
    code = f'import * as it from "{(SOURCE / module).as_uri()}";'
    code += f"console.log(JSON.stringify([{', '.join(calls)}]));"
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", code], capture_output=True, text=True, check=True,
        timeout=60,
    )  # fmt: skip
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(NODE is None, reason="the timeline's source needs Node")
def test_an_instant_at_nothing_has_no_sign() -> None:
    assert evaluate("time_text.js", "it.instant(-0.3, 1e3)", "it.instant(-2e3, 1e3)") == [
        "0 us", "-2 us",
    ]  # fmt: skip


@pytest.mark.skipif(NODE is None, reason="the timeline's source needs Node")
def test_values_are_written_as_tables_write_them() -> None:
    calls = (
        'it.valueText("aic_cycles", 2337480)', 'it.valueText("aic_time_ns", 64930)',
        'it.valueText("task_id", 2337480)', 'it.valueText("step", 10000)',
        'it.valueText("cube_utilization_ratio", 0.985)', 'it.valueText("peer_ranks", [1, 2])',
    )  # fmt: skip
    assert evaluate("panel.js", *calls) == [
        "2,337,480", "64.93 us", "2337480", "10000", "98.5 %", "[1,2]",
    ]  # fmt: skip
