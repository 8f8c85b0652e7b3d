"""What others may not see: the cache, spilled rows (see test_reading_stores, too), staging."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest

from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import cache, store
from npuscope.collector.store.folder_handles import make_private, make_staging
from npuscope.collector.store.manifest import manifests, publish_folder
from npuscope.dashboard.app import launch
from tests.conftest import WriteProfile


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    store._other_spill_folder.cache_clear()
    return tmp_path / "tmp"


def test_a_cache_is_its_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_profile: WriteProfile
) -> None:
    """Also one that was made when it was open to everybody."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "cache"))
    source = write_profile(tmp_path / "r0_ascend_pt", 0)
    cache.cache_folder().mkdir(parents=True, mode=0o755)
    target = cache.own_store(source)
    ingest(source, target, jobs=1)
    cache.remember_use(target, source)
    assert mode(cache.cache_folder()) == mode(target) == 0o700
    [one] = cache.cached_stores()
    assert one.ranks == 1


def test_a_name_that_somebody_took_is_not_used(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (temporary / f"npuscope-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError):
        make_private(temporary / f"npuscope-{os.geteuid()}")
    with store._connection() as con:
        ((spill,),) = con.execute("select current_setting('temp_directory')").fetchall()
    assert not Path(spill).is_relative_to(temporary / f"npuscope-{os.geteuid()}")
    assert mode(Path(spill).parent) == 0o700
    assert not [*(tmp_path / "theirs").iterdir()]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_user_that_is_but_a_number_has_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: no HOME, and no entry among the users."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "executable", "/bin/sh")  # is told what the server would be
    monkeypatch.setattr(launch, "_START", 'echo "$HOME"')
    with (tmp_path / "told").open("w+") as told:
        if not (child := os.fork()):
            try:
                os.setuid(54321)
                os.dup2(told.fileno(), 1)
                os.write(1, f"{cache.cache_folder()}\n".encode())
                launch.serve({}, {})
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        told.seek(0)
        assert told.read() == "/.cache/npuscope\n/\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give folders away")
def test_a_folder_of_somebody_else_is_not_private(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o777)
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(PermissionError, match="somebody else's"):
        make_private(tmp_path / "theirs")


def test_what_is_written_is_seen_by_others_when_it_is_published(tmp_path: Path) -> None:
    """As much as the folder lets them in which it lies: stores are shared."""
    for shared in (0o755, 0o2775, 0o700):
        rank = tmp_path / f"run={shared}" / "capture=c" / "rank=0"
        staged = make_staging(rank)
        assert mode(staged) & 0o777 == 0o700
        rank.chmod(shared)
        with duckdb.connect() as con:
            con.execute(f"copy (select 1) to '{staged / 'ranks.parquet'}'")
        publish_folder(staged, "made")
        assert mode(rank / "made") == shared


def test_a_published_rank_is_no_secret(tmp_path: Path, write_profile: WriteProfile) -> None:
    source = write_profile(tmp_path / "r0_ascend_pt", 0)
    ingest(source, tmp_path / "store", jobs=1)
    [one] = manifests(tmp_path / "store")
    [generation] = (tmp_path / "store").glob(f"run=*/capture=*/rank=0/{one.generation}")
    assert mode(generation) == mode(tmp_path / "store")
