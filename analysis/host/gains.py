"""What each cause of the host costs a step: the capture replayed without it."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import polars as pl

from npuscope.errors import CannotAnswer, UsageError
from npuscope.messages import Message

from ..memo import memoize
from ..replay.capture_what_if import gain_of
from ..replay.captures import LESS, MOST_OPERATIONS, CaptureJob, job_within_limit
from ..replay.variants.host_causes import FAR
from ..scope import ALL, JOB, Scope
from ..views import frame
from .blocking import blocking_calls, word_of
from .free_time import mean_free_time

CALLS = ("garbage_collection", "data_loading", "checkpoint", "logging", "profiler", FAR)
_FAR = "select count(*) from host_placement {where} and slow_low_ratio > 1"
_TYPES = {
    "cause": pl.String, "operator": pl.String, "change": pl.String, "gain_ns": pl.Int64,
    "gain_low_ns": pl.Int64, "gain_high_ns": pl.Int64, "step_share_ratio": pl.Float64,
    "free_ns": pl.Float64, "basis": pl.String,
}  # fmt: skip


# metric: host_gains
# Which of a step's time comes back without one of the host's causes?
#
# The mean step of the job, replayed with the change of the row (`npuscope whatif`): without calls
# of a cause, with launches on far cores as fast as on near ones, with a fifth less of the host's
# own time within steps (dispatch), with nothing between steps. Gains do not add up: what one takes
# away may have been hidden beneath another. What a wait for the device costs is told beyond what
# other calls and far cores do: a host that never waits would hide those, too. Where a capture
# cannot be replayed the gain is between none of the free time that the cause has and all of it.
#
# title: Gain by cause of the host
# meaning: What a mean step gains without each cause of the host, as a range with its basis.
# command: host --by gain
# table: host_gains
#
#   run              varchar  run of the training job
#   capture          varchar  ranks profiled at the same time
#   cause            varchar  as in free_time; far_node: threads on far cores; between_steps
#   operator         varchar  that waits for the device; NULL: of all
#   change           varchar  words of `npuscope whatif`, the last one counts; NULL: not replayed
#   gain_ns          bigint   predicted gain of a mean step; NULL: not replayed
#   gain_low_ns      bigint   low end of the range
#   gain_high_ns     bigint   high end of the range
#   step_share_ratio double   gain of the measured step; NULL: not replayed
#   free_ns          double   free time of a mean rank and step of this cause
#   basis            varchar  replay, or free time: between none and all of it
def host_gains(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric, the largest gain first. A rank or step of the scope is not heeded."""
    clause, values = scope.where(JOB)
    gains = [
        _of_capture(con, Scope(*key)).select(
            pl.lit(key[0]).alias("run"), pl.lit(key[1]).alias("capture"), pl.all()
        )
        for key in frame(
            con, f"select distinct run, capture from ranks {clause} order by all", values
        ).iter_rows()
    ]
    empty = pl.DataFrame(schema={"run": pl.String, "capture": pl.String, **_TYPES})
    return pl.concat([empty, *gains])


@memoize
def _of_capture(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    clause, values = scope.where(JOB)
    words = [
        (cause, operator, word_of(cause, operator))
        for cause, operator in blocking_calls(con, scope).select("cause", "operator").iter_rows()
    ]
    if frame(con, _FAR.format(where=clause), values).item():
        words.append((FAR, None, word_of(FAR)))
    words += [("dispatch", None, f"host:steps={LESS}")]
    words += [("between_steps", None, "between_steps=0")]
    free = mean_free_time(con, scope, by="operator")
    job = job_within_limit(con, scope)
    others = [word for cause, _, word in words if cause in CALLS]
    rows: list[tuple[object, ...]] = []
    for cause, operator, word in words:
        mine = free.filter(cause=cause)
        if operator:
            mine = mine.filter(operator=operator)
        free_ns = float(mine["free_ns"].sum())
        beside = others if cause == "synchronisation" else []
        gain = None if job is None else _gain(con, job, beside, word)
        if gain is not None:
            rows.append((cause, operator, " ".join([*beside, word]), *gain, free_ns, "replay"))
        elif free_ns:
            rows.append(
                (cause, operator, None, None, 0, round(free_ns), None, free_ns, "free time")
            )
    frame_here = pl.DataFrame(rows, schema=_TYPES, orient="row")
    return frame_here.sort(
        "gain_ns", "free_ns", "cause", "operator", descending=[True, True, False, False],
        nulls_last=True,
    )  # fmt: skip


def _gain(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, beside: Sequence[str], word: str
) -> tuple[int, int, int, float | None] | None:
    """What a change gains, its range, and its share of the step; None where the capture does not
    tell."""
    try:
        gain = gain_of(con, job, [word], beside=beside)
    except (CannotAnswer, UsageError):
        return None
    if gain.is_unknown:
        return None
    share = gain.gain_ns / gain.measured_ns if gain.measured_ns else None
    return gain.gain_ns, gain.low_ns, gain.high_ns, share


def gain_notes(rows: pl.DataFrame) -> list[str]:
    """How the gains of a capture are to be read."""
    if rows.is_empty() or (rows["basis"] == "replay").all():
        return []
    return [
        Message(
            "gains of {causes} are no more than a range, from nothing to all free time of the"
            " cause: a replay needs launches, compared ranks and at most {most} operations",
            causes=", ".join(rows.filter(basis="free time")["cause"].unique().sort()),
            most=f"{MOST_OPERATIONS:,}",
        )
    ]
