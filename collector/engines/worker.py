"""What processes that read do first."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def begin_worker() -> None:
    """Leave with the parent, and never import pandas."""
    _leave_with_parent()
    sys.meta_path.insert(0, _NoPandas())


def spare_pandas() -> None:
    """In a command's own process: let pyarrow find no pandas, unless that is there already.

    It looks once, when the first list becomes an array. Who asks it for a data frame later still
    gets one."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow

        pyarrow.array([])
    finally:
        sys.meta_path.remove(finder)


def _leave_with_parent() -> None:
    # A killed parent cannot stop its workers; one that waits for tasks would wait for ever.
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class _NoPandas(MetaPathFinder):
    """pyarrow imports pandas where that is installed: most of a second, and 50 MiB."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed to read profiles", name=name)
        return None
