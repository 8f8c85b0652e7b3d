"""Tasks that kill their process, or never end. Alone in their module: what runs them has nothing
else to import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable


def die(task: int, advance: Callable[[int], None]) -> int:
    """Ten times the task; 2 is the one that kills, 9 the one that takes for ever."""
    if task == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600 if task == 9 else 0.2)
    advance(task)
    return task * 10
