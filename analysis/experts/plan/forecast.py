"""What load the experts will have: four forecasts, tested on the steps at hand.

Every forecast is a weighted sum of the proportions p[step, layer, expert] = tokens / tokens of the
layer in the step, so a method is nothing but its weights over the last steps:

    last    the last step's
    mean    equal weights over a window
    ema     `KEEP` times the weight of the step after it (source: MindSpeed's planner, theta = 0.9)
    trend   a line fitted over the window by least squares, read `lead` steps ahead

Results are clipped at 0 and scaled to the tokens a layer is expected to have: its mean over the
window.

The **error** of a forecast is the mean of |forecast p - actual p| over layers and experts, divided
by the mean proportion 1 / experts: 0.013 says that an expert's proportion is missed by 1.3 % of
the mean expert's. (Published errors of "load proportion" do not say what they divide by.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npuscope.errors import UsageError
from npuscope.messages import Message

Floats = npt.NDArray[np.float64]

WINDOW = 20
KEEP = 0.9
QUANTILES = (0.05, 0.5, 0.95)
_MEMORY = 150  # steps: KEEP ** 150 is 1e-7
_ORIGINS = 40
_LEADS = 5


def _last(steps: int, lead: int, window: int) -> Floats:
    weights = np.zeros(steps)
    weights[-1] = 1.0
    return weights


def _mean(steps: int, lead: int, window: int) -> Floats:
    weights = np.zeros(steps)
    weights[-window:] = 1.0 / min(steps, window)
    return weights


def _ema(steps: int, lead: int, window: int) -> Floats:
    weights: Floats = KEEP ** np.arange(steps - 1, -1, -1.0)
    weights /= weights.sum()
    return weights


def _trend(steps: int, lead: int, window: int) -> Floats:
    used = min(steps, window)
    if used < 2:
        return _last(steps, lead, window)
    at = np.arange(used) - (used - 1) / 2
    weights = np.zeros(steps)
    weights[-used:] = 1.0 / used + ((used - 1) / 2 + lead) * at / (at @ at)
    return weights


METHODS: Mapping[str, Callable[[int, int, int], Floats]] = {
    "last": _last, "mean": _mean, "ema": _ema, "trend": _trend,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BackTest:
    """Forecasts made at earlier steps against what came.

    errors: method -> mean error over all origins and `leads`, steps ahead (see the module).
    residuals: method -> actual minus forecast proportions, [cases, layers, experts], and lead_of
    its lead in each case. horizon: the steps ahead that were asked for; the greatest lead is less
    where the steps do not reach so far.
    """

    horizon: int
    leads: tuple[int, ...]
    origins_count: int
    errors: Mapping[str, float]
    residuals: Mapping[str, Floats]
    lead_of: npt.NDArray[np.int64]

    @property
    def best(self) -> str:
        """The method with the least error; of equals the simpler."""
        return min(self.errors, key=lambda method: self.errors[method])

    def quantiles(self, method: str) -> tuple[float, ...]:
        """`QUANTILES` of the residuals, in mean proportions (1 / experts)."""
        residuals = self.residuals[method]
        quantiles = np.quantile(residuals, QUANTILES) * residuals.shape[-1]
        return tuple(float(one) for one in quantiles)


def checked_loads(loads: npt.ArrayLike) -> Floats:
    """Loads as float64 [steps, layers, experts], tokens; [layers, experts] is one step.

    Raises UsageError for another shape, for no steps, layers or experts, and for loads that are
    negative or no numbers.
    """
    array = np.asarray(loads, dtype=np.float64)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or 0 in array.shape:
        raise UsageError(f"loads must be [steps, layers, experts], none empty: got {array.shape}")
    if not np.isfinite(array).all() or (array < 0).any():
        raise UsageError("loads must be numbers of tokens, 0 or more: some are negative or unknown")
    return array


def proportions(loads: Floats) -> Floats:
    """Tokens of an expert by those of its layer, [..., layers, experts]; 0 without tokens."""
    total = loads.sum(axis=-1, keepdims=True)
    shares: Floats = np.divide(loads, total, out=np.zeros_like(loads), where=total > 0)
    return shares


def expected_tokens(loads: Floats, window: int = WINDOW) -> Floats:
    """Tokens a layer will have in a step: its mean over the window, [layers]."""
    mean: Floats = loads[-window:].sum(axis=-1).mean(axis=0)
    return mean


def forecast(loads: npt.ArrayLike, method: str, *, lead: int = 1, window: int = WINDOW) -> Floats:
    """Load [layers, experts] in tokens, `lead` steps after the last of loads.

    loads: [steps, layers, experts], tokens, one step after the other. Raises UsageError for an
    unknown method, and for what `checked_loads` refuses.
    """
    if method not in METHODS:
        raise UsageError(f"no forecast {method!r}: choose from {', '.join(METHODS)}")
    if lead < 1 or window < 1:
        raise UsageError(f"lead and window must be 1 or more: got {lead} and {window}")
    counts = checked_loads(loads)
    ahead = _ahead(proportions(counts[-max(window, _MEMORY) :]), method, lead, window)
    return ahead * expected_tokens(counts, window)[:, None]


def _ahead(past: Floats, method: str, lead: int, window: int) -> Floats:
    """Proportions `lead` steps after past [steps, layers, experts]."""
    weighted = np.tensordot(METHODS[method](len(past), lead, window), past, axes=1)
    return proportions(np.clip(weighted, 0.0, None))


def backtest(loads: npt.ArrayLike, horizon: int, *, window: int = WINDOW) -> BackTest:
    """Every method, asked at up to 40 earlier steps for up to 5 leads from 1 to horizon.

    loads: [steps, layers, experts]. No forecast sees a step after its origin. Half of the steps at
    most are leads, so that origins have a past: the greatest lead is min(horizon, steps / 2).
    Raises UsageError for fewer than three steps.
    """
    counts = checked_loads(loads)
    steps, _, experts = counts.shape
    if horizon < 1 or window < 1:
        raise UsageError(f"horizon and window must be 1 or more: got {horizon} and {window}")
    if steps < 3:
        raise UsageError(
            Message("a back-test needs three steps or more: there are {steps}", steps=steps)
        )
    farthest = min(horizon, steps // 2)
    leads = np.unique(np.linspace(1, farthest, _LEADS).round().astype(np.int64))
    least = min(window, steps - farthest)
    origins = np.unique(np.linspace(least, steps - farthest, _ORIGINS).round().astype(np.int64))
    shares = proportions(counts)
    reach = max(window, _MEMORY)
    residuals, errors = {}, {}
    for method in METHODS:
        cases = np.stack([
            shares[origin + lead - 1]
            - _ahead(shares[max(0, origin - reach) : origin], method, int(lead), window)
            for origin in origins
            for lead in leads
        ])  # fmt: skip
        residuals[method] = cases
        errors[method] = float(np.abs(cases).mean() * experts)
    return BackTest(
        horizon, tuple(int(lead) for lead in leads), len(origins),
        errors, residuals, np.tile(leads, len(origins)),
    )  # fmt: skip


def scenarios(loads: npt.ArrayLike, method: str, back_test: BackTest, count: int = 64) -> Floats:
    """Loads [cases, layers, experts] that may come: the forecast, missed as it was before.

    Each case is the forecast for one lead plus what one back-tested forecast for that lead missed,
    all experts together, so that what rises with what is kept. At most `count`, evenly chosen.
    """
    counts = checked_loads(loads)
    missed = back_test.residuals[method]
    places = np.unique(np.linspace(0, len(missed) - 1, min(count, len(missed))).round().astype(int))
    tokens = expected_tokens(counts)[:, None]
    ahead = {lead: proportions(forecast(counts, method, lead=lead)) for lead in back_test.leads}
    came = np.stack([ahead[int(back_test.lead_of[case])] + missed[case] for case in places])
    return proportions(np.clip(came, 0.0, None)) * tokens
