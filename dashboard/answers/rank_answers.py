"""Ranks for the page: hosts, verdicts with their evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import msgspec
import polars as pl

from npuscope.analysis.ranks.stragglers.blame import VERDICT_WORDS
from npuscope.analysis.scope import Scope
from npuscope.analysis.views import frame, open_views
from npuscope.analysis.wording import UNKNOWN, ranks_named
from npuscope.messages import Message, StoredMessage, restore_text

from ..locale.language import Say
from ..terminal.straggler_tables import figure_text, rank_text


def hosts(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """On which host each rank runs: columns of the metric `rank_hosts`."""
    open_views(con, ["rank_hosts"])
    clause, values = scope.job.where()
    return frame(con, f"select * from rank_hosts {clause} order by run, capture, rank", values)


def stages(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """On which pipeline stage each rank is: rank, pp_rank (NULL: unknown)."""
    clause, values = scope.job.where()
    return frame(con, f"select rank, pp_rank from ranks {clause} order by all", values)


def silent(con: duckdb.DuckDBPyConnection, scope: Scope) -> pl.DataFrame:
    """Ranks of the job that no figure can show: rank, reason; in order.

    Those that groups or the size of the world name and nobody captured, and those whose capture
    holds no step.
    """
    open_views(con, ["step_summary"])
    clause, values = scope.job.where()
    world = _numbers(con, f"select max(world_size) from ranks {clause}", values)
    ranks_with_rows = _numbers(con, f"select distinct rank from ranks {clause}", values)
    active = _numbers(con, f"select distinct rank from step_summary {clause}", values)
    expected = range(max([*world, *(one + 1 for one in ranks_with_rows)], default=0))
    return pl.DataFrame(
        [
            {
                "rank": one,
                "reason": "no step was recorded" if one in ranks_with_rows else "not captured",
            }
            for one in expected
            if one not in active
        ],
        schema={"rank": pl.Int64, "reason": pl.String},
    )


def silent_words(silent: pl.DataFrame) -> Iterator[str]:
    """Of rows of `silent`, which ranks are grey in a figure, a sentence for each reason."""
    for some in silent.partition_by("reason", maintain_order=True):
        names, reason = ranks_named(some["rank"]), some["reason"][0]
        yield Message("Grey: {ranks}: {reason}", ranks=names, reason=reason)


def _numbers(con: duckdb.DuckDBPyConnection, text: str, values: Sequence[object]) -> set[int]:
    return {one for (one,) in con.execute(text, values).fetchall() if one is not None}


def is_waiting_known(rows: pl.DataFrame) -> bool:
    """Whether it is known of any rank of `by_rank` what it makes the others wait: nobody came last
    in anything where no operation could be compared."""
    return is_compared(rows) and bool((rows["last_arrivals_count"] > 0).any())


def is_compared(rows: pl.DataFrame) -> bool:
    """Whether there was anything to compare the own work of a rank of `by_rank` with."""
    return rows["caused_wait_ns"].count() > 0


def nobody(rows: pl.DataFrame) -> str:
    """That no rank of `by_rank` is suspected, as far as that is known."""
    if is_compared(rows):
        return Message("No rank is slower than its peers.")
    return Message("No rank is known to be slower than its peers.")


def with_hosts(rows: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Rows of `by_rank` with the host's name and the verdict in words, without the evidence.

    Where nobody came last in anything, no operation could be compared: who waits is not known.
    """
    is_told = pl.lit(bool((rows["last_arrivals_count"] > 0).any()))
    waits = [pl.when(is_told).then(name).alias(name)
             for name in ("caused_wait_ns", "share_ratio", "last_arrivals_count")]  # fmt: skip
    words = pl.col("verdict").replace_strict(VERDICT_WORDS, default=pl.col("verdict"))
    named = places.select("rank", pl.coalesce("host_name", "host").alias("host"))
    return rows.join(named, on="rank", how="left").select(
        "rank", "host", words.alias("verdict"), "score", *waits, "step_count"
    )  # fmt: skip


def evidence(row: dict[str, object]) -> list[dict[str, str]]:
    """What a verdict rests on: what, the rank's figure and that of its peers, as people read them.

    `row` is one of `by_rank`.
    """
    evidence_rows = json.loads(str(row["evidence"]))
    return [
        {
            "what": _what(line),
            "rank": rank_text(line),
            "peers": figure_text(line["peers"], line["unit"]),
        }
        for line in evidence_rows
    ]


def _what(line: dict[str, Any]) -> str:
    message_parts = line.get("message")
    return (
        restore_text(msgspec.convert(message_parts, StoredMessage))
        if message_parts
        else str(line["what"])
    )


def in_sentences(lines: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """Lines of `evidence` that have a figure, and what the others say."""
    bare = [line for line in lines if line["rank"] == line["peers"] == UNKNOWN]
    return [line for line in lines if line not in bare], [line["what"] for line in bare]


def in_words(lines: list[dict[str, str]], say: Say) -> pl.DataFrame:
    """Lines of `evidence` with what they say and their columns in the reader's language."""
    return pl.DataFrame(
        {
            say("what"): [say(line["what"]) for line in lines],
            say("rank"): [say(line["rank"]) for line in lines],
            say("its peers"): [line["peers"] for line in lines],
        }
    )
