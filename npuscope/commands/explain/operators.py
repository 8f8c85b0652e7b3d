"""`npuscope operators`: which kernels, changed how, give back how many ms of a step."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from npuscope.commands.command import Request, TopOrAll, command, largest, notes_of
from npuscope.console import say
from npuscope.errors import TraceNotFound, UsageError

if TYPE_CHECKING:
    import polars as pl

_MOST = 20

Key = Literal["shape", "class", "step", "pmu", "cause", "evidence"]
By = Annotated[Key, typer.Option("--by", metavar="KEY", help="|".join(get_args(Key)))]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        metavar="FILE",
        help="What `npuscope operators learn` wrote: the best so far.",
    ),
]
Table = Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The table to add to.")]
_METRICS = {
    "shape": "operator_headroom", "class": "operator_classes", "step": "operator_steps",
    "pmu": "operator_pmu", "cause": "operator_causes", "evidence": "operator_cause_rows",
}  # fmt: skip


@command("run", "capture", "rank", "step")
def operators(
    request: Request, by: By = "shape", reference: Reference = None, *, top: TopOrAll = None
) -> None:
    """Operators by class and tensors: FLOPs, bytes, utilisation, ms per step to give back.

    \b
    Examples:
      npuscope operators ./profiles                       headroom of each type and shape
      npuscope operators ./profiles --by class            matmul, attention, vector, ...
      npuscope operators ./profiles --by pmu              FLOPs over time beside PMU counters
      npuscope operators ./profiles --by cause            padding, small shapes, layout, ...
      npuscope operators ./profiles --by evidence         the kernels each cause rests on
      npuscope operators learn ./profiles -o best.parquet
      npuscope operators ./other --reference best.parquet
    """
    from npuscope.analysis.operators import answers, headroom
    from npuscope.dashboard.terminal.operator_tables import table_of
    from npuscope.profile import compare_ranks

    table = None if reference is None else read_table(reference)
    with request.tables(need_steps=False) as (data, scope):
        if by == "shape":
            compare_ranks(data, is_needed=False)
        frame = answers.operators(data.con, scope, by=by, reference=table)
        if frame.is_empty() and str(request.scope):
            request.require_steps(data, scope)
        notes = notes_of(data, scope)
        notes += headroom.headroom_notes(frame, of=by)
        most = _MOST if top is None and not request.json else top
        top_rows = largest(frame, most, "total_ns" if by == "step" else None)
        request.answer(
            _METRICS[by], top_rows, notes,
            lambda rows: table_of(by, rows, left_out=frame.height - rows.height),
        )  # fmt: skip


@command("run", "capture", "rank", "step", json=False)
def learn(request: Request, out: Table) -> None:
    """Add what kernels of a capture achieved to a table of the best by chip and shape.

    \b
    Examples:
      npuscope operators learn ./profiles -o best.parquet
      npuscope operators learn ./more -o best.parquet     adds to it; twice changes nothing
    """
    from npuscope.analysis.operators.headroom import learnt, merge_references
    from npuscope.dashboard.whole_files import write_bytes

    with request.tables(need_steps=False) as (data, scope):
        laws = learnt(data.con, scope)
        if laws.is_empty():
            raise UsageError(
                f"{request.source.path}: nothing to learn: neither the chip's name nor its number"
                " of cores is known, or no kernel with shapes was recorded (`npuscope doctor`)"
            )
        before = read_table(out) if out.exists() else laws.clear()
        whole = merge_references(before, laws)
        packed = BytesIO()  # polars has an error of its own for a full disk
        whole.write_parquet(packed)
        write_bytes(packed.getbuffer(), out)
        say(f"{out}: {whole.height:,} rows of {whole['capture'].n_unique()} captures")


def read_table(path: Path) -> pl.DataFrame:
    """A table that `learn` wrote. Raises UsageError, TraceNotFound."""
    import polars as pl

    from npuscope.analysis.operators.headroom import REFERENCE

    if not path.is_file():
        raise UsageError(
            f"{path}: no such file: `npuscope operators learn PATH -o {path}` makes it"
        )
    try:
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _no_table(path, str(error)) from error
    if dict(frame.schema) != REFERENCE:
        raise _no_table(path, f"its columns are {', '.join(frame.columns)}")
    return frame


def _no_table(path: Path, reason: str) -> TraceNotFound:
    return TraceNotFound(f"{path}: not a table that `npuscope operators learn` wrote: {reason}")
