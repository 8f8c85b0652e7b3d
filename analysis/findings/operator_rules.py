"""Findings about operators that take longer than they need: the first cause, and what of it a step
waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from npuscope.messages import Message, join

from ..operators.causes import CAUSE_WORDS
from ..replay.changes import changed_kernels
from ..wording import ms, percent
from .finding import Finding
from .material import Material
from .weigh import WORTH_RATIO, is_worth, share, state

_NONE = 0.0005  # of it, below which a share in words is 0.0 %
_HIDDEN = 0.01  # of the kernels' time on the critical path, below which a step gains nothing
_MOST = 0.5  # of that time, less than which is hidden for the most part
_ADVICE = {
    "padding": Message(
        "Choose sizes whose inner axes fill lines of 512 bytes and whose M, N and K are multiples"
        " of 16 (vocabulary, projections, hidden size): pad weights once, not in each step."
    ),
    "blocks": Message(
        "Larger pieces of work: more rows to a kernel (micro-batch, sequence), or sizes that split"
        " evenly over the cores."
    ),
    "small": Message(
        "One kernel over all pieces in place of many: a fused, grouped or foreach operator, or"
        " tensors joined before the operation."
    ),
    "layout": Message(
        "Keep one layout and one type through a block: torch_npu.npu.config.allow_internal_format ="
        " False, no .contiguous() or .to() in the loop, operators that take the layout they get."
    ),
    "ai_cpu": Message(
        "Other types or an equivalent operator usually bring it to the AI cores: int64, double and"
        " bool inputs and dynamic shapes are frequent causes."
    ),
    "clock": Message(
        "Look at power, cooling and other jobs of that device (npu-smi info), and exchange it for"
        " another: the others wait for it."
    ),
    "fusion": Message(
        "Let one kernel do the chain: a fused operator, torch.compile, or a kernel of your own; a"
        " backward pass may need what passes between."
    ),
    "replacement": Message("Use the operator that does the same in one kernel, where its condition"
                           " holds; compare results before you keep it."),
    "recompute": Message(
        "Keep what is computed again where memory allows (selective recomputation), and tables of"
        " positions from layer to layer: `npuscope memory-plan PATH` weighs both."
    ),
}  # fmt: skip
_EVIDENCE = ("type", "input_shapes", "dtype", "count", "total_ns", "headroom_ns", "headroom_low_ns",
          "headroom_high_ns", "evidence", "asked_by", "replacement", "condition")  # fmt: skip


def slow_operators(material: Material) -> Iterator[Finding]:
    """The first cause of operators that take longer than they need (`npuscope operators`)."""
    types = material.causes.drop_nulls("headroom_ns")
    if types.is_empty() or not is_worth(types["headroom_ns"][0], material):
        return
    cause = types.row(0, named=True)  # the most headroom first
    rows = material.cause_rows.filter(cause=cause["cause"])
    first = rows.row(0, named=True)
    statements = [
        Message(
            "{cause}: {stake} ms of a step's kernels ({share}; {low} to {high} ms) are more than"
            " they need.",
            cause=CAUSE_WORDS[cause["cause"]],
            stake=ms(cause["headroom_ns"]),
            share=percent(share(cause["headroom_ns"], material)),
            low=ms(cause["headroom_low_ns"]),
            high=ms(cause["headroom_high_ns"]),
        )
    ]
    if first["type"] is not None:
        most = Message("Most of it: {type} ({evidence}).", type=first["type"],
                       evidence=first["evidence"] or first["input_shapes"] or "-")  # fmt: skip
        statements.append(most)
    if first["replacement"] is not None:
        statements.append(
            Message("{operator} does it in one kernel.", operator=first["replacement"])
        )
    columns = [name for name in _EVIDENCE if rows[name].null_count() < rows.height]
    yield state(
        material,
        "slow_operators",
        join(statements, " "),
        cause["headroom_ns"],
        "estimated",
        "What these kernels take beyond others of this capture that do as much work; a mean of"
        " ranks and steps.",
        _ADVICE[cause["cause"]],
        rows.select(columns),
        "npuscope operators PATH --by evidence",
        changes=cause["changes"],
        no_gain=Message("the evidence names no kernels that a replay could shorten"),
    )


def is_of_kernels(one: Finding) -> bool:
    """Whether kernels of certain types are all that its changes change."""
    return bool(one.changes) and all(word.startswith("kernel:") for word in one.changes)


def on_path(one: Finding, kernels: pl.DataFrame, path: pl.DataFrame, step_ns: float) -> Finding:
    """A finding about kernels with what of their types' time lies on the critical path, and the
    advice to leave them where that is too little; any other as it is. `kernels`: rows of
    `mean_kernels` by type; `path`: those of `types_on_path`; `step_ns`: of the job's step."""
    types = changed_kernels(one.changes)
    total_ns = float(kernels.filter(pl.col("type").is_in(types))["total_ns"].sum())
    if not is_of_kernels(one) or not total_ns:
        return one
    path_ns = float(path.filter(pl.col("type").is_in(types))["path_ns"].sum())
    part = min(path_ns / total_ns, 1.0)
    statement = Message("None of these types' time is on the critical path.")
    if part >= _NONE:
        statement = Message(
            "{share} of these types' time is on the critical path.", share=percent(part)
        )
    finding = replace(one, statement=join((one.statement, statement), " "))
    if part < _HIDDEN:
        hidden = Message(
            "Leave it for now: other kernels or communication hide it, and a step gains nothing."
        )
        return replace(finding, advice=hidden)
    if part < _MOST and path_ns < WORTH_RATIO * step_ns:
        hidden = Message(
            "Leave it for now: other kernels or communication hide most of it, and a step gains"
            " less than {share}, however short these kernels become.",
            share=percent(WORTH_RATIO),
        )
        return replace(finding, advice=hidden)
    return finding
