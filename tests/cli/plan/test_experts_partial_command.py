"""A plan or forecast from some ranks' counts is refused, unless it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from npuscope.errors import TraceNotFound
from tests.cli.plan.test_experts_plan import app
from tests.collector.readers.expert_load.expert_dumps import line


@pytest.mark.parametrize(
    "words", [("plan", "--devices", "2"), ("backtest", "--horizon", "1")], ids=["plan", "backtest"]
)
def test_counts_of_some_ranks_are_no_plan(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Only rank 63 left a file: of 64 ranks, one counted."""
    counts = "".join(line(step, 0, [9, 1, 3, 3 + step % 2]) for step in range(12))
    (tmp_path / "rank63.jsonl").write_text(counts)
    command = [words[0], str(tmp_path), *words[1:]]

    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, TraceNotFound)
    assert "1 of 64 ranks" in str(refused.exception) and "rank*.jsonl" in str(refused.exception)

    taken = CliRunner().invoke(app, [*command, "--from-ranks-present"])
    assert taken.exit_code == 0, taken.output
