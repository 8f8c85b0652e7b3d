"""Basic authentication of a WSGI application, by a file of users and hashed passwords.

    alice:scrypt$16384$8$1$<salt>$<hash>      salt and hash in base64

`npuscope exporter --hash-password alice` writes such a line. Lines that are empty or begin with #
are passed over.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npuscope.collector.small_files import read_small
from npuscope.errors import UsageError

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_N, _R, _P = 1 << 14, 8, 1
_MOST_BYTES = 1 << 26
_REFUSED = b"401: user and password, please\n"


@dataclass(frozen=True, slots=True)
class Hashed:
    """A password as scrypt leaves it, and with which parameters."""

    n: int
    r: int
    p: int
    salt: bytes
    digest: bytes

    def is_of(self, password: str) -> bool:
        """Whether it is this password's."""
        found = _scrypt(password, self.n, self.r, self.p, self.salt)
        return hmac.compare_digest(found, self.digest)


def hashed_line(user: str, password: str) -> str:
    """A line for the file. Raises UsageError for a name that no header can carry."""
    if not user or ":" in user or not user.isprintable() or user[0] in "# " or user[-1] == " ":
        raise UsageError(
            f"user {user!r}: a user name must not contain a colon or look like a comment"
        )
    if not password:
        raise UsageError("an empty password protects nothing")
    salt = secrets.token_bytes(16)
    digest = _scrypt(password, _N, _R, _P, salt)
    coded = "$".join(base64.b64encode(part).decode() for part in (salt, digest))
    return f"{user}:scrypt${_N}${_R}${_P}${coded}"


def read_passwords(path: Path) -> dict[str, Hashed]:
    """Users of a file. Raises UsageError that names the line, never what stands in it."""
    try:
        lines = read_small(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--basic-auth-file {path}: cannot be read: {error}") from None
    found: dict[str, Hashed] = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            user, _, rest = line.strip().partition(":")
            found[user] = _parsed(rest, f"--basic-auth-file {path}, line {number}")
    if not found:
        raise UsageError(
            f"--basic-auth-file {path}: contains no user: add lines of `npuscope exporter"
            " --hash-password USER`"
        )
    return found


def is_readable_by_others(path: Path) -> bool:
    """Whether any user of the machine may read the file."""
    return bool(path.stat().st_mode & 0o004)


def protected(application: Application, users: Mapping[str, Hashed]) -> Application:
    """The application for these users only; others get 401.

    A header that was right once is remembered by its keyed digest, for hashing a password takes
    long by design and scrapes come every few seconds.
    """
    key = os.urandom(32)
    accepted: set[bytes] = set()
    one_at_a_time = threading.Lock()
    nobody = _nobody()

    def is_known(header: str) -> bool:
        told = hmac.digest(key, header.encode("utf-8", "replace"), "sha256")
        if any(hmac.compare_digest(told, one) for one in accepted):
            return True
        user, password = _credentials(header)
        with one_at_a_time:
            # Of an unknown user too a password is hashed: time must not tell who exists.
            is_right = users.get(user, nobody).is_of(password) and user in users
        if is_right:
            accepted.add(told)
        return is_right

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if is_known(environ.get("HTTP_AUTHORIZATION", "")):
            return application(environ, start_response)
        headers = [
            ("WWW-Authenticate", 'Basic realm="npuscope", charset="UTF-8"'),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(_REFUSED))),
        ]
        start_response("401 Unauthorized", headers)
        return [_REFUSED]

    return answered


def _nobody() -> Hashed:
    # A password that is nobody's.
    return Hashed(_N, _R, _P, os.urandom(16), os.urandom(32))


def _credentials(header: str) -> tuple[str, str]:
    kind, _, coded = header.partition(" ")
    if kind.lower() != "basic" or len(coded) > 4096:
        return "", ""
    try:
        user, _, password = base64.b64decode(coded, validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return user, password


def _parsed(text: str, place: str) -> Hashed:
    parts = text.split("$")
    try:
        name, n, r, p, salt, digest = parts
        found = Hashed(
            int(n), int(r), int(p), base64.b64decode(salt, validate=True),
            base64.b64decode(digest, validate=True),
        )  # fmt: skip
        if name != "scrypt" or not found.salt or len(found.digest) != 32:
            raise ValueError
        _scrypt("", found.n, found.r, found.p, found.salt)
    except (ValueError, MemoryError, OverflowError):
        raise UsageError(f"{place}: no line of `npuscope exporter --hash-password USER`") from None
    return found


def _scrypt(password: str, n: int, r: int, p: int, salt: bytes) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8"), salt=salt, n=n, r=r, p=p, maxmem=_MOST_BYTES, dklen=32
    )
