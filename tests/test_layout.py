"""The shape of the repository and of what a release ships."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import tarfile
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("collector", "analysis", "dashboard", "sample_traces")
MAX_MODULE_LINES = 500
MAX_FOLDER_MODULES = 18
VAGUE_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
SKIPPED_FOLDERS = {"build", "dist", "__pycache__"}


def repository_files() -> list[Path]:
    """Files of the project: what git tracks or would add; every visible file without git."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        paths = [REPOSITORY / name for name in listed.split("\0") if name]
    else:
        paths = [
            path
            for path in REPOSITORY.rglob("*")
            if not any(
                part in SKIPPED_FOLDERS or part.startswith(".venv") or part.endswith(".egg-info")
                for part in path.relative_to(REPOSITORY).parts
            )
        ]
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


def _git(*arguments: str) -> str | None:
    """Output of git in the repository; None where there is no git or no repository."""
    if not (REPOSITORY / ".git").exists():
        return None
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        return None


def python_modules() -> list[Path]:
    return [path for path in repository_files() if path.suffix == ".py"]


def room_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).parts[0]


def shipped_files() -> set[str]:
    """What the wheel must hold: code and data of every room, not the sample's captures."""
    shipped = set()
    for path in repository_files():
        relative = path.relative_to(REPOSITORY)
        room = relative.parts[0]
        if path.suffix == ".md" or room not in (*ROOMS, "npuscope"):
            continue
        if room == "sample_traces" and path.suffix != ".py":
            continue
        inside = relative.as_posix()
        shipped.add(inside if room == "npuscope" else f"npuscope/{inside}")
    return shipped


def wheel_contents(wheel: Path) -> dict[str, str]:
    """Name -> digest of every file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in names}


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_linked_into_the_package(room: str) -> None:
    link = REPOSITORY / "npuscope" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room
    assert (link / "__init__.py").is_file()


def test_git_stores_the_links_as_links() -> None:
    listed = _git("ls-files", "--stage", "npuscope")
    if listed is None:
        pytest.skip("not a git checkout")
    modes = {line.split("\t")[1]: line.split()[0] for line in listed.splitlines()}
    links = {name.removeprefix("npuscope/") for name, mode in modes.items() if mode == "120000"}
    assert links == set(ROOMS)


@pytest.mark.slow
def test_the_wheel_holds_every_room_and_nothing_else(distribution: dict[str, Path]) -> None:
    names = {name for name in wheel_contents(distribution["wheel"]) if ".dist-info/" not in name}
    expected = shipped_files()
    assert names == expected
    assert "npuscope/py.typed" in names
    assert "npuscope/collector/schema.sql" in names
    for room in ROOMS:
        assert f"npuscope/{room}/__init__.py" in names


@pytest.mark.slow
def test_the_wheel_carries_licence_and_command(distribution: dict[str, Path]) -> None:
    with zipfile.ZipFile(distribution["wheel"]) as archive:
        texts = {
            PurePosixPath(name).name: archive.read(name).decode()
            for name in archive.namelist()
            if ".dist-info/" in name
        }
    assert texts["LICENSE"] == (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in texts["LICENSE"]
    assert "npuscope = npuscope.__main__:main" in texts["entry_points.txt"]
    assert "License-Expression: Apache-2.0" in texts["METADATA"]


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel(distribution: dict[str, Path]) -> None:
    through_sdist = wheel_contents(distribution["wheel"])
    direct = wheel_contents(distribution["direct"])
    assert through_sdist == direct


@pytest.mark.slow
def test_the_sdist_holds_files_not_links(distribution: dict[str, Path]) -> None:
    with tarfile.open(distribution["sdist"]) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    assert not [name for name, member in members.items() if member.issym() or member.islnk()]
    assert shipped_files() | {"pyproject.toml", "LICENSE", "README.md"} <= members.keys()


def test_modules_stay_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_modules()}
    long = {
        str(path.relative_to(REPOSITORY)): lines
        for path, lines in lengths.items()
        if lines > MAX_MODULE_LINES
    }
    assert long == {}


def test_folders_hold_few_modules() -> None:
    counts = Counter(path.parent.relative_to(REPOSITORY) for path in python_modules())
    assert {str(place): n for place, n in counts.items() if n > MAX_FOLDER_MODULES} == {}


def test_rooms_import_their_own_modules_relatively() -> None:
    absolute = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in python_modules()
        # Streamlit runs pages as scripts, which are in no package.
        if room_of(path) in ROOMS and "pages" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[:2] == ["npuscope", room_of(path)]
    ]
    assert absolute == []


def test_the_engine_is_opened_in_one_place() -> None:
    """Which keeps it from drawing into what commands print."""
    openers = [
        path.relative_to(REPOSITORY).as_posix()
        for path in python_modules()
        if room_of(path) in (*ROOMS, "npuscope") and "duckdb.connect(" in path.read_text()
    ]
    assert openers == ["collector/quiet_duckdb.py"]


def test_no_module_has_a_vague_name() -> None:
    vague = [
        str(path.relative_to(REPOSITORY))
        for path in python_modules()
        if VAGUE_NAMES & set(path.stem.lower().split("_"))
        or VAGUE_NAMES & {part.lower() for part in path.relative_to(REPOSITORY).parts[:-1]}
    ]
    assert vague == []


@pytest.mark.slow
def test_what_comments_name_is_there() -> None:
    """Where they send their reader: see `this`, `module.that`, those.py."""
    paths = [path for path in repository_files() if room_of(path) in (*ROOMS, "npuscope")]
    modules = {part for path in paths for part in (path.stem, path.parent.name)}
    known, texts = set(modules), {}
    for path in paths:
        if path.suffix == ".sql":
            texts[path] = path.read_text()
            known |= set(re.findall(r"\w+", re.sub("--.*", "", texts[path])))
        elif path.suffix == ".py":
            texts[path] = path.read_text()
            for node in ast.walk(ast.parse(texts[path])):
                given = [getattr(node, name, None) for name in ("id", "attr", "arg", "name")]
                known |= {one for one in given if isinstance(one, str)}
                if isinstance(node, ast.Constant) and str(node.value).isidentifier():
                    known.add(str(node.value))
    names = re.compile(rf"see `(?:\w+\.)?(\w+)`|`(?:{'|'.join(sorted(modules))})\.(\w+)`")
    files = {path.name for path in paths}
    lost = [
        f"{path.relative_to(REPOSITORY)}: {found[0]}"
        for path, text in texts.items()
        for found in [*names.finditer(text), *re.finditer(r"--.*?(\w+\.py)\b", text)]
        if {*filter(None, found.groups())}.isdisjoint(known | files)
    ]
    assert lost == []


def test_public_functions_and_classes_say_what_they_do() -> None:
    silent = []
    for path in python_modules():
        if room_of(path) not in (*ROOMS, "npuscope"):
            continue
        module = ast.parse(path.read_text())
        public = [
            node
            for node in module.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
        ]
        where = path.relative_to(REPOSITORY)
        silent += [f"{where}: {node.name}" for node in public if not ast.get_docstring(node)]
        if not ast.get_docstring(module):
            silent.append(f"{where}: the module")
    assert not silent, "no docstring:\n" + "\n".join(silent)


def test_no_file_names_a_place_on_one_machine() -> None:
    places = rb"(?<![\w.>])/(?:" + b"|".join([b"work", b"tmp", b"root", b"farm"]) + rb")/[\w.]"
    pattern = re.compile(places)
    found = {}
    for path in repository_files():
        match = pattern.search(path.read_bytes())
        if match:
            found[str(path.relative_to(REPOSITORY))] = match.group()
    assert found == {}
