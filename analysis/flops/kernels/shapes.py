"""What the profiler prints of a kernel's tensors, as tensors.

A cell lists tensors by ';' and dimensions by ','. An empty segment is an optional tensor that was
not given, or a scalar. Element types and layouts are lists of the same kind, mostly of the same
length; text and databases spell them alike but for prefixes (`DT_BF16`, `FORMAT_ND`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from math import prod

from npuscope.messages import Message

# As CANN spells element types, to one name each and the bits of an element.
_DTYPES = {
    "BF16": ("bf16", 16), "BFLOAT16": ("bf16", 16), "FLOAT16": ("fp16", 16), "HALF": ("fp16", 16),
    "FLOAT": ("fp32", 32), "FLOAT32": ("fp32", 32), "DOUBLE": ("fp64", 64),
    "INT4": ("int4", 4), "UINT1": ("uint1", 1), "INT8": ("int8", 8), "UINT8": ("uint8", 8),
    "INT16": ("int16", 16), "UINT16": ("uint16", 16), "INT32": ("int32", 32),
    "UINT32": ("uint32", 32), "INT64": ("int64", 64), "UINT64": ("uint64", 64), "BOOL": ("bool", 8),
    "HIFLOAT8": ("fp8", 8), "FLOAT8_E4M3FN": ("fp8", 8), "FLOAT8_E5M2": ("fp8", 8),
    "FLOAT4_E2M1": ("fp4", 4), "COMPLEX64": ("complex64", 64),
}  # fmt: skip
_BITS = dict(_DTYPES.values())


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as it lies in memory; `dtype` and `layout` are None where unknown.

    `dtype` is one of bf16, fp16, fp32, int8, ...; `layout` one of ND, NCHW, FRACTAL_NZ, ...
    """

    shape: tuple[int, ...]
    dtype: str | None = None
    layout: str | None = None

    @property
    def element_count(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all elements, rounded up; None where the element type is unknown."""
        return None if self.dtype is None else -(-self.element_count * _BITS[self.dtype] // 8)


Cell = str | None
Tensors = tuple[Tensor | None, ...]


def tensors(shapes: Cell, dtypes: Cell = None, layouts: Cell = None) -> Tensors:
    """Tensors in the order of a cell of shapes; None for one that was not given.

    Raises ValueError where a dimension is no number: an empty cell or `N/A` has no tensors.
    """
    text = _unquote(shapes)
    if not text or text == "N/A":
        return ()
    parts = text.split(";")
    layout = zip_longest(parts, _dtypes(dtypes)[: len(parts)], _layouts(layouts)[: len(parts)])
    return tuple(_tensor(*one) for one in layout)


def tensors_of(row: Mapping[str, Cell]) -> tuple[Tensors, Tensors]:
    """What a kernel is given and what it makes, by the columns of `kernels`. Raises as
    `tensors`."""
    inputs = tensors(row["input_shapes"], row["input_dtypes"], row["input_formats"])
    return inputs, tensors(row["output_shapes"], row["output_dtypes"], row["output_formats"])


# A capture has thousands of different cells, of few different tensors.
@lru_cache(maxsize=1 << 14)
def _tensor(part: str, dtype: str | None, layout: str | None) -> Tensor | None:
    if not part.strip():
        return None
    shape = tuple(int(size) for size in part.split(","))
    if min(shape) < 0:
        raise ValueError(Message("a dimension is unknown: {part}", part=part))
    return Tensor(shape, dtype, layout)


@lru_cache(maxsize=1 << 10)
def _dtypes(cell: Cell) -> tuple[str | None, ...]:
    return tuple(_DTYPES.get(_spell(name, "DT_"), (None, 0))[0] for name in _items(cell))


@lru_cache(maxsize=1 << 10)
def _layouts(cell: Cell) -> tuple[str | None, ...]:
    return tuple(_spell(name, "FORMAT_") or None for name in _items(cell))


def _items(cell: Cell) -> list[str]:
    text = _unquote(cell)
    return text.split(";") if text else []


def _unquote(cell: Cell) -> str:
    return (cell or "").strip().strip('"').strip()


def _spell(name: str, prefix: str) -> str:
    return name.strip().upper().removeprefix(prefix)
