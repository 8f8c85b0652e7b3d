"""Which ranks counted tokens, of how many, and what the counts and the job tell of its routers."""

from __future__ import annotations

from pathlib import Path

import duckdb

from npuscope.collector.discover.expert_folders import expert_facts
from npuscope.collector.readers.metadata.profiler_metadata import TOP_K_RULE
from npuscope.collector.store.store import Reading, readings
from npuscope.errors import TraceNotFound
from npuscope.messages import Message

from ...flops.kernels.count import counted_kernels
from ...flops.model.describe import model_of
from ...flops.tokens import tokens_of_steps
from .dropped_tokens import RoutedBy, RouterTokens
from .load import ExpertTables

_COUNTS = """
    select run, capture, count(distinct counted_by), max(counted_by) + 1
    from expert_counts group by all"""


def sent_tokens(
    data: tuple[duckdb.DuckDBPyConnection, Path] | None,
    tables: ExpertTables,
    *,
    model: str | None = None,
    top_k: int | None = None,
    tokens_per_step: int | None = None,
) -> RoutedBy:
    """What routers sent in each capture, as options, a model, what the job told its profiler, and
    the files that counted tell it. `data`: a store's or an export's tables, and the place of it."""
    tokens: dict[tuple[str, str], set[int]] = {}
    if model is not None:
        named = model_of(model)
        top_k = top_k or (named.experts.top_k if named.experts else None)
        if data is not None and tokens_per_step is None:
            con = data[0]
            for run, capture, _, count, _ in tokens_of_steps(con, named, counted_kernels(con))[
                0
            ].rows():
                tokens.setdefault((run, capture), set()).add(count)
    held, worlds = _readings_by_capture(data), _worlds(tables)
    return {
        place: RouterTokens(
            tokens_per_step or _only(tokens.get(place, set())),
            top_k or _told_top_k(held.get(place, [])),
            *_ranks(held.get(place, []), world),
        )
        for place, world in worlds.items()
    }


def require_all_ranks(
    tables: ExpertTables, data: tuple[duckdb.DuckDBPyConnection, Path] | None
) -> None:
    """Raises TraceNotFound where some ranks' counts are missing: what is planned or forecast from
    the others' is of another load. `data` is as of `sent_tokens`; None: a dump."""
    held = _readings_by_capture(data)
    rows = [] if data is None else data[0].execute(_COUNTS).fetchall()
    sizes = {(run, capture): (count, size) for run, capture, count, size in rows}
    for place, world in _worlds(tables).items():
        counted, expected = tables.of_ranks
        if data is not None:
            range_here = sizes.get(place, (None, None))
            counted, expected = _ranks(held.get(place, []), world, range_here)
        if counted is not None and expected is not None and counted < expected:
            raise TraceNotFound(
                Message(
                    "{place}: tokens of {count} of {expected} ranks are here, and the missing"
                    " counts may change any plan or forecast: put the files of all ranks"
                    " (rank*.jsonl, decode_*.csv, prefill_*.csv) into one folder, or accept a"
                    " partial result with `--from-ranks-present` (`npuscope experts plan`)",
                    place=" ".join(place),
                    count=counted,
                    expected=expected,
                )
            )


def _readings_by_capture(
    data: tuple[duckdb.DuckDBPyConnection, Path] | None,
) -> dict[tuple[str, str], list[Reading]]:
    held: dict[tuple[str, str], list[Reading]] = {}
    for one in readings(*data) if data is not None else ():
        held.setdefault((one.run, one.capture), []).append(one)
    return held


def _worlds(tables: ExpertTables) -> dict[tuple[str, str], int | None]:
    """Ranks of each capture's job, as they tell; None where none does."""
    worlds = dict.fromkeys(tables.load.select("run", "capture").unique().rows())
    for run, capture, world in tables.ranks.select("run", "capture", "world_size").rows():
        if (run, capture) in worlds:
            worlds[run, capture] = max(world or 0, worlds[run, capture] or 0) or None
    return worlds


def _ranks(
    held: list[Reading], world: int | None, rows: tuple[int | None, int | None] = (None, None)
) -> tuple[int | None, int | None]:
    """Ranks of a capture that counted, and that should have, as readings, ranks and `rows` of
    counts tell; None where not told."""
    facts = [one for one in (expert_facts(read.rules) for read in held) if one is not None]
    sizes = (world, rows[1], *(one.ranks_expected for one in facts))
    count = min((one.ranks_count for one in facts), default=rows[0])
    return count, max((size for size in sizes if size is not None), default=None)


def _told_top_k(held: list[Reading]) -> int | None:
    """Experts of a token as all ranks' metadata tell it."""
    return _only({int(one.rules[TOP_K_RULE]) for one in held if TOP_K_RULE in one.rules})


def _only(numbers: set[int]) -> int | None:
    return next(iter(numbers)) if len(numbers) == 1 else None
