"""How many FLOPs per second a chip can do at most, and where that is known from.

Cube peak = cores x frequency x FLOP per cycle and core: a 16 x 16 x 16 product each cycle makes
8192 for 16-bit types, twice that for 8-bit integers (source: CANN's platform files and
msprof-analyze). FP32 has no such constant: it stands in the table of named chips (source:
msmodeling's profiles), as does the bandwidth of memory.

Cores and frequency come from the capture's metadata, else from the table by the chip's name, else
from the kernels: cores = the most blocks of an AI_CORE kernel, which is a lower bound; frequency =
cycles / (core time x blocks), to the whole MHz, the highest of any rank and step of the capture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from npuscope.errors import UsageError

PER_CYCLE = {"fp16": 8192, "bf16": 8192, "int8": 16384}
DTYPES = ("bf16", "fp16", "fp32", "int8", "fp8")
GIVEN = "--peak"
_TIB = float(1 << 40)


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip by name: AI cores, their configured clock, what does not follow from these."""

    cores: int
    mhz: float
    fp32_flops_per_s: float | None = None
    hbm_bytes_per_s: float | None = None


# By the end of `ranks.chip_name`. Where a name stands for several (Ascend910B), there is no line.
CHIPS: dict[str, Chip] = {
    "910B1": Chip(24, 1850.0, 99.5e12, 1.6 * _TIB),
    "910B2": Chip(24, 1800.0, 99.5e12, 1.6 * _TIB),
    "910B3": Chip(20, 1800.0, 83e12, 1.6 * _TIB),
    "910B4": Chip(20, 1500.0, 75e12, 0.8 * _TIB),
    "910_9391": Chip(24, 1850.0, 99.5e12, 1.6 * _TIB),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What the kernels of a capture tell of its chip; None where they do not."""

    cores: int | None = None
    mhz: float | None = None


@dataclass(frozen=True, slots=True)
class Peak:
    """Peaks of one chip, FLOP/s by element type, and where each is known from.

    `source` is that of types without an entry; `mhz` the clock they hold for. What is unknown is
    missing or None.
    """

    flops_per_s: Mapping[str, float]
    sources: Mapping[str, str]
    source: str
    mhz: float | None = None
    cores: int | None = None
    hbm_bytes_per_s: float | None = None

    def of(self, dtype: str | None) -> float | None:
        """Peak for an element type; of an unknown type that of 16 bits."""
        return self.flops_per_s.get(dtype or "bf16")

    def source_of(self, dtype: str | None) -> str:
        """Where that peak is known from, or why it is unknown."""
        name = dtype or "bf16"
        if name in self.sources or not self.flops_per_s:
            return self.sources.get(name, self.source)
        return f"unknown for {name}: give --peak {name}=..."


def peak_of(
    chip_name: str | None,
    core_count: int | None,
    frequency_mhz: float | None,
    measured: Measured,
    given: Mapping[str, float] | None = None,
) -> Peak:
    """Peaks from what is known of a chip; `given` (from `parse_peaks`) comes before all.

    core_count and frequency_mhz are metadata. The clock is never below the measured one.
    """
    overrides = dict(given or {})
    chip = _named(chip_name)
    cores, of_cores = _first(
        (core_count, "metadata"),
        (chip.cores if chip else None, f"table, {chip_name}"),
        (measured.cores, "largest block count, a lower bound"),
    )
    mhz, of_mhz = _first(
        (frequency_mhz, "metadata"),
        (chip.mhz if chip else None, f"table, {chip_name}"),
        (measured.mhz, "cycles / core time"),
    )
    if mhz is not None and measured.mhz is not None and measured.mhz > mhz:
        mhz, of_mhz = measured.mhz, "cycles / core time, above the configured clock"
    known: dict[str, float] = {}
    sources: dict[str, str] = {}
    if cores is not None and mhz is not None:
        for dtype, per in PER_CYCLE.items():
            known[dtype] = cores * mhz * 1e6 * per
            sources[dtype] = f"{cores:g} cores ({of_cores}) x {mhz:g} MHz ({of_mhz}) x {per}"
    if chip is not None and chip.fp32_flops_per_s is not None:
        known["fp32"], sources["fp32"] = chip.fp32_flops_per_s, f"table, {chip_name}"
    hbm = overrides.pop("hbm", chip.hbm_bytes_per_s if chip else None)
    known |= overrides
    sources |= dict.fromkeys(overrides, GIVEN)
    whole_cores = int(cores) if cores is not None else None
    return Peak(known, sources, _unknown(cores, mhz), mhz, whole_cores, hbm)


def _first(*candidates: tuple[float | None, str]) -> tuple[float | None, str]:
    return next(((value, source) for value, source in candidates if value), (None, ""))


def _unknown(cores: float | None, mhz: float | None) -> str:
    missing = [word for word, value in (("cores", cores), ("frequency", mhz)) if value is None]
    return f"unknown: no {' and no '.join(missing)} of the chip; give --peak" if missing else ""


def _named(chip_name: str | None) -> Chip | None:
    name = (chip_name or "").strip().removeprefix("Ascend")
    return CHIPS.get(name.upper())


_FIGURE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([TPG]?)(?:FLOPS|FLOP/S|B/S)?", re.IGNORECASE)
_SCALES = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}


def parse_peaks(text: str) -> dict[str, float]:
    """`294.9T` (of 16-bit types) or `bf16=294.9T,fp32=83T,hbm=1.6T`, to FLOP/s and bytes/s.

    Raises UsageError.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, figure = part.strip().rpartition("=")
        match = _FIGURE.fullmatch(figure.strip())
        value = float(match[1]) * _SCALES[match[2].upper()] if match else 0.0
        names = (name.strip().lower(),) if equals else ("bf16", "fp16")
        if value < 1e9 or not set(names) <= {*DTYPES, "hbm"}:
            raise UsageError(
                f"--peak {text}: give FLOP/s as 294.9T, or by type as bf16=294.9T,fp32=83T"
                f" ({', '.join(DTYPES)}; hbm=1.6T for bytes/s of memory)"
            )
        found |= dict.fromkeys(names, value)
    return found
