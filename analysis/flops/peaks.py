"""How many FLOPs per second a chip can do at most, and where that is known from.

Cube peak = cores x frequency x FLOP per cycle and core: a 16 x 16 x 16 product each cycle makes
8192 for 16-bit types, twice that for 8-bit integers (source: CANN's platform files and
msprof-analyze). FP32 has no such constant: it stands in the table of named chips (source:
msmodeling's profiles), as does the bandwidth of memory.

Cores and frequency come from the capture's metadata, else from the table by the chip's name. Where
neither tells, kernels do if they fit a known chip: blocks may exceed cores, so the most blocks of a
cube kernel are taken for cores only where chips of one family have that many, and at a clock
(cycles / (core time x blocks), to the whole MHz, the highest of any rank and step of the capture)
that the family reaches. That peak is inferred; any other block count gives none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from npuscope.errors import UsageError
from npuscope.messages import Message, join

PER_CYCLE = {"fp16": 8192, "bf16": 8192, "int8": 16384}
DTYPES = ("bf16", "fp16", "fp32", "int8", "fp8")
OPTION = "--peak"
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
    # By the device information of msprof: 256 x 2^10 GFLOP/s.
    "910A": Chip(32, 1000.0),
}
# Those whose kernels run a block on each core when they fill the chip. A name begins so.
_FAMILY = ("910B", "910_93")
# Highest clock by cores: what kernels may tell of a chip that nobody names.
_HIGHEST_MHZ = {
    chip.cores: max(one.mhz for name, one in CHIPS.items()
                    if name.startswith(_FAMILY) and one.cores == chip.cores)
    for name, chip in CHIPS.items() if name.startswith(_FAMILY)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """What the kernels of a capture tell of its chip; None where they do not.

    `blocks`: the most of a kernel on cube cores.
    """

    blocks: int | None = None
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
        return Message(
            "unknown for {dtype}: give --peak {dtypes}=... to `npuscope mfu`",
            dtype=name,
            dtypes=name,
        )


def peak_of(
    chip_name: str | None,
    core_count: int | None,
    frequency_mhz: float | None,
    measured: MeasuredChip,
    peaks_given: Mapping[str, float] | None = None,
) -> Peak:
    """Peaks from what is known of a chip; `peaks_given` (from `parse_peaks`) comes before all.

    core_count and frequency_mhz are metadata. The clock is never below the measured one.
    """
    overrides = dict(peaks_given or {})
    chip = named_chip(chip_name)
    cores, of_cores = _first(
        (core_count, "metadata"),
        (chip.cores if chip else None, Message("table, {chip}", chip=chip_name)),
    )
    mhz, of_mhz = _first(
        (frequency_mhz, "metadata"),
        (chip.mhz if chip else None, Message("table, {chip}", chip=chip_name)),
        (measured.mhz, "cycles / core time"),
    )
    highest = chip.mhz if chip else None
    if measured.mhz and mhz and mhz < measured.mhz <= (highest or measured.mhz):
        mhz, of_mhz = measured.mhz, "cycles / core time, above the configured clock"
    unknown = _unknown(cores, mhz)
    # A recorded clock alone may be that of an idle chip.
    if cores is None and mhz is not None and measured.blocks and measured.mhz:
        unknown = _misfit(chip_name, measured.blocks, mhz)
        if not unknown:
            cores, of_cores = measured.blocks, "inferred from block counts"
    by_type: dict[str, float] = {}
    sources: dict[str, str] = {}
    if cores is not None and mhz is not None:
        for dtype, per in PER_CYCLE.items():
            by_type[dtype] = cores * mhz * 1e6 * per
            sources[dtype] = Message(
                "{cores} cores ({of_cores}) x {mhz} MHz ({of_mhz}) x {per}",
                cores=f"{cores:g}",
                of_cores=of_cores,
                mhz=f"{mhz:g}",
                of_mhz=of_mhz,
                per=per,
            )
    if chip is not None and chip.fp32_flops_per_s is not None:
        by_type["fp32"], sources["fp32"] = (
            chip.fp32_flops_per_s,
            Message("table, {chip}", chip=chip_name),
        )
    hbm = overrides.pop("hbm", chip.hbm_bytes_per_s if chip else None)
    by_type |= overrides
    sources |= dict.fromkeys(overrides, OPTION)
    whole_cores = int(cores) if cores is not None else None
    return Peak(by_type, sources, unknown, mhz, whole_cores, hbm)


def _first(*candidates: tuple[float | None, str]) -> tuple[float | None, str]:
    return next(((value, source) for value, source in candidates if value), (None, ""))


def _unknown(cores: float | None, mhz: float | None) -> str:
    missing = [
        word
        for word, value in ((Message("cores"), cores), (Message("frequency"), mhz))
        if value is None
    ]
    return (
        Message(
            "unknown: no {what} of the chip; give --peak to `npuscope mfu`",
            what=join(missing, " and no "),
        )
        if missing
        else ""
    )


def _misfit(chip_name: str | None, blocks: int, mhz: float) -> str:
    """Why block counts and the clock tell no cores; empty where they do."""
    if chip_name and not plain_name(chip_name).startswith(_FAMILY):
        return Message(
            "unknown: cores of {chip} are not known; give --peak to `npuscope mfu`", chip=chip_name
        )
    highest = _HIGHEST_MHZ.get(blocks)
    if highest is None:
        return Message(
            "unknown: {count} blocks are no known chip's cores; give --peak to `npuscope mfu`",
            count=blocks,
        )
    if mhz > highest:
        return Message(
            "unknown: no known chip has {count} cores at {mhz} MHz; give --peak to `npuscope mfu`",
            count=blocks,
            mhz=f"{mhz:g}",
        )
    return ""


def named_chip(chip_name: str | None) -> Chip | None:
    """The chip a recorded name stands for; None: an unknown one, or one of several."""
    return CHIPS.get(plain_name(chip_name))


def plain_name(chip_name: str | None) -> str:
    """A recorded name as CHIPS spells it."""
    return (chip_name or "").strip().upper().removeprefix("ASCEND")


_FIGURE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([TPG]?)(?:FLOPS|FLOP/S|B/S)?", re.IGNORECASE)
_SCALES = {"": 1.0, "G": 1e9, "T": 1e12, "P": 1e15}


def parse_peaks(text: str) -> dict[str, float]:
    """`294.9T` (of 16-bit types) or `bf16=294.9T,fp32=83T,hbm=1.6T`, to FLOP/s and bytes/s.

    Raises UsageError.
    """
    peaks_of: dict[str, float] = {}
    for part in text.split(","):
        name, equals, figure = part.strip().rpartition("=")
        match = _FIGURE.fullmatch(figure.strip())
        value = float(match[1]) * _SCALES[match[2].upper()] if match else 0.0
        names = (name.strip().lower(),) if equals else ("bf16", "fp16")
        if not 1e9 <= value < math.inf or not set(names) <= {*DTYPES, "hbm"}:
            raise UsageError(
                f"--peak {text}: give FLOP/s as 294.9T, or by type as bf16=294.9T,fp32=83T"
                f" ({', '.join(DTYPES)}; hbm=1.6T for bytes/s of memory)"
            )
        peaks_of |= dict.fromkeys(names, value)
    return peaks_of
