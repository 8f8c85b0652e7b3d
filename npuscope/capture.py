"""One opened profile or store: every question as a method, every answer as a Polars frame."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from npuscope.analysis.scope import Scope
from npuscope.arguments import (
    check_attention,
    check_key,
    check_text,
    check_whole,
    model_use,
    path_of,
)
from npuscope.collector.ctrl_c import hear_ctrl_c
from npuscope.errors import StoreError, TraceNotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import duckdb
    import plotly.graph_objects as go
    import polars as pl

    from npuscope.analysis.compare.side import Side
    from npuscope.analysis.experts.load.load_rows import By as ExpertKey
    from npuscope.analysis.flops.mfu import Figures, ModelUse
    from npuscope.analysis.flops.model.model import Attention, Recompute
    from npuscope.analysis.operators.answers import OperatorKey
    from npuscope.analysis.query import CommKey, KernelKey, MemoryKey

MfuKey = Literal["step", "stage", "job", "kernel"]
CompareKey = Literal["part", "measure", "stage", "rank"]


class Capture:
    """What `npuscope.open` returns; `close` it, or use it in a `with`.

    Answers are those of the command of the same name: the rows of its `--json`, in its order, with
    the columns and units that `npuscope.metrics()` and docs/metrics.md name (`_ns` integer
    nanoseconds, `_bytes` bytes, `_ratio` 0 to 1; null is unknown). `rank` and `step` choose rows.
    What the command says beside its figures is in `notes()`.
    """

    def __init__(
        self,
        path: str | Path,
        run: str | None = None,
        capture: str | None = None,
        *,
        store: str | Path | None = None,
        jobs: int | None = None,
    ) -> None:
        from npuscope.profile import Source, open_tables

        check_text(run=run, capture=capture)
        check_whole(1, jobs=jobs)
        kept_in = None if store is None else path_of("store", store)
        source = Source(path_of("path", path), kept_in, run, jobs)
        self._is_closed = False
        self._asking = threading.RLock()  # a connection answers one question at a time
        self._is_across = False
        self._select: duckdb.DuckDBPyConnection | None = None
        self._replayed: tuple[tuple[str, ...], tuple[pl.DataFrame, list[str]]] | None = None
        with hear_ctrl_c(), contextlib.ExitStack() as opening:
            self._data = opening.enter_context(
                open_tables(source, is_command=False, scope=Scope(run, capture))
            )
            self._base = Scope(self._data.result.run if self._data.result else run, capture)
            self._require()
            self._open = opening.pop_all()

    @property
    def path(self) -> Path:
        """The store, or the file, whose tables are open."""
        return self._data.target

    def close(self) -> None:
        """Close its tables; what was answered stays."""
        self._is_closed = True
        self._open.close()

    def __enter__(self) -> Capture:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<npuscope.Capture {self._place}: closed>"
        names = ", ".join(f"{one['run']} {one['capture']}" for one in self.facts().to_dicts())
        return f"<npuscope.Capture {self._place}: {names}>"

    def _repr_html_(self) -> str:
        """What was recorded and what to change first, as a notebook shows it."""
        from npuscope.dashboard.report.html_page import fragment
        from npuscope.dashboard.report.report import summary

        with self._ask():
            return fragment(summary(self._across(), self._base, path=self._place))

    def facts(self) -> pl.DataFrame:
        """A row per run and capture: ranks, chips, versions, parallel sizes (`capture_facts`)."""
        from npuscope.analysis import query

        with self._ask():
            return query.capture_facts(self._data.con, self._base)

    def notes(self, *changes: str) -> list[str]:
        """What to know beside the figures: limits of the capture, what reading lost or guessed;
        with changes, first how far `whatif` of these can be trusted."""
        from npuscope.analysis import query

        trust = self._whatif(changes)[1] if changes else []
        with self._ask():
            notes = query.notes(self._data.con, self._base) + self._data.warnings
            return [*trust, *self._data.left_out, *notes]

    def steps(self, *, rank: int | None = None, step: int | None = None) -> pl.DataFrame:
        """Each step of each rank: computing, communication, what of it is masked, free time."""
        from npuscope.analysis import query

        with self._ask():
            scope = self._scope(rank, step)
            return self._check(query.steps(self._data.con, scope), scope)

    def kernels(
        self,
        by: KernelKey = "type",
        *,
        rank: int | None = None,
        step: int | None = None,
        top: int | None = None,
    ) -> pl.DataFrame:
        """Compute kernels by type, name, core or shape; `top`: the longest of each rank, step."""
        from npuscope.analysis import query

        check_key("kernels", by, get_args(query.KernelKey))
        check_whole(1, top=top)
        with self._ask():
            scope = self._scope(rank, step)
            return self._check(query.kernels(self._data.con, scope, by=by, top=top), scope)

    def operators(
        self, by: OperatorKey = "shape", *, rank: int | None = None, step: int | None = None
    ) -> pl.DataFrame:
        """Operators by shape, class, step, pmu, cause or evidence: what they could give back."""
        from npuscope.analysis.operators.answers import OperatorKey, operators

        check_key("operators", by, get_args(OperatorKey))
        with self._ask():
            con = self._across() if by == "shape" else self._data.con
            scope = self._scope(rank, step)
            return self._check(operators(con, scope, by=by), scope)

    def comm(
        self,
        by: CommKey = "kind",
        *,
        rank: int | None = None,
        step: int | None = None,
        top: int | None = None,
    ) -> pl.DataFrame:
        """Communication by parallel kind, type or operation, and what of it compute hides."""
        from npuscope.analysis import query

        check_key("comm", by, get_args(query.CommKey))
        check_whole(1, top=top)
        with self._ask():
            scope = self._scope(rank, step)
            return self._check(query.comm(self._across(), scope, by=by, top=top), scope)

    def mfu(
        self,
        model: str | None = None,
        *,
        by: MfuKey = "step",
        sequence_length: int | None = None,
        tokens_per_step: int | Literal["auto"] | None = None,
        attention: Attention = "causal",
        recompute: Recompute | None = None,
        peak: str | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> pl.DataFrame:
        """Share of the chip's peak that kernels reach, and the model where it is told.

        `model` is a preset or a config file, `peak` as in `--peak` ("294.9T").
        """
        from npuscope.analysis.catalog import column_names
        from npuscope.analysis.flops import chips, job_mfu
        from npuscope.analysis.flops.kernels import roofline

        check_key("mfu", by, get_args(MfuKey))
        use = model_use(model, sequence_length, tokens_per_step, attention, recompute)
        with self._ask():
            scope = self._scope(rank, step)
            figures, kernels, peaks_here = self._figures(scope, peak, use)
            self._check(figures.rows, scope)
            if by == "kernel":
                peaks = chips.peaks(self._data.con, peaks_here)
                return roofline.kernel_table(kernels, peaks, attention=attention)
            if by == "step":
                return figures.rows.select(column_names("mfu"))
            return job_mfu.gather_figures(self._data.con, figures.rows, by)

    def waterfall(
        self,
        *,
        attention: Attention = "causal",
        peak: str | None = None,
        rank: int | None = None,
        step: int | None = None,
    ) -> pl.DataFrame:
        """From the peak to what is achieved, loss by loss, of each rank and step
        (`mfu --waterfall`)."""
        from npuscope.analysis.flops.kernels.count import kernel_work
        from npuscope.analysis.flops.losses import losses

        check_attention(attention)
        with self._ask():
            scope = self._scope(rank, step)
            figures, kernels, _ = self._figures(scope, peak, None)
            self._check(figures.rows, scope)
            work = kernel_work(kernels, attention=attention)
            return losses(self._across(), figures.rows, work, scope)

    def experts(
        self, by: ExpertKey = "layer", *, rank: int | None = None, step: int | None = None
    ) -> pl.DataFrame:
        """How tokens fall on layers, experts, devices and nodes, or over time.

        Where no token counts are stored, devices and nodes are told by kernel shapes. Raises
        TraceNotFound where neither tells.
        """
        from npuscope.analysis.experts.load import load_rows
        from npuscope.analysis.experts.load.from_trace import device_loads
        from npuscope.analysis.experts.load.load import expert_rows

        check_key("experts", by, get_args(load_rows.By))
        if rank is not None and by not in ("layer", "expert"):
            raise UsageError(f"by {by}, all ranks are compared with each other: leave rank out")
        with self._ask():
            scope = self._scope(rank, step)
            tables = expert_rows(self._data.con, scope)
            if tables.load.is_empty():
                if by not in ("device", "node"):
                    raise TraceNotFound(
                        f"{self._place}: no tokens per expert here: ask by device or node"
                    )
                tables, _ = device_loads(self._data.con, tables, scope.all_ranks)
            rows = load_rows.view(tables, by)
            return self._check(rows.drop("basis", strict=False), scope)

    def ranks(self, *, rank: int | None = None, step: int | None = None) -> pl.DataFrame:
        """Who makes the others wait in each step, and why; `evidence` is JSON text."""
        from npuscope.analysis.ranks.stragglers.blame import rank_answer

        with self._ask():
            scope = self._scope(rank, step)
            return self._check(rank_answer(self._across(), scope), scope)

    def memory(self, by: MemoryKey = "component", *, rank: int | None = None) -> pl.DataFrame:
        """Device memory: peaks by component, holders, blocks, steps, growth, curve or spread."""
        from npuscope.analysis import query

        with self._ask():
            scope = self._scope(rank)
            return self._check(query.memory_by(self._data.con, by, scope)[1], scope)

    def findings(self) -> pl.DataFrame:
        """What is worth changing first, by predicted gain; `evidence` is JSON text."""
        from npuscope.analysis.findings.findings import finding_rows, findings

        with self._ask():
            return _frame(finding_rows(findings(self._across(), self._base, path=self._place)))

    def whatif(self, *changes: str) -> pl.DataFrame:
        """Steps as they would be with the changes (`rank:5=median`, `comm:ep=0.5`): a row per
        step, and one for their mean. Raises UsageError for a change that the capture cannot
        answer."""
        if not changes:
            raise UsageError("say what changes, such as whatif('rank:5=median')")
        return self._whatif(changes)[0].clone()

    def _whatif(self, changes: tuple[str, ...]) -> tuple[pl.DataFrame, list[str]]:
        from npuscope.analysis.replay.capture_what_if import whatif_answer

        with self._ask():
            if self._replayed is None or self._replayed[0] != changes:  # rows first, then notes
                self._replayed = changes, whatif_answer(self._across(), self._base, changes)
            return self._replayed[1]

    def replay(self) -> pl.DataFrame:
        """How close a replay comes to the measured steps: how far to trust `whatif`."""
        from npuscope.analysis.replay.captures import capture_job, replay

        with self._ask():
            return replay(capture_job(self._across(), self._base))

    def critical_path(self) -> pl.DataFrame:
        """Which operations of which rank make a step as long as it is; rows add up to the step."""
        from npuscope.analysis.replay.captures import capture_job
        from npuscope.analysis.replay.critical_path import critical_path

        with self._ask():
            return critical_path(capture_job(self._across(), self._base))

    def compare(self, other: Capture, by: CompareKey = "part") -> pl.DataFrame:
        """Where each ns of the difference from this capture, the baseline, to the other comes from,
        for the mean rank or by stage or rank; by measure: each with its 95 % interval."""
        from npuscope.analysis.compare.difference import compare
        from npuscope.analysis.compare.side import kernels_in_full, measure
        from npuscope.analysis.compare.waterfall import needs_all

        check_key("compare", by, get_args(CompareKey))
        if not isinstance(other, Capture):
            raise UsageError(f"compare with {other!r}: give what npuscope.open returns")
        key = by if by == "stage" or by == "rank" else None

        def side(job: Capture) -> Side:
            with job._ask():
                return measure(job._across(), job._base, key, target=str(job._data.target))

        def in_full(job: Capture, side: Side) -> Side:
            with job._ask():
                return side.with_kernels(kernels_in_full(job._across(), job._base, key))

        ours, theirs = side(self), side(other)
        if needs_all(ours, theirs):
            ours, theirs = in_full(self, ours), in_full(other, theirs)
        comparison = compare(ours, theirs, key)
        if by == "measure":
            return comparison.figures
        return comparison.rows if comparison.at is None else comparison.at

    def doctor(self) -> pl.DataFrame:
        """What was recorded of each rank, what is missing, what that allows; lists and structs are
        JSON text."""
        from npuscope.analysis.doctor.doctor import examine
        from npuscope.collector.store.manifest import is_store
        from npuscope.collector.store.store import opened_over
        from npuscope.dashboard.terminal.doctor.doctor_rows import Disk, doctor_rows

        with self._ask():
            target = self._data.target
            read = opened_over(self._data.con, target) if is_store(target) else []
            return _frame(doctor_rows(examine(self._data.con, read, self._base), Disk()))

    def sql(self, text: str) -> pl.DataFrame:
        """One SELECT in DuckDB's SQL over the canonical tables and metrics of every run: no files,
        no settings, no writes. Raises UsageError."""
        import polars as pl

        from npuscope.selects import run_select, select_connection

        if not isinstance(text, str):
            raise UsageError(f"sql {text!r}: give a SELECT as text")
        with self._ask():
            if self._select is None:
                self._select = select_connection(self._data.target)
                self._open.callback(self._select.close)
            try:
                rows = pl.from_arrow(run_select(self._select, text).read_all())
            except (
                OSError,
                pl.exceptions.PolarsError,
            ) as error:  # as intervals, which no frame has
                raise UsageError(f"SQL: {error}") from error
            except KeyboardInterrupt:
                self._select = None  # its open result, which a traceback may hold, takes no query
                raise
            return rows if isinstance(rows, pl.DataFrame) else rows.to_frame()

    def figure(self, name: str, *, lang: str = "en") -> go.Figure:
        """The figure that a page shows by that name on arrival; docs/python.md lists the names.
        Raises UsageError for another name and TraceNotFound where the capture has nothing to
        draw."""
        from npuscope.dashboard.figures.layout import apply_theme, visible_names
        from npuscope.dashboard.figures.of_capture import FIGURES, FigureRequest
        from npuscope.dashboard.locale.language import language_of

        check_key("figure", name, tuple(FIGURES))
        with self._ask():
            one, ranks = self._one("figure")
            request = FigureRequest(
                self._across(), one, ranks[0], self._data.target, language_of(lang)
            )
            drawing = FIGURES[name](request)
            if drawing is None:
                raise TraceNotFound(f"{self._place}: nothing is recorded to draw {name} from")
            return apply_theme(visible_names(drawing), is_dark=False)

    def _figures(
        self, scope: Scope, peak: str | None, use: ModelUse | None
    ) -> tuple[Figures, pl.DataFrame, dict[str, float] | None]:
        from npuscope.analysis.flops.kernels.count import counted_kernels
        from npuscope.analysis.flops.mfu import mfu
        from npuscope.analysis.flops.peaks import parse_peaks

        check_text(peak=peak)
        peaks = parse_peaks(peak) if peak is not None else None
        con, kernels = self._data.con, counted_kernels(self._data.con, scope)
        return mfu(con, scope, given_peaks=peaks, use=use, known=kernels), kernels, peaks

    @contextlib.contextmanager
    def _ask(self) -> Iterator[None]:
        """One question at a time. Raises UsageError if it is closed, StoreError of the engine."""
        import duckdb

        with self._asking, hear_ctrl_c():
            self._require_open()
            try:
                yield
            except duckdb.Error as error:
                raise StoreError(f"{self._place}: the query engine failed: {error}") from error

    def _require_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                f"{self._place} is closed: open it again with npuscope.open, and ask before it is"
                " closed"
            )

    def _check(self, rows: pl.DataFrame, scope: Scope) -> pl.DataFrame:
        """These rows. Raises UsageError where there is none, as there is no such rank or step."""
        from npuscope.analysis import query

        if rows.is_empty() and scope != self._base:
            if (reason := query.no_such_rank(self._data.con, scope)) is not None:
                raise UsageError(reason)
            steps = query.steps(self._data.con, self._base)
            if scope.step is not None and scope.step not in steps["step"]:
                raise UsageError(query.nothing_matches(self._data.con, scope))
        return rows

    def _scope(self, rank: int | None = None, step: int | None = None) -> Scope:
        check_whole(0, rank=rank)
        check_whole(step=step)
        return Scope(self._base.run, self._base.capture, rank, step)

    @property
    def _place(self) -> str:
        from npuscope.profile import place_of

        return place_of(self._data.target)

    def _across(self) -> duckdb.DuckDBPyConnection:
        """The connection, with the views of all ranks together."""
        from npuscope.profile import compare_ranks

        if not self._is_across:
            compare_ranks(self._data, is_needed=False)
            self._is_across = True
        return self._data.con

    def _one(self, what: str) -> tuple[Scope, list[int]]:
        """A single capture's scope, and its ranks. Raises UsageError where there are several."""
        from npuscope.analysis import query

        facts = query.capture_facts(self._data.con, self._base).to_dicts()
        if len(facts) != 1:
            named = "; ".join(f"run={one['run']!r}, capture={one['capture']!r}" for one in facts)
            raise UsageError(f"{what} is of one capture: open it with one of {named}")
        return Scope(facts[0]["run"], facts[0]["capture"]), facts[0]["ranks"]

    def _require(self) -> None:
        from npuscope.analysis import query

        if self._base.values() and query.capture_facts(self._data.con, self._base).is_empty():
            raise UsageError(query.nothing_matches(self._data.con, self._base))


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows of JSON as a frame; what is a list or an object in them as its JSON text."""
    import polars as pl

    def plain(value: object) -> object:
        is_nested = isinstance(value, dict) or (
            isinstance(value, list) and not all(isinstance(one, str) for one in value)
        )
        return json.dumps(value, ensure_ascii=False, default=str) if is_nested else value

    return pl.DataFrame(
        [{name: plain(value) for name, value in row.items()} for row in rows],
        infer_schema_length=None,
    )
