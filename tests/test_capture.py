"""Python's way in: each answer is that of the command, and of the catalog."""

from __future__ import annotations

import doctest
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import npuscope
from npuscope.analysis import query
from npuscope.capture import Capture
from npuscope.collector.store import store
from npuscope.errors import TraceNotFound, UsageError
from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import output_of, rows_of
from tests.conftest import REPOSITORY

WRONG: Any = "colour"
WRONG_KIND: Any = None
WRONG_NUMBER: Any = 3
Ask = Callable[[Capture], pl.DataFrame]
# Question and its command, whose rows the catalog describes (tests/cli/test_every_verb.py).
QUESTIONS: list[tuple[Ask, str]] = [
    (lambda job: job.steps(), "steps"),
    (lambda job: job.steps(rank=3, step=12), "steps --rank 3 --step 12"),
    (lambda job: job.kernels(), "kernels"),
    (lambda job: job.kernels("shape", top=2), "kernels --by shape --top 2"),
    (lambda job: job.comm(), "comm"),
    (lambda job: job.comm("op", rank=0), "comm --by op --rank 0"),
    (lambda job: job.mfu(), "mfu"),
    (lambda job: job.mfu("qwen3-8b", tokens_per_step=65536, sequence_length=4096),
     "mfu --model qwen3-8b --tokens-per-step 65536 --sequence-length 4096"),
    (lambda job: job.mfu(by="kernel", rank=0), "mfu --by kernel --rank 0"),
    (lambda job: job.mfu(by="stage"), "mfu --by stage"),
    (lambda job: job.waterfall(), "mfu --waterfall"),
    (lambda job: job.operators("cause"), "operators --by cause"),
    (lambda job: job.experts("device"), "experts --by device"),
    (lambda job: job.ranks(), "ranks"),
    (lambda job: job.memory(), "memory"),
    (lambda job: job.memory("holder", rank=0), "memory --by holder --rank 0"),
    (lambda job: job.findings(), "findings"),
    (lambda job: job.whatif("comm:ep=0.5"), "whatif comm:ep=0.5"),
    (lambda job: job.replay(), "replay"),
    (lambda job: job.critical_path(), "critical-path"),
    (lambda job: job.doctor(), "doctor"),
]  # fmt: skip
# One of each way that rows become a frame.
QUICK = ("steps", "kernels --by shape --top 2", "mfu", "experts --by device", "ranks", "findings")


@pytest.fixture(scope="module")
def job(sample_store: Path) -> Iterator[Capture]:
    with npuscope.open(sample_store) as opened:
        yield opened


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        pytest.param(ask, words, id=words, marks=[] if words in QUICK else pytest.mark.slow)
        for ask, words in QUESTIONS
    ],
)
def test_an_answer_is_that_of_the_command(
    job: Capture, sample_store: Path, ask: Ask, words: str
) -> None:
    verb, *options = words.split()
    found = ask(job)
    printed = rows_of(verb, sample_store, *options)
    assert [_plain(row) for row in query.rows(found)] == [_plain(row) for row in printed]
    assert found.height > 0


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """JSON text of lists as what it says; places that a command names are not compared."""
    told = {name: _tell(value) for name, value in row.items() if name not in ("command", "options")}
    return {name: value for name, value in told.items() if value is not None}


def _tell(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("[", "{"):
        return json.loads(value)
    return value


@pytest.mark.slow
def test_a_comparison_is_that_of_the_command(job: Capture, small_store: Path) -> None:
    with npuscope.open(small_store) as other:
        found = job.compare(other)
        measures = job.compare(other, by="measure")
        with pytest.raises(UsageError, match="part, measure, stage, rank"):
            job.compare(other, by=WRONG)
    printed = json.loads(output_of("compare", str(job.path), small_store, "--json"))
    assert query.rows(found) == printed["rows"]
    assert query.rows(measures) == printed["measures"]


def test_sql_reads_tables_and_nothing_else(job: Capture) -> None:
    found = job.sql("select count(*) as kernels, count(distinct rank) as ranks from kernels")
    assert found.rows() == [(2112, 8)]
    assert job.sql("select rank from steps order by rank limit 1").item() == 0
    assert job.sql("select 1 a, 2 a").to_dicts() == [{"a": 1, "a_1": 2}]
    for text in ("create table x as select 1", "select 1; select 2", "from '/etc/passwd'"):
        with pytest.raises(UsageError):
            job.sql(text)
    assert not job.steps().is_empty()  # a shut connection is not that of the answers


def test_a_figure_is_in_the_language_that_is_asked_for(job: Capture) -> None:
    ranks = job.figure("ranks", lang="zh")
    assert [bar.name for bar in ranks.data] == ["计算", "未掩盖通信", "空闲"]
    assert len(ranks.data[0].x) == 8
    with pytest.raises(UsageError, match="choose one of mfu, masking"):
        job.figure(WRONG)
    with pytest.raises(TraceNotFound, match="to draw load from"):
        job.figure("load")


def test_a_notebook_shows_facts_and_findings(job: Capture) -> None:
    shown = job._repr_html_()
    first = job.findings().row(0, named=True)
    assert "8 of 8 (0-7)" in shown
    assert f"{first['predicted_gain_ns'] / 1e6:.3f}" in shown
    assert "<script" not in shown
    assert "moe_8_ranks" in repr(job)


def test_what_is_not_there_is_said(tmp_path: Path, sample_store: Path) -> None:
    with pytest.raises(UsageError, match="no run nobody here: there is moe_8_ranks"):
        npuscope.open(sample_store, run="nobody")
    with pytest.raises(TraceNotFound):
        npuscope.open(tmp_path / "nothing")
    with npuscope.open(sample_store) as job:
        with pytest.raises(UsageError, match="choose one of type, name, core, shape"):
            job.kernels(WRONG)
        with pytest.raises(UsageError, match="rank:5=median"):
            job.whatif()
        for tokens in (0, -5, 10**25, WRONG):
            with pytest.raises(UsageError, match="tokens of the whole job, or auto"):
                job.mfu("qwen3-8b", tokens_per_step=tokens)
        for ask in (job.mfu, job.waterfall):
            with pytest.raises(UsageError, match="choose one of causal, full"):
                ask(attention=WRONG)


def test_arguments_that_are_none_are_told_as_such(job: Capture, sample_store: Path) -> None:
    asked: list[tuple[str, Callable[[], object]]] = [
        ("path None: give the path", lambda: npuscope.open(WRONG_KIND)),
        ("run 3: give a text", lambda: npuscope.open(sample_store, run=WRONG_NUMBER)),
        ("jobs 0: give a whole number from 1 on", lambda: npuscope.open(sample_store, jobs=0)),
        ("rank 'colour': give a whole number", lambda: job.steps(rank=WRONG)),
        ("no rank 99 here", lambda: job.kernels(rank=99)),
        ("no step 99 here: there is 12-13", lambda: job.steps(step=99)),
        ("top -1: give a whole number from 1 on", lambda: job.comm(top=-1)),
        ("sequence_length 0: give a whole", lambda: job.mfu("qwen3-8b", sequence_length=0)),
        ("by node, all ranks are compared", lambda: job.experts("node", rank=1)),
        ("compare with 'colour': give what", lambda: job.compare(WRONG)),
        ("sql None: give a SELECT", lambda: job.sql(WRONG_KIND)),
        ("change None: give a text", lambda: job.whatif(WRONG_KIND)),
    ]
    with npuscope.open(sample_store) as closed:
        pass
    asked += [("is closed: open it again", ask) for ask in (
        closed.facts, closed.steps, closed.findings, closed.__enter__,
        lambda: closed.sql("select 1"), lambda: job.compare(closed),
    )]  # fmt: skip
    for told, ask in asked:
        with pytest.raises(UsageError, match=re.escape(told)):
            ask()
    assert repr(closed).endswith(": closed>")


@pytest.mark.slow
def test_examples_of_docstrings_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = doctest.testmod(npuscope, globs={"npuscope": npuscope})
    assert (found.attempted, found.failed) == (1, 0)


@pytest.mark.slow
def test_a_script_reads_a_profile_without_a_guard(tmp_path: Path) -> None:
    """Processes that read ranks do not run the script again."""
    write_job(small(), tmp_path / "job")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "assert sys.argv[1:] == ['once'], sys.argv\n"
        "import multiprocessing, npuscope\n"
        "def height():\n"  # by a process of a pool, which may usually start none
        "    return npuscope.open('job', store='other', jobs=2).steps().height\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool: print(pool.apply(height))\n"
        "job = npuscope.open('job', store='store', jobs=2)\n"
        "print('rows', job.steps().height)\n"
    )
    done = subprocess.run(
        [sys.executable, script, "once"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rows") == 1


@pytest.mark.slow
def test_findings_where_a_rank_of_a_group_of_experts_is_missing(tmp_path: Path) -> None:
    """What the most loaded device has of the mean is unknown then."""
    sample = REPOSITORY / "sample_traces" / "moe_8_ranks"
    output_of("ingest", sample, "--store", tmp_path / "store", "--ranks", "0-2,4-7")
    with npuscope.open(tmp_path / "store") as some:
        told = some.findings().filter(finding="expert_imbalance")["statement"].item()
    assert re.search(r"costs \d+\.\d{3} ms per step \(.* of it\); most in layer \d\.$", told), told


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "select count(*) from range(100_000) a(i), range(100_000) b(i), range(1000) c(i)"
        " where (a.i + b.i) % 97 < c.i % 101",
        "select a.i from range(100_000) a(i), range(100_000) b(i)",
    ],
)
def test_ctrl_c_ends_a_query_and_nothing_else(job: Capture, query: str) -> None:
    job.sql("select 1 as a")  # its own tables are open
    kept = []  # as a prompt keeps the last one, with all that its frames have open
    for after_s in (1.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08):
        began_s = time.monotonic()
        pressed = threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt) as held:
            pressed.start()
            job.sql(query)
        kept.append(held)
        assert time.monotonic() - began_s < 10
        assert job.sql("select 1 as a").rows() == [(1,)]


@pytest.mark.slow
def test_ctrl_c_in_the_engine_is_no_error_of_the_engine(job: Capture) -> None:
    main, whole = threading.main_thread().ident, job.findings()

    def press() -> None:
        while True:
            frame = sys._current_frames()[main or 0]
            while frame.f_back and frame.f_code is not store.frame.__code__:
                frame = frame.f_back
            if frame.f_back:
                return os.kill(os.getpid(), signal.SIGINT)

    for _ in range(8):
        pressed = threading.Timer(0.1, press)
        pressed.daemon = True
        with pytest.raises(KeyboardInterrupt):
            pressed.start()
            job.findings()
    assert job.findings().equals(whole)


def test_importing_loads_nothing_heavy() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import npuscope, sys; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert not {"duckdb", "polars", "numpy", "typer", "plotly", "pyarrow"} & set(told)


def test_importing_takes_less_than_100_ms() -> None:
    code = "import time; t = time.process_time(); import npuscope; print(time.process_time() - t)"
    told = [
        float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(3)
    ]
    assert min(told) < 0.1
