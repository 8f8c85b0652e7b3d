"""What a reader must never do to the process it runs in, to see that it would be seen."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.prove.fuzz.inputs import Input
from tests.prove.fuzz.judging import Judged


def hangs(given: Input, folder: Path, whole: Judged) -> Judged:
    time.sleep(600)
    return whole


def spins(given: Input, folder: Path, whole: Judged) -> Judged:
    while True:
        pass


def dies(given: Input, folder: Path, whole: Judged) -> Judged:
    os.kill(os.getpid(), signal.SIGSEGV)
    return whole


def takes_memory(given: Input, folder: Path, whole: Judged) -> Judged:
    taken = bytearray(600 << 20)
    taken[:: 4 << 10] = b"x" * len(range(0, len(taken), 4 << 10))
    return whole
