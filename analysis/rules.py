"""Which rules an answer follows: all that its modules and queries reach, found and not listed.

    module --imports--> modules --names--> sql/x.sql, x.json --views they read--> sql/y.sql

What is kept of an answer carries their version, so that it is stale as soon as one of them changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module, resources
from typing import TYPE_CHECKING

import npuscope
from npuscope.collector import schema

from .catalog import sql_metrics

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

PACKAGE = "npuscope"
# What lists every metric, or only opens files, has no rules.
_LISTS = re.compile(r"npuscope\.analysis\.catalog")
_NO_RULES = re.compile(r"npuscope\.(analysis\.(rules|summaries)|collector\.store|errors)(\..*)?")
_ROOMS = ("analysis", "collector")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([^\n]+))", re.M
)
_COMMENT = re.compile(r"(?<=[ \t])#[^\n]*$", re.M)
_REMARK = re.compile(r"^(?:[ \t]*--|#).*\n?", re.M)
_FILE = re.compile(r"""["'](\w+\.(?:sql|json))["']""")
_ASKED = re.compile(r"""\bmetric\(["'](\w+)["']\)""")
_WORD = re.compile(r"\w+")


def version(*starts: str, root: Traversable | None = None) -> str:
    """Short name of the rules that these modules (`npuscope.analysis.ranks.derive`) and queries
    (`steps.sql`) follow.

    `root` is the package's folder: by default this one's.
    """
    state = hashlib.sha256(schema.digest().encode())
    for name, text in sorted(sources(starts, root or resources.files(PACKAGE)).items()):
        state.update(f"{name}\0{text}\0".encode())
    return state.hexdigest()[:12]


@cache
def version_of_all() -> str:
    """Short name of all rules of this room and of the collector, and of the engines."""
    state = hashlib.sha256(f"{npuscope.__version__}\0{schema.digest()}\0".encode())
    for engine in ("duckdb", "polars"):
        state.update(f"{import_module(engine).__version__}\0".encode())
    root = resources.files(PACKAGE)
    for place in _files(root, ("analysis", "collector", "messages.py")):
        state.update(f"{place}\0".encode())
        state.update(root.joinpath(place).read_bytes())
    return state.hexdigest()[:12]


def _files(root: Traversable, places: Iterable[str]) -> Iterator[str]:
    """Modules, queries and their data below folders, in order."""
    for place in sorted(places):
        here = root.joinpath(place)
        if here.is_dir():
            inside = (f"{place}/{one.name}" for one in here.iterdir() if one.name[0] not in "._")
            yield from _files(root, inside)
        elif place.endswith((".py", ".sql", ".json")):
            yield place


def sources(starts: Iterable[str], root: Traversable) -> dict[str, str]:
    """Text of modules and queries, and of all files that they reach, by name."""
    waiting = [*starts]
    texts: dict[str, str] = {}
    files = {known: known.file.rpartition("/")[2] for known in sql_metrics()}
    views = {known.view: file for known, file in files.items()}
    names = {known.name: file for known, file in files.items()}
    while waiting:
        name = waiting.pop()
        if name in texts or _NO_RULES.fullmatch(name):
            continue
        found = _module(root, name) or _data(root, name)
        if found is None:
            continue
        texts[name] = found.read_text(encoding="utf-8")
        code = _COMMENT.sub("", texts[name])
        if not found.name.endswith(".json"):
            texts[name] = without_remarks(texts[name])
        if found.name.endswith(".py"):
            is_package = found.name == "__init__.py"
            waiting += _imported(code, name, is_package=is_package)
            if _LISTS.fullmatch(name):
                texts[name] = ""
                continue
            here = name if is_package else name.rpartition(".")[0]
            waiting += [f"{here}/{one}" for one in _FILE.findall(code)]
            waiting += [names[one] for one in _ASKED.findall(code) if one in names]
        if not found.name.endswith(".json"):
            waiting += [one for one in _FILE.findall(code) if one.endswith(".sql")]
            waiting += [views[word] for word in {*_WORD.findall(code)} & views.keys()]
    return texts


def without_remarks(text: str) -> str:
    """SQL, or a module, without its whole lines of comment, which change no answer."""
    return _REMARK.sub("", text)


def _module(root: Traversable, name: str) -> Traversable | None:
    _, *parts = name.split(".")
    if not parts or parts[0] not in _ROOMS or "/" in name:
        return None
    folder = root.joinpath(*parts[:-1])
    file = folder.joinpath(f"{parts[-1]}.py")
    inside = folder.joinpath(parts[-1], "__init__.py")
    return next((one for one in (file, inside) if one.is_file()), None)


def _data(root: Traversable, name: str) -> Traversable | None:
    """A query by its name, or a file beside a module."""
    package, _, beside = name.rpartition("/")
    if not beside.endswith((".sql", ".json")):
        return None
    folders: Iterable[Traversable] = [root.joinpath(*package.split(".")[1:])]
    if not package:
        folders = root.joinpath("analysis", "sql").iterdir()
    files = (folder.joinpath(beside) for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _imported(code: str, name: str, *, is_package: bool) -> Iterator[str]:
    """Names of modules that a module imports, and of what it takes from packages."""
    here = name.split(".") if is_package else name.split(".")[:-1]
    yield name.rpartition(".")[0]  # the package on the way runs too
    for origin, taken, plain in _IMPORT.findall(code):
        if plain:
            yield from (one.split()[0] for one in plain.split(","))
            continue
        dots = len(origin) - len(origin.lstrip("."))
        base = ".".join([*here[: len(here) - dots + 1], origin[dots:]]) if dots else origin
        base = base.rstrip(".")
        yield base
        yield from (f"{base}.{one}" for one in _WORD.findall(taken))
