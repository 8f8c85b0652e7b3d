"""The tables of one rank after the other, in an engine of its own that takes little memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

from npuscope.analysis.views import open_views
from npuscope.analysis.wording import ranks_named
from npuscope.collector.staging import scalar
from npuscope.collector.store import store
from npuscope.collector.store.manifest import Manifest, is_store, manifests
from npuscope.errors import UsageError
from npuscope.profile import OpenTables, summary_versions

from .choice import AFTER_NS, ALL_STEPS, BEFORE_NS, Choice, Place, RankChoice, choose
from .instants import ms_after_start
from .slice_rows import statements
from .trace_size import ExpectedTrace, expect
from .tracks import make_groups

# For the engine; the interpreter and what it has loaded take as much again.
_MEMORY = "160MiB"
# 11 days: so far a time is a decimal of 64 bits.
_NEAR_NS = 10**15


@dataclass(frozen=True, slots=True)
class Trace:
    """What to write: a choice of the capture whose tables `con` has. Of a store, `manifests` says
    where each rank's are; it is None for one file."""

    con: duckdb.DuckDBPyConnection
    target: Path
    choice: Choice
    selection: RankChoice
    manifests: Mapping[int, Manifest] | None


def trace_of(data: OpenTables, choice: Choice) -> Trace:
    """What a choice means in opened tables. Raises as `choose` does."""
    choice_of = choose(data.con, choice)
    stored = None
    if is_store(data.target):
        keys = {(rank.run, rank.capture, rank.rank) for rank in choice_of.places}
        every = manifests(data.target)
        stored = {m.rank: m for m in every if (m.run, m.capture, m.rank) in keys}
    return Trace(data.con, data.target, choice, choice_of, stored)


def expected_of(trace: Trace) -> ExpectedTrace:
    """How much a trace will hold. Raises UsageError where that is nothing."""
    ranks, tracks = trace.selection.places, trace.choice.tracks
    with _tables(trace, ranks) as con:
        expectation = expect(con, ranks, tracks)
        if expectation is not None:
            return expectation
        always = expect(con, [replace(r, from_ns=BEFORE_NS, to_ns=AFTER_NS) for r in ranks], tracks)
    named = ranks_named(rank.rank for rank in ranks)
    if always is None or trace.selection.start_ns is None:
        raise UsageError(
            f"nothing to show: {named} have no {', '.join(tracks)};"
            " `npuscope doctor PATH` says what was recorded"
        )
    first = ms_after_start(always.zero_ns, trace.selection.start_ns)
    last = ms_after_start(always.last_ns, trace.selection.start_ns)
    raise UsageError(
        f"no events in that range: those of {named} are from {first} to {last} ms after the"
        " capture's start"
    )


@contextlib.contextmanager
def _tables(
    trace: Trace, ranks: Sequence[Place], spill: Path | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Tables of some ranks, and no others' where they stand in a store, with an engine's limits."""
    if trace.manifests is not None:
        files = [trace.manifests[rank.rank] for rank in ranks]
        con = store.over(trace.target, files, summaries=summary_versions(), spill=spill)
    else:
        con = store.open(
            trace.target, summaries=summary_versions(), writable=Path("/dev/fd"), spill=spill
        )
    try:
        con.execute(f"set memory_limit = '{_MEMORY}'")
        con.execute("set threads = 1")
        yield con
    finally:
        con.close()


@contextlib.contextmanager
def opened_rank(
    trace: Trace, rank: Place, expected: ExpectedTrace, spill: Path
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Tables of one rank, with the macros and variables of sources.sql."""
    with _tables(trace, [rank], spill) as con:
        open_views(con, ("steps",))
        con.execute(statements("sources.sql")["macros"])
        if expected.last_ns - expected.zero_ns >= _NEAR_NS:
            con.execute("create or replace temp macro us(ns) as far_us(ns)")
        first, last = trace.choice.steps or ALL_STEPS
        for name, value in {
            "run": rank.run,
            "capture": rank.capture,
            "rank": rank.rank,
            "from_ns": rank.from_ns,
            "to_ns": rank.to_ns,
            "zero_ns": expected.zero_ns,
            "first_step": first,
            "last_step": last,
            "has_chosen_steps": trace.choice.steps is not None,
            "has_host": "host" in trace.choice.tracks,
        }.items():
            con.execute(f"set variable timeline_{name} = ?", [value])
        devices = " union ".join(
            f"select device_id from {table} where is_chosen(run, capture, rank)"
            for table in ("memory", "counters")
        )
        several = scalar(con, f"select count(device_id) > 1 from ({devices})")
        con.execute("set variable timeline_has_devices = ?", [several])
        if {"steps", "overlap"} & set(trace.choice.tracks):
            # Asked for several times: computed once, where the store does not keep it.
            con.execute("create temp table timeline_summary as from step_summary")
            con.execute("drop view if exists temp.step_summary")
            con.execute("create temp view step_summary as from timeline_summary")
        make_groups(con, rank)
        yield con
