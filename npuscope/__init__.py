"""npuscope: where each training step's time goes on Ascend NPUs, what it costs, what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from npuscope.analysis.metric import Metric
    from npuscope.capture import Capture

__all__ = ["__version__", "metrics", "open"]
__version__ = "0.1.0"


def open(
    path: str | Path,
    run: str | None = None,
    capture: str | None = None,
    *,
    store: str | Path | None = None,
    jobs: int | None = None,
) -> Capture:
    """A profile folder, a store or an exported file, opened to be asked.

    A folder is read first, into the user cache or the folder `store`, by `jobs` processes (one per
    CPU); what was read before is not read again. `run` and `capture` choose, where there are
    several; without, answers have rows of all. Raises npuscope.errors.NpuscopeError, whose text
    says what to do.

    Examples:
        >>> with npuscope.open("sample_traces/moe_8_ranks") as job:
        ...     job.steps().select("rank", "step", "exposed_communication_ns").head(2).rows()
        [(0, 12, 10278017), (0, 13, 10239305)]
    """
    from npuscope.capture import Capture

    return Capture(path, run, capture, store=store, jobs=jobs)


def metrics() -> tuple[Metric, ...]:
    """Every metric: what it asks, its columns with unit and meaning, its file, who shows it."""
    from npuscope.analysis import catalog

    return catalog.metrics()
