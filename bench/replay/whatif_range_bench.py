"""Whether the range of a what-if contains the truth where kernels slow down beside transfers.

    .venv/bin/python -m bench.replay.whatif_range_bench [--full]

Pairs of generated jobs, one cause changed, both really generated, noise 2 %: kernels run 1.1 to 1.5
times as long while bytes of their rank move, by the seed. The range knows only the capture as it
was. 60 pairs with --full, else 12. Limit: 95 % of ranges contain the truth.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from bench.measure import arguments, commit, report, table, verdict
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay.capture_changes import apply_change
from npuscope.analysis.replay.capture_what_if import predicted_steps
from npuscope.analysis.replay.captures import CaptureJob, capture_job
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import ALL
from npuscope.sample_traces.generate import Job, canonical_frames
from tests.analysis.replay.contended_pairs import pair
from tests.analysis.tables import connect, put

TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "comm_tasks", "launches")
LEAST = 0.95


def capture(job: Job, word: str) -> tuple[CaptureJob, dict[str, int]]:
    """A job's graph, and the mean step with a change of it."""
    con = connect()
    put(con, canonical_frames(job, tables=TABLES))
    open_across(None, con)
    found = capture_job(con, ALL)
    row = predicted_steps(found, apply_change(con, found, [parse_change(word)])).row(-1, named=True)
    con.close()
    return found, row


def main() -> int:
    """Checks each pair, prints the table by kind of change."""
    chosen = arguments(__doc__)
    count = 60 if chosen.full else 12
    told: dict[str, list[tuple[bool, float, float, float, float]]] = defaultdict(list)
    for number in range(count):
        base, other, word = pair(number)
        job, row = capture(base, word)
        truth = float(capture(other, "kernel:*=1")[0].measured.lengths().mean())
        low, high = row["predicted_low_ns"], row["predicted_high_ns"]
        told[word].append((
            low <= truth <= high, (high - low) / truth, row["predicted_step_ns"] / truth - 1,
            row["measured_step_ns"] / truth - 1,
            (job.contention.lost_ratio or 0.0) - (1 - 1 / base.contention),
        ))  # fmt: skip
    rows = []
    for word, each in [*told.items(), ("all", [one for part in told.values() for one in part])]:
        inside, width, off, nothing, lost = np.array(each).T
        rows.append((
            word, len(each), f"{int(inside.sum())}", f"{width.mean():.2%}",
            f"{np.abs(off).mean():.2%}", f"{np.abs(off).max():.2%}",
            f"{np.abs(nothing).mean():.2%}", f"{np.abs(lost).mean():.3f}",
        ))  # fmt: skip
    share = sum(one[0] for part in told.values() for one in part) / count
    header = ("change", "pairs", "truth inside", "mean width", "mean error", "largest",
              "nothing changes", "lost time, off by")  # fmt: skip
    report(
        "What if: ranges with contention",
        f"{table(header, rows)}\n\nseeds 9001 to {9000 + count}, commit {commit()}\n\n"
        f"{share:.1%} of ranges contain the truth, {verdict(share, LEAST, at_least=True)}",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
