"""A person finds what is wrong with a job from pages alone, with at most one click."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from npuscope.dashboard.answers import overview_answers
from npuscope.dashboard.app.page import PAGES
from tests.conftest import REPOSITORY
from tests.dashboard.app.pages.planted_jobs import PLANTED, Planted, publish
from tests.dashboard.app.visited_pages import visit

DOC = REPOSITORY / "docs" / "twelve-jobs.md"
_NEAR = 0.01  # of a figure: of a random draw from its law, or after another version's rounding
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the overview's first card says, the page a person goes to from it, and what that says
    first."""

    card: str
    page: str
    verdict: str


def blocks(node: Any) -> Iterator[Any]:
    """Everything on a page, from the top."""
    yield node
    for child in getattr(node, "children", {}).values():
        yield from blocks(child)


def block(visited: AppTest, key: str) -> Any:
    """The first part of a page with a key."""
    return next(
        one
        for one in blocks(visited.main)
        if str(getattr(getattr(one, "proto", None), "id", "")).endswith(f"-{key}")
    )


def texts_of(node: Any) -> list[str]:
    """Sentences of a part of a page, as they are read."""
    texts = [one.value for one in blocks(node) if one.type in ("markdown", "caption")]
    return [re.sub(r"\\(.)", r"\1", one) for one in texts]


def walk(monkeypatch: pytest.MonkeyPatch, store: Path, planted: Planted) -> Seen:
    """The overview, then the first link of its first card; of two captures the page Compare."""
    visited = visit(monkeypatch, store)
    assert not visited.exception and not visited.error, (visited.exception, visited.error)
    card = block(visited, "finding_0")
    statement = next(one for one in texts_of(card) if one.endswith(".") and "**" not in one)
    page = "compare"
    if not planted.before:
        link = next(one.proto for one in blocks(card) if one.type == "page_link")
        page = link.page
        for name, value in parse_qsl(link.query_string):
            visited.query_params[name] = value
    visited.switch_page(f"{page}.py").run()
    assert not visited.exception and not visited.error, (visited.exception, visited.error)
    said = texts_of(block(visited, "verdict"))
    if planted.before:  # what comes below the verdict
        every = texts_of(visited.main)
        said += every[every.index(said[0]) + 1 :][:1]
    return Seen(statement, page, "; ".join(said))


def alike(one: str, other: str) -> bool:
    """The same words, with nearly the same figures."""
    ours, theirs = ([float(part) for part in _NUMBER.findall(text)] for text in (one, other))
    return _NUMBER.sub("", one) == _NUMBER.sub("", other) and ours == pytest.approx(
        theirs, rel=_NEAR, abs=0.002
    )


def row(planted: Planted, seen: Seen) -> str:
    """The job's row of the docs."""
    page = PAGES[seen.page]
    clicks = "none" if planted.is_first else f"{page} in the menu" if planted.before else page
    said = seen.card if planted.is_first else seen.verdict
    return f"| {planted.planted} | {clicks} | {said} | {page} |"


def rows_of_docs() -> list[str]:
    return [line for line in DOC.read_text().splitlines() if line.startswith("|")][2:]


def assert_row_of_docs(number: int, made: str) -> None:
    """The docs show the row; UPDATE_TWELVE_JOBS=1 writes it."""
    shown = rows_of_docs()[number]
    if os.environ.get("UPDATE_TWELVE_JOBS"):
        DOC.write_text(DOC.read_text().replace(shown, made))
    else:
        assert alike(shown, made), f"{shown}\n{made}"


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.name)
def test_pages_name_what_was_planted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, planted: Planted
) -> None:
    seen = walk(monkeypatch, publish(tmp_path / "store", planted), planted)
    assert seen.page == planted.page
    for said in (seen.card, seen.verdict) if planted.is_first else (seen.verdict,):
        named = re.search(planted.names, said)
        assert named, said
        assert len(named.groups()) == len(planted.truth)
        assert all(map(alike, named.groups(), planted.truth)), (named.groups(), planted.truth)
    assert_row_of_docs(PLANTED.index(planted), row(planted, seen))


def test_the_docs_tell_of_each_job() -> None:
    cells = [line.strip("| ").split(" | ") for line in rows_of_docs()]
    assert len(PLANTED) == 12
    assert [(one[0], one[3]) for one in cells] == [
        (one.planted, PAGES[one.page]) for one in PLANTED
    ]
    assert [one[1] == "none" for one in cells] == [one.is_first for one in PLANTED]


def test_a_finding_of_the_host_leads_to_its_page() -> None:
    """Calls that keep it from launching, waits for the device, and threads on far cores."""
    found = ("host_calls", "synchronisation", "far_cores", "device_idle", "between_steps")
    assert {overview_answers._PAGES[one] for one in found} == {"host"}
