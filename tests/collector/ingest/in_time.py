"""Functions that must come to an end, whatever they are given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from npuscope.errors import NpuscopeError


def end(function: Callable[[], object], within_s: float = 5.0) -> Any:
    """What a function returned, or the error of ours it raised; it must not hang."""
    found: list[object] = []

    def call() -> None:
        try:
            found.append(function())
        except (NpuscopeError, OSError) as error:
            found.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(within_s)
    assert not thread.is_alive(), "it hangs"
    [one] = found
    return one
