"""What kernels run as, where operators of a job suffer from something."""

from __future__ import annotations

from dataclasses import replace

from . import kernels as k
from .job import Job


def plant(job: Job, work: k.Work) -> list[k.Work]:
    """The kernels that run in place of one, in order: itself where nothing is planted in it."""
    if job.odd_columns and work.type == "MatMulV3":
        sizes = f"{work.input_shapes};{work.output_shapes}".replace(";", ",").split(",")
        if str(job.projected_columns) in sizes:
            work = replace(work, dur_ns=int(work.dur_ns * job.odd_factor))
    if work.type == job.ai_cpu_kernel:
        return [replace(work, core="AI_CPU", dur_ns=int(work.dur_ns * job.ai_cpu_factor))]
    if work.type == job.split_kernel:
        return [_piece(work, job.split_into)] * job.split_into
    if work.type == job.converted_kernel:
        inputs, outputs = work.input_shapes.partition(";")[0], work.output_shapes
        return [
            _conversion(inputs, _block_shape(inputs)),
            work,
            _conversion(_block_shape(outputs), outputs),
        ]
    if work.type == job.unfused_kernel:
        return _parts(work)
    return [work]


def _piece(work: k.Work, count: int) -> k.Work:
    """As many rows as one of so many kernels has; a vector of weights is none of rows."""

    def cut(shapes: str) -> str:
        parts = (one.partition(",") for one in shapes.split(";"))
        return ";".join(f"{int(rows) // count},{rest}" if rest else rows for rows, _, rest in parts)

    return replace(
        work, input_shapes=cut(work.input_shapes), output_shapes=cut(work.output_shapes),
        dur_ns=k.START_NS + (work.dur_ns - k.START_NS) // count,
    )  # fmt: skip


def _block_shape(shape: str) -> str:
    """A matrix in blocks of 16 x 16, columns first."""
    rows, columns = (int(size) for size in shape.split(","))
    return f"{-(-columns // 16)},{-(-rows // 16)},16,16"


def _conversion(inputs: str, outputs: str) -> k.Work:
    return k.work("TransData", inputs, outputs, k.vector_ns(_bytes(inputs) + _bytes(outputs)))


def _bytes(shape: str) -> float:
    size = 2.0
    for dimension in shape.split(","):
        size *= int(dimension)
    return size


def _parts(work: k.Work) -> list[k.Work]:
    """SwiGlu as sigmoid and two products; another as itself with a scale and a bias after it."""
    shape = work.output_shapes
    size = _bytes(shape)
    if work.type == "SwiGlu":
        product = k.work("Mul", f"{shape};{shape}", shape, k.vector_ns(3 * size))
        return [k.work("Sigmoid", shape, shape, k.vector_ns(2 * size)), product, product]
    return [work, *(k.work(one, shape, shape, k.vector_ns(2 * size)) for one in ("Muls", "Adds"))]
