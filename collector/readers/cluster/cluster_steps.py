"""The table of steps that msprof-analyze made of the same profiles, to compare ours with."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...discover.cluster_outputs import FOLDER, look_at
from .cluster_parts import steps_in


@dataclass(frozen=True, slots=True)
class ClusterSteps:
    """Rows of one folder of results: `rank` and the columns of `profiler_steps`. They are of the
    profiles below the folder that it lies in."""

    folder: str
    rows: tuple[dict[str, Any], ...]

    def is_about(self, root: str) -> bool:
        """Whether a profile in the folder `root` is one that they were made of."""
        return Path(root).is_relative_to(Path(self.folder).parent)


def results_near(path: Path, roots: Iterable[str]) -> list[ClusterSteps]:
    """Results below `path` that lie beside the profiles in `roots`, or above them."""
    top = (path if path.is_dir() else path.parent).resolve()
    above = {
        parent
        for root in roots
        for parent in Path(root).parents
        if parent == top or parent.is_relative_to(top)
    }
    results_here: list[ClusterSteps] = []
    for parent in sorted(above):
        files = look_at(parent / FOLDER).files if (parent / FOLDER).is_dir() else ()
        if files:
            with tempfile.TemporaryDirectory() as scratch:
                rows = steps_in(files, Path(scratch))
            if rows:
                results_here.append(ClusterSteps(str(parent / FOLDER), tuple(rows)))
    return results_here
