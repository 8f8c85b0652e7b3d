"""Reads many mutants of every kind of file, and keeps those that a reader does not stand.

    python -m tests.prove.fuzz.run [csv json sqlite] [--count N] [--first N] [--jobs N] [--again]

Seeds `first` to `first + count` of each reader. What a run has done is kept below build/fuzz, so
that an interrupted one goes on where it was, until the code changes or `--again` is given. Failing
inputs go to build/fuzz/<reader>; the exit code is 1 where there are any.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.prove.fuzz import workers
from tests.prove.fuzz.inputs import READERS, Reader
from tests.prove.fuzz.judging import put
from tests.prove.fuzz.workers import Outcome

REPOSITORY = Path(__file__).resolve().parents[3]
_OUT = REPOSITORY / "build" / "fuzz"
_TELL_S = 30.0

log = logging.getLogger("fuzz")


def fuzz(reader: Reader, seeds: range, *, jobs: int, out: Path = _OUT, again: bool = False) -> int:
    """Judge the mutants of some seeds that are not done yet; returns how many failed, ever."""
    record = _Record(out / f"{reader}.json", again=again)
    todo = [seed for seed in seeds if seed not in record.done]
    log.info("%s: seeds %d to %d, %d to do", reader, seeds.start, seeds.stop - 1, len(todo))
    told_at, count, refused = time.monotonic(), 0, 0
    try:
        for outcome in workers.outcomes(
            ((reader, seed) for seed in todo), out / f"{reader}-work", processes=jobs
        ):
            count += 1
            refused += not outcome.judged.rows
            record.done.add(outcome.seed)
            if outcome.judged.wrong:
                record.failed[str(outcome.seed)] = _keep(outcome, out)
            if time.monotonic() - told_at > _TELL_S:
                told_at = time.monotonic()
                record.write()
                log.info("%s: %d of %d", reader, count, len(todo))
    finally:
        record.write()
    log.info(
        "%s: %d judged now, %d of them without a row; %d failures",
        reader, count, refused, len(record.failed),
    )  # fmt: skip
    return len(record.failed)


def _keep(outcome: Outcome, out: Path) -> str:
    """Write the input where it can be looked at, and tell of it."""
    assert outcome.given is not None
    place = put(outcome.given, out / outcome.reader / str(outcome.seed))
    told = "; ".join(outcome.judged.wrong)
    log.error("%s %d: %s\n    %s\n    %s", outcome.reader, outcome.seed, told, place,
              "; ".join(outcome.given.done))  # fmt: skip
    return told


class _Record:
    """Seeds that were done with this code: read when made, saved by `write`."""

    def __init__(self, path: Path, *, again: bool) -> None:
        self.path, self.code = path, _code()
        self.done: set[int] = set()
        self.failed: dict[str, str] = {}
        if path.exists() and not again:
            known = json.loads(path.read_text())
            if known["code"] == self.code:
                self.done, self.failed = set(known["done"]), known["failed"]

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"code": self.code, "failed": self.failed, "done": sorted(self.done)}
        self.path.write_text(json.dumps(content))


def _code() -> str:
    """A digest of what reads and what judges."""
    state = hashlib.sha256()
    for room in ("collector", "sample_traces", "tests/prove/fuzz"):
        for path in sorted((REPOSITORY / room).rglob("*")):
            if path.suffix in (".py", ".sql"):
                state.update(path.read_bytes())
    return state.hexdigest()[:16]


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz the readers that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("readers", nargs="*", metavar="|".join(READERS))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="seeds that were done, too")
    chosen = parser.parse_args(argv)
    if unknown := set(chosen.readers) - set(READERS):
        parser.error(f"no such readers: {', '.join(sorted(unknown))}")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    seeds = range(chosen.first, chosen.first + chosen.count)
    failed = [
        fuzz(reader, seeds, jobs=chosen.jobs, again=chosen.again)
        for reader in chosen.readers or READERS
    ]
    return 1 if any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
