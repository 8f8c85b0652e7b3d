"""Folders with expert loads, as hooks and servers write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npuscope.sample_traces.job import Job, coordinates, routed_tokens, stage_layers


def write_hook(job: Job, folder: Path, *, nested: bool = True, first_layer: int = 0) -> Path:
    """What the hook of every rank of a described job would have written."""
    folder.mkdir(parents=True)
    for rank in range(job.world_size):
        lines = []
        for step in range(job.first_step, job.first_step + job.steps):
            for layer in stage_layers(job, coordinates(job, rank)["pp"]):
                counts = [
                    routed_tokens(job, step, micro, layer, rank)
                    for micro in range(job.micro_batches)
                ]
                tpe = counts if nested else [sum(one) for one in zip(*counts, strict=True)]
                lines.append(line(step, first_layer + layer, tpe, n_micro=job.micro_batches))
        (folder / f"rank{rank}.jsonl").write_text("".join(lines))
    return folder


def line(step: int, layer: int, tpe: Any, **more: object) -> str:
    return json.dumps({"iter": step, "block": "decoder", "layer": layer, "tpe": tpe} | more) + "\n"


def write_dump(
    folder: Path, ranks: Mapping[str, Sequence[Sequence[int]]], **config: object
) -> Path:
    """CSVs by name (`decode_0`), and their configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ranks.items():
        text = "".join(",".join(map(str, row)) + "\n" for row in rows)
        (folder / f"{name}.csv").write_text(text)
    (folder / "model_gen_config.json").write_text(json.dumps(config))
    return folder


def write_deployment(path: Path, layers: Sequence[Sequence[Sequence[int]]], first: int = 0) -> Path:
    """Slots by layer and device."""
    told = [
        {
            "layer_id": first + number,
            "device_count": len(devices),
            "device_list": [
                {"device_id": device, "device_expert": list(slots)}
                for device, slots in enumerate(devices)
            ],
        }
        for number, devices in enumerate(layers)
    ]
    path.write_text(json.dumps({"moe_layer_count": len(layers), "layer_list": told}))
    return path
