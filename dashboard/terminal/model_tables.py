"""A model's FLOPs, parameters and reconciled MFU as terminal tables, and as rows for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Group, RenderableType

from npuscope.analysis.flops.model.architecture import parameters
from npuscope.analysis.flops.model.model import Model, ModelFlops
from npuscope.analysis.flops.model.reconcile import (
    TOLERANCE,
    Pipeline,
    PublishedTraining,
    Reconciliation,
    megatron_flops,
    out_of_reach,
)
from npuscope.analysis.wording import UNKNOWN, percent, plain

from .tables import Column, FittedTable, decimals

# Which readings of an MFU are shown up to which error.
_READINGS = (
    (False, "counted as MFU", 0.05),
    (True, "with recomputed work, which makes an HFU", TOLERANCE),
)
_PARTS = {"layers": "layers", "mtp": "MTP blocks", "head": "head"}


_gigaflops = decimals("{:,.3f}", 1e9)
_billions = decimals("{:,.2f} B", 1e9)


def precise(value: float | None) -> str:
    """A ratio as published MFUs are written, two decimals of a per cent."""
    return UNKNOWN if value is None else f"{value * 100:.2f} %"


def model_row(counted: ModelFlops) -> dict[str, Any]:
    """The whole count as one JSON-ready row, its terms inside; FLOPs are per token."""
    held = counted.parameters
    forward = counted.forward_flops
    return {
        "model": counted.model.name,
        "sequence_length": counted.sequence_length,
        "attention": counted.attention,
        "mtp": counted.mtp,
        "router": counted.router,
        "recompute": counted.recompute,
        "forward_flops": forward,
        "matmul_flops": counted.matmul_flops,
        "attention_flops": counted.attention_flops,
        "backward_flops": counted.backward_flops,
        "train_flops": counted.train_flops,
        "recomputed_flops": counted.recomputed_flops,
        "hardware_flops": counted.hardware_flops,
        **_megatron(counted),
        "parameters": held.total,
        "active_parameters": held.active,
        "embedding_parameters": held.embedding,
        "mtp_parameters": held.mtp_total,
        "mtp_active_parameters": held.mtp_active,
        "conventions": list(counted.conventions),
        "terms": [
            {
                "part": term.part,
                "term": term.term,
                "kind": term.kind,
                "formula": term.formula,
                "layer_count": term.layer_count,
                "layer_flops": term.layer_flops,
                "forward_flops": term.flops,
                "train_flops": 3 * term.flops,
                "share_ratio": float(term.flops / forward),
            }
            for term in counted.terms
        ],
    }


def _megatron(counted: ModelFlops) -> dict[str, int]:
    """What Megatron's own counter gives for training a token; whole, as its terms are."""
    model, length = replace(counted.model, mtp_depth=counted.mtp), counted.sequence_length
    current = megatron_flops(model, sequence_length=length)
    before = megatron_flops(model, sequence_length=length, convention="before 2025-03")
    return {"megatron_flops": int(current), "megatron_before_2025_03_flops": int(before)}


def model_table(row: Mapping[str, Any]) -> RenderableType:
    """A row of `model_row`: terms, totals, parameters, conventions."""
    term_rows = [{**term, "part": _PARTS[term["part"]]} for term in row["terms"]]
    terms = FittedTable(
        [
            Column("part", "part", None, 2),
            Column("term", "term"),
            Column("formula, a token and layer", "formula", None, 4),
            Column("layers", "layer_count", plain, 1),
            Column("GFLOP a layer", "layer_flops", _gigaflops, 3),
            Column("forward", "forward_flops", _gigaflops),
            Column("training", "train_flops", _gigaflops),
            Column("share", "share_ratio", percent),
        ],
        term_rows,
        f"{row['model']}: GFLOP per token",
    )
    totals = [
        ("forward", row["forward_flops"]),
        ("  products with weights", row["matmul_flops"]),
        ("  core of attention", row["attention_flops"]),
        ("training, what MFU counts", row["train_flops"]),
        ("recomputed", row["recomputed_flops"]),
        ("hardware, what HFU counts", row["hardware_flops"]),
        ("training by Megatron's counter", row["megatron_flops"]),
        ("  before 2025-03", row["megatron_before_2025_03_flops"]),
    ]
    held = [
        ("all", row["parameters"]),
        ("active for a token, head without embedding", row["active_parameters"]),
        ("active with embedding", row["active_parameters"] + row["embedding_parameters"]),
    ]
    if row["mtp_parameters"]:
        held.append(("MTP blocks, not in the above", row["mtp_parameters"]))
    return Group(
        terms,
        "",
        _pairs("Totals", "GFLOP per token", totals, _gigaflops),
        "",
        _pairs("Parameters, matrices only", "count", held, _billions),
        "",
        "Conventions: " + "; ".join(row["conventions"]),
    )


def _pairs(title: str, heading: str, pairs: Sequence[tuple[str, Any]], form: Any) -> FittedTable:
    return FittedTable(
        [Column("what", "what"), Column(heading, "value", form)],
        [{"what": what, "value": value} for what, value in pairs],
        title,
    )


def preset_rows(models: Mapping[str, Model]) -> list[dict[str, Any]]:
    """Presets with their sizes."""
    rows = []
    for name, model in models.items():
        held = parameters(model)
        rows.append({
            "preset": name,
            "layers": model.layers,
            "hidden_size": model.hidden_size,
            "parameters": held.total,
            "active_parameters": held.active,
        })  # fmt: skip
    return rows


def presets_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Rows of `preset_rows`."""
    return FittedTable(
        [
            Column("preset", "preset"),
            Column("layers", "layers", plain, 2),
            Column("hidden size", "hidden_size", plain, 1),
            Column("parameters", "parameters", _billions),
            Column("active", "active_parameters", _billions),
        ],
        rows,
        "Models known by name",
        "active: of a token, head without embedding",
    )


def reconcile_table(
    reconciliations: Sequence[Reconciliation], training: PublishedTraining
) -> RenderableType:
    """Conventions by error, up to 5 %, for each claim; published bubbles beside their formula."""
    parts: list[RenderableType] = []
    for claim in training.claims:
        of_claim = [row for row in reconciliations if row.claim == claim.claim]
        for is_hfu, counted, most in _READINGS:
            rows = [row for row in of_claim if (row.reading == "hfu") == is_hfu]
            near = [row for row in rows if row.error_ratio <= most]
            further = len(rows) - len(near)
            if is_hfu and not near:
                continue
            parts += [
                FittedTable(
                    _COLUMNS,
                    [_reconciliation(row) for row in near],
                    f"{claim.claim} ({claim.source}), {counted}",
                    f"{further} conventions more are off by over {most * 100:g} %: --json has all",
                ),
                "",
            ]
        parts += _excluded_peaks(of_claim)
    if training.pipelines:
        parts.append(_bubbles_table(training.pipelines, training.pipelines_source))
    return Group(*parts)


_COLUMNS = [
    Column("error", "error", str),
    Column("reconciles", "reconciles"),
    Column("convention", "formula"),
    Column("peak TFLOP/s", "peak", str),
    Column("of", "peak_name", None, 3),
    Column("GFLOP per token", "flops_per_token", decimals("{:,.2f}", 1e9)),
    Column("MFU", "mfu", str),
    Column("published", "published", str, 2),
]


def _reconciliation(row: Reconciliation) -> dict[str, Any]:
    return {
        "error": precise(row.error_ratio),
        "reconciles": "yes" if row.reconciles else "no",
        "formula": row.formula,
        "peak": f"{row.peak_flops_per_s / 1e12:.1f}",
        "peak_name": row.peak_name,
        "flops_per_token": row.flops_per_token,
        "mfu": " / ".join(precise(value) for value in row.predicted_mfu_ratio),
        "published": " / ".join(precise(value) for value in row.published_mfu_ratio),
    }


def _excluded_peaks(reconciliations: Sequence[Reconciliation]) -> list[RenderableType]:
    """What no MFU reconciles with: peaks, each with what comes nearest."""
    far = out_of_reach(reconciliations)
    if not far:
        return []
    table = FittedTable(
        [column for column in _COLUMNS if column.key not in ("reconciles", "published")],
        [_reconciliation(row) for row in far],
        "Peaks that no MFU reconciles with, and the nearest",
    )
    return [table, ""]


def _bubbles_table(pipelines: Sequence[Pipeline], source: str | None) -> FittedTable:
    return FittedTable(
        [
            Column("stages p", "stages", plain),
            Column("micro-batches m", "micro_batches", plain),
            Column("chunks v", "virtual_chunks", plain),
            Column("bubble", "bubble_ratio", precise),
            Column("published", "published_ratio", precise),
        ],
        bubble_rows(pipelines),
        f"Pipeline bubbles ({source})",
        "bubble: (p - 1) / (m v + p - 1) of the step",
    )


def bubble_rows(pipelines: Sequence[Pipeline]) -> list[dict[str, Any]]:
    """Published bubbles beside the schedule's formula, JSON-ready."""
    return [
        {
            "stages": pipeline.stages,
            "micro_batches": pipeline.micro_batches,
            "virtual_chunks": pipeline.virtual_chunks,
            "bubble_ratio": pipeline.bubble_ratio,
            "published_ratio": pipeline.bubble_percent / 100,
        }
        for pipeline in pipelines
    ]
