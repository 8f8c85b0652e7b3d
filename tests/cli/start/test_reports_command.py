"""Reports in every form, and findings, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import Run


@pytest.fixture(scope="module")
def target(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose path needs quotes in a shell."""
    return Path(shutil.copytree(small_store, tmp_path_factory.mktemp("reports") / "my store"))


def test_a_page_is_written_whole_and_nothing_beside_it(
    run: Run, target: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    told = run("report", target, "--html", out, "--lang", "zh")
    assert (told.code, told.out, told.err) == (0, "", f"written: {out}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "首先关注" in text
    assert text.rstrip().endswith("</html>")


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_named(run: Run, target: Path, tmp_path: Path) -> None:
    told = run("report", target, "--html", tmp_path / "no" / "r.html")
    assert told.code == 3
    assert "r.html: cannot be written (No such file or directory)" in told.err


@pytest.mark.slow
def test_markdown_goes_to_stdout_or_a_file(run: Run, target: Path, tmp_path: Path) -> None:
    shown = run("report", target, "--markdown").out
    assert shown.startswith("# ")
    out = tmp_path / "report.md"
    run("report", target, "--markdown", "-o", out)
    assert out.read_text() == shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--lang", "fr"), "--lang fr: choose one of en, zh"),
        (("--markdown", "--json"), "one of --html, --markdown, --json"),
        (("-o", "x.html"), "-o goes with --markdown"),
        (("--lang", "zh"), "--lang goes with --html or --markdown"),
    ],
)
def test_what_does_not_fit_together(
    run: Run, target: Path, arguments: tuple[str, ...], says: str
) -> None:
    told = run("report", target, *arguments)
    assert told.code == 2 and says in told.err


def test_findings_with_their_evidence(run: Run, target: Path) -> None:
    told = run("findings", target, "--json").json()
    assert told["metric"] == "findings"
    first = told["rows"][0]
    assert first["at_stake_ns"] > 0
    assert first["evidence"]
    assert f"'{target}'" in first["command"]
    shown = run("findings", target).out
    assert first["statement"].split()[0] in shown
    for word in ("gain", "sure", "try", "more", first["certainty"]):
        assert word in shown


def test_the_report_opens_with_findings(run: Run, target: Path) -> None:
    shown = run("report", target).out
    assert shown.index("What to look at first") < shown.index("Where each step goes")
    [capture] = run("report", target, "--json").rows
    gains = [one["predicted_gain_ns"] for one in capture["findings"]]
    known = [gain for gain in gains if gain is not None]
    assert known and gains[: len(known)] == sorted(known, reverse=True)
