"""Columns of frames in units that people read: by the ending of their name and by their values.

computing_ns     17764724    ->  "computing (ms)"      17.765
size_bytes       73400320    ->  "size (MB)"           73.4   traffic and files
peak_bytes       73400320    ->  "peak (MiB)"          70.0   memory
masking_ratio    0.246       ->  "masking (%)"         24.6
mfu_points       0.195       ->  "mfu points"          19.5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import polars as pl

from npuscope.analysis.wording import UNKNOWN, is_memory
from npuscope.messages import Message

_TIMES = ((1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s"))
_BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
_MEMORY = ((1.0, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
_RATES = ((1.0, "{0}/s"), (1e3, "k{0}/s"), (1e6, "M{0}/s"), (1e9, "G{0}/s"), (1e12, "T{0}/s"))
_FLOPS = ((1.0, "FLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP"), (1e15, "PFLOP"))
_MOST_READABLE = 10_000  # of a unit, before the next larger one is taken
_PLAIN = ("rank", "step", "_id", "_rank", "_step", "layer", "expert", "line", "port")
_MOMENTS = (
    "start_ns", "end_ns", "at_ns", "moment_ns", "peak_ns", "peak_allocated_ns", "since_ns",
    "released_ns",
)  # fmt: skip


class Unit(NamedTuple):
    """What to divide by, and how the unit is written; no unit: ''."""

    divisor: float
    name: str


@dataclass(frozen=True, slots=True)
class Readable:
    """One column for people: words, unit, values in it; `decimals` None: no numbers, or whole."""

    words: str
    unit: str
    values: pl.Series
    decimals: int | None
    is_grouped: bool = False

    @property
    def is_number(self) -> bool:
        return self.values.dtype.is_numeric()


def fitting_unit(most: object, kind: Literal["time", "bytes", "memory"]) -> Unit:
    """The unit in which values up to `most` are read best: of ns, of bytes of traffic and files
    (10^3), of bytes of memory (2^10). The smallest where `most` is no number."""
    scale = {"time": _TIMES, "bytes": _BYTES, "memory": _MEMORY}[kind]
    return _unit_for(float(most) if isinstance(most, int | float) else 0.0, scale)


def size_text(size_bytes: int | None) -> str:
    """Bytes of traffic or files in words: 73.4 MB."""
    unit = fitting_unit(size_bytes, "bytes")
    if size_bytes is None:
        return UNKNOWN
    return f"{size_bytes / unit.divisor:,.{0 if unit.name == 'B' else 1}f} {unit.name}"


def _unit_for(most: float, scale: tuple[tuple[float, str], ...]) -> Unit:
    fitting = [step for step in scale if abs(most) >= step[0]] or [scale[0]]
    divisor, name = fitting[-1]
    if len(fitting) > 1 and abs(most) / fitting[-2][0] < _MOST_READABLE and divisor > 1e6:
        divisor, name = fitting[-2]  # 5,800 ms reads as well as 5.8 s
    return Unit(divisor, name)


def readable(frame: pl.DataFrame, *, of_memory: bool = False) -> list[Readable]:
    """The columns of a frame, in order, each in the unit that suits its largest value.

    Bytes are of memory (MiB) by their names, `of_memory` all of them. Moments (epoch ns) become
    times since the first moment in the frame.
    """
    moments = [name for name in frame.columns if name.endswith(_MOMENTS)]
    firsts = [frame[name].min() for name in moments if frame[name].dtype.is_numeric()]
    first_ns = min((int(one) for one in firsts if isinstance(one, int)), default=0)
    return [
        _readable(frame[name], first_ns if name in moments else None, of_memory or is_memory(name))
        for name in frame.columns
    ]


def _readable(values: pl.Series, first_ns: int | None, in_memory: bool) -> Readable:
    name = values.name
    if values.dtype == pl.List:
        rows = values.list.eval(pl.element().cast(pl.String)).list.join(", ")
        return Readable(_words(name), "", rows, None)
    if not values.dtype.is_numeric():
        texts = values if values.dtype in (pl.String, pl.Boolean) else values.cast(pl.String)
        return Readable(_words(name), "", texts, None)
    if first_ns is not None:
        values = values - first_ns
        unit = _unit_for(_most(values), _TIMES)
        return _scale(
            values,
            unit,
            Message("{moment} since the first", moment=Message(_words(_stem(name, "_ns")))),
        )
    for ending, scale in (("_bytes_per_s", _rates("B")), ("_flops_per_s", _rates("FLOP"))):
        if name.endswith(ending):
            return _scale(values, _unit_for(_most(values), scale), _words(_stem(name, ending)))
    for ending, scale in (
        ("_ns", _TIMES),
        ("_bytes", _MEMORY if in_memory else _BYTES),
        ("_flops", _FLOPS),
    ):
        if f"_{name}".endswith(ending):
            return _scale(values, _unit_for(_most(values), scale), _words(_stem(name, ending)))
    if name.endswith(("_ratio", "share")):
        return _scale(values, Unit(0.01, "%"), _words(_stem(name, "_ratio")))
    if name.endswith("_points"):  # of a hundred, as figures and words have them
        return _scale(values, Unit(0.01, ""), _words(name))
    if values.dtype.is_integer():
        is_plain = name in _PLAIN or name.endswith(_PLAIN)
        return Readable(_words(name), "", values, None, is_grouped=not is_plain)
    numbers = values.drop_nulls()
    if numbers.is_finite().all() and (numbers == numbers.round()).all() and _most(values) >= 1_000:
        whole = values.cast(pl.Int64)  # counts that were means of something
        return Readable(_words(name), "", whole, None, is_grouped=True)
    return _scale(values, Unit(1.0, ""), _words(name))


def _scale(values: pl.Series, unit: Unit, words: str) -> Readable:
    scaled = values.cast(pl.Float64) / unit.divisor
    if unit.name in ("ns", "B") and values.dtype.is_integer():
        return Readable(words, unit.name, values, None, is_grouped=True)
    most = _most(scaled)
    decimals = 1 if most >= 100 or unit.name == "%" else 2 if most >= 10 else 3
    return Readable(words, unit.name, scaled, decimals)


def _rates(of: str) -> tuple[tuple[float, str], ...]:
    return tuple((divisor, name.format(of)) for divisor, name in _RATES)


def _most(values: pl.Series) -> float:
    sizes = values.cast(pl.Float64).drop_nulls().drop_nans().abs()
    most = sizes.max()
    return float(most) if isinstance(most, float) else 0.0


def words_of(name: str) -> str:
    """How the name of a column reads, without the unit that its values are written with."""
    for ending in ("_bytes_per_s", "_flops_per_s", "_ns", "_bytes", "_flops", "_ratio"):
        if name.endswith(ending):
            return _words(_stem(name, ending))
    return _words(name)


def _stem(name: str, ending: str) -> str:
    return name.removesuffix(ending) or name


def _words(name: str) -> str:
    return name.replace("_", " ")
