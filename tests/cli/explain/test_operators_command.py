"""`npuscope operators`: tables by key, and the table of the best that it learns."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuscope.analysis.catalog import column_names
from tests.cli.command import Run


def test_what_was_learnt_is_held_against_another_capture(
    run: Run, small_store: Path, tmp_path: Path
) -> None:
    table = tmp_path / "best.parquet"
    for _ in range(2):  # twice changes nothing
        assert run("operators", "learn", small_store, "-o", table).code == 0
    told = run("operators", small_store, "--reference", table, "--json").json()
    assert told["metric"] == "operator_headroom"
    assert {*told["rows"][0]} == {*column_names("operator_headroom")}
    assert any("reference" in (row["basis"] or "") for row in told["rows"])
    refused = run("operators", small_store, "--reference", tmp_path / "none.parquet")
    assert refused.code == 2 and "operators learn" in refused.err
    table.write_bytes(b"PAR1")
    assert run("operators", small_store, "--reference", table).code == 3


@pytest.mark.slow
@pytest.mark.parametrize("key", ["class", "step", "pmu"])
def test_tables_by_key(run: Run, small_store: Path, key: str) -> None:
    assert run("operators", small_store, "--by", key).out
    assert run("operators", small_store, "--by", key, "--json").code == 0
