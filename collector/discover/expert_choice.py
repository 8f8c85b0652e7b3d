"""Which of several folders with expert loads are a capture's: the nearest one, or parts of one job.

profiles/                                nearest: in whose parent all of its ranks lie, the
    tokens_per_expert/                   deepest
    host0/tokens_per_expert/rank0.jsonl  parts: of each host, or in each rank's profile, merged
    host1/tokens_per_expert/rank1.jsonl  where no rank is told twice, or alike
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..model import storable
from .expert_folders import OPTION, folder_files, joined_files, own_folder

_MOST = 3


def chosen_folders(
    path: Path, places: Sequence[str], roots: Mapping[str, Sequence[str]]
) -> tuple[dict[str, tuple[Path, ...]], dict[str, str]]:
    """The folders that count for each capture, and why there are none, or several, for it.

    `places` lie at or below the profiles' `path`, `roots` are the folders of each capture's ranks.
    Where there are several, it is that in whose parent all ranks of the capture lie, the deepest;
    else those inside its ranks' profiles; else those below the folder that holds all its ranks. Of
    several at one of these places all are read if they can be merged (`joined_files`), else none.
    """
    here = own_folder(path)
    folders = {folder.resolve(): folder for folder in map(Path, places) if folder_files(folder)}
    if here is not None:
        folders[here.resolve()] = here
    if len(folders) < 2:
        return {capture: (folder,) for capture in roots for folder in folders.values()}, {}
    folders_by_capture: dict[str, tuple[Path, ...]] = {}
    notes: dict[str, str] = {}
    is_only = len(roots) == 1
    for capture in roots:
        mine = [folders[real] for real in sorted(nearest_folders(capture, list(folders), roots))]
        if not mine:  # around no capture, such as beside links to the profiles
            mine = [here] if here is not None else list(folders.values()) if is_only else []
        if mine and joined_files(mine):
            folders_by_capture[capture] = tuple(mine)
            if len(mine) > 1:
                notes[capture] = (
                    f"{len(mine)} folders count tokens per expert, each for different ranks"
                    f" ({_names_of(mine)}): they are read as one; to use one, name it with {OPTION}"
                    " DIR"
                )
            continue
        notes[capture] = (
            f"{len(folders)} folders count tokens per expert"
            f" ({_names_of(sorted(folders.values()))}), none is nearest to the profiles, and they"
            f" do not hold one file of each rank: none is read, name one with {OPTION} DIR"
        )
    return folders_by_capture, notes


def nearest_folders(
    capture: str, reals: Sequence[Path], roots: Mapping[str, Sequence[str]]
) -> list[Path]:
    """Those that lie nearest around a capture's ranks, else in them, else beside them.

    `reals` are real paths, `roots` the folders of each capture's ranks.
    """
    places = roots[capture]
    around = [one for one in reals if all(Path(p).is_relative_to(one.parent) for p in places)]
    if around:
        depth = max(len(one.parts) for one in around)
        return [one for one in around if len(one.parts) == depth]
    within = [one for one in reals if any(one.is_relative_to(place) for place in places)]
    if within:
        return within
    others = [p for name, those in roots.items() if name != capture for p in those]
    common = os.path.commonpath([Path(place).parent for place in places])
    return [
        one
        for one in reals
        if one.is_relative_to(common) and not any(one.is_relative_to(p) for p in others)
    ]


def _names_of(folders: Sequence[Path]) -> str:
    names = ", ".join(storable(str(folder)) for folder in folders[:_MOST])
    return names + ", ..." * (len(folders) > _MOST)
