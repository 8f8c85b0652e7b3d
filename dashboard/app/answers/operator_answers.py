"""Operators for the page: kernels beside the computing time, the roofline and its limits."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import polars as pl

from npuscope.analysis.flops import chips
from npuscope.analysis.flops.kernels import roofline
from npuscope.analysis.flops.kernels.count import counted_kernels
from npuscope.analysis.scope import Scope


@dataclass(frozen=True, slots=True)
class Roofline:
    """kernels: rows of `roofline.kernel_table`; peaks: dtype, peak_flops_per_s, hbm_bytes_per_s
    (NULL where unknown) and source of the chosen ranks' chips; sources: these as messages."""

    kernels: pl.DataFrame
    peaks: pl.DataFrame
    sources: dict[str, str]


def under_roofline(con: duckdb.DuckDBPyConnection, scope: Scope) -> Roofline:
    """Kernels that multiply with their FLOPs and bytes; attention counted as causal."""
    counted = counted_kernels(con, scope)
    known = chips.peaks(con)
    kernels = roofline.kernel_table(counted, known)
    places = {place: known[place] for place in kernels.select("run", "capture", "rank").rows()}
    limits = [
        (dtype, flops, peak.hbm_bytes_per_s, peak.source_of(dtype))
        for peak in places.values()
        for dtype, flops in peak.flops_per_s.items()
    ]
    schema = {
        "dtype": pl.String, "peak_flops_per_s": pl.Float64, "hbm_bytes_per_s": pl.Float64,
        "source": pl.String,
    }  # fmt: skip
    rows = pl.DataFrame(limits, schema=schema, orient="row")
    sources = {str(source): source for *_, source in limits if source is not None}
    return Roofline(kernels, rows.unique(maintain_order=True), sources)
