"""A capture as one page: the same answers, no names where they are redacted, nothing asked of a
network."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import npuscope
from npuscope.collector.store import bundle, store
from npuscope.collector.store.bundle import pack, unpack, with_tables
from npuscope.collector.store.folder_handles import process_space
from npuscope.collector.store.redaction import own_key
from npuscope.errors import StoreError
from npuscope.sample_traces.generate import small, write_job
from tests.analysis.tables import connect, fill, kernel
from tests.cli.command import Run, output_of
from tests.dashboard.app.served_pages import chromium

QUESTIONS = (
    "steps", "kernels --by shape", "comm --by op", "comm --by part", "comm --by matrix", "mfu",
    "mfu --waterfall", "ranks", "memory", "memory --by holder", "experts --by device", "findings",
    "clocks", "critical-path", "whatif comm:ep=0.5",
)  # fmt: skip
REAL = (
    "alexnet_ddp_db_level0", "alexnet_ddp_db_level1", "alexnet_ddp_text_level0",
    "alexnet_ddp_text_level1", "cluster16_pp2", "msprof_timeline_2023", "qwen3_pp2_dp2_text_level2",
)  # fmt: skip
# A name of a host, a path of two folders, an address: what may be left of none of them.
_PATH = re.compile(r"(?<![\w.\-/])/[\w.+-]+/[\w.+-]+")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")


@pytest.fixture(scope="module")
def sample_page(sample_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as a bundle; only to be read."""
    page = tmp_path_factory.mktemp("bundle") / "case.npuscope.html"
    output_of("bundle", sample_store, "-o", page)
    return page


@pytest.mark.slow
def test_a_bundle_answers_as_the_store(run: Run, sample_store: Path, sample_page: Path) -> None:
    page = sample_page
    assert page.stat().st_size < 8_000_000
    for question in QUESTIONS:
        verb, *options = question.split()
        of_store = run(verb, sample_store, *options, "--json")
        of_page = run(verb, page, *options, "--json")
        assert of_page.code == 0
        told = of_store.out.replace(str(sample_store), str(page))
        assert json.loads(of_page.out)["rows"] == json.loads(told)["rows"], question
    with npuscope.open(page) as job:
        assert job.sql("select count(*) from kernels").item() == 2112
    (measure, *_) = run("compare", page, sample_store, "--json").json()["rows"]
    assert measure["a_ns"] == measure["b_ns"]


@pytest.mark.slow
def test_what_is_too_large_is_left_out_and_said(
    run: Run, sample_store: Path, tmp_path: Path
) -> None:
    page = tmp_path / "case.npuscope.html"
    told = run("bundle", sample_store, "-o", page, "--most", "250KB")
    assert "note: left out counters, host_ops" in told.err
    assert run("steps", page, "--json").rows == run("steps", sample_store, "--json").rows
    assert run("kernels", page, "--json").rows == run("kernels", sample_store, "--json").rows
    (left_out,) = run("sql", page, "select distinct left_out_tables from ranks", "--json").rows
    assert "host_ops" in left_out["left_out_tables"]


@pytest.mark.slow
def test_bad_bundles_are_told(
    run: Run, sample_store: Path, sample_page: Path, tmp_path: Path
) -> None:
    page = tmp_path / "case.npuscope.html"
    whole = sample_page.read_bytes()
    for damaged, told in (
        (whole[: len(whole) // 2], "cut off"),
        (whole.replace(b"UEsD", b"!!!!", 1), "damaged"),
    ):
        page.write_bytes(damaged)
        left = run("steps", page)
        assert left.code == 3
        assert told in left.err
    assert run("bundle", sample_store).code == 2
    assert "give -o" in run("bundle", sample_store).err


def test_a_bundle_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be made to harm, by a newer version, or the first of many."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    database, page = tmp_path / "tables.duckdb", tmp_path / "case.npuscope.html"
    con = connect(database)
    fill(con, "ranks", [{}])
    fill(con, "kernels", [kernel(10, 5, 1, name="Mul"), kernel(20, 5, 1, name="Add")])
    con.execute("alter table kernels add column said_by_a_newer_version bigint default 7")
    con.close()
    whole, _ = pack(database, 16 << 20)
    ours = zipfile.ZipFile(io.BytesIO(whole))
    members = {name: ours.read(name) for name in ours.namelist()}
    page.write_bytes(with_tables("<!doctype html>\n<body></body>", whole))
    assert store.query(page, "select name from kernels order by start_ns").rows() == [
        ("Mul",), ("Add",)
    ]  # fmt: skip

    def zipped(compression: int, zeros: int) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", compression) as archive:
            for name, content in {**members, "zeros.parquet": b"\0" * zeros}.items():
                archive.writestr(name, content)
        return made.getvalue()

    torn = bytearray(zipped(zipfile.ZIP_DEFLATED, 1 << 10))
    at = torn.find(b"kernels.parquet") + 20
    torn[at : at + 20] = b"\xff" * 20
    locked = bytearray(whole)
    locked[locked.rfind(b"PK\x01\x02") + 8] |= 1
    for harmful in (zipped(zipfile.ZIP_DEFLATED, 64 << 20), bytes(torn), bytes(locked)):
        other = tmp_path / f"{len(harmful)}.npuscope.html"
        other.write_bytes(with_tables("<!doctype html>\n<body></body>", harmful))
        tracemalloc.start()
        with pytest.raises(StoreError, match=r"damaged: .* is compressed or encrypted"):
            store.open(other)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()

    monkeypatch.setenv("XDG_CACHE_HOME", str(database))
    told = r"its tables cannot be unpacked below .*Not a directory.*set XDG_CACHE_HOME"
    with pytest.raises(StoreError, match=told):
        store.open(page.rename(tmp_path / "renamed.npuscope.html"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page = tmp_path / "renamed.npuscope.html"

    monkeypatch.setattr(bundle, "_KEPT_BUNDLES", 1)
    other = tmp_path / "other.npuscope.html"
    other.write_bytes(page.read_bytes() + b"<!-- another page -->")
    # What was killed while it unpacked leaves nothing for ever; what is at it stays.
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    kept = tmp_path / "cache" / "npuscope" / "bundles"
    names = [
        f".tmp-{process_space()}-{pid}-0123456789ab.parquet" for pid in (ended.pid, os.getpid())
    ]
    for name in names:
        (kept / name).write_bytes(b"PAR1")
    store.open(other).close()
    assert [(kept / name).exists() for name in names] == [False, True]
    assert store.query(page, "select count(*) from kernels").item() == 2


@pytest.mark.slow
def test_a_redacted_bundle_has_pseudonyms_and_the_same_figures(run: Run, tmp_path: Path) -> None:
    profiles = tmp_path / "moon_base"
    write_job(small(), profiles, forms=("text",))
    page = tmp_path / "a.npuscope.html"
    run("bundle", profiles, "--redact", "-o", page)
    before = run("comm", profiles, "--by", "op", "--json").rows
    after = run("comm", page, "--by", "op", "--json").rows
    changed = {"run", "op_name", "group_name"}
    assert [_without(row, changed) for row in after] == [_without(row, changed) for row in before]
    (told,) = {row["run"] for row in after}
    assert re.fullmatch("run-[0-9a-f]{8}", told)
    assert own_key(tmp_path / "cache") == own_key(tmp_path / "cache") != own_key(tmp_path / "other")
    with pytest.raises(StoreError, match=r"Not a directory.*set XDG_CACHE_HOME"):
        own_key(page / "here" / "cache")
    assert_nothing_is_left(profiles, page, run)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_nothing_is_left_of_real_names(
    run: Run, real_stores: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    page = tmp_path / "case.npuscope.html"
    assert run("bundle", real_stores(name), "--redact", "-o", page).code == 0
    assert_nothing_is_left(real_stores(name), page, run)


def _without(row: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def assert_nothing_is_left(profiles: Path, page: Path, run: Run) -> None:
    """No host, group, run, path or address of the profiles stands in the page or its tables."""
    sql = (
        "select host_name as name from ranks union select host_uid from ranks"
        " union select run from ranks union select group_name from groups"
    )
    names = {row["name"] for row in run("sql", profiles, sql, "--json").rows} - {
        None, "hccl_world_group", "default_group"
    }  # fmt: skip
    assert names
    whole = page.read_bytes()
    (html, _, packed) = whole.partition(b'id="npuscope-tables">')
    assert base64.b64decode(packed[: packed.index(b"<")])[:4] == b"PK\x03\x04"
    report = re.sub(r"<script.*?</script>", "", html.decode(), flags=re.S)
    texts = {report} | _texts(page)
    for name in names:
        assert not any(_stands(name, text) for text in texts), name
    left = {found for text in _texts(page) for found in _PATH.findall(text)}
    assert {one for one in left if not re.match("/path-[0-9a-f]{8}/", one)} == set()
    versions = set(re.findall(r"[\d.]+", str(run("sql", page, "from ranks", "--json").rows)))
    assert {one for text in _texts(page) for one in _ADDRESS.findall(text)} <= versions


def _stands(name: str, text: str) -> bool:
    return bool(re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", text))


def _texts(page: Path) -> set[str]:
    with duckdb.connect(str(unpack(page)), read_only=True) as con:
        columns = con.execute(
            "select table_name, column_name from duckdb_columns() where data_type = 'VARCHAR'"
            " and not internal"
        ).fetchall()
        return {
            text
            for table, column in columns
            for (text,) in con.execute(
                f'select distinct "{column}" from "{table}" where "{column}" is not null'
            ).fetchall()
        }


@pytest.mark.slow
def test_a_browser_asks_nothing_of_a_network(sample_page: Path) -> None:
    asked: list[str] = []
    errors: list[str] = []
    with chromium() as browser:
        shown = browser.new_page()
        shown.on("request", lambda one: asked.append(one.url))
        shown.on("pageerror", lambda one: errors.append(str(one)))
        shown.goto(sample_page.as_uri())
        assert shown.locator(".plotly-graph-div").count() >= 4
    assert asked == [sample_page.as_uri()]
    assert errors == []
