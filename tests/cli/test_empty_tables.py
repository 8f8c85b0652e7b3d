"""Tables without rows: no words about rows that are not there, and why there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npuscope.cli import app

HEAD = (
    "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),Block Dim,"
    "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats"
)
MATMUL = (
    '1,MatMul1,MatMulV2,AI_CORE,1700000000000000.000,10.000,0,20,"64,64;64,64",FLOAT16;FLOAT16,'
    'ND;ND,"64,64",FLOAT16,ND'
)
MATRIX = {
    "step1": {
        "p2p": {},
        "collective": {
            "hcom_allReduce__123_0_1@1": {
                "0-1": {
                    "Transport Type": "HCCS",
                    "Transit Time(ms)": 1.5,
                    "Transit Size(MB)": 10.0,
                    "Op Name": "hcom_allReduce__123_0_1",
                    "Bandwidth(GB/s)": 6.6,
                }
            }
        },
    }
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One rank with one kernel: no communication, no memory, no experts, no peak."""
    root = tmp_path_factory.mktemp("bare")
    output = root / "job" / "h_1_20240101000000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text(f"{HEAD}\n{MATMUL}\n")
    told = CliRunner().invoke(app, ["ingest", str(root / "job"), "--store", str(root / "store")])
    assert told.exit_code == 0, told.output
    return root / "store"


VERBS = [
    *(("comm", "--by", by) for by in ("kind", "type", "op", "link", "matrix", "bandwidth")),
    *(("memory", "--by", by) for by in ("component", "holder", "block", "step", "spread")),
    ("ranks",),
    ("mfu", "--waterfall"),
    ("findings",),
]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_nothing_is_said_of_rows_that_are_not_there(store: Path, verb: tuple[str, ...]) -> None:
    asked = [verb[0], str(store), *verb[1:]]
    result = CliRunner().invoke(app, [*asked, "--json"])
    answer: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == 0 and answer["rows"] == []
    printed = CliRunner().invoke(app, asked)
    assert printed.exit_code == 0
    for text in (*answer["notes"], printed.output):
        assert "verdicts" not in text and "add up" not in text and "mean rank" not in text


def test_a_matrix_or_blocks_alone_are_read(tmp_path: Path) -> None:
    matrix = tmp_path / "communication_matrix.json"
    matrix.write_text(json.dumps(MATRIX))
    blocks = tmp_path / "operator_memory.csv"
    blocks.write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us)\n"
        "aten::empty,512.0,1700000000000000.0,1700000000000100.0,100.0\n"
    )
    for file, table in ((matrix, "comm_matrix"), (blocks, "operator_memory")):
        ask = ["sql", str(file), f"select count(*) n from {table}", "--json"]
        told = CliRunner().invoke(app, [*ask, "--store", str(tmp_path / table)])
        assert told.exit_code == 0 and '"n":1' in told.stdout.replace(" ", ""), told.output
