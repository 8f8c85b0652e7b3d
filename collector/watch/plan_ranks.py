"""What finished profiles become: ranks of a capture of the store, new or there already.

Ranks that belong together need not arrive together: whoever comes later joins the capture whose
window it shares. What the store has of the same files is not read again, so that a watcher needs
no memory of its own: after a restart it finds everything done as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..discover.captures import KnownCapture, assign, recency
from ..discover.expert_folders import current_loads, recorded_files, with_loads
from ..discover.numbering import ORIGIN
from ..discover.roles import role_of
from ..discover.search import Findings, Profile, job_name, number_ranks
from ..discover.train_logs import current_log, logged_file, with_log
from ..ingest.plan import is_unchanged
from ..ingest.read_rank import RankTask
from ..model import RankSource, storable
from ..selection import Selection
from ..store.compact_files import torn
from ..store.manifest import Manifest, capture_manifests, rank_folder, read_manifest
from ..store.retention import read_dropped
from .capture_spans import Key, StoreSpans
from .folders import READY, FinishedProfile, Verdict
from .work import Contents


@dataclass(frozen=True, slots=True)
class Plan:
    """`tasks` to read; by profile folder `refusals` with the reason, `passed_over` with the reason
    (there is nothing wrong with those), and `unchanged`."""

    tasks: tuple[RankTask, ...]
    refusals: dict[str, str]
    passed_over: dict[str, str]
    unchanged: frozenset[str]


@dataclass(slots=True)
class _RoundPlan:
    tasks: list[RankTask]
    refusals: dict[str, str]
    passed_over: dict[str, str]
    unchanged: set[str]


def make_plan(
    profiles: Sequence[FinishedProfile],
    contents: Mapping[str, Contents],
    spans: StoreSpans,
    *,
    reading: Sequence[RankTask] = (),
    run: str | None = None,
    memory_bytes: int | None = None,
    keep_captures: int | None = None,
) -> Plan:
    """What to do with finished profiles, in which `contents` were found.

    `run` names the run; else READY.json, the job's metadata or the watched folder does. Profiles
    older than the `keep_captures` newest captures, which would be dropped at once, and those that
    `compact` dropped are passed over. Of a rank that somebody is `reading` another profile waits.
    """
    plan = _RoundPlan([], {}, {}, set())
    reasons: dict[str, str] = {}
    of_run: dict[str, list[RankSource]] = {}
    under_way = {(one.run, one.capture, one.source.rank) for one in reading}
    for source, one in _sources(profiles, contents, spans, plan, reasons):
        name = run or one.verdict.run or job_name(source) or one.root.resolve().name or "root"
        of_run.setdefault(storable(name), []).append(source)
    for name, sources in sorted(of_run.items()):
        there = spans.of_run(name) + _captures_of(name, reading)
        for capture, source in _assign(spans, there, name, sources, plan):
            if (name, capture, source.rank) in under_way:
                continue
            task = _task(spans, name, capture, source, plan)
            if task is not None:
                own = tuple(
                    (p, why) for p, why in reasons.items() if Path(p).is_relative_to(source.root)
                )
                plan.tasks.append(replace(task, memory_bytes=memory_bytes, unreadable=own))
    plan.tasks[:] = _not_dropped(plan, spans)
    if keep_captures is not None:
        plan.tasks[:] = _young_enough(plan, spans, keep_captures)
    return Plan(tuple(plan.tasks), plan.refusals, plan.passed_over, frozenset(plan.unchanged))


def _captures_of(run: str, reading: Sequence[RankTask]) -> list[KnownCapture]:
    """Captures that ranks are being read into."""
    return [
        KnownCapture(one.capture, one.source.window_start_ns, one.source.window_end_ns)
        for one in reading
        if one.run == run
    ]


def _sources(
    finished: Sequence[FinishedProfile],
    contents: Mapping[str, Contents],
    spans: StoreSpans,
    plan: _RoundPlan,
    problems: dict[str, str],
) -> list[tuple[RankSource, FinishedProfile]]:
    """The ranks of the profiles; `problems` gets files that cannot be opened."""
    profiles: list[Profile] = []
    by_folder: dict[str, FinishedProfile] = {}
    for one in finished:
        if one.look.path not in contents:
            continue
        sources_here = contents[one.look.path].findings
        if sources_here is None:
            plan.refusals[one.look.path] = contents[one.look.path].error
            continue
        problems.update(
            {p.path: p.message for p in sources_here.problems if role_of(Path(p.path).name)}
        )
        if not sources_here.profiles:
            reasons = "; ".join(problem.message for problem in sources_here.problems)
            plan.refusals[one.look.path] = reasons or "holds no profile"
        for profile in sources_here.profiles:
            by_folder[profile.folder] = one
            profile = _with_told_rank(profile, one.verdict, len(sources_here.profiles))
            profiles.append(_with_former_rank(profile, spans))
    ranks = number_ranks(Findings(tuple(profiles), ())).ranks
    return [(source, by_folder[source.root]) for source in ranks]


def _with_told_rank(profile: Profile, verdict: Verdict, n_profiles: int) -> Profile:
    """The profile with the rank that READY.json tells, where no other file does."""
    if profile.identity.rank is not None or verdict.rank is None or n_profiles > 1:
        return profile
    identity = replace(profile.identity, rank=verdict.rank, origin=f"rank in {READY}")
    return replace(profile, identity=identity)


def _with_former_rank(profile: Profile, spans: StoreSpans) -> Profile:
    """The profile with the rank it was numbered with before, where no file tells one."""
    if profile.identity.rank is not None:
        return profile
    root, identity = storable(profile.folder), profile.identity
    for key, held in spans.captures().items():
        starts, ends = held.start_ns, held.end_ns
        if starts is not None and ends is not None and identity.window_start_ns is not None:
            if identity.window_start_ns > ends or (identity.window_end_ns or ends) < starts:
                continue
        for one in capture_manifests(rank_folder(spans.store, *key, 0).parent):
            if one.source_root == root:
                identity = replace(identity, rank=one.rank, origin=ORIGIN)
                return replace(profile, identity=identity)
    return profile


def _assign(
    spans: StoreSpans,
    there: Sequence[KnownCapture],
    run: str,
    sources: Sequence[RankSource],
    plan: _RoundPlan,
) -> Iterable[tuple[str, RankSource]]:
    """Sources with their captures; those of a rank that a capture has of another time apart."""
    ranks = assign(sources, there)
    _pass_over(ranks.passed_over, plan)
    strangers: list[RankSource] = []
    for capture, source in ranks.sources:
        current = read_manifest(rank_folder(spans.store, run, capture, source.rank))
        if current and _is_of_another_time(current, source):
            strangers.append(source)
        else:
            yield capture, source
    names = {one.name for one in there}
    for source in strangers:
        others = [one for one in there if not _shares_rank(spans, run, one, source)]
        for capture, stranger in assign([source], others).sources:
            name, number = capture, 2
            while name in names and name not in {one.name for one in others}:
                name, number = f"{capture}-{number}", number + 1
            yield name, stranger


def _pass_over(pairs: Iterable[tuple[RankSource, RankSource]], plan: _RoundPlan) -> None:
    for dropped, winner in pairs:
        plan.passed_over[dropped.root] = _ended_later(dropped, winner.root)


def _ended_later(source: RankSource, other: str) -> str:
    return (
        f"rank {source.rank} was also profiled at the same time in {other}, which ended last and"
        " is used"
    )


def _shares_rank(spans: StoreSpans, run: str, one: KnownCapture, source: RankSource) -> bool:
    current = read_manifest(rank_folder(spans.store, run, one.name, source.rank))
    return current is not None and _is_of_another_time(current, source)


def _is_of_another_time(current: Manifest, source: RankSource) -> bool:
    """Whether two profiles of a rank were surely recorded one after the other."""
    if current.source_root == storable(source.root):
        return False
    if current.window_start_ns is None or current.window_end_ns is None:
        return False
    if source.window_start_ns is None or source.window_end_ns is None:
        return False
    return (
        source.window_start_ns > current.window_end_ns
        or source.window_end_ns < current.window_start_ns
    )


def _task(
    spans: StoreSpans, run: str, capture: str, source: RankSource, plan: _RoundPlan
) -> RankTask | None:
    """What is to be read of a rank; None where nothing is."""
    current = read_manifest(rank_folder(spans.store, run, capture, source.rank))
    selection = Selection().in_full()
    if current is not None:
        if current.source_root != storable(source.root):
            reason = _keeps(current, source)
            if reason:
                kind = plan.refusals if ORIGIN in reason else plan.passed_over
                kind[source.root] = reason
                return None
        else:
            source = with_log(source, logged_file(current, None))
            source = with_loads(source, recorded_files(current, None))
            selection = current.selection
            if is_unchanged(spans.store, current, source) and not torn(spans.store, [current]):
                plan.unchanged.add(source.root)
                return None
            source = current_loads(current_log(source, force=False), force=False)
    return RankTask(str(spans.store), run, capture, replace(source, selection=selection))


def _keeps(current: Manifest, source: RankSource) -> str | None:
    """Why a published rank stays although another profile of it was found; None: it does not."""
    if ORIGIN in (current.rank_origin, source.rank_origin):
        return (
            f"{current.source_root} is already rank {source.rank} at that time, and for one of the"
            f" two no file records the rank ({ORIGIN}): `npuscope ingest` numbers them together"
        )
    below = f"{current.source_root}/"
    newest_ns = max((r.mtime_ns for r in current.sources if r.path.startswith(below)), default=0)
    former = (current.window_end_ns or 0, newest_ns, current.source_root)
    if Path(current.source_root).exists() and former >= recency(source):
        return _ended_later(source, current.source_root)
    return None


def _not_dropped(plan: _RoundPlan, spans: StoreSpans) -> list[RankTask]:
    """Tasks of captures that are in the store, or were not taken out of it by age or size."""
    dropped, there = read_dropped(spans.store), spans.captures()
    tasks: list[RankTask] = []
    for task in plan.tasks:
        key, ended_ns = (task.run, task.capture), task.source.window_end_ns
        if key in there or not dropped.has(*key, ended_ns):
            tasks.append(task)
        else:
            plan.passed_over[task.source.root] = (
                "older than what was dropped by `npuscope compact`; `npuscope ingest` reads it"
                " anyway"
            )
    return tasks


def _young_enough(plan: _RoundPlan, spans: StoreSpans, keep_captures: int) -> list[RankTask]:
    """Tasks of captures that will be among the newest; the others are passed over."""
    recorded: dict[Key, int] = {key: one.recorded_ns for key, one in spans.captures().items()}
    newest_ns = max(recorded.values(), default=0)
    for task in plan.tasks:
        key = (task.run, task.capture)
        # Of what has no window nobody knows how old it is: it counts as new, as does the future.
        ended_ns = min(task.source.window_end_ns or newest_ns, time.time_ns())
        recorded[key] = max(recorded.get(key, 0), ended_ns)
    ordered = sorted(recorded, key=lambda key: (recorded[key], key))
    newest = set(ordered[-keep_captures:])
    young: list[RankTask] = []
    for task in plan.tasks:
        if (task.run, task.capture) in newest:
            young.append(task)
        else:
            plan.passed_over[task.source.root] = f"older than the {keep_captures} captures kept"
    return young
