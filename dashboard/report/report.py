"""The report: facts of each capture, what to change first, where its steps go, what runs longest.

Frames in, blocks out: `report_terminal`, `html_page` and `markdown` draw them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain
from typing import Any

import duckdb
import polars as pl

from npuscope.analysis import means, query
from npuscope.analysis.doctor.limits import least_rank_count
from npuscope.analysis.experts.cost.load_overview import Overview, hottest
from npuscope.analysis.findings.findings import capture_place, findings
from npuscope.analysis.flops.losses import loss_notes, together
from npuscope.analysis.ranks.stragglers.blame import by_rank, later_steps, rank_blame
from npuscope.analysis.report_rows import (
    ABSENT,
    HOTTEST,
    NO_LOAD,
    expert_overview,
    is_across,
    mfu_losses,
    no_waterfall,
    report_pipeline,
)
from npuscope.analysis.scope import Scope
from npuscope.analysis.wording import megabytes, ms, percent, plain, ranks_named, us
from npuscope.collector.wall_clock import EPOCH_FROM_NS
from npuscope.messages import Message, join

from ..terminal.experts.expert_tables import layer_columns
from ..terminal.parts_table import mean_parts_table, waterfall_table
from ..terminal.straggler_tables import ranks_table
from ..terminal.tables import Column, FittedTable, decimals, steps_table
from .blocks import Block, Bullets, Chart, Facts, Findings, Heading, Sentence
from .pipeline_section import pipeline_section

_MAX_STEP_ROWS = 48
COLLECT = (
    "the trace gives tokens per device only: a plan needs tokens per expert, from the training"
    " hook (tokens_per_expert) or the server's dumps"
)


def report(
    con: duckdb.DuckDBPyConnection,
    scope: Scope,
    *,
    top: int,
    path: str = "PATH",
    warnings: Sequence[str] = (),
    charts: bool = False,
) -> Iterator[Block]:
    """Everything the report says about the chosen captures, in order.

    `top` is the length of rankings; `path` stands in commands that show more; `warnings` are what
    readers warned of; `charts` are for what can show them.
    """
    for facts in query.capture_facts(con, scope).to_dicts():
        here = replace(scope, run=facts["run"], capture=facts["capture"])
        frame = query.steps(con, here)
        if frame.is_empty():
            continue
        overview, ran = expert_overview(con, here), report_pipeline(con, here)
        sections = (
            _steps(con, here, frame),
            _spread(con, here),
            _mfu(con, here),
            _kernels(con, here, top),
            _communication(con, here, top),
            _waits(con, here, top),
            pipeline_section(ran),
            experts_blocks(overview, top=top, place=capture_place(con, here, path))
            if here.rank is None
            else (),
            _memory(con, here) if charts else (),
            _limits(con, here),
        )
        yield from _opening(con, here, facts, path, overview)
        for block in chain.from_iterable(sections):
            if charts or not isinstance(block, Chart):
                yield block
    if warnings:
        yield Bullets("Data lost or inferred when reading", tuple(warnings))


def summary(con: duckdb.DuckDBPyConnection, scope: Scope, *, path: str = "PATH") -> Iterator[Block]:
    """How the report begins: facts and findings of each capture."""
    for facts in query.capture_facts(con, scope).to_dicts():
        here = replace(scope, run=facts["run"], capture=facts["capture"])
        yield from _opening(con, here, facts, path, expert_overview(con, here))


def _opening(
    con: duckdb.DuckDBPyConnection,
    here: Scope,
    facts: Mapping[str, Any],
    path: str,
    overview: Overview | None,
) -> Iterator[Block]:
    yield Heading(f"{facts['run']}  {facts['capture']}")
    yield _facts(facts, least_rank_count(con, here) if facts["world_size"] is None else None)
    if here_findings := findings(con, here, path=path, experts=overview):
        yield Findings(tuple(here_findings))


def _facts(facts: Mapping[str, Any], least: int | None) -> Facts:
    """What was recorded, in a few lines; the job has `least` ranks, or more."""
    lines = (
        ("ranks", _ranks(facts, least)),
        ("not captured", _missing_ranks(facts)),
        ("parallel", _parallel(facts)),
        ("steps", ", ".join(str(step) for step in facts["steps"] or []) or "not marked"),
        ("recorded", _recording(facts)),
        ("wall time", _wall_time(facts)),
    )
    return Facts(tuple((name, value) for name, value in lines if value))


def _ranks(facts: Mapping[str, Any], least: int | None) -> str:
    names = query.numbers(facts["ranks"])
    size = facts["world_size"]
    sentence = "{number} of {all} ({ranks})" if size else "{number} ({ranks})"
    if size is None and least is not None and least > facts["rank_count"]:
        size = least
        sentence = "{number} of at least {all} ({ranks})"
    ranks_text = Message(sentence, number=facts["rank_count"], all=size, ranks=names)
    if facts["chips"]:
        ranks_text = Message("{ranks} on {chip}", ranks=ranks_text, chip=", ".join(facts["chips"]))
    return ranks_text


def _missing_ranks(facts: Mapping[str, Any]) -> str:
    """Waiting for them is a part of its own, and what they did is unknown."""
    missing = facts["missing_ranks"]
    return (
        Message("{ranks}; waiting for them is shown separately", ranks=ranks_named(missing))
        if missing
        else ""
    )


def _parallel(facts: Mapping[str, Any]) -> str:
    sizes = [(kind, facts[f"{kind}_size"]) for kind in ("tp", "pp", "dp", "cp", "ep")]
    return " ".join(f"{kind.upper()}{size}" for kind, size in sizes if size)


def _recording(facts: Mapping[str, Any]) -> str:
    parts = [
        *(facts["frameworks"] or []),
        *(facts["framework_versions"] or []),
        *(f"CANN {version}" for version in facts["cann_versions"] or []),
        *(facts["profiler_levels"] or []),
        *(Message("{form} export", form=form) for form in facts["source_formats"] or []),
    ]
    return join(parts)


def _wall_time(facts: Mapping[str, Any]) -> str:
    """From the first start to the last end of the ranks' profiling sessions."""
    start, end = facts["window_start_ns"], facts["window_end_ns"]
    if start is None or end is None:
        return ""
    if start < EPOCH_FROM_NS:
        return Message("{seconds} s on a device clock", seconds=f"{(end - start) / 1e9:.3f}")
    moment = datetime.fromtimestamp(start // 10**9, tz=timezone.utc)
    return Message(
        "{seconds} s from {moment} UTC",
        seconds=f"{(end - start) / 1e9:.3f}",
        moment=f"{moment:%Y-%m-%d %H:%M:%S}",
    )


def _steps(con: duckdb.DuckDBPyConnection, here: Scope, frame: pl.DataFrame) -> Iterator[Block]:
    table, caption = frame, None
    if frame.height > _MAX_STEP_ROWS:
        # The slowest say most; every rank is in the spread below.
        longest = frame.sort("stage_ns", descending=True, nulls_last=True).head(_MAX_STEP_ROWS)
        table = longest.sort("rank", "step")
        caption = Message(
            "the {shown} longest of {all}: {command} gives all",
            shown=_MAX_STEP_ROWS,
            all=frame.height,
            command="`npuscope steps`",
        )
    yield _verdict(means.mean_steps(con, here).row(0, named=True))
    yield Chart("ranks", means.mean_step_bars(con, here))
    yield steps_table(table, caption=caption)
    parts = means.mean_parts(con, here)
    if not parts.is_empty():
        yield Chart("parts", parts)
        yield mean_parts_table(parts)


def _verdict(mean: Mapping[str, Any]) -> Sentence:
    """A mean step in one sentence: shares of its length, and how much communication is hidden."""
    if not mean["length_ns"]:
        return Sentence("no step has computing, communication and free time all known")
    shares = {
        name: percent(mean[of] / mean["length_ns"])
        for name, of in (
            ("computing", "computing_ns"),
            ("exposed", "exposed_communication_ns"),
            ("free", "free_ns"),
        )
    }
    masked = Message("no communication")
    if mean["masking_ratio"] is not None:
        masked = Message("communication masked {masked}", masked=percent(mean["masking_ratio"]))
    sentence = "all steps: computing {computing}, exposed {exposed}, free {free}"
    return Sentence(Message(sentence, **shares), masked)


def _spread(con: duckdb.DuckDBPyConnection, here: Scope) -> Iterator[Block]:
    if here.rank is not None:
        return
    frame = query.spread(con, here)
    frame = frame.filter(pl.col("rank_count") > 1)
    if frame.is_empty():
        return
    columns = [
        Column("step", "step", plain),
        Column("measure", "measure", is_word=True),
        Column("ranks", "rank_count", plain, 1),
        Column("min", "min_ns", ms),
        Column("median", "median_ns", ms, 2),
        Column("max", "max_ns", ms),
        Column("at rank", "max_rank", plain),
        Column("(max-min)/mean", "spread_ratio", percent),
    ]
    rows = frame.with_columns(pl.col("measure").str.replace_all("_", " ")).to_dicts()
    yield FittedTable(columns, rows, "Spread across ranks (ms)")


def _kernels(con: duckdb.DuckDBPyConnection, here: Scope, top: int) -> Iterator[Block]:
    key: means.KernelKey = "type"
    frame = means.mean_kernels(con, here, by=key)
    if frame.is_empty():
        yield Sentence(ABSENT["kernels"])
        return
    if frame[key].null_count() == frame.height:  # the profiler level records no types
        key = "name"
        frame = means.mean_kernels(con, here, by=key)
    columns = [
        Column(key, key),
        Column("core", "core", None, 1),
        Column("count", "count", decimals("{:,.1f}")),
        Column("ms", "total_ns", ms),
        Column("of computing", "share_ratio", percent),
        Column("mean us", "mean_ns", us),
        Column("max us", "max_ns", us, 2),
    ]
    more = frame.height - top
    title = "Top kernels by {key}: of a rank's step ({scope})"
    if not frame["step_count"][0]:
        title = "Top kernels by {key}: of a rank's whole capture ({scope})"
    yield Chart("kernels", frame.head(top))
    yield FittedTable(
        columns,
        frame.head(top).to_dicts(),
        Message(title, key=key, scope=_over(frame)),
        _more(more, f"`npuscope kernels --by {key}`"),
    )


def _over(frame: pl.DataFrame) -> str:
    """What rows of a mean are over: ranks of which single events are known, steps but warm-up."""
    first = frame.row(0, named=True)
    ranks, steps = first["rank_count"], first["step_count"]
    if not steps:
        if ranks == 1:
            return Message("mean of 1 rank, no steps")
        return Message("mean of {ranks} ranks, no steps", ranks=f"{ranks:,}")
    over = ("mean of {ranks} ranks, {steps} steps", "mean of {ranks} ranks, 1 step")
    if ranks == 1:
        over = ("mean of 1 rank, {steps} steps", "mean of 1 rank, 1 step")
    return Message(over[steps == 1], ranks=f"{ranks:,}", steps=f"{steps:,}")


def _more(count: int, command: str) -> str | None:
    sentence = "and {number} more: {command}"
    return Message(sentence, number=count, command=command) if count > 0 else None


def _communication(con: duckdb.DuckDBPyConnection, here: Scope, top: int) -> Iterator[Block]:
    frame = means.mean_comm(con, here, by="op")
    if frame.is_empty():
        yield Sentence(ABSENT["communication"])
        return
    columns = [
        Column("group", "kind"),
        Column("operation", "op_type"),
        Column("groups", "group_count", plain, 1),
        Column("count", "op_count", decimals("{:,.1f}")),
        Column("ms", "total_ns", ms),
        Column("exposed ms", "exposed_attributed_ns", ms),
        Column("masked", "masking_ratio", percent),
        Column("MB", "size_bytes", megabytes),
    ]
    more = frame.height - top
    over = _over(frame)
    if frame["union_ns"].null_count() == frame.height:
        over = Message("{scope}, as HCCL measured it", scope=over)
    title = "Communication by group and operation: of a rank's step ({scope})"
    if not frame["step_count"][0]:
        title = "Communication by group and operation: of a rank's whole capture ({scope})"
    yield Chart("communication", frame)
    yield FittedTable(
        columns,
        frame.head(top).to_dicts(),
        Message(title, scope=over),
        join(
            [
                means.means_of_fewer(frame.head(top), {"size": "MB"}) or "",
                _more(more, "`npuscope comm --by op`") or "",
            ],
            "; ",
        )
        or None,
    )


def _waits(con: duckdb.DuckDBPyConnection, here: Scope, top: int) -> Iterator[Block]:
    """Who makes the others wait, suspects first."""
    if here.rank is not None:
        return
    blame = later_steps(con, rank_blame(con, here)) if is_across(con) else None
    ranks = None if blame is None else by_rank(blame)
    if blame is None or ranks is None or ranks.height < 2:
        yield Sentence(ABSENT["rank_blame"])
        return
    caused = ranks.filter((pl.col("caused_wait_ns") > 0) | pl.col("verdict").is_not_null())
    if caused.is_empty():
        return
    yield ranks_table(blame.join(caused, on=["run", "capture", "rank"], how="semi"), top=top)


def _mfu(con: duckdb.DuckDBPyConnection, here: Scope) -> Iterator[Block]:
    """From the peak of the chip to what its kernels achieve, loss by loss."""
    figures, rows = mfu_losses(con, here)
    if why := no_waterfall(rows, figures):
        yield Sentence(why)
        return
    counted = figures.rows.filter(pl.col("kernel_mfu_causal_ratio").is_not_null())
    for peak in counted["peak_source"].unique(maintain_order=True):
        remark = "peak: {source}; attention counted as causal"
        yield Sentence(Message(remark, source=figures.sources[peak]))
    for note in loss_notes(figures.rows, rows):
        yield Sentence(note)
    job = together(con, rows)
    yield Chart("waterfall", job)
    yield waterfall_table(job, together(con, rows, by="stage"), top=2)


def _memory(con: duckdb.DuckDBPyConnection, here: Scope) -> Iterator[Block]:
    """Memory of the rank that takes most, where curves were recorded."""
    fullest = query.memory_facts(con, here).fullest
    if fullest is None:
        yield Sentence(ABSENT["memory"])
        return
    run, capture, rank = fullest
    curve = query.memory_curve(con, Scope(run, capture, rank), source="record")
    yield Chart("memory_curve", curve)


def _limits(con: duckdb.DuckDBPyConnection, here: Scope) -> Iterator[Block]:
    """What this capture cannot tell, and what would make it."""
    notes = query.notes(con, here) + query.limits(con, here)
    if notes:
        yield Bullets("What to know about these figures", tuple(notes))


def experts_blocks(overview: Overview | None, *, top: int, place: str) -> Iterator[Block]:
    """What a report says of expert load; `place` stands in the command that plans."""
    if overview is None:
        yield Sentence(NO_LOAD)
        return
    if verdict := _expert_verdict(overview):
        yield Sentence(*verdict)
    if hot := _hottest(overview):
        yield Sentence(hot)
    phase = overview.loads["phase"].drop_nulls()
    visible = overview.loads.filter(pl.col("phase") == phase[0]) if len(phase) else overview.loads
    entry = visible.drop_nulls("layer")
    if entry.height and entry["layer"].n_unique() > 1:
        yield Chart("load" if overview.item == "expert" else "devices", entry)
    more = overview.layers.height - top
    yield FittedTable(
        layer_columns(overview),
        overview.layers.head(top).to_dicts(),
        "Expert load by layer (mean of steps)",
        Message("and {more} more: `npuscope experts`", more=more) if more > 0 else None,
    )
    for note in overview.notes:
        yield Sentence(note)
    if overview.item == "device":
        yield Sentence(COLLECT)
    elif overview.devices_count and overview.devices_count > 1:
        command = f"npuscope experts plan {place} --devices {overview.devices_count}"
        yield Sentence(Message("a better placement and its gain: `{command}`", command=command))


def _expert_verdict(overview: Overview) -> tuple[str, str] | None:
    devices = overview.layers["device_max_over_mean"].drop_nulls()
    if overview.item == "device" and devices.is_empty():
        return None
    sentences: list[str] = []
    if overview.item == "expert":
        of_experts = "the most loaded expert of a layer has {mean} times the mean"
        sentences.append(Message(of_experts, mean=_mean(overview, "max_over_mean")))
    if len(devices):
        of_devices = "the most loaded device has {mean} times the mean of its group"
        sentences.append(Message(of_devices, mean=_mean(overview, "device_max_over_mean")))
    experts = Message("experts: {told}", told=join(sentences))
    if overview.cost is None or overview.cost["excess_ns"] is None:
        return experts, ""
    cost = Message("the imbalance costs {cost} ms per step", cost=ms(overview.cost["excess_ns"]))
    return experts, cost


def _mean(overview: Overview, column: str) -> str:
    mean = overview.mean_of(column)
    return Message("an unknown number of") if mean is None else f"{mean:.2f}"


def _hottest(overview: Overview) -> str:
    hottest_rows = hottest(overview, HOTTEST)
    if hottest_rows.is_empty():
        return ""
    names = join(
        Message(
            "expert {expert} of layer {layer} ({over})",
            expert=row["expert"],
            layer=row["layer"],
            over=f"{row['over_mean']:.2f}",
        )
        for row in hottest_rows.to_dicts()
    )
    return Message("hottest, times the mean of the layer: {experts}", experts=names)
