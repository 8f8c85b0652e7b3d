"""Lines that differ in their numbers alone, read as columns: one of them is parsed, again and again
with other numbers, which tells what becomes of each number; the others are cut by one pattern.

    step: 10  loss:  8.12  tps: 1,234     -->  step: +(NUMBER) +loss: +(NUMBER) +tps: +(NUMBER)
                                               step       loss / 1         tokens_per_s / 1

What `log_lines.parse` makes of a line this equals; lines that fit no pattern are left to it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from .bar_lines import seconds
from .log_lines import (
    COLOUR,
    COLUMNS,
    MINDFORMERS,
    MMENGINE,
    MORE_COLUMNS,
    POSITIVE,
    SUMS,
    LogEntry,
    parse,
)

_NAMES = (*COLUMNS, *MORE_COLUMNS)
# Told apart in one pass, without a look back: what is no number is seen when it is read as one.
_LETTERS, _GROUPED_LETTERS, _DIGITS = "[-+0-9.eE]+", "[-+0-9.,eE]+", "[0-9]+"
_GROUPS = r"^[-+]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?$|^[^,]*$"
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,2})?)"
_TIME = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
_TIME_LETTERS = "[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?"
_TOKEN = re.compile(rf"({_TIME})|({_NUMBER})|([ \t]+)")
_TOGETHER = frozenset(("", ",", "-", "+", ".", "_"))
_COUNT = re.compile(r"\d{1,18}")
# What a number is divided by on its way into a column.
_DIVISORS = (1.0, 1e3, 1e4, 100.0, 2.0**-30, 2.0**-20)
_MOST_FORMS, _MOST_TRIED = 8, 64
_MOST_NUMBERS = 400
_FEWEST = 4  # lines that are worth a pattern


@dataclass(frozen=True, slots=True)
class Form:
    """A pattern whose groups are numbers, or the time (`at`).

    `steps`: groups of the step; three are an epoch, the step in it, and how many it has. `figures`:
    group, column, what it is divided by up to 1 and beyond. `constants`: as every line tells.
    """

    pattern: str
    steps: tuple[int, ...]
    figures: tuple[tuple[int, str, float, float], ...]
    constants: tuple[tuple[str, float], ...]
    at: int | None


def split_alike(lines: pl.Series, forms: list[Form]) -> tuple[pl.DataFrame, pl.Series]:
    """Lines of one of the forms as rows, as `bar_lines.split_bars` gives them, and which lines are
    of none. New forms are added to `forms`."""
    parts: list[pl.DataFrame] = []
    if lines.str.contains("\x1b", literal=True).any():
        lines = lines.str.replace_all(COLOUR.pattern, "")
    left = pl.DataFrame({"line": pl.int_range(lines.len(), eager=True, dtype=pl.UInt32),
                         "text": lines})  # fmt: skip
    none_yet: list[pl.DataFrame] = []
    trials = 0
    for form in forms:
        rows, left = _match_form(form, left)
        parts.append(rows)
    while left.height >= _FEWEST and len(forms) < _MOST_FORMS and trials < _MOST_TRIED:
        trials += 1
        line_form = form_of(left["text"][0])
        if line_form is None:
            none_yet.append(left.head(1))
            left = left.slice(1)
            continue
        forms.append(line_form)
        before = left.height
        rows, left = _match_form(line_form, left)
        parts.append(rows)
        if left.height == before:  # not even itself
            none_yet.append(left.head(1))
            left = left.slice(1)
    is_other = np.zeros(len(lines), np.bool_)
    is_other[pl.concat([left, *none_yet])["line"].to_numpy()] = True
    schema = {"line": pl.UInt32, "step": pl.Int64, **dict.fromkeys(_NAMES, pl.Float64)}
    found_rows = pl.concat(parts).sort("line") if parts else pl.DataFrame(schema=schema)
    return found_rows, pl.Series(is_other)


def form_of(line: str) -> Form | None:
    """The form of a line that tells one step; None where it tells none or cannot be told apart."""
    if " .." in line or "using world size" in line or "\ufffd" in line:
        return None
    tokens = list(_TOKEN.finditer(line))
    numbers = [token for token in tokens if token[2] is not None]
    base = _entry(line)
    if base is None or len(numbers) > _MOST_NUMBERS:
        return None
    between = (line[one.end() : other.start()] for one, other in pairwise(numbers))
    if not _TOGETHER.isdisjoint(between):  # another line may have one number there
        return None
    epoch = MINDFORMERS.search(line) or MMENGINE.search(line)
    starts = {epoch.start(1), epoch.start(2), epoch.start(3)} if epoch else set()
    steps = [at for at, token in enumerate(numbers) if token.start() in starts]
    figures: list[tuple[int, str, float, float]] = []
    whole: set[int] = set()  # numbers that a line without them as such does not have
    for at, token in enumerate(numbers):
        if at in steps:
            continue
        other = None
        if _COUNT.fullmatch(token[0]):
            other = _entry(_with(line, token, str(int(token[0]) + 1)))
            if other is not None and other.step != base.step:
                steps.append(at)
                continue
        figure = _figure(line, token)
        if figure == _NO_FIGURE and _COUNT.fullmatch(token[0]) and other == base:
            whole.add(at)
            figure = None
        if figure is None:
            continue
        name, small, large = figure
        if not small or not large:
            return None
        figures.append((at, name, small, large))
    if len(steps) != (3 if epoch else base.step is not None) or not figures:
        return None
    named = {name for _, name, _, _ in figures}
    if "tokens_per_s" in named and "tokens_per_s" not in base.values:
        return None  # whose they are is told with them
    fixed = tuple(
        (name, value) for name, value in base.values.items() if name not in {*named, "at_s"}
    )
    used = {*steps, *(at for at, *_ in figures)}
    groups: dict[int, int] = {}
    pattern, end, number, time_group = ["^"], 0, -1, None
    for token in tokens:
        pattern.append(re.escape(line[end : token.start()]))
        end = token.end()
        letters = _GROUPED_LETTERS if "," in token[0] else _LETTERS
        if token[3] is not None:
            pattern.append("[ \t]+")
        elif token[1] is None:
            number += 1
            letters = _DIGITS if number in whole or number in steps else letters
            if number in used:
                groups[number] = len(groups) + (time_group is not None)
            pattern.append(f"({letters})" if number in used else letters)
        elif "at_s" in base.values and time_group is None:
            time_group = len(groups)
            pattern.append(f"({_TIME_LETTERS})")
        else:
            pattern.append(_TIME_LETTERS)
    pattern.append(re.escape(line[end:]) + "$")
    form = Form(
        "".join(pattern), tuple(groups[at] for at in steps),
        tuple((groups[at], name, small, large) for at, name, small, large in figures),
        fixed, time_group,
    )  # fmt: skip
    schema = {"line": pl.UInt32, "text": pl.String}
    own, _ = _match_form(form, pl.DataFrame({"line": [0], "text": [line]}, schema))
    return form if _tells(own, base) else None


def _tells(rows: pl.DataFrame, entry: LogEntry) -> bool:
    """Whether the one row is what an entry tells."""
    if rows.height != 1:
        return False
    step, values = rows["step"][0], {name: rows[name][0] for name in _NAMES}
    texts = {name: value for name, value in values.items() if value is not None}
    return bool(
        step == entry.step
        and texts.keys() == entry.values.keys()
        and all(math.isclose(texts[name], value) for name, value in entry.values.items())
    )


def _entry(line: str) -> LogEntry | None:
    entries = list(parse(line.encode()))
    return entries[0] if len(entries) == 1 else None


def _with(line: str, token: re.Match[str], text: str) -> str:
    return line[: token.start()] + text + line[token.end() :]


_NO_FIGURE = ("", 0.0, 0.0)


def _figure(line: str, token: re.Match[str]) -> tuple[str, float, float] | None:
    """The column of a number, and what it is divided by up to 1 and beyond (0: no such thing)."""
    divisors = []
    names: set[str] = set()
    for one, other in ((0.25, 0.5), (32, 64)):
        first, second = (_entry(_with(line, token, str(value))) for value in (one, other))
        if first is None or second is None:
            return _NO_FIGURE
        changed = [name for name, value in second.values.items() if first.values.get(name) != value]
        names.update(changed)
        if not changed:
            divisors.append(0.0)
            continue
        rise = second.values[changed[0]] - first.values.get(changed[0], 0.0)
        divisors.append(_divisor((other - one) / rise if rise else 0.0))
    if not names:
        return None
    small, large = divisors
    return (names.pop(), small, large) if len(names) == 1 else _NO_FIGURE


def _divisor(value: float) -> float:
    return next((one for one in _DIVISORS if abs(value / one - 1) < 1e-6), 0.0)


def _match_form(form: Form, lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of the lines that are of the form, and the other lines."""
    parts = lines["text"].str.extract_groups(form.pattern).struct.unnest()
    texts = [parts[name] for name in parts.columns]
    is_so = texts[0].is_not_null()
    values_at: dict[int, pl.Series] = {}
    for at in form.steps:
        values_at[at] = texts[at].cast(pl.Int64, strict=False)
        is_so &= values_at[at].is_not_null() & (texts[at].str.len_bytes() <= 18)
    for at, *_ in form.figures:
        text = texts[at]
        if text.str.contains(",", literal=True).any():
            is_so &= text.str.contains(_GROUPS)
            text = text.str.replace_all(",", "", literal=True)
        values_at[at] = text.cast(pl.Float64, strict=False)
        is_so &= values_at[at].is_finite()
    is_so = is_so.fill_null(value=False)
    own = lines["line"].filter(is_so)
    numbers = [values_at[at].filter(is_so) for at in form.steps]
    unknown = pl.Series([None], dtype=pl.Float64).new_from_index(0, len(own))
    step = numbers[0] if numbers else unknown.cast(pl.Int64)
    if len(numbers) == 3:
        epoch, within, each = numbers
        step = (epoch - 1) * each + within
    rows: dict[str, pl.Series] = {"line": own, "step": step}
    values = {name: np.full(len(own), value) for name, value in form.constants}
    for at, name, small, large in form.figures:
        values_here = values_at[at].filter(is_so).to_numpy()
        ratios = values_here / small
        if small != large:
            ratios = np.where(values_here > 1, values_here / large, ratios)
        if name in POSITIVE:
            ratios = np.where(values_here > 0, ratios, np.nan)
        is_more = name in SUMS and name in values
        values[name] = np.nan_to_num(values[name]) + ratios if is_more else ratios
    if "per_device" in values and "tokens_per_s" in values:  # it is said of these
        values["per_device"] = np.where(np.isnan(values["tokens_per_s"]), np.nan, 1.0)
    for name in _NAMES:
        rows[name] = pl.Series(values[name], nan_to_null=True) if name in values else unknown
    if form.at is not None:
        rows["at_s"] = seconds(texts[form.at].filter(is_so))
    frame = pl.DataFrame(rows)
    is_told = pl.any_horizontal(pl.col(*COLUMNS).is_not_null())
    return frame.filter(is_told), lines.filter(~is_so)
