"""Which steps of a run are profiled.

    every=200, active=2, warmup=1       ... 198  [199]  [200  201]  202 ...   [399]  [400  401]
                                              warm-up    recorded              again

Windows begin at multiples of `every`, so that all ranks and a run that starts again agree on them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Windows:
    """`active` steps from each multiple of `every`, with `warmup` steps before them."""

    every: int
    active: int
    warmup: int

    def __post_init__(self) -> None:
        for name, least in (("every", 1), ("active", 1), ("warmup", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: give an integer of at least {least}")
        if self.warmup + self.active > self.every:
            raise ValueError(
                f"warmup={self.warmup} and active={self.active} do not fit into every={self.every}"
            )

    def next_after(self, step: int) -> int:
        """First recorded step of the next window that can still be entered at the start of `step`.

        The job's very first step is not profiled: it compiles and allocates.
        """
        soonest = max(step + self.warmup, 1)
        return -(-soonest // self.every) * self.every
