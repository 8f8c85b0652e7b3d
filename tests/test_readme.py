"""The READMEs show what the commands print, and the documents' links lead somewhere.

A ```console block is a promise: each `$ npuscope ...` or `$ make demo` in it is run, beside the
committed sample, and its stdout compared line by line; a line `...` stands for any lines.
Timings, rates and paths may differ. `UPDATE_README=1 pytest tests/test_readme.py` writes the
outputs that no longer match into both READMEs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
READMES = (REPOSITORY / "README.md", REPOSITORY / "README.zh-CN.md")
COLUMNS = 100
FENCE = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
ANY_FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
PYTEST_SUMMARY = re.compile(r"^=+ (?:.*\b)?(\d+) passed\b.* in ([\d.]+)s\b.*=+$")
RATE = re.compile(r"\d+(?:\.\d+)? ?[kKMG]?i?B/s")
ELAPSED = re.compile(r"\bin \d+(?:\.\d+)? ?(?:ms|s|min)\b")


@dataclass(frozen=True)
class Shown:
    """A command of a README and the output shown below it."""

    command: str
    output: str

    @property
    def text(self) -> str:
        return f"$ {self.command}\n{self.output}"


def shown_in(readme: Path) -> list[Shown]:
    found = []
    for block in FENCE.findall(readme.read_text(encoding="utf-8")):
        for entry in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = entry.partition("\n")
            found.append(Shown(command, output))
    return found


def arguments_of(command: str) -> list[str] | None:
    """Arguments for npuscope that a command stands for; None where it stands for none."""
    words = shlex.split(command)
    if words == ["make", "demo"]:
        if not shutil.which("make"):
            pytest.skip("make is not installed")
        # As if typed in a fresh shell, also when the tests themselves run under make.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
        dry_run = ["make", "--dry-run", "--no-print-directory", "--old-file=.venv/.ready", "demo"]
        done = subprocess.run(
            dry_run,
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        words = shlex.split(done.stdout.splitlines()[-1])
        assert Path(words[0]).name == "npuscope", done.stdout
    return words[1:] if Path(words[0]).name == "npuscope" else None


def run(arguments: list[str], folder: Path) -> str:
    """Stdout of npuscope, as in a terminal of fixed width with nothing cached."""
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-m", "npuscope", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"npuscope {shlex.join(arguments)}: {done.stderr}"
    return done.stdout


def normalise(text: str, folder: Path) -> list[str]:
    """Lines without what differs from run to run."""
    for place in (str(folder), str(REPOSITORY)):
        text = text.replace(place, "PLACE")
    text = ELAPSED.sub("in TIME", RATE.sub("RATE", text))
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def matches(expected: list[str], actual: list[str]) -> bool:
    """Line by line; `...` in `expected` stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in actual)) is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder that sees the committed sample as the repository does."""
    (tmp_path / "sample_traces").symlink_to(REPOSITORY / "sample_traces")
    return tmp_path


def test_shown_output_is_what_the_commands_print(folder: Path) -> None:
    wrong = []
    for shown in shown_in(READMES[0]):
        arguments = arguments_of(shown.command)
        if arguments is None:
            continue
        actual = run(arguments, folder)
        if matches(normalise(shown.output, folder), normalise(actual, folder)):
            continue
        if os.environ.get("UPDATE_README"):
            lines = [line.rstrip() for line in actual.rstrip().splitlines()]
            _replace(shown, Shown(shown.command, "\n".join(lines) + "\n"))
        else:
            wrong.append(f"$ {shown.command}\n{actual}")
    assert not wrong, "UPDATE_README=1 rewrites these:\n" + "\n".join(wrong)


def _replace(old: Shown, new: Shown) -> None:
    for readme in READMES:
        text = readme.read_text(encoding="utf-8")
        readme.write_text(text.replace(old.text, new.text), encoding="utf-8")


def test_both_commands_are_shown_with_their_output() -> None:
    shown = {entry.command: entry.output for entry in shown_in(READMES[0])}
    assert {"make demo", "make test"} <= shown.keys()
    assert "<!--" not in "".join(shown.values()), "an output is still to be filled in"
    assert PYTEST_SUMMARY.match(shown["make test"].splitlines()[-1])


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_tests_are_as_many_as_shown(readme: Path, request: pytest.FixtureRequest) -> None:
    if request.config.option.markexpr != "not slow" or request.config.args != ["tests"]:
        pytest.skip("`make test` alone counts")
    shown = {entry.command: entry.output for entry in shown_in(readme)}
    summary = PYTEST_SUMMARY.match(shown["make test"].splitlines()[-1])
    assert summary is not None
    assert int(summary[1]) == pytest.approx(request.session.testscollected, rel=0.05)
    assert float(summary[2]) < 240, "the Makefile says 4 minutes"


def test_both_languages_show_the_same() -> None:
    english, chinese = (shown_in(readme) for readme in READMES)
    assert english == chinese
    for translated in (READMES[1], *(REPOSITORY / "docs").glob("*.zh-CN.md")):
        original = translated.with_name(translated.name.replace(".zh-CN", ""))
        told, meant = ("\n".join(prose(page)) for page in (translated, original))
        assert re.findall("^#+ ", told, re.M) == re.findall("^#+ ", meant, re.M), translated.name
        options = [set(re.findall("`(?:npuscope )?(--?[a-z-]+)", text)) for text in (told, meant)]
        assert options[0] == options[1], translated.name
        # The words of the pages (tests/dashboard/locale): step, 算子, 慢卡, shape.
        assert not re.findall(r"(?<![同异])步(?!骤)|内核|慢 rank|形状", told), translated.name


def prose(document: Path) -> Iterator[str]:
    """Lines of a document outside its fenced blocks."""
    yield from ANY_FENCE.sub("", document.read_text(encoding="utf-8")).splitlines()


def documents() -> list[Path]:
    pages = [*REPOSITORY.glob("*.md")]
    for room in ("docs", "bench", "sample_traces"):
        pages += (REPOSITORY / room).rglob("*.md")
    return sorted(pages)


@pytest.mark.parametrize("page", documents(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(page)))
    dead = [
        target
        for target in targets
        if not re.match(r"[a-z]+:|#", target)
        and not (page.parent / target.partition("#")[0]).exists()
    ]
    assert dead == []


def test_an_ellipsis_stands_for_any_lines() -> None:
    assert matches(["a", "...", "d"], ["a", "b", "c", "d"])
    assert matches(["a", "...", "d"], ["a", "d"])
    assert not matches(["a", "...", "d"], ["a", "b"])
    assert not matches(["a"], ["a", "b"])
    assert not matches(["<!-- output: x -->"], ["a"])
