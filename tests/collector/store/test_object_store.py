"""Stores in buckets: what holds for a folder holds for them, on the same cases."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("s3fs")

from botocore.exceptions import ClientError

import npuscope
from npuscope.analysis.summaries import summarise
from npuscope.collector import buckets
from npuscope.collector.ingest import read_batch
from npuscope.collector.ingest.ingest import IngestResult, ingest
from npuscope.collector.store import cache, mirror, store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.compact_files import read_compacted, without_torn
from npuscope.collector.store.folder_handles import captures
from npuscope.collector.store.manifest import manifests, update
from npuscope.collector.store.sweep import sweep
from npuscope.errors import StoreError
from npuscope.profile import Source, open_tables, read_from
from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import runner
from tests.collector.store.object_server import Objects, served_objects
from tests.collector.store.stores_compared import assert_equal_stores
from tests.conftest import REPOSITORY
from tests.dashboard.app.started_server import start as dashboard_started

pytestmark = pytest.mark.slow
URL = Path("s3://bucket/npuscope")
RANKS = 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    write_job(small(dp=RANKS, ep=1, steps=2), folder)
    return folder


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the same profiles on a disk."""
    target = tmp_path_factory.mktemp("whole") / "store"
    read(source, target)
    return target


def use(monkeypatch: pytest.MonkeyPatch, address: str, cache: Path) -> None:
    """A server's address, credentials, and a machine's cache, in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Objects]:
    with served_objects() as served:
        use(monkeypatch, served.address, tmp_path / "one")
        yield served


@pytest.fixture(scope="module")
def contents(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[bytes, float]]:
    """What a bucket holds after an ingest, rank by rank."""
    with pytest.MonkeyPatch.context() as patched, served_objects() as served:
        use(patched, served.address, tmp_path_factory.mktemp("kept"))
        patched.setattr(read_batch, "MOST_RANKS", 1)
        assert read(source, URL).is_complete
        return dict(served.kept)


@pytest.fixture
def bucket(objects: Objects, contents: dict[str, tuple[bytes, float]]) -> Objects:
    objects.kept.update(contents)
    return objects


def read(source: Path, into: Path, *, force: bool = False) -> IngestResult:
    return ingest(source, into, run="job", summarise=summarise, jobs=1, force=force)


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> Path:
    """The mirror of another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    return mirror.local(URL)


def kernels(target: Path) -> dict[int, int]:
    found = store.query(target, "select rank, count(*) from kernels group by rank order by rank")
    return dict(found.iter_rows())


def start(source: Path, cache: Path) -> subprocess.Popen[bytes]:
    """An ingest on another machine."""
    options = ["--store", str(URL), "--run", "job", "--jobs", "1"]
    return subprocess.Popen(
        [sys.executable, "-m", "npuscope", "ingest", str(source), *options],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(cache)},
        cwd=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def test_a_bucket_holds_what_a_folder_does(
    objects: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read(source, URL).is_complete
    there = elsewhere(monkeypatch, tmp_path, "two")
    assert_equal_stores(whole, there)
    again = read(source, URL)
    assert not again.publications and len(again.unchanged) == RANKS


def test_a_real_server_of_s3_holds_the_same(
    source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """moto's, which obeys both conditions of a put; it does not do so in one step."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        use(monkeypatch, f"http://127.0.0.1:{port}", tmp_path / "one")
        monkeypatch.setenv("OBS_ENDPOINT", f"http://127.0.0.1:{port}")
        with pytest.raises(StoreError, match="no such bucket at http://127"):
            mirror.local(URL)
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        assert read(source, URL).is_complete
        assert_equal_stores(whole, elsewhere(monkeypatch, tmp_path, "two"))
        assert_equal_stores(whole, mirror.local(Path("obs://bucket/npuscope")))
        bucket = buckets.bucket_of(str(buckets.url_of(URL)), f"http://127.0.0.1:{port}")
        assert bucket.put("one", b"1", None) and not bucket.put("one", b"2", None)
        tag = bucket.get(["one"])["one"][1]
        assert bucket.put("one", b"3", tag) and not bucket.put("one", b"4", tag)
        assert bucket.get(["one"])["one"][0] == b"3"
    finally:
        server.stop()


def test_killed_at_any_put_and_resumed(
    objects: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Among a batch's files, before its first manifest, before its second."""
    expected = kernels(whole)
    running: list[subprocess.Popen[bytes]] = []
    seen: list[int] = []

    def killed(kind: str, before: int) -> Callable[[str], None]:
        met: list[str] = []

        def kill(key: str) -> None:
            met.extend([key] if kind in key else [])
            if len(met) > before:
                running[-1].send_signal(signal.SIGKILL)
                running[-1].wait()
                raise ConnectionAbortedError("killed before its put")

        return kill

    moments = [(".parquet", 5), ("manifest.json", 0), ("manifest.json", 1)]
    for turn, (kind, before) in enumerate(moments):
        objects.before_put = killed(kind, before)
        running.append(start(source, tmp_path / "killed"))
        assert running[-1].wait(timeout=120) == -signal.SIGKILL
        other = elsewhere(monkeypatch, tmp_path, f"look{turn}")
        ranks = kernels(other)
        assert all(expected[rank] == count for rank, count in ranks.items())
        seen.append(len(ranks))
    assert seen == [0, 0, 1]
    objects.before_put = lambda key: None
    resumed = read(source, URL)
    assert resumed.is_complete and len(resumed.publications) == RANKS - 1
    assert_equal_stores(whole, elsewhere(monkeypatch, tmp_path, "last"))


def test_two_writers_and_a_reader(
    objects: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = kernels(whole)
    both = [start(source, tmp_path / name) for name in ("first", "second")]
    looks: list[dict[int, int]] = []
    while any(process.poll() is None for process in both):
        target = mirror.local(URL)
        if (target / "npuscope-store.json").exists():
            looks.append(kernels(target))
    assert [process.wait() for process in both] == [0, 0]
    looks.append(kernels(mirror.local(URL)))
    assert looks[-1] == expected
    assert all(expected[rank] == n for look in looks for rank, n in look.items()), looks
    assert_equal_stores(whole, elsewhere(monkeypatch, tmp_path, "third"))
    assert not read(source, URL).publications


def test_a_reader_gets_the_new_rank_where_the_old_one_is_gone(
    bucket: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reader = elsewhere(monkeypatch, tmp_path, "reader")
    before = {m.generation for m in manifests(reader)}
    writer = elsewhere(monkeypatch, tmp_path, "writer")
    read(source, URL, force=True)
    assert sweep(writer, grace_s=-4e9) > 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "reader"))
    monkeypatch.setattr(mirror, "_FRESH_S", 60.0)  # it looked just now
    assert {m.generation for m in manifests(reader)} == before
    assert kernels(reader) == kernels(whole)
    assert not {m.generation for m in manifests(reader)} & before


def test_what_is_torn_in_a_bucket_is_left_out_and_a_torn_copy_got_again(
    bucket: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reader = elsewhere(monkeypatch, tmp_path, "reader")
    assert kernels(reader) == kernels(whole)
    copy = next(reader.rglob("kernels.parquet"))
    copy.write_bytes(copy.read_bytes()[:40])
    assert kernels(reader) == kernels(whole)
    changed = bytearray(copy.read_bytes())
    changed[len(changed) // 3] ^= 4
    copy.write_bytes(changed)
    assert without_torn(reader, manifests(reader), with_content=True)[1]
    key = next(key for key in bucket.kept if key.endswith("kernels.parquet"))
    content, when = bucket.kept[key]
    for broken in ({key: (content[:40], when)}, {}):  # cut, then gone
        del bucket.kept[key]
        bucket.kept.update(broken)
        other = elsewhere(monkeypatch, tmp_path, f"other{len(broken)}")
        with (
            pytest.raises(StoreError, match=r"kernels\.parquet is damaged or missing"),
            open_tables(Source(other), is_command=False),
        ):
            pass
        bucket.kept[key] = (content, when)
        assert kernels(other) == kernels(whole)  # as soon as it is whole again


def test_what_is_read_or_young_is_not_swept(
    bucket: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read(source, URL, force=True)
    target = mirror.local(URL)
    both = len(bucket.kept)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 3600)
    assert sweep(target) == 0 and len(bucket.kept) == both
    monkeypatch.setattr(time, "time", lambda: now_s + 90_000)
    assert sweep(target) > 0
    [batch] = {m.batch for m in manifests(target)}
    assert all(f"/{batch}/" in key for key in bucket.kept if key.endswith(".parquet"))
    assert_equal_stores(whole, elsewhere(monkeypatch, tmp_path, "two"))


def test_of_two_changes_at_once_none_is_lost(objects: Objects) -> None:
    """Between our look and our put another writer puts: ours is refused, and done again on top."""
    target = mirror.local(URL)
    path = target / "dropped.json"
    key = "bucket/npuscope/dropped.json"
    update(path, lambda content: b"first")

    def interfere(_: str) -> None:
        objects.before_put = lambda key: None
        with objects.lock:
            objects.kept[key] = (objects.kept[key][0] + b" theirs", 0.0)

    objects.before_put = interfere
    update(path, lambda content: (content or b"") + b" ours")
    assert objects.kept[key][0] == path.read_bytes() == b"first theirs ours"


def test_a_rank_that_was_published_anew_is_not_dropped(
    bucket: Objects, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stale = mirror.local(URL)
    known = manifests(stale)
    elsewhere(monkeypatch, tmp_path, "two")
    read(source, URL, force=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    store.drop(stale, known[0])
    assert not store.replace_manifest(stale, known[1])
    now = manifests(mirror.local(URL))
    assert len(now) == RANKS and known[0].generation not in {m.generation for m in now}
    store.drop(stale, now[0])
    assert [m.rank for m in manifests(elsewhere(monkeypatch, tmp_path, "two"))] == [1, 2]


def test_two_compactions_at_once_count_once(
    bucket: Objects, source: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other one publishes just before ours does: both lists are kept."""

    def compact_elsewhere(key: str) -> None:
        if key.endswith("compacted.json"):
            bucket.before_put = lambda key: None
            subprocess.run(
                [sys.executable, "-m", "npuscope", "compact", str(URL)], cwd=source, check=True,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY),
                     "XDG_CACHE_HOME": str(tmp_path / "second")},
            )  # fmt: skip

    bucket.before_put = compact_elsewhere
    compact(mirror.local(URL))
    there = elsewhere(monkeypatch, tmp_path, "third")
    [capture] = captures(there)
    assert len(read_compacted(capture).batches) == 2
    assert_equal_stores(whole, there)


def test_names_of_a_bucket_lead_nowhere_else(bucket: Objects, tmp_path: Path, source: Path) -> None:
    begin = "bucket/npuscope/"
    for key in ("../../out", "run=a/capture=b/rank=1/../../../manifest.json", "npuscope-lock",
                "run=../capture=../rank=1/manifest.json", "npuscope-source.txt"):  # fmt: skip
        bucket.kept[begin + key] = (b"{}", 0.0)
    target = mirror.local(URL)
    assert (target / "npuscope-source.txt").read_text() == str(buckets.url_of(URL))
    assert [one.name for one in tmp_path.iterdir()] == ["one"]
    assert len(manifests(target)) == RANKS


def test_what_is_wrong_is_said(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, source: Path
) -> None:
    for url, told in (
        ("s3://bucket/empty", "s3://bucket/empty: no store there: ingest a profile into it"),
        ("s3://nowhere/x", "s3://nowhere/x: no such bucket"),
        ("obs://bucket/x", "set OBS_ENDPOINT"),
    ):
        monkeypatch.delenv("OBS_ENDPOINT", raising=False)
        if url.startswith("obs"):
            monkeypatch.delenv("AWS_ENDPOINT_URL")
        with pytest.raises(StoreError, match=told):
            read_from(Path(url))
    objects.kept["bucket/others/file"] = (b"x", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", objects.address)
    with pytest.raises(StoreError, match="s3://bucket/others: not a store and not empty"):
        read(source, Path("s3://bucket/others"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=re.escape("cannot be reached at http://127.0.0.1:1")):
        read_from(URL)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    buckets.bucket_of.cache_clear()
    with pytest.raises(StoreError, match=r"need s3fs: pip install 'npuscope\[object\]'"):
        read_from(URL)


def test_a_busy_server_is_reached() -> None:
    with pytest.raises(StoreError, match=r"s3://bucket: too busy \(SlowDown\): repeat it later"):
        with buckets.store_errors("s3://bucket", ""):
            said = {"Error": {"Code": "SlowDown", "Message": "Please reduce your request rate."}}
            raise OSError(16, "reduce") from ClientError(said, "PutObject")


def test_without_credentials_it_is_said(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(StoreError, match="no credentials: set AWS_ACCESS_KEY_ID"):
        mirror.local(URL)


def test_commands_take_the_url(
    bucket: Objects, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = runner(tmp_path / "one", monkeypatch, capsys)
    url = "s3://bucket/npuscope"
    done = run("ingest", source, "--store", url, "--run", "job", "--jobs", "1")
    assert done.code == 0 and f"{url}: run job, 0 rank(s) read, 3 unchanged" in done.err, done.err
    assert {row["rank"] for row in run("steps", url, "--json").rows} == {0, 1, 2}
    assert run("compact", url, "--dry-run").code == 0
    told = run("steps", "s3://bucket/none")
    assert told.code == 3 and "s3://bucket/none: no store there" in told.err
    assert url in run("store", "list").out
    assert run("store", "rm", url).code == 0 and bucket.kept
    assert run("ingest", source, "--store", url, "--engine", "ray").code == 2


def test_the_limit_of_the_cache_holds_where_files_come_from_a_bucket(
    bucket: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.local(Path("s3://bucket/other"))
    bucket.kept.update(
        {key.replace("/npuscope/", "/other/"): one for key, one in bucket.kept.items()}
    )
    monkeypatch.setattr(cache.keep_within_limit, "__kwdefaults__", {"limit_bytes": 1})
    for url in ("s3://bucket/other", str(URL)):
        with open_tables(Source(Path(url)), is_command=False) as data:
            told = data.messages
    assert told == ["cache over its limit: dropped the store of s3://bucket/other"]
    assert [one.source for one in cache.cached_stores()] == ["s3://bucket/npuscope"]


def test_evidence_names_the_url(bucket: Objects) -> None:
    with npuscope.open("s3://bucket/npuscope") as job:
        told = "".join(job.findings()["evidence"].drop_nulls()) + str(job.findings().to_dicts())
        assert "s3://bucket/npuscope" in repr(job)
        assert "s3://bucket/npuscope" in told
        assert str(job.path) not in told


def test_google_s_storage_is_read_and_a_write_is_refused_before_anything_is_read(
    bucket: Objects, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GS_ENDPOINT", bucket.address)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
        monkeypatch.setenv(f"GS_{name}", "test")
    url = Path("gs://bucket/npuscope")
    target = read_from(url)
    assert list(kernels(target)) == [*range(RANKS)]
    with pytest.raises(StoreError, match=r"gs://bucket/npuscope: .* only read: .*gcloud storage"):
        read(source, url)
    with pytest.raises(StoreError, match="are only read"):
        compact(target)
    with pytest.raises(StoreError, match="are only read"):
        update(target / "dropped.json", lambda _: b"{}")
    assert {verb for verb, _ in bucket.asked} <= {"GET", "HEAD"}


@pytest.fixture(scope="module")
def full_bucket(
    contents: dict[str, tuple[bytes, float]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Objects]:
    """A bucket and a machine's cache that commands use one after the other."""
    with pytest.MonkeyPatch.context() as patched, served_objects() as served:
        use(patched, served.address, tmp_path_factory.mktemp("used"))
        served.kept.update(contents)
        yield served


def ran(*words: object, code: int = 0) -> str:
    """What a command of its own process says, on both of its outputs."""
    done = subprocess.run(
        [sys.executable, "-m", "npuscope", *map(str, words)], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_exporter_reads_a_bucket(full_bucket: Objects, tmp_path: Path) -> None:
    ran("exporter", "s3://bucket/npuscope", "--textfile", tmp_path / "it.prom", "--expire", "never")
    written = (tmp_path / "it.prom").read_text()
    assert len(re.findall(r"^npuscope_rank_computing_seconds\{.*rank=", written, re.M)) >= RANKS


def test_the_dashboard_reads_a_bucket(full_bucket: Objects, tmp_path: Path) -> None:
    asked = len(full_bucket.asked)
    with dashboard_started([Path("s3://bucket/npuscope")], tmp_path) as it:
        assert it.process.poll() is None
    assert len(full_bucket.asked) > asked


def test_watching_fills_a_bucket(full_bucket: Objects, source: Path) -> None:
    command = ("watch", source, "--store", "s3://bucket/watched", "--once", "--quiet-after", "0")
    # What a bucket takes none of is no fault of the profiles: they are read when it does again.
    full_bucket.refused_put = lambda key: "ExpiredToken" if key.endswith("/manifest.json") else ""
    told = ran(*command, code=3)
    assert "The token has expired" in told or "ExpiredToken" in told, told
    assert "0 unusable" in told and "s3://bucket/watched: could not take all" in told
    full_bucket.refused_put = lambda key: ""
    told = ran(*command)
    published = {key for key in full_bucket.kept if key.startswith("bucket/watched/")}
    manifest = [key for key in published if key.endswith("/manifest.json")]
    assert len(manifest) == RANKS and "for s3://bucket/watched" in told, told


def test_questions_of_other_programs_reach_a_bucket(full_bucket: Objects) -> None:
    from mcp import Client, StdioServerParameters

    async def asked() -> str:
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "npuscope", "mcp", "s3://bucket/npuscope"],
            env={**os.environ},
        )  # fmt: skip
        async with Client(server) as client:
            found = await client.call_tool("steps", {})
            return str(found)

    told = anyio.run(asked)
    assert "computing_ns" in told and "s3://bucket/npuscope" in told, told[:2000]
