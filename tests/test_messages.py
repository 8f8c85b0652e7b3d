"""Messages: English sentences that remember what they were made of."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from npuscope.messages import Message, StoredMessage, join, restore_text, store_text

NOTE = Message(
    "{ranks}: {count} of {what} are {state}",
    ranks=Message("rank {number}", number=3), count=1_000, what="files", state=None,
)  # fmt: skip


def test_a_message_is_its_english_sentence() -> None:
    assert NOTE == "rank 3: 1000 of files are -"
    assert (NOTE.template, NOTE.values["count"]) == ("{ranks}: {count} of {what} are {state}", 1000)
    with pytest.raises(AttributeError):
        NOTE.template = "another"
    values: Any = NOTE.values
    with pytest.raises(TypeError):
        values["count"] = 2


def test_it_crosses_processes_and_files_as_what_it_is() -> None:
    kept = msgspec.json.decode(msgspec.json.encode(store_text(NOTE)), type=StoredMessage)
    for again in (pickle.loads(pickle.dumps(NOTE)), restore_text(kept)):
        assert isinstance(again, Message)
        assert (again, again.template, again.values) == (NOTE, NOTE.template, NOTE.values)
    assert (restore_text("a sentence"), store_text("a sentence")) == ("a sentence", "a sentence")


@pytest.mark.parametrize(
    "template",
    ["{what.__class__}", "{what[0]}", "{what!r}", "{what:>9}", "{0}", "{}", "{", "{other}"],
)
def test_a_template_reaches_nothing_but_its_values(template: str) -> None:
    assert Message(template, what="x") == template


def test_values_are_no_templates() -> None:
    assert Message("{one} {other}", one="{other}", other="x") == "{other} x"


@pytest.mark.parametrize(
    "content",
    [
        b'{"template": 3}', b'{"template": "a", "values": {"x": ["list"]}}',
        b'{"template": "a", "values": {"x": true}}', b'{"template": "a", "values": []}',
        b'{"values": {}}',
    ],
)  # fmt: skip
def test_files_hold_only_texts_and_numbers(content: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(content, type=StoredMessage)


def test_messages_that_lie_deep_in_each_other_are_refused() -> None:
    deep = StoredMessage("a")
    for _ in range(100):
        deep = StoredMessage("{x}", {"x": deep})
    with pytest.raises(ValueError, match="too deep"):
        restore_text(deep)


def test_parts_are_joined_as_a_list_is_written() -> None:
    assert join(["a", "", "b", "c"]) == "a, b, c"
    assert (join([]), join(["a"]), join(["a", "b"], " and ")) == ("", "a", "a and b")
