"""Answers as bytes and back: frames, records of this room, texts, numbers, lists of these.

Nothing of a file is run: what it may name are records of the analysis room, made from their fields.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

import msgspec
import polars as pl

from npuscope.messages import Message

_ROOM = re.compile(r"npuscope\.analysis(\.[a-z_]\w*)+")
# Plain numbers, texts and times: numpy reads other texts as descriptions to be worked out.
_DTYPE = re.compile(r"[<>|=]?[biufcmMSUV]\d+(\[\w+\])?")
# In memory; in a file it is several times smaller, and only small files are kept.
FRAME_BYTES = 256 << 20
_LONG = 1 << 63
_LISTS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def pack(value: Any) -> bytes:
    """An answer as bytes. Raises TypeError where something in it is of another kind."""
    try:
        return msgspec.msgpack.encode(_plain(value))
    except (ValueError, pl.exceptions.PolarsError) as error:  # half a character, an object
        raise TypeError(f"this is not kept: {error}") from error


def unpack(content: bytes) -> Any:
    """The answer again. Raises ValueError for bytes that `pack` did not make."""
    try:
        return _value(msgspec.msgpack.decode(content))
    # Whatever a made-up file leads to: it is none of ours.
    except (Exception, pl.exceptions.PanicException) as error:
        raise ValueError(f"no answer of this npuscope: {error}") from error


def _plain(value: Any) -> Any:
    """As msgpack has it; whatever is not a plain text or number is a list that begins with its
    kind."""
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and -_LONG <= value < _LONG):
        return value
    if kind is int:
        return ["int", str(value)]
    if kind is Message:
        return ["message", value.template, _plain(value.values)]
    if kind is pl.DataFrame:
        return ["frame", _ipc(value)]
    if kind is pl.Series:
        return ["series", value.name, _ipc(value.to_frame())]
    if _LISTS.get(kind.__name__) is kind:
        return [kind.__name__, [_plain(one) for one in value]]
    if isinstance(value, Mapping):
        return ["dict", [[_plain(name), _plain(one)] for name, one in value.items()]]
    if is_dataclass(value) and _ROOM.fullmatch(kind.__module__):
        record = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
        return ["record", kind.__module__, kind.__name__, record]
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, numpy.ndarray | numpy.generic) and not value.dtype.hasobject:
        shape = None if isinstance(value, numpy.generic) else [*value.shape]
        return ["array", value.dtype.str, shape, value.tobytes()]
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} is not kept")


def _value(packed: Any) -> Any:
    if not isinstance(packed, list):
        return packed
    kind, *parts = packed
    if kind in _LISTS:
        return _LISTS[kind](map(_value, parts[0]))
    if kind == "dict":
        return {_value(name): _value(one) for name, one in parts[0]}
    if kind == "frame":
        return pl.read_ipc(io.BytesIO(parts[0]))
    if kind == "series":
        return pl.read_ipc(io.BytesIO(parts[1])).to_series().rename(parts[0])
    if kind == "message":
        return Message(parts[0], **_value(parts[1]))
    if kind == "int":
        return int(parts[0])
    if kind == "array":
        return _array(*parts)
    if kind == "record":
        return _record(*parts)
    raise ValueError(f"no kind of answer: {kind!r}")


def _ipc(frame: pl.DataFrame) -> bytes:
    if frame.estimated_size() > FRAME_BYTES:
        raise TypeError("a frame that large is not kept")
    file = io.BytesIO()
    frame.write_ipc(file, compression="lz4")
    return file.getvalue()


def _array(dtype: str, shape: list[int] | None, content: bytes) -> Any:
    import numpy as np

    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"no type of numbers: {dtype!r}")
    flat = np.frombuffer(content, dtype=np.dtype(dtype)).copy()
    return flat[0] if shape is None else flat.reshape(shape)


def _record(module: str, name: str, packed: dict[str, Any]) -> Any:
    if not _ROOM.fullmatch(module):
        raise ValueError(f"no module of records: {module!r}")
    kind = getattr(import_module(module), name)
    if not (isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module):
        raise ValueError(f"no record: {module}.{name}")
    return kind(**{field: _value(value) for field, value in packed.items()})
