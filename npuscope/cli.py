"""The command line: subcommands as thin calls; the only place that prints and sets exit codes.

Exit codes: 0 ok; 1 a limit is broken (`gate`); 2 usage; 3 input missing or unreadable; 4 partly
ingested (what failed is listed, the rest is published). Tables and JSON go to stdout, progress and
messages to stderr.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from contextlib import suppress
from copy import copy
from io import StringIO, TextIOWrapper
from pathlib import Path
from traceback import format_exc
from types import MethodType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.models import CommandInfo

from npuscope import __version__
from npuscope.collector.ctrl_c import hear_ctrl_c
from npuscope.commands.explain import (
    comm,
    health,
    host,
    memory,
    mfu,
    model,
    operators,
    ranks,
    steps,
    trends,
    whatif,
)
from npuscope.commands.plan import experts, experts_plan, pipeline, predict, search
from npuscope.commands.serve import exporter, mcp, profile_config
from npuscope.commands.start import compare, dashboard, doctor, gate, report
from npuscope.commands.store import bundle, export, stores, watch
from npuscope.console import reader_may_leave, say
from npuscope.console.waiting import waiting
from npuscope.errors import NpuscopeError, UsageError, is_out_of_memory
from npuscope.import_path import current_folder_last

_PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,  # plain help: a third of the start-up time
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}
# Group -> command -> its page below docs/. In this order they are listed.
GROUPS = {
    "Start here": {
        "report": "tutorial",
        "findings": "findings",
        "doctor": "doctor",
        "dashboard": "dashboard",
        "compare": "compare",
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
        "operators": "operators",
        "host": "host",
        "replay": "whatif",
        "critical-path": "whatif",
        "whatif": "whatif",
    },
    "Plan": {
        "experts": "expert-load",
        "pipeline": "pipeline",
        "predict": "strategy",
        "search": "strategy",
        "memory-plan": "strategy",
    },
    "Over time": {
        "health": "health",
        "trends": "compare",
        "gate": "compare",
        "baseline": "compare",
    },
    "Store": {
        "ingest": "scale-out",
        "watch": "watch",
        "export": "how-it-works",
        "bundle": "bundle",
        "compact": "scale-out",
        "store": "how-it-works",
        "sql": "how-it-works",
        "sample": "tutorial",
    },
    "Serve": {"exporter": "monitoring", "mcp": "mcp", "profile-config": "training"},
}


class GroupedCommands(TyperGroup):
    """Lists its commands below the heading of their group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each group, each command with its whole first sentence."""
        for group, pages in GROUPS.items():
            commands = [(name, self.commands[name]) for name in pages if name in self.commands]
            with formatter.section(group):
                formatter.write_dl([(name, one.get_short_help_str(200)) for name, one in commands])


app = typer.Typer(name="npuscope", cls=GroupedCommands, pretty_exceptions_enable=False, **_PLAIN)
store_app = typer.Typer(help="Stores in the user cache.", **_PLAIN)
store_app.command("list")(stores.store_list)
store_app.command("rm")(stores.store_rm)
app.add_typer(store_app, name="store")


def _name_pages(app: typer.Typer) -> None:
    """Let the help of each command end with the page that tells more."""
    pages = {name: page for group in GROUPS.values() for name, page in group.items()}
    for command in app.registered_commands:
        name = _name(command)
        if name in pages:
            command.epilog = f"More: docs/{pages[name]}.md"
    for group in app.registered_groups:
        below = group.typer_instance
        for command in below.registered_commands if below else ():
            command.epilog = f"More: docs/{pages[str(group.name)]}.md"
        group.epilog = f"More: docs/{pages[str(group.name)]}.md"


def _with_asked_only(word: str) -> typer.Typer:
    """The app with no other command than the one that `word` names, where it names one: building
    all of them takes a third of a start."""
    commands = [one for one in app.registered_commands if _name(one) == word]
    groups = [one for one in app.registered_groups if one.name == word]
    if not (commands or groups):
        return app
    narrow = copy(app)
    narrow.registered_commands, narrow.registered_groups = commands, groups
    return narrow


def _name(command: CommandInfo) -> str:
    function = command.callback
    return command.name or (function.__name__.replace("_", "-") if function else "")


def _let_ctrl_c_raise() -> None:
    """Ctrl-C, which ended the process while modules were loaded, raises KeyboardInterrupt."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _open_streams() -> None:
    """What was closed before we started leads nowhere: Python has None in its place, and prints
    messages to stdout; and whatever file is opened next gets its number, with all that libraries
    print."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))
            os.set_inheritable(getattr(sys, name).fileno(), True)


def main() -> NoReturn:
    """Entry point of the `npuscope` command."""
    current_folder_last()
    _open_streams()
    # numpy's library for large matrices, which nobody here asks for any, would start a thread for
    # each CPU in this process and in all that it starts: as much work as all else of loading numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks; stderr does so itself
    code = 0
    _let_ctrl_c_raise()
    try:
        with hear_ctrl_c(), waiting("working"):
            code = _with_asked_only("".join(sys.argv[1:2]))(standalone_mode=False) or 0
    except KeyboardInterrupt:
        sys.exit(130)
    except NpuscopeError as error:
        say(f"npuscope: {error}")
        sys.exit(2 if isinstance(error, UsageError) else 3)
    except typer.Abort:
        say("aborted")
        code = 1
    except BrokenPipeError:
        with suppress(typer.Exit), reader_may_leave():
            raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        why = error.strerror or str(error)
        if not error.filename and isinstance(error, FileNotFoundError):  # as `os.getcwd` raises it
            why = "the current folder was removed: change to one that is there"
        say(f"npuscope: {where}{why}")
        sys.exit(3)
    except Exception as error:
        if isinstance(show := getattr(error, "show", None), MethodType):  # as typer tells of usage
            usage = StringIO()
            show(file=usage)
            say(usage.getvalue().rstrip())
            sys.exit(getattr(error, "exit_code", 2))
        if is_out_of_memory(error):
            reason = f" ({error})" if str(error) else ""
            say(f"npuscope: no more memory: see `ulimit -v` and the container's limit{reason}")
            sys.exit(3)
        if not type(error).__module__.startswith(("duckdb", "_duckdb")):
            say(format_exc().rstrip())  # a bug: its traceback is what we need
            sys.exit(1)
        say(f"npuscope: the query engine failed: {error}")
        if file := re.search(r"/[^'\"\n]*\.parquet", str(error)):
            from npuscope.collector.store.compact_files import torn_advice

            say(f"repeat the command; if that does not help: {torn_advice(file[0])}")
        sys.exit(3)
    sys.exit(code)


def _version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"npuscope {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Where each training step's time goes on Ascend NPUs, what it costs, what to change.

    \b
    Example:
      npuscope report PATH      PATH is the folder your training job's profiler wrote
    """


app.command()(report.report)
app.command()(report.findings)
app.command()(compare.compare)
app.command()(trends.trends)
app.command()(health.health)
app.command()(gate.gate)
baseline_app = typer.Typer(help="Runs to hold others against, as small files.", **_PLAIN)
baseline_app.command("save")(gate.save)
app.add_typer(baseline_app, name="baseline")

app.command()(steps.steps)
app.command()(steps.kernels)
app.command()(comm.comm)
app.command()(ranks.clocks)
app.command()(ranks.ranks)
operators_app = typer.Typer(
    cls=experts.ShownUnlessNamed,
    help="Operators with their headroom in ms; `learn`: a table of the best by chip and shape.",
    **_PLAIN,
)
operators_app.command("show")(operators.operators)
operators_app.command("learn")(operators.learn)
app.add_typer(operators_app, name="operators")
experts_app = typer.Typer(
    cls=experts.ShownUnlessNamed,
    help="Expert load and its cost; `plan` and `backtest`: the gain of moving experts.",
    **_PLAIN,
)
experts_app.command("show")(experts.experts)
experts_app.command("plan")(experts_plan.plan_command)
experts_app.command("backtest")(experts_plan.backtest_command)
app.add_typer(experts_app, name="experts")
app.command()(pipeline.pipeline)
app.command()(predict.predict)
app.command()(search.search)
app.command("memory-plan")(search.memory_plan)
app.command()(memory.memory)
app.command()(host.host)
app.command()(mfu.mfu)
app.command()(model.model)
app.command()(whatif.replay)
app.command()(whatif.critical_path)
app.command()(whatif.whatif)
app.command()(doctor.doctor)
app.command()(dashboard.dashboard)
app.command()(stores.ingest)
app.command()(export.export)
app.command()(bundle.bundle)
app.command()(exporter.exporter)
app.command()(mcp.mcp)
app.command()(stores.compact)
app.command()(watch.watch)
app.command()(profile_config.profile_config)


app.command()(export.sql)
app.command()(stores.sample)
_name_pages(app)
