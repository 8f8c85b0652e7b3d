"""One finding: what is the matter, what it costs, how sure that is, and what shows more."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from npuscope.messages import Message, join

from ..scope import Scope
from ..wording import ms

Certainty = Literal["measured", "estimated", "hint"]
CERTAINTIES: dict[Certainty, str] = {
    "measured": "the profile shows this time",
    "estimated": "an upper bound, or valid under an assumption: the reason states which",
    "hint": "worth a look; its cost is not in the profile",
}
EVIDENCE_ROWS = 5
# Commands that do not take both a rank and a step.
_OPTIONS: dict[str, tuple[str, ...]] = {"memory": ("rank",), "experts plan": ()}
# Without a gain in a capture that has others: members of groups were not captured.
_WITH_OTHERS = ("uncaptured_ranks", "exposed_communication")


@dataclass(frozen=True, slots=True)
class Finding:
    """A statement about one capture.

    `at_stake_ns`: time that it takes per step, as a mean over steps and ranks (where ranks wait in
    turn, a step may get shorter by more); None where it is not known. `step_share_ratio`: the same
    over the mean length of a step on a rank (of time between steps: over that with it). `changes`:
    words of a what-if that would end it; `beside`: others without which it costs more than it
    causes, so that it is told beyond them.
    `predicted_gain_ns`: what a replay of the job's mean step says they save, between
    `predicted_gain_low_ns` and `predicted_gain_high_ns`; None where it cannot answer:
    `no_gain_reason` says why. `reason`: why it is no surer. `advice`: what to try. `evidence`: the
    rows it rests on, the most telling first. `command`: shows more; PATH stands for what the user
    opened. `within_gain_of`: name of the finding before it whose changes hold these, so that its
    gain is that one's or part of it, and adds up to no more.
    """

    name: str
    run: str
    capture: str
    statement: str
    at_stake_ns: int | None
    step_share_ratio: float | None
    certainty: Certainty
    reason: str
    advice: str
    evidence: pl.DataFrame
    command: str
    changes: tuple[str, ...] = ()
    predicted_gain_ns: int | None = None
    predicted_gain_low_ns: int | None = None
    predicted_gain_high_ns: int | None = None
    no_gain_reason: str | None = None
    beside: tuple[str, ...] = ()
    within_gain_of: str | None = None


def gain_words(one: Finding) -> str:
    """What a replay predicts, in a sentence."""
    if one.within_gain_of is not None:
        words = gain_words(replace(one, within_gain_of=None))
        within = Message(
            "within the gain of {finding}", finding=Message(one.within_gain_of.replace("_", " "))
        )
        return join((words, within), "; ")
    if one.predicted_gain_ns is None:
        return Message("not known: {why}", why=one.no_gain_reason or "")
    values = {
        "gain": ms(one.predicted_gain_ns),
        "low": ms(one.predicted_gain_low_ns),
        "high": ms(one.predicted_gain_high_ns),
        "changes": shlex.join(one.changes),
    }
    if not one.beside:
        return Message("{gain} ms per step ({low} to {high}), replayed with {changes}", **values)
    words = "{gain} ms per step ({low} to {high}), replayed with {changes} beyond {beside}"
    return Message(words, beside=shlex.join(one.beside), **values)


def with_commands(findings: Iterable[Finding], places: Mapping[tuple[str, str], str],
                  scope: Scope) -> list[Finding]:  # fmt: skip
    """Findings whose commands name what the user opened, by run and capture (`capture_place`), and
    the rank and step that were chosen."""
    return [
        replace(one, command=_command(one.command, places[one.run, one.capture], scope))
        for one in findings
    ]


def _command(command: str, place: str, scope: Scope) -> str:
    verb = command[: command.index(" PATH")].removeprefix("npuscope ")
    chosen = {name: scope.values().get(name) for name in _OPTIONS.get(verb, ("rank", "step"))}
    options = (
        f" --{name} {value}"
        for name, value in chosen.items()
        if value is not None and f"--{name} " not in command
    )
    return command.replace("PATH", place) + "".join(options)


def by_gain(findings: Iterable[Finding]) -> list[Finding]:
    """By predicted gain, the most first; then, by the time at stake, what has none. Communication
    with ranks that were not captured stands by its time at stake even so: gains of the others hang
    on what those ranks do. Uneven stages without a gain lead: other waiting follows from them.
    Raises ValueError for a finding without evidence."""
    sequence = list(findings)
    for finding in sequence:
        if finding.evidence.is_empty():
            raise ValueError(f"{finding.name}: no evidence")
    is_priced = any(one.predicted_gain_ns is not None for one in sequence)

    def place(one: Finding) -> tuple[bool, int, float, float]:
        stake_ns = one.at_stake_ns or 0
        gain_ns: float | None = one.predicted_gain_ns
        if gain_ns is None and is_priced and one.name in _WITH_OTHERS:
            gain_ns = stake_ns
        order = 0 if gain_ns is not None else 1 if one.at_stake_ns is not None else 2
        leads = one.name == "uneven_stages" and gain_ns is None
        return not leads, order, -(gain_ns or 0), -stake_ns

    return [*_told_once(sorted(sequence, key=place))]


def _told_once(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings that name the one before them whose changes are theirs, or more."""
    before: list[Finding] = []
    for one in findings:
        if one.predicted_gain_ns is None:
            yield one
            continue
        within = (
            other.name
            for other in before
            if (other.run, other.capture, set(other.beside))
            == (one.run, one.capture, set(one.beside))
            and set(one.changes) <= set(other.changes)
        )
        yield replace(one, within_gain_of=next(within, None))
        before.append(one)
