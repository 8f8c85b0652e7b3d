"""The report for programs: what it says of each capture as rows, and what both reports share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import polars as pl

from npuscope.messages import Message

from . import means, query
from .catalog import column_names
from .experts.cost.load_overview import Overview, hottest
from .experts.cost.overview import overview
from .findings.findings import finding_rows, findings
from .flops.kernels.count import counted_kernels, kernel_work
from .flops.losses import losses, together
from .flops.mfu import Figures, mfu, why_unknown
from .memo import memoize
from .pipeline.answer import Answer, answer_rows, pipeline_overview
from .ranks.stragglers.blame import blame_rows, rank_blame
from .scope import Scope
from .views import has_view

HOTTEST = 3
NO_LOAD = "Expert load: no tokens per expert were recorded, and no kernel shows them"
# Where a section would stand that this capture cannot fill.
ABSENT = {
    "kernels": "Top kernels: no single kernel was recorded, only the producer's own steps",
    "communication": "Communication: no communication operation was recorded",
    "rank_blame": "Who makes the others wait: no operation was recorded by two ranks or more",
    "experts": NO_LOAD,
    "memory": "Memory: no memory curve was recorded",
}


# metric: report
# Where does the step go in each capture, and what should change first?
#
# One row per capture: the metric capture_facts, and the rows of other metrics that the report is
# made of, means without warm-up.
#
# title: Report
# meaning: Facts of each capture with the rows of all that its report shows.
# command: report
#
#   run                 varchar    run of the training job
#   capture             varchar    ranks profiled at the same time
#   rank_count          bigint     ranks that are here
#   ranks               integer[]  their numbers
#   world_size          integer    ranks of the whole job; NULL where not recorded
#   missing_rank_count  bigint     ranks of the job that are not here; NULL where the world size is
#     unknown
#   missing_ranks       integer[]  their numbers
#   step_count          bigint     steps with figures
#   steps               bigint[]   their numbers
#   light_rank_count    bigint     ranks whose figures come from the producer's own table
#   frameworks          varchar[]  pytorch, mindspore, msprof, kineto (a GPU)
#   chips               varchar[]  e.g. Ascend910B
#   profiler_levels     varchar[]  Level_none, Level0, Level1, Level2
#   source_formats      varchar[]  db, text, db+text, light, cluster
#   framework_versions  varchar[]  torch_npu's or MindSpore's
#   cann_versions       varchar[]  versions of CANN
#   clocks              varchar[]  epoch, device: origin of timestamps
#   host_count          bigint     hosts the ranks ran on; NULL where unknown
#   tp_size             integer    tensor-parallel size
#   pp_size             integer    pipeline-parallel size
#   dp_size             integer    data-parallel size
#   cp_size             integer    context-parallel size
#   ep_size             integer    expert-parallel size
#   window_start_ns     bigint     first start of a rank's profiling session
#   window_end_ns       bigint     last end of a rank's profiling session
#   findings            json       rows of the metric findings
#   mean_step           json       rows of mean_steps, of the capture
#   mean_parts          json       rows of mean_parts
#   mean_kernels        json       rows of mean_kernels, the longest
#   mean_communication  json       rows of mean_comm, by operation
#   step_rows           json       rows of steps
#   spread              json       rows of spread
#   mfu                 json       rows of mfu
#   waterfall           json       rows of waterfall
#   kernels             json       rows of kernels, by type, the longest
#   communication       json       rows of comm, by kind
#   rank_blame          json       rows of rank_blame
#   experts             json       layers, hottest experts and cost of the imbalance; NULL: no load
#     is known
#   pipeline            json       rows of pipeline, with those of its phases, masking, stages and
#     bubbles; NULL: one stage, or passes are not recognised
#   limits              varchar[]  what the capture cannot tell, and what would make it
#   not_shown           varchar[]  sections that the capture cannot fill, and why
def report_rows(
    con: duckdb.DuckDBPyConnection, scope: Scope, *, top: int, path: str = "PATH"
) -> list[dict[str, Any]]:
    """The report for programs: facts of each capture, with the rows of every section."""
    rows: list[dict[str, Any]] = []
    for facts in query.capture_facts(con, scope).to_dicts():
        here = replace(scope, run=facts["run"], capture=facts["capture"])
        overview, ran = expert_overview(con, here), report_pipeline(con, here)
        found_now = findings(con, here, path=path, experts=overview)
        sections = {
            "findings": finding_rows(found_now),
            "mean_step": query.rows(means.mean_steps(con, here)),
            "mean_parts": query.rows(means.mean_parts(con, here)),
            "mean_kernels": query.rows(means.mean_kernels(con, here).head(top)),
            "mean_communication": query.rows(means.mean_comm(con, here, by="op")),
            "step_rows": query.rows(query.steps(con, here)),
            "spread": query.rows(query.spread(con, here)),
            **_mfu_rows(con, here),
            "kernels": query.rows(query.kernels(con, here, by="type", top=top)),
            "communication": query.rows(query.comm(con, here)),
            "rank_blame": blame_rows(rank_blame(con, here)) if is_across(con) else [],
            "experts": experts_rows(overview),
            **_pipeline_rows(ran),
            "limits": query.limits(con, here),
        }
        unknown = [sections.pop("no_waterfall"), sections.pop("no_pipeline")]
        sections["not_shown"] = [
            *(why for why in unknown if why),
            *(why for name, why in ABSENT.items() if name in sections and not sections[name]),
        ]
        if sections["step_rows"]:
            rows.append({**facts, **sections})
    return rows


def expert_overview(con: duckdb.DuckDBPyConnection, here: Scope) -> Overview | None:
    """Expert load, over all ranks only."""
    if here.rank is not None:
        return None
    return overview(con, run=here.run or "", capture=here.capture or "", step=here.step)


def is_across(con: duckdb.DuckDBPyConnection) -> bool:
    """Whether what needs all ranks was opened too."""
    return has_view(con, "rank_blame")


@memoize
def mfu_losses(con: duckdb.DuckDBPyConnection, here: Scope) -> tuple[Figures, pl.DataFrame]:
    """What `mfu` tells, and rows of its waterfall."""
    kernels = counted_kernels(con, here)
    figures = mfu(con, here, known=kernels)
    return figures, losses(con, figures.rows, kernel_work(kernels), here)


def no_waterfall(rows: pl.DataFrame, figures: Figures) -> str:
    """Why there is no waterfall of what `mfu` tells; empty where there is one."""
    if not rows.filter(pl.col("term") == "achieved").is_empty():
        return ""
    return Message("From the peak to what is achieved: not known: {why}", why=why_unknown(figures))


def _mfu_rows(con: duckdb.DuckDBPyConnection, here: Scope) -> dict[str, Any]:
    """`mfu` per rank and step, `waterfall` of all of them together."""
    figures, rows = mfu_losses(con, here)
    return {
        "no_waterfall": no_waterfall(rows, figures) or None,
        "mfu": query.rows(figures.rows.select(column_names("mfu"))),
        "waterfall": query.rows(together(con, rows)),
    }


def report_pipeline(con: duckdb.DuckDBPyConnection, here: Scope) -> Answer | Message | None:
    """What `pipeline_overview` tells, over all ranks only."""
    if here.rank is not None:
        return None
    return pipeline_overview(con, here.run or "", here.capture or "")


def _pipeline_rows(answer: Answer | Message | None) -> dict[str, Any]:
    if isinstance(answer, Answer):
        return {"pipeline": answer_rows(answer), "no_pipeline": None}
    why = None if answer is None else Message("pipeline: {why}", why=answer)
    return {"pipeline": None, "no_pipeline": why}


def experts_rows(overview: Overview | None) -> dict[str, Any] | None:
    """What is known of expert load; None where nothing is."""
    if overview is None:
        return None
    return {
        "item": overview.item,
        "layers": query.rows(overview.layers),
        "hottest": query.rows(hottest(overview, HOTTEST)),
        "cost": overview.cost,
        "devices_count": overview.devices_count,
        "notes": list(overview.notes),
    }
