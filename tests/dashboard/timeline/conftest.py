"""The sample, served, and its timeline in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # what is missing here is skipped by the files that need it
    from playwright.sync_api import Browser

    from tests.dashboard.timeline.seen_timeline import Timeline


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from tests.dashboard.app.served_pages import chromium

    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(sample_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.dashboard.app.started_server import serve

    with serve([sample_store], tmp_path_factory.mktemp("served")) as started:
        yield started


@pytest.fixture
def timeline(address: str, browser: Browser) -> Iterator[Timeline]:
    from tests.dashboard.app.served_pages import visit
    from tests.dashboard.timeline.seen_timeline import Timeline

    with visit(browser, address) as seen:
        seen.open("timeline")
        yield Timeline(seen)
        assert seen.complaints == []
