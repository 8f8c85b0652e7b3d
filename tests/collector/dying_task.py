"""A task that kills its process. Alone in its module: what runs it has nothing else to import."""

from __future__ import annotations

import os
import signal
import time


def die(task: int) -> int:
    """Ten times the task; 2 is the one that kills."""
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.2)
    return task * 10
