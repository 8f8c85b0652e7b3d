"""Long work of the engine, while whoever waits for it hears Ctrl-C.

In the main thread the engine makes errors of its own of it, in the middle of whatever it does, or
does not hear it at all. A rank would be called damaged, and be published without the tables that
were being filled; a large query would go on. A thread is not disturbed, only told to stop.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")

# What does not stop, as when a file system holds it, is left behind.
_STOPS_WITHIN_S = 5.0
_LISTENS_EACH_S = 0.2


def run_interruptible(work: Callable[[], Result], stop: Callable[[], object]) -> Result:
    """What the work returns or raises, done by a thread. Ctrl-C calls `stop`, and raises
    KeyboardInterrupt when the work has ended."""
    from concurrent.futures import Future, wait  # not for every start of a command

    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    try:
        threading.Thread(target=run, daemon=True).start()
        # Ctrl-C may wake another thread than this one, which then looks for it by itself.
        while not wait([done], _LISTENS_EACH_S).done:
            pass
    except KeyboardInterrupt:
        for _ in range(round(_STOPS_WITHIN_S / _LISTENS_EACH_S)):
            stop()  # again: what had not begun did not hear it
            if wait([done], _LISTENS_EACH_S).done:
                break
        raise
    return done.result()


@contextlib.contextmanager
def hear_ctrl_c() -> Iterator[None]:
    """What Ctrl-C raises, a KeyboardInterrupt unless the caller says otherwise, leaves the body as
    such, and not as the error that an engine made of it."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    errors: list[BaseException] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except BaseException as raised:
            errors.append(raised)
            raise

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except Exception:
        if errors:
            raise errors[0] from None
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
