"""Where modules come from: never the folder that a command happens to be started in.

`python -m` puts that folder in front, an empty entry of PYTHONPATH does, too, and so does every
process that `multiprocessing` spawns. A checkout called npuscope or a polars.py in it would be
imported in place of what is installed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def current_folder_last() -> None:
    """Look into the current folder last, and after where npuscope itself lies; child processes,
    which have not got this far yet, do not look into it at all (Python 3.11 and later)."""
    os.environ["PYTHONSAFEPATH"] = "1"
    elsewhere = [entry for entry in sys.path if not _is_current(entry)]
    if len(elsewhere) < len(sys.path):
        home = str(Path(__file__).parents[1])
        sys.path[:] = [*elsewhere, *([] if home in elsewhere else [home]), str(Path.cwd())]


def _is_current(entry: str) -> bool:
    try:
        return Path(entry or ".").samefile(".")
    except OSError:
        return False
