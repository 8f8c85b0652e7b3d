"""A trainer's log and expert loads that grow while they are watched."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.readers.train_log import train_log
from npuscope.collector.store import store
from npuscope.collector.store.compact import compact
from npuscope.collector.watch.follow_logs import Tail, former_rows, read_on
from npuscope.collector.watch.loads import load_folders, loads_of
from npuscope.collector.watch.options import Options
from npuscope.collector.watch.watch import watch
from tests.collector.watch.watched_folders import (
    generations,
    ranks_in,
    run_watch,
    write_capture,
    write_ready,
)


def line(step: int, ms: float = 1000.0) -> str:
    return (
        f" [2025-11-27 10:00:00] iteration {step:8d}/ 400 | elapsed time per iteration (ms): {ms} |"
        " global batch size: 16 | lm loss: 2.0E+00 |\n"
    )


def lines(first: int, last: int) -> str:
    return "".join(line(step) for step in range(first, last + 1))


def steps(tail: Tail) -> list[int]:
    return train_log.log_so_far(tail.rows, tail.path, former_rows(tail)).rows["step"].to_list()


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_only_what_was_added_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "train.log"
    log.write_text("starting up\n" + lines(1, 300))
    tail = Tail(log)
    read_on(tail)
    assert steps(tail) == list(range(1, 301))
    read: list[int] = []
    gather = train_log.gather

    def told(path: Path, into: train_log.LogRows, begin_bytes: int, end_bytes: int) -> None:
        read.append(end_bytes - begin_bytes)
        gather(path, into, begin_bytes, end_bytes)

    monkeypatch.setattr("npuscope.collector.watch.follow_logs.gather", told)
    read_on(tail)
    assert read == [] and tail.is_new
    add(log, line(301) + line(302)[:40])
    read_on(tail)
    assert steps(tail)[-1] == 301 and read == [len(line(301))]
    add(log, line(302)[40:])
    read_on(tail)
    assert steps(tail)[-1] == 302 and sum(read) == len(line(301) + line(302))
    whole = train_log.read_log(log)
    found = train_log.log_so_far(tail.rows, log)
    assert found.rows.equals(whole.rows) and found.facts == whole.facts


def test_a_rotated_log_loses_no_line(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(lines(1, 10))
    tail = Tail(log)
    read_on(tail)
    add(log, lines(11, 12))  # not seen before it is renamed
    log.rename(tmp_path / "train.log.1")
    log.write_text(lines(13, 14))
    read_on(tail)
    assert steps(tail) == list(range(1, 15))
    log.write_text(lines(15, 15))  # copied away and cut
    read_on(tail)
    assert steps(tail) == list(range(1, 16))


def test_a_job_that_starts_again_in_a_new_log_forgets_what_it_does_again(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(lines(1, 20))
    tail = Tail(log)
    read_on(tail)
    log.unlink()
    log.write_text(lines(11, 12))  # from the checkpoint of step 10
    read_on(tail)
    assert steps(tail) == list(range(1, 13))
    add(log, "x" * 200_000)  # no line yet, and none of a trainer
    read_on(tail)
    add(log, "\n" + lines(13, 13))
    read_on(tail)
    assert steps(tail) == list(range(1, 14))


def log_lines(path: Path) -> list[tuple[str, int]]:
    rows = store.query(path, "select capture, count(*) from train_log group by all order by all")
    return list(rows.iter_rows())


@pytest.mark.slow
def test_new_lines_appear_in_the_newest_capture(tmp_path: Path) -> None:
    root, log = tmp_path / "job", tmp_path / "train.log"
    for rank in (0, 1):
        write_capture(root / f"h_{rank}_ascend_pt", rank)
    asked = Options((root,), tmp_path / "store", 0.5, 0.05, jobs=1, train_log=log)
    with run_watch(asked) as one:
        one.wait_for(lambda: one.has_told("cannot read the log"))
        one.wait_for(lambda: len(ranks_in(asked.store)) == 2)
        log.write_text(lines(1, 5))
        one.wait_for(lambda: [n for _, n in log_lines(asked.store)] == [5])
        before = store.version(asked.store)
        compact(asked.store)
        add(log, line(6))
        one.wait_for(lambda: [n for _, n in log_lines(asked.store)] == [6])
        assert store.version(asked.store) != before
        compact(asked.store)
        assert [n for _, n in log_lines(asked.store)] == [6]
        write_capture(root / "h_0b_ascend_pt", 0, 1)
        one.wait_for(lambda: [n for _, n in log_lines(asked.store)] == [6, 6])
        add(log, line(7))
        one.wait_for(lambda: [n for _, n in log_lines(asked.store)] == [6, 7])
        log.rename(tmp_path / "train.log.1")
        log.write_text(line(8))
        one.wait_for(lambda: [n for _, n in log_lines(asked.store)] == [6, 8])
    with run_watch(asked) as again:  # which sees the second part only
        add(log, line(9))
        again.wait_for(lambda: [n for _, n in log_lines(asked.store)] == [6, 9])
    assert generations(asked.store) == 3  # nothing was read again for it
    result = ingest(root, asked.store, run="job", summarise=summarise)
    assert len(result.unchanged) == 3


@pytest.mark.slow
def test_a_log_of_many_lines_costs_little_at_each_poll(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("noise that the trainer prints, too\n" * 2_000_000 + lines(1, 20_000))
    tail = Tail(log)
    while read_on(tail):
        pass
    add(log, line(20_001))
    began = time.process_time()
    read_on(tail)
    assert steps(tail)[-1] == 20_001
    assert time.process_time() - began < 0.5  # reading all of it takes several times as long


def tokens(step: int, layer: int = 0) -> str:
    told = {"iter": step, "block": "decoder", "layer": layer, "tpe": [[1, 2, 3, 2]]}
    return json.dumps(told) + "\n"


@pytest.mark.slow
def test_expert_loads_grow_and_rotate(tmp_path: Path) -> None:
    root = tmp_path / "job"
    write_capture(root / "h_0_ascend_pt", 0)
    hook = root / "tokens_per_expert"
    hook.mkdir()
    (hook / "rank0.jsonl").write_text(tokens(1))
    asked = Options((root,), tmp_path / "store", 0.5, 0.05, jobs=1)

    def counted() -> list[tuple[int, int]]:
        question = "select step, sum(tokens)::bigint from expert_load group by step order by step"
        return list(store.query(asked.store, question).iter_rows())

    watch(replace(asked, once=True))
    assert counted() == [(1, 8)]
    with run_watch(asked) as one:
        add(hook / "rank0.jsonl", tokens(2))
        one.wait_for(lambda: counted() == [(1, 8), (2, 8)])
        (hook / "rank0.jsonl").rename(hook / "rank0.1.jsonl")
        (hook / "rank0.2.jsonl").write_text(tokens(3))
        one.wait_for(lambda: counted() == [(1, 8), (2, 8), (3, 8)])
    assert generations(asked.store) == 1
    result = ingest(root, asked.store, run="job", summarise=summarise)
    assert len(result.unchanged) == 1 and counted()[-1] == (3, 8)


@pytest.mark.slow
def test_each_job_has_the_expert_loads_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "jobs"
    for run, layer in (("a", 3), ("b", 5)):
        write_ready(write_capture(root / run / "h_0_ascend_pt", 0, mark=None), 0, run)
        hook = root / run / "hosts" / "h" / "tokens_per_expert"
        hook.mkdir(parents=True)
        (hook / "rank0.jsonl").write_text(tokens(1, layer))
    write_ready(write_capture(root / "c" / "h_0_ascend_pt", 0, mark=None), 0, "c")
    asked = Options((root,), tmp_path / "store", jobs=1, once=True)
    watch(asked)
    question = "select distinct run, layer from expert_load order by run"
    assert list(store.query(asked.store, question).iter_rows()) == [("a", 3), ("b", 5)]


def test_loads_are_of_the_newest_capture_that_they_are_nearest_to(tmp_path: Path) -> None:
    found = [tmp_path / "a" / "tokens_per_expert", tmp_path / "tokens_per_expert"]
    for folder in found:
        folder.mkdir(parents=True)
        (folder / "rank0.jsonl").write_text(tokens(1))
    newest = [("c", "0"), ("b", "0"), ("a", "0")]
    places = {key: (str(tmp_path / key[0] / "h_0_ascend_pt"),) for key in newest}
    assert load_folders((tmp_path, tmp_path / "absent"), found[:1]) == found
    assert loads_of(newest, places, found) == {newest[0]: (found[1],), newest[2]: (found[0],)}
    assert loads_of(newest[1:], {**places, newest[1]: ()}, found) == {newest[2]: (found[0],)}
