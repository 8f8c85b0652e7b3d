"""Whether two sides differ, and where the difference comes from.

Side A, Side B --> verdict with an interval
               --> rows: each part's change of a mean rank and step; they add up to the difference
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import polars as pl
from scipy.special import stdtrit

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..wording import numbers
from .alike import Ends, as_figure, ending_alike, with_memory_alike
from .side import GPU, MEASURES, PER_TOKEN, SETTINGS, Key, Side, share_most
from .waterfall import at_each, is_other_work, waterfall

Verdict = Literal["same", "different", "not_enough"]
# The interval's level, and how near is the same: a share of A's step.
CONFIDENCE = 0.95
SAME_WITHIN = 0.01
_MOST_STEPS = 1000  # nobody records more
_LAYOUT = ("world_size", "tp_size", "pp_size", "dp_size", "cp_size", "ep_size")
_UNSET = frozenset({"not set"})
_CORRELATED_FROM = 20  # of fewer steps, correlation cannot be told from chance


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
    """`rows` (see `waterfall`) add up to `delta_ns`; `figures` is a row per measure. `at`: the rows
    of each stage or rank that both sides have, where that was asked for; `alone`: what one side
    alone has of these. `tokens`: of a step of either side, where known. `ends`: where the sides'
    steps would not have ended alike, what was compared instead. `ranks`: those of either side,
    where they are not the same of one layout."""

    verdict: Verdict
    step_a_ns: int
    step_b_ns: int
    delta_low_ns: int | None
    delta_high_ns: int | None
    rows: pl.DataFrame
    figures: pl.DataFrame
    changes: dict[str, tuple[str, str]]
    unit: Literal["step", "capture"]
    more: int | None
    at: pl.DataFrame | None = None
    alone: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    tokens: tuple[int | None, int | None] = (None, None)
    ends: Ends | None = None
    ranks: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())

    @property
    def delta_ns(self) -> int:
        """B minus A: positive where B is slower."""
        return self.step_b_ns - self.step_a_ns

    @property
    def is_per_token(self) -> bool:
        """Whether the sides do other work in a step, or a rank of theirs does, and what each token
        takes is known of both."""
        is_other = self.layouts is not None or self.tokens[0] != self.tokens[1]
        nulls = self.rows.select("a_ns_per_token", "b_ns_per_token").null_count().row(0)
        return is_other and not any(nulls)

    @property
    def layouts(self) -> tuple[str, str] | None:
        """Sizes of A's and B's parallel layout that differ; None: none does."""
        names = [name for name in _LAYOUT if name in self.changes]
        if not names:
            return None
        labels = [
            ", ".join(f"{name.removesuffix('_size')} {self.changes[name][side]}" for name in names)
            for side in (0, 1)
        ]
        return labels[0], labels[1]


def compare(a: Side, b: Side, by: Key | None = None) -> Comparison:
    """A is the baseline; `by` as the sides were measured. Raises UsageError where ranks are asked
    for and the layouts differ."""
    a, b, ends = ending_alike(a, b)
    a, b = map(_with_tokens, with_memory_alike(a, b))
    ranks = _other_ranks(a, b)
    comparable = ends != "no_steps" and (not any(ranks) or share_most(*ranks))
    times = estimate(a, b, "step_ns") if comparable else _means(a, b, "step_ns")
    step_a_ns, step_b_ns = a.step_ns, b.step_ns
    # Around the difference of whole nanoseconds, which is what is printed.
    shift = (step_b_ns - step_a_ns) - (times.delta or 0.0)
    low, high = (None if end is None else end + shift for end in (times.low, times.high))
    whole = Estimate(step_a_ns, step_b_ns, low, high, times.more, times.count)
    comparison = Comparison(
        whole.verdict(SAME_WITHIN * step_a_ns),
        step_a_ns,
        step_b_ns,
        None if low is None else math.floor(low),
        None if high is None else math.ceil(high),
        _per_token(waterfall(a, b), a, b),
        measure_differences(a, b, whole, estimate if comparable else _means),
        {fact: (ours, theirs) for fact, ours, theirs in changed_facts(a, b).iter_rows()},
        unit_of(a, b),
        times.more,
        _per_token(at_each(a, b, by), a, b) if by else None,
        (_only(a, b), _only(b, a)),
        (a.tokens, b.tokens),
        ends,
        ranks,
    )  # fmt: skip
    if by == "rank" and comparison.layouts is not None:
        raise UsageError(
            "--by rank: the parallel layouts differ, and a rank of A is none of B: leave it out"
        )
    return comparison


# metric: compare_measures
# Which figures of a step differ between two runs, and is it real?
#
# A row per measure, each judged by itself with Welch's interval over steps of the job (or captures,
# where a side has several); see docs/compare.md.
#
# title: Measures of two runs
# meaning: Mean figures of a step of run A and of run B, their difference and its 95 % interval.
# table: compare_measures
# gauge: npuscope_baseline_ratio{measure} = b / a: A measure of the run's newest capture over that
#     of the baseline (--baseline): step_ns, computing_ns, exposed_communication_ns, free_ns,
#     masking_ratio, kernel_mfu_causal_ratio, peak_memory_bytes or expert_max_over_mean.
# gauge: npuscope_baseline_low_ratio{measure} = (a + low) / a: Lower end of the 95 % interval of
#     npuscope_baseline_ratio.
# gauge: npuscope_baseline_high_ratio{measure} = (a + high) / a: Upper end of the 95 % interval of
#     npuscope_baseline_ratio.
#
#   measure  varchar  step_ns, computing_ns, exposed_communication_ns, free_ns, masking_ratio,
#     kernel_mfu_causal_ratio, peak_memory_bytes, expert_max_over_mean or rank_ns_per_token
#   a        double   of A; NULL where unknown
#   b        double   of B, likewise
#   delta    double   b - a
#   low      double   lower end of the 95 % interval of delta; NULL: too few steps
#   high     double   its upper end
#   verdict  varchar  different, same or not_enough (see docs/compare.md)
#   count    bigint   steps, or captures, of the side that has fewer
def measure_differences(
    a: Side, b: Side, whole: Estimate, estimate: Callable[[Side, Side, str], Estimate]
) -> pl.DataFrame:
    """Rows of the metric `compare_measures`; `whole` is the estimate of the step's time, those of
    the others are told by `estimate`."""
    rows = []
    for name in ("step_ns", *MEASURES, PER_TOKEN):
        one = whole if name == "step_ns" else estimate(a, b, name)
        within = SAME_WITHIN * (1.0 if name.endswith("_ratio") else abs(one.a or 0.0))
        rows.append(
            {"measure": name, "a": one.a, "b": one.b, "delta": one.delta, "low": one.low,
             "high": one.high, "verdict": one.verdict(within), "count": one.count}
        )  # fmt: skip
    return pl.DataFrame(
        rows,
        {"measure": pl.String, **dict.fromkeys(("a", "b", "delta", "low", "high"), pl.Float64),
         "verdict": pl.String, "count": pl.Int64},
    )  # fmt: skip


# metric: changed_facts
# What else differs between two runs?
#
# A row per fact that both sides know and that is not the same.
#
# title: Facts that differ between two runs
# meaning: What captures know of themselves (versions, chips, parallel sizes) and differs.
# table: changed_facts
#
#   fact  varchar  column of the table ranks, a setting of its environment or model_config, or
#     memory_curve: what peak memory is of (allocated by the framework, or a component's reserved)
#   a     varchar  of A: every value that its ranks have
#   b     varchar  of B, likewise
def changed_facts(a: Side, b: Side) -> pl.DataFrame:
    """Rows of the metric `changed_facts`: none of what one side does not know."""
    rows: list[tuple[str, str, str]] = []
    for name in a.facts:
        ours, theirs = a.facts[name], b.facts.get(name, frozenset())
        if ours == theirs or not ours or not theirs:
            continue
        if name not in SETTINGS:
            rows.append((name, _list_of(ours), _list_of(theirs)))
            continue
        settings = [_settings(side) for side in (ours, theirs)]
        rows += [
            (one, _list_of(values[0]), _list_of(values[1]))
            for one in sorted({*settings[0], *settings[1]})
            if (values := [side.get(one, _UNSET) for side in settings])[0] != values[1]
        ]
    return pl.DataFrame(rows, dict.fromkeys(("fact", "a", "b"), pl.String), orient="row")


def _settings(texts: frozenset[str]) -> dict[str, frozenset[str]]:
    """Values of each setting over JSON objects of ranks; of a rank that lacks it: not set. A text
    that is none, of a store that somebody else made, tells nothing."""
    ranks = []
    for text in texts:
        with contextlib.suppress(msgspec.DecodeError):
            ranks.append(msgspec.json.decode(text, type=dict[str, str]))
    return {
        name: frozenset(one.get(name, *_UNSET) for one in ranks)
        for name in {name for one in ranks for name in one}
    }


def _other_ranks(a: Side, b: Side) -> tuple[frozenset[int], frozenset[int]]:
    """Ranks of either side, where both are of one layout and they are not the same."""
    sizes = [side.facts.get("world_size", frozenset()) for side in (a, b)]
    if not (a.ranks and b.ranks) or a.ranks == b.ranks or (all(sizes) and sizes[0] != sizes[1]):
        return frozenset(), frozenset()
    return a.ranks, b.ranks


def _means(a: Side, b: Side, measure: str) -> Estimate:
    """The means alone: nothing tells whether such a difference is real."""
    one = estimate(a, b, measure)
    return Estimate(one.a, one.b, count=one.count)


def _with_tokens(side: Side) -> Side:
    each = pl.col("step_ns") * pl.lit(side.ranks_per_token, pl.Float64)
    return replace(side, steps=side.steps.with_columns(each.alias(PER_TOKEN)))


def _per_token(rows: pl.DataFrame, a: Side, b: Side) -> pl.DataFrame:
    return rows.with_columns(
        (pl.col(f"{name}_ns") * pl.lit(side.ranks_per_token, pl.Float64)).alias(
            f"{name}_ns_per_token"
        )
        for name, side in (("a", a), ("b", b))
    )


def _only(one: Side, other: Side) -> tuple[int, ...]:
    return tuple(sorted(one.at.keys() - other.at.keys()))


def figures_of(comparison: Comparison) -> dict[str, object]:
    """What is said beside the rows: verdict, both steps, their difference and its interval, the
    other measures, and what else of the captures differs."""
    return {
        "verdict": comparison.verdict,
        "step_a_ns": comparison.step_a_ns,
        "step_b_ns": comparison.step_b_ns,
        "delta_ns": comparison.delta_ns,
        "delta_low_ns": comparison.delta_low_ns,
        "delta_high_ns": comparison.delta_high_ns,
        "unit": comparison.unit,
        "tokens_a": comparison.tokens[0],
        "tokens_b": comparison.tokens[1],
        "measures": comparison.figures.to_dicts(),
        "changed": [{"fact": name, "a": a, "b": b} for name, (a, b) in comparison.changes.items()],
    }


def remarks(comparison: Comparison) -> list[str]:
    """What to know before the figures: what was recorded differently, and what would tell more."""
    notes = recorded_differently(comparison)
    if comparison.verdict == "not_enough":
        notes.append(_what_would_tell(comparison))
    return notes


def recorded_differently(result: Comparison) -> list[str]:
    """Why the difference may be none of the runs, or not one of equal work."""
    notes: list[str] = []
    if any(result.ranks):
        a, b = map(numbers, result.ranks)
        notes.append(
            Message(
                "other ranks of one job (A {a}; B {b}): a mean rank of A does other work than one"
                " of B; record the same, or read the same with `npuscope ingest --ranks`",
                a=a, b=b,
            )
        )  # fmt: skip
    if result.ends == "no_steps":
        notes.append(
            Message("one side has no steps: all it recorded stands beside a step of the other")
        )
    if result.ends == "to_end":
        notes.append(
            Message("one side has last steps alone: steps of both are compared up to their own end")
        )
    if result.ends == "to_next":
        notes.append(
            Message("the last step of each capture, which ends with its own work, is left out")
        )
    if "profiler_level" in result.changes:
        a, b = result.changes["profiler_level"]
        notes.append(
            Message(
                "recorded at different levels (A {a}, B {b}): recording itself moves times, more"
                " at a higher level; profile both alike before the difference is believed",
                a=a, b=b,
            )
        )  # fmt: skip
    if GPU in result.changes.get("framework", ()):
        notes.append(
            Message("a GPU against an NPU: kernels are matched by the framework's operator")
        )
    if result.layouts is not None:
        a, b = result.layouts
        notes.append(
            Message(
                "parallel layouts differ (A {a}; B {b}): a rank of A does other work than one of B",
                a=a, b=b,
            )
        )  # fmt: skip
    tokens_a, tokens_b = result.tokens
    if tokens_a and tokens_b and tokens_a != tokens_b:
        notes.append(
            Message(
                "tokens per step differ (A {a}, B {b}): compare times per token",
                a=f"{tokens_a:,}", b=f"{tokens_b:,}",
            )
        )  # fmt: skip
    elif not (tokens_a and tokens_b) and (result.layouts is not None or is_other_work(result.rows)):
        notes.append(
            Message(
                "tokens per step may differ and are not known of both: --tokens-a and --tokens-b"
                " of `npuscope compare` give times per token"
            )
        )
    if any(result.alone):
        notes.append(
            Message(
                "of one side alone: {a} of A, {b} of B",
                a=numbers(result.alone[0]) or "-", b=numbers(result.alone[1]) or "-",
            )
        )  # fmt: skip
    return notes


def _what_would_tell(result: Comparison) -> Message:
    if result.ends == "no_steps":
        return Message("not enough to tell: record steps on both sides")
    if any(result.ranks) and not share_most(*result.ranks):
        return Message("not enough to tell: the mean ranks of A and B are of other ranks")
    if result.unit == "step":
        if result.more is None:
            return Message("not enough to tell: record more steps of both")
        return Message("not enough to tell: record {count} more steps of each", count=result.more)
    if result.more is None:
        return Message(
            "not enough to tell: profile both again and give these as --also-a and --also-b"
        )
    return Message("not enough to tell: {count} more captures of each would", count=result.more)


def unit_of(a: Side, b: Side) -> Literal["step", "capture"]:
    """What is counted as one observation: a step of the job, or a capture where a side has several
    (their steps are not independent of each other)."""
    several = any(side.captures.height > 1 for side in (a, b))
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
        (side.captures if unit == "capture" else side.steps)[measure].drop_nulls()
        for side in (a, b)
    )
    mean_a, mean_b = (as_figure(side.mean()) for side in (ours, theirs))
    counts = len(ours), len(theirs)
    few = Estimate(mean_a, mean_b, count=min(counts))
    if mean_a is None or mean_b is None:
        return few
    spreads = [as_figure(side.var()) for side in (ours, theirs)]  # of one value: None
    pairs = [(v, n) for v, n in zip(spreads, counts, strict=True) if v is not None]
    if not pairs or (unit == "step" and len(pairs) < 2):
        return few
    if unit == "capture":
        degrees = float(sum(n - 1 for _, n in pairs))
        pooled = sum(v * (n - 1) for v, n in pairs) / degrees
        variances = [pooled / n for n in counts]
    else:
        wide = (_widening(side) for side in (ours, theirs))
        variances = [v * more / n for (v, n), more in zip(pairs, wide, strict=True)]
        degrees = _degrees(variances, counts)
    error = math.sqrt(sum(variances))
    half = float(stdtrit(degrees, 0.5 + CONFIDENCE / 2)) * error
    delta = mean_b - mean_a
    within = SAME_WITHIN * abs(mean_a)
    more = None
    if within and half > within:
        least = min(counts)
        needed = math.ceil(least * (half / within) ** 2)
        more = needed - least if needed <= _MOST_STEPS else None
    return Estimate(mean_a, mean_b, delta - half, delta + half, more, min(counts))


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


def _list_of(values: frozenset[str]) -> str:
    return ", ".join(sorted(values))
