"""Damage that knows nothing of formats: what disks, networks and killed writers do to a file."""

from __future__ import annotations

import random

# Bytes that mean something to one of the formats, or are special to a decoder.
TELLING = (
    b"", b"\0", b"\0" * 512, b"\xff" * 64, b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"\n\n", b"{",
    b"}", b"[", b"]", b"[" * 2000, b'{"a":' * 2000, b":", b"\\", b"\\u0000", b"\\ud800", b"-", b".",
    b"e", b"1e999", b"NaN", b"null", b"9" * 40, b"\xef\xbb\xbf", b"\xc3\x28", b"\xf0\x9f\x92\xa9",
    b"\t", b";", b"'", b"%s", b"../../x", "\u4e2d\u6587".encode(), b"\x1b[31m", b"A" * 5000,
)  # fmt: skip


def mutate(chance: random.Random, data: bytes, other: bytes) -> tuple[bytes, str]:
    """The data damaged once, perhaps with a part of another file; and what was done."""
    if not data:
        return chance.choice(TELLING), "bytes put into nothing"
    start, end = place(chance, len(data))
    match chance.randrange(12):
        case 0:
            bit = 1 << chance.randrange(8)
            at = min(start, len(data) - 1)
            return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :], f"bit flipped at {at}"
        case 1:
            at = min(start, len(data) - 1)
            byte = bytes([chance.randrange(256)])
            return data[:at] + byte + data[at + 1 :], f"byte {byte!r} put at {at}"
        case 2:
            return data[:start] + data[end:], f"bytes {start} to {end} deleted"
        case 3:
            twice = data[:end] + data[start:end] + data[end:]
            return twice, f"bytes {start} to {end} doubled"
        case 4:
            told = chance.choice(TELLING)
            return data[:start] + told + data[start:], f"{told[:12]!r} inserted at {start}"
        case 5:
            told = chance.choice(TELLING)
            changed = data[:start] + told + data[start + len(told) :]
            return changed, f"{told[:12]!r} written over {start}"
        case 6:
            return data[:start], f"cut at {start}"
        case 7:
            return data[start:], f"the first {start} bytes missing"
        case 8:
            middle = bytes(end - start)
            return data[:start] + middle + data[end:], f"bytes {start} to {end} zeroed"
        case 9:
            low, high = place(chance, len(other))
            return data[:start] + other[low:high] + data[end:], f"another file's bytes at {start}"
        case 10:
            first, last = place(chance, start or 1)
            changed = data[:first] + data[start:end] + data[last:start] + data[first:last]
            return changed + data[end:], f"bytes {first} to {last} and {start} to {end} swapped"
        case _:
            noise = chance.randbytes(end - start)
            return data[:start] + noise + data[end:], f"noise from {start} to {end}"


def place(chance: random.Random, size: int) -> tuple[int, int]:
    """Start and end of a stretch; mostly short ones."""
    start = chance.randrange(size + 1)
    length = int(chance.expovariate(1 / (size / 8 if chance.random() < 0.3 else 6))) + 1
    return start, min(size, start + length)
