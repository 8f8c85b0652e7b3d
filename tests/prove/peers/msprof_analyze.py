"""msprof-analyze in an environment of its own, and what its command makes of captures.

It wants pandas, networkx and more in versions of its choosing: beside the project's own packages
they would decide what these may be.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

_BUILD = REPOSITORY / "build" / "peers"
_PYPROJECT = REPOSITORY / "pyproject.toml"

# The command for each call of a list; what it says goes into the file that is named beside its
# words. Importing itself takes it 1 s, and it would do so for each call and in two processes more.
_CALLS = """
import json, multiprocessing, os, sys, traceback
from msprof_analyze.cli.entrance import msprof_analyze_cli
for words, told in json.loads(sys.argv[1]):
    multiprocessing.set_start_method("fork", force=True)
    with open(told, "wb") as file:
        sys.stdout.flush()
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        msprof_analyze_cli(words, standalone_mode=False)
    except (Exception, SystemExit):
        traceback.print_exc()
"""

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """The installed peer, or why it could not be installed."""

    python: Path
    why_not: str = ""


def install() -> Peer:
    """The packages of the dependency group `peers` in an environment that is made where there is
    none of them yet; one process at a time."""
    [wanted] = re.findall(r"^peers = (.*)$", _PYPROJECT.read_text(encoding="utf-8"), re.M)
    told = f"{sys.version_info[:2]} {wanted}"
    home, ready = _BUILD / "venv", _BUILD / "ready"
    peer = Peer(home / "bin" / "python")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists() and ready.read_text() == told and peer.python.exists():
            return peer
        ready.unlink(missing_ok=True)
        venv.create(home, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(peer.python)]
        group = ["install", "--quiet", "--no-compile", "--group", f"{_PYPROJECT}:peers"]
        done = subprocess.run([*pip, *group], capture_output=True, text=True, timeout=900)
        if done.returncode:
            shutil.rmtree(home)
            return Peer(peer.python, done.stderr.strip()[-300:] or "pip says nothing")
        ready.write_text(told)
    return peer


def run_calls(peer: Peer, folder: Path, calls: Sequence[Sequence[str]]) -> list[str]:
    """What `msprof-analyze` says to the words of each call, one after the other in one process."""
    told = [folder / f"told-{number}.txt" for number in range(len(calls))]
    listed = json.dumps([(words, str(path)) for words, path in zip(calls, told, strict=True)])
    subprocess.run(
        [str(peer.python), "-c", _CALLS, listed], check=True, capture_output=True, timeout=600,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    return [path.read_text(encoding="utf-8", errors="replace") for path in told]


def run_recipes(
    peer: Peer, out: Path, wanted: Mapping[str, tuple[str, Path]]
) -> dict[str, Path | str]:
    """The database that `msprof-analyze cluster -m <recipe>` makes of each folder of ranks, below
    `out`, or what it says where it makes none."""
    out.mkdir()
    calls = [
        ["cluster", "-m", recipe, "-d", str(capture), "-o", str(out / name), "--export_type", "db",
         "--force"]
        for name, (recipe, capture) in wanted.items()
    ]  # fmt: skip
    made: dict[str, Path | str] = {}
    for name, told in zip(wanted, run_calls(peer, out, calls), strict=True):
        database = out / name / "cluster_analysis_output" / "cluster_analysis.db"
        made[name] = database if database.exists() else told
    return made


def rows(database: Path, sql: str) -> list[Row]:
    """Rows of a database that a recipe made."""
    with closing(sqlite3.connect(database)) as con:
        return con.execute(sql).fetchall()
