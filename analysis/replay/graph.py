"""What waits for what in a step, and when it ends.

A node is an operation of one place of the job; the ranks that do the same there, and steps, are
columns of its durations. An operation starts when all it waits for has ended. Members of a group
start together, with the latest of them; each ends its own duration later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]


class Circular(ValueError):
    """Nodes that wait for each other: `nodes`."""

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__(f"{len(nodes)} nodes wait for each other")
        self.nodes = nodes


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that start together; with their peers in the columns of a step, too."""

    nodes: tuple[int, ...]
    is_over_peers: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Groups of nodes (most of one), each after those it waits for; what each node waits for."""

    groups: tuple[Group, ...]
    waits_for: tuple[tuple[int, ...], ...]

    def lengths(self, durations: Times) -> Times:
        """From the start of each step to its last end; durations by node, step and peer."""
        ends = np.empty(durations.shape)
        waits_for = self.waits_for
        for group in self.groups:
            start: Times | float = 0.0
            for node in group.nodes:
                for other in waits_for[node]:
                    start = np.maximum(start, ends[other])
            if group.is_over_peers and not isinstance(start, float):
                start = start.max(axis=-1, keepdims=True)
            for node in group.nodes:
                np.add(start, durations[node], out=ends[node])
        lengths: Times = ends.max(axis=(0, 2))
        return lengths


def graph(count: int, waits_for: Mapping[int, Iterable[int]], groups: Sequence[Group]) -> Graph:
    """A graph of `count` nodes; those in no group stand alone. Raises Circular."""
    member = {node: group for group in groups for node in group.nodes}
    alone = [Group((node,)) for node in range(count) if node not in member]
    member.update({group.nodes[0]: group for group in alone})
    before = tuple(tuple(dict.fromkeys(waits_for.get(node, ()))) for node in range(count))
    open_ones = dict.fromkeys((*groups, *alone), 0)
    after: dict[Group, list[Group]] = {group: [] for group in open_ones}
    for group in open_ones:
        for first in {member[other] for node in group.nodes for other in before[node]}:
            after[first].append(group)
            open_ones[group] += 1
    ready = [group for group, count in open_ones.items() if count == 0]
    for group in ready:  # grows as it is read
        for later in after[group]:
            open_ones[later] -= 1
            if open_ones[later] == 0:
                ready.append(later)
    if len(ready) < len(open_ones):
        raise Circular([node for group in set(open_ones) - set(ready) for node in group.nodes])
    return Graph(tuple(ready), before)
