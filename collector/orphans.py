"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading


def leave_with_parent() -> None:
    """End this worker process as soon as its parent is gone.

    A killed parent cannot stop its workers; one that waits for tasks would wait for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
