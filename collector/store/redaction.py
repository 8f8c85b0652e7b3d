"""Names that tell whose job it was, replaced by pseudonyms: hosts, paths, users, groups, addresses.

A pseudonym is the same for the same name in all that one user redacts: a keyed hash, whose key
stays in the user's cache, so that nobody else can try names against it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import duckdb

from npuscope.errors import StoreError

from ..groups import parallel_kind
from ..quiet_duckdb import open_duckdb
from .folder_handles import ELSEWHERE, make_private
from .manifest import write_atomically
from .store import READINGS

KEY_FILE = "npuscope-redaction-key"
# Communicators that frameworks name alike everywhere.
_COMMON_GROUPS = frozenset({"hccl_world_group", "default_group"})
_PATH = re.compile(r"""(?<![\w.\-/])(?:/[^\s/:;,"'`()\[\]{}<>|=]+){2,}/?""")
_HOME = re.compile(r"/(?:home|Users|data/home|mnt/home)/([^\s/:;,\"']+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_LIBRARY = re.compile(r"/(?:site-packages|dist-packages|python3\.\d+)/")
_NUMBER = re.compile(r"[-+0-9.,eE]*")
# Columns of versions look like addresses, those of the capture like nobody's name.
_KEPT_COLUMNS = frozenset({"capture", "framework_version", "cann_version", "chip_name"})
_USERS = ("USER", "LOGNAME", "USERNAME", "HOME", "SUDO_USER")
_PLAIN = frozenset({"true", "false", "none", "null", "on", "off", ""})
_LEAST_OF_A_NAME = 3


def redact(database: Path, key: bytes) -> int:
    """Replace names in every text of every table of a DuckDB file; returns how many texts changed.

    Names are the hosts, host ids, groups and runs of its tables, the users of paths and
    environments, whatever looks like an absolute path or an address, and values of the environment
    and the model's configuration that are no numbers.
    """
    with open_duckdb(str(database)) as con:
        return _redact(con, key)


def _redact(con: duckdb.DuckDBPyConnection, key: bytes) -> int:
    with suppress(duckdb.CatalogException):  # an older file has none
        con.execute(f"update {READINGS} set warnings = '[]'")  # they name files of the profile
    columns = _text_columns(con)
    texts: dict[str, set[str]] = {}
    for table, column in columns:
        rows = con.execute(f'select distinct "{column}" from "{table}" where "{column}" <> \'\'')
        texts.setdefault(column, set()).update(text for (text,) in rows.fetchall())
    replaced = _pseudonyms(texts, key)
    con.execute("create temp table _said (of varchar, old varchar, new varchar)")
    rows_of = [
        (column, text, redacted)
        for column, replacements in texts.items()
        if column not in _KEPT_COLUMNS
        for text in sorted(replacements)
        if (redacted := replaced(column, text)) != text
    ]
    if rows_of:
        con.executemany("insert into _said values (?, ?, ?)", rows_of)
    changed = {column for column, _, _ in rows_of}
    for table, column in columns:
        if column in changed:
            con.execute(
                f'update "{table}" as t set "{column}" = s.new from _said s'
                f' where s.of = ? and t."{column}" = s.old',
                [column],
            )
    con.execute("drop table _said")
    return len(rows_of)


def own_key(folder: Path) -> bytes:
    """The key of this user's pseudonyms, made when it is first needed. Raises StoreError."""
    file = folder / KEY_FILE
    try:
        key = bytes.fromhex(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        key = b""
    if len(key) >= 16:
        return key
    key_bytes = secrets.token_bytes(32)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private(folder)
        write_atomically(file, key_bytes.hex().encode())
    except OSError as error:
        reason = (
            f"{file}: the key of your pseudonyms cannot be kept here ({error.strerror or error})"
        )
        raise StoreError(f"{reason}: {ELSEWHERE}") from error
    return key_bytes


def _text_columns(con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    return con.execute(
        "select table_name, column_name from duckdb_columns()"
        " where data_type = 'VARCHAR' and schema_name = 'main' and not internal order by all"
    ).fetchall()


def _pseudonyms(texts: Mapping[str, Iterable[str]], key: bytes) -> Callable[[str, str], str]:
    """What a text of a column says instead."""

    def pseudonym(what: str, name: str) -> str:
        return f"{what}-{hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:8]}"

    names: dict[str, str] = {}
    for column, what in (("host_name", "host"), ("host_uid", "uid"), ("run", "run")):
        names |= {name: pseudonym(what, name) for name in texts.get(column, ())}
    for name in (*texts.get("group_name", ()), *texts.get("group_hash", ())):
        if name not in _COMMON_GROUPS and not name.isdecimal():
            kind = parallel_kind(name)  # what the name says of it stays
            names[name] = pseudonym("group" if kind == "unknown" else kind, name)
    for user in _users(texts):
        names.setdefault(user, pseudonym("user", user))
    longest_first = sorted(
        (name for name in names if len(name) >= _LEAST_OF_A_NAME), key=len, reverse=True
    )
    anywhere = re.compile(
        r"(?<![A-Za-z0-9])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![A-Za-z0-9])"
        if longest_first
        else r"(?!)"
    )

    def path(match: re.Match[str]) -> str:
        whole = match[0]
        folder, _, last = whole.rstrip("/").rpartition("/")
        if not _LIBRARY.search(whole):
            dot = last.rfind(".")
            last = pseudonym("file", last) + (last[dot:] if dot > 0 else "")
        return f"/{pseudonym('path', folder)}/{last}"

    def plain(text: str) -> str:
        text = _PATH.sub(path, text)
        text = anywhere.sub(lambda one: names[one[0]], text)
        return _ADDRESS.sub(lambda one: pseudonym("address", one[0]), text)

    def settings(text: str) -> str:
        try:
            settings_here = json.loads(text)
        except ValueError:
            return plain(text)

        def redact(value: object) -> object:
            if isinstance(value, dict):
                return {name: redact(one) for name, one in value.items()}
            if isinstance(value, list):
                return [redact(one) for one in value]
            if not isinstance(value, str):
                return value
            is_plain = value.lower() in _PLAIN or _NUMBER.fullmatch(value)
            return value if is_plain else pseudonym("value", value)

        return json.dumps(redact(settings_here), ensure_ascii=False)

    def replaced(column: str, text: str) -> str:
        if column in ("host_name", "host_uid", "group_name", "group_hash", "run"):
            return names.get(text, text)
        if column in ("environment", "model_config"):
            return settings(text)
        return plain(text)

    return replaced


def _users(texts: Mapping[str, Iterable[str]]) -> set[str]:
    users = {user for column in texts.values() for text in column for user in _HOME.findall(text)}
    for text in texts.get("environment", ()):
        try:
            content = json.loads(text)
        except ValueError:
            continue
        if isinstance(content, dict):
            values = (str(content[name]) for name in _USERS if content.get(name))
            users |= {value.rstrip("/").rpartition("/")[2] for value in values}
    return users - {"", "root"}
