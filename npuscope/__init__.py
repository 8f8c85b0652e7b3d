"""npuscope: where each training step's time goes on Ascend NPUs, what it costs, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuscope.analysis.metric import Metric

__version__ = "0.1.0"


def metrics() -> tuple[Metric, ...]:
    """Every metric: what it asks, its columns with unit and meaning, its file, who shows it."""
    from npuscope.analysis import catalog

    return catalog.metrics()
