"""Folders of a store by their handles: whatever a store from somebody else holds, and whatever is
put in a folder's place while we look, no link in it leads us out of it.

    <store>/run=R/capture=C/rank=12/<generation>
    ^ the user's own way there,  ^ each name is opened below the handle of the one before
      links and all                and has to be a folder

What is being written lies in a staging folder beside, named after the process that writes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from npuscope.errors import StoreError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# What file systems answer that cannot sync a folder: then they need not, or nobody can.
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EACCES})
# Nothing of ours lies deeper below a staging folder.
_DEEPEST = 16
GRACE_S = 86_400
_STAGING = re.compile(r"\.tmp-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{12}(\..*)?")
# Linux gives the process numbers of a host outside of containers this name.
_HOST_NUMBERS = "4026531836"
# What to do about a cache that cannot be written.
ELSEWHERE = "set XDG_CACHE_HOME to a folder where you may write"


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/npuscope`, else `~/.cache/npuscope`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache", "npuscope")


def home_folder() -> Path:
    """The user's; `/` where nobody knows one, as of a container's user that is but a number."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


@contextlib.contextmanager
def handle(path: Path, *, make: bool = False) -> Iterator[int]:
    """A handle of a store's folder, or of the store's own; `make` makes what is missing of it.

    Raises OSError where a name from `run=` on is no folder but, for instance, a link to one.
    """
    parts = path.parts
    begins = [
        place
        for place, name in enumerate(parts)
        if name.startswith("run=") and "".join(parts[place + 1 : place + 2])[:8] in ("", "capture=")
    ]
    begin = begins[-1] if begins else len(parts)
    with _close_after(os.open(Path(*parts[:begin]), _FOLDER)) as at:
        yield from _walk(at, parts[begin:], make, Path(*parts[:begin]))


@contextlib.contextmanager
def below(at: int, *names: str) -> Iterator[int]:
    """A handle of a folder below another's. Raises OSError where a name is no folder."""
    yield from _walk(at, names, make=False, place=Path())


def _walk(at: int, names: Sequence[str], make: bool, place: Path) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        for nth, name in enumerate(names):
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=at)
                inner = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
            except OSError as error:
                # The system was told the name alone, and who reads the error needs all of it.
                error.filename = str(Path(place, *names[: nth + 1]))
                raise
            at = stack.enter_context(_close_after(inner))
        yield at


@contextlib.contextmanager
def _close_after(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> None:
    """Make a folder that this user alone may enter, also where it is there already.

    Raises OSError where it is somebody else's, or a link.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    with _close_after(os.open(folder, _FOLDER | os.O_NOFOLLOW)) as at:
        state = os.fstat(at)
        if state.st_uid != os.geteuid():
            raise PermissionError(errno.EACCES, "it is somebody else's", str(folder))
        if state.st_mode & 0o077:
            os.fchmod(at, 0o700)


def children(folder: Path, prefix: str) -> list[Path]:
    """A store's folders in one of its folders, by name; none where that cannot be listed."""
    return [folder / name for name in child_names(folder, prefix)]


def child_names(folder: Path, prefix: str) -> list[str]:
    """The same, their names alone: of a thousand ranks, paths take longer than a look at each."""
    try:
        with handle(folder) as at, os.scandir(at) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
            )
    except OSError:
        return []


def captures(store: Path) -> list[Path]:
    """The folders of all captures of a store."""
    return [capture for run in children(store, "run=") for capture in children(run, "capture=")]


def require_regular(folder: Path, files: Iterable[str]) -> None:
    """Raises StoreError where a file below a store's folder is none, or is reached through a link.

    What is not there is passed over: who reads it looks again.
    """
    names_by_folder: dict[str, set[str]] = defaultdict(set)
    for file in files:
        parent, _, name = file.rpartition("/")
        names_by_folder[parent].add(name)
    with contextlib.suppress(FileNotFoundError), handle(folder) as at:
        for parent, names in names_by_folder.items():
            for name in _no_files(at, parent, names):
                raise StoreError(
                    f"{folder / parent / name}: not a regular file or folder, maybe a link: links"
                    " in a store are not followed; remove it and ingest the profile again"
                )


def _no_files(at: int, parent: str, names: Collection[str]) -> list[str]:
    """Names in a folder below a handle that are no files; '' where that is no folder itself."""
    try:
        with below(at, *parent.split("/")) as inner, os.scandir(inner) as entries:
            return [
                e.name for e in entries if e.name in names and not e.is_file(follow_symlinks=False)
            ]
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        return [""]


def write_whole(path: Path, content: bytes, temporary: str) -> None:
    """Write a file so that it appears whole or not at all, and survives a power cut; meanwhile its
    name begins with `temporary`."""
    temporary = f"{temporary}.{path.name}"
    with handle(path.parent) as at:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=at), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path.name, src_dir_fd=at, dst_dir_fd=at)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=at)
            raise
        sync(at)


def sync(folder: int) -> None:
    """Make names in a folder survive a power cut, where its file system can."""
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def touch(path: Path) -> None:
    """Readers of the moment may still need it: its grace period counts from now."""
    with contextlib.suppress(OSError), handle(path.parent) as at:
        os.utime(path.name, dir_fd=at, follow_symlinks=False)


def changed_s(at: int, name: str) -> float:
    """Newest change of a folder's files, or of the file, in s since 1970. Raises OSError."""
    state = os.stat(name, dir_fd=at, follow_symlinks=False)
    newest = state.st_mtime
    if stat.S_ISDIR(state.st_mode):
        with below(at, name) as inner, os.scandir(inner) as entries:
            for entry in entries:
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def unlink(path: Path) -> None:
    """Remove a file of a store, where it is there. Raises OSError."""
    with contextlib.suppress(FileNotFoundError), handle(path.parent) as at:
        os.unlink(path.name, dir_fd=at)


def discard(folder: Path) -> None:
    """Delete a folder that nobody knows of, as far as that can be done."""
    with contextlib.suppress(OSError), handle(folder.parent) as at:
        delete(at, folder.name)


def delete(at: int, name: str, deepest: int = _DEEPEST) -> int:
    """Delete a file, a link, or a folder with all that is in it; returns bytes freed.

    Raises OSError where something cannot be deleted.
    """
    state = os.stat(name, dir_fd=at, follow_symlinks=False)
    if not stat.S_ISDIR(state.st_mode):
        os.unlink(name, dir_fd=at)
        return state.st_size if stat.S_ISREG(state.st_mode) else 0
    if not deepest:
        raise OSError(errno.ENAMETOOLONG, "folders in folders", name)
    with below(at, name) as inner:
        freed = sum(delete(inner, child, deepest - 1) for child in os.listdir(inner))
    os.rmdir(name, dir_fd=at)
    return freed


def staging_name() -> str:
    """A folder name that tells whose it is, so that only the dead's are swept."""
    return f".tmp-{process_space()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"


def process_space() -> str:
    """Where this process's number means something: its host, and its container if it is in one.

    Containers may share their host's name, but not its process numbers.
    """
    host = re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname())
    try:
        numbers = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return host
    return host if numbers in ("", _HOST_NUMBERS) else f"{host}_{numbers}"


def make_staging(folder: Path) -> Path:
    """A folder for what is being written, in a store's folder, which is made where it is missing.

    Nobody else may look into it, but for who may change it.
    """
    name = staging_name()
    with handle(folder, make=True) as at:
        os.mkdir(name, 0o700, dir_fd=at)
    return folder / name


def sweep_staging(folder: Path) -> int:
    """Delete what processes that are gone were about to write into a folder; bytes freed."""
    freed = 0
    with contextlib.suppress(OSError), handle(folder) as at:
        for name in sorted(os.listdir(at)):
            staging = _STAGING.fullmatch(name)
            with contextlib.suppress(OSError):  # another process sweeps, too
                if staging and _is_dead(staging, at, name):
                    freed += delete(at, name)
    return freed


def _is_dead(staging: re.Match[str], at: int, name: str) -> bool:
    if staging["host"] == process_space() and not is_running(int(staging["pid"])):
        return True
    return time.time() - changed_s(at, name) > GRACE_S


def is_running(pid: int) -> bool:
    """Whether a process of this machine still works; unknown counts as yes."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return True
    # Ended, but nobody took note of it: in containers the first process often does not.
    return stat.rpartition(b")")[2].split()[:1] not in ([b"Z"], [b"X"])
