"""A search that begins with the strategy a job runs with, by launch script or captures."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl

from npuscope.errors import UsageError
from npuscope.messages import Message

from ..views import frame
from .constants import Constants, default_constants
from .describe import job_of_script, space_of
from .job import DEVICES_OF_A_NODE, Job, Machine
from .memory import stage_memory
from .predict import predict
from .search import Space

_CUT = """
select max(world_size) as world, max(tp_size) as tp, max(pp_size) as pp, max(cp_size) as cp,
    max(ep_size) as ep
from ranks
"""


def space_of_script(
    path: Path, machine: Machine, cluster: tuple[int, int] | None, only: str
) -> tuple[Job, Space]:
    """The job of a launch script, and what to search around it: its batch and length unless `only`
    has others, and its switches but for those of `only`. Raises UsageError."""
    job = job_of_script(path, machine, cluster)
    sizes_text = f"gbs={int(job.global_batch)},seq={job.sequence_length}"
    return job, space_of(f"{sizes_text},{only}", job.software)


def sizes_of_captures(con: duckdb.DuckDBPyConnection) -> dict[str, int]:
    """How captures say that their job is cut: world, tp, pp, cp, ep. Raises UsageError."""
    (row,) = frame(con, _CUT).to_dicts()
    if row["world"] is None or row["tp"] is None or row["pp"] is None:
        raise UsageError(
            Message(
                "the captures do not say how their job is cut: record it with the profiler's"
                " metadata, or give --from a launch script"
            )
        )
    return {name: int(size or 1) for name, size in row.items()}


def cluster_of_sizes(sizes: dict[str, int]) -> str:
    """NODESxNPUS of so many ranks, on whole nodes where there are several."""
    world = sizes["world"]
    if world <= DEVICES_OF_A_NODE or world % DEVICES_OF_A_NODE:
        return f"1x{world}"
    return f"{world // DEVICES_OF_A_NODE}x{DEVICES_OF_A_NODE}"


# metric: search_running
# Where does the strategy of the running job stand among all that fit?
#
# Predicted as the others are. Of a launch script all is known; captures say how ranks are cut, and
# the fastest strategy cut so stands for what they do not say.
#
# title: The running strategy
# meaning: The strategy that a job runs with, predicted, beside the best of a search.
# command: search --from
#
#   tp           bigint   tensor parallel size
#   pp           bigint   pipeline stages
#   vpp          bigint   chunks of a stage
#   cp           bigint   context parallel size
#   ep           bigint   expert parallel size
#   micro_batch  bigint   sequences of a micro-batch
#   step_ns      bigint   predicted step
#   peak_bytes   bigint   predicted peak of later steps, of the rank with most
#   fits         boolean  whether the peak leaves enough of the chip's memory free
#   place        bigint   from 1, by time among the strategies that fit; NULL: none does
#   saved_ratio  double   of its step that the best saves; below 0: none is faster; NULL: none fits
def running_row(
    strategies: pl.DataFrame, job: Job, budget_bytes: float, constants: Constants | None = None
) -> pl.DataFrame:
    """The row of the metric for a job."""
    values = constants or default_constants()
    sizes = {"tp": job.tp, "pp": job.pp, "vpp": job.vpp, "cp": job.cp, "ep": job.ep,
             "micro_batch": job.micro_batch}  # fmt: skip
    peak = max(float(stage.peak_bytes) for stage in stage_memory(job, values))
    step_ns = predict(job, values).step_s.predicted * 1e9
    row = {name: int(size) for name, size in sizes.items()}
    return _beside(strategies, row, int(step_ns), int(peak), budget_bytes)


def running_row_of_sizes(
    strategies: pl.DataFrame, sizes: dict[str, int], budget_bytes: float
) -> pl.DataFrame:
    """The row of the metric for sizes of captures. Raises UsageError where none is cut so."""
    names = ("tp", "pp", "cp", "ep")
    alike = strategies.filter(*(pl.col(name) == sizes[name] for name in names))
    if alike.is_empty():
        cut = ", ".join(f"{name} {sizes[name]}" for name in names)
        raise UsageError(
            Message("no strategy of this search is cut as the job is ({cut})", cut=cut)
        )
    best = alike.row(0, named=True)
    row = {name: best[name] for name in ("tp", "pp", "vpp", "cp", "ep", "micro_batch")}
    return _beside(strategies, row, best["step_ns"], best["peak_bytes"], budget_bytes)


def _beside(
    strategies: pl.DataFrame,
    row: dict[str, int],
    step_ns: int,
    peak_bytes: int,
    budget_bytes: float,
) -> pl.DataFrame:
    fitting = strategies.filter("fits")["step_ns"]
    place = int((fitting < step_ns).sum()) + 1
    return pl.DataFrame([
        row | {
            "step_ns": step_ns, "peak_bytes": peak_bytes, "fits": peak_bytes <= budget_bytes,
            "place": place if len(fitting) else None,
            "saved_ratio": 1 - float(fitting[0]) / step_ns if len(fitting) else None,
        }
    ])  # fmt: skip
