"""What a rank's rules keep of its trainer's log. Who asks a manifest loads no frames for it."""

from __future__ import annotations

from dataclasses import dataclass

from .log_lines import Scope

# In a rank's rules: the log's path, and before each of its facts.
RULE = "train_log"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log says of the whole run; None where it does not, or where it changes.

    `sequence_length` in tokens, `global_batch_size` in sequences, `tokens_per_step` of the whole
    job: their product, or as far as `consumed tokens` grow in a step. `tokens_per_s_of`: whether
    `tokens_per_s` is the whole job's or one device's, where the format tells.
    """

    global_batch_size: int | None = None
    sequence_length: int | None = None
    world_size: int | None = None
    tokens_per_step: int | None = None
    tokens_per_s_of: Scope | None = None
