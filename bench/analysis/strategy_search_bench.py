"""How many strategies a second the search predicts, and where a published one stands.

    .venv/bin/python -m bench.analysis.strategy_search_bench

A model of 718 B on 6,144 NPUs, in CPU seconds of this process. Limit: the 10,000 a second that were
asked for; the published rate of a simulator is a million an hour, 278 a second.
"""

from __future__ import annotations

import sys
import time

import polars as pl

from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.strategy.describe import machine_of
from npuscope.analysis.strategy.search import Space, search

ASKED_PER_S = 10_000
NPUS, SEQUENCES, TOKENS = 6144, 24_576, 8192
CHOSEN = {"tp": 8, "pp": 16, "ep": 32}  # of the published work; chunks and batch are not told


def main() -> int:
    """Searches, prints the rate and the place."""
    model, machine = model_of("pangu-ultra-moe-718b"), machine_of("910B3")
    began = time.process_time()
    found = search(model, machine, NPUS, Space(TOKENS, SEQUENCES))
    rate = len(found) / (time.process_time() - began)
    fitting = found.filter("fits").with_row_index("place", 1)
    chosen = fitting.filter(*(pl.col(name) == size for name, size in CHOSEN.items()))
    print(f"{len(found)} strategies, {rate:,.0f} a second of CPU: {rate / ASKED_PER_S:.1f} x asked")
    print(f"TP8 PP16 EP32: place {chosen['place'][0]} of {len(fitting)} that fit")
    return 0 if rate >= ASKED_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
