"""Commands that fill, copy and tidy stores: `ingest`, `export`, `store list|rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from npuscope.console import leave, leave_with, print_json, say, show
from npuscope.errors import UsageError
from npuscope.inputs import source_of
from npuscope.options import Folder, Jobs, Json, Memory, Out, Profile, Run, Store


def ingest(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    out: Out = None,
    run: Run = None,
    jobs: Jobs = None,
    memory: Memory = "2GB",
    force: Annotated[bool, typer.Option("--force", help="Read again what did not change.")] = False,
) -> None:
    """Read profiles into a store: parallel, resumable; unchanged ranks are not read again.

    \b
    Examples:
      npuscope ingest ./profiles --store /data/npuscope
      npuscope ingest ./profiles -o monday.duckdb
    """
    from npuscope.collector.export import export as write
    from npuscope.dashboard.opening import (
        Source,
        bring_up_to_date,
        opened,
        reading_warnings,
        summary_versions,
    )

    source = source_of(path, folder, store, run, jobs, memory, force=force)
    target, result, messages = bring_up_to_date(source)
    for message in messages:
        say(message)
    read, same = len(result.published), len(result.unchanged)
    for warning in reading_warnings(target):
        say(f"warning: {warning}")
    say(f"{target}: run {result.run}, {read} rank(s) read, {same} unchanged")
    if out:
        with opened(Source(target)) as data:
            write(data.con, "duckdb", out, summaries=summary_versions())
        say(f"written: {out}")
    leave_with(result)


def export(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="duckdb, parquet or csv")],
    path: Profile = None,
    folder: Folder = None,
    out: Out = None,
    store: Store = None,
    run: Run = None,
    jobs: Jobs = None,
    memory: Memory = "2GB",
) -> None:
    """Write everything as one DuckDB file, or as Parquet or CSV files.

    \b
    Examples:
      npuscope export duckdb ./profiles -o monday.duckdb
      npuscope export csv ./profiles -o tables/
    """
    from npuscope.collector.export import export as write
    from npuscope.dashboard.opening import opened, summary_versions

    if out is None:
        raise UsageError("where to? give -o OUT")
    with opened(source_of(path, folder, store, run, jobs, memory)) as data:
        rows = write(data.con, form, out, summaries=summary_versions())
    say(f"{out}: {len(rows)} tables, {sum(rows.values())} rows")
    leave(data)


def store_list(json: Json = False) -> None:
    """Stores of the user cache: what they were made from, their size, when they were used."""
    from npuscope.collector import cache
    from npuscope.dashboard import results

    found = cache.cached_stores()
    if json:
        print_json("stores", results.records(found), [])
    elif found:
        show(results.stores_table(found))
    else:
        say(f"no stores in {cache.cache_folder()}")


def store_rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Store or profile path.")],
) -> None:
    """Delete stores of the user cache (never profiles)."""
    from npuscope.collector import cache

    for name in names:
        removed = cache.remove(name)
        say(f"removed {removed.name} ({removed.source}, {removed.size_bytes / 1e6:.1f} MB)")
