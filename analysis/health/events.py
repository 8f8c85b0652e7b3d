"""Where a training went wrong: spikes, changes of level, periodic costs, restarts, no numbers.

Rules and their constants are those of docs/health.md. Each is a function on the steps of a log with
the `iterations` that a line stands for: rules go over lines, counts and costs are of iterations.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import bdtrc

from ..compare.change_points import change_points

Floats = NDArray[np.float64]
# Above the median of the values before it by so many robust standard deviations, and that share.
_SPIKE = 6.0
_SPIKE_SHARE = 0.1
_WINDOW, _FEWEST = 128, 16
_LONGEST = 50  # steps that a spike lasts at most: longer is a change of level
# The same of times, over the median around them, for what comes again and again.
_COST, _COST_SHARE, _AROUND = 5.0, 0.03, 101
_HIT_SHARE, _FEWEST_HITS, _CHANCE = 0.8, 3, 0.01
_MOST_PERIODS = 5
_ROBUST = 1.4826  # standard deviations in a median absolute deviation of normal values
_ITERATIONS = pl.col("iterations").sum().round().cast(pl.Int64)
EVENT_COLUMNS = {
    "kind": pl.String, "metric": pl.String, "step": pl.Int64, "end_step": pl.Int64,
    "count": pl.Int64, "value": pl.Float64, "usual": pl.Float64, "low": pl.Float64,
    "high": pl.Float64, "period_steps": pl.Int64, "cost_ns": pl.Int64,
}  # fmt: skip


def spikes(steps: pl.DataFrame, name: str) -> pl.DataFrame:
    """Spikes of a column: an event for each stretch of steps above the rule's limit, from its first
    step to the last one before it recovered; `value` is the highest."""
    rows = steps.filter(pl.col(name).is_finite() & pl.col("step").is_not_null())
    value = pl.col(name)
    rows = rows.with_columns(_median_before(value).alias("usual"))
    early = pl.Series(_early_deviations(rows[name].head(2 * _FEWEST).to_numpy()), dtype=pl.Float64)
    early = early.extend_constant(None, rows.height - len(early))
    deviation = pl.coalesce(_median_before((value - pl.col("usual")).abs()), early)
    spread = _ROBUST * deviation
    limit = pl.col("usual") + pl.max_horizontal(
        _SPIKE * spread, _SPIKE_SHARE * pl.col("usual").abs()
    )
    rows = rows.with_columns((value > limit).fill_null(value=False).alias("is_high"))
    runs = rows.with_columns(pl.col("is_high").rle_id().alias("run")).filter("is_high")
    by_run = runs.group_by("run", maintain_order=True).agg(
        pl.col("step").first(), pl.col("step").last().alias("end_step"),
        pl.len().alias("lines"), _ITERATIONS.alias("count"), value.max().alias("value"),
        pl.col("usual").first(),
    )  # fmt: skip
    return _events(by_run.filter(pl.col("lines") <= _LONGEST), "spike", name)


def may_spike(steps: pl.DataFrame, name: str) -> pl.Series:
    """Whether each step could have been a spike of a column: it has enough steps before it."""
    is_told = pl.col(name).is_finite().fill_null(value=False) & pl.col("step").is_not_null()
    return steps.select(is_told & (is_told.cum_sum() > _FEWEST)).to_series()


def _median_before(value: pl.Expr) -> pl.Expr:
    return value.rolling_median(_WINDOW, min_samples=_FEWEST).shift(1)


def _early_deviations(values: Floats) -> list[float | None]:
    """The median absolute deviation of the values before each: of the first ones, whose forerunners
    have no median to deviate from. None where they are too few."""
    before = (values[:at] for at in range(_FEWEST, len(values)))
    deviations = [float(np.median(np.abs(one - np.median(one)))) for one in before]
    return [*[None] * min(_FEWEST, len(values)), *deviations]


def not_finite(steps: pl.DataFrame) -> pl.DataFrame:
    """Stretches of steps whose loss or gradients were no number, and of skipped iterations."""
    return pl.concat([
        _events(_stretches(steps, "lost_count"), "not_finite", "loss"),
        _events(_stretches(steps, "skipped_count"), "skipped", "step"),
    ])  # fmt: skip


def _stretches(steps: pl.DataFrame, name: str) -> pl.DataFrame:
    is_so = (pl.col(name).fill_null(0) > 0).alias("is_so")
    runs = steps.with_columns(is_so).with_columns(pl.col("is_so").rle_id().alias("run"))
    return runs.filter("is_so").group_by("run", maintain_order=True).agg(
        pl.col("step").first(), pl.col("step").last().alias("end_step"),
        pl.col(name).sum().alias("count"),
    )  # fmt: skip


def periodic_costs(steps: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """Costs that come again every so many steps (checkpoints, garbage collection, evaluation), and
    which steps have one: `count` of them, `cost_ns` of each over the usual step, on average. A line
    for ten steps tells a tenth of it."""
    step_rows = steps.filter(pl.col("step").is_not_null() & pl.col("step_ns").is_not_null())
    usual = pl.col("step_ns").rolling_median(_AROUND, center=True, min_samples=1)
    excess = pl.col("step_ns") - usual
    step_rows = step_rows.with_columns(usual.alias("usual"), excess.alias("excess"))
    if step_rows.is_empty():
        return pl.DataFrame(schema=EVENT_COLUMNS), step_rows["step"]
    numbers, over_ns = step_rows["step"].to_numpy(), step_rows["excess"].to_numpy()
    limit_ns = np.maximum(
        _COST * _ROBUST * float(np.median(np.abs(over_ns))),
        _COST_SHARE * step_rows["usual"].to_numpy(),
    )
    left_ns, stands_for = over_ns.copy(), step_rows["iterations"].to_numpy()
    regular = np.zeros(len(numbers), np.bool_)
    rows: list[dict[str, float]] = []
    while len(rows) < _MOST_PERIODS:
        hit = _most_regular(numbers, left_ns > limit_ns)
        if hit is None:
            break
        period, places = hit
        cost_ns = float(np.median(left_ns[places] * stands_for[places]))
        left_ns[places] -= cost_ns / stands_for[places]  # a step may have several of them
        regular |= places
        usual_ns = float(np.median(step_rows["usual"].to_numpy()[places]))
        rows.append({
            "step": int(numbers[places][0]), "end_step": int(numbers[places][-1]),
            "count": int(places.sum()), "value": usual_ns + cost_ns, "usual": usual_ns,
            "period_steps": period, "cost_ns": round(cost_ns),
        })  # fmt: skip
    return _events(pl.DataFrame(rows), "periodic", "step_ns"), step_rows["step"].filter(regular)


def _most_regular(
    numbers: NDArray[np.int64], is_high: NDArray[np.bool_]
) -> tuple[int, NDArray[np.bool_]] | None:
    """The period and the high steps of it that explain most of them, if chance seldom does."""
    high = numbers[is_high]
    if len(high) < _FEWEST_HITS:
        return None
    gaps = np.concatenate([high[lag:] - high[:-lag] for lag in (1, 2, 3)])
    periods, counts = np.unique(gaps[gaps > 1], return_counts=True)
    best: tuple[int, int, NDArray[np.bool_]] | None = None
    density = len(high) / len(numbers)
    pairs = len(high) * (len(high) - 1) / 2
    for period in periods[np.argsort(-counts, kind="stable")[:20]].tolist():
        phases, hits = np.unique(high % period, return_counts=True)
        phase, count = phases[hits.argmax()], int(hits.max())
        if count < _FEWEST_HITS or (best is not None and count <= best[0]):
            continue
        is_of_phase = numbers % period == phase
        is_hit = is_of_phase & is_high
        first, last = numbers[is_hit][[0, -1]]
        is_within = (numbers >= first) & (numbers <= last)
        possible = int((is_of_phase & is_within).sum())
        # In a slow stretch every period is hit: as likely as the steps between are high.
        between = is_high[is_within & ~is_of_phase]
        likely = max(density, float(between.mean())) if len(between) else 1.0
        # Any two make a period: chance are the others on it.
        by_chance = float(bdtrc(count - 3, possible - 2, likely)) * pairs
        if count >= _HIT_SHARE * possible and by_chance < _CHANCE:
            best = (count, period, is_hit)
    return None if best is None else best[1:]


def restarts(lines: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Where the log goes back to an earlier step: from the step it began again with to the last
    that was lost; `count` steps were done twice, `cost_ns` is what they took at first. `steps`:
    each once, with the iterations that its lines stand for."""
    step_rows = lines.filter(pl.col("step").is_not_null())
    # Of ranks that log the same step one after the other, one line tells.
    step_rows = step_rows.filter(pl.col("step").ne_missing(pl.col("step").shift()))
    step = step_rows["step"]
    rows: list[dict[str, int]] = []
    elapsed = step_rows["elapsed_s"].fill_null(0.0).to_numpy()
    numbers, once = step.to_numpy(), steps["step"].drop_nulls().to_numpy()
    places = np.searchsorted(once, numbers)
    stands_for = steps["iterations"].to_numpy()[places]
    # Several ranks may log: one that is a line behind has not gone back. The next line tells; of
    # the last one, that it is more than a step behind.
    place = pl.Series(places)
    goes_on = (step.shift(-1) > step) & (step.shift(-1) < step.shift(1))
    again = (step < step.shift(1)) & goes_on.fill_null(place < place.shift(1) - 1)
    is_lost = np.zeros(len(numbers), np.bool_)
    for at in again.fill_null(value=False).arg_true().to_list():
        # What an earlier restart had lost is not lost again.
        lost = np.flatnonzero(~is_lost[:at] & (numbers[:at] >= numbers[at]))
        is_lost[lost] = True
        rows.append({
            "step": int(numbers[at]), "end_step": int(numbers[lost].max()),
            "count": round(float(stands_for[lost].sum())),
            "cost_ns": round(float(elapsed[lost] @ stands_for[lost]) * 1e9),
        })  # fmt: skip
    return _events(pl.DataFrame(rows), "restart", "step")


def _events(event_rows: pl.DataFrame, kind: str, name: str) -> pl.DataFrame:
    """Rows in the columns of events."""
    if event_rows.is_empty():
        return pl.DataFrame(schema=EVENT_COLUMNS)
    rows = event_rows.with_columns(pl.lit(kind).alias("kind"), pl.lit(name).alias("metric"))
    return rows.select(
        (pl.col(column) if column in rows.columns else pl.lit(None)).cast(dtype).alias(column)
        for column, dtype in EVENT_COLUMNS.items()
    )


def level_changes(steps: pl.DataFrame) -> pl.DataFrame:
    """Where the length of steps changes its level for good (`compare.change_points`): `usual`
    before, `value` after, `low` and `high` of the difference."""
    step_rows = steps.filter(pl.col("step_ns").is_finite() & pl.col("step").is_not_null())
    step, stands_for = step_rows["step"], step_rows["iterations"].to_numpy()
    rows = [
        {
            "step": step[one.at], "end_step": step[one.at + one.count_after - 1],
            "count": round(float(stands_for[one.at :][: one.count_after].sum())),
            "value": one.after, "usual": one.before, "low": one.low, "high": one.high,
        }
        for one in change_points(step_rows["step_ns"].cast(pl.Float64).to_numpy())
    ]  # fmt: skip
    return _events(pl.DataFrame(rows), "change", "step_ns")
