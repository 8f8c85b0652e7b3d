"""A small server that speaks S3, with the conditions of puts checked and obeyed in one step."""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_NO_SUCH = "<Error><Code>{code}</Code><Message>{code}</Message></Error>"
_PAGE = 50


@dataclass
class Objects:
    """What the server holds: by key, content and time; every request that it met; hooks that are
    called before each put, of which one tells the word that the put is refused with."""

    kept: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    before_put: Callable[[str], None] = lambda key: None
    refused_put: Callable[[str], str] = lambda key: ""
    clock_s: Callable[[], float] = time.time
    address: str = ""


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _handler(objects: Objects) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", headers.get("size", str(len(body))))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _error(self, code: int, word: str) -> None:
            self._answer(code, _NO_SUCH.format(code=word).encode(), Content_Type="application/xml")

        def _key(self) -> str:
            key = unquote(urlsplit(self.path).path).lstrip("/")
            objects.asked.append((self.command, key))
            return key

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            key = self._key()
            if not key.startswith("bucket"):
                return self._error(404, "NoSuchBucket")
            if "list-type" in asked:
                return self._list(asked)
            with objects.lock:
                found = objects.kept.get(key)
            if found is None:
                return self._error(404, "NoSuchKey")
            content, when = found
            part = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if part:
                content = content[int(part[1]) : int(part[2]) + 1 if part[2] else None]
            self._answer(
                206 if part else 200, content, ETag=_tag(found[0]),
                Last_Modified=formatdate(when, usegmt=True),
            )  # fmt: skip

        def _list(self, asked: dict[str, list[str]]) -> None:
            begin = f"bucket/{asked.get('prefix', [''])[0]}"
            after = asked.get("continuation-token", [""])[0]
            with objects.lock:
                keys = sorted(k for k in objects.kept if k.startswith(begin) and k > after)
                page = [(k, *objects.kept[k]) for k in keys[:_PAGE]]
            rows = "".join(
                f"<Contents><Key>{escape(key.removeprefix('bucket/'))}</Key>"
                f"<LastModified>{_iso(when)}</LastModified><ETag>{escape(_tag(content))}</ETag>"
                f"<Size>{len(content)}</Size></Contents>"
                for key, content, when in page
            )
            is_cut = len(keys) > _PAGE
            last = page[-1][0] if page else ""
            more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
            body = (
                f"<ListBucketResult><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
                f"{rows}{more if is_cut else ''}</ListBucketResult>"
            )
            self._answer(200, body.encode(), Content_Type="application/xml")

        def do_PUT(self) -> None:
            key = self._key()
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            objects.before_put(key)
            if word := objects.refused_put(key):
                return self._error(400, word)
            with objects.lock:
                found = objects.kept.get(key)
                given = self.headers.get("If-Match")
                if self.headers.get("If-None-Match") == "*" and found is not None:
                    return self._error(412, "PreconditionFailed")
                if given and (found is None or _tag(found[0]) != f'"{given.strip(chr(34))}"'):
                    return self._error(412, "PreconditionFailed")
                objects.kept[key] = (content, objects.clock_s())
            self._answer(200, ETag=_tag(content))

        def do_DELETE(self) -> None:
            with objects.lock:
                objects.kept.pop(self._key(), None)
            self._answer(204)

    return Handler


def _iso(when: float) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(when, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")


@contextlib.contextmanager
def served_objects() -> Iterator[Objects]:
    """A server on loopback with an empty bucket called `bucket`."""
    objects = Objects()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(objects))
    objects.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield objects
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
