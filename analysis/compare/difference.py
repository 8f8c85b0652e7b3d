"""Whether two sides differ, and where the difference comes from.

Side A, Side B --> verdict with an interval
               --> rows: each part's change of a mean rank and step; they add up to the difference
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from scipy import stats

from npuscope.messages import Message

from .side import MEASURES, Side

Verdict = Literal["same", "different", "not_enough"]
# The interval's level, and how near is the same: a share of A's step.
CONFIDENCE = 0.95
SAME_WITHIN = 0.01
_MOST_STEPS = 1000  # nobody records more
_CORRELATED_FROM = 20  # of fewer steps, correlation cannot be told from chance
# Parts in the order in which a step is told; what computing consists of comes in their place.
ORDER = (
    "computing", "transfer", "peer_wait", "absent_wait", "pipeline_wait", "unknown_communication",
    "host", "idle", "free", "between_steps", "latest_rank",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of either side, B's minus A's, and the interval of that; None: not enough to tell.

    `more`: how many steps (or captures) each side would need for an interval as narrow as
    SAME_WITHIN, where that is known. `count`: how many the side with fewer has.
    """

    a: float | None
    b: float | None
    low: float | None = None
    high: float | None = None
    more: int | None = None
    count: int = 0

    @property
    def delta(self) -> float | None:
        """B minus A."""
        return None if self.a is None or self.b is None else self.b - self.a

    def verdict(self, within: float) -> Verdict:
        """`different`: the interval excludes 0; `same`: all of it lies within ± `within`."""
        if self.low is None or self.high is None:
            return "not_enough"
        if self.low > 0 or self.high < 0:
            return "different"
        return "same" if max(-self.low, self.high) <= within else "not_enough"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`rows` (see `waterfall`) add up to `delta_ns`; `figures` is a row per measure."""

    verdict: Verdict
    step_a_ns: int
    step_b_ns: int
    delta_low_ns: int | None
    delta_high_ns: int | None
    rows: pl.DataFrame
    figures: pl.DataFrame
    changed: dict[str, tuple[str, str]]
    unit: Literal["step", "capture"]
    more: int | None

    @property
    def delta_ns(self) -> int:
        """B minus A: positive where B is slower."""
        return self.step_b_ns - self.step_a_ns


def compare(a: Side, b: Side) -> Comparison:
    """A is the baseline."""
    times = estimate(a, b, "step_ns")
    step_a_ns, step_b_ns = a.step_ns, b.step_ns
    # Around the difference of whole nanoseconds, which is what is printed.
    shift = (step_b_ns - step_a_ns) - (times.delta or 0.0)
    low, high = (None if end is None else end + shift for end in (times.low, times.high))
    whole = Estimate(step_a_ns, step_b_ns, low, high, times.more, times.count)
    figures = []
    for name in ("step_ns", *MEASURES):
        one = whole if name == "step_ns" else estimate(a, b, name)
        within = SAME_WITHIN * (1.0 if name.endswith("_ratio") else abs(one.a or 0.0))
        figures.append(
            {"measure": name, "a": one.a, "b": one.b, "delta": one.delta, "low": one.low,
             "high": one.high, "verdict": one.verdict(within), "count": one.count}
        )  # fmt: skip
    return Comparison(
        whole.verdict(SAME_WITHIN * step_a_ns),
        step_a_ns,
        step_b_ns,
        None if low is None else math.floor(low),
        None if high is None else math.ceil(high),
        waterfall(a, b),
        pl.DataFrame(
            figures,
            {"measure": pl.String, **dict.fromkeys(("a", "b", "delta", "low", "high"), pl.Float64),
             "verdict": pl.String, "count": pl.Int64},
        ),
        {
            name: (_listed(a.facts[name]), _listed(b.facts[name]))
            for name in a.facts
            if a.facts[name] != b.facts[name] and a.facts[name] and b.facts[name]
        },
        unit_of(a, b),
        times.more,
    )  # fmt: skip


def figures_of(found: Comparison) -> dict[str, object]:
    """What is said beside the rows: verdict, both steps, their difference and its interval, the
    other measures, and what else of the captures differs."""
    return {
        "verdict": found.verdict,
        "step_a_ns": found.step_a_ns,
        "step_b_ns": found.step_b_ns,
        "delta_ns": found.delta_ns,
        "delta_low_ns": found.delta_low_ns,
        "delta_high_ns": found.delta_high_ns,
        "unit": found.unit,
        "measures": found.figures.to_dicts(),
        "changed": [{"fact": name, "a": a, "b": b} for name, (a, b) in found.changed.items()],
    }


def remarks(found: Comparison) -> list[str]:
    """What to know before the figures: what was recorded differently, and what would tell more."""
    notes = recorded_differently(found)
    if found.verdict == "not_enough":
        notes.append(_what_would_tell(found))
    return notes


def recorded_differently(found: Comparison) -> list[str]:
    """Why the difference may be none of the runs."""
    if "profiler_level" not in found.changed:
        return []
    a, b = found.changed["profiler_level"]
    return [
        Message(
            "recorded at different levels (A {a}, B {b}): recording itself moves times, more"
            " at a higher level; profile both alike before the difference is believed",
            a=a, b=b,
        )
    ]  # fmt: skip


def _what_would_tell(found: Comparison) -> Message:
    if found.unit == "step":
        if found.more is None:
            return Message("not enough to tell: record more steps of both")
        return Message("not enough to tell: record {count} more steps of each", count=found.more)
    if found.more is None:
        return Message(
            "not enough to tell: profile both again and give these as --also-a and --also-b"
        )
    return Message("not enough to tell: {count} more captures of each would", count=found.more)


def unit_of(a: Side, b: Side) -> Literal["step", "capture"]:
    """What is counted as one observation: a step of the job, or a capture where a side has several
    (their steps are not independent of each other)."""
    several = any(side.captures().height > 1 for side in (a, b))
    return "capture" if several else "step"


def estimate(a: Side, b: Side, measure: str) -> Estimate:
    """The difference of a measure with its interval.

    Steps: Welch's interval of two means of independent, about normal values; the variance of a side
    with 20 steps or more is widened by (1 + r) / (1 - r) where their correlation from step to step
    r is beyond chance (r > 2 / sqrt(n)). Captures: Student's with the variance between captures of
    a side, pooled over those that have several, which stands for the other side as well.
    """
    unit = unit_of(a, b)
    ours, theirs = (
        (side.captures() if unit == "capture" else side.steps)[measure].drop_nulls()
        for side in (a, b)
    )
    mean_a, mean_b = (_figure(side.mean()) for side in (ours, theirs))
    counts = len(ours), len(theirs)
    few = Estimate(mean_a, mean_b, count=min(counts))
    if mean_a is None or mean_b is None:
        return few
    spreads = [_figure(side.var()) for side in (ours, theirs)]  # of one value: None
    known = [(v, n) for v, n in zip(spreads, counts, strict=True) if v is not None]
    if not known or (unit == "step" and len(known) < 2):
        return few
    if unit == "capture":
        degrees = float(sum(n - 1 for _, n in known))
        pooled = sum(v * (n - 1) for v, n in known) / degrees
        variances = [pooled / n for n in counts]
    else:
        wide = (_widening(side) for side in (ours, theirs))
        variances = [v * more / n for (v, n), more in zip(known, wide, strict=True)]
        degrees = _degrees(variances, counts)
    error = math.sqrt(sum(variances))
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, degrees)) * error
    delta = mean_b - mean_a
    within = SAME_WITHIN * abs(mean_a)
    more = None
    if within and half > within:
        least = min(counts)
        needed = math.ceil(least * (half / within) ** 2)
        more = needed - least if needed <= _MOST_STEPS else None
    return Estimate(mean_a, mean_b, delta - half, delta + half, more, min(counts))


def _figure(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _widening(values: pl.Series) -> float:
    numbers = values.to_numpy()
    around = numbers - numbers.mean()
    if len(numbers) < _CORRELATED_FROM or not around.any():
        return 1.0
    r = float((around[1:] * around[:-1]).sum() / (around**2).sum())
    return (1 + r) / (1 - r) if r > 2 / math.sqrt(len(numbers)) else 1.0


def _degrees(variances: list[float], counts: tuple[int, int]) -> float:
    """Welch and Satterthwaite."""
    if not sum(variances):
        return float(sum(counts) - 2)
    parts = sum(v * v / (n - 1) for v, n in zip(variances, counts, strict=True))
    return sum(variances) ** 2 / parts


# metric: compare
# Where does the difference between two runs come from?
#
# Rows follow the mean rank's step and add up to the mean step of the job on either side, and to the
# difference: whole ns, the last row takes the rest. Computing is taken apart by kernel type (by
# name where a side was recorded without types).
#
# title: Difference of two runs
# meaning: The change of each part of a step from run A to run B; the changes add up.
# command: compare
#
#   part      varchar  computing, a part of step_parts, between_steps (from a rank's step to its
#     next), latest_rank (what the job's step takes beyond the mean rank's)
#   name      varchar  kernel type, or parallel kind of the communication; NULL: the part has none
#   change    varchar  of computing: count (kernels ran more or less often), duration (each took
#     longer or shorter), shape (shapes that one side alone has), new or gone (types that one side
#     alone has), at_once (time that kernels beside each other count
#     twice); NULL where a side has no kernels to tell
#   a_ns      bigint   of A; of count 0, as A's time stands with duration
#   b_ns      bigint   of B, likewise
#   delta_ns  bigint   b - a: positive where B is slower
def waterfall(a: Side, b: Side) -> pl.DataFrame:
    """Rows of the metric `compare`, in the order of a step, the largest change of a part first."""
    rows = _kernel_rows(a, b)
    at_once = {
        key: side.parts.filter(pl.col("part") == "computing")["ns"].sum()
        - sum(row[key] for row in rows)
        for side, key in ((a, "a"), (b, "b"))
    }
    has_kernels = rows and a.kernels.height and b.kernels.height
    change = "at_once" if has_kernels else None
    rows.append({"part": "computing", "name": None, "change": change, **at_once})
    parts = a.parts.join(b.parts, on=("part", "name"), how="full", coalesce=True, nulls_equal=True)
    rows += [
        {"part": part, "name": name, "a": a_ns, "b": b_ns}
        for part, name, a_ns, b_ns in parts.iter_rows()
        if part != "computing"
    ]
    found = (
        pl.DataFrame(
            rows,
            {"part": pl.String, "name": pl.String, "change": pl.String, "a": pl.Float64,
             "b": pl.Float64},
        )
        .group_by("part", "name", "change", maintain_order=True)
        .agg(pl.col("a", "b").sum().round().cast(pl.Int64).name.suffix("_ns"))
    )  # fmt: skip
    rest = {
        "part": ["latest_rank"], "name": [None], "change": [None],
        "a_ns": [a.step_ns - found["a_ns"].sum()], "b_ns": [b.step_ns - found["b_ns"].sum()],
    }  # fmt: skip
    order = {part: place for place, part in enumerate(ORDER)}
    return (
        pl.concat([found, pl.DataFrame(rest, found.schema)])
        .with_columns(delta_ns=pl.col("b_ns") - pl.col("a_ns"))
        .filter((pl.col("a_ns") != 0) | (pl.col("b_ns") != 0) | (pl.col("part") == "latest_rank"))
        .sort(
            pl.col("part").replace_strict(order), -pl.col("delta_ns").abs(), "name", "change",
            nulls_last=True, maintain_order=True,
        )
    )  # fmt: skip


def _kernel_rows(a: Side, b: Side) -> list[dict[str, Any]]:
    """By kernel type; by name where either side was recorded without types."""
    sides = (a.kernels, b.kernels)
    has_types = all(side["type"].null_count() < side.height for side in sides)
    what = pl.coalesce("type", "name") if has_types else pl.col("name")
    if not has_types and any(side.height and not side["name"].count() for side in sides):
        return []  # one side knows types alone, the other names alone
    # Of a side without shapes nothing is known of them: they tell no kernels apart.
    has_shapes = all(side["shape"].null_count() < side.height for side in sides)
    shape = pl.col("shape") if has_shapes else pl.lit(None, pl.String).alias("shape")
    ours, theirs = (
        side.group_by(what.alias("what"), shape).agg(pl.col("count", "total_ns").sum())
        for side in sides
    )
    both = ours.join(
        theirs, on=("what", "shape"), how="full", coalesce=True, nulls_equal=True, suffix="_b"
    )
    n_a, n_b, ns_a, ns_b = (pl.col(n) for n in ("count", "count_b", "total_ns", "total_ns_b"))
    is_paired = ns_a.is_not_null() & ns_b.is_not_null()
    has_a, has_b = (side.is_not_null().any() for side in (ns_a, ns_b))
    # What A's kernels would take in B's number, each as long as A's: between are the two changes.
    as_often = (ns_a / n_a * n_b).filter(is_paired).sum()
    types = both.group_by("what").agg(
        as_often=as_often,
        paired_a=ns_a.filter(is_paired).sum(),
        paired_b=ns_b.filter(is_paired).sum(),
        count_a=n_a.sum(),
        count_b=n_b.sum(),
        all_a=ns_a.sum(),
        alone_a=ns_a.filter(ns_b.is_null()).sum(),
        alone_b=ns_b.filter(ns_a.is_null()).sum(),
        change=pl.when(has_a & has_b).then(pl.lit("shape"))
        .when(has_a).then(pl.lit("gone")).otherwise(pl.lit("new")),
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for row in types.iter_rows(named=True):
        duration, count = row["paired_b"] - row["as_often"], row["as_often"] - row["paired_a"]
        alone = row["alone_b"] - row["alone_a"]
        if row["change"] == "shape":
            # Some may only have changed their shape: those of the type together tell how many ran.
            more = (row["count_b"] - row["count_a"]) * row["all_a"] / row["count_a"]
            count, alone = more, alone + count - more
        told = {"part": "computing", "name": row["what"]}
        rows += [
            {**told, "change": "duration", "a": row["paired_a"], "b": row["paired_a"] + duration},
            {**told, "change": "count", "a": 0.0, "b": count},
            {**told, "change": row["change"], "a": row["alone_a"], "b": row["alone_a"] + alone},
        ]
    return rows


def _listed(values: frozenset[str]) -> str:
    return ", ".join(sorted(values))
