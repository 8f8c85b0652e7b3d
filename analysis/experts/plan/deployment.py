"""A placement as other programs take it: deployment JSON, and a permutation of experts.

MindIE and vllm-ascend (`expert_map_path`) read one JSON:

    {"moe_layer_count": 58, "layer_list": [{"layer_id": 0, "device_count": 64, "device_list": [
        {"device_id": 0, "device_expert": [5, 17, 203, 9, 40]}, ...]}, ...]}

device_id is the position in the expert-parallel group, device_expert the logical expert of each
slot. Empty slots are not written, so a device's list may be shorter. The collector's reader of
expert deployments reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from npuscope.errors import UsageError

from .placement import EMPTY, Placement


def deployment_json(placement: Placement, layers: Sequence[int]) -> str:
    """Deployment JSON of a placement [layers, devices, slots]; layers are the layer_ids."""
    _checked_layers(placement, layers)
    found = {
        "moe_layer_count": len(layers),
        "layer_list": [
            {
                "layer_id": int(layer),
                "device_count": len(devices),
                "device_list": [
                    {"device_id": at, "device_expert": [one for one in held if one != EMPTY]}
                    for at, held in enumerate(devices)
                ],
            }
            for layer, devices in zip(layers, placement.tolist(), strict=True)
        ],
    }
    return json.dumps(found, indent=1) + "\n"


def permutation_json(placement: Placement, layers: Sequence[int], experts: int) -> str:
    """The placement as lists of slots: which expert each holds, and where each expert is.

    Slots count through the devices: slot s of device d is d x slots + s. `physical_to_logical` has
    -1 for an empty slot; `logical_to_physical` lists every replica. Without replicas and empty
    slots the first is a permutation of the experts and the second its inverse.
    """
    _checked_layers(placement, layers)
    found: dict[str, Any] = {"experts_count": experts, "layers": []}
    for layer, flat in zip(layers, placement.reshape(len(layers), -1), strict=True):
        order = np.argsort(flat, kind="stable")
        edges = np.searchsorted(flat[order], np.arange(experts + 1))
        found["layers"].append({
            "layer_id": int(layer),
            "physical_to_logical": flat.tolist(),
            "logical_to_physical": [
                one.tolist() for one in np.split(order, edges)[1:-1]
            ],
        })  # fmt: skip
    return json.dumps(found) + "\n"


def _checked_layers(placement: Placement, layers: Sequence[int]) -> None:
    if len(layers) != len(placement):
        raise UsageError(f"the placement has {len(placement)} layers, {len(layers)} were named")
