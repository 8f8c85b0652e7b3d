"""Lines of Megatron's form by the million: split at their bars as columns, not one by one.

What is not plainly of that form is left to `log_lines.parse`, which this equals on what it takes.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from .log_lines import COLUMNS, MORE_COLUMNS, PER_DEVICE, POSITIVE, SUMS, WEAK, column_of

# Of larger exponents 64 bits may hold none.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,2})?"
_LINE = (
    rf"^([^|]*?)\biteration:?\s+(\d{{1,18}})\s*/\s*\d{{1,18}}\s*\|"
    rf"((?:[^|:]+:\s*{_NUMBER}\s*\|)+)\s*$"
)
# A second step on the line or another name of it, numbers in brackets of a name, colours, other
# letters.
_NOT_PLAIN = r"iteration\s*:\s*\d+\s*\||global_step|\w\(|[^\t -~]"
_TIME = r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?"
_NAMES = (*COLUMNS, *MORE_COLUMNS)


def split_bars(lines: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Lines of that form as rows: `line` (its place among all), `step`, what `log_lines.parse`
    tells; and which lines are none of that form."""
    parts = lines.str.extract_groups(_LINE).struct.unnest()
    before, step, body = (parts[name] for name in parts.columns)
    is_plain = body.is_not_null() & ~lines.str.contains(_NOT_PLAIN)
    at = is_plain.arg_true()
    pieces = (
        pl.DataFrame({"line": at, "piece": body.filter(is_plain).str.strip_chars_end("|")})
        .with_columns(pl.col("piece").str.split("|"))
        .explode("piece")
        .with_columns(pl.col("piece").str.splitn(":", 2).struct.rename_fields(["key", "value"]))
        .unnest("piece")
        .with_columns(pl.col("value").str.strip_chars().cast(pl.Float64))
    )
    keys = sorted(pieces["key"].unique(), key=lambda key: key.strip() not in WEAK)
    columns_of = {key: column_of(key, is_percent=True) for key in keys}
    rows: dict[str, pl.Series] = {"line": at, "step": step.filter(is_plain).cast(pl.Int64)}
    lines_at = np.full(len(lines), -1)
    lines_at[at.to_numpy()] = np.arange(len(at))
    for name in _NAMES:
        values = np.full(len(at), np.nan)
        for key, (column, divisor) in columns_of.items():
            if column == name:
                pieces_of_key = pieces.filter(pl.col("key") == key)
                numbers = pieces_of_key["value"].to_numpy()
                is_told = (numbers > 0) | (name not in POSITIVE)
                places = lines_at[pieces_of_key["line"].to_numpy()[is_told]]
                former = np.nan_to_num(values[places]) if name in SUMS else 0.0
                values[places] = former + numbers[is_told] / divisor
        rows[name] = pl.Series(values).fill_nan(None)
    own = pieces.filter(  # of rates, which are above 0 where they are known
        pl.col("key").str.strip_chars().is_in(PER_DEVICE), pl.col("value") > 0
    )["line"].unique()
    rows["per_device"] = pl.select(pl.when(at.is_in(own.implode())).then(1.0)).to_series()
    rows["at_s"] = seconds(before.filter(is_plain))
    frame = pl.DataFrame(rows)
    return frame.filter(pl.any_horizontal(pl.col(*COLUMNS).is_not_null())), ~is_plain


def seconds(texts: pl.Series) -> pl.Series:
    """Since 1970 on the clock of whoever wrote the line."""
    parts = texts.str.extract_groups(_TIME).struct.unnest()
    day, time, fraction = (parts[name] for name in parts.columns)
    whole = (day + " " + time).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)
    return whole.dt.epoch("s") + ("0." + fraction.fill_null("0")).cast(pl.Float64)
