"""The planted job in the store's own columns, for tests of analyses without any file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from operator import itemgetter

import polars as pl
import pyarrow as pa

from npuscope.collector import schema

from . import memory
from .capture import Capture, CommOp, Kernel, captures, without_collection
from .forms import metadata
from .forms.pmu import cube_utilization, pmu
from .job import (
    SAMPLED_NS,
    Group,
    Job,
    group_hash,
    layer_micro_batches,
    local_experts,
    routed_tokens,
    stage_layers,
)

_POLARS: dict[str, pl.DataType] = {
    "varchar": pl.String(),
    "bigint": pl.Int64(),
    "integer": pl.Int32(),
    "double": pl.Float64(),
    "boolean": pl.Boolean(),
    "integer[]": pl.List(pl.Int32()),
    "bigint[]": pl.List(pl.Int64()),
    "varchar[]": pl.List(pl.String()),
    "map(varchar, double)": pl.List(pl.Struct({"key": pl.String(), "value": pl.Float64()})),
}
_PAIR = {"key": pl.String(), "value": pl.Float64()}
_SYNCHRONISE = "aclrtSynchronizeStreamWithTimeout"
Row = dict[str, object]
TABLES = (
    "ranks", "groups", "steps", "kernels", "device_tasks", "comm_ops", "comm_tasks", "launches",
    "host_ops", "memory", "operator_memory", "counters", "expert_load", "expert_placement",
)  # fmt: skip


@without_collection()
def canonical_frames(
    job: Job, *, capture: str = "planted", tables: Collection[str] = TABLES, pipes: bool = True
) -> dict[str, pl.DataFrame]:
    """Frames by canonical table, all ranks, keys first: run is the job's name.

    Columns that a profile of the job would not fill are null; a table that it would not have, or
    that is not among `tables`, is left out. Without `pipes`, what single pipes of a kernel's cores
    did (`pmu`) is null, too.
    """
    rows: dict[str, list[Row]] = {}
    ranks: dict[str, list[int]] = {}
    for profiles in captures(job):
        for table, table_rows in _tables(profiles, tables, pipes=pipes).items():
            rows.setdefault(table, []).extend(table_rows)
            ranks.setdefault(table, []).extend([profiles.rank] * len(table_rows))
    return {
        table: _frame(table, {"run": job.name, "capture": capture}, ranks[table], table_rows)
        for table, table_rows in rows.items()
    }


def _frame(table: str, keys: Mapping[str, str], ranks: list[int], rows: list[Row]) -> pl.DataFrame:
    typed = [*schema.KEY_COLUMNS, *((c.name, c.type) for c in schema.tables()[table].columns)]
    types = {name: _POLARS[kind] for name, kind in typed}
    union = sorted(set[str]().union(*rows))
    assert set(union) <= types.keys(), f"{table} has no columns {set(union) - types.keys()}"
    unknown: Row = dict.fromkeys(union)
    whole = (row if len(row) == len(union) else unknown | row for row in rows)
    series = {"rank": pl.Series("rank", ranks, dtype=types["rank"])}
    columns = zip(*map(itemgetter(*union), whole), strict=True) if union else ()
    for name, values in zip(union, columns, strict=True):
        series[name] = _series(name, values, types[name])
    return pl.DataFrame(series).select(
        pl.col(name) if name in series else pl.lit(keys.get(name), dtype=kind).alias(name)
        for name, kind in types.items()
    )


def _series(name: str, values: Sequence[object], kind: pl.DataType) -> pl.Series:
    if kind != _POLARS["map(varchar, double)"]:
        return pl.Series(name, values, dtype=kind)
    # Rows of dictionaries would take polars most of the time of a whole job.
    keys, figures, ends = list[str](), list[float](), [0]
    for value in values:
        if isinstance(value, Mapping):
            keys += value.keys()
            figures += value.values()
        ends.append(len(keys))
    pairs = pl.DataFrame({"key": keys, "value": figures}, schema=_PAIR).to_struct().to_arrow()
    is_null = pa.array([value is None for value in values])
    offsets = pa.array(ends, pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, pairs, mask=is_null)
    return pl.Series(name, lists, dtype=kind)


def _tables(c: Capture, names: Collection[str], *, pipes: bool) -> dict[str, list[Row]]:
    makers: dict[str, Callable[[], list[Row]]] = {
        "ranks": lambda: [_rank(c)],
        "groups": lambda: [_group(c, group) for group in c.groups],
        "steps": lambda: [
            {name: getattr(step, name) for name in (
                "step", "window_start_ns", "window_end_ns", "device_start_ns", "device_end_ns")}
            for step in c.steps
        ],
        "kernels": lambda: _kernels(c, pipes=pipes),
        "device_tasks": lambda: [
            {"device_id": c.device_id, "stream_id": copy.stream_id, "task_id": copy.task_id,
             "type": copy.name, "start_ns": copy.start_ns, "dur_ns": copy.dur_ns,
             "connection_id": str(copy.launch.connection_id)}
            for copy in c.copies
        ],
        "comm_ops": lambda: _comm_ops(c),
        "comm_tasks": lambda: _comm_tasks(c),
        "launches": lambda: _launches(c),
        "host_ops": lambda: _host_ops(c),
        "expert_load": lambda: _expert_load(c),
        "expert_placement": lambda: _expert_placement(c.job),
    }  # fmt: skip
    tables: dict[str, list[Row]] = {name: make() for name, make in makers.items() if name in names}
    if c.job.memory and {"memory", "operator_memory"} & set(names):
        memory_rows = dict(zip(("memory", "operator_memory"), _memory(c), strict=True))
        tables |= {name: rows for name, rows in memory_rows.items() if name in names}
    if c.job.frequency and "counters" in names:
        tables["counters"] = _places(c) + [
            {"device_id": c.device_id, "name": "AI Core Freq", "series": "MHz", "timestamp_ns": t,
             "value": float(c.frequency_mhz)}
            for t in (c.session_start_ns, c.session_end_ns)
        ]  # fmt: skip
    return tables


def _places(c: Capture) -> list[Row]:
    """NUMA nodes of the device and, now and then, of the main thread, as a recorder tells them."""
    if not c.job.far_share:
        return []
    offset_ns = c.session_start_ns - c.job.start_ns
    rows: list[Row] = [
        {"name": "NUMA node", "series": "device", "timestamp_ns": c.session_start_ns, "value": 0.0}
    ]
    for at_ns in range(c.session_start_ns, c.session_end_ns, SAMPLED_NS):
        node = float(c.job.is_far(c.rank, at_ns - offset_ns))
        rows.append({"name": "NUMA node", "series": f"thread {c.main_thread}",
                      "timestamp_ns": at_ns, "value": node})  # fmt: skip
    return rows


def _rank(c: Capture) -> Row:
    job = c.job
    sizes = {"tp": job.tp, "pp": job.pp, "dp": job.dp, "cp": 1, "ep": job.ep}
    return {
        "device_id": c.device_id,
        "host_name": c.host_name,
        "host_uid": c.host_uid,
        "framework": "pytorch",
        "framework_version": metadata.FRAMEWORK_VERSION,
        "cann_version": metadata.CANN_VERSION,
        "environment": "{}",
        "chip_name": "Ascend910B",
        "ai_core_frequency_mhz": float(c.frequency_mhz) if job.frequency else None,
        "profiler_level": "Level1",
        "aic_metrics": "ACL_AICORE_PIPE_UTILIZATION",
        "clock": "epoch",
        "window_start_ns": c.session_start_ns,
        "window_end_ns": c.session_end_ns,
        "world_size": job.world_size,
        **{f"{kind}_size": size for kind, size in sizes.items()},
        **{f"{kind}_rank": place for kind, place in c.place.items()},
    }


def _group(c: Capture, group: Group) -> Row:
    return {
        "group_hash": str(group_hash(group.name)),
        "group_name": group.name,
        "group_label": group.label,
        "parallel_kind": group.kind,
        "group_rank": group.ranks.index(c.rank),
        "global_ranks": list(group.ranks),
    }


def _kernels(c: Capture, *, pipes: bool) -> list[Row]:
    rows: list[Row] = []
    frequency_mhz = c.frequency_mhz
    for kernel in c.kernels:
        work = kernel.work
        row: Row = {
            "step": kernel.step,
            "device_id": c.device_id,
            "stream_id": kernel.stream_id,
            "task_id": kernel.task_id,
            "context_id": kernel.context_id,
            "name": work.name,
            "type": work.type,
            "core": work.core,
            "is_compute": work.is_compute,
            "op_state": "dynamic",
            "start_ns": kernel.start_ns,
            "dur_ns": kernel.dur_ns,
            "wait_ns": kernel.wait_ns,
            "block_count": work.block_count,
            "mix_block_count": work.mix_block_count or None,
            "hf32_eligible": False,
            "input_shapes": work.input_shapes or None,
            "input_dtypes": work.input_dtypes,
            "input_formats": _formats(work.input_dtypes),
            "output_shapes": work.output_shapes or None,
            "output_dtypes": work.output_dtypes,
            "output_formats": _formats(work.output_dtypes),
            "connection_id": str(kernel.launch.connection_id),
        }
        metrics = pmu(work, kernel.dur_ns, frequency_mhz, pipes=pipes)
        if not work.is_compute:
            row |= {n: None for n in row if n.startswith(("input_", "output_"))}
        if metrics is not None:
            percent = cube_utilization(metrics, kernel.dur_ns, frequency_mhz)
            row["cube_utilization_ratio"] = percent / 100
            row["aic_time_ns"] = float(metrics.pop("aic_total_time"))
            row["aic_cycles"] = float(metrics.pop("aic_total_cycles"))
            row["aiv_time_ns"] = float(metrics.pop("aiv_total_time"))
            row["aiv_cycles"] = float(metrics.pop("aiv_total_cycles"))
            row["pmu"] = metrics if pipes else None
        rows.append(row)
    return rows


@cache
def _formats(dtypes: str) -> str:
    return ";".join(["ND"] * (dtypes.count(";") + 1))


def _launches(c: Capture) -> list[Row]:
    items: list[Kernel | CommOp] = [*c.kernels, *c.comm_ops]
    items.sort(key=lambda item: item.launch.times.dequeue_ns)
    return [
        {
            "connection_id": str(item.launch.connection_id),
            "api_name": item.launch.api,
            "api_thread_id": c.queue_thread,
            "api_start_ns": item.launch.times.api_start_ns,
            "api_end_ns": item.launch.times.api_end_ns,
            "operator_name": item.launch.operator,
            "operator_thread_id": c.backward_thread if item.launch.backward else c.main_thread,
            "operator_start_ns": item.launch.times.operator_start_ns,
            "target": "communication" if isinstance(item, CommOp) else "kernel",
            "target_name": item.name if isinstance(item, CommOp) else item.work.name,
            "device_id": c.device_id,
            "stream_id": item.stream_id,
            "device_start_ns": item.start_ns,
            "latency_ns": item.start_ns - item.launch.times.api_start_ns,
        }
        for item in items
    ]


def _host_ops(c: Capture) -> list[Row]:
    """The framework's operators that launch something, what else keeps the host from launching, and
    of the device's interface the calls that wait."""
    rows: list[Row] = [
        {
            "kind": "operator",
            "name": launch.operator,
            "process_id": c.process_id,
            "thread_id": c.backward_thread if launch.backward else c.main_thread,
            "start_ns": launch.times.operator_start_ns,
            "dur_ns": launch.times.operator_end_ns - launch.times.operator_start_ns,
            "sequence_number": launch.sequence if launch.sequence >= 0 else None,
            "forward_thread_id": c.main_thread
            if launch.backward and launch.sequence >= 0
            else None,
        }
        for launch in c.launches()
    ]
    called: list[tuple[str, str | None, str, int, int]] = [
        (one.kind, None, one.name, one.start_ns, one.end_ns) for one in c.host_calls
    ]
    called += [("api", "acl", _SYNCHRONISE, start_ns, end_ns) for start_ns, end_ns, _ in c.waits]
    return rows + [
        {"kind": kind, "level": level, "name": name, "process_id": c.process_id,
         "thread_id": c.main_thread, "start_ns": start_ns, "dur_ns": end_ns - start_ns}
        for kind, level, name, start_ns, end_ns in called
    ]  # fmt: skip


def _comm_ops(c: Capture) -> list[Row]:
    return [
        {
            "step": op.step,
            "device_id": c.device_id,
            "stream_id": op.stream_id,
            "op_id": op.op_id,
            "name": op.name,
            "op_type": op.op_type,
            "group_hash": str(group_hash(op.group.name)),
            "start_ns": op.start_ns,
            "dur_ns": op.dur_ns,
            "algorithm": op.algorithm,
            "data_type": op.data_type,
            "element_count": op.element_count,
            "size_bytes": op.size_bytes,
            "relay": False,
            "retry": False,
            "group_size": len(op.group.ranks),
            "peer_ranks": _peers(c, op),
            "connection_id": str(op.launch.connection_id),
        }
        for op in c.comm_ops
    ]


def _peers(c: Capture, op: CommOp) -> list[int] | None:
    if op.op_type not in ("send", "receive", "batchSendRecv"):
        return None
    ends = {op.group.ranks[end] for task in op.tasks for end in (task.src, task.dst)}
    return sorted((ends or set(op.group.ranks)) - {c.rank})


def _comm_tasks(c: Capture) -> list[Row]:
    def text_or_none(text: str) -> str | None:
        return None if text == "INVALID_TYPE" else text

    return [
        {
            "op_id": op.op_id,
            "op_name": op.name,
            "group_hash": str(group_hash(op.group.name)),
            "plane_id": task.plane_id,
            "task_type": task.task_type,
            "stream_id": op.stream_id,
            "task_id": op.task_id,
            "start_ns": task.start_ns,
            "dur_ns": task.dur_ns,
            "transport": task.transport,
            "link": text_or_none(task.link),
            "rdma_type": text_or_none(task.rdma_type),
            "src_group_rank": task.src,
            "dst_group_rank": task.dst,
            "src_rank": op.group.ranks[task.src],
            "dst_rank": op.group.ranks[task.dst],
            "size_bytes": task.size_bytes,
            "data_type": text_or_none(task.data_type),
            "notify_id": str(task.notify_id),
        }
        for op in c.comm_ops
        for task in op.tasks
    ]


def _expert_load(c: Capture) -> list[Row]:
    """Tokens of the expert-parallel group for the experts this rank holds."""
    job = c.job
    if not job.experts:
        return []
    sources = [g for g in c.groups if g.kind == "ep"]
    members = sources[0].ranks if sources else (c.rank,)
    return [
        {"step": step.step, "phase": "train", "layer": layer, "expert": expert,
         "ep_rank": c.place["ep"],
         "tokens": sum(routed_tokens(job, step.step, m, layer, source)[expert]
                       for m in layer_micro_batches(job, c.place["pp"], layer)
                       for source in members)}
        for step in c.steps
        for layer in stage_layers(job, c.place["pp"])
        for expert in local_experts(job, c.place["ep"], layer)
    ]  # fmt: skip


def _expert_placement(job: Job) -> list[Row]:
    return [
        {"layer": layer, "device": ep_rank, "slot": slot, "expert": expert}
        for layer in range(job.layers if job.experts else 0)
        for ep_rank in range(job.ep)
        for slot, expert in enumerate(local_experts(job, ep_rank, layer))
    ]


def _memory(c: Capture) -> tuple[list[Row], list[Row]]:
    levels, blocks = memory.curve(c)
    stream = str(memory.STREAM_PTR)
    record: list[Row] = [
        {"device_id": c.device_id, "source": "record", "component": component,
         "timestamp_ns": level.timestamp_ns, "allocated_bytes": level.allocated_bytes + extra,
         "reserved_bytes": level.reserved_bytes + extra, "active_bytes": level.allocated_bytes,
         "stream_ptr": stream}
        for level in levels
        for component, extra in (("PTA", 0), ("PTA+GE", level.ge_bytes))
    ]  # fmt: skip
    record += [
        {"device_id": c.device_id, "source": "module", "component": module, "timestamp_ns": time_ns,
         "reserved_bytes": size_bytes}
        for module, time_ns, size_bytes in memory.module_samples(c)
    ]  # fmt: skip
    held: list[Row] = []
    for block in blocks:
        born, died = block.allocated, block.released
        row: Row = {
            "device_id": c.device_id,
            "name": block.name,
            "size_bytes": block.size_bytes,
            "allocated_at_ns": born.timestamp_ns,
            "allocation_total_allocated_bytes": born.allocated_bytes,
            "allocation_total_reserved_bytes": born.reserved_bytes,
            "allocation_total_active_bytes": born.allocated_bytes,
            "stream_ptr": stream,
        }
        if died is not None:
            row |= {
                "released_at_ns": died.timestamp_ns,
                "active_released_at_ns": died.timestamp_ns,
                "dur_ns": died.timestamp_ns - born.timestamp_ns,
                "active_dur_ns": died.timestamp_ns - born.timestamp_ns,
                "release_total_allocated_bytes": died.allocated_bytes,
                "release_total_reserved_bytes": died.reserved_bytes,
                "release_total_active_bytes": died.allocated_bytes,
            }
        held.append(row)
    return record, held
