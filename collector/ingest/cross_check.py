"""Whether what several files say of one thing can be true together: told, never repaired.

A kernel table that ends behind a row looks whole, and so does one of another rank. But the profiler
counted the same kernels in its table of steps; text exports agree to 1 ns per row.

A step is recorded on the host, its kernels on the device. They are seconds apart at most, unless a
clock was set meanwhile.
"""

from __future__ import annotations

import duckdb

from ..model import RankSource, ReadLog
from ..staging import is_empty, scalar

# The profiler's text has tenths of a microsecond and sums of rounded rows.
_TOLERANCE_NS = 1_000
_TOLERANCE_RATIO = 1e-4

# Per step with one row in the producer's table: what it says, and the kernels' durations.
_COUNTED = """
    select step, told_ns, coalesce(sum(dur_ns), 0) as kernels_ns
    from (select step, any_value(computing_ns) as told_ns from profiler_steps
          group by step having count(*) = 1 and told_ns is not null)
    left join (select step, dur_ns from kernels where is_compute) using (step)
    where step is not null
    group by all
"""
# The same, where kernels run at once: the length of their union.
_UNITED = """
    with ordered as (
        select step, start_ns, start_ns + dur_ns as end_ns, max(start_ns + dur_ns) over (
            partition by step order by start_ns rows between unbounded preceding and 1 preceding
        ) as reached_ns
        from kernels where is_compute and dur_ns > 0
    )
    select sum(greatest(0, end_ns - greatest(start_ns, coalesce(reached_ns, start_ns))))
    from ordered where step = ?
"""


# A step on the host, and the first of its kernels on the device.
_APART = """
    select step, start_ns - window_start_ns as apart_ns
    from (select step, min(window_start_ns) as window_start_ns, max(window_end_ns) as window_end_ns
          from steps where step is not null group by step)
    join (select step, min(start_ns) as start_ns from kernels group by step) using (step)
    where not start_ns between window_start_ns - $far_ns and window_end_ns + $far_ns
    order by abs(apart_ns) desc, step
"""
_FAR_NS = 60_000_000_000


def cross_check(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """Warn where a rank's tables contradict each other; they are filled and linked."""
    if is_empty(con, "kernels"):
        return
    _compare_sums(con, source, log)
    apart = con.execute(_APART, {"far_ns": _FAR_NS}).fetchall()
    if apart:
        step, apart_ns = apart[0]
        log.warn(
            f"clocks: kernels of {len(apart)} step(s) are far from the step on the host, in step"
            f" {step} by {apart_ns / 1e9:.0f} s: a clock was adjusted during profiling, or files"
            " of several profiling runs were mixed; intervals between host and device are"
            " unreliable"
        )


def _compare_sums(con: duckdb.DuckDBPyConnection, source: RankSource, log: ReadLog) -> None:
    """The kernel table and the producer's table of steps."""
    if "kernels" not in source.files or "main_db" in source.files:
        return
    if not scalar(con, "select count(step) from kernels"):
        return
    differing: list[tuple[int, float, float]] = []
    for step, told_ns, kernels_ns in con.execute(_COUNTED).fetchall():
        if _differ(told_ns, kernels_ns):
            if kernels_ns > told_ns:
                [(kernels_ns,)] = con.execute(_UNITED, [step]).fetchall()
            if _differ(told_ns, kernels_ns):
                differing.append((step, told_ns, kernels_ns))
    if differing:
        step, told_ns, kernels_ns = max(differing, key=lambda one: abs(one[1] - one[2]))
        log.warn(
            f"the kernel table does not fit the profiler's table of steps in {len(differing)}"
            f" step(s): in step {step} kernels run for {kernels_ns / 1e6:.3f} ms, which the"
            f" profiler counted as {told_ns / 1e6:.3f} ms: rows are missing, or belong to another"
            " rank"
        )


def _differ(told_ns: float, kernels_ns: float) -> bool:
    return abs(told_ns - kernels_ns) > _TOLERANCE_NS + _TOLERANCE_RATIO * told_ns
