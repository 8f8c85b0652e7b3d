"""Which ranks run their micro-batches together."""

from __future__ import annotations

import numpy as np

from .operations import Operations
from .points import Indices

_WITHIN = ("tp", "ep", "cp", "tp_cp", "tp_ep", "mp", "mp_ep", "pp")  # meet in every micro-batch


def replicas(ops: Operations) -> Indices:
    """Of each rank the first of those that it meets in every micro-batch, at once or by others."""
    within = [at for at, name in enumerate(ops.kinds) if name in _WITHIN]
    at = np.flatnonzero(ops.is_communication & np.isin(ops.kind, within))
    rank, instance = ops.rank[at], ops.instance[at]
    found = np.arange(len(ops.ranks), dtype=np.int32)
    while True:
        least = np.full(int(instance.max(initial=-1)) + 1, len(found), np.int32)
        np.minimum.at(least, instance, found[rank])
        new = found.copy()
        np.minimum.at(new, rank, least[instance])
        if (new == found).all():
            return found
        found = new
