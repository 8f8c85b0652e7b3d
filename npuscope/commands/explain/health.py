"""`npuscope health`: a whole training, from its trainer's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npuscope.commands.command import Asked, command, say_notes
from npuscope.console import print_json, show

if TYPE_CHECKING:
    from npuscope.analysis.health.health import Health

Against = Annotated[
    Path | None,
    typer.Option("--against", metavar="LOG", help="Another training's log: more spikes or fewer?"),
]


@command("run", "capture")
def health(asked: Asked, *, against: Against = None) -> None:
    """Spikes, slow stretches, periodic costs and restarts of a training; RL steps by phase.

    PATH is a trainer's log, TensorBoard's event file or a folder of them, or a store or profiles
    read with --train-log.

    \b
    Examples:
      npuscope health train.log
      npuscope health train.log --against yesterday.log
      npuscope health verl.log --json
      npuscope health ./runs/pretrain              # events.out.tfevents.*
    """
    from npuscope.analysis.health.health import spike_change
    from npuscope.analysis.query import rows
    from npuscope.dashboard.terminal.health_tables import health_tables

    found = _health(asked)
    changes = []
    if against is not None:
        other = _of_log(against)
        changes = [spike_change(found, other, name) for name in ("grad_norm", "loss")]
    notes = [str(one["text"]) for one in changes]
    if asked.json:
        more = {"summary": found.summary, "events": rows(found.events)}
        print_json("health", rows(found.steps), notes, **more, against=changes)
        return
    for table in health_tables(found):
        show(table)
    say_notes(notes)


def _health(asked: Asked) -> Health:
    from npuscope.analysis.flops.log_figures import trainer_log
    from npuscope.analysis.health.health import health
    from npuscope.collector.readers.train_log.event_files import event_files
    from npuscope.errors import TraceNotFound

    path = asked.source.path
    if (path.is_file() and path.suffix != ".duckdb") or event_files(path):
        return _of_log(path)
    with asked.tables(need_steps=False) as (data, scope):
        log = trainer_log(data.con, data.target, None, scope)
        if log is None:
            raise TraceNotFound(
                f"{path}: no trainer's log was read with it: give the log itself, or read it with"
                " --train-log"
            )
        return health(log.rows, log.facts)


def _of_log(path: Path) -> Health:
    from npuscope.analysis.health.health import health
    from npuscope.collector.readers.train_log.train_log import read_lines

    return health(*read_lines(path))
