"""Stores of many kernels, written straight as segments: for what happens after the reading.

A rank's kernels lie on two streams and overlap a little, its operations cross kernels and steps,
and all were shuffled before the store sorted them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import duckdb

from bench.inputs.new_store import in_two_processes, publish_rank, store_once
from npuscope.collector.store import store
from npuscope.collector.store.manifest import Manifest, manifests, rank_folder, write_index

STEPS = 20
START_NS = 1_736_405_443_862_052_130
KERNEL_PERIOD_NS = 20_000
_KEY = ("bench", "20250109T065043.862Z")
_MEMORY_BYTES = 2 << 30


def window_ns(kernels: int) -> int:
    """How long a rank with so many kernels runs."""
    return kernels * KERNEL_PERIOD_NS


def publish(ranks: int, kernels: int, ops: int) -> Path:
    """A store of so many ranks with so many kernels and operations each; kept for the next time."""

    def write(path: Path) -> None:
        write_rank = partial(_publish, path, kernels, ops)
        if ranks == 1:
            write_rank(0)
        else:
            in_two_processes(write_rank, range(ranks))
        write_index(rank_folder(path, *_KEY, 0).parent)

    return store_once(f"store_{ranks}x{kernels}x{ops}", write, _fill_sql(0, 1, 1))


def rank_manifest(path: Path) -> Manifest:
    """What the store knows of its first rank."""
    return manifests(path)[0]


def _publish(path: Path, kernels: int, ops: int, rank: int) -> None:
    def fill(con: duckdb.DuckDBPyConnection) -> None:
        for statement in _fill_sql(rank, kernels, ops):
            con.execute(statement)

    publish_rank(
        path, (*_KEY, rank), fill, window_ns=(START_NS, START_NS + window_ns(kernels)),
        memory_bytes=_MEMORY_BYTES, with_summaries=False,
    )  # fmt: skip


def _fill_sql(rank: int, kernels: int, ops: int) -> list[str]:
    """One row of `ranks`, the kernels, the operations."""
    op_period_ns = max(window_ns(kernels) // ops, 1)
    seed = f"{rank}"
    return [
        "insert into ranks by name select 'bench' as host_name, 'epoch' as clock,"
        f" {START_NS} as window_start_ns, {START_NS + window_ns(kernels)} as window_end_ns",
        f"""
        insert into kernels by name
        select i * {STEPS} // {kernels} as step, 0 as device_id, 2 + i % 2 as stream_id,
            i as task_id, 'aclnnKernel_' || h % 200 as name, 'Type' || h % 40 as type,
            case when h % 3 = 0 then 'AI_CORE' when h % 3 = 1 then 'MIX_AIC'
                else 'AI_VECTOR_CORE' end as core,
            true as is_compute, 'dynamic' as op_state,
            {START_NS} + i * {KERNEL_PERIOD_NS} + h % 15000 as start_ns,
            3000 + (h >> 16) % 20000 as dur_ns, 20 + h % 4 as block_count,
            '2048,' || 128 * (1 + h % 64) || ';1024,3072' as input_shapes,
            'DT_BF16;DT_BF16' as input_dtypes, 'ND;ND' as input_formats,
            cast(i + 1000 as varchar) as connection_id,
            cast((h >> 8) % 20000 as double) as aic_time_ns
        from (select i, hash(i, {seed}) as h from range({kernels}) t(i)) order by hash(h)
        """,
        f"""
        insert into comm_ops by name
        select i * {STEPS} // {ops} as step, 0 as device_id, i as op_id,
            'hcom_allToAllV__001_' || i || '_1' as name,
            case when i % 5 = 0 then 'receive' else 'allToAllV' end as op_type,
            cast(i % 4 as varchar) as group_hash,
            {START_NS} + i * {op_period_ns} + h % 15000 as start_ns,
            30000 + (h >> 16) % {2 * op_period_ns} as dur_ns, 1 << 20 as size_bytes
        from (select i, hash(i, {seed}) as h from range({ops}) t(i)) order by hash(h)
        """,
    ]


def open_store(path: Path) -> duckdb.DuckDBPyConnection:
    """The store as every analysis opens it."""
    return store.open(path)
