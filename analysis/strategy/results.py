"""Results of a search as a file, and what is chosen of them to look at."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import msgspec
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..catalog import column_names

SIZES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "recompute")
EVEN, BALANCED = "even", "balanced"  # layouts of layers over stages
_KEY = "npuscope"
_KEYS = {"micro_batch": "mbs"}
_WORD = re.compile(r"([a-z_]{1,20})=([a-z0-9]{1,12}(?:\+[a-z0-9]{1,12}){0,40})")
_MOST_LETTERS = 400


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A search: rows of the metrics `search` and `search_sensitivity`; what was asked, by name
    (model, chip, cluster, only); the memory that a strategy may take."""

    strategies: pl.DataFrame
    sensitivity: pl.DataFrame
    request: Mapping[str, str] = field(default_factory=dict)
    budget_bytes: int | None = None


class _Beside(msgspec.Struct):
    """What the file holds beside its table."""

    asked: dict[str, str]
    budget_bytes: int
    sensitivity: list[dict[str, str | float | int]]


def found_parquet(strategies: SearchResult) -> memoryview:
    """The strategies as a Parquet file, everything else in its metadata."""
    beside = _Beside(
        dict(strategies.request), strategies.budget_bytes or 0, strategies.sensitivity.to_dicts()
    )
    file = BytesIO()
    strategies.strategies.write_parquet(file, metadata={_KEY: msgspec.json.encode(beside).decode()})
    return file.getbuffer()


def read_found(path: Path) -> SearchResult:
    """A search that was written. Raises UsageError for another file."""
    try:
        strategies = pl.read_parquet(path)
        text = pl.read_parquet_metadata(path).get(_KEY, "")
    except (OSError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            Message(
                "{path}: no Parquet file that can be read: `npuscope search MODEL -o FILE` writes"
                " one",
                path=str(path),
            )
        ) from error
    missing = [name for name in column_names("search") if name not in strategies.columns]
    try:
        beside = msgspec.json.decode(text, type=_Beside)
    except msgspec.DecodeError:
        missing = missing or [_KEY]
    if missing:
        raise UsageError(
            Message(
                "{path}: not the result of a search ({missing} missing): `npuscope search MODEL -o"
                " FILE` writes one",
                path=str(path), missing=", ".join(missing),
            )
        )  # fmt: skip
    schema = {"constant": pl.String, "changed_ratio": pl.Float64, "best": pl.Int64,
              "lost_ratio": pl.Float64}  # fmt: skip
    sensitivity = pl.DataFrame(beside.sensitivity, schema=schema)
    return SearchResult(strategies, sensitivity, beside.asked, beside.budget_bytes)


def chosen_sizes(text: str | None) -> dict[str, list[str]]:
    """Sizes to look at, as tp=4+8,recompute=none; words that are none are left out."""
    sizes: dict[str, list[str]] = {}
    for word in (text or "")[:_MOST_LETTERS].split(","):
        match = _WORD.fullmatch(word)
        if match and match[1] in SIZES:
            sizes[match[1]] = match[2].split("+")
    return sizes


def sizes_text(sizes_by_name: Mapping[str, list[str]]) -> str | None:
    """The same as text; None: all."""
    return (
        ",".join(f"{name}={'+'.join(sizes)}" for name, sizes in sizes_by_name.items() if sizes)
        or None
    )


def with_sizes(strategies: pl.DataFrame, sizes_by_name: Mapping[str, list[str]]) -> pl.DataFrame:
    """The strategies of these sizes; of those that fit, the front among them."""
    for name, sizes in sizes_by_name.items():
        strategies = strategies.filter(pl.col(name).cast(pl.String).is_in(sizes))
    return with_front(strategies)


def with_front(strategies: pl.DataFrame) -> pl.DataFrame:
    """Rows sorted by time, those that fit first, with those marked that no other beats."""
    # A strategy is on the front where its memory is below all that are faster.
    before = pl.col("peak_bytes").cum_min().shift(1, fill_value=2**62)
    return strategies.with_columns(is_front=pl.col("fits") & (pl.col("peak_bytes") < before))


def strategy_name(row: Mapping[str, object]) -> str:
    """A strategy in a few letters."""
    sizes = " ".join(
        f"{name.upper()}{row[name]}" for name in ("tp", "pp", "vpp", "cp", "ep") if row[name] != 1
    )
    layers = " layers=balanced" if row["layers"] == BALANCED else ""
    return f"{sizes} MBS{row['micro_batch']} recompute={row['recompute']}{layers}".strip()


def strategy_words(row: Mapping[str, object]) -> str:
    """A strategy as `npuscope predict --strategy` takes it, without batch, length and switches."""
    sizes = (f"{_KEYS.get(name, name)}={row[name]}" for name in SIZES)
    layers = ["layers=balanced"] if row["layers"] == BALANCED else []  # else even
    return ",".join([*sizes, "etp=1", *layers])
