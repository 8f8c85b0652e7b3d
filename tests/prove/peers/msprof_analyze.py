"""msprof-analyze in an environment of its own, and its recipes run on a capture.

It wants pandas, networkx and more in versions of its choosing: beside the project's own packages
they would decide what these may be.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import venv
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

_BUILD = REPOSITORY / "build" / "peers"
_PYPROJECT = REPOSITORY / "pyproject.toml"

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """The installed peer, or why it could not be installed."""

    command: Path
    why_not: str = ""


def install() -> Peer:
    """The packages of the dependency group `peers` in an environment that is made where there is
    none of them yet; one process at a time."""
    [wanted] = re.findall(r"^peers = (.*)$", _PYPROJECT.read_text(encoding="utf-8"), re.M)
    told = f"{sys.version_info[:2]} {wanted}"
    home, ready = _BUILD / "venv", _BUILD / "ready"
    peer = Peer(home / "bin" / "msprof-analyze")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ready.exists() and ready.read_text() == told and peer.command.exists():
            return peer
        ready.unlink(missing_ok=True)
        venv.create(home, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
        group = ["install", "--quiet", "--no-compile", "--group", f"{_PYPROJECT}:peers"]
        done = subprocess.run([*pip, *group], capture_output=True, text=True, timeout=900)
        if done.returncode:
            shutil.rmtree(home)
            return Peer(peer.command, done.stderr.strip()[-300:] or "pip says nothing")
        ready.write_text(told)
    return peer


def run_recipe(peer: Peer, recipe: str, capture: Path, out: Path) -> Path:
    """The database that `msprof-analyze cluster -m <recipe>` makes of a folder of ranks."""
    target = out / recipe
    command = [str(peer.command), "cluster", "-m", recipe, "-d", str(capture), "-o", str(target)]
    done = subprocess.run(
        [*command, "--export_type", "db", "--force"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    made = target / "cluster_analysis_output" / "cluster_analysis.db"
    assert made.exists(), f"{recipe}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return made


def rows(database: Path, sql: str) -> list[Row]:
    """Rows of a database that a recipe made."""
    with closing(sqlite3.connect(database)) as con:
        return con.execute(sql).fetchall()
