"""What a placement costs in time: the slowest device of each layer, and what moving takes.

A device's time in a layer is that of its experts' matrix products and of the tokens sent to it:

    sum over its slots of  max(floor, ns_per_token x tokens)      (0 without tokens)
                         + token_bytes x tokens x (near share / near link + far share / far link)

A layer takes that of its slowest device and what is beside tokens, or its floor if that is more.
Sources of tokens are spread evenly over devices. A replica serves its own node first: of an
expert's c replicas, r on this node, c / (nodes x r) of their tokens (1 at most) come from the
node, and of these all but one device's from another device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuscope.errors import UsageError

from .placement import Floats, Placement, arrivals, held_by, replicas, slot_tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """What tokens cost, all passes and micro-batches of a step together.

    ns_per_token: matrix products of one token in one expert. floor_ns: the least an expert takes
    that has tokens at all. fixed_ns: what a device takes in a layer whatever its load. token_bytes:
    bytes of one token sent to an expert and back. near, far: a device's link inside its node and to
    other nodes, bytes/s; None: not counted, its time unknown.
    """

    ns_per_token: float
    floor_ns: float = 0.0
    fixed_ns: float = 0.0
    token_bytes: float = 0.0
    near_bytes_per_s: float | None = None
    far_bytes_per_s: float | None = None
    device_floor_ns: float = 0.0

    def __post_init__(self) -> None:
        links = [one for one in (self.near_bytes_per_s, self.far_bytes_per_s) if one is not None]
        amounts = (
            self.ns_per_token, self.floor_ns, self.fixed_ns, self.token_bytes, self.device_floor_ns,
        )  # fmt: skip
        if not (all(0 <= one < np.inf for one in amounts) and all(one > 0 for one in links)):
            raise UsageError(f"times and bytes must be 0 or more, links above 0: got {self}")

    def near_ns(self) -> float:
        """One token over the link inside a node."""
        return _ns(self.token_bytes, self.near_bytes_per_s)

    def far_ns(self) -> float:
        """One token over the link to other nodes."""
        return _ns(self.token_bytes, self.far_bytes_per_s)


TOKENS_ONLY = Cost(1.0)  # "ns" are tokens: for plans where no time is known


def _ns(size_bytes: float, bytes_per_s: float | None) -> float:
    return 0.0 if bytes_per_s is None else size_bytes / bytes_per_s * 1e9


def compute_ns(tokens: Floats, cost: Cost) -> Floats:
    """Time of one expert's matrix products for so many tokens, elementwise."""
    times_ns: Floats = np.where(
        tokens > 0, np.maximum(cost.floor_ns, cost.ns_per_token * tokens), 0.0
    )
    return times_ns


def slot_ns(placement: Placement, load: Floats, cost: Cost, nodes: int = 1) -> Floats:
    """Time of each slot, [..., layers, devices, slots], without fixed_ns; see the module."""
    tokens = slot_tokens(placement, load)
    near = near_share(placement, load.shape[-1], nodes)
    per_node = placement.shape[1] // nodes
    inside = cost.near_ns() * (per_node - 1) / per_node
    sent: Floats = tokens * (near * inside + (1 - near) * cost.far_ns())
    return compute_ns(tokens, cost) + sent


def near_share(placement: Placement, experts: int, nodes: int) -> Floats:
    """Share of each slot's tokens that come from its own node, [layers, devices, slots]."""
    if nodes == 1:
        return np.ones(placement.shape)
    layers, devices, slots = placement.shape
    all_copies = replicas(placement, experts)
    on_node = replicas(placement.reshape(layers * nodes, devices // nodes, slots), experts)
    flat = np.maximum(placement, 0).reshape(layers, nodes, -1)
    here = np.take_along_axis(on_node.reshape(layers, nodes, experts), flat, axis=2)
    everywhere = all_copies[np.arange(layers)[:, None, None], flat]
    share: Floats = np.minimum(1.0, everywhere / (nodes * np.maximum(here, 1)))
    return share.reshape(placement.shape)


def layer_times(placement: Placement, load: Floats, cost: Cost, nodes: int = 1) -> Floats:
    """Time of each layer in ns, [..., layers]: that of its slowest device.

    load: [..., layers, experts], tokens of a step.
    """
    slowest: Floats = slot_ns(placement, load, cost, nodes).sum(axis=-1).max(axis=-1)
    times_ns: Floats = np.maximum(slowest + cost.fixed_ns, cost.device_floor_ns)
    return times_ns


def migration_ns(
    old: Placement, new: Placement, experts: int, expert_bytes: int, bytes_per_s: float
) -> float:
    """Time to turn old into new: that of the device that receives or sends most.

    Every device has one link of bytes_per_s each way, links work at once; former holders of an
    expert share its sending evenly. A bound from below: a plan of sends may do worse.
    """
    coming = arrivals(old, new, experts)
    had = held_by(old, experts)
    sends = coming.sum(axis=1) / np.maximum(had.sum(axis=1), 1)  # per former holder
    received = coming.sum(axis=(0, 2)).max()
    sent = (had * sends[:, None]).sum(axis=(0, 2)).max()
    return float(max(received, sent)) * expert_bytes / bytes_per_s * 1e9


def break_even_steps(cost_ns: float, gain_ns: float) -> float | None:
    """Steps until a gain per step has paid what moving cost; None where nothing is gained."""
    return cost_ns / gain_ns if gain_ns > 0 else None


def is_worth(cost_ns: float, gain_ns: float, steps: int) -> bool:
    """Whether a gain per step over so many steps exceeds what moving costs."""
    return gain_ns * steps > cost_ns
