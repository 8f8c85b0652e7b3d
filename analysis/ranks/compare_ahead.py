"""Comparing the ranks of one capture ahead of the first reader who asks for it."""

from __future__ import annotations

from pathlib import Path

from npuscope.analysis.summaries import summaries
from npuscope.collector.store import derived
from npuscope.collector.store.manifest import capture_manifests, rank_folder

from .derive import derive, version


def compare_capture(
    store: Path, run: str, capture: str, memory_bytes: int = derived.MEMORY_BYTES
) -> None:
    """Bring the `derived` tier of a capture up to date; nothing where it is, or where the capture
    is gone.

    Raises OSError where the store cannot be written, duckdb's errors where the computing fails.
    """
    members = capture_manifests(rank_folder(store, run, capture, 0).parent)
    if members:
        versions = {one.name: one.version for one in summaries()}
        derived.bring_up_to_date(
            store, members, version(), derive, summaries=versions, memory_bytes=memory_bytes
        )
