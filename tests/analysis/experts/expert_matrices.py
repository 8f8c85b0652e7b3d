"""Load matrices to place experts by: uniform, skewed, and drawn from real counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.collector.readers.expert_load.deployment_json import read_deployment

Floats = npt.NDArray[np.float64]


def uniform(count: int, experts: int, seed: int = 0) -> Floats:
    """[count, experts], evenly drawn tokens."""
    return np.random.default_rng(seed).integers(0, 5000, (count, experts)).astype(np.float64)


def zipf(count: int, experts: int, seed: int = 0) -> Floats:
    """[count, experts]: tokens fall with a power of the expert's place, 0.2 to 1.4, shuffled."""
    rng = np.random.default_rng(seed)
    powers = np.linspace(0.2, 1.4, count)[:, None]
    loads = 1e5 / np.arange(1, experts + 1) ** powers
    return rng.permuted(loads.round(), axis=1)


def real(real_data: Path) -> Floats:
    """[58, 4]: tokens of the four experts that the dump shows, layer by layer."""
    return np.loadtxt(real_data / "expert_hotspot" / "decode_0.csv", delimiter=",")


def draw(shown: Floats, count: int, experts: int, seed: int = 0) -> Floats:
    """[count, experts], each drawn from the counts that real layers show."""
    return np.random.default_rng(seed).choice(shown.ravel(), (count, experts))


def read_back(path: Path) -> tuple[npt.NDArray[np.int64], list[int]]:
    """A deployment file as [layers, devices, slots] and its layers, by the collector's reader."""
    rows = read_deployment(path).placement
    layers = rows["layer"].unique().sort().to_list()
    sizes = [int(rows.select(pl.col(name).max()).item()) + 1 for name in ("device", "slot")]
    found = np.full((len(layers), *sizes), -1, dtype=np.int64)
    for layer, device, slot, expert in rows.select("layer", "device", "slot", "expert").iter_rows():
        found[layers.index(layer), device, slot] = expert
    return found, layers
