"""The command in this process, as users and scripts start it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from npuscope.cli import app, main


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.out)
        return answer

    @property
    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json()["rows"]
        return found


Run = Callable[..., Outcome]


def output_of(*words: object) -> str:
    """What a command that succeeds prints."""
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def rows_of(*words: object) -> list[dict[str, Any]]:
    """What a command that succeeds says for programs."""
    found: list[dict[str, Any]] = json.loads(output_of(*words, "--json"))["rows"]
    return found


def runner(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs commands whose stores of profiles lie below `cache`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["npuscope", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(int(left.value.code or 0), out, err)

    return run
