"""Sentences with commands in them, and with names that would be more than text."""

from __future__ import annotations

import pytest

from npuscope.dashboard.app.plain_text import plain, sentence


def test_a_command_is_code_and_all_else_is_text() -> None:
    told = "Run `npuscope search MODEL --only gbs=512` and *not* [this](x)"
    assert sentence(told) == (r"Run `npuscope search MODEL --only gbs=512` and \*not\* \[this\](x)")
    assert sentence("`a_b` and `c`, 5 < 6") == r"`a_b` and `c`, 5 \< 6"


@pytest.mark.parametrize("name", ["a`b", "`", "` <img src=x onerror=alert(1)>", "a`b`c`d", "*x*"])
def test_a_name_with_a_mark_of_its_own_stays_text(name: str) -> None:
    assert sentence(name) == plain(name)


def test_code_ends_with_its_line() -> None:
    assert sentence("`a\n<b>`") == "\\`a\n\\<b\\>\\`"
    assert sentence("``") == r"\`\`"
