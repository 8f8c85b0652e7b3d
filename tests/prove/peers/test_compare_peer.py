"""What `msprof-analyze compare` says of two ranks: the same totals and kernels as ours."""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest

from npuscope.analysis.compare.side import Side, measure
from npuscope.analysis.scope import ALL
from npuscope.collector.store import store
from npuscope.profile import summary_versions
from npuscope.sample_traces.job import Job, small
from tests.prove.peers.msprof_analyze import install, run_calls

pytestmark = pytest.mark.slow

_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_EXPOSED = ("transfer", "peer_wait", "absent_wait", "pipeline_wait", "unknown_communication")
_WHOLE = {"host": "free", "idle": "free"}
_TOTALS = {
    "Computing Time": "computing", "Uncovered Communication Time": "exposed", "Free Time": "free",
    "E2E Time": "all", "exp: Communication": "ep", "dp: Communication": "dp",
    "default_group: Communication": "world",
}  # fmt: skip
RANK, STEPS = 1, 3
JOBS = (
    small(steps=STEPS, noise=0.03),
    small(steps=STEPS, noise=0.03, seed=5, slow_kernel="FlashAttentionScoreGrad", crossing=False),
)
Sheet = list[dict[str, str]]


def sheets(workbook: Path) -> dict[str, Sheet]:
    """Rows of each sheet, by the letters of columns; without empty cells."""
    with zipfile.ZipFile(workbook) as parts:

        def part(name: str) -> ElementTree.Element:
            return ElementTree.fromstring(parts.read(f"xl/{name}"))

        words = ["".join(text.text or "" for text in one.iter(f"{_SHEET}t"))
                 for one in part("sharedStrings.xml")]  # fmt: skip

        def cell(one: ElementTree.Element) -> str:
            text = one.findtext(f"{_SHEET}v") or ""
            return words[int(text)] if one.get("t") == "s" else text

        names = [str(one.get("name")) for one in part("workbook.xml").iter(f"{_SHEET}sheet")]
        return {
            name: [
                {str(one.get("r")).rstrip("0123456789"): cell(one) for one in row if cell(one)}
                for row in part(f"worksheets/sheet{number}.xml").iter(f"{_SHEET}row")
            ]
            for number, name in enumerate(names, 1)
        }


@pytest.fixture(scope="module")
def theirs(
    written_job: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Sheet]:
    peer = install()
    if peer.why_not:
        reason = f"msprof-analyze could not be install: {peer.why_not}"
        assert os.environ.get("CI") != "true", reason
        pytest.skip(reason)
    folders = []
    for job in JOBS:
        (folder,) = (
            info.parent for info in written_job(job, "text").rglob(f"profiler_info_{RANK}.json")
        )
        folders.append(folder)
    out = tmp_path_factory.mktemp("compared")
    base, other = map(str, folders)
    run_calls(peer, out, [["compare", "-d", other, "-bp", base, "-o", str(out), "--force"]])
    (workbook,) = out.glob("*.xlsx")
    return sheets(workbook)


@pytest.fixture(scope="module")
def ours(stored_job: Callable[..., Path]) -> list[Side]:
    def of(job: Job) -> Side:
        with store.open(stored_job(job, "text"), summaries=summary_versions()) as con:
            return measure(con, ALL, "rank").at[RANK]

    return [of(job) for job in JOBS]


def test_totals_are_the_same(theirs: dict[str, Sheet], ours: list[Side]) -> None:
    told = {row.get("A", "").strip(): row for row in theirs["OverallMetrics"]}
    for side, column in zip(ours, "BE", strict=True):
        sums = Counter[str]()
        for part, kind, ns in side.parts.filter(pl.col("part") != "between_steps").iter_rows():
            sums["exposed" if part in _EXPOSED else _WHOLE.get(part, part)] += ns * STEPS
            if kind is not None:
                sums[kind] += ns * STEPS
        sums["all"] = sums["computing"] + sums["exposed"] + sums["free"]
        for name, key in _TOTALS.items():
            assert float(told[name][column]) * 1e6 == pytest.approx(sums[key], abs=2), name


def test_kernels_are_the_same(theirs: dict[str, Sheet], ours: list[Side]) -> None:
    for side, (total, calls) in zip(ours, (("D", "H"), ("I", "M")), strict=True):
        told = {
            (row["B"], row["C"].strip('"')): (float(row[total]), int(float(row[calls])))
            for row in theirs["KernelCompare"][2:]
            if calls in row
        }
        found = side.kernels.group_by("type", "shape").agg(pl.col("count", "total_ns").sum())
        kinds = set()
        for kind, shape, count, ns in found.iter_rows():
            kinds.add((kind, shape or "N/A"))
            total_us, called = told[(kind, shape or "N/A")]
            assert called == round(count * STEPS), kind
            assert total_us == pytest.approx(ns * STEPS / 1e3, abs=0.011), kind  # of 0.01 us
        # HCCL's operations and kernels are kernels there; here they are communication.
        rest = {kind for kind, _ in told.keys() - kinds}
        assert rest and all(re.match(r"hcom_|\w+AivKernel$", kind) for kind in rest)
