"""The command line as users and scripts meet it: answers, exit codes, messages."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pytest

from npuscope.sample_traces.generate import small, write_job
from tests.cli.command import Run

STEP_COLUMNS = (
    "run capture rank step basis start_ns end_ns window_start_ns window_end_ns computing_ns "
    "communication_ns overlapped_ns exposed_communication_ns free_ns host_ns idle_ns stage_ns "
    "bubble_ns profiler_bubble_ns preparing_ns preparing_basis masking_ratio is_warm_up"
).split()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, write_profile: Callable[..., Path]) -> Path:
    """A folder with a `profile` and the `cache` of those who leave both as they are."""
    folder = tmp_path_factory.mktemp("shared")
    for rank in range(2):
        write_profile(folder / "profile" / f"h{rank}_ascend_pt", rank)
    return folder


@pytest.fixture
def profile(store: Path) -> Path:
    return store / "profile"


@pytest.fixture
def own_profile(profile: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(profile, tmp_path / "profile"))


def test_steps_as_json(run_apart: Run, profile: Path) -> None:
    answer = run_apart("steps", profile, "--json").json()

    assert {k: v for k, v in answer.items() if k not in ("rows", "notes")} == {
        "schema_version": 1,
        "metric": "steps",
    }
    assert [list(row) for row in answer["rows"]] == [STEP_COLUMNS] * 2
    first = answer["rows"][0]
    assert (first["rank"], first["step"], first["basis"]) == (0, 7, "events")
    # 20 kernels of 10.5 us, one beginning every 1 us: they cover 29.5 us.
    assert first["computing_ns"] == 29_500
    assert first["window_start_ns"] is None
    assert first["masking_ratio"] is None


@pytest.mark.parametrize("by", ["type", "name", "core", "shape"])
def test_kernels_as_json(run: Run, profile: Path, by: str) -> None:
    answer = run("kernels", profile, "--by", by, "--rank", 1, "--step", 7, "--json").json()

    (row,) = answer["rows"]
    key = [by] if by == "core" else [by, "core"]
    assert list(row) == [
        *("run", "capture", "rank", "step"), *key,
        *("count", "total_ns", "mean_ns", "p50_ns", "p99_ns", "max_ns", "computing_share_ratio"),
    ]  # fmt: skip
    assert (row["rank"], row["count"], row["total_ns"]) == (1, 20, 210_000)
    wanted = {"type": "MatMulV3", "name": "aclnnMatmul_MatMulV3", "core": "AI_CORE"}
    assert row[by] == wanted.get(by, "4,8;8,16")


def test_the_folder_may_be_given_as_d(run: Run, profile: Path) -> None:
    assert run("steps", "-d", profile, "--json").json() == run("steps", profile, "--json").json()


def test_a_second_call_reads_nothing_again(run_apart: Run, profile: Path, tmp_path: Path) -> None:
    run_apart("steps", profile)
    manifests = {p: p.stat().st_ino for p in (tmp_path / "cache").rglob("manifest.json")}
    assert len(manifests) == 2

    run_apart("kernels", profile)

    assert {p: p.stat().st_ino for p in manifests} == manifests


def test_report_says_the_main_things(
    run: Run, profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = run("report", profile)
    facts = {line.split()[0] for line in outcome.out.splitlines()[1:7] if line.strip()}
    assert "wall" in facts and "window" not in facts  # of the profiling sessions

    assert outcome.code == 0
    for words in ("Where each step goes", "Top kernels by type", "MatMulV3", "To know it:"):
        assert words in outcome.out
    monkeypatch.setenv("COLUMNS", "0")  # of a terminal that does not know its width
    assert "MatMulV3" in run("kernels", profile).out


def test_report_as_json_has_every_section(run: Run, profile: Path) -> None:
    (capture,) = run("report", profile, "--json", "--top", 1).json()["rows"]

    assert (capture["rank_count"], capture["steps"]) == (2, [7])
    assert [row["computing_ns"] for row in capture["step_rows"]] == [29_500] * 2
    assert [row["type"] for row in capture["kernels"]] == ["MatMulV3"] * 2
    assert {row["measure"] for row in capture["spread"]} >= {"computing", "free"}
    assert capture["communication"] == []
    assert any("Level1" in limit for limit in capture["limits"])


def test_a_store_is_a_path_too(run_apart: Run, profile: Path, tmp_path: Path) -> None:
    assert run_apart("ingest", profile, "--store", tmp_path / "store", "--run", "monday").code == 0

    rows = run_apart("steps", tmp_path / "store", "--json").json()["rows"]

    assert {row["run"] for row in rows} == {"monday"}
    assert not (tmp_path / "cache").exists(), "nothing beside the store was written"


def test_an_export_holds_what_the_store_holds(
    run_apart: Run, profile: Path, tmp_path: Path
) -> None:
    assert run_apart("ingest", profile, "-o", tmp_path / "x.duckdb").code == 0

    exported = run_apart("steps", tmp_path / "x.duckdb", "--json").json()

    assert exported == run_apart("steps", profile, "--json").json()
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as con:
        assert con.execute("select count(*) from kernels").fetchall() == [(40,)]
        assert con.execute("select count(*) from comm_links").fetchall() == [(0,)]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".tmp")] == []


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_export_as_files(run: Run, profile: Path, tmp_path: Path, form: str) -> None:
    assert run("export", form, profile, "-o", tmp_path / "out").code == 0

    read = pl.read_parquet if form == "parquet" else pl.read_csv
    assert read(tmp_path / "out" / f"kernels.{form}").height == 40
    assert not (tmp_path / "out" / f"comm_ops.{form}").exists()


def test_an_export_never_replaces_other_files(run: Run, profile: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.duckdb"
    precious.write_text("thesis")

    outcome = run("export", "duckdb", profile, "-o", precious)

    assert outcome.code == 2
    assert "no earlier" in outcome.err
    assert precious.read_text() == "thesis"
    assert run("export", "duckdb", profile, "-o", tmp_path / "x.duckdb").code == 0
    assert run("export", "duckdb", profile, "-o", tmp_path / "x.duckdb").code == 0


class TestSql:
    def test_table(self, run: Run, profile: Path) -> None:
        outcome = run(
            "sql", profile, "select rank, count(*) as n from kernels group by 1 order by 1"
        )

        assert outcome.code == 0
        assert "20" in outcome.out

    def test_several_runs_of_a_folder_are_told(
        self, run: Run, profile: Path, tmp_path: Path
    ) -> None:
        query = "select count(*) from ranks"
        place = ("--store", tmp_path / "store")

        assert "note" not in run("sql", profile, query, *place).err
        run("steps", profile, *place, "--run", "typo")

        assert "runs job and typo" in run("sql", profile, query, *place).err.replace(
            profile.name, "job"
        )

    def test_json(self, run: Run, profile: Path) -> None:
        query = "select rank, 9007199254740993 as big, [1, 2] as list, null as nothing from ranks"

        rows = run("sql", profile, query, "--json").json()["rows"]

        assert rows[1] == {"rank": 1, "big": 9007199254740993, "list": [1, 2], "nothing": None}

    def test_csv_and_parquet_files(self, run: Run, profile: Path, tmp_path: Path) -> None:
        query = "select rank, name from kernels order by all limit 3"

        run("sql", profile, query, "--csv", "-o", tmp_path / "x.csv")
        run("sql", profile, query, "--parquet", "-o", tmp_path / "x.parquet")

        rows = list(csv.reader(io.StringIO((tmp_path / "x.csv").read_text())))
        assert rows[0] == ["rank", "name"]
        assert len(rows) == 4
        assert pl.read_parquet(tmp_path / "x.parquet").height == 3

    def test_columns_that_share_a_name_are_all_there(
        self, run: Run, profile: Path, tmp_path: Path
    ) -> None:
        query = "select 1 a, 2 a, 3 a"

        [row] = run("sql", profile, query, "--json").json()["rows"]
        run("sql", profile, query, "--csv", "-o", tmp_path / "x.csv")
        run("sql", profile, query, "--parquet", "-o", tmp_path / "x.parquet")
        table = run("sql", profile, query).out.split()

        assert row == {"a": 1, "a_1": 2, "a_2": 3}
        assert (tmp_path / "x.csv").read_text().split() == ["a,a_1,a_2", "1,2,3"]
        assert pl.read_parquet(tmp_path / "x.parquet").to_dicts() == [row]
        assert [word for word in table if word[0] in "a123"] == ["a", "a_1", "a_2", "1", "2", "3"]

    @pytest.mark.parametrize(
        "query",
        [
            "select * from read_text('/etc/passwd')",
            "select * from glob('/etc/*')",
            "copy (select 1) to 'evil.csv'",
            "explain analyze copy (select 1) to 'evil.csv'",
            "create table evil as select 1",
            "drop view kernels",
            "attach 'evil.db'",
            "set enable_external_access = true",
            "pragma database_list",
            "install httpfs",
            "select 1; select 2",
            "selec nonsense",
        ],
    )
    def test_it_can_only_read(
        self, run: Run, profile: Path, query: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        place = tmp_path / "here"
        place.mkdir()
        monkeypatch.chdir(place)

        outcome = run("sql", profile, query)

        assert outcome.code == 2
        assert outcome.out == ""
        assert not list(place.iterdir())
        assert run("sql", profile, "select count(*) from kernels", "--json").code == 0

    def test_explain_analyze_cannot_write_into_the_store(
        self, run_apart: Run, profile: Path, tmp_path: Path
    ) -> None:
        run_apart("steps", profile)
        segment = next((tmp_path / "cache").rglob("kernels*.parquet"))
        before = segment.read_bytes()

        outcome = run_apart("sql", profile, f"explain analyze copy (select 1) to '{segment}'")

        assert outcome.code == 2
        assert segment.read_bytes() == before


class TestErrors:
    def test_no_path(self, run: Run) -> None:
        assert run("steps").code == 2

    def test_missing_folder(self, run: Run, tmp_path: Path) -> None:
        outcome = run("report", tmp_path / "absent")

        assert outcome.code == 3
        assert outcome.err.startswith("npuscope: ")
        assert "Traceback" not in outcome.err

    def test_a_folder_without_profiles_says_what_to_do(self, run: Run, tmp_path: Path) -> None:
        outcome = run("report", tmp_path)

        assert outcome.code == 3
        assert "analyse()" in outcome.err

    def test_a_broken_rank_gives_4_and_the_rest(self, run_apart: Run, own_profile: Path) -> None:
        next((own_profile / "h1_ascend_pt").rglob("*.csv")).write_bytes(b"\x00garbage")

        outcome = run_apart("steps", own_profile, "--json")

        assert outcome.code == 4
        assert [row["rank"] for row in outcome.json()["rows"]] == [0]
        assert "rank 1" in outcome.err

    def test_what_is_not_there(self, run: Run, profile: Path) -> None:
        outcome = run("steps", profile, "--rank", 9)

        assert outcome.code == 2
        assert "no rank 9 here: there is 0-1" in outcome.err
        assert run("kernels", profile, "--step", 99).code == 2
        assert run("kernels", profile, "--by", "colour").code == 2
        assert run("steps", profile, "--memory", "lots").code == 2
        assert run("steps", profile, "--nonsense").code == 2

    def test_a_profile_without_figures(self, run_apart: Run, tmp_path: Path) -> None:
        folder = tmp_path / "memory only"
        folder.mkdir()
        (folder / "npu_module_mem.csv").write_text(
            "Component,Timestamp(us),Total Reserved(MB),Device\nHCCL,1736412474000000.1,4.0,NPU:0\n"
        )

        outcome = run_apart("steps", folder)

        assert outcome.code == 3
        assert "no rank here has a step" in outcome.err

    def test_a_cut_timeline_that_is_all_there_is(self, run_apart: Run, tmp_path: Path) -> None:
        write_job(small(dp=1, ep=1, steps=1), tmp_path / "job", forms=("text",))
        (trace,) = (tmp_path / "job").rglob("trace_view.json")
        for other in trace.parent.glob("*.csv"):
            other.unlink()
        trace.write_bytes(trace.read_bytes()[: trace.stat().st_size * 2 // 3])

        outcome = run_apart("steps", tmp_path / "job", "--json")

        assert outcome.code == 4
        assert "file of rank 0" in outcome.err
        told = set(outcome.err.split())  # its table folds long paths, and words beside them
        assert {"figures", "rank", "cover", "only", "part"} <= told

    def test_a_cut_database_leaves_what_the_other_one_tells(
        self, run_apart: Run, tmp_path: Path
    ) -> None:
        write_job(small(steps=1), tmp_path / "job", forms=("db",))
        (database,) = (tmp_path / "job").rglob("ascend_pytorch_profiler_1.db")
        database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])

        outcome = run_apart("steps", tmp_path / "job", "--json")

        assert outcome.code == 4
        found = {row["rank"]: row["basis"] for row in outcome.json()["rows"]}
        assert found == {0: "events", 1: "profiler_table"}
        assert "file of rank 1" in outcome.err

    def test_a_foreign_store_folder(self, run: Run, profile: Path, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "file").write_text("")

        assert run("ingest", profile, "--store", tmp_path / "mine").code == 3


def test_cached_stores_are_listed_and_removed(
    run_apart: Run, profile: Path, tmp_path: Path
) -> None:
    run_apart("steps", profile)

    (listed,) = run_apart("store", "list", "--json").json()["rows"]
    assert (listed["source"], listed["ranks"]) == (str(profile.resolve()), 2)

    assert run_apart("store", "rm", profile).code == 0
    assert run_apart("store", "list", "--json").json()["rows"] == []
    assert profile.exists()
    assert run_apart("store", "rm", "nothing").code == 2


@pytest.mark.slow
def test_the_cache_forgets_the_least_recently_used(
    run_apart: Run, own_profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npuscope.collector.store import cache

    run_apart("steps", own_profile)
    other = tmp_path / "other"
    own_profile.rename(other)
    run_apart("steps", other)

    gone = cache.keep_within_limit(cache.store_of(other), limit_bytes=1)

    assert [store.source for store in gone] == [str(own_profile)]
    assert [store.source for store in cache.cached_stores()] == [str(other)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "first"), [("kernels {} --json", "{"), ("report {} --top 500", "p")]
)
def test_a_reader_that_leaves_early_is_no_error(
    profile: Path, tmp_path: Path, command: str, first: str
) -> None:
    command = f"{sys.executable} -m npuscope {command.format(profile)} | head -c 1"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, first)
    assert "Traceback" not in done.stderr


_NO_MEMORY = """
import os, resource
import npuscope.profile, npuscope.cli
def located(source):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 44, 1 << 44))
    exec(os.environ['FAILS'])
npuscope.profile.locate = located
npuscope.cli.main()
"""


@pytest.mark.slow
def test_whoever_hears_the_answer_is_told_the_same(own_profile: Path, tmp_path: Path) -> None:
    """Streams that are closed, full, or that nobody reads change neither code nor answer."""
    next(own_profile.rglob("kernel_details.csv")).write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def told(redirection: str, *options: str) -> tuple[int, str, str]:
        words = [sys.executable, "-m", "npuscope", "steps", str(own_profile), *options]
        done = subprocess.run(
            ["bash", "-c", f'"$@" {redirection}', "sh", *words],
            capture_output=True, text=True, env=environment, timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    code, out, err = told("", "--json")
    assert code == 4 and out and "not read" in err
    for nowhere in ("2>&- <&-", "2>/dev/full", "2> >(true)"):
        assert told(nowhere, "--json") == (code, out, ""), nowhere
    code, out, err = told(">&-", "--json")
    assert (code, out) == (4, "") and "Traceback" not in err
    for options in ((), ("--json",)):
        code, _, err = told(">/dev/full", *options)
        assert code == 3 and "npuscope: stdout: No space left on device" in err
    # The second: of polars, whose compiled half found no room.
    for fails in ("bytes(1 << 60)", "PySeries", 'raise RuntimeError("can\'t start new thread")'):
        small = [sys.executable, "-c", _NO_MEMORY, "steps", str(own_profile)]
        done = subprocess.run(
            small, capture_output=True, text=True, env=environment | {"FAILS": fails}, timeout=60
        )
        said = done.stderr.splitlines()[-1]
        assert done.returncode == 3 and said.startswith("npuscope: no more memory"), fails


_PRESSED_AT_IMPORT = """
import os, runpy, signal, sys
class Press:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
sys.argv[1:] = [*sys.argv[1:2], "--version"]
runpy.run_module("npuscope", run_name="__main__")
"""
_PRESSED_IN_ENGINE = """
import os, signal
import npuscope.cli as cli
def engine(**_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        raise RuntimeError("Query interrupted")
cli._with_asked_only = lambda word: engine
cli.main()
"""


def test_ctrl_c_says_nothing_whenever_it_comes() -> None:
    for script, where in (
        (_PRESSED_AT_IMPORT, "npuscope.import_path"),
        (_PRESSED_AT_IMPORT, "typer"),
        (_PRESSED_IN_ENGINE, ""),
    ):
        command = [sys.executable, "-c", script, where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", ""), where
