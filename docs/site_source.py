"""Gathers what the site is built from: this folder, the READMEs as its first page, notebooks as
pages, and the source files that pages link to.

    docs/*.md, README*.md, docs/notebooks/*.ipynb --> build/site-source --> mkdocs --> build/site

In the repository links go from file to file; on the site a source file lies below `source/`, and a
page in another language is the language switch's business.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "build" / "site-source"
_LINK = re.compile(r"(?<!!)\[([^\]\[]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_LANGUAGES = {".zh-CN.md": ".zh.md"}  # as readers of the repository see it, and as the site does


def gather(target: Path = SOURCE) -> None:
    """Fill the folder anew. Raises ValueError for a link to what is not there."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    docs = REPOSITORY / "docs"
    for path in sorted(docs.rglob("*.md")):
        _page(path, path.read_text(encoding="utf-8"), path.relative_to(docs), target)
    for name, page in (("README.md", "index.md"), ("README.zh-CN.md", "index.zh-CN.md")):
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        _page(REPOSITORY / name, text.replace("(docs/images/", "(images/"), Path(page), target)
    for path in sorted(docs.rglob("*.ipynb")):
        page = path.relative_to(docs).with_suffix(".md")
        _page(path, _notebook(path), page, target)
    shutil.copytree(docs / "images", target / "images")


def _notebook(path: Path) -> str:
    """Cells as Markdown. Outputs are stripped in the repository; tests run them."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def _page(path: Path, text: str, page: Path, target: Path) -> None:
    """Write a page whose links lead where the site has what they mean."""
    up = "../" * (len(page.parts) - 1)

    def led(link: re.Match[str]) -> str:
        words, to, anchor = link[1], link[2], link[3] or ""
        meant = (path.parent / to).resolve()
        if not meant.exists() or not meant.is_relative_to(REPOSITORY):
            raise ValueError(f"{path.relative_to(REPOSITORY)}: {to} is not there")
        inside = meant.relative_to(REPOSITORY)
        if "zh-CN" in inside.name or (inside.name == "README.md" and inside.parent == Path()):
            return words
        if meant.is_dir():
            return f"{words} (`{inside}`)"
        if inside.parts[0] == "docs":
            shown = inside.relative_to("docs").with_suffix(
                ".md" if meant.suffix == ".ipynb" else meant.suffix
            )
            return f"[{words}]({up}{shown}{anchor})"
        kept = target / "source" / inside
        if kept.suffix in ("", ".md"):  # shown as it is: no page of the site
            kept = kept.with_suffix(".txt")
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(meant, kept)
        return f"[{words}]({up}{kept.relative_to(target)})"

    name = page.name
    for ours, theirs in _LANGUAGES.items():
        name = name.replace(ours, theirs)
    written = target / page.with_name(name)
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(_LINK.sub(led, text), encoding="utf-8")


if __name__ == "__main__":
    gather()
