"""Reports in every form, and findings, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.sample_traces.generate import small, write_job


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli_reports")
    write_job(small(steps=2), folder / "profiles", forms=("text",))
    ingest(folder / "profiles", folder / "my store", summarise=summarise, jobs=1)
    return folder / "my store"


def npuscope(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "npuscope", *map(str, arguments)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_a_page_is_written_whole_and_nothing_beside_it(target: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    told = npuscope("report", target, "--html", out, "--lang", "zh")
    assert told.stdout == ""
    # What takes long on a busy machine is named meanwhile.
    assert [line for line in told.stderr.splitlines() if not line.endswith("...")] == [
        f"written: {out}"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "首先关注" in text
    assert text.rstrip().endswith("</html>")


@pytest.mark.slow
def test_a_place_that_cannot_be_written_is_named(target: Path, tmp_path: Path) -> None:
    told = npuscope("report", target, "--html", tmp_path / "no" / "r.html", code=3)
    assert "r.html: cannot be written (No such file or directory)" in told.stderr


@pytest.mark.slow
def test_markdown_goes_to_stdout_or_a_file(target: Path, tmp_path: Path) -> None:
    shown = npuscope("report", target, "--markdown").stdout
    assert shown.startswith("# ")
    out = tmp_path / "report.md"
    npuscope("report", target, "--markdown", "-o", out)
    assert out.read_text() == shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--lang", "fr"), "--lang fr: choose one of en, zh"),
        (("--markdown", "--json"), "one of --html, --markdown, --json"),
        (("-o", "x.html"), "-o goes with --markdown"),
    ],
)
def test_what_does_not_fit_together(target: Path, arguments: tuple[str, ...], says: str) -> None:
    assert says in npuscope("report", target, *arguments, code=2).stderr


def test_findings_with_their_evidence(target: Path) -> None:
    told = json.loads(npuscope("findings", target, "--json").stdout)
    assert told["metric"] == "findings"
    first = told["rows"][0]
    assert first["at_stake_ns"] > 0
    assert first["evidence"]
    assert f"'{target}'" in first["command"]
    shown = npuscope("findings", target).stdout
    assert first["statement"].split()[0] in shown
    for word in ("sure", "try", "more", first["certainty"]):
        assert word in shown


def test_the_report_opens_with_findings(target: Path) -> None:
    shown = npuscope("report", target).stdout
    assert shown.index("What to look at first") < shown.index("Where each step goes")
    [capture] = json.loads(npuscope("report", target, "--json").stdout)["rows"]
    stakes = [one["at_stake_ns"] for one in capture["findings"] if one["at_stake_ns"]]
    assert stakes == sorted(stakes, reverse=True)
