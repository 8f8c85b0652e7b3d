"""Commands in `npuscope --help` by what they are for, and the page that tells more of each."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

# Group -> command -> its page below docs/. In this order they are listed.
GROUPS = {
    "Start here": {
        "report": "tutorial",
        "findings": "findings",
        "doctor": "doctor",
        "dashboard": "dashboard",
        "compare": "findings",
    },
    "Explain": {
        "steps": "steps-and-the-profiler",
        "kernels": "kernel-flops",
        "comm": "communication",
        "ranks": "communication",
        "clocks": "communication",
        "mfu": "mfu",
        "model": "mfu",
        "memory": "metrics",
    },
    "Plan": {"experts": "expert-load"},
    "Store": {
        "ingest": "scale-out",
        "watch": "watch",
        "export": "how-it-works",
        "compact": "scale-out",
        "store": "how-it-works",
        "sql": "how-it-works",
        "sample": "tutorial",
    },
    "Serve": {"exporter": "monitoring", "profile-config": "training"},
}


class Grouped(TyperGroup):
    """Lists its commands below the heading of their group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each group, each command with its whole first sentence."""
        for group, pages in GROUPS.items():
            commands = [(name, self.commands[name]) for name in pages if name in self.commands]
            with formatter.section(group):
                formatter.write_dl([(name, one.get_short_help_str(200)) for name, one in commands])


def name_pages(app: typer.Typer) -> None:
    """Let the help of each command end with the page that tells more."""
    pages = {name: page for group in GROUPS.values() for name, page in group.items()}
    for command in app.registered_commands:
        function = command.callback
        name = command.name or (function.__name__.replace("_", "-") if function else "")
        if name in pages:
            command.epilog = f"More: docs/{pages[name]}.md"
    for group in app.registered_groups:
        below = group.typer_instance
        for command in below.registered_commands if below else ():
            command.epilog = f"More: docs/{pages[str(group.name)]}.md"
        group.epilog = f"More: docs/{pages[str(group.name)]}.md"
