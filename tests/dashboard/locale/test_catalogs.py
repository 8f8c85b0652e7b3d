"""Catalogs: every sentence has its translation, and nothing from a file steers one."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("babel")

from npuscope.dashboard.locale import language
from npuscope.dashboard.locale.language import catalog, catalogs, language_of, languages
from npuscope.errors import UsageError
from npuscope.messages import Message
from tests.dashboard.locale.extraction import faults, main, sentences

CHINESE = catalogs()["zh"]


@pytest.mark.slow  # `make check` does the same
def test_catalogs_are_whole() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize(
    ("other", "english"),
    [
        ("(?<![同异])步(?!骤)", "step"), ("趟", "pass"), ("重放", "replay"),
        ("内存", r"\bmemory\b(?<!pinned memory)(?! swapping)"),
        ("任务", r"^(?!.*(\btask|\bwork\b|launched)).*\b(job|run)\b"),
        (r"内核|(?<![\w{])kernel(?!\w)", r"\bkernels?\b"),
        ("采集批次|(?<!最)慢 rank|落后|最满|暴露|形状|[\u4e00-\u9fff][,:;]", "."),
    ],
)  # fmt: skip
def test_chinese_has_one_word_for_one_thing(other: str, english: str) -> None:
    """The words are step, 前向/反向计算, 回放, 显存 (of a device), 作业 (a job), 运行 (a run),
    算子 (a kernel; 内核 is an operating system's), 采集, 慢卡, 负载最高, 未掩盖 and shape;
    and stops are Chinese, too."""
    texts = catalog(CHINESE)
    assert any(re.search(english, one) for one in texts)
    told = {one for one in texts if re.search(english, one) and re.search(other, texts[one])}
    assert not told


@pytest.mark.slow
@pytest.mark.parametrize(
    "old, new, fault",
    [
        ('msgid "step"\nmsgstr "step"', 'msgid "step"\nmsgstr ""', "not translated: step"),
        ('msgid "step"\n', '#, fuzzy\nmsgid "step"\n', "fuzzy: step"),
        ('msgid "rank {numbers}"\nmsgstr "rank {numbers}"\n\n', "", "missing: rank {numbers}"),
        ('msgstr "rank {numbers}"', 'msgstr "rank {number}"', "other names: rank {numbers}"),
        ('msgid "step"\n', 'msgid "no such word"\n', "stale: no such word"),
    ],
)
def test_what_is_wrong_with_a_catalog_is_named(
    old: str, new: str, fault: str, tmp_path: Path
) -> None:
    text = CHINESE.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "npuscope.po").write_text(text.replace(old, new, 1), encoding="utf-8")
    assert fault in faults(tmp_path / "npuscope.po")


def test_templates_are_found_wherever_a_message_is_made() -> None:
    code = """
def told(ranks, page):
    one = "{ranks}: one" if ranks else "{ranks}: none"
    for unit in ("not a template",):
        page.text("a text", Message(one, ranks=ranks))
    return [Message("a note" if ranks else "another"), say("a word")]
"""
    found = set(sentences(ast.parse(code), {"Message": (0,), "say": (0,)}))
    words = {"a text", "a note", "another", "a word"}
    assert found == words | {"{ranks}: one", "{ranks}: none"}


def test_a_language_is_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "fr/LC_MESSAGES"
    place.mkdir(parents=True)
    entries = {"English": "Fran\u00e7ais", "{ranks}: no {what}": "{ranks} : sans {what}"}
    texts = "\n\n".join(f'msgid "{one}"\nmsgstr "{other}"' for one, other in entries.items())
    (place / "npuscope.po").write_text(texts, encoding="utf-8")
    shutil.copy(Path(language.__file__), tmp_path / "language.py")
    monkeypatch.setattr(language, "__file__", str(tmp_path / "language.py"))
    for known in (catalogs, languages, language_of):
        known.cache_clear()
    try:
        assert languages() == {"en": "English", "fr": "Fran\u00e7ais"}
        note = Message("{ranks}: no {what}", ranks="rank 3", what=Message("{one} {other}"))
        assert language_of("fr")(note) == "rank 3 : sans {one} {other}"
        with pytest.raises(UsageError, match="choose one of en, fr"):
            language_of("zh")
    finally:
        monkeypatch.undo()
        for known in (catalogs, languages, language_of):
            known.cache_clear()


def test_an_entry_may_take_several_lines(tmp_path: Path) -> None:
    file = tmp_path / "npuscope.po"
    file.write_text('#, fuzzy\nmsgid "x"\nmsgstr "y"\n\nmsgid ""\n"a \\"b\\""\n" c"\nmsgstr "d"\n')
    assert catalog(file) == {'a "b" c': "d"}
