"""The constants of the model of cost, all in `constants.json`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant: value, unit, what it means, where it is from; the spread of the prior is of
    its logarithm, 0 for what is a rule of the framework and never fitted."""

    value: float
    unit: str
    meaning: str
    source: str
    prior: float
    spread: float


Constants = dict[str, float]  # by name, as in `constants.json`


@cache
def described_constants() -> dict[str, Constant]:
    """All constants by name."""
    text = resources.files(__package__).joinpath("constants.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Constant])


def default_constants() -> Constants:
    """Values of all constants."""
    return {name: constant.value for name, constant in described_constants().items()}
