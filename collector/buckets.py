"""A bucket in object storage: list, get, put under a condition, delete.

    s3://BUCKET/PREFIX    S3, and what speaks it
    obs://BUCKET/PREFIX   Huawei's OBS, which speaks S3
    gs://BUCKET/PREFIX    Google's storage through its XML API, which speaks S3: for reading

An object appears whole or not at all, by one put. What a put is conditional on is the tag of the
object that it replaces, or that there is none: of two writers the second is told. Credentials come
from where the vendors' own tools look for them: environment, profile, the machine's role.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from npuscope.errors import StoreError

# A path of the command line has lost a slash.
_URL = re.compile(r"(?P<scheme>s3|obs|gs):/{1,2}(?P<bucket>[^/]+)(?:/+(?P<prefix>.*))?")
# What one process asks for at once.
_AT_ONCE = 16
_CONNECT_S, _READ_S = 10, 60
# What servers say that want fewer requests.
_BUSY = ("SlowDown", "ServiceUnavailable", "Throttling", "RequestLimitExceeded", "503", "429")

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Object:
    """What a listing tells: `tag` changes with the content, `modified_s` is in s since 1970."""

    tag: str
    size_bytes: int
    modified_s: float


class Bucket(Protocol):
    """Objects below a prefix, by their keys relative to it. All raise StoreError."""

    def list(self) -> dict[str, Object]:
        """Every object, as of some time after the call."""
        ...

    def get(self, keys: Iterable[str]) -> dict[str, tuple[bytes, str]]:
        """Content and tag of small objects; those that are gone are left out."""
        ...

    def put(self, key: str, content: bytes, tag: str | None) -> bool:
        """Put a small object in the place of that with the tag; None: where there is none.

        Returns whether it did: not where something else is there.
        """
        ...

    def upload(self, files: Mapping[str, Path]) -> None:
        """Put files under keys that nobody else writes."""
        ...

    def download(self, files: Mapping[str, Path]) -> set[str]:
        """Get objects into files; returns the keys of those that are gone."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are gone are passed over."""
        ...


def url_of(path: str | Path) -> str | None:
    """The URL that a path says, also one that lost a slash as a path; None where it is a path."""
    parts = _URL.fullmatch(str(path))
    if parts is None:
        return None
    prefix = (parts["prefix"] or "").strip("/")
    return f"{parts['scheme']}://{parts['bucket']}" + (f"/{prefix}" if prefix else "")


def endpoint_of(url: str) -> str:
    """Where a URL's objects are served; '' for the vendor's own place. Raises StoreError."""
    names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
    if url.startswith("obs:"):
        names.insert(0, "OBS_ENDPOINT")
    if url.startswith("gs:"):
        # Not AWS's: a machine that has both would ask the wrong one.
        return os.environ.get("GS_ENDPOINT") or "https://storage.googleapis.com"
    address = next((value for name in names if (value := os.environ.get(name))), "")
    if url.startswith("obs:") and not address:
        raise StoreError(
            f"{url}: set OBS_ENDPOINT to where the bucket is served, such as"
            " https://obs.cn-north-4.myhuaweicloud.com"
        )
    return address if "://" in address or not address else f"https://{address}"


def require_writable(path: str | Path) -> None:
    """Raises StoreError for a URL that is only read.

    Google's storage heeds no If-Match on a put, but generations in headers that it refuses beside
    a signature of S3: without a condition two writers would lose ranks.
    """
    url = url_of(path)
    if url is not None and url.startswith("gs:"):
        raise StoreError(
            f"{url}: stores in Google's storage are only read: ingest or compact a folder with"
            f" --store DIR, and then copy it with `gcloud storage rsync --recursive DIR {url}`"
        )


@lru_cache(maxsize=16)
def bucket_of(url: str, endpoint: str) -> Bucket:
    """A bucket; nothing is asked of it yet. Raises StoreError where what speaks to it is not
    installed."""
    try:
        return _S3Bucket(url, endpoint)
    except ImportError as error:
        raise StoreError(
            f"{url}: stores in object storage need {error.name}: pip install 'npuscope[object]'"
        ) from error


def split_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of a URL; the prefix ends in a slash, where there is one."""
    parts = urlsplit(url)
    prefix = parts.path.strip("/")
    return parts.netloc, f"{prefix}/" if prefix else ""


async def gather(coroutines: Iterable[Awaitable[Found]]) -> list[Found]:
    """Results in order, of a few at a time."""
    import asyncio  # which takes longer than the rest of this module

    few = asyncio.Semaphore(_AT_ONCE)

    async def one(coroutine: Awaitable[Found]) -> Found:
        async with few:
            return await coroutine

    return await asyncio.gather(*map(one, coroutines))


class _S3Bucket:
    """A bucket that speaks S3."""

    def __init__(self, url: str, endpoint: str) -> None:
        from s3fs import S3FileSystem

        self._url, self._endpoint = url, endpoint
        self._bucket, self._prefix = split_url(url)
        environment = os.environ.get
        own = {}
        vendor = {"obs": "OBS", "gs": "GS"}.get(url.partition(":")[0])
        if vendor and environment(f"{vendor}_ACCESS_KEY_ID"):
            own = {
                "key": environment(f"{vendor}_ACCESS_KEY_ID"),
                "secret": environment(f"{vendor}_SECRET_ACCESS_KEY"),
                "token": environment(f"{vendor}_SECURITY_TOKEN"),
            }
        config: dict[str, Any] = {
            # Of newer headers, servers that only speak S3 know nothing.
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "connect_timeout": _CONNECT_S,
            "read_timeout": _READ_S,
            "retries": {"max_attempts": 3, "mode": "standard"},
        }
        if url.startswith("obs:") and not _is_address(endpoint):
            config["s3"] = {"addressing_style": "virtual"}
        self._files = S3FileSystem(
            endpoint_url=endpoint or None, config_kwargs=config, use_listings_cache=False,
            skip_instance_cache=True, **own,
        )  # fmt: skip
        self._files.retries = 3

    def _run(self, work: Callable[[], Awaitable[Found]]) -> Found:
        from fsspec.asyn import sync

        with store_errors(self._url, self._endpoint):
            result: Found = sync(self._files.loop, work)
            return result

    def list(self) -> dict[str, Object]:
        async def work() -> dict[str, Object]:
            objects: dict[str, Object] = {}
            arguments: dict[str, str] = {"Bucket": self._bucket, "Prefix": self._prefix}
            while True:
                page = await self._files._call_s3("list_objects_v2", **arguments)
                for one in page.get("Contents", ()):
                    objects[one["Key"].removeprefix(self._prefix)] = Object(
                        one["ETag"], one["Size"], one["LastModified"].timestamp()
                    )
                if not page.get("IsTruncated"):
                    return objects
                arguments["ContinuationToken"] = page["NextContinuationToken"]

        return self._run(work)

    def get(self, keys: Iterable[str]) -> dict[str, tuple[bytes, str]]:
        async def one(key: str) -> tuple[str, bytes, str] | None:
            try:
                answer = await self._files._call_s3(
                    "get_object", Bucket=self._bucket, Key=self._prefix + key
                )
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise
                return None
            async with answer["Body"] as body:
                return key, await body.read(), answer["ETag"]

        async def work() -> dict[str, tuple[bytes, str]]:
            objects = await gather(map(one, keys))
            return {answer[0]: (answer[1], answer[2]) for answer in objects if answer}

        return self._run(work)

    def put(self, key: str, content: bytes, tag: str | None) -> bool:
        require_writable(self._url)
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}

        async def work() -> bool:
            try:
                await self._files._call_s3(
                    "put_object", Bucket=self._bucket, Key=self._prefix + key, Body=content,
                    **condition,
                )  # fmt: skip
            except OSError as error:
                # 409: another put is under way; a key that is gone does not match either.
                if _code(error) in ("PreconditionFailed", "ConditionalRequestConflict", "412"):
                    return False
                if tag is not None and _code(error) in ("NoSuchKey", "404"):
                    return False
                raise
            return True

        return self._run(work)

    def upload(self, files: Mapping[str, Path]) -> None:
        require_writable(self._url)

        async def work() -> None:
            await gather(
                self._files._put_file(str(path), f"{self._bucket}/{self._prefix}{key}")
                for key, path in files.items()
            )

        self._run(work)

    def download(self, files: Mapping[str, Path]) -> set[str]:
        async def one(key: str, path: Path) -> str | None:
            try:
                await self._files._get_file(f"{self._bucket}/{self._prefix}{key}", str(path))
            except FileNotFoundError:
                return key
            return None

        async def work() -> set[str]:
            gone = await gather(one(key, path) for key, path in files.items())
            return {key for key in gone if key is not None}

        return self._run(work)

    def delete(self, keys: Iterable[str]) -> None:
        require_writable(self._url)

        async def work() -> None:
            await gather(
                self._files._call_s3(
                    "delete_object", Bucket=self._bucket, Key=self._prefix + key
                )
                for key in keys
            )  # fmt: skip

        self._run(work)


def _code(error: BaseException) -> str:
    """The server's own word for an error."""
    behind = error.__cause__ or error
    response = getattr(behind, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


def _is_address(endpoint: str) -> bool:
    """Whether a server is named by a number or as this machine: then a bucket is no part of it."""
    host = urlsplit(endpoint).hostname or ""
    return host == "localhost" or re.fullmatch(r"[\d.]+|.*:.*", host) is not None


@contextlib.contextmanager
def store_errors(url: str, endpoint: str) -> Iterator[None]:
    """Makes what a server or the way there refuses a StoreError that says what to do."""
    where = f" at {endpoint}" if endpoint else ""
    try:
        yield
    except Exception as error:  # of two libraries, each with its own kinds
        name, code = type(error).__name__, _code(error)
        if isinstance(error, StoreError):
            raise
        if "Credentials" in name or "Credentials" in str(error):
            told_of = (
                "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (for obs:// also"
                " OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY; for gs:// an HMAC key in"
                " GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY), or name a profile in AWS_PROFILE"
            )
        elif code == "NoSuchBucket" or "bucket does not exist" in str(error):
            told_of = f"no such bucket{where}: make it, or check its name"
        elif isinstance(error, PermissionError):
            told_of = f"refused{where} ({error}): check the credentials and the bucket's policy"
        elif code in _BUSY:
            told_of = f"too busy{where} ({code}): repeat it later"
        elif isinstance(error, OSError) or re.search("Endpoint|Timeout|Connection|Client", name):
            told_of = f"cannot be reached{where} ({name}: {error}): check the network and endpoint"
        else:
            raise
        raise StoreError(f"{url}: {told_of}") from error
