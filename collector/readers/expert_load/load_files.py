"""Files with expert loads by their names, and what a rank's rules keep of how they were counted.

Who looks for files, or asks a manifest, loads no frames for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HOOK = re.compile(r"rank_?(\d{1,6})(?:\.(\d{1,9}))?\.jsonl")
DUMP = re.compile(r"(prefill|decode)_(\d{1,4})\.csv")
CONFIG = "model_gen_config.json"
MAP = re.compile(r"(?:(prefill|decode)_global_deployment|expert_map.*)\.json")
# In a rank's rules: the folder, and before each of its facts.
RULE = "expert_load"


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """How loads were counted; None where the source does not say.

    `source`: `hook` (training, every rank counts what it routes to all experts) or `dump`
    (inference, every rank counts what its slots got). `ranks_count` that were read, of
    `ranks_expected`. `experts_count`: logical experts of a layer in the whole model; `slots_count`
    of each rank. `is_physical`: 1 where `expert` is a slot's number, not a logical expert's.
    `micro_batches` of a step.
    """

    source: Literal["hook", "dump"]
    ranks_count: int
    ranks_expected: int | None = None
    experts_count: int | None = None
    slots_count: int | None = None
    top_k: int | None = None
    is_physical: int = 0
    micro_batches: int | None = None


def is_load_file(name: str) -> bool:
    """Whether a file of this name counts tokens, or says where experts are."""
    return name == CONFIG or any(one.fullmatch(name) for one in (HOOK, DUMP, MAP))


def counts_tokens(name: str) -> bool:
    """Whether a file of this name counts tokens."""
    return any(one.fullmatch(name) for one in (HOOK, DUMP))


def part_of(path: str) -> tuple[int, int]:
    """Of a training hook's file: rank, and which of its files it is. -1 is the one without a
    number, which comes first.

    Raises ValueError for another name.
    """
    match = HOOK.fullmatch(Path(path).name)
    if not match:
        raise ValueError(path)
    return int(match[1]), int(match[2] or -1)
