"""Limits on the change from run A to run B: how they are written, and which of them B breaks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import polars as pl

from npuscope.errors import TraceNotFound, UsageError

from .difference import Comparison, Estimate

Outcome = Literal["kept", "broken", "not_enough", "unknown"]
# Names of limits, and the measure of a comparison that each is on.
MEASURE_OF = {
    "step_time": "step_ns",
    "computing_time": "computing_ns",
    "exposed_communication_time": "exposed_communication_ns",
    "free_time": "free_ns",
    "masking_ratio": "masking_ratio",
    "mfu": "kernel_mfu_causal_ratio",
    "peak_memory": "peak_memory_bytes",
    "expert_imbalance": "expert_max_over_mean",
}
# Units of a measure beside %, which is of A's figure, by the ending of its name.
_UNITS: dict[str, dict[str, float]] = {
    "ns": {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0},
    "ratio": {"points": 0.01, "point": 0.01},
    "bytes": {
        "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0,
    },
    "mean": {"": 1.0},
}  # fmt: skip
_EXAMPLES = {"ns": "+3 %", "ratio": "-2 points", "bytes": "+1 GiB", "mean": "+0.1"}
_LIMIT = re.compile(r"([+-])\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a measure may change: `+` it may grow, `-` it may fall by at most `amount`, which is
    in the measure's unit, or a share of A's figure (`is_share`). `text`: as it was written."""

    name: str
    text: str
    sign: Literal["+", "-"]
    amount: float
    is_share: bool

    @property
    def measure(self) -> str:
        """The measure of a comparison that the limit is on."""
        return MEASURE_OF[self.name]

    def is_beyond(self, one: Estimate) -> bool:
        """Whether the means differ by more than is allowed."""
        if one.a is None or one.delta is None:
            return False
        most = self.amount * abs(one.a) if self.is_share else self.amount
        return one.delta > most if self.sign == "+" else one.delta < -most


def parse_limit(name: str, text: object) -> Limit:
    """A limit such as step_time, "+3 %". Raises UsageError that says what is allowed."""
    if name not in MEASURE_OF:
        names = ", ".join(MEASURE_OF)
        raise UsageError(f"no limit {name}: choose of {names}")
    ending = MEASURE_OF[name].rpartition("_")[2]
    units = _UNITS[ending]
    match = _LIMIT.fullmatch(text.strip().replace("\u2212", "-")) if isinstance(text, str) else None
    if match is None or (match[3] != "%" and match[3] not in units):
        allowed = ", ".join(["%", *(unit or "none" for unit in units)])
        raise UsageError(
            f"limit {name} = {text!r}: give + (may grow) or - (may fall), a number and a unit of"
            f' {allowed}, such as "{_EXAMPLES[ending]}"'
        )
    sign: Literal["+", "-"] = "+" if match[1] == "+" else "-"
    is_share = match[3] == "%"
    amount = float(match[2]) * (0.01 if is_share else units[match[3]])
    written = f"{sign}{match[2]} {match[3]}".rstrip()
    return Limit(name, written, sign, amount, is_share)


def limits_of(options: Iterable[str], file: Path | None = None) -> list[Limit]:
    """Limits of a TOML file (a line `step_time = "+3 %"` each) and of options `step_time=+3 %`,
    which win. Raises UsageError, or TraceNotFound where the file cannot be read."""
    limits: dict[str, object] = {}
    if file is not None:
        try:
            limits |= msgspec.toml.decode(file.read_bytes(), type=dict[str, object])
        except OSError as error:
            raise TraceNotFound(f"{file}: cannot be read ({error.strerror})") from None
        except (msgspec.DecodeError, ValueError) as error:
            raise UsageError(f"{file}: no TOML: {error}") from None
    options_here: set[str] = set()
    for option in options:
        name, equals, text = (part.strip() for part in option.partition("="))
        if not equals:
            raise UsageError(f"limit {option}: give NAME=LIMIT, such as step_time=+3%")
        if name in options_here:
            raise UsageError(f"limit {name} is given twice")
        options_here.add(name)
        limits[name] = text.strip("\"'")
    if not limits:
        names = ", ".join(MEASURE_OF)
        raise UsageError(f"no limits: give --limit NAME=LIMIT or --limits FILE; of {names}")
    return [parse_limit(name, text) for name, text in limits.items()]


# metric: gate
# Does run B keep the limits on its change from run A?
#
# A limit is broken where the measure's change is beyond it and the difference is real: the measure
# is `different` as in the metric compare. Figures are in the unit that the measure's name ends
# with.
#
# title: Limits on a change
# meaning: Each limit on the change from run A to run B, and whether B keeps it.
# command: gate
#
#   limit       varchar  name of the limit
#   allowed     varchar  how far it may change, as given: + may grow, - may fall
#   verdict     varchar  kept, broken, not_enough (beyond it, but perhaps by chance), unknown (of a
#     side the measure is not known)
#   measure     varchar  what is measured, as in compare
#   a           double   mean of A
#   b           double   mean of B
#   delta       double   b - a
#   low         double   where the 95 % interval of the difference begins; NULL: too few steps
#   high        double   where it ends
#   more_count  bigint   of not_enough: steps (or captures) more of each side that would make a
#     difference as large as this one real; NULL: not known
def judge(limits: Iterable[Limit], comparison: Comparison) -> pl.DataFrame:
    """Rows of the metric, in the order of the limits."""
    figures = comparison.figures.rows_by_key("measure", named=True, unique=True)
    return pl.DataFrame(
        [_row(limit, figures[limit.measure]) for limit in limits],
        {**dict.fromkeys(("limit", "allowed", "verdict", "measure"), pl.String),
         **dict.fromkeys(("a", "b", "delta", "low", "high"), pl.Float64),
         "more_count": pl.Int64},
    )  # fmt: skip


def _row(limit: Limit, figure: Mapping[str, Any]) -> dict[str, object]:
    record = {key: figure[key] for key in ("a", "b", "delta", "low", "high")}
    one = Estimate(figure["a"], figure["b"], figure["low"], figure["high"], count=figure["count"])
    verdict: Outcome = "kept"
    if one.delta is None:
        verdict = "unknown"
    elif limit.is_beyond(one):
        # 'Different' does not ask how near is the same.
        verdict = "broken" if figure["verdict"] == "different" else "not_enough"
    more = _more(one) if verdict == "not_enough" else None
    return {
        "limit": limit.name, "allowed": limit.text, "verdict": verdict, "measure": limit.measure,
        **record, "more_count": more,
    }  # fmt: skip


def _more(one: Estimate) -> int | None:
    """Observations of each side that would narrow the interval to the difference: its width goes
    with the root of their number."""
    if one.low is None or one.high is None:
        return max(2 - one.count, 1)  # of a single one nothing is known of chance
    half, delta = (one.high - one.low) / 2, abs(one.delta or 0.0)
    return max(math.ceil(one.count * (half / delta) ** 2) - one.count, 1) if delta else None
