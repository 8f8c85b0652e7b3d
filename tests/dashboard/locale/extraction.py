"""What there is to translate, and catalogs brought up to date or checked: `make messages`.

Sentences are the literals of `Message(...)` and of whatever pages and reports say at once; a
template may come by a name that the same function sets. Words of metrics' columns and other words
in tables stay in a catalog as long as some text of the code, or some column, is that word.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract_from_file
from babel.messages.pofile import read_po, write_po

from npuscope.analysis.catalog import metrics
from npuscope.dashboard.locale import language

ROOT = Path(__file__).parents[3]
ROOMS = ("npuscope", "collector", "analysis", "dashboard")
# What is called with a text to be said; of `page`, whatever draws words.
SAYING: dict[str, tuple[int, ...]] = {
    "Message": (0,), "warn": (0,), "lose": (0, 1), "state": (2, 5, 6), "_of_types": (3, 4, 5),
    "Limit": (2, 3), "of_many": (0, 1), "refusal": (0,),
}  # fmt: skip
# The same where Chinese is shown: by position.
SHOWN: dict[str, tuple[int, ...]] = {
    "say": (0,),
    "laid_out": (2,), "Column": (0,), "FittedTable": (2, 3), "Sentence": (0, 1), "Bullets": (0,),
}  # fmt: skip
OUTLETS = ("app", "figures", "report")
PAGE = {"title", "heading", "text", "empty", "link", "tile", "verdict", "parts"}
_NAME = re.compile(r"\{\w+\}")
_WORD = re.compile(r"[a-z]\w+")
_ENDINGS = ("", "_ns", "_bytes", "_ratio", "_bytes_per_s", "_flops_per_s", "_flops", "_count")
_OPTION = re.compile(r"^\w+=\S+$")  # of a program
_LETTERS = re.compile("[a-z]{2}")


def sources() -> list[Path]:
    """Python files of the rooms, each once: rooms are links below npuscope."""
    return sorted(
        path
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if not (room == "npuscope" and path.relative_to(ROOT / room).parts[0] in ROOMS)
    )


def sentences(tree: ast.AST, saying: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Texts that a module says: the arguments at these places of the functions named."""
    scopes = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.Module))]
    for scope in scopes:
        names = set()
        for node in ast.walk(scope):
            if isinstance(node, ast.Call) and (texts := _texts(node, saying)):
                for text in texts:
                    yield from _literals(text)
                    names |= {one.id for one in ast.walk(text) if isinstance(one, ast.Name)}
        if isinstance(scope, ast.FunctionDef):
            yield from _set_to(scope, names)


def _texts(call: ast.Call, saying: dict[str, tuple[int, ...]]) -> list[ast.expr]:
    """Arguments of a call that are said."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(call.func, ast.Attribute) and isinstance(of, ast.Name) and of.id == "page":
        titles = [one.value for one in call.keywords if one.arg == "title"]
        return list(call.args) if call.func.attr in PAGE else titles
    return [call.args[place] for place in saying.get(name, ()) if place < len(call.args)]


def _literals(node: ast.AST) -> Iterator[str]:
    """Texts that an expression may be: not the names by which others choose among them."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from _literals(node.body)
        yield from _literals(node.orelse)
    elif isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _literals(one)


def _set_to(scope: ast.FunctionDef, names: set[str]) -> Iterator[str]:
    """Templates that a function gives to names."""
    for node in ast.walk(scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(one, ast.Name) and one.id in names for one in targets):
                yield from (text for text in _literals(node.value) if _NAME.search(text))


class Words:
    """What tables may show: texts of the code, and names of columns as their headings."""

    def __init__(self) -> None:
        self.texts, self.names = {"English"}, set[str]()
        self.made: set[tuple[str, str]] = set()  # f"{...}_per_step_ns": what stands around

    def read(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self.texts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                ends = [getattr(node.values[place], "value", "") for place in (0, -1)]
                before, after = (end if isinstance(end, str) else "" for end in ends)
                if before or after:
                    self.made.add((before, after))

    def has(self, text: str) -> bool:
        """Whether a text of the code, or a column there may be, is shown so."""
        stem = text.removesuffix(" ms").removesuffix(" MiB").removesuffix(" MB").replace(" ", "_")
        columns = {text, *(f"{stem}{ending}" for ending in _ENDINGS)}
        if columns & (self.texts | self.names):
            return True
        return any(
            column.startswith(before) and column.endswith(after)
            and column[len(before) : len(column) - len(after)] in self.texts | self.names
            for column in columns for before, after in self.made
        )  # fmt: skip


@cache
def extract() -> tuple[set[str], Words]:
    """Texts that every catalog must have, and words that one may have."""
    needed: set[str] = set()
    words = Words()
    for path in sources():
        is_shown = path.parent.name in OUTLETS or path.parents[1].name in OUTLETS
        saying = SAYING | SHOWN if is_shown else SAYING
        tree = ast.parse(path.read_text(encoding="utf-8"))
        needed |= {
            text
            for text in sentences(tree, saying)
            if _LETTERS.search(_NAME.sub("", text)) and not _OPTION.search(text)
        }
        words.read(tree)
    for path in (ROOT / "dashboard/templates").glob("*.jinja"):
        found = extract_from_file("jinja2", path, keywords={"say": None})
        needed |= {text for _, text, *_ in found if isinstance(text, str)}
    for metric in metrics():
        words.names |= {column.name for column in metric.columns}
        needed |= {metric.meaning} if metric.figures else set()  # their help
        needed |= {column.meaning for column in metric.columns} if metric.tables else set()
    for path in (*(ROOT / "analysis").rglob("*.sql"), ROOT / "collector/schema.sql"):
        words.names |= set(_WORD.findall(path.read_text(encoding="utf-8")))
    return needed, words


def brought_up_to_date(path: Path, *, is_new: bool = False) -> Catalog:
    """A catalog with what is said now: stale texts are gone, new ones are empty."""
    with path.open("rb") as file:
        catalog = read_po(file)
    needed, words = extract()
    for message in list(catalog):
        if message.id and message.id not in needed and not words.has(str(message.id)):
            catalog.delete(message.id)
    for text in needed:
        if text not in catalog:
            catalog.add(text)
    for message in catalog:
        message.flags.discard("python-format")  # names in braces, and a % is a per cent
        if is_new:
            message.string = ""
    catalog.obsolete.clear()
    return catalog


def faults(path: Path) -> list[str]:
    """What is wrong with a catalog, a line each."""
    with path.open("rb") as file:
        catalog = read_po(file)
    needed, words = extract()
    texts = {str(message.id): message for message in catalog if message.id}
    found = [f"missing: {text}" for text in sorted(needed - texts.keys())]
    for text, message in texts.items():
        names = sorted(_NAME.findall(text)), sorted(_NAME.findall(str(message.string)))
        if text not in needed and not words.has(text):
            found.append(f"stale: {text}")
        if not message.string:
            found.append(f"not translated: {text}")
        elif message.fuzzy:
            found.append(f"fuzzy: {text}")
        elif names[0] != names[1]:
            found.append(f"other names: {text}")
    return found


def begin(code: str) -> None:
    """A catalog of another language, with all that is to be translated."""
    [source, *_] = language.catalogs().values()
    path = source.parents[2] / code / "LC_MESSAGES" / source.name
    path.parent.mkdir(parents=True)
    text = source.read_text(encoding="utf-8").replace(source.parents[1].name, code, 1)
    text = text[text.index("msgid") :]
    path.write_text(text, encoding="utf-8")
    write(path, brought_up_to_date(path, is_new=True))
    language.catalogs.cache_clear()


def write(path: Path, catalog: Catalog) -> None:
    """Replace a catalog by its entries in order, below the head that it has."""
    head, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
    with path.open("wb") as file:
        file.write(f"{head}\n\n".encode())
        write_po(file, catalog, width=100, sort_output=True, omit_header=True)


def main(arguments: list[str]) -> int:
    """Update each catalog; with `--check` only say what is wrong; `--new fr` begins one."""
    if "--new" in arguments:
        begin(arguments[-1])
        return 0
    found = []
    for path in language.catalogs().values():
        if "--check" in arguments:
            found += [f"{path.relative_to(ROOT)}: {fault}" for fault in faults(path)]
        else:
            write(path, brought_up_to_date(path))
    sys.stderr.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
