"""docs/formats.md says of every format what the doctor says of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from npuscope.analysis.doctor.doctor import examine
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.collector.store.manifest import manifests
from npuscope.sample_traces.capture import captures
from npuscope.sample_traces.forms.cluster import write_cluster_output
from npuscope.sample_traces.generate import Form, Job, write_job

PAGE = Path(__file__).parents[1] / "docs" / "formats.md"
MADE = re.compile(r"(<!-- made by [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
JOB = Job(name="formats", layers=2, dp=2, pp=2, ep=2, seed=5, ranks_per_host=4)
MARKS = {"yes": "●", "partly": "◐", "no": "–"}


def _write(form: Form, folder: Path) -> Path:
    write_job(JOB, folder, forms=(form,))
    return folder


def _results(form: str, folder: Path) -> Path:
    write_cluster_output(captures(JOB), folder, "db" if form == "db" else "text")
    return folder


SOURCES: dict[str, Callable[[Path], Path]] = {
    "torch_npu, text": partial(_write, "text"),
    "torch_npu, database": partial(_write, "db"),
    "msprof, files": partial(_write, "msprof"),
    "msprof, database": partial(_write, "msprof_db"),
    "MindSpore, text": partial(_write, "ms_text"),
    "MindSpore, database": partial(_write, "ms_db"),
    "results of msprof-analyze, files": partial(_results, "text"),
    "results of msprof-analyze, database": partial(_results, "db"),
    "PyTorch on GPUs": partial(_write, "kineto"),
}
REAL = {
    "torch_npu, text, Level0 *": "alexnet_ddp_text_level0",
    "torch_npu, text, Level1 *": "alexnet_ddp_text_level1",
    "torch_npu, text, Level2 *": "qwen3_pp2_dp2_text_level2",
    "torch_npu, database, Level0 *": "alexnet_ddp_db_level0",
    "torch_npu, database, Level1 *": "alexnet_ddp_db_level1",
    "torch_npu, steps alone *": "cluster16_pp2",
    "msprof until 2023 *": "msprof_timeline_2023",
}


def _store(source: Path, into: Path) -> Path:
    assert ingest(source, into, summarise=summarise, jobs=1).publications
    return into


def _supports(into: Path) -> dict[str, str]:
    """Support by capability, of the capture that is read best."""
    with closing(store.open(into)) as con:
        report, *_ = examine(con, manifests(into))
    return {verdict.capability: verdict.support for verdict in report.verdicts}


@pytest.mark.slow
def test_the_table_says_what_the_doctor_says(
    real_stores: Callable[[str], Path], tmp_path: Path
) -> None:
    found = {
        name: _supports(_store(make(tmp_path / name / "in"), tmp_path / name / "store"))
        for name, make in SOURCES.items()
    } | {name: _supports(real_stores(folder)) for name, folder in REAL.items()}
    capabilities = list(next(iter(found.values())))
    lines = [f"| | {' | '.join(capabilities)} |", "| --- " * (len(capabilities) + 1) + "|"]
    for name, supports in found.items():
        lines.append(f"| {name} | {' | '.join(MARKS[supports[c]] for c in capabilities)} |")
    table = "\n" + "\n".join(lines) + "\n\n"

    page = PAGE.read_text()
    assert len(MADE.findall(page)) == 1
    made = MADE.sub(lambda match: match[1] + table + match[2], page)
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(made)
    assert PAGE.read_text() == made, "make it anew with UPDATE_DOCS=1"
