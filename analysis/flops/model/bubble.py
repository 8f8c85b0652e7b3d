"""The share of a step that pipeline stages wait at its ends, by schedule."""

from __future__ import annotations

from fractions import Fraction

from npuscope.errors import UsageError


def bubble_ratio(stages: int, micro_batches: int, virtual_chunks: int = 1) -> Fraction:
    """Bubble / step of a balanced 1F1B pipeline, interleaved where a stage has several chunks.

        (p - 1) / (m v + p - 1)

    with p stages, m micro-batches, v chunks of layers per stage (Narayanan et al., arXiv
    2104.04473, give the same as bubble / ideal time, (p - 1) / (m v)). Raises UsageError for
    counts below 1.
    """
    if min(stages, micro_batches, virtual_chunks) < 1:
        raise UsageError("stages, micro-batches and virtual chunks have to be 1 or more")
    return Fraction(stages - 1, micro_batches * virtual_chunks + stages - 1)
