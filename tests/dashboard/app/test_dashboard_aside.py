"""Answers that take long are computed beside the pages, which show them when they are there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

import streamlit as st

from npuscope.dashboard.app import aside, sources
from tests.dashboard.app.visited_pages import visit

WAITING = "Being computed"


@pytest.fixture
def own_cache() -> Iterator[None]:
    """What this test makes pages think of a store's size is not kept for others."""
    yield
    st.cache_data.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_findings_come_into_their_place(
    monkeypatch: pytest.MonkeyPatch, sample_store: Path
) -> None:
    visited = visit(monkeypatch, sample_store)
    cards = [one.value for one in visited.markdown]
    assert not [one for one in visited.info if WAITING in one.value]

    monkeypatch.setattr(aside, "MANY_OPERATIONS", 1)
    monkeypatch.setattr(aside, "HEAD_START_S", 0.5)
    st.cache_data.clear()  # how many operations there are is kept, too
    visited = visit(monkeypatch, sample_store)
    assert len([one for one in visited.info if WAITING in one.value]) == 1
    assert len(visited.markdown) < len(cards)
    until = time.monotonic() + 60
    while [one for one in visited.info if WAITING in one.value]:
        assert time.monotonic() < until
        time.sleep(0.2)
        visited.run()
    assert [one.value for one in visited.markdown] == cards
    assert not visited.exception


def test_what_was_asked_of_an_earlier_version_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "HEAD_START_S", 0.0)
    begun, goes_on = threading.Event(), threading.Event()
    computed: list[tuple[str, str, int]] = []

    def kept(path: str, version: str, fn: object, arguments: dict[str, int]) -> None:
        computed.append((path, version, arguments["step"]))
        begun.set()
        assert goes_on.wait(60)

    monkeypatch.setattr(sources, "answer_of", kept)

    def is_there(path: str, version: str, step: int) -> bool:
        return aside.is_computed(path, version, is_there, {"step": step})

    assert not is_there("a store", "old", 1)
    assert begun.wait(60)
    assert not is_there("a store", "old", 2)
    assert not is_there("another", "old", 3)
    assert not is_there("a store", "new", 2)
    assert is_there("a store", "old", 2), "its page starts anew"
    goes_on.set()
    until = time.monotonic() + 60
    while not is_there("a store", "new", 2):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert computed == [("a store", "old", 1), ("another", "old", 3), ("a store", "new", 2)]
