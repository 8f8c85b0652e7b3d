"""Whole numbers out of descriptions of models, with every one that is missing named at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuscope.errors import UsageError


def whole(value: object) -> int | None:
    """A whole number, also as text; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        return int(value)
    return None


def first_of(values: Mapping[str, object], spellings: Sequence[str]) -> object:
    """The value of the first spelling that is there and not null; None without one."""
    for spelling in spellings:
        if values.get(spelling) is not None:
            return values[spelling]
    return None


def needed_sizes(
    values: Mapping[str, object],
    keys_by_field: Mapping[str, Sequence[str]],
    where: str,
    remedy: str,
) -> dict[str, int]:
    """Sizes of 1 or more by field. `keys_by_field`: field -> the spellings of its key, best first.

    Raises UsageError that names every key that is missing, or has no such number, and `remedy`.
    """
    sizes, missing, wrong = {}, [], []
    for field, spellings in keys_by_field.items():
        value = first_of(values, spellings)
        size = whole(value)
        if value is None:
            missing.append(" or ".join(spellings))
        elif size is None or size < 1:
            wrong.append(f"{spellings[0]} is {value!r}, not a whole number above 0")
        else:
            sizes[field] = size
    if missing:
        wrong.insert(0, f"missing {', '.join(missing)}")
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}: {remedy}")
    return sizes


def optional(
    values: Mapping[str, object], spellings: Sequence[str], default: int, where: str
) -> int:
    """A size of 0 or more, `default` where it is missing. Raises UsageError for others."""
    value = first_of(values, spellings)
    if value is None:
        return default
    size = whole(value)
    if size is None or size < 0:
        raise UsageError(f"{where}: {spellings[0]} is {value!r}, not a whole number")
    return size
