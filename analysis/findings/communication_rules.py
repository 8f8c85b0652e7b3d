"""Findings about communication that no compute hides: what waits and for whom, what moves bytes.

Exposed communication is shared out by the parts of a step (metric `step_parts`), so that no
nanosecond is at stake in two of these findings:

pipeline_wait              uneven_stages where stages compute unequally, else pipeline_bubble
absent_wait                uncaptured_ranks
peer_wait                  late_ranks
transfer, unknown          exposed_communication
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from npuscope.messages import Message, join

from ..parts import COMMUNICATION
from ..replay.captures import LESS
from ..wording import ms, percent, ranks_named
from .cause_rules import suspect_changes, suspect_sentence
from .finding import Finding
from .material import Material
from .weigh import is_worth, mean, share, state

_UNEVEN_FROM_RATIO = 0.1  # of what the heaviest stage computes
_PLACE = ("rank", "step")


def uneven_stages(material: Material) -> Iterator[Finding]:
    """Pipeline stages that compute unequally, and what waits in the pipeline."""
    stages = _stages(material)
    stake_ns = _per_step_ns(material, "pipeline_wait")
    if not _is_uneven(stages) or not is_worth(stake_ns, material):
        return
    heavy, light = stages.row(0, named=True), stages.row(-1, named=True)
    worst = stages.sort("pipeline_wait_ns", descending=True, maintain_order=True)["stage"][0]
    yield state(
        material,
        "uneven_stages",
        Message(
            "Pipeline stages compute unequally: stage {heavy} {most} ms per step, stage {light} "
            "{least} ms. {stake} ms per step ({share}) pass waiting for another stage, most on "
            "stage {worst}.",
            heavy=heavy["stage"],
            most=ms(heavy["computing_ns"]),
            light=light["stage"],
            least=ms(light["computing_ns"]),
            stake=ms(stake_ns),
            share=percent(share(stake_ns, material)),
            worst=worst,
        ),
        stake_ns,
        "estimated",
        "Waiting of all stages, as a mean of ranks and steps. Part of it is inherent to the"
        " schedule: about (stages - 1) / (micro-batches + stages - 1) of the step even with"
        " balanced stages.",
        "Move layers from the heaviest stage to lighter ones (embedding, loss and MTP heads count"
        " as layers); then more micro-batches or interleaved (virtual) stages. Faster links or more"
        " overlap do not shorten this waiting.",
        stages,
        "npuscope steps PATH",
        changes=("stage:all=mean",),
    )


def pipeline_bubble(material: Material) -> Iterator[Finding]:
    """Waiting for another pipeline stage, where stages compute about the same."""
    stake_ns = _per_step_ns(material, "pipeline_wait")
    if _is_uneven(_stages(material)) or not is_worth(stake_ns, material):
        return
    worst = _by_step(material, "pipeline_wait")
    yield state(
        material,
        "pipeline_bubble",
        Message(
            "{stake} ms per step ({share}) pass waiting for another pipeline stage with nothing "
            "to compute: pipeline bubbles, most on {rank}.",
            stake=ms(stake_ns),
            share=percent(share(stake_ns, material)),
            rank=ranks_named(worst["rank"].head(1)),
        ),
        stake_ns,
        "measured",
        "Transfers between stages that no compute kernel overlaps. Part of it is inherent to the"
        " schedule: about (stages - 1) / (micro-batches + stages - 1) of the step.",
        "More micro-batches per step, interleaved (virtual) stages, layers moved from the slowest"
        " stage, or weight gradients in the bubble (ZB-H1) where their reduction stays hidden:"
        " `npuscope pipeline PATH --try` says what a schedule gives.",
        worst,
        "npuscope comm PATH --by part",
        changes=("schedule=zb-h1",),
    )


def uncaptured_ranks(material: Material) -> Iterator[Finding]:
    """Waiting for ranks that were not captured, in the pipeline or in groups they belong to."""
    stake_ns = _per_step_ns(material, "absent_wait")
    if stake_ns is None or not is_worth(stake_ns, material):
        return
    kinds = _by_kind(material, "absent_wait")
    pipeline_ns = sum(kinds.filter(pl.col("kind") == "pp")["absent_wait_per_step_ns"])
    is_stage = pipeline_ns > stake_ns / 2
    exposed_ns = mean(material.steps, "exposed_communication_ns") or 0.0
    missing = material.gaps.filter(pl.col("kind") == "pp") if is_stage else material.gaps
    ranks = sorted(set(missing["ranks"].explode().drop_nulls()))
    whom = Message("ranks that were not captured")
    if is_stage:
        whom = Message(
            "ranks that were not captured, {part} ms of it for a pipeline stage",
            part=ms(pipeline_ns),
        )
    if ranks:
        whom = Message("{whom} ({ranks})", whom=whom, ranks=ranks_named(ranks))
    yield state(
        material,
        "uncaptured_ranks",
        Message(
            "{stake} of {exposed} ms of exposed communication per step ({share}) are waiting for"
            " {whom}.",
            stake=ms(stake_ns),
            exposed=ms(exposed_ns),
            share=percent(stake_ns / exposed_ns if exposed_ns else None),
            whom=whom,
        ),
        stake_ns,
        "estimated",
        "For groups with members that were not captured, waiting is the initial wait measured by"
        " HCCL, or the duration above the shortest operation of the kind. What those ranks did"
        " meanwhile is unknown.",
        "Profile a rank of every stage, or all ranks, for the same steps: `npuscope doctor` names"
        " the missing ones. If another stage computes longer, move layers away from it. Overlap and"
        " bandwidth do not shorten this waiting.",
        kinds,
        "npuscope comm PATH --by part",
        no_gain=Message("what ranks that were not captured do is unknown"),
    )


def late_ranks(material: Material) -> Iterator[Finding]:
    """Waiting for ranks of the capture that come later to an operation."""
    stake_ns = _per_step_ns(material, "peer_wait")
    if not is_worth(stake_ns, material):
        return
    worst = _by_step(material, "peer_wait")
    statement = Message(
        "{stake} ms of communication per step ({share}) wait for ranks that arrive later, "
        "most on {rank}.",
        stake=ms(stake_ns),
        share=percent(share(stake_ns, material)),
        rank=ranks_named(worst["rank"].head(1)),
    )
    yield state(
        material,
        "late_ranks",
        join((statement, suspect_sentence(material)), " "),
        stake_ns,
        "measured",
        "Exposed communication by which an operation is longer than on the group member that"
        " waits least.",
        "Find the straggler and its cause: a slow chip, host or link, or more tokens. Overlap and"
        " bandwidth do not shorten this waiting.",
        _by_kind(material, "peer_wait"),
        "npuscope ranks PATH",
        changes=suspect_changes(material),
        no_gain=Message("no rank, host or link is suspected of it"),
    )


def exposed_communication(material: Material) -> Iterator[Finding]:
    """Communication that no compute hides and that is not known to wait."""
    stake_ns = _per_step_ns(material, "transfer", "unknown_communication")
    if stake_ns is None or not is_worth(stake_ns, material):
        return
    unknown_ns = _per_step_ns(material, "unknown_communication") or 0.0
    moving_ns = stake_ns - unknown_ns
    late_ns = _per_step_ns(material, "peer_wait") or 0.0
    elsewhere_ns = _per_step_ns(material, "absent_wait", "pipeline_wait") or 0.0
    hidden_ns, communication_ns = mean(material.steps, "overlapped_ns"), mean(
        material.steps, "communication_ns"
    )  # fmt: skip
    masked = percent(hidden_ns / communication_ns if hidden_ns and communication_ns else hidden_ns)
    evidence = _by_kind(material, "transfer", "unknown_communication")
    statement = [
        Message(
            "{stake} ms of communication per step is exposed and not known to wait (masked:"
            " {masked}).",
            stake=ms(stake_ns),
            masked=masked,
        )
    ]
    first = evidence.row(0, named=True)
    if first["op_type"] is not None:
        most_ns = (first["transfer_per_step_ns"] or 0.0) + (
            first["unknown_communication_per_step_ns"] or 0.0
        )
        what = first["op_type"]
        if first["kind"] not in (None, "unknown"):
            what = Message("{op} of {kind} groups", op=what, kind=first["kind"])
        statement.append(Message("Most of it: {what}, {most} ms.", what=what, most=ms(most_ns)))
    if unknown_ns > stake_ns / 100:
        whether = "Whether {unknown} ms of it move bytes or wait is unknown."
        statement.append(Message(whether, unknown=ms(unknown_ns)))
    overlap = (
        "Overlap it: bucketed gradient reduction and parameter gathering, all-to-all split into"
        " chunks that overlap expert computation."
    )
    if moving_ns < max(unknown_ns, late_ns):
        overlap = (
            "First find the straggler: more overlap or bandwidth shortens transfers, not waiting."
        )
    elif moving_ns < late_ns + elsewhere_ns:  # most of it in the pipeline: no rank is late
        overlap = Message(
            "First shorten the waiting, which has findings of its own: more overlap or bandwidth"
            " shortens transfers alone."
        )
    yield state(
        material,
        "exposed_communication",
        join(statement, " "),
        stake_ns,
        "measured",
        "Communication time without a compute kernel on the rank, minus known waiting. Operations"
        " that run at the same time share it equally.",
        overlap,
        evidence,
        "npuscope comm PATH --by part",
        changes=() if first["kind"] is None else (f"comm:{first['kind']}={LESS}",),
        no_gain=Message("the parallel kind of what is exposed was not recorded"),
    )


def _of(material: Material, *parts: str) -> pl.DataFrame:
    """Parts of the steps whose exposed communication is known."""
    steps = material.steps.drop_nulls("exposed_communication_ns").select(_PLACE)
    return material.parts.filter(pl.col("part").is_in(parts)).join(
        steps, on=_PLACE, how="semi", nulls_equal=True
    )


def _per_step_ns(material: Material, *parts: str) -> float | None:
    """Of a mean rank and step; None where nothing is known of exposed communication."""
    over = len(material.steps["exposed_communication_ns"].drop_nulls())
    return float(_of(material, *parts)["ns"].sum()) / over if over else None


def _by_kind(material: Material, *parts: str) -> pl.DataFrame:
    """kind, op_type and a column per part (mean per rank and step), the most first."""
    over = len(material.steps["exposed_communication_ns"].drop_nulls())
    return (
        _of(material, *parts)
        .group_by("kind", "op_type", maintain_order=True)
        .agg(
            pl.when((pl.col("part") == part).any())
            .then(pl.col("ns").filter(pl.col("part") == part).sum() / over)
            .alias(f"{part}_per_step_ns")
            for part in parts
        )
        .sort(
            pl.sum_horizontal(f"{part}_per_step_ns" for part in parts),
            descending=True,
            maintain_order=True,
        )
    )


def _by_step(material: Material, part: str) -> pl.DataFrame:
    """rank, step, stage, the part's ns and the step's length, the most first."""
    summed = _of(material, part).group_by(_PLACE).agg(pl.col("ns").sum().alias(f"{part}_ns"))
    return (
        summed.join(material.steps, on=_PLACE, nulls_equal=True)
        .sort(f"{part}_ns", *_PLACE, descending=[True, False, False])
        .select(*_PLACE, "stage", f"{part}_ns", "length_ns")
    )


def _stages(material: Material) -> pl.DataFrame:
    """stage, rank_count, and computing and parts of communication of its mean rank and step, the
    heaviest first."""
    steps = material.steps.drop_nulls(["stage", "computing_ns", "exposed_communication_ns"])
    if steps["is_apart"].n_unique() > 1:
        steps = steps.clear()  # a stage of one program is no measure for one of another
    waits = _of(material, *COMMUNICATION).group_by(_PLACE).agg(
        pl.col("ns").filter(pl.col("part") == "pipeline_wait").sum().alias("pipeline_wait_ns")
    )  # fmt: skip
    return (
        steps.join(waits, on=_PLACE, how="left", nulls_equal=True)
        .group_by("stage")
        .agg(
            pl.col("rank").n_unique().alias("rank_count"),
            pl.col("computing_ns").mean(),
            pl.col("pipeline_wait_ns").fill_null(0).mean(),
        )
        .sort("computing_ns", "stage", descending=[True, False])
    )


def _is_uneven(stages: pl.DataFrame) -> bool:
    if stages.height < 2:
        return False
    heavy, light = float(stages["computing_ns"][0]), float(stages["computing_ns"][-1])
    return heavy > 0 and (heavy - light) / heavy >= _UNEVEN_FROM_RATIO
