"""The tutorial shows what the commands print, as the READMEs do.

`UPDATE_README=1 pytest tests/test_tutorial.py` writes the outputs that no longer match.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from npuscope.analysis.ranks.stragglers.blame import VERDICT_WORDS
from npuscope.collector.store.cache import store_of
from tests.cli.command import runner
from tests.conftest import REPOSITORY
from tests.test_readme import COLUMNS, arguments_of, matches, normalise, shown_in

TUTORIALS = [REPOSITORY / "docs" / name for name in ("tutorial.md", "tutorial.zh-CN.md")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tutorial", [TUTORIALS[0], pytest.param(TUTORIALS[1], marks=pytest.mark.slow)],
    ids=lambda path: path.name,
)  # fmt: skip
def test_shown_output_is_what_the_commands_print(
    tutorial: Path,
    tmp_path: Path,
    sample_store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = runner(tmp_path / "cache", monkeypatch, capsys)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.chdir(REPOSITORY)
    # As if the sample had been asked about before.
    shutil.copytree(sample_store, store_of(REPOSITORY / "sample_traces" / "moe_8_ranks"))
    wrong, text = [], tutorial.read_text(encoding="utf-8")
    for shown in shown_in(tutorial):
        arguments = arguments_of(shown.command)
        assert arguments is not None, shown.command
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.err
        actual = normalise(outcome.out, tmp_path)
        if not matches(normalise(shown.output, tmp_path), actual):
            wrong.append(f"$ {shown.command}\n{outcome.out}")
            told = "\n".join(actual)
            text = text.replace(shown.text, f"$ {shown.command}\n{told}\n")
    if os.environ.get("UPDATE_README"):
        tutorial.write_text(text, encoding="utf-8")
    else:
        assert not wrong, "UPDATE_README=1 rewrites these:\n" + "\n".join(wrong)


def test_it_is_found_from_the_readmes() -> None:
    for readme, tutorial in zip(("README.md", "README.zh-CN.md"), TUTORIALS, strict=True):
        assert f"(docs/{tutorial.name})" in (REPOSITORY / readme).read_text(encoding="utf-8")
    english, chinese = ([one.command for one in shown_in(path)] for path in TUTORIALS)
    assert english == chinese and len(english) >= 6
    for tutorial in TUTORIALS:  # what to do follows the words that `npuscope ranks` prints
        rows = re.findall(r"^\| ([a-z][a-z' -]+)", tutorial.read_text(encoding="utf-8"), re.M)
        verdicts = {row.strip() for row in rows} - {"verdict"}
        assert verdicts == {*VERDICT_WORDS.values()} - {VERDICT_WORDS["unknown"]}
