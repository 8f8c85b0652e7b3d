"""The exporter on stores that are absent, growing, half deleted; asked by many at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from npuscope.collector.store.manifest import create_store
from npuscope.collector.watch.watch_state import new_state, write_watch_state
from npuscope.dashboard.exporter.newest_results import CachedResults
from npuscope.dashboard.exporter.snapshot import Snapshot
from npuscope.errors import StoreError
from npuscope.sample_traces.generate import small
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.exporter.scraping import start, wait_for

FEW = ("ranks", "steps", "kernels", "comm_ops", "groups")


def test_one_gathers_for_all_and_the_last_good_results_stay() -> None:
    gathered, said = list[tuple[str, ...]](), list[str]()
    versions = [("a",)]
    go_on = threading.Event()

    def gather() -> Snapshot:
        gathered.append(versions[0])
        assert go_on.wait(30)
        if versions[0] == ("torn",):
            raise StoreError("a file is gone")
        return Snapshot(ingested_s={str(len(gathered)): 1.0})

    with CachedResults(
        lambda: versions[0], gather, say=said.append, patience_s=None, retry_s=0.05
    ) as results:
        found: list[list[str]] = []
        askers = [
            threading.Thread(target=lambda: found.append([*results.latest().snapshot.ingested_s]))
            for _ in range(8)
        ]
        for asker in askers:
            asker.start()
        go_on.set()
        for asker in askers:
            asker.join(30)
        assert found == [["1"]] * 8 and gathered == [("a",)]
        assert results.latest().refreshes_total == 1 and len(gathered) == 1

        versions[0] = ("torn",)
        torn = results.latest()
        assert (torn.is_good, torn.has_results, [*torn.snapshot.ingested_s]) == (False, True, ["1"])
        assert torn.errors_total == 1 and "a file is gone" in said[0]
        time.sleep(0.06)
        assert results.latest().errors_total == 2 and len(said) == 1  # told once
        versions[0] = ("b",)
        time.sleep(0.06)
        whole = results.latest()
        assert whole.is_good and [*whole.snapshot.ingested_s] == ["4"] and len(said) == 2


def test_who_is_impatient_gets_the_results_before() -> None:
    versions, go_on = [("a",)], threading.Event()

    def gather() -> Snapshot:
        if versions[0] == ("b",):
            assert go_on.wait(30)
        return Snapshot(ingested_s={str(versions[0][0]): 1.0})

    with CachedResults(lambda: versions[0], gather, say=print, patience_s=0.05) as results:
        assert [*results.latest().snapshot.ingested_s] == ["a"]
        versions[0] = ("b",)
        assert [*results.latest().snapshot.ingested_s] == ["a"]
        go_on.set()
        time.sleep(0.2)
        assert [*results.latest().snapshot.ingested_s] == ["b"]


@pytest.mark.slow
def test_stores_that_change_under_the_exporter(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client import CollectorRegistry, generate_latest

    from npuscope.dashboard.exporter.exporter import Exporter, Options

    path, said = tmp_path / "store", list[str]()
    now = time.time()

    @contextlib.contextmanager
    def exporter(options: Options) -> Iterator[CollectorRegistry]:
        with contextlib.closing(Exporter(options, said.append, patience_s=None)) as one:
            one._results._retry_s = 0.0
            registry = CollectorRegistry(auto_describe=False)
            registry.register(one)
            yield registry

    with exporter(Options(path)) as registry:

        def told() -> str:
            return generate_latest(registry).decode()

        assert "npuscope_up 0.0" in told() and "not a store" not in said[0]
        publish_job(path, small(), "c0", published_s=now, tables=FEW)
        first = told()
        assert "npuscope_up 1.0" in first and 'npuscope_capture_ranks{run="small"} 2.0' in first
        # A second capture is being ingested: one rank of it is there.
        later = dataclasses.replace(small(), start_ns=small().start_ns + 10**12)
        publish_job(path, later, "c1", published_s=now, tables=FEW, ranks=[0], is_done=False)
        assert 'capture="c0"' in told() and 'capture="c1"' not in told()
        publish_job(path, later, "c1", published_s=now, tables=FEW, ranks=[1])
        assert 'npuscope_capture_info{capture="c1",run="small"} 1.0' in told()
        # Files of it are deleted, and something changes.
        capture = path / "run=small" / "capture=c1"
        of_rank_1 = json.loads((capture / "rank=1" / "manifest.json").read_text())
        (capture / of_rank_1["batch"] / "kernels-0.parquet").unlink()
        publish_job(path, small(name="other"), "c0", published_s=now, tables=FEW)
        torn = told()
        # What is whole is shown: the capture before, and the other run.
        assert "npuscope_up 0.0" in torn and 'capture="c1"' not in torn
        assert 'npuscope_capture_info{capture="c0",run="small"} 1.0' in torn
        assert 'run="other"' in torn and "c1" in said[-1] and "--force" in said[-1]
        assert "npuscope_exporter_errors_total 0.0" not in torn
        for manifest in path.glob("run=small/capture=c1/rank=1/manifest.json"):
            manifest.unlink()
        whole = told()
        assert "npuscope_up 1.0" in whole and 'npuscope_capture_ranks{run="small"} 1.0' in whole
        assert 'run="other"' in whole
        # All of it goes.
        for marker in path.glob("npuscope-store.json"):
            marker.unlink()
        gone = told()
        assert "npuscope_up 0.0" in gone and 'run="other"' in gone
    path.joinpath("npuscope-store.json").write_text('{"layout": 2}')
    said.clear()
    with exporter(Options(path, max_series=20)) as registry:
        text = generate_latest(registry).decode()
    shown = sum(line.startswith("npuscope_") and "run=" in line for line in text.splitlines())
    assert 0 < shown <= 20 and f"npuscope_exporter_series {float(shown)}" in text
    assert "npuscope_exporter_dropped_series 0.0" not in text
    assert len(said) == 1 and "--max-series 20" in said[0]


# An exporter that has much to gather: a query that counts for hours.
GATHERS_LONG = """
import sys
import duckdb
from npuscope.cli import main
from npuscope.dashboard.exporter import exporter

def take_snapshot(*given, **options):
    print("gathering", file=sys.stderr)
    con = duckdb.connect(config={"threads": 1})
    con.execute("select sum(a.range * b.range) from range(10000000) a, range(10000000) b")

exporter.take_snapshot = take_snapshot
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_it_ends_when_told_to_though_it_gathers(
    tmp_path: Path, told: signal.Signals, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("prometheus_client")
    # The tests themselves may have been started by nohup, and what they start takes after them.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    create_store(tmp_path / "store")
    command = [sys.executable, "-c", GATHERS_LONG, "exporter", "store", "--port", "0"]
    with start(command, tmp_path) as one:
        found = wait_for(lambda: re.search(r"http://\S+", "".join(one.said)), "it listens")

        def scrape() -> None:
            with contextlib.suppress(OSError):  # nobody answers any more
                urllib.request.urlopen(found[0], timeout=60).close()

        asker = threading.Thread(target=scrape)
        asker.start()
        wait_for(lambda: "gathering\n" in one.said, "it gathers")
        one.process.send_signal(told)
        assert one.process.wait(8) == 0  # `docker stop` kills after ten seconds
        asker.join(60)
    assert one.said[-1] == "npuscope exporter: stopped\n"


def test_a_watcher_that_was_killed_does_not_run(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    from npuscope.dashboard.exporter.exporter import watch_metrics

    create_store(tmp_path)

    def is_shown(**told: Any) -> bool:
        state = msgspec.structs.replace(new_state(tmp_path, poll_s=10), **told)
        write_watch_state(tmp_path, state)
        [gauge] = [one for one in watch_metrics(tmp_path) if one.name == "npuscope_watch_running"]
        return bool(gauge.samples[0].value)

    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    long_ago_ns = time.time_ns() - 1000 * 10**9
    assert is_shown() and is_shown(last_poll_ns=time.time_ns())
    assert not is_shown(is_running=False)
    assert not is_shown(pid=gone.pid)
    assert is_shown(pid=gone.pid, space="elsewhere", last_poll_ns=time.time_ns())
    assert not is_shown(space="elsewhere", last_poll_ns=long_ago_ns)
    assert is_shown(space="elsewhere", last_poll_ns=long_ago_ns, poll_s=600)
