"""What the site of the docs is gathered from: the navigation names pages, links lead on."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from tests.conftest import REPOSITORY


@pytest.fixture
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_source", REPOSITORY / "docs/site_source.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_names_pages_that_are_there(site: ModuleType, tmp_path: Path) -> None:
    site.gather(tmp_path / "site")
    pages = {str(one.relative_to(tmp_path / "site")) for one in (tmp_path / "site").rglob("*.md")}
    told = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())
    named = set(re.findall(r"[\w/-]+\.md", str(told["nav"])))
    assert {"index.md", "notebooks/find_the_slow_rank.md"} <= named <= pages
    assert {"index.zh.md", "tutorial.zh.md"} <= pages


def test_links_to_sources_and_from_folders(site: ModuleType, tmp_path: Path) -> None:
    site.gather(tmp_path / "site")
    decisions = (tmp_path / "site/decisions").glob("*.md")
    assert any("](../source/collector/readers/" in one.read_text() for one in decisions)
    for path in (tmp_path / "site").rglob("*.md"):
        for to in re.findall(r"(?<!!)\]\((?!\w+:|#)([^)#\s]+)", path.read_text()):
            assert (path.parent / to).exists(), (path, to)


def test_translated_pages_show_the_same_code() -> None:
    """But for comments, which are translated."""

    def blocks(path: Path) -> list[str]:
        found = re.findall(r"^```\w*\n(.*?)^```", path.read_text(), re.M | re.S)
        return [re.sub(r"\s*#.*", "", one) for one in found]

    pages = [one for one in (REPOSITORY / "docs").glob("*.zh-CN.md") if "tutorial" not in one.name]
    assert len(pages) >= 3
    for page in pages:
        assert blocks(page) == blocks(page.with_name(page.name.replace(".zh-CN", "")))


def test_a_link_to_nothing_is_an_error(
    site: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("README.md", "README.zh-CN.md", "docs/a.md", "docs/images/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[it](gone.md)")
    monkeypatch.setattr(site, "REPOSITORY", tmp_path)
    with pytest.raises(ValueError, match=r"docs/a.md: gone.md is not there"):
        site.gather(tmp_path / "site")
