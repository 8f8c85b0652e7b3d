"""Findings about what keeps the host from launching: calls, waits for the device, far cores."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message, join

from ..host.blocking import word_of
from ..host.free_time import CAUSE_WORDS
from ..host.gains import CALLS
from ..replay.variants.host_causes import FAR
from ..wording import ms, percent, ranks_named
from .finding import Finding
from .material import Material
from .weigh import is_worth, share, state

_ADVICE = {
    "garbage_collection": Message(
        "Collect at steps of your own choice on all ranks at once: gc.disable() or gc.freeze()"
        " before the loop (Megatron: --manual-gc)."
    ),
    "data_loading": Message(
        "Let batches be made ahead: more loader workers, prefetch_factor, pinned memory,"
        " persistent_workers; look at the storage."
    ),
    "checkpoint": Message("Save asynchronously, or more rarely."),
    "logging": Message("Log more rarely, and no tensors of the device."),
    "profiler": Message("Profile with fewer options: no stacks, no memory, a lower level."),
}


def host_calls(material: Material) -> Iterator[Finding]:
    """Calls but waits for the device that keep the host from launching."""
    rows = material.calls.filter(pl.col("cause").is_in(CALLS))
    stake_ns = float(rows["total_ns"].sum())
    # A call of one rank keeps all from going on: a step gains up to what all ranks spend in them.
    if rows.is_empty() or not is_worth(stake_ns * material.steps["rank"].n_unique(), material):
        return
    named = [
        Message("{cause} {lost} ms", cause=CAUSE_WORDS[row["cause"]], lost=ms(row["total_ns"]))
        for row in rows.iter_rows(named=True)
    ]
    yield state(
        material,
        "host_calls",
        Message(
            "{stake} ms per step ({share}) the host is kept from launching: {causes}.",
            stake=ms(stake_ns),
            share=percent(share(stake_ns, material)),
            causes=join(named),
        ),
        stake_ns,
        "measured",
        "Time in such calls of a mean rank and step, within steps and between them; the device may"
        " have had work meanwhile.",
        join([_ADVICE[one] for one in rows["cause"]], " "),
        rows.drop("operator"),
        "npuscope host PATH --by call",
        changes=[word_of(one) for one in rows["cause"]],
    )


def synchronisation(material: Material) -> Iterator[Finding]:
    """Operators in which the host waits for the device, and so loses its lead. Free time is no
    bound of what they cost: without them the host is ahead where nothing was free, too."""
    lost = material.free.filter(cause="synchronisation")
    stake_ns = float(lost["free_ns"].sum())
    rows = material.calls.filter(cause="synchronisation")
    if rows.is_empty():
        return
    first = rows.sort("count", descending=True, maintain_order=True).row(0, named=True)
    place = ""
    if first["location"]:
        place = Message("It is called at {place}.", place=first["location"])
    beside = [word_of(one) for one in material.calls["cause"].unique().sort() if one in CALLS]
    beside += [word_of(FAR)] if material.far.height else []
    yield state(
        material,
        "synchronisation",
        join(
            (
                Message(
                    "{stake} ms per step ({share}) the device is free because the host waited for"
                    " it: {operator}, {count} times per step.",
                    stake=ms(stake_ns),
                    share=percent(share(stake_ns, material)),
                    operator=first["operator"],
                    count=f"{first['count']:,.1f}",
                ),
                place,
            ),
            " ",
        ),
        stake_ns,
        "measured",
        "Gaps that began while the host was waiting for the device, up to the next launch.",
        "Keep values on the device: no .item(), .cpu(), print or if of a tensor in the loop; log"
        " them some steps later, from a copy that nobody waits for.",
        rows,
        "npuscope host PATH --by call",
        changes=[word_of("synchronisation", one) for one in rows["operator"]],
        beside=beside,
    )


def far_cores(material: Material) -> Iterator[Finding]:
    """Threads that launch on cores far from their device, and launch more slowly there."""
    rows = material.far.sort("slow_ratio", descending=True)
    if rows.is_empty():
        return
    worst = rows.row(0, named=True)
    yield state(
        material,
        "far_cores",
        Message(
            "{ranks}: threads that launch are on cores far from their device for {share} of the"
            " time, where a launch takes {ratio} times as long ({low} to {high}).",
            ranks=ranks_named(rows["rank"]),
            share=percent(worst["far_ratio"]),
            ratio=f"{worst['slow_ratio']:.2f}",
            low=f"{worst['slow_low_ratio']:.2f}",
            high=f"{worst['slow_high_ratio']:.2f}",
        ),
        None,
        "estimated",
        "Launches of the same operators on near and far cores, compared within the capture: what"
        " else differs between those moments counts, too.",
        "Bind each process to cores of its device's NUMA node: CPU_AFFINITY_CONF=1 in the"
        " environment of torch_npu, or `taskset -c CORES` (cores of the device: npu-smi info -t"
        " topo). TASK_QUEUE_ENABLE=2 leaves the thread that runs Python less of each launch.",
        rows.drop("run", "capture"),
        "npuscope host PATH --by placement",
        changes=(word_of(FAR),),
    )
