"""The metrics that FLOPs are computed from."""

from __future__ import annotations

from ..metric import Metric, described

FLOPS: tuple[Metric, ...] = (
    described(
        "shapes",
        "shape_summary",
        "Shapes",
        "Compute kernels by type and tensors, from which their FLOPs follow.",
        inputs=("kernels", "ranks"),
        summary=True,
        rows_from=("kernels",),
    ),
)
