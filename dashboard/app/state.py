"""What a page looks at, kept in the URL: a link shows the same to whoever opens it.

Only names and numbers that the stores hold get through: what a URL says otherwise is left out or
brought back into range, never an error, a path or SQL.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import Scope
from npuscope.analysis.strategy.results import chosen_sizes, sizes_text
from npuscope.console.printable import visible
from npuscope.errors import UsageError
from npuscope.messages import Message

from ..locale.language import languages

DEFAULT_LANGUAGE = "en"
_LAST_NS = 2**63 - 1
_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
_NO_LANES = "none"
BASE = ("base_store", "base_run", "base_capture")
# What the timeline's colours tell, computing unless asked otherwise, and how many ranks' events.
SHARES = ("computing", "exposed communication", "masked communication", "free")
MOST_LANES = 8
# Whose difference the comparison takes apart, beside the mean rank's.
PLACES: dict[str, Literal["stage", "rank"]] = {"stage": "stage", "rank": "rank"}
_SCHEDULE = re.compile(r"[a-z0-9-]{1,20}(?::[0-9]{1,3})?")
_MOST_MICRO_BATCHES = 1_024
_MOST_SHOWN, _MOST_NAMED = 2_000, 80  # letters
_MOST_CHANGES, _MOST_LETTERS = 8, 200  # letters of a change


@dataclass(frozen=True, slots=True)
class View:
    """The choice of one visitor; None: all of them.

    `store` is the title of one of several stores (None: the only one). `start_ns` and `end_ns`
    are a window of time, half-open, and always in order. Of the timeline: `share` is what
    colours of a comparison tell (None: computing), `lanes` are the ranks whose events are open
    (None: the first few), `shown` is what else the timeline itself
    puts there and reads: marks, notes, what is open and selected. `base` is the capture that this
    one is compared with, by store, run and name (None: as `Known.base` chooses); `beneath` is 1
    where the timeline shows it, too, beneath this one (else None); `by` one of
    PLACES, of each of which the comparison has rows (None: of the mean rank); `change` are words of
    a what-if, with spaces between (None: the page's own choice); `schedule` and `micro_batches` are
    what a pipeline is tried with (None: as it ran); `only` are sizes of strategies (None: all).
    """

    run: str | None = None
    capture: str | None = None
    rank: int | None = None
    step: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    lang: str = DEFAULT_LANGUAGE
    store: str | None = None
    share: str | None = None
    lanes: tuple[int, ...] | None = None
    shown: str | None = None
    base: tuple[str | None, str, str] | None = None
    beneath: int | None = None
    by: Literal["stage", "rank"] | None = None
    change: str | None = None
    schedule: str | None = None
    micro_batches: int | None = None
    only: str | None = None

    @property
    def scope(self) -> Scope:
        """The rows that are looked at."""
        return Scope(self.run, self.capture, self.rank, self.step)


@dataclass(frozen=True, slots=True)
class KnownCapture:
    """A capture that can be chosen: `store` is its store's title, `layout` the sizes of the whole
    job and of its parallel groups, as far as they are known."""

    store: str
    run: str
    capture: str
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    start_ns: int | None
    end_ns: int | None
    layout: tuple[int | None, ...] = ()

    def is_job_of(self, other: KnownCapture) -> bool:
        """Whether both are of the same job, by their run's name or by a layout that is known."""
        is_known = any(size is not None for size in self.layout)
        return self.run == other.run or (is_known and self.layout == other.layout)


@dataclass(frozen=True, slots=True)
class Choices:
    """Everything that can be chosen, the newest capture first."""

    captures: tuple[KnownCapture, ...] = ()
    lang: str = DEFAULT_LANGUAGE
    run: str | None = None

    @property
    def stores(self) -> tuple[str, ...]:
        """Titles of the stores that hold anything."""
        return tuple(dict.fromkeys(one.store for one in self.captures))

    @property
    def runs(self) -> tuple[tuple[str, str], ...]:
        """(store, run) of every run."""
        return tuple(dict.fromkeys((one.store, one.run) for one in self.captures))

    def of_run(self, store: str, run: str) -> tuple[KnownCapture, ...]:
        """Captures of one run."""
        return tuple(one for one in self.captures if (one.store, one.run) == (store, run))

    def label(self, one: KnownCapture) -> str:
        """A capture, with its store where there are several."""
        store = f" ({one.store})" if len(self.stores) > 1 else ""
        return visible(f"{one.run}/{one.capture}{store}")

    def capture(self, view: View) -> KnownCapture | None:
        """The capture that a view looks at."""
        for one in self.captures:
            if (one.run, one.capture) == (view.run, view.capture) and view.store in (
                None,
                one.store,
            ):
                return one
        return None

    def base(self, view: View) -> KnownCapture | None:
        """The baseline that a view compares its capture with: the one asked for, else the one
        before it in its run, else after it, else the newest of another run of the same job, of its
        store where that has one; None: there is none, and the visitor has to choose."""
        capture = self.capture(view)
        if capture is None:
            return None
        others = [one for one in self.captures if one is not capture]
        if view.base is not None:
            store, *names = view.base
            for one in others:
                if [one.run, one.capture] == names and store in (None, one.store):
                    return one
        run = self.of_run(capture.store, capture.run)
        at = run.index(capture)
        alike = [one for one in others if capture.is_job_of(one)]
        beside = (one for one in alike if one.store == capture.store)
        return next(iter((*run[at + 1 :], *reversed(run[:at]), *beside, *alike)), None)


def view_of(params: Mapping[str, str], choices: Choices) -> View:
    """The view that URL parameters ask for, as far as it exists.

    An unknown run or capture gives the newest; an unknown rank or step all of them; a window is
    cut to the capture's surroundings, and left out where nothing of it remains.
    """
    lang = params.get("lang", "")
    lang = lang if lang in languages() else choices.lang
    capture = _capture_of(params, choices)
    if capture is None:
        return View(lang=lang)
    start_ns, end_ns = _window(params, capture)
    return View(
        run=capture.run,
        capture=capture.capture,
        rank=_one_of(params.get("rank"), capture.ranks),
        step=_one_of(params.get("step"), capture.steps),
        start_ns=start_ns,
        end_ns=end_ns,
        lang=lang,
        store=capture.store if len(choices.stores) > 1 else None,
        share=params["share"] if params.get("share") in SHARES[1:] else None,
        lanes=_several(params.get("lanes"), capture.ranks),
        shown=_printable(params.get("shown")),
        base=_base_of(params, choices, capture),
        beneath=1 if params.get("beneath") == "1" and len(choices.captures) > 1 else None,
        by=PLACES.get(params.get("by", "")),
        change=_change(params.get("change")),
        schedule=text if _SCHEDULE.fullmatch(text := params.get("schedule", "")) else None,
        micro_batches=_between(params.get("micro_batches"), 1, _MOST_MICRO_BATCHES),
        only=sizes_text(chosen_sizes(params.get("only"))),
    )


def unknown_choices(params: Mapping[str, str], choices: Choices) -> list[str]:
    """What URL parameters name and no store holds, a sentence each with what is shown instead."""
    view = view_of(params, choices)
    one = choices.capture(view)
    if one is None:
        return []

    def is_lost(name: str, value: str | int | None) -> bool:
        return bool(params.get(name)) and params[name] != str(value)

    def value_of(name: str) -> str:
        return visible(params[name][:_MOST_NAMED])

    lacks: list[str] = []
    label = choices.label(one)
    if is_lost("run", one.run):
        text = "Run {asked} is not in this store: this is {shown}."
        lacks.append(Message(text, asked=value_of("run"), shown=label))
    elif len(choices.stores) > 1 and is_lost("store", one.store):
        text = "Store {asked} does not hold this run: this is {shown}."
        lacks.append(Message(text, asked=value_of("store"), shown=label))
    elif is_lost("capture", one.capture):
        text = "Run {run} has no capture {asked}: this is {shown}."
        lacks.append(Message(text, run=one.run, asked=value_of("capture"), shown=label))
    if params.get("rank") and view.rank is None:
        text = "{shown} has no rank {asked}: these are all ranks."
        lacks.append(Message(text, shown=label, asked=value_of("rank")))
    if params.get("step") and view.step is None:
        text = "{shown} has no step {asked}: these are all steps."
        lacks.append(Message(text, shown=label, asked=value_of("step")))
    base = [value_of(name) for name in BASE if params.get(name)]
    if base and not _bases(params, choices, one):
        lacks.append(Message("The baseline {asked} is not here.", asked=", ".join(base)))
    return lacks


def params_of(view: View) -> dict[str, str]:
    """The URL parameters of a view; what is not chosen has none."""
    named: dict[str, str | int | None] = {
        "store": view.store,
        "run": view.run,
        "capture": view.capture,
        "rank": view.rank,
        "step": view.step,
        "start_ns": view.start_ns,
        "end_ns": view.end_ns,
        "share": view.share,
        "lanes": None if view.lanes is None else lanes_text(view.lanes),
        "shown": view.shown,
        **dict(zip(BASE, view.base or (None, None, None), strict=True)),
        "beneath": view.beneath,
        "by": view.by,
        "change": view.change,
        "schedule": view.schedule,
        "micro_batches": view.micro_batches,
        "only": view.only,
        "lang": view.lang,
    }
    return {name: str(value) for name, value in named.items() if value is not None}


def lanes_text(ranks: Iterable[int]) -> str:
    """Ranks as a URL says them, in order; of none at all `none`."""
    return ".".join(map(str, ranks)) or _NO_LANES


def move_view(view: View, choices: Choices, **changes: str | int | None) -> View:
    """The view with changes, as a URL with them would give it."""
    params = params_of(view) | {name: str(value) for name, value in changes.items()}
    return view_of(
        {name: params[name] for name in params if changes.get(name, "") is not None}, choices
    )


def _capture_of(params: Mapping[str, str], choices: Choices) -> KnownCapture | None:
    """The capture asked for, else the newest of the run asked for, else of the run preferred."""
    store, run, capture = params.get("store"), params.get("run"), params.get("capture")
    candidates = list(choices.captures)
    for group in (
        [one for one in candidates if one.run == run],
        [one for one in candidates if one.run == choices.run] if run is None else [],
    ):
        candidates = group or candidates
    candidates = [one for one in candidates if one.store == store] or candidates
    candidates = [one for one in candidates if one.capture == capture] or candidates
    return candidates[0] if candidates else None


def _base_of(
    params: Mapping[str, str], choices: Choices, capture: KnownCapture
) -> tuple[str | None, str, str] | None:
    """The baseline asked for, where it is there and another capture."""
    for one in _bases(params, choices, capture):
        if one is not capture:
            return one.store if len(choices.stores) > 1 else None, one.run, one.capture
    return None


def _bases(
    params: Mapping[str, str], choices: Choices, capture: KnownCapture
) -> list[KnownCapture]:
    """What may be meant by a baseline, the newest first: a run's capture, any of a run, or a
    capture of the run that is looked at."""
    store, run, name = (params.get(one) for one in BASE)
    if run is None and name is None:
        return []
    return [
        one
        for one in choices.captures
        if one.run == (run or capture.run)
        and name in (None, one.capture)
        and store in (None, one.store)
    ]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def _one_of(text: str | None, present: Sequence[int]) -> int | None:
    value = _number(text)
    return value if value in present else None


def _several(text: str | None, present: Sequence[int]) -> tuple[int, ...] | None:
    """At most MOST_LANES ranks of those that are there; None where none of them is."""
    if text == _NO_LANES:
        return ()
    ranks = [_one_of(one, present) for one in (text or "").split(".", MOST_LANES)[:MOST_LANES]]
    return tuple(dict.fromkeys(one for one in ranks if one is not None)) or None


def _change(text: str | None) -> str | None:
    """Words of a what-if, those that are none left out; of each only what can be printed."""
    changes = []
    for word in (text or "").split(maxsplit=_MOST_CHANGES)[:_MOST_CHANGES]:
        with contextlib.suppress(UsageError):
            if len(word) <= _MOST_LETTERS and word.isprintable():
                changes.append(parse_change(word).word)
    return " ".join(changes) or None


def _printable(text: str | None) -> str | None:
    """A text that can be printed and is not too long."""
    return text if text and len(text) <= _MOST_SHOWN and text.isprintable() else None


def _between(text: str | None, least: int, most: int) -> int | None:
    number = _number(text)
    return number if number is not None and least <= number <= most else None


def _window(params: Mapping[str, str], capture: KnownCapture) -> tuple[int | None, int | None]:
    start_ns, end_ns = _number(params.get("start_ns")), _number(params.get("end_ns"))
    if start_ns is None or end_ns is None:
        return None, None
    least, most = _extent(capture)
    start_ns, end_ns = max(start_ns, least), min(end_ns, most)
    return (start_ns, end_ns) if start_ns < end_ns else (None, None)


def _extent(capture: KnownCapture) -> tuple[int, int]:
    """What a window may reach over: the capture, and as much again on either side, since ranks'
    clocks are put right and some work lies outside all steps."""
    if capture.start_ns is None or capture.end_ns is None:
        return 0, _LAST_NS
    beside_ns = max(capture.end_ns - capture.start_ns, 10**9)
    return max(capture.start_ns - beside_ns, 0), min(capture.end_ns + beside_ns, _LAST_NS)
