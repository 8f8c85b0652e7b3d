"""`npuscope health`: a whole training, from its trainer's log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from npuscope.commands.command import Request, TopK, command, say_notes
from npuscope.console import print_json, show
from npuscope.errors import TraceFormatError, UsageError

if TYPE_CHECKING:
    import polars as pl

    from npuscope.analysis.health.health import Health
    from npuscope.analysis.health.imbalance import Sync
    from npuscope.collector.readers.train_log.serving_text import Speculation

Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="LOG", help="Another training's log: more spikes or fewer?"),
]
Cards = Annotated[
    int | None,
    typer.Option(
        "--cards", min=1, metavar="N", help="RL: cards of the job.  [default: what the log tells]"
    ),
]
RolloutCards = Annotated[
    int | None,
    typer.Option(
        "--rollout-cards",
        min=1,
        metavar="N",
        help="RL: of them those that only generate.  [default: all generate and train in turn]",
    ),
]
Supernodes = Annotated[
    int, typer.Option("--supernodes", min=1, metavar="N", help="Supernodes that the job ran on.")
]
Scaling = Annotated[
    list[str] | None,
    typer.Option(
        "--scaling", metavar="N=LOG", help="The same job on N supernodes: how linear it scales."
    ),
]
DraftCost = Annotated[
    float,
    typer.Option(
        "--draft-cost",
        min=0,
        metavar="SHARE",
        help="Speculative decoding: what drafting adds to a step, of a step without.",
    ),
]
Lengths = Annotated[
    Path | None,
    typer.Option(
        "--lengths",
        metavar="DIR",
        help="Profiles as PATH: what unequal sequences cost, by sequence_length_recorder's files.",
    ),
]
TokensPerStep = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-step",
        metavar="N",
        min=1,
        help="Of the whole job, to find dropped tokens.  [default: what the log tells]",
    ),
]
Together = Annotated[
    Literal["step", "micro-batch"],
    typer.Option("--sync", help="With --lengths: when data-parallel ranks wait for each other."),
]


@command("run", "capture")
def health(
    request: Request,
    *,
    against: Against = None,
    cards: Cards = None,
    rollout_cards: RolloutCards = None,
    supernodes: Supernodes = 1,
    scaling: Scaling = None,
    draft_cost: DraftCost = 0.0,
    lengths: Lengths = None,
    sync: Together = "step",
    top_k: TopK = None,
    tokens_per_step: TokensPerStep = None,
) -> None:
    """Spikes, slow stretches, periodic costs and restarts of a training; RL steps by phase.

    PATH is a trainer's log, TensorBoard's event file or a folder of them, a store or profiles read
    with --train-log, or what a serving engine tells of speculative decoding: its metrics or log.

    \b
    Examples:
      npuscope health train.log
      npuscope health train.log --against yesterday.log
      npuscope health verl.log --json
      npuscope health verl.log --cards 32 --rollout-cards 24
      npuscope health one.log --scaling 2=two.log --scaling 4=four.log
      npuscope health metrics.txt --draft-cost 0.1  # acceptance of drafts, and what it is worth
      npuscope health ./store --lengths ./lengths
      npuscope health ./store --top-k 8            # tokens that experts refused, step by step
      npuscope health ./runs/pretrain              # events.out.tfevents.*
    """
    from npuscope.analysis.health.health import spike_change
    from npuscope.analysis.health.speculation import health_speculation
    from npuscope.analysis.query import rows
    from npuscope.collector.readers.train_log.train_log import earlier_log
    from npuscope.dashboard.terminal.health_tables import (
        dropped_table,
        health_tables,
        more_tables,
        speculation_table,
    )

    if lengths is not None:
        _of_lengths(request, lengths, sync)
        return
    served, is_log = _serving_engines(request)
    speculation = health_speculation(served, draft_cost=draft_cost)
    if not is_log:
        request.answer("health_speculation", speculation, [], speculation_table)
        return
    with _health(request, top_k, tokens_per_step) as (run, captures, (dropped, unknown)):
        if run is None:
            request.answer("health_dropped", dropped, unknown, dropped_table)
            return
        changes = []
        if against is not None:
            other = _of_log(against)
            changes = [spike_change(run, other, name) for name in ("grad_norm", "loss")]
        notes = [*unknown, *(str(one["text"]) for one in changes)]
        notes += earlier_log(request.source.path) + (earlier_log(against) if against else [])
        more = _post_training(run, cards, rollout_cards, {supernodes: run, **_logs(scaling or [])})
        more |= {"speculation": speculation, "captures": captures, "dropped": dropped}
        if request.json:
            lists = {name: rows(frame) for name, frame in {"events": run.events, **more}.items()}
            print_json(
                "health", rows(run.steps), notes, summary=run.summary, **lists, against=changes
            )
            return
        for table in (*health_tables(run), *more_tables(more)):
            show(table)
        say_notes(notes)


def _of_lengths(request: Request, folder: Path, sync: Sync) -> None:
    from npuscope.analysis import query
    from npuscope.analysis.health.imbalance import cost_note, fitted_cost, sequence_balance
    from npuscope.collector.readers.train_log.sequence_lengths import read_lengths
    from npuscope.dashboard.terminal.health_tables import balance_table

    lengths = read_lengths(folder)
    with request.tables() as (data, scope):
        times = query.steps(data.con, scope).select("step", "rank", "computing_ns")
        cost = fitted_cost(lengths, times)
        rows = sequence_balance(lengths, cost, sync)
        request.answer("sequence_balance", rows, [cost_note(cost)], balance_table)


def _serving_engines(request: Request) -> tuple[list[Speculation], bool]:
    """What a file tells of serving engines, and whether it logs steps of a training as well."""
    from npuscope.collector.readers.train_log.serving_text import read_serving
    from npuscope.collector.readers.train_log.train_log import require_logged

    path = request.source.path
    engines = read_serving(path) if path.is_file() and path.suffix != ".duckdb" else []
    try:
        if engines:
            require_logged(path)
    except TraceFormatError:
        return engines, False
    return engines, True


def _post_training(
    health: Health, cards: int | None, rollout_cards: int | None, logs: dict[int, Health]
) -> dict[str, pl.DataFrame]:
    """Phases, bounds, scaling over several logs, and MTP heads; without rows where none is told."""
    from npuscope.analysis.health import post_training as rl

    count = cards or rl.cards_of(health.steps)
    if count is None and rollout_cards is not None:
        raise UsageError("--rollout-cards: the log does not tell how many cards: add --cards")
    used = rl.Cards(count, rollout_cards) if count is not None else None
    frames = {
        "phases": rl.health_phases(health.steps, used),
        "bounds": rl.health_bounds(health.steps, used),
        "heads": health.heads,
    }
    steps = {count: one.steps for count, one in logs.items()}
    if len(steps) > 1 or (1 not in steps and steps[min(steps)]["tokens_per_second"].count()):
        frames["scaling"] = rl.health_scaling(steps)
    return frames


def _logs(named: list[str]) -> dict[int, Health]:
    logs = {}
    for one in named:
        count, _, path = one.partition("=")
        if not path or not count.isdecimal() or not int(count):
            raise UsageError(f"--scaling {one}: give supernodes and their log, as 4=four.log")
        logs[int(count)] = _of_log(Path(path))
    return logs


@contextlib.contextmanager
def _health(
    request: Request, top_k: int | None, tokens_per_step: int | None
) -> Iterator[tuple[Health | None, pl.DataFrame, tuple[pl.DataFrame, list[str]]]]:
    """Of PATH, and of a store its captures beside what went wrong, and what experts refused.

    The end may set the exit code, as that of `Asked.tables` does.
    """
    import polars as pl

    from npuscope.analysis.flops.log_figures import trainer_log
    from npuscope.analysis.health.health import health
    from npuscope.analysis.health.run_health import health_captures, run_health
    from npuscope.analysis.health.token_drops import health_dropped
    from npuscope.collector.readers.train_log.event_files import event_files
    from npuscope.errors import TraceNotFound

    path = request.source.path
    if (path.is_file() and path.suffix != ".duckdb") or event_files(path):
        if top_k is not None or tokens_per_step is not None:
            option = "--top-k" if top_k is not None else "--tokens-per-step"
            raise UsageError(
                f"{option}: a log does not tell which tokens experts refused: give a store or"
                " profiles, read with --train-log"
            )
        yield _of_log(path), pl.DataFrame(), (pl.DataFrame(), [])
        return
    with request.tables(need_steps=False) as (data, scope):
        log = trainer_log(data.con, data.target, None, scope)
        dropped = health_dropped(
            data.con, scope, target=data.target, tokens_per_step=tokens_per_step, top_k=top_k
        )
        if log is None and dropped[0].is_empty():
            raise TraceNotFound(
                f"{path}: no trainer's log was read with it: give the log itself, or read it with"
                " --train-log"
            )
        if log is None:
            yield None, pl.DataFrame(), dropped
            return
        # Each capture has the log as it was then.
        newest = run_health(data.con, scope, log.facts) if scope.capture is None else None
        health_here = newest or health(log.rows, log.facts)
        yield health_here, health_captures(data.con, scope), dropped


def _of_log(path: Path) -> Health:
    from npuscope.analysis.health.health import health
    from npuscope.collector.readers.train_log.train_log import read_lines

    return health(*read_lines(path))
