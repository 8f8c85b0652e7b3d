"""All findings of the open captures, by what ending them would gain.

Findings about expert load: devices that get more tokens than others.

Findings about device memory: what lies unused, what grows.

Findings about compute kernels that do no arithmetic, or run where they are slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import duckdb
import polars as pl

from npuscope.messages import Message, join

from ..experts.cost.load_overview import Overview
from ..operators.launch_order import base_type
from ..replay.captures import LESS, MOST_OPERATIONS, operation_count
from ..scope import Scope
from ..wording import mebibytes, ms, numbers, percent, ranks_named
from . import cause_rules, communication_rules, host_rules, operator_rules, time_rules
from .finding import Finding
from .gains import with_gains
from .material import Material, material
from .origins import with_origins
from .weigh import is_worth, mean, share, state

Rule = Callable[[Material], Iterator[Finding]]
# A rule looks at one capture; its docstring says what for.
_PLAN = Message(
    "Rebalance experts or replicate the hottest ones: the plan gives the placement and its gain;"
    " in training, see whether the balance loss or bias is strong enough."
)
_NO_TIME = Message("memory costs no time until it runs out")
_COLLECT = Message(
    "Record tokens per expert with the training hook: a plan then gives the moves and their gain;"
    " in training, see whether the balance loss or bias is strong enough."
)


def expert_imbalance(material: Material) -> Iterator[Finding]:
    """Devices whose experts get more tokens than others' make the others of their group wait."""
    experts = material.experts
    if experts is None or experts.cost is None:
        return
    stake_ns = experts.cost["excess_ns"]
    if stake_ns is None or not is_worth(stake_ns, material):
        return
    layers = experts.layers.filter(pl.col("excess_ns").is_not_null())
    worst = layers.row(0, named=True)
    parts = [
        Message("{what} {ms} ms", what=name, ms=ms(value))
        for name, value in (
            (Message("grouped matmuls"), experts.cost["grouped_excess_ns"]),
            (Message("activations"), experts.cost["activation_excess_ns"]),
            (Message("all-to-alls"), experts.cost["exchange_exposed_ns"]),
        )
        if value is not None
    ]
    evidence = [
        name
        for name in ("layer", "device_max_over_mean", "max_over_mean", "hottest_expert",
                     "hottest_device", "excess_ns")
        if name in layers.columns
    ]  # fmt: skip
    where = Message("all layers together")
    if worst["layer"] is not None:
        where = Message("layer {layer}", layer=worst["layer"])
    most = Message("most in {where}", where=where)
    if (over := worst["device_max_over_mean"]) is not None:  # a rank of its group may be missing
        most = Message(
            "most in {where}, whose most loaded device has {over} times the mean",
            where=where,
            over=f"{over:.2f}",
        )
    of_cost = material.steps.filter(pl.col("step").is_in(experts.cost_steps, nulls_equal=True))
    of_ns = mean(of_cost, "length_ns") or material.length_ns
    reason: str = Message(
        "Time of the most loaded devices above the mean ({parts}), from kernel times fitted "
        "to tokens; for the pipeline stage with the largest cost."
        if experts.is_by_stage
        else "Time of the most loaded devices above the mean ({parts}), from kernel times fitted "
        "to tokens; for all layers one after another, as their pipeline stages are unknown.",
        parts=join(parts),
    )
    if of_cost.height < material.steps.height:
        fewer = Message(
            "Of steps {steps} alone, where a gain is of the mean step.",
            steps=numbers(of_cost["step"].drop_nulls()),
        )
        reason = join((reason, fewer), " ")
    is_planned = experts.item == "expert" and experts.devices_count is not None
    yield state(
        material,
        "expert_imbalance",
        Message(
            "Expert load is imbalanced, which costs {cost} ms per step ({share} of it); {most}.",
            cost=ms(stake_ns),
            share=percent(stake_ns / of_ns if of_ns else None),
            most=most,
        ),
        stake_ns,
        "estimated",
        reason,
        _PLAN if is_planned else _COLLECT,
        layers.select(evidence),
        f"npuscope experts plan PATH --devices {experts.devices_count}"
        if is_planned
        else "npuscope experts PATH --by cost",
        changes=("experts:balanced",),
        of_ns=of_ns,
    )


_FRAGMENTED_RATIO = 0.1  # of what is reserved when most is allocated
_FRAGMENTED_BYTES = 1 << 30


def memory_fragmentation(material: Material) -> Iterator[Finding]:
    """Memory that the framework reserved and could not use when it needed most."""
    rows = material.memory.components.filter(
        (pl.col("fragmentation_ratio") >= _FRAGMENTED_RATIO)
        & (pl.col("fragmentation_bytes") >= _FRAGMENTED_BYTES)
        & (pl.col("source") == "record")
    ).sort("fragmentation_bytes", descending=True, maintain_order=True)
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    yield state(
        material,
        "memory_fragmentation",
        Message(
            "{rank}: {size} MiB ({share} of what {component} reserved) were not allocated when"
            " most memory was in use.",
            rank=ranks_named([first["rank"]]),
            size=mebibytes(first["fragmentation_bytes"]),
            share=percent(first["fragmentation_ratio"]),
            component=first["component"],
        ),
        None,
        "hint",
        "Memory reserved but not allocated by the allocator at the peak. It costs no time until"
        " memory runs out; then the allocator empties its cache, which takes milliseconds each"
        " time.",
        Message(
            "{setting}, fewer different tensor sizes.",
            setting=f"PYTORCH_{'CUDA' if material.is_gpu else 'NPU'}_ALLOC_CONF="
            '"expandable_segments:True"',
        ),
        rows.select(
            "rank", "component", "peak_bytes", "peak_allocated_bytes", "fragmentation_bytes",
            "fragmentation_ratio",
        ),
        "npuscope memory PATH",
        no_gain=_NO_TIME,
    )  # fmt: skip


def memory_growth(material: Material) -> Iterator[Finding]:
    """Memory that grows from step to step."""
    rows = material.memory.steady
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    yield state(
        material,
        "memory_growth",
        Message(
            "{rank}: {component} grows by {size} MiB in every step recorded ({count} of them).",
            rank=ranks_named([first["rank"]]),
            component=first["component"],
            size=mebibytes(first["growth_per_step_bytes"]),
            count=first["step_count"],
        ),
        None,
        "hint",
        "Memory in use at the end of each step rose in every step, by about the same amount."
        " With few steps this can also be warm-up.",
        "Look for tensors that are never released: losses accumulated with their graph, growing"
        " lists, caches keyed by shape.",
        rows.select(
            "rank", "component", "growth_per_step_bytes", "growth_bytes", "step_count", "last_bytes"
        ),
        "npuscope memory PATH --by step",
        no_gain=_NO_TIME,
    )


# Operator types without their version (V2, D) that do nothing but move data, or set it.
_MOVING_TYPES = frozenset({
    "TransData", "Transpose", "Cast", "TensorMove", "ViewCopy", "AsStrided", "Concat", "Split",
    "SplitV", "Slice", "StridedSlice", "Pack", "Unpack", "Tile", "BroadcastTo", "Pad", "PadV",
})  # fmt: skip
_SETTING_TYPES = frozenset({"ZerosLike", "OnesLike", "Fill", "Fills", "MemSet", "Zero"})


def data_movement(material: Material) -> Iterator[Finding]:
    """Kernels that copy, convert or rearrange data."""
    yield from _of_types(
        material,
        "data_movement",
        _kernels_of(material, _MOVING_TYPES),
        "{stake} ms per step ({share} of it) go to kernels that only move or convert data,"
        " most to {type}.",
        "Sum of the kernels' durations. Some conversions and copies cannot be avoided.",
        "Keep one layout and one type through a block: contiguous tensors, no .contiguous() or"
        " .to() in the loop, fused operators that take the layout they get.",
    )


def data_setting(material: Material) -> Iterator[Finding]:
    """Kernels that fill memory with one value."""
    yield from _of_types(
        material,
        "data_setting",
        _kernels_of(material, _SETTING_TYPES),
        "{stake} ms per step ({share} of it) go to kernels that only fill memory with a value,"
        " most to {type}.",
        "Sum of the kernels' durations. Buffers used for accumulation must be cleared once.",
        "Use zero_grad(set_to_none=True), use empty instead of zeros where everything is"
        " overwritten, reuse buffers between steps.",
    )


def ai_cpu_kernels(material: Material) -> Iterator[Finding]:
    """Kernels on the device's own CPU, slow and a break in the stream."""
    yield from _of_types(
        material,
        "ai_cpu_kernels",
        material.kernels.filter(pl.col("core") == "AI_CPU"),
        "{stake} ms per step ({share} of it) go to kernels on the AI CPU, most to {type}.",
        "Sum of the kernels' durations: on the AI cores the same work would take a fraction of it.",
        "Other types or an equivalent operator usually bring them to the AI cores: int64 and bool"
        " inputs, dynamic shapes and unusual index operators are frequent causes.",
        by="core",
    )


def _kernels_of(material: Material, types: frozenset[str]) -> pl.DataFrame:
    types_here = [t for t in material.kernels["type"].drop_nulls() if base_type(t) in types]
    return material.kernels.filter(pl.col("type").is_in(types_here))


def _of_types(
    material: Material, name: str, rows: pl.DataFrame, statement: str, reason: str, advice: str,
    by: str = "type",
) -> Iterator[Finding]:  # fmt: skip
    stake_ns = float(rows["total_ns"].sum())
    if rows.is_empty() or not is_worth(stake_ns, material):
        return
    evidence = rows.select("type", "core", count_per_step="count", total_per_step_ns="total_ns")
    sentence = Message(
        statement,
        stake=ms(stake_ns),
        share=percent(share(stake_ns, material)),
        type=evidence["type"][0],
    )
    command = f"npuscope kernels PATH --by {by}"
    types = evidence["type"].drop_nulls().unique(maintain_order=True)
    yield state(
        material, name, sentence, stake_ns, "estimated", reason, advice, evidence, command,
        changes=[f"kernel:{one}={LESS}" for one in types],
        no_gain=Message("the profiler level has no operator types"),
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    communication_rules.uneven_stages,
    communication_rules.pipeline_bubble,
    communication_rules.uncaptured_ranks,
    communication_rules.late_ranks,
    communication_rules.exposed_communication,
    time_rules.device_idle,
    time_rules.between_steps,
    host_rules.host_calls,
    host_rules.synchronisation,
    host_rules.far_cores,
    time_rules.stragglers,
    time_rules.uneven_steps,
    cause_rules.slow_hosts,
    cause_rules.slow_links,
    cause_rules.slow_kernels,
    operator_rules.slow_operators,
    expert_imbalance,
    data_movement,
    data_setting,
    ai_cpu_kernels,
    memory_fragmentation,
    memory_growth,
)


def found_in(
    con: duckdb.DuckDBPyConnection, scope: Scope, experts: Overview | None
) -> list[Finding]:
    """What the rules find in one capture, with gains; `experts` where they are known already."""
    evidence = material(con, scope, experts=experts)
    results = [one for rule in RULES for one in rule(evidence)]
    if operation_count(con, scope) <= MOST_OPERATIONS:
        results = [*with_origins(con, scope, results)]
    return [*with_gains(con, scope, results, evidence.kernels)]
