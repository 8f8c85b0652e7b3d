"""What the platform says of itself: whether the store can be read, and how watching it goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import npuscope
from npuscope.collector.watch.watch_state import WatchState, read_watch_state

from .budget import Kept
from .newest_results import Standing


@dataclass(frozen=True, slots=True)
class Own:
    """A metric without `run`: a gauge, or a counter whose name ends in _total; rows of label
    values and value."""

    name: str
    meaning: str
    kind: Literal["gauge", "counter"]
    rows: tuple[tuple[tuple[str, ...], float], ...]
    labels: tuple[str, ...] = ()


def exporter_metrics(standing: Standing, kept: Kept) -> Iterator[Own]:
    """How the exporter does."""
    if standing.is_good is not None:
        meaning = "Whether the last read of the store succeeded."
        yield _one("npuscope_up", meaning, standing.is_good)
    yield Own(
        "npuscope_exporter_info", "Version of the exporter.", "gauge",
        (((npuscope.__version__,), 1.0),), ("version",),
    )  # fmt: skip
    yield _one(
        "npuscope_exporter_series",
        "Exported series of runs.",
        sum(map(len, kept.samples.values())),
    )
    yield _one(
        "npuscope_exporter_dropped_series",
        "Series dropped because of --max-series.",
        sum(kept.dropped.values()),
    )
    yield _one(
        "npuscope_exporter_refresh_seconds",
        "Duration of the last collection of samples.",
        standing.snapshot.took_s,
    )
    yield _counter(
        "npuscope_exporter_refreshes_total",
        "Collections of samples.",
        standing.refreshes_total,
    )
    yield _counter(
        "npuscope_exporter_errors_total",
        "Failed collections of samples.",
        standing.errors_total,
    )


def watch_metrics(store: Path) -> Iterator[Own]:
    """How `npuscope watch` does, by what it left in the store; nothing where nobody watched it."""
    state = read_watch_state(store)
    if state is None:
        return
    yield from _counters(state)
    yield _one("npuscope_watch_running", "Whether the watcher is running.", state.is_running)
    yield _one(
        "npuscope_watch_quarantined_captures",
        "Profiles in quarantine because they cannot be read.",
        len(state.quarantined),
    )
    yield _one(
        "npuscope_watch_waiting_captures",
        "Profiles found and not ingested yet.",
        len(state.waiting),
    )
    yield _one("npuscope_watch_disk_full", "Whether the store's disk is full.", state.is_disk_full)
    if state.last_poll_ns is not None:
        yield _one(
            "npuscope_watch_last_poll_timestamp_seconds",
            "Unix time of the watcher's last poll.",
            state.last_poll_ns / 1e9,
        )


def _counters(state: WatchState) -> Iterator[Own]:
    for name, meaning, value in (
        ("captures_ingested", "Captures that the watcher began to ingest.",
            state.captures_ingested_total),
        ("ranks_ingested", "Ranks that the watcher ingested.", state.ranks_ingested_total),
        ("read_bytes", "Bytes of the files that the watcher read.", state.read_bytes_total),
        ("captures_dropped", "Captures dropped by the retention limit.",
            state.captures_dropped_total),
        ("errors", "Ranks that could not be read, and polls that failed.", state.errors_total),
        ("polls", "Polls of the watcher.", state.polls_total),
    ):  # fmt: skip
        yield _counter(f"npuscope_watch_{name}_total", meaning, value)


def _one(name: str, meaning: str, value: float) -> Own:
    return Own(name, meaning, "gauge", (((), float(value)),))


def _counter(name: str, meaning: str, value: float) -> Own:
    return Own(name, meaning, "counter", (((), float(value)),))
