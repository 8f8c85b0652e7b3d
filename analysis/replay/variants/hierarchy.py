"""All-to-alls over hosts in two stages: to one rank of each host, then on within the host."""

from __future__ import annotations

import duckdb
import numpy as np

from ..captures import CaptureJob, Other
from ..changes import Change
from .experts import are_staged, exchange_groups, exchanges, matrices
from .payloads import payloads

_HOSTS = "select rank, host_name from ranks where run = ? and capture = ?"


def hierarchical(
    con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change
) -> Other:
    """`hierarchical:ep`: a rank first sends to its like on each other host all bytes that are for
    that host, then each passes on within its host what came, with what it has itself. A stage takes
    as long as its most bytes to one rank, by the mean time of a byte between and within hosts."""

    if change.name not in job.ops.kinds:
        raise change.no_such([name for name in job.ops.kinds if name])
    exchanged = exchanges(job, (change.name,), change)
    moved = payloads(con, job, own, change)
    hosts = dict(con.execute(_HOSTS, [job.run, job.capture]).fetchall())
    host = np.array([hosts.get(rank) or "" for rank in job.ops.ranks])
    durations = own.waits.transfer.copy()
    groups = []
    for group in exchange_groups(job, exchanged):
        names, at = np.unique(host[group.members], return_inverse=True)
        if len(names) == 1:
            continue
        counts = np.bincount(at)
        if not group.exchanges.size or "" in names or (counts != counts[0]).any():
            raise change.refusal(
                "groups must have as many ranks on each of their hosts, all running the same"
            )
        sent, took = matrices(job, group, moved)
        if are_staged(sent, took):
            raise change.refusal("its all-to-alls seem to go in stages already")
        groups.append((group, at, sent * ~np.eye(len(at), dtype=bool), took))
    if not groups:
        raise change.refusal(
            "no group of this kind spans several hosts, so there is nothing to stage"
        )
    rates = []
    for is_far in (False, True):
        pairs = [((at[:, None] != at) == is_far, sent, took) for _, at, sent, took in groups]
        size = sum(float(sent[:, one].sum()) for one, sent, _ in pairs)
        spent = sum(float(took[:, one].sum()) for one, _, took in pairs)
        if not size or not spent:
            raise change.refusal(
                "transfers both between and within hosts are needed to know their speeds"
            )
        rates.append(spent / size)
    for group, at, sent, took in groups:
        count = len(at)
        like = np.array([int((at[:one] == at[one]).sum()) for one in range(count)])
        to_host = np.stack([sent[:, :, at == one].sum(axis=2) for one in range(at.max() + 1)], 2)
        to_host[:, np.arange(count), at] = 0
        by_like = np.stack([sent[:, like == one].sum(axis=1) for one in range(like.max() + 1)], 1)
        passed = by_like[:, like] * ((at[:, None] == at) & ~np.eye(count, dtype=bool))
        new = to_host.max(axis=(1, 2)) * rates[1] + passed.max(axis=(1, 2)) * rates[0]
        longer = (new - took.max(axis=(1, 2)))[:, None] * own.pace[group.exchanges]
        durations[group.exchanges] += np.round(longer).astype(np.int64)
    return own.with_durations(
        durations, np.where(own.outside == own.waits.transfer, durations, own.outside)
    )
