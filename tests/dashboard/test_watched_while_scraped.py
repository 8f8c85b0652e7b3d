"""Captures that are watched as they land, under scrapers: all are shown, and memory stays."""

from __future__ import annotations

import logging
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.collector.watch.test_watch_faults import wait_for, watch_folder
from tests.collector.watch.watched_folders import ranks_in, write_capture
from tests.dashboard.exporter.scraping import export

pytestmark = pytest.mark.slow
log_of_tests = logging.getLogger(__name__)


@contextmanager
def scrapers(port: int, count: int) -> Iterator[list[float]]:
    """So many clients that ask as often as they get an answer; seconds of each answer."""
    took_s: list[float] = []
    ends = threading.Event()

    def scrape() -> None:
        while not ends.wait(0.2):
            began_s = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
                assert b"npuscope_exporter_refreshes_total" in answer.read()
            took_s.append(time.monotonic() - began_s)

    threads = [threading.Thread(target=scrape) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield took_s
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


def resting_mb(pid: int) -> float:
    """The least of four seconds: a gathering under way holds 40 to 60 MB until it ends, and one
    size alone would compare a rest with a gathering."""
    sizes = []
    for _ in range(40):
        sizes.append(resident_mb(pid))
        time.sleep(0.1)
    return min(sizes)


def _has(target: Path, count: int) -> bool:
    return len(ranks_in(target)) == count


def _shows(port: int, target: Path, count: int) -> bool:
    """Whether the exporter counts so many ranks and has the newest capture's own figures: the count
    alone comes from the watcher, while these may still be gathered."""
    newest = max(one.name.partition("=")[2] for one in target.glob("run=*/capture=*"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    is_gathered = f'npuscope_capture_info{{capture="{newest}"' in text
    return is_gathered and f"npuscope_watch_ranks_ingested_total {count}.0" in text


@pytest.mark.parametrize(("captures", "clients"), [(6, 2), (50, 8)])
def test_captures_land_under_scrapers_and_memory_stays(
    tmp_path: Path, captures: int, clients: int
) -> None:
    root, target, log = tmp_path / "job", tmp_path / "store", tmp_path / "log"
    root.mkdir()
    few = max(2, captures // 5)
    with watch_folder(root, target, log) as watcher, export(target) as one:
        with scrapers(one.port, clients) as took_s:
            sizes: list[tuple[float, float]] = []
            # The first ones land one by one: an exporter that gathered once or twice is smaller
            # than one at work, whatever it gathered.
            for until in (*range(1, few + 1), captures):
                for number in range(len(ranks_in(target)), until):
                    write_capture(root / f"h_{number}_ascend_pt", 0, number)
                wait_for(partial(_has, target, until), log)
                # What is measured has been gathered, not only published.
                wait_for(partial(_shows, one.port, target, until), log)
                if until in (few, captures):
                    sizes.append((resting_mb(watcher.pid), resting_mb(one.process.pid)))
    (watch_few, export_few), (watch_all, export_all) = sizes
    log_of_tests.info(
        "%d captures, %d scrapers: watcher %.0f -> %.0f MB, exporter %.0f -> %.0f MB, %d scrapes,"
        " slowest %.2f s", captures, clients, watch_few, watch_all, export_few, export_all,
        len(took_s), max(took_s),
    )  # fmt: skip
    assert watch_all - watch_few < 8 and export_all - export_few < 40
    assert "Traceback" not in log.read_text()
