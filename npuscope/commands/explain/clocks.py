"""`npuscope clocks`: how far the hosts' clocks are apart."""

from __future__ import annotations

from npuscope.commands.inputs import answer, chosen_rows, leave, notes_of, source_of
from npuscope.commands.options import Capture, Folder, Jobs, Json, Memory, Profile, Run, Store


def clocks(
    path: Profile = None,
    folder: Folder = None,
    store: Store = None,
    run: Run = None,
    capture: Capture = None,
    json: Json = False,
    jobs: Jobs = None,
    memory: Memory = None,
) -> None:
    """Offset and drift of each host's clock, fitted over all collectives, with their errors.

    \b
    Examples:
      npuscope clocks ./profiles
      npuscope clocks ./store --json
    """
    from npuscope.analysis.ranks import answers
    from npuscope.dashboard.terminal.straggler_tables import clocks_table
    from npuscope.profile import compare_ranks, opened

    with opened(source_of(path, folder, store, run, jobs, memory)) as data:
        chosen = chosen_rows(data, run, capture, None, None)
        compare_ranks(data)
        found = answers.clocks(data.con, run=chosen["run"], capture=capture)
        notes = answers.clock_notes(found) + notes_of(data, chosen)
        answer("clocks", found, notes, json=json, table=clocks_table)
    leave(data)
