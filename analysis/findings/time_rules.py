"""Findings about where a step's time goes but in communication: idle time, gaps, stragglers.

A step's length is computing + exposed communication + free time. What of exposed communication is
at stake, the rules of communication share out; what is outside of the length (between steps) or
inside of computing (stragglers) stands beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message, join

from ..host.free_time import CAUSE_WORDS
from ..replay.captures import LESS
from ..wording import ms, percent, ranks_named
from .finding import Certainty, Finding
from .material import Material
from .weigh import WORTH_RATIO, is_worth, mean, share, state

_UNEVEN_STEPS_AT_LEAST = 5
_PLACE = ("rank", "step")


def device_idle(material: Material) -> Iterator[Finding]:
    """Neither a kernel nor an operation of the step runs; another step's may run."""
    rows = material.steps.drop_nulls("free_ns")
    stake_ns = mean(rows, "free_ns")
    # Free time bounds no gain: others may wait for a rank whose host is late for a moment.
    if not stake_ns:
        return
    worst = rows.sort("free_ns", descending=True)
    rows_of_gaps = rows.drop_nulls(["host_ns", "idle_ns"])
    # The host is the usual suspect where launches do not say otherwise.
    is_hosts, host = True, Message("How much of it the host launched too late is unknown.")
    if rows_of_gaps.height == rows.height:
        is_hosts = 2 * (mean(rows_of_gaps, "idle_ns") or 0.0) <= stake_ns
        late = "In {host} ms of it the host had not launched what came next."
        host = Message(late, host=ms(mean(rows_of_gaps, "host_ns")))
    causes = material.free.filter(~pl.col("cause").is_in(["device", "unknown"]))
    most = ""
    if causes.height:
        cause = CAUSE_WORDS[causes["cause"][0]]
        most = Message("Most of that: {cause}, {lost} ms.", cause=cause,
                       lost=ms(causes["free_ns"][0]))  # fmt: skip
    yield state(
        material,
        "device_idle",
        join(
            (
                Message(
                    "{stake} ms per step ({share}) have neither a kernel nor an operation of the"
                    " step, most on {rank}.",
                    stake=ms(stake_ns),
                    share=percent(share(stake_ns, material)),
                    rank=ranks_named(worst["rank"].head(1)),
                ),
                host,
                most,
            ),
            " ",
        ),
        stake_ns,
        "measured",
        "Time from a step's first to its last kernel or operation that none of them covers;"
        " another step's may run then. With the profiler on, the host is slower than without, so"
        " the job itself may idle less.",
        Message(
            "Usually the host launches too slowly: bind processes to cores, fuse small operators,"
            " avoid synchronisation (.item(), print of tensors), {setting}.",
            setting=Message("capture CUDA graphs")
            if material.is_gpu
            else Message("set TASK_QUEUE_ENABLE=2"),
        )
        if is_hosts
        else join(
            (
                Message(
                    "Most of it the next kernel had been launched and had not begun, which no"
                    " faster host changes: fuse small operators into fewer kernels, and look at"
                    " copies and at events that streams wait for."
                ),
                *(
                    [
                        Message(
                            "A graph has shorter pauses between its kernels: capture CUDA graphs."
                        )
                    ]
                    if material.is_gpu
                    else []
                ),
            ),
            " ",
        ),
        worst.select(*_PLACE, "free_ns", "host_ns", "idle_ns", "length_ns"),
        "npuscope host PATH",
        # Between steps the host does other things: they have a finding of their own.
        changes=(f"host:steps={LESS}",),
    )


def between_steps(material: Material) -> Iterator[Finding]:
    """From the end of one step's last kernel to the first of the next step."""
    ordered = material.steps.drop_nulls(["step", "start_ns", "end_ns"]).sort("rank", "step")
    follows = (pl.col("step") - pl.col("step").shift(1) == 1) & (
        pl.col("rank") == pl.col("rank").shift(1)
    )
    gaps = (
        ordered.with_columns(
            (pl.col("start_ns") - pl.col("end_ns").shift(1)).alias("gap_ns"),
            (pl.col("start_ns") - pl.col("start_ns").shift(1)).alias("whole_ns"),
        )
        .filter(follows)
        .with_columns(pl.col("gap_ns").clip(lower_bound=0))
        .sort("gap_ns", descending=True)
    )
    # A step's own length leaves this time out: its share is of both.
    stake_ns, whole_ns = mean(gaps, "gap_ns"), mean(gaps, "whole_ns")
    if not stake_ns or not whole_ns or stake_ns < WORTH_RATIO * whole_ns:
        return
    certainty: Certainty = "measured"
    reason: str = Message(
        "From the last kernel or operation of a step to the first of the next one: a step's own"
        " length does not hold it, so the share is of both: from one step's start to the next."
    )
    if material.outside & set(gaps["rank"]):
        certainty = "estimated"
        also = "Kernels that belong to no step ran on these ranks and may fill a part of it."
        reason = join((reason, Message(also)), " ")
    yield state(
        material,
        "between_steps",
        Message("{stake} ms pass between one step and the next on the device.", stake=ms(stake_ns)),
        stake_ns,
        certainty,
        reason,
        "Look for data loading, logging, checkpoints or garbage collection between steps: prefetch"
        " batches, more loader workers, pinned memory, gc frozen or moved out of the loop.",
        gaps.select(*_PLACE, "gap_ns", "preparing_ns"),
        "npuscope steps PATH",
        changes=("between_steps=0",),
        of_ns=whole_ns,
    )


def stragglers(material: Material) -> Iterator[Finding]:
    """Ranks of one pipeline stage that compute longer than the others of it."""
    steps = material.steps.drop_nulls("computing_ns").with_columns(pp_rank=pl.col("stage"))
    peers = ["step", "is_apart", "pp_rank"]
    spread = (
        steps.group_by(peers, maintain_order=True)
        .agg(
            pl.len().alias("rank_count"),
            pl.col("rank").sort_by("computing_ns").last(),
            pl.col("computing_ns").max(),
            pl.col("computing_ns").mean().alias("mean_computing_ns"),
        )
        .filter(pl.col("rank_count") > 1)
        .with_columns((pl.col("computing_ns") - pl.col("mean_computing_ns")).alias("over_mean_ns"))
        .sort("over_mean_ns", "step", "pp_rank", descending=[True, False, False])
    )
    # A step waits for the stage that lies furthest apart.
    stake_ns = mean(spread.group_by("step").agg(pl.col("over_mean_ns").max()), "over_mean_ns")
    if not is_worth(stake_ns, material):
        return
    slowest = (
        spread.group_by("rank")
        .agg(pl.col("over_mean_ns").sum(), pl.col("step").n_unique())
        .sort("over_mean_ns", "rank", descending=[True, False])
    )
    # Kernels of other tokens have no like on another rank that they could be brought to.
    is_full = not material.suspects.filter(
        rank=slowest["rank"][0], verdict="alltoall_bytes"
    ).is_empty()
    yield state(
        material,
        "stragglers",
        Message(
            "The slowest rank computes {stake} ms per step longer than the mean of its stage; "
            "most of it {rank}, slowest in {some} of {all} steps.",
            stake=ms(stake_ns),
            rank=ranks_named(slowest["rank"].head(1)),
            some=slowest["step"][0],
            all=spread["step"].n_unique(),
        ),
        stake_ns,
        "estimated",
        "If the work were spread evenly, every rank would take the mean time. Ranks of one"
        " stage may do different work by design (experts, embedding); then there is nothing to"
        " gain.",
        "Compare the kernels of the slowest rank with another's: the same kernels slower point to"
        " the chip or its clock, more of them to uneven work, such as overloaded experts.",
        spread.select("step", "pp_rank", "rank", "computing_ns", "mean_computing_ns", "rank_count"),
        f"npuscope kernels PATH --rank {slowest['rank'][0]}",
        changes=("experts:balanced" if is_full else f"rank:{slowest['rank'][0]}=median",),
    )


def uneven_steps(material: Material) -> Iterator[Finding]:
    """Steps that take longer than most: the mean over the median."""
    lengths = (
        material.steps.drop_nulls(["step", "length_ns"])
        .group_by("step")
        .agg(
            pl.col("length_ns").max(),
            pl.col("rank").sort_by("length_ns").last(),
            *(
                pl.col(name).sort_by("length_ns").last()
                for name in ("computing_ns", "exposed_communication_ns", "free_ns")
            ),
        )
        .sort("length_ns", "step", descending=[True, False])
    )
    if lengths.height < _UNEVEN_STEPS_AT_LEAST:
        return
    [middle_ns] = lengths.select(pl.col("length_ns").median().cast(pl.Float64))["length_ns"]
    stake_ns = mean(lengths, "length_ns")
    stake_ns = None if stake_ns is None else round(stake_ns - middle_ns)
    if not is_worth(stake_ns, material):
        return
    slow = lengths.filter(pl.col("length_ns") > middle_ns)
    yield state(
        material,
        "uneven_steps",
        Message(
            "Step times vary: the longest, step {step}, takes {longest} ms; half of the steps "
            "take {half} ms or less.",
            step=slow["step"][0],
            longest=ms(slow["length_ns"][0]),
            half=ms(middle_ns),
        ),
        stake_ns,
        "measured",
        "Step time of the longest rank, as a mean over steps, minus the median step.",
        "See which part grows in the long steps: free time points to the host (garbage collection,"
        " data), communication to the network or a late rank, computing to longer sequences.",
        slow,
        f"npuscope steps PATH --step {slow['step'][0]}",
        no_gain=Message("each step is replayed from its own times: why they differ is not in it"),
    )
