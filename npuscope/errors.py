"""What can go wrong, as the caller sees it.

    NpuscopeError
    ├── TraceNotFound      nothing to read where the caller pointed
    ├── TraceFormatError   a file is there but cannot be read as what it claims to be
    ├── StoreError         a store is missing, foreign, or of another layout
    ├── CannotAnswer       what was recorded does not tell
    └── UsageError         arguments that contradict each other or name nothing

A message says what, where, and what to do next. Libraries raise; only `npuscope.cli` prints.
"""

import resource


class NpuscopeError(Exception):
    """Base of every error npuscope raises on purpose."""

    @property
    def message(self) -> str:
        """What is said: a text, or a `Message`, which `str` would make a text of."""
        text: str = self.args[0]
        return text


class TraceNotFound(NpuscopeError):
    """No profile where one was expected."""


class TraceFormatError(NpuscopeError):
    """A file that cannot be read: `path`, `where` in it, and what was found (`got`)."""

    def __init__(self, path: object, where: str, got: str) -> None:
        super().__init__(f"{path}: {where}: {got}")
        self.path, self.where, self.got = str(path), where, got

    def __reduce__(self) -> tuple[type["TraceFormatError"], tuple[str, str, str]]:
        return TraceFormatError, (self.path, self.where, self.got)


class StoreError(NpuscopeError):
    """A store that cannot be opened or written."""


class CannotAnswer(NpuscopeError):
    """A question that what was recorded does not answer: which, why, and what to record."""


class UsageError(NpuscopeError):
    """Arguments that contradict each other or name nothing that exists."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no memory for more.

    A library for whose parts `ulimit -v` leaves no room passes over them, and asks for them later.
    """
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        return True
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    is_installed = not isinstance(error, ModuleNotFoundError)
    return is_limited and is_installed and isinstance(error, (ImportError, NameError))
