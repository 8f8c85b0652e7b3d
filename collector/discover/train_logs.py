"""A trainer's log among a rank's files: it tells of the whole run, and is kept with one rank.

    capture A   rank 0 ─ its files + train.log     rank 1 ─ its files     rank 2 ─ ...
    capture B   rank 0 ─ its files + train.log     ...

So it is published, replaced, left as it is and dropped like anything else of that rank. Whoever
brings a store up to date without naming the log keeps it as it was read; where the rank has to be
read anyway, the log is read as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from npuscope.errors import UsageError

from ..model import RankSource, SourceFile, storable
from ..readers.train_log.log_facts import RULE, LogFacts
from ..readers.train_log.log_lines import Scope
from ..store.manifest import Manifest


def holders(
    candidates: Sequence[tuple[str, RankSource]],
    sources: Sequence[tuple[str, RankSource]],
    manifests: Sequence[Manifest],
    *,
    rule: str = RULE,
    option: str = "--train-log",
) -> dict[str, int]:
    """By capture, the rank to read a log with: the one that has one, else the lowest chosen.

    `rule` stands in the rules of who has one, `option` names it.

    Raises UsageError where the former is one of `candidates` but not chosen: the old log would stay
    beside.
    """
    there = {(capture, source.rank) for capture, source in candidates}
    places_of = {(capture, source.rank) for capture, source in sources}
    holding = dict(sorted(places_of, reverse=True))
    for one in manifests:
        if (
            rule not in one.rules
            or one.capture not in holding
            or (one.capture, one.rank) not in there
        ):
            continue
        if (one.capture, one.rank) not in places_of:
            raise UsageError(
                f"{option}: rank {one.rank} of {one.capture} keeps what was read before:"
                " name it in --ranks too"
            )
        holding[one.capture] = one.rank
    return holding


def logged_file(current: Manifest | None, log_path: Path | None) -> SourceFile | None:
    """The log of a rank: the one that is given, else the one it was read with, as it was then."""
    if log_path is not None:
        return _source_file(log_path)
    path = current.rules.get(RULE) if current else None
    for record in current.sources if current and path else ():
        if record.path == path:
            return SourceFile(path, record.size_bytes, record.mtime_ns)
    return None


def with_log(source: RankSource, file: SourceFile | None) -> RankSource:
    """The rank with a log among its files."""
    if file is None:
        return source
    rules = (*source.rules, (RULE, storable(file.path)))
    return replace(source, files={**source.files, "train_log": (file,)}, rules=rules)


def current_log(source: RankSource, *, force: bool) -> RankSource:
    """The rank with its log as it is now. One that is gone stays missing, so that what was read of
    it stays; where `force` is set, the rank goes on without."""
    for file in source.files.get("train_log", ()):
        try:
            return replace(
                source, files={**source.files, "train_log": (_source_file(Path(file.path)),)}
            )
        except OSError:
            if force:
                files = dict(source.files)
                del files["train_log"]
                rules = tuple(rule for rule in source.rules if rule[0] != RULE)
                return replace(source, files=files, rules=rules)
    return source


def logged_facts(rules: Mapping[str, str]) -> LogFacts:
    """What the log that a rank holds says of the whole run, by the rules of its reading; nothing
    where it holds none."""
    facts = {
        name: rules[f"{RULE}.{name}"]
        for name in LogFacts.__dataclass_fields__
        if f"{RULE}.{name}" in rules
    }
    scope = facts.pop("tokens_per_s_of", None)
    counts = {name: int(text) for name, text in facts.items()}
    whose: Scope | None = "job" if scope == "job" else "device" if scope == "device" else None
    return LogFacts(**counts, tokens_per_s_of=whose)


def _source_file(path: Path) -> SourceFile:
    state = path.stat()
    return SourceFile(str(path), state.st_size, state.st_mtime_ns)
