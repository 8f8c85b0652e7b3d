"""How many strategies a second the search predicts, and where a published one stands.

    .venv/bin/python -m bench.analysis.strategy_search_bench

A model of 718 B on 6,144 NPUs, in CPU seconds of this process. Limit: the 10,000 a second that were
asked for; the published rate of a simulator is a million an hour, 278 a second.
"""

from __future__ import annotations

import sys
import time

import polars as pl

from bench.measure import arguments
from npuscope.analysis.flops.model.describe import model_of
from npuscope.analysis.strategy.describe import machine_of, space_of
from npuscope.analysis.strategy.search import search

ASKED_PER_S = 10_000
NPUS, SEQUENCES, TOKENS = 6144, 24_576, 8192
# Of the published work; the sequences of a step are not told.
CHOSEN = {"tp": 8, "pp": 16, "ep": 32, "vpp": 2, "micro_batch": 2}
SWITCHES = "fb_overlap=1,node_exchange=1"


def main() -> int:
    """Searches, prints the rate and the place."""
    arguments(__doc__)
    model, machine = model_of("pangu-ultra-moe-718b"), machine_of("910B3")
    began = time.process_time()
    found = search(model, machine, NPUS, space_of(f"gbs={SEQUENCES},seq={TOKENS},{SWITCHES}"))
    rate = len(found) / (time.process_time() - began)
    fitting = found.filter("fits").with_row_index("place", 1)
    print(f"{len(found)} strategies, {rate:,.0f} a second of CPU: {rate / ASKED_PER_S:.1f} x asked")
    chosen = fitting
    for name, size in CHOSEN.items():
        chosen = chosen.filter(pl.col(name) == size)
        place = f"place {chosen['place'][0]}" if len(chosen) else "does not fit"
        print(f"{name} {size}: {place} of {len(fitting)} that fit")
    return 0 if rate >= ASKED_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
