"""`npuscope trends`: when a run became slower or faster."""

from __future__ import annotations

from npuscope.commands.command import Request, command


@command("run")
def trends(request: Request) -> None:
    """When did a run become slower or faster, and by how much? Over captures and trainer's log.

    \b
    Examples:
      npuscope trends ./store
      npuscope trends ./store --run pretrain --json
      npuscope ingest ./profiles --store ./store --train-log train.log; npuscope trends ./store
    """
    from npuscope.analysis.trends import change_notes
    from npuscope.analysis.trends import trends as over_time
    from npuscope.dashboard.terminal.trend_tables import changes_table

    with request.tables() as (data, scope):
        changes = over_time(data.con, scope)
        notes = change_notes(changes) + data.warnings
        request.answer("trend_changes", changes.changes, notes, changes_table)
