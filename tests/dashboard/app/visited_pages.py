"""Pages run as Streamlit runs them, without a browser."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from npuscope.dashboard.app.served_stores import Place, ServedStores, environment_of
from tests.conftest import REPOSITORY

# What is installed stays as it is; each visit would look through all of it, for 0.2 CPU-s.
manifest_scanner.scan_component_manifests = functools.cache(
    manifest_scanner.scan_component_manifests
)


def visit(
    monkeypatch: pytest.MonkeyPatch,
    *stores: Path,
    page: str = "",
    starts_in: str = "en",
    **params: object,
) -> AppTest:
    """A first visit with these URL parameters: of a page without errors, or of the overview."""
    places = [Place(str(store), f"store{number}") for number, store in enumerate(stores)]
    for name, value in environment_of(ServedStores(places, starts_in)).items():
        monkeypatch.setenv(name, value)
    main = REPOSITORY / "dashboard" / "app" / "pages" / "main.py"
    visited = AppTest.from_file(main, default_timeout=120)
    for name, asked in params.items():
        visited.query_params[name] = str(asked)
    visited.run()
    if page:
        visited.switch_page(f"{page}.py").run()
        assert not visited.exception and not visited.error, (visited.exception, visited.error)
    return visited


def figures(visited: AppTest) -> list[dict[str, Any]]:
    """The figures of a page as plotly's JSON."""
    return [json.loads(one.proto.spec) for one in visited.get("plotly_chart")]
