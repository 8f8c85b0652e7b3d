"""What to know beside figures of expert load: padding, forced routing, parts not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import polars as pl

from npuscope.messages import Message

from ...wording import numbers
from .imbalance import PLACE, expert_loads

if TYPE_CHECKING:
    from .load import ExpertTables

# Expert 0 with more than this many times the tokens of any other, in most layers, is padding.
PADDED_ABOVE = 2.0
# Global counts of two ranks that are further apart are not counts of the same thing.
_APART_RATIO = 1e-9


def load_notes(rows: pl.DataFrame) -> list[str]:
    """Sentences on the load as a whole, figures stay raw; `rows` are of `expert_load`.

    Told: layers whose experts all have the same number of tokens; prefill whose expert 0 has most
    of all in most layers; experts that never got a token; experts that the source does not show;
    and ranks whose global counts differ.
    """
    notes = {}
    for (run, capture), mine in rows.group_by("run", "capture", maintain_order=True):
        loads = expert_loads(mine)
        if not loads.is_empty():
            notes[str(run), str(capture)] = [
                *_even(loads), *_padding_note(loads), *_dead(loads), *_not_seen(loads),
                *_apart(mine),
            ]  # fmt: skip
    return told_by(notes)


def told_by(notes_by_capture: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    """Notes by run and capture, each once: with whom it concerns, where that is not all."""
    places: dict[str, list[str]] = {}
    has_runs = len({run for run, _ in notes_by_capture}) > 1
    for (run, capture), notes in notes_by_capture.items():
        for note in notes:
            places.setdefault(note, []).append(f"{run} {capture}" if has_runs else capture)
    return [
        note
        if len(ranks) == len(notes_by_capture)
        else Message("{place}: {note}", place=", ".join(ranks), note=note)
        for note, ranks in places.items()
    ]


def _even(loads: pl.DataFrame) -> list[str]:
    tokens = pl.col("tokens")
    flat = loads.group_by(PLACE).agg(
        is_flat=(tokens.min() == tokens.max()) & (tokens.max() > 0) & (pl.len() > 1)
    )
    layers = flat.group_by("layer").agg(pl.col("is_flat").all()).filter("is_flat")["layer"]
    if layers.is_empty():
        return []
    if step := _only_step(loads):
        return [
            Message(
                "layers {layers}: every expert has the same number of tokens in step {step}, as "
                "with forced or mocked routing",
                layers=numbers(layers),
                step=step,
            )
        ]
    return [
        Message(
            "layers {layers}: every expert has the same number of tokens in every step, as with "
            "forced or mocked routing",
            layers=numbers(layers),
        )
    ]


def _padding_note(loads: pl.DataFrame) -> list[str]:
    prefill = loads.filter(pl.col("phase") == "prefill")
    first = pl.col("tokens").filter(pl.col("expert") == 0).sum()
    other = pl.col("tokens").filter(pl.col("expert") != 0).max()
    firsts = prefill.group_by(PLACE).agg(
        first=first, other=other, has_first=(pl.col("expert") == 0).any()
    )
    firsts = firsts.filter(pl.col("has_first") & pl.col("other").is_not_null())
    inflated = firsts.filter(pl.col("first") > PADDED_ABOVE * pl.col("other"))
    if inflated.height * 2 <= firsts.height:
        return []
    return [
        Message(
            "prefill: expert 0 has more than {times} times the tokens of any other in {count} of "
            "{all} layers and steps: padding is routed to it; figures are not corrected",
            times=f"{PADDED_ABOVE:g}",
            count=inflated.height,
            all=firsts.height,
        )
    ]


def _dead(loads: pl.DataFrame) -> list[str]:
    never = (
        loads.group_by("layer", "expert").agg(pl.col("tokens").max()).filter(pl.col("tokens") == 0)
    )
    if never.is_empty():
        return []
    if step := _only_step(loads):
        return [
            Message(
                "{count} experts of layers {layers} received no tokens in step {step}",
                count=never.height,
                layers=numbers(never["layer"]),
                step=step,
            )
        ]
    return [
        Message(
            "{count} experts of layers {layers} received no tokens in any step: dead experts",
            count=never.height,
            layers=numbers(never["layer"]),
        )
    ]


def _only_step(loads: pl.DataFrame) -> str:
    """The step, where it is the only one: of others, as a selection leaves them out, these rows
    say nothing."""
    steps = loads["step"].unique()
    return str(steps.item()) if len(steps) == 1 and steps.null_count() == 0 else ""


def _not_seen(loads: pl.DataFrame) -> list[str]:
    experts = set(loads["expert"].unique().to_list())
    missing = set(range(max(experts) + 1)) - experts
    notes: list[str] = []
    if missing:
        notes.append(
            Message(
                "experts {experts} are not in the source: figures cover the others",
                experts=numbers(missing),
            )
        )
    layers = set(loads["layer"].unique().to_list())
    gaps = set(range(min(layers), max(layers) + 1)) - layers
    if gaps:
        notes.append(
            Message(
                "layers {layers} have no expert load: dense, or their ranks are missing",
                layers=numbers(gaps),
            )
        )
    counts = sorted(loads.group_by(PLACE).agg(pl.len())["len"].unique().to_list())
    if counts[0] != counts[-1]:
        notes.append(
            Message(
                "layers show {least} to {most} experts: some rows are missing",
                least=counts[0],
                most=counts[-1],
            )
        )
    return notes


def _apart(rows: pl.DataFrame) -> list[str]:
    local = rows.filter(pl.col("ep_rank").is_null() & pl.col("tokens").is_not_null())
    each = local.group_by(*PLACE, "expert", "rank").agg(pl.col("tokens").sum())
    between = each.group_by(*PLACE, "expert").agg(
        low=pl.col("tokens").min(), high=pl.col("tokens").max()
    )
    apart = between.filter(pl.col("high") - pl.col("low") > _APART_RATIO * pl.col("high"))
    if apart.is_empty():
        return []
    return [
        Message(
            "ranks differ in {count} of {all} counts that should be equal on all ranks: the "
            "largest is used",
            count=apart.height,
            all=between.height,
        )
    ]


def trace_notes(rows: pl.DataFrame, notes: Sequence[str], held: ExpertTables) -> list[str]:
    """Notes on the load of devices that `with_trace` made of what the trace tells (`rows` of
    `DeviceLoad` and its notes), or what lacks where it made none."""
    if not held.load.is_empty():
        return [
            Message(
                "no expert load here: tokens per device are taken from kernel shapes in the trace"
            ),
            *notes,
        ]
    if rows.is_empty():
        return [Message("kernels do not show token counts"), *notes]
    if held.ranks["device"].null_count() == held.ranks.height:
        return [
            Message(
                "the trace tells the tokens of each rank, but not which ranks share experts: no"
                " expert-parallel groups were recorded. The profiler of torch_npu or MindSpore"
                " records them, the msprof command does not; the training hook"
                " (tokens_per_expert/rank*.jsonl) needs none"
            )
        ]
    why = Message("grouped matmuls have no shapes, which NPUs record from profiler_level Level1 on")
    if "grouped_matmul" in rows["basis"]:
        why = Message("the order of grouped matmuls does not tell, as in a step without backward")
    return [
        Message(
            "the trace tells the tokens of each rank, but not of which layers ({why}); ranks of"
            " other pipeline stages have other layers, so that devices are not compared. The"
            " training hook (tokens_per_expert/rank*.jsonl) counts tokens by layer",
            why=why,
        )
    ]
