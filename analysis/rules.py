"""Which rules an answer follows: all that its modules and queries reach, found and not listed.

    module --imports--> modules --names--> sql/x.sql, x.json --views they read--> sql/y.sql

What is kept of an answer carries their version, so that it is stale as soon as one of them changes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from string import punctuation

import npuscope
from npuscope.collector import schema

from .catalog import sql_metrics

PACKAGE = Path(npuscope.__file__).parent
# What lists every metric, or only opens files, has no rules.
_LISTS = re.compile(r"npuscope\.analysis\.catalog")
_NO_RULES = re.compile(r"npuscope\.(analysis\.(rules|summaries)|collector\.store|errors)(\..*)?")
_ROOMS = ("analysis", "collector")
_QUERIES = "analysis/sql/"
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))", re.M
)
_COMMENT = re.compile(r"[ \t]#[^\n]*")
_REMARK = re.compile(r"^(?:[ \t]*--|#).*\n?", re.M)
_FILE = re.compile(r"""["'](\w+\.(?:sql|json))["']""")
_METRIC_CALL = re.compile(r"""metric\(["'](\w+)["']\)""")
_WORD = re.compile(r"\w+")
# Words of a whole file are split at these: to find them takes twice as long.
_BETWEEN_WORDS = str.maketrans({mark: " " for mark in punctuation if mark != "_"})


def version(*starts: str, root: Path = PACKAGE) -> str:
    """Short name of the rules that these modules (`npuscope.analysis.ranks.derive`) and queries
    (`steps.sql`) follow.

    `root` is the package's folder: by default this one's.
    """
    state = hashlib.sha256(schema.digest().encode())
    for name, text in sorted(sources(starts, root).items()):
        state.update(f"{name}\0{text}\0".encode())
    return state.hexdigest()[:12]


@cache
def version_of_all() -> str:
    """Short name of all rules of this room and of the collector, and of the engines."""
    state = hashlib.sha256(f"{npuscope.__version__}\0{schema.digest()}\0".encode())
    for engine in ("duckdb", "polars"):
        state.update(f"{import_module(engine).__version__}\0".encode())
    for place in sorted({*_places(PACKAGE).values(), "messages.py"}):
        state.update(f"{place}\0".encode())
        state.update((PACKAGE / place).read_bytes())
    return state.hexdigest()[:12]


@cache
def _places(root: Path) -> Mapping[str, str]:
    """Where modules, queries and their data lie, by that place, and queries by their name, too,
    which is unique. Listed once: a version asks for hundreds of names."""
    places = [place for room in _ROOMS for place in _files(root, room)]
    queries = {place.rpartition("/")[2]: place for place in places if place.startswith(_QUERIES)}
    return {**{place: place for place in places}, **queries}


def _files(root: Path, folder: str) -> Iterator[str]:
    with os.scandir(root / folder) as entries:
        for one in entries:
            place = f"{folder}/{one.name}"
            if one.name.startswith("."):  # an editor's
                continue
            if one.is_dir():
                yield from _files(root, place)
            elif place.endswith((".py", ".sql", ".json")):
                yield place


def sources(starts: Iterable[str], root: Path = PACKAGE) -> dict[str, str]:
    """Text of modules and queries, and of all files that they reach, by name."""
    waiting = [*starts]
    texts: dict[str, str] = {}
    views = {metric.view: metric.file.rpartition("/")[2] for metric in sql_metrics()}
    names = {metric.name: metric.file.rpartition("/")[2] for metric in sql_metrics()}
    while waiting:
        name = waiting.pop()
        if name in texts or _NO_RULES.fullmatch(name):
            continue
        place = _place(root, name)
        if place is None:
            continue
        texts[name] = (root / place).read_text(encoding="utf-8")
        code = _COMMENT.sub("", texts[name])
        if not place.endswith(".json"):
            texts[name] = without_remarks(texts[name])
        if place.endswith(".py"):
            is_package = place.endswith("/__init__.py")
            waiting += _imports_of(code, name, is_package=is_package)
            if _LISTS.fullmatch(name):
                texts[name] = ""
                continue
            here = name if is_package else name.rpartition(".")[0]
            waiting += [f"{here}/{one}" for one in _FILE.findall(code)]
            waiting += [names[one] for one in _METRIC_CALL.findall(code) if one in names]
        if not place.endswith(".json"):
            waiting += [one for one in _FILE.findall(code) if one.endswith(".sql")]
            words = {*code.translate(_BETWEEN_WORDS).split()}
            waiting += [views[word] for word in words & views.keys()]
    return texts


def without_remarks(text: str) -> str:
    """SQL, or a module, without its whole lines of comment, which change no answer."""
    return _REMARK.sub("", text)


def _place(root: Path, name: str) -> str | None:
    """The file of a module, of a query by its name, or of data beside a module."""
    package, _, beside = name.rpartition("/")
    if beside.endswith((".sql", ".json")):
        return _places(root).get("/".join([*package.split(".")[1:], beside]))
    path = "/".join(name.split(".")[1:])
    either = (f"{path}.py", f"{path}/__init__.py")
    return next((one for one in either if one in _places(root)), None)


def _imports_of(code: str, name: str, *, is_package: bool) -> Iterator[str]:
    """Names of modules that a module imports, and of what it takes from packages."""
    here = name.split(".") if is_package else name.split(".")[:-1]
    yield name.rpartition(".")[0]  # the package on the way runs too
    for origin, names, plain in _IMPORT.findall(code):
        if plain:
            yield from (one.split()[0] for one in plain.split(","))
            continue
        dots = len(origin) - len(origin.lstrip("."))
        base = ".".join([*here[: len(here) - dots + 1], origin[dots:]]) if dots else origin
        base = base.rstrip(".")
        yield base
        yield from (f"{base}.{one}" for one in _WORD.findall(names))
