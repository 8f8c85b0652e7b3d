"""`npuscope clocks`: how far the hosts' clocks are apart."""

from __future__ import annotations

from npuscope.commands.command import Asked, command, notes_of


@command("run", "capture")
def clocks(asked: Asked) -> None:
    """Offset and drift of each host's clock, fitted over all collectives, with their errors.

    \b
    Examples:
      npuscope clocks ./profiles
      npuscope clocks ./store --json
    """
    from npuscope.analysis.ranks import answers
    from npuscope.dashboard.terminal.straggler_tables import clocks_table
    from npuscope.profile import compare_ranks

    with asked.tables() as (data, scope):
        compare_ranks(data)
        found = answers.clocks(data.con, scope)
        notes = answers.clock_notes(found) + notes_of(data, scope)
        asked.answer("clocks", found, notes, clocks_table)
