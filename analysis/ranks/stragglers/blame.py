"""Answers about slow ranks as frames and rows, on a connection that `open_across` prepared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message, join

from ...means import job_steps, without_warm_up
from ...memo import memoize
from ...parts import exposed_parts, step_parts
from ...scope import ALL, JOB, PLACE, Scope
from ...views import frame, select
from ...wording import ms, ranks_named

VERDICT_WORDS = {
    "host": "its host launches late",
    "compute": "same kernels take longer",
    "frequency": "chip runs at a lower clock",
    "alltoall_bytes": "more tokens in its all-to-all",
    "link": "slow link",
    "unknown": "slower than its peers, cause unknown",
}
# Of several ranks, as far as it is said otherwise.
_VERDICTS_OF_SEVERAL = {
    "host": "their hosts launch late",
    "frequency": "chips run at a lower clock",
    "alltoall_bytes": "more tokens in their all-to-alls",
    "link": "slow links",
    "unknown": "slower than their peers, cause unknown",
}
_COMPLETE = "select count(*) filter (where is_complete), count(*) from arrivals {where}"
_WAITS = """
    select run, capture, step, cast(sum(wait_ns) as bigint) as wait_ns
    from last_arrivals {where} group by run, capture, step"""


@memoize
def rank_blame(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """A row per rank and step: columns of the metric `rank_blame`, evidence as JSON text."""
    return select(con, "rank_blame", scope)


# metric: ranks
# Who makes the others wait in each step, why, and for whom does it wait itself?
#
# Rows of the metric rank_blame, their evidence as a list, beside the parts of the rank's own
# exposed communication in the step (step_parts).
#
# title: Who makes the others wait
# meaning: Waiting that each rank causes in each step and why, and what its own waiting is for.
# by: run, capture, rank, step
# command: ranks
#
#   last_arrivals_count       bigint   operations at which it arrived last, by more than the clock
#     error; NULL: no operation met all its members
#   caused_wait_ns            bigint   waiting of all other ranks that goes back to this rank or to
#     slow links at its end; NULL: unknown
#   score                     double   -log10 of the smallest corrected p-value of its tests
#   verdict                   varchar  host, compute, frequency, alltoall_bytes, link or unknown;
#     NULL: no suspect
#   evidence                  json     list of {what, value, peers, unit}, of counts also `of`
#     how many
#   transfer_ns               bigint   own exposed communication that moves bytes
#   peer_wait_ns              bigint   that waits for a captured rank
#   absent_wait_ns            bigint   that waits for ranks that were not captured
#   pipeline_wait_ns          bigint   that waits for another pipeline stage
#   unknown_communication_ns  bigint   of which neither is known
def rank_answer(
    con: duckdb.DuckDBPyConnection, scope: Scope = ALL, *, top: int | None = None
) -> pl.DataFrame:
    """Rows of the metric `ranks`, evidence as JSON text; `top`: the first of `by_rank` alone."""
    rows = rank_blame(con, scope)
    if top is not None:
        best = by_rank(later_steps(con, rows)).head(top)
        rows = rows.join(best, on=["run", "capture", "rank"], how="semi")
    waits = exposed_parts(step_parts(con, scope)).drop("exposed_ns", "share_ratio")
    return rows.join(waits, on=PLACE, how="left", nulls_equal=True, maintain_order="left")


def blame_rows(rows: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON can hold them; `evidence` is a list of {what, value, peers, unit}, of
    counts also `of` how many."""
    return [{**row, "evidence": json.loads(row["evidence"])} for row in rows.to_dicts()]


# metric: rank_suspects
# Which ranks make the others wait over all steps?
#
# The metric rank_blame added up over steps without warm-up; suspects first, then the most caused
# wait. What is outside of every step is left out where a rank has steps. The exporter adds in how
# many of the newest captures without a gap a rank has a verdict (suspect_captures).
#
# title: Suspected ranks
# meaning: Ranks by the waiting they cause over all steps, suspects first.
# by: run, capture, rank
# gauge: npuscope_rank_slow_score{rank} = score: Straggler score of the rank: -log10 of its
#     smallest corrected p-value, to 99.
# gauge: npuscope_rank_caused_wait_seconds{rank} = caused_wait_per_step_ns: Waiting of all
#     other ranks caused by this rank, per step.
# gauge: npuscope_rank_suspect_info{rank, verdict} = case when verdict is not null then 1 end: Why
#     a rank is suspected: host, compute, frequency, alltoall_bytes, link or unknown.
# gauge: npuscope_rank_suspect_captures{rank} = suspect_captures: Consecutive newest captures of
#     the run in which the rank is suspected.
# figure: culprits
#
#   step_count               bigint   steps that are added up
#   last_arrivals_count      bigint   operations at which it arrived last
#   caused_wait_ns           bigint   waiting of the others that it caused
#   caused_wait_per_step_ns  double   mean of the steps of which that is known
#   share_ratio              double   of what all ranks of the capture cause; NULL where that is
#     nothing
#   score                    double   -log10 of its smallest corrected p-value
#   verdict                  varchar  why it is suspected; NULL: it is not
#   evidence                 varchar  what that rests on, as JSON
def suspects(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> pl.DataFrame:
    """Rows of the metric `rank_suspects`."""
    return by_rank(later_steps(con, rank_blame(con, scope)))


def later_steps(con: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> pl.DataFrame:
    """The rows (run, capture, rank, step) without warm-up steps; all those of ranks that have no
    other."""
    warm = job_steps(con).filter("is_warm_up").select("run", "capture", "step")
    later = rows.join(warm, on=["run", "capture", "step"], how="anti")
    alone = rows.join(later, on=["run", "capture", "rank"], how="anti")
    return pl.concat([later, alone])


def by_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of `rank_blame` added up over steps, without what is outside of them where a rank
    has any: it would count as one more."""
    place = ["run", "capture", "rank"]
    has_steps = pl.col("step").count().over(place) > 0
    within = rows.filter(pl.col("step").is_not_null() | ~has_steps)
    summed = within.group_by(place, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("step_count"),
        *(
            pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name)
            for name in ("last_arrivals_count", "caused_wait_ns")
        ),
        pl.col("caused_wait_ns").mean().alias("caused_wait_per_step_ns"),
        pl.col("score", "verdict", "evidence").first(),
    )
    total = pl.col("caused_wait_ns").sum().over("run", "capture")
    return summed.with_columns(
        pl.when(total > 0).then(pl.col("caused_wait_ns") / total).alias("share_ratio")
    ).sort(
        pl.col("verdict").is_null(), "caused_wait_ns", "rank",
        descending=[False, True, False], nulls_last=True,
    )  # fmt: skip


def suspect_reasons(ranking: pl.DataFrame, hosts: pl.DataFrame) -> str:
    """Which ranks of `by_rank` are suspected of what, as `rank 5: slow link; ...`; empty: none.
    `hosts`: rank, host_name, of the ranks whose host is known; it is named where it is suspected.
    """
    suspects = ranking.drop_nulls("verdict")
    return join(
        [
            Message("{ranks}: {why}", ranks=ranks_named(of["rank"]), why=_why(verdict, of, hosts))
            for (verdict,), of in suspects.group_by("verdict", maintain_order=True)
        ],
        "; ",
    )


def _why(verdict: str, suspects: pl.DataFrame, hosts: pl.DataFrame) -> str:
    host_names = hosts.filter(pl.col("rank").is_in(suspects["rank"].implode()))["host_name"]
    names = host_names.drop_nulls().unique().sort()
    if verdict != "host" or names.is_empty():
        several = VERDICT_WORDS | _VERDICTS_OF_SEVERAL
        return (VERDICT_WORDS if suspects.height == 1 else several)[verdict]
    return Message("launches come late on host {hosts}", hosts=join(names))


def blame_notes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """What to know beside the figures: whether arrivals could be compared at all."""
    clause, values = scope.where(JOB)
    complete, every = con.execute(_COMPLETE.format(where=clause), values).fetchall()[0]
    if not complete:
        return [
            "no operation was recorded by all of its members on comparable clocks: the"
            " last-arriving rank is unknown; verdicts use each rank's own work only"
        ]
    notes: list[str] = []
    if complete < every:
        notes.append(
            Message(
                "{count} of {every} recorded operations lack members or a sure match: their "
                "waiting is attributed to no rank",
                count=f"{every - complete:,}",
                every=f"{every:,}",
            )
        )
    return [*notes, *_unattributed_note(con, scope.all_ranks)]


def _unattributed_note(con: duckdb.DuckDBPyConnection, scope: Scope) -> Iterator[str]:
    """What of the waiting goes back to no rank, where that is most of it, and where to look."""
    clause, values = scope.where()
    waits = frame(con, _WAITS.format(where=clause), values)
    waited_ns = int(without_warm_up(con, waits)["wait_ns"].sum())
    caused_ns = without_warm_up(con, rank_blame(con, scope))["caused_wait_ns"]
    told_ns = int(caused_ns.sum())
    if not waited_ns or not caused_ns.count() or 2 * told_ns > waited_ns:
        return
    yield Message(
        "{rest} of {all} ms of waiting go back to no rank: neither what one took longer than its"
        " peers nor a slow link explains them. `npuscope comm PATH --by part` tells what waits:"
        " stages of a pipeline do by its schedule",
        rest=ms(waited_ns - told_ns),
        all=ms(waited_ns),
    )
