"""Text that a terminal shows and does not obey: names from profiles may hold anything."""

from __future__ import annotations

import json
import re
from typing import Any

# What moves the cursor, colours, rings or reorders: control characters but the line's end and the
# tab, and the marks of writing from right to left.
_CONTROLS = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb"
    r"\ud800-\udfff"
)
_CONTROL = re.compile(f"[{_CONTROLS}]")
_NEITHER = re.compile(f"[{_CONTROLS}\n\t]+")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")


def printable(text: str) -> str:
    """The text with a replacement character for each character that a terminal would obey."""
    return _CONTROL.sub("\ufffd", text)


def visible(text: str) -> str:
    r"""The text with each such character spelled out as `\uXXXX`: for pages and reports."""
    return _CONTROL.sub(_escape, text)


def one_line(text: str) -> str:
    """The text as one line of a log: names can neither begin a line of their own nor steer."""
    return _NEITHER.sub(" ", text)


def json_text(value: Any, encoding: str = "utf-8") -> str:
    r"""A value as JSON: whatever is obeyed, or lacking in the encoding, as `\uXXXX`."""
    import msgspec

    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8
        return json.dumps(msgspec.to_builtins(value, enc_hook=str), separators=(",", ":"))
    if text.isascii() and "\x7f" not in text:  # other control characters are spelled out already
        return text
    text = visible(text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return _BEYOND_ASCII.sub(_escape, text)
    return text


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
