"""What a reader of figures must know: what is missing, left out or taken from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message, join

from .means import forward_steps, mean_steps
from .memo import memoize
from .metric import part_sql, sql_text
from .scope import ALL, Scope
from .views import frame
from .wording import ms, numbers, percent, ranks_named

# Without all of these a rank was read lightly.
LARGE_TABLES = frozenset({"kernels", "comm_ops", "host_ops", "launches", "memory"})
_SELECTION = (
    "select run, capture, rank, left_out_tables, kept_steps from ranks"
    " where left_out_tables is not null or kept_steps is not null"
)


def notes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """Remarks on the captures of `con`, or on one, each a sentence; none where all is complete.

    They name the capture where there are several.
    """
    captures = _all(con, "from capture_facts order by run, capture")
    steps = _all(con, "from step_summary")
    outside = _all(con, "from outside_steps")
    unseen = _all(con, sql_text("unseen_steps.sql"))
    devices = _all(con, sql_text("unread_devices.sql"))
    selected = _all(con, _SELECTION)
    unfollowed = _all(con, sql_text("unfollowed_steps.sql"))
    apart = _all(con, sql_text("apart_steps.sql"))
    without_gradients = _all(con, part_sql("forward_ranks.sql"))
    forward = forward_steps(con)
    warm = _all(con, "from job_steps where is_warm_up order by run, capture, step")

    def remarks(here: Scope) -> list[str]:
        one = _of(captures, here).row(0, named=True)
        selections = _of(selected, here)
        partly = set(selections.drop_nulls("left_out_tables")["rank"])
        return [
            *_missing_ranks(one),
            *_elsewhere(one, captures, steps),
            *_selection_notes(selections, one["rank_count"]),
            *_without_figures(one["ranks"], _of(steps, here), partly),
            *_light(_of(steps, here), partly),
            *_devices(_of(devices, here)),
            *_unseen(_of(unseen, here)),
            *_uneven(
                _of(steps, here),
                _of(unseen, here),
                set(selections.drop_nulls("kept_steps")["rank"]),
            ),
            *_without_steps(_of(steps, here)),
            *_outside(_of(outside, here)),
            *_apart(_of(apart, here), _of(without_gradients, here)),
            *_own_means(con, here, _of(apart, here), _of(without_gradients, here)),
            *_forward(_of(forward, here)),
            *_warm_up(_of(warm, here)),
            *_unfollowed_notes(_of(unfollowed, here)),
        ]

    return of_each_capture(con, scope.job, remarks)


def of_each_capture(
    con: duckdb.DuckDBPyConnection, scope: Scope, sentences: Callable[[Scope], Iterable[str]]
) -> list[str]:
    """What `sentences` says of each capture of a scope; it is named where there are several."""
    captures = _of(_all(con, "from capture_facts order by run, capture"), scope.job)
    said: list[str] = []
    for run, capture in captures.select("run", "capture").rows():
        here = sentences(replace(scope, run=run, capture=capture))
        if captures.height > 1:
            of_one = "{run}, {capture}: {note}"
            here = [Message(of_one, run=run, capture=capture, note=one) for one in here]
        said += here
    return said


def no_kernels(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> str:
    """Why there are no kernels: a sentence."""
    left_out = _of(frame(con, _SELECTION), Scope(scope.run, scope.capture, scope.rank)).filter(
        pl.col("left_out_tables").list.contains("kernels")
    )
    if left_out.is_empty():
        return "no kernels were recorded here: see `npuscope steps`"
    return Message(
        "kernels of {ranks} were not selected: {command} reads them",
        ranks=ranks_named(left_out["rank"]),
        command=f"`npuscope ingest PATH --tables kernels --ranks {left_out['rank'][0]}`",
    )


def only_time_of_communication(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> str | None:
    """A sentence where steps have a time of communication and no operation is known of it: a rank
    that was read lightly, or whose operations were not recorded. None otherwise."""
    clause, values = scope.where()
    timed = f"select 1 from (select * from step_summary {clause}) where communication_ns > 0"
    entries = f"select 1 from (select * from comm_summary {clause})"
    query = f"select exists({timed}) and not exists({entries})"
    ((is_so,),) = con.execute(query, [*values, *values]).fetchall()
    if not is_so:
        return None
    return Message(
        "Only the time that communication takes of a step is known here, not which operations it"
        " was."
    )


@memoize
def _all(con: duckdb.DuckDBPyConnection, query: str) -> pl.DataFrame:
    """Of all captures, whichever is asked for."""
    return frame(con, query)


def _of(rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
    return rows.filter(**scope.values())


def _missing_ranks(facts: dict[str, Any]) -> Iterable[str]:
    if facts["missing_ranks"]:
        yield Message(
            "{ranks} of {all} missing: figures across ranks cover the others only.",
            ranks=ranks_named(facts["missing_ranks"]),
            all=facts["world_size"],
        )


def _elsewhere(facts: dict[str, Any], captures: pl.DataFrame, steps: pl.DataFrame) -> Iterable[str]:
    """Which other captures look like the missing ranks of this one: windows alone tell captures."""
    if not facts["missing_ranks"]:
        return
    missing, own = {*facts["missing_ranks"]}, _step_numbers(steps, facts)
    others = captures.filter(pl.col("run") == facts["run"]).select("run", "capture", "ranks")
    for other in others.iter_rows(named=True):
        if missing.issuperset(other["ranks"]) and own.equals(_step_numbers(steps, other)):
            yield Message(
                "{ranks} of the same steps stand in capture {capture}, of another time. If they ran"
                " together, the clocks of their hosts differ by more than the recording lasts, and"
                " nothing is compared across them: set the clocks, and record again.",
                ranks=ranks_named(other["ranks"]),
                capture=other["capture"],
            )
            return


def _step_numbers(steps: pl.DataFrame, facts: dict[str, Any]) -> pl.Series:
    return _of(steps, Scope(facts["run"], facts["capture"]))["step"].unique().sort()


def _selection_notes(selections: pl.DataFrame, rank_count: int) -> Iterable[str]:
    """Which ranks were read in part, by what was left out, and how to read the rest."""
    by_tables: dict[str, list[int]] = {}
    for one in selections.drop_nulls("left_out_tables").sort("rank").to_dicts():
        tables = one["left_out_tables"]
        key = "" if LARGE_TABLES <= set(tables) else ", ".join(tables)
        by_tables.setdefault(key, []).append(one["rank"])
    for names, ranks in by_tables.items():
        what = Message("{tables} were not selected", tables=names)
        if not names:
            full_count = rank_count - len(ranks)
            what = Message(
                "read lightly, from small files ({full} of {all} ranks in full)",
                full=full_count,
                all=rank_count,
            )
        yield Message(
            "{ranks}: {what}. Figures that need more are unknown, or the profiler's own; to read"
            " it: {command}, or without --ranks for all ranks.",
            ranks=ranks_named(ranks),
            what=what,
            command=f"`npuscope ingest PATH --ranks {ranks[0]}`",
        )
    with_steps = selections.drop_nulls("kept_steps")
    if not with_steps.is_empty():
        steps = with_steps.explode("kept_steps").drop_nulls("kept_steps")["kept_steps"]
        yield Message(
            "{ranks}: only steps {steps} were selected; everything outside them is unknown. To read"
            " it: {command}.",
            ranks=ranks_named(with_steps["rank"]),
            steps=numbers(steps) or "(none)",
            command="`npuscope ingest PATH`",
        )


def _without_figures(ranks: list[int], steps: pl.DataFrame, partly: set[int]) -> Iterable[str]:
    silent = sorted(set(ranks) - set(steps["rank"]))
    if silent:
        yield Message(
            "{ranks}: no step has events or a row in the profiler's table: no figures.",
            ranks=ranks_named(silent),
        )
    blind = steps.filter((pl.col("basis") == "events") & pl.col("computing_ns").is_null())
    blind = blind.filter(~pl.col("rank").is_in(sorted(partly)))
    if not blind.is_empty():
        yield Message(
            "{ranks}: operations but no compute kernel was recorded, so computing, overlap "
            "and free time are unknown.",
            ranks=ranks_named(blind["rank"]),
        )


def _light(steps: pl.DataFrame, partly: set[int]) -> Iterable[str]:
    light = steps.filter(pl.col("basis") == "profiler_table")
    note = Message("figures come from the profiler's own table (basis profiler_table).")
    for ranks, reason in (
        (sorted(set(light["rank"]) - partly), Message("no compute kernels")),
        (sorted(set(light["rank"]) & partly), ""),
    ):
        if ranks:
            why = join((reason, note), "; ")
            yield Message("{ranks}: {why}", ranks=ranks_named(ranks), why=why)


def _apart(apart: pl.DataFrame, without_gradients: pl.DataFrame) -> Iterable[str]:
    """Which ranks are of another program: by lengths of steps, else as they alone run no
    gradients."""
    for one in without_gradients.to_dicts() if apart.is_empty() else ():
        yield Message(
            "{ranks}: no step has gradients, those of {others} have: another program, as an engine"
            " that generates for a training. Who is slow is judged in each by itself; means,"
            " masking and MFU mix them: `npuscope ingest PATH --ranks LIST` reads one alone.",
            ranks=ranks_named(one["ranks"]),
            others=ranks_named(one["others"]),
        )
    for one in apart.to_dicts():
        yield Message(
            "{ranks} and {others} do not step together: the same steps last {longer} ms on the"
            " first and {shorter} ms on the others. Who is slow is judged in each program by"
            " itself; means and masking mix them: `npuscope ingest PATH --ranks LIST` reads one"
            " alone.",
            ranks=ranks_named(one["ranks"]),
            others=ranks_named(one["others"]),
            longer=f"{one['step_ns'] / 1e6:,.1f}",
            shorter=f"{one['of_others_ns'] / 1e6:,.1f}",
        )


def _own_means(
    con: duckdb.DuckDBPyConnection,
    here: Scope,
    apart: pl.DataFrame,
    without_gradients: pl.DataFrame,
) -> Iterable[str]:
    """What all means mix, of each of these programs by itself."""
    for one in (without_gradients if apart.is_empty() else apart).to_dicts():
        rows = mean_steps(con, here, by="rank")
        (masked, step_ns), (other_masked, other_ns) = (
            _mean_of_ranks(rows.filter(pl.col("rank").is_in(one[its])))
            for its in ("ranks", "others")
        )
        if masked is not None or other_masked is not None:
            yield Message(
                "{ranks}: {masked} of their communication is masked in a mean step of {step} ms;"
                " {others}: {other_masked} in one of {other_step} ms.",
                ranks=ranks_named(one["ranks"]),
                masked=percent(masked),
                step=ms(step_ns),
                others=ranks_named(one["others"]),
                other_masked=percent(other_masked),
                other_step=ms(other_ns),
            )


def _mean_of_ranks(rows: pl.DataFrame) -> tuple[float | None, float | None]:
    """Of rows of `mean_steps` by rank: communication that compute hides, and the mean step's ns."""
    count = pl.col("rank_step_count")
    hidden, whole, step = (
        (pl.col(name) * count).sum() for name in ("overlapped_ns", "communication_ns", "step_ns")
    )
    masked = rows.drop_nulls(["overlapped_ns", "communication_ns"]).select(hidden / whole)
    lengths = rows.drop_nulls("step_ns").select(step / count.sum())
    ratio, mean_ns = (one.to_series().fill_nan(None).item() for one in (masked, lengths))
    return ratio, mean_ns


def _forward(forward: pl.DataFrame) -> Iterable[str]:
    for one in forward.to_dicts():
        yield Message(
            "steps without gradients, as of an evaluation: {steps}. Means of passes of the pipeline"
            " leave them out; all other means count them like the others: `npuscope steps PATH"
            " --step {other}` looks at one of those alone.",
            steps=numbers(one["steps"]),
            other=one["others"][-1],
        )


def _warm_up(steps: pl.DataFrame) -> Iterable[str]:
    if steps.height:
        lengths, usual = (
            ", ".join(f"{ns / 1e6:,.1f}" for ns in values)
            for values in (steps["step_ns"], steps["median_ns"].unique(maintain_order=True))
        )
        one = "step {steps} is warm-up ({told} ms, later steps {usual} ms): excluded from means."
        several = (
            "steps {steps} are warm-up ({told} ms, later steps {usual} ms): excluded from means."
        )
        yield Message(
            one if steps.height == 1 else several,
            steps=numbers(steps["step"]),
            told=lengths,
            usual=usual,
        )


def _unfollowed_notes(unfollowed: pl.DataFrame) -> Iterable[str]:
    for one in unfollowed.to_dicts():
        yield Message(
            "steps without a recorded next one ({steps}) are measured to their last kernel or"
            " operation; the host took up to {longer} ms longer over them: what the device waits"
            " for before a next step is not in their length, and MFU is at most as shown.",
            steps=numbers(one["steps"]),
            longer=f"{one['longer_ns'] / 1e6:,.1f}",
        )


def _devices(devices: pl.DataFrame) -> Iterable[str]:
    for one in devices.to_dicts():
        lowest = Message(
            "device {device}, as the rank's own is unknown", device=min(one["devices"])
        )
        words = Message("the rank's own") if one["known"] else lowest
        yield Message(
            "rank {rank}: the profiler's table has devices {devices}; shown is {shown}.",
            rank=one["rank"],
            devices=numbers(one["devices"]),
            shown=words,
        )


def _unseen(unseen: pl.DataFrame) -> Iterable[str]:
    for one in unseen.group_by("step").agg("rank").sort("step").to_dicts():
        yield Message(
            "step {step}, {ranks}: recorded, but without any kernel or operation.",
            step=one["step"],
            ranks=ranks_named(one["rank"]),
        )


def _uneven(steps: pl.DataFrame, unseen: pl.DataFrame, partly: set[int]) -> Iterable[str]:
    """Which ranks lack steps of others, but for those of which steps were selected."""
    theirs = steps.filter(~pl.col("rank").is_in(sorted(partly))).select("rank", "step").unique()
    theirs = theirs.drop_nulls()
    every = theirs.select("rank").unique().join(theirs.select("step").unique(), how="cross")
    lacking = every.join(theirs, on=["rank", "step"], how="anti")
    lacking = lacking.join(unseen, on=["rank", "step"], how="anti")
    if lacking.is_empty():
        return
    note = Message(
        "{ranks}: without steps {steps}, which others recorded. Means count each recorded step of"
        " each rank once, so ranks with more steps weigh more.",
        ranks=ranks_named(lacking["rank"]),
        steps=numbers(lacking["step"]),
    )
    shared = set(theirs["step"]) - set(lacking["step"])
    hint = Message("`--step {step}` compares like with like.", step=min(shared, default=0))
    yield join((note, hint), " ") if shared else note


def _without_steps(steps: pl.DataFrame) -> Iterable[str]:
    """Which ranks have no step where others have some: theirs is one row of all they recorded."""
    without = set(steps["rank"]) - set(steps.drop_nulls("step")["rank"])
    if without and steps["step"].null_count() < steps.height:
        yield Message(
            "{ranks}: no step was recorded, only on others. Their rows are of all they recorded;"
            " means leave them out.",
            ranks=ranks_named(sorted(without)),
        )


def _outside(outside: pl.DataFrame) -> Iterable[str]:
    if not outside.is_empty():
        total = outside.sum().to_dicts()[0]
        parts = [
            Message(what, count=total[count], length=total[length])
            for count, length, what in (
                ("kernel_count", "computing_ns", "{count} compute kernels ({length} ns)"),
                ("op_count", "communication_ns", "{count} communication operations ({length} ns)"),
            )
            if outside[count].null_count() < outside.height
        ]
        yield Message(
            "{ranks}: outside all steps are {what}; they count in no step.",
            ranks=ranks_named(outside["rank"]),
            what=join(parts, " and "),
        )
