"""What one rank can answer: the needs of each analysis against what was recorded of it.

One verdict of many ranks: what most of them can answer, and who deviates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from npuscope.collector.store.manifest import Manifest
from npuscope.messages import Message, join

from ..wording import numbers, ranks_named
from .capabilities import CAPABILITIES, RANKS, Capability, Need
from .profiler_options import (
    CPU,
    LEVEL1,
    MEMORY,
    METADATA,
    NPU,
    PMU,
    STACKS,
    STEPS,
    Options,
    Setting,
)

Support = Literal["yes", "partly", "no"]
# What the profiler can be told on a GPU, in its words there.
_GPU_SAYS = {
    CPU: CPU.says, NPU: "activities with ProfilerActivity.CUDA", MEMORY: MEMORY.says,
    STACKS: STACKS.says, STEPS: STEPS.says,
}  # fmt: skip
NOT_SELECTED = "not selected when the rank was read"
_ANALYSE = "run analyse() on the whole folder, or copy all that it wrote"


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What is known of a rank.

    counts: the metric `contents`, content -> count. options: what is known of what the profiler
    was told. files: names of the files it was read from, None: unknown; unread: those that could
    not be read, in full at least. left_out: tables that were not selected; stacks: whether call
    stacks were kept. is_gpu: it is no NPU's. no_peak: why the peak of its chip is unknown, empty
    where it is known, None where nobody looked.
    """

    counts: Mapping[str, int]
    options: Options = field(default_factory=dict)
    files: frozenset[str] | None = None
    unread: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    stacks: bool = False
    world_size: int | None = None
    is_gpu: bool = False
    no_peak: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an analysis is possible; else why not, what would make it so, and which settings."""

    capability: str
    support: Support
    reason: str | None = None
    remedy: str | None = None
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True, slots=True)
class _Lack:
    is_fatal: bool
    reason: str
    remedies: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()


def rank_record(
    facts: Mapping[str, Any],
    counts: Mapping[str, int],
    manifest: Manifest | None = None,
    no_peak: str | None = None,
) -> RankRecord:
    """What is known of a rank: `facts` of the table `ranks`, `counts` of the metric `contents`."""
    return RankRecord(
        counts,
        known_options(facts, manifest.options if manifest else None),
        files=frozenset(Path(one.path).name for one in manifest.sources) if manifest else None,
        unread=frozenset(Path(one).name for one in manifest.failed_files)
        if manifest
        else frozenset(),
        left_out=frozenset(facts["left_out_tables"] or ()),
        stacks=manifest.selection.stacks if manifest else False,
        world_size=facts["world_size"],
        is_gpu=facts["framework"] == "kineto",
        no_peak=no_peak,
    )


def known_options(facts: Mapping[str, Any], options: Options | None) -> Options:
    """What the profiler was told: by its own file, else what tables kept of it."""
    if options is not None:
        return options
    options_compared = ("profiler_level", "aic_metrics")
    return {name: facts[name] for name in options_compared if facts[name] is not None}


def judge(rank: RankRecord) -> list[Verdict]:
    """A verdict for every capability, in their order."""
    return [_verdict(capability, rank) for capability in CAPABILITIES]


def _verdict(capability: Capability, rank: RankRecord) -> Verdict:
    if (
        capability.talks
        and rank.world_size == 1
        and not any(name.startswith("comm_") for name in rank.counts)
    ):
        return Verdict(capability.name, "no", "a job of one rank has no communication")
    lacks: list[_Lack] = []
    told_tables: set[str] = set()
    for need in capability.needs:
        empty = {table for table in need.tables if not rank.counts.get(table)}
        if empty and empty == need.tables and empty <= told_tables:
            continue  # that the table is empty is told: what of it lacks follows
        if lack := _lack(need, rank):
            lacks.append(lack)
            told_tables |= empty
    if not lacks:
        return Verdict(capability.name, "yes")
    fatal = [lack for lack in lacks if lack.is_fatal]
    is_decided = fatal or lacks
    return Verdict(
        capability.name,
        "no" if fatal else "partly",
        join(dict.fromkeys(_words(lack.reason) for lack in is_decided), "; "),
        join(dict.fromkeys(_words(text) for lack in lacks for text in lack.remedies), "; ") or None,
        tuple(dict.fromkeys(setting for lack in lacks for setting in lack.settings)),
    )


def _words(text: str) -> Message:
    """Words of ours, to be translated within a sentence."""
    return text if isinstance(text, Message) else Message(text)


def _lack(need: Need, rank: RankRecord) -> _Lack | None:
    """What a rank lacks of a need; None where it has all."""
    count = max(rank.counts.get(content, 0) for content in need.contents)
    whole = rank.counts.get(need.of, 0) if need.of else 0
    if need.tells_peak and rank.no_peak is not None and (count or not rank.no_peak):
        return _Lack(False, Message("peak {why}", why=rank.no_peak)) if rank.no_peak else None
    if count and count >= need.least * whole:
        return None
    is_fatal = need.essential and not count
    if not count and any(rank.counts.get(content) for content in need.instead):
        is_fatal = False
    is_partly = need.essential and not is_fatal and not count
    reason = need.only if is_partly else need.missing
    why, remedies, settings = _explain(need, rank)
    if count:
        reason = Message(
            "{count} of {whole} only: for the others, {reason}",
            count=f"{count:,}",
            whole=f"{whole:,}",
            reason=_words(reason),
        )
    return _Lack(
        is_fatal,
        Message("{reason} ({why})", reason=_words(reason), why=_words(why)) if why else reason,
        remedies,
        settings,
    )


def _explain(need: Need, rank: RankRecord) -> tuple[str, tuple[str, ...], tuple[Setting, ...]]:
    """Why something lacks where that is known, what would help, and the settings among that."""
    if need.tables and need.tables <= rank.left_out:
        tables = ",".join(sorted(need.tables))
        command = f"`npuscope ingest PATH --tables {tables} --ranks LIST`"
        return NOT_SELECTED, (command,), ()
    options = [s for s in need.settings if s in _GPU_SAYS] if rank.is_gpu else need.settings
    on = {setting: _is_on(setting, rank) for setting in options}
    settings = tuple(setting for setting, is_on in on.items() if is_on is not True)
    all_on = bool(on) and not settings
    is_off = False in on.values()
    if need.ingest and all_on and not rank.stacks:
        return "recorded, but not kept", (f"`npuscope ingest PATH {need.ingest}`",), ()
    if not is_off and (file := next(iter(_files_of(need, rank.unread)), None)):
        return Message("{file} was not read in full", file=file), ("see what was lost",), ()
    if rank.is_gpu:
        remedies = tuple(_GPU_SAYS[setting] for setting in settings)
        remedies += (need.gpu_advice,) if need.gpu_advice else ()
        return "" if remedies else "not in a GPU's trace, or not read from it", remedies, ()
    if all_on and _is_elsewhere(need, rank):
        return Message("{file} is not here", file=need.file), (_ANALYSE,), ()
    advice = (need.advice,) if need.advice else ()
    if all_on:
        if need.file and rank.files is None:  # it may be elsewhere: nobody knows its files
            advice = (*advice, _ANALYSE)
        return "though it was asked for", advice, ()
    sentences = tuple(setting.says for setting in settings)
    return "", sentences + (advice if not sentences or not need.essential else ()), settings


def _is_on(setting: Setting, rank: RankRecord) -> bool | None:
    """Whether the profiler was told so; None where that is unknown."""
    if rank.is_gpu and setting in (CPU, NPU):  # its trace tells no activities
        return bool(rank.counts.get("host_ops" if setting is CPU else "kernels")) or None
    if setting is PMU and LEVEL1.is_on(rank.options) is False:
        return False  # below Level1 they are not recorded, whatever the options say
    return setting.is_on(rank.options)


_HOLDERS = {
    "trace_view.json": ("trace_view", "trace.json", "msprof_"),
    "kernel_details.csv": ("kernel_details", "op_summary"),
    "communication.json": ("communication.json",),
    "communication_matrix.json": ("communication_matrix",),
    "memory_record.csv": ("memory_record",),
    "operator_memory.csv": ("operator_memory",),
    "analysis.db": ("analysis.db", "communication_analyzer.db"),
    "DB": ("_profiler_", "_profiler.db", "msprof_"),
}


def _holders(need: Need) -> Iterator[str]:
    """How names of files that would hold a need's rows begin, or what they contain."""
    for word, beginnings in _HOLDERS.items():
        if word in need.file:
            yield from beginnings


def _files_of(need: Need, files: Iterable[str]) -> list[str]:
    return sorted(
        name
        for name in files
        if any(part in name for part in _holders(need)) and "info" not in name
    )


def _is_elsewhere(need: Need, rank: RankRecord) -> bool:
    return bool(need.file) and rank.files is not None and not _files_of(need, rank.files)


@dataclass(frozen=True, slots=True)
class _Deviation:
    """Ranks whose verdict is another than the capture's."""

    ranks: tuple[int, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CaptureVerdict:
    """What most ranks can answer; `deviations` are the others."""

    capability: str
    question: str
    support: Support
    reason: str | None = None
    remedy: str | None = None
    deviations: tuple[_Deviation, ...] = ()
    settings: tuple[Setting, ...] = ()


_RANKING: Mapping[Support, int] = {"yes": 0, "partly": 1, "no": 2}


def whole_capture(
    ranks: Sequence[tuple[int, Sequence[Verdict]]],
) -> tuple[CaptureVerdict, ...]:
    """A verdict per capability over the ranks of a capture, each with its own verdicts.

    Where as many ranks say one thing as another, the better is the capture's. `settings` are those
    that any rank needs.
    """
    capture_verdicts: list[CaptureVerdict] = []
    for position, capability in enumerate(CAPABILITIES):
        alike: dict[Verdict, list[int]] = defaultdict(list)
        for rank, verdicts in ranks:
            alike[verdicts[position]].append(rank)
        if not alike:
            continue
        order = sorted(alike, key=lambda v: (-len(alike[v]), _RANKING[v.support], alike[v][0]))
        most, *others = order
        capture_verdicts.append(
            CaptureVerdict(
                capability.name,
                capability.question,
                most.support,
                most.reason,
                most.remedy,
                tuple(_Deviation(tuple(sorted(alike[v])), v) for v in others),
                tuple(dict.fromkeys(s for v in order for s in v.settings)),
            )
        )
    return tuple(capture_verdicts)


def across_ranks(
    *,
    present: Collection[int],
    world_size: int | None,
    least_rank_count: int | None,
    missing: Sequence[int] | None,
    lacking_steps: Mapping[int, Sequence[int]],
    clocks: Collection[str | None],
    levels: Collection[str | None],
) -> CaptureVerdict:
    """Whether the ranks of a capture can be compared with each other."""
    if len(present) < 2:
        alone = world_size == 1
        reason = (
            "the job has one rank"
            if alone
            else Message("only {ranks} is here", ranks=ranks_named(present))
        )
        remedy = None if alone else "profile every rank, or one of each pipeline stage"
        return CaptureVerdict(RANKS.name, RANKS.question, "no", reason, remedy)
    sentences: list[str] = []
    if missing:
        sentences.append(Message("{ranks} missing", ranks=ranks_named(missing)))
    elif missing is None and least_rank_count and least_rank_count > len(present):
        sentences.append(
            Message(
                "{count} of at least {least} ranks are here",
                count=len(present),
                least=least_rank_count,
            )
        )
    elif missing is None:
        sentences.append("how many ranks the job has is unknown")
    if lacking_steps:
        count, who = len(lacking_steps), ranks_named(lacking_steps)
        steps = numbers({step for lost in lacking_steps.values() for step in lost})
        lack = "{ranks} lacks step {steps}" if count == 1 else "{ranks} lack step {steps}"
        sentences.append(Message(lack, ranks=who, steps=steps))
    if "device" in clocks:
        sentences.append("timestamps of some ranks are device-local, not wall-clock times")
    levels_of_ranks = Counter(level for level in levels if level)
    if len(levels_of_ranks) > 1:
        sentences.append(
            Message(
                "ranks were profiled at different levels ({levels})",
                levels=", ".join(sorted(levels_of_ranks)),
            )
        )
    if not sentences:
        return CaptureVerdict(RANKS.name, RANKS.question, "yes")
    told_size = world_size is not None or missing is not None
    remedy = "profile every rank for the same steps at the same level"
    if not told_size:
        remedy = join((remedy, METADATA.says), "; ")
    return CaptureVerdict(RANKS.name, RANKS.question, "partly", join(sentences, "; "), remedy)
