"""Commands say the same, letter for letter, whether they compute or the store kept the answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npuscope.analysis import memo
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import answers
from npuscope.collector.store.answers import Answers
from npuscope.sample_traces.generate import Job
from tests.cli.command import Run
from tests.conftest import REPOSITORY, WrittenJob

COMMANDS = (
    ("report", "--json"), ("findings",), ("mfu", "--waterfall"), ("comm", "--json"), ("ranks",),
    ("operators", "--by", "evidence", "--json"), ("host",),
)  # fmt: skip
JOB = Job(name="two", layers=2, dp=1, pp=2, ep=1, experts=0, steps=2, micro_batches=2, seed=4)


def answer_of(run: Run, target: Path, words: tuple[str, ...]) -> tuple[int, str, str]:
    verb, *options = words
    done = run(verb, target, *options)
    assert done.code == 0, done.err
    return done.code, done.out, done.err


def require_same(
    run: Run, target: Path, monkeypatch: pytest.MonkeyPatch, commands: tuple[tuple[str, ...], ...]
) -> list[str]:
    """What commands say, computed; asserts that they say it when it is kept, and kept it was."""
    computed = [answer_of(run, target, words) for words in commands]
    told: list[str] = []
    keep = answers.keep_answer

    def keeping(of: Answers, question: str, content: bytes) -> bool:
        told.append(question)
        return keep(of, question, content)

    with monkeypatch.context() as patched:
        patched.setattr(memo, "WORTH_S", 0.0)
        patched.setattr(answers, "keep_answer", keeping)
        assert [answer_of(run, target, words) for words in commands] == computed
        assert len(told) == len(set(told)) > 10
        told.clear()
        assert [answer_of(run, target, words) for words in commands] == computed
        assert not told
    return [out for _, out, _ in computed]


@pytest.mark.parametrize(
    "verb",
    ["steps", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("report", "findings"))],
)
def test_what_is_kept_is_told_without_heavy_imports(
    sample_store: Path, tmp_path: Path, verb: str
) -> None:
    store = shutil.copytree(sample_store, tmp_path / "store")
    command = [sys.executable, "-X", "importtime", "-m", "npuscope", verb]
    sample = str(REPOSITORY / "sample_traces" / "moe_8_ranks")
    # A store, and a profile that has not changed since it was read.
    for source in ([str(store)], [sample, "--store", str(store), "--run", "moe_8_ranks"]):
        for _ in range(2):
            done = subprocess.run([*command, *source], capture_output=True, text=True, check=True)
        loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
        assert {"polars", "duckdb"} <= loaded
        assert not loaded & {"numpy", "pyarrow", "plotly", "streamlit"}


@pytest.mark.slow
def test_the_sample_is_told_alike(
    run: Run, sample_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = shutil.ignore_patterns(answers.ANSWERS)
    target = shutil.copytree(sample_store, tmp_path / "store", ignore=without)
    require_same(run, target, monkeypatch, COMMANDS)


@pytest.mark.slow
def test_a_job_that_is_read_again_is_told_anew(
    run: Run, written_job: WrittenJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shutil.copytree(written_job(JOB, "text"), tmp_path / "source")
    last = max(one for one in source.iterdir() if one.is_dir())
    shutil.move(last, tmp_path / "aside")
    asked = (("report", "--json"), ("comm", "--json"), ("steps", "--json"))
    told = []
    for _ in range(2):
        ingest(source, tmp_path / "store", run="job", jobs=1, summarise=summarise)
        told.append(require_same(run, tmp_path / "store", monkeypatch, asked))
        if not last.exists():
            shutil.move(tmp_path / "aside", last)
    assert all(one != other for one, other in zip(*told, strict=True))
