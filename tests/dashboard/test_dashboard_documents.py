"""The documents of the dashboard name every page, option and parameter of a URL that there is."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

pytest.importorskip("streamlit")

from npuscope.dashboard.app.page import PAGES
from npuscope.dashboard.app.state import BASE, View
from npuscope.dashboard.locale.language import language_of
from tests.conftest import REPOSITORY

LANGUAGES = {"en": "", "zh": ".zh-CN"}
ROW = re.compile(r"^\| ([^|]*(?:\\\|[^|]*)*) \|", re.M)  # the first cell, where \| is no border


@pytest.mark.parametrize("lang", LANGUAGES)
def test_tables_have_rows_of_all_pages_options_and_parameters(lang: str) -> None:
    say, ending = language_of(lang), LANGUAGES[lang]
    text = (REPOSITORY / f"docs/dashboard{ending}.md").read_text(encoding="utf-8")
    named = {name for cell in ROW.findall(text) for name in (cell, *re.findall(r"`(.*?)`", cell))}
    taken = {one.name for one in fields(View)} - {"base"} | {*BASE}
    assert taken <= named
    assert {say(title) for title in PAGES.values()} <= named
    source = (REPOSITORY / "npuscope/commands/start/dashboard.py").read_text(encoding="utf-8")
    options = set(re.findall(r'"(--[a-z-]+)"', source))
    assert options and options <= {one.split()[0] for one in named if one.startswith("--")}
    (row,) = (
        line
        for line in (REPOSITORY / f"README{ending}.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `npuscope dashboard")
    )
    words = {"Compare": "comparison", "What if": "what-ifs"} if lang == "en" else {}
    listed = row.casefold()
    left = [
        title for title in PAGES.values() if words.get(title, say(title)).casefold() not in listed
    ]
    assert not left
