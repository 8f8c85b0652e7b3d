"""The commands' help: in groups, each with a page that tells more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from npuscope.analysis.catalog import metrics
from npuscope.cli import GROUPS, _with_asked_only, app
from tests.conftest import REPOSITORY

COMMANDS = sorted(get_group(app).commands)


def help_of(*command: str) -> str:
    return CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "100"}).stdout


def test_commands_are_grouped() -> None:
    told = help_of()
    sections = re.findall(r"^(\w[\w ]*):\n((?:  .*\n?)+)", told, re.M)
    listed = {name: re.findall(r"^  ([a-z-]+)  ", body, re.M) for name, body in sections}
    del listed["Options"]
    assert list(listed) == ["Start here", "Explain", "Plan", "Over time", "Store", "Serve"]
    assert listed["Start here"][:4] == ["report", "findings", "doctor", "dashboard"]
    assert sorted(name for names in listed.values() for name in names) == COMMANDS
    assert "..." not in told.partition("Start here:")[2].replace("...]", "")


def test_keys_of_by_are_those_of_the_catalog() -> None:
    """What a command takes, what its help names and which metrics say that it shows them."""
    listed: dict[str, set[str]] = {}
    for asked in (one for known in metrics() for one in known.commands):
        command, _, key = asked.partition(" --by ")
        assert command.split()[0] in COMMANDS
        if key:
            listed.setdefault(command, set()).add(key)
    assert listed.keys() == {
        "compare",
        "kernels",
        "comm",
        "host",
        "memory",
        "mfu",
        "experts",
        "operators",
    }
    every = get_group(app).commands
    for name, verb in every.items():
        found = getattr(verb, "commands", {}).get("show", verb)
        by = next((one for one in found.params if one.name == "by"), None)
        keys = {*by.help.partition(" ")[0].split("|")} if by else None  # as its type lists them
        assert keys == listed.get(name)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_names_its_page(command: str) -> None:
    (page,) = re.findall(r"^ *More: (docs/[a-z-]+\.md)$", help_of(command), re.M)
    assert (REPOSITORY / page).is_file()


def test_pages_of_commands_to_come_exist() -> None:
    pages = {page for group in GROUPS.values() for page in group.values()}
    assert [page for page in pages if not Path(REPOSITORY, "docs", f"{page}.md").is_file()] == []


def test_a_start_builds_only_the_command_that_is_asked_for() -> None:
    for pages in GROUPS.values():
        for name in pages:
            assert [*get_group(_with_asked_only(name)).commands] == [name]
    assert _with_asked_only("stpes") is _with_asked_only("--version") is app
