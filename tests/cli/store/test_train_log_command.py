"""`npuscope ingest --train-log`: from a trainer's output to the table and the doctor's overhead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run
from tests.collector.readers.expert_load.expert_dumps import line

LINE = (
    " [2025-11-27 10:00:00] iteration {step:8d}/ 40 | elapsed time per iteration (ms): {ms:.1f} |"
    " throughput per GPU (TFLOP/s/GPU): 101.5 | lm loss: 2.0E+00 |\n"
)


@pytest.mark.slow
def test_the_log_is_stored_and_used(run: Run, tmp_path: Path) -> None:
    job, log = tmp_path / "job", tmp_path / "rank7.log"
    write_job(small(), job, forms=("text",))
    log.write_text("starting up\n")
    code, _, err = run("ingest", job, "--train-log", log)
    assert code == 3 and "no logged step" in err and "give the output of the rank" in err
    code, _, err = run("ingest", job, "--train-log", tmp_path / "absent.log")
    assert code == 3 and "no training log here" in err

    slow = (12, 13)
    log.write_text(
        "".join(LINE.format(step=n, ms=1500 if n in slow else 1000) for n in range(1, 40))
        + LINE.format(step=39, ms=1250)
    )
    code, _, err = run("ingest", job, "--train-log", log)
    assert code == 0 and "2 rank(s) read, 0 unchanged" in err
    assert "a restart, or several logging ranks" in err
    query = "select count(*) n, max(tflops_per_s) most, count(distinct rank) ranks from train_log"
    code, out, _ = run("sql", job, query, "--json")
    assert code == 0 and json.loads(out)["rows"] == [{"n": 39, "most": 101.5, "ranks": 1}]
    code, out, _ = run("doctor", job, "--json")
    told = json.loads(out)
    assert {row["profiler_overhead_ratio"] for row in told["rows"]} == {0.5}
    assert not any("overhead is unknown" in note for note in told["notes"])

    # An exported file says so, too, and what the log says of the run; a redacted page no warning.
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "rank63.jsonl").write_text(line(12, 0, [9, 1, 3, 3]))
    log.write_text("global_batch_size .... 8\nseq_length .... 512\n" + log.read_text())
    told = ("--train-log", log, "--expert-load", tmp_path / "dumps")
    store, file, page = (tmp_path / name for name in ("store", "x.duckdb", "x.npuscope.html"))
    assert run("ingest", job, "--store", store, *told).code == 0
    assert run("export", "duckdb", store, "-o", file).code == 0
    assert run("bundle", store, "--redact", "-o", page).code == 0
    for words in (("mfu", "--by", "log", "--model", "qwen3-8b"), ("steps",), ("experts",)):
        of_store, of_file = (run(*words[:1], at, *words[1:], "--json") for at in (store, file))
        assert of_store.json() == of_file.json() and "a restart" in of_file.out, words
    assert "a restart" not in run("steps", page, "--json").out
    for place in (store, file, page):
        code, _, err = run("experts", "plan", place, "--devices", "2")
        assert code == 3 and "tokens of 1 of 64 ranks are here" in err, place
