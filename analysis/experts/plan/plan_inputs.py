"""What a plan starts from: loads without gaps, what is placed, what fits, what is expected."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from npuscope.errors import UsageError
from npuscope.messages import Message

from .forecast import BackTest, backtest, forecast, scenarios
from .placement import Floats, Placement, checked_placement, contiguous, with_slots

_GIB = float(1 << 30)


def known_loads(loads: Floats) -> tuple[Floats, list[int], list[str]]:
    """Loads without gaps (NaN: unknown): what is left, rows of the layers kept, what was left out.

    loads: [steps, layers, experts]. Layers go that no step knows in full, then steps that do not
    know all layers left. Raises UsageError where nothing is left.
    """
    whole = np.asarray(np.isfinite(loads).all(axis=2))
    positions = np.flatnonzero(whole.any(axis=0))
    if not positions.size:
        raise UsageError(Message("no layer has counts for all of its experts in any step"))
    steps = whole[:, positions].all(axis=1)
    if not steps.any():
        raise UsageError(Message("no step has counts for all layers: select fewer ranks"))
    notes: list[str] = []
    if gone := loads.shape[1] - positions.size:
        notes.append(
            Message(
                "{count} layers are left out: no step has counts for all of their experts",
                count=gone,
            )
        )
    if gone := int((~steps).sum()):
        notes.append(
            Message(
                "{count} of {all} steps are left out: layers or experts are missing in them",
                count=gone,
                all=len(loads),
            )
        )
    return loads[steps][:, positions], positions.tolist(), notes


def checked_memory(
    layers: int, experts: int, devices: int, slots: int,
    expert_bytes: int | None, memory_bytes: int | None,
) -> None:  # fmt: skip
    """Raises UsageError, with the numbers, where experts do not fit a device's memory."""
    if expert_bytes is not None and expert_bytes < 1:
        raise UsageError(f"the bytes of an expert must be positive: got {expert_bytes}")
    if memory_bytes is None:
        return
    if expert_bytes is None:
        raise UsageError(
            "a memory limit needs the bytes of an expert (weights and optimizer): --expert-bytes"
        )
    needed = layers * slots * expert_bytes
    if needed > memory_bytes:
        fits = memory_bytes // (layers * expert_bytes)
        least = -(-experts // devices)
        if fits >= least:
            way_out = "fewer slots"
        elif fits:
            way_out = f"{-(-experts // fits)} devices"
        else:
            way_out = f"{layers * expert_bytes / _GIB:.1f} GiB at least, or fewer bytes an expert"
        raise UsageError(
            f"{layers} layers x {slots} slots x {expert_bytes} bytes = {needed / _GIB:.1f} GiB of"
            f" experts do not fit a device's {memory_bytes / _GIB:.1f} GiB: {fits} slots do,"
            f" {least} are the least for {experts} experts on {devices} devices; give {way_out}"
        )


def placed_now(
    current: npt.ArrayLike | None, layers: int, experts: int, devices: int, slots: int,
    notes: list[str],
) -> Placement:  # fmt: skip
    """The current placement [layers, devices, slots now] with empty slots to `slots`, or experts in
    their order, with a note. Raises UsageError where it is of other devices or experts."""
    if current is None:
        notes.append(
            "no placement for this number of devices is recorded: experts are assumed to be"
            " placed in order, one slot each"
        )
        return contiguous(layers, experts, devices, slots)
    now = checked_placement(current, layers, experts)
    if now.shape[1] != devices:
        raise UsageError(
            Message(
                "the current placement has {count} devices, the plan {devices}: leave it out",
                count=now.shape[1],
                devices=devices,
            )
        )
    return with_slots(now, slots)


def forecast_loads(
    loads: Floats, horizon: int, notes: list[str]
) -> tuple[str, BackTest | None, Floats, Floats]:
    """Method, its test (None: too few steps), the load [layers, experts] in the middle of the
    horizon, and loads [cases, layers, experts] that may come, of loads [steps, layers, experts]."""
    if len(loads) < 3:
        notes.append(
            Message(
                "{count} steps are too few for a back-test: the forecast is their mean",
                count=len(loads),
            )
        )
        load = forecast(loads, "mean")
        return "mean", None, load, load[None]
    tested = backtest(loads, horizon)
    farthest = tested.leads[-1]
    if farthest < horizon:
        notes.append(
            Message(
                "forecasts were back-tested up to {steps} steps ahead, not {horizon}: {count} "
                "steps allow no more",
                steps=farthest,
                horizon=horizon,
                count=len(loads),
            )
        )
    method = tested.best
    middle = (farthest + 1) // 2
    return method, tested, forecast(loads, method, lead=middle), scenarios(loads, method, tested)
