"""What several test modules share."""

from __future__ import annotations

import fcntl
import functools
import gc
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest
import typer.main
from hypothesis import HealthCheck, Phase, settings

from npuscope import cli
from npuscope.analysis import memo
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest import read_batch
from npuscope.collector.ingest.ingest import ingest
from npuscope.console import waiting
from npuscope.sample_traces.generate import Form, Job, small, write_job

# Some runners tell their terminal's width to whatever they start: commands would fold messages.
os.environ.pop("COLUMNS", None)

# Commands hold nothing of a call that another could meet; building them takes 0.1 CPU-s each time.
typer.main.get_command = functools.cache(typer.main.get_command)
cli._with_asked_only = functools.cache(cli._with_asked_only)

# On a busy machine any command takes longer than a moment; tests of what is said then ask for it.
waiting.PATIENCE_S = 600.0

# How long one example takes is the machine's affair, and a busy machine is no failure.
settings.register_profile("npuscope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("npuscope")
# For whoever asks only whether there is a failure: looking for the smallest takes most of the time.
settings.register_profile(
    "any_failure", settings.get_profile("npuscope"), phases=(Phase.explicit, Phase.generate)
)

REPOSITORY = Path(__file__).resolve().parents[1]
REAL_DATA = REPOSITORY.parent / "shared" / "data"
ROOMS = ("collector", "analysis", "dashboard", "sample_traces")


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at it ever again. And
    generated jobs are many objects that live as long as their test: looking at them less often
    takes 7 % less CPU."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Short tests keep answers in the stores that they share, as commands do. Long ones hold one
    way to an answer against another, some with rules of their own: each computes its own."""
    memo.WORTH_S = math.inf if item.get_closest_marker("slow") else 0.0


def pytest_sessionfinish() -> None:
    gc.unfreeze()


@pytest.fixture(scope="module")
def ranks_alone() -> Iterator[None]:
    """Ranks are read one by one, as large ones are: each has files of its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_batch, "MOST_RANKS", 1)
        yield


@pytest.fixture(autouse=True)
def children_import_as_before() -> Iterator[None]:
    """Commands that run in this process keep their children out of the current folder."""
    yield
    os.environ.pop("PYTHONSAFEPATH", None)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real profiles beside the repository; tests skip where it is absent."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"no real profiles at {REAL_DATA.name} beside the repository")
    return REAL_DATA


@pytest.fixture(scope="session")
def goldens(real_data: Path) -> dict[str, Any]:
    """Exact figures of the real profiles, by data set and rank."""
    datasets: dict[str, Any] = json.loads((real_data / "goldens.json").read_text())["datasets"]
    return datasets


@pytest.fixture(scope="session")
def sample_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the committed sample, made once for all workers; only to be read."""
    return _store(REPOSITORY / "sample_traces" / "moe_8_ranks", tmp_path_factory)


@pytest.fixture(scope="session")
def real_stores(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The store of a real profile by name, made once for all workers; only to be read."""
    return lambda name: _store(real_data / name, tmp_path_factory)


@pytest.fixture(scope="session")
def written_job(tmp_path_factory: pytest.TempPathFactory) -> WrittenJob:
    """The folder of a job's profiles, written once for all workers; only to be read."""

    def written(job: Job, *forms: Form) -> Path:
        name = hashlib.sha256(repr((job, forms)).encode()).hexdigest()[:12]
        return _made_once(
            tmp_path_factory, f"{name}/job", lambda path: write_job(job, path, forms=forms)
        )

    return written


@pytest.fixture(scope="session")
def stored_job(written_job: WrittenJob, tmp_path_factory: pytest.TempPathFactory) -> WrittenJob:
    """The store of a job's profiles, made once for all workers; only to be read."""
    return lambda job, *forms: _store(written_job(job, *forms), tmp_path_factory)


@pytest.fixture(scope="session")
def small_store(stored_job: WrittenJob) -> Path:
    return stored_job(small(), "text")


AGREEING = Job(name="agree", layers=2, dp=2, pp=2, ep=2, seed=21)


@pytest.fixture(scope="session")
def agreeing_stores(
    written_job: WrittenJob, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Form], Path]:
    """The store of one job's profiles in a form; only to be read."""

    def stored(form: Form) -> Path:
        def read(target: Path) -> None:
            read = ingest(written_job(AGREEING, form), target, run="agree", summarise=summarise)
            assert read.is_complete and len(read.publications) == AGREEING.world_size
            assert not any(outcome.warnings for outcome in read.publications)

        return _made_once(tmp_path_factory, f"stores/agreeing/{form}", read)

    return stored


class WrittenJob(Protocol):
    """A job, and the forms of its profiles."""

    def __call__(self, job: Job, *forms: Form) -> Path: ...


def _store(profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def read(target: Path) -> None:
        assert ingest(profiles, target, summarise=summarise, jobs=1).is_complete

    return _made_once(tmp_path_factory, f"stores/{profiles.parent.name}/{profiles.name}", read)


def _made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """What `make` put below the folder of this run, whichever worker asks first."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    done = target.with_name(f"{target.name}.done")
    with done.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(target)
            done.touch()
    return target


@pytest.fixture(scope="session")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a release ships: the `sdist`, the `wheel` made from it, the wheel made `direct`ly.

    Built once per test run, parallel or not, from a copy of what a build needs: leftovers of the
    working folder cannot slip in, and nothing is written into it.
    """

    def build(out: Path) -> None:
        with tempfile.TemporaryDirectory(dir=out.parent) as workshop:
            _build_distribution(Path(workshop))
            (Path(workshop) / "dist").rename(out)

    out = _made_once(tmp_path_factory, "distribution", build)
    found = {"sdist": out.glob("*.tar.gz"), "wheel": out.glob("*.whl")}
    found["direct"] = (out / "direct").glob("*.whl")
    return {name: next(paths) for name, paths in found.items()}


def _build_distribution(workshop: Path) -> None:
    source, out = workshop / "source", workshop / "dist"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for name in ("npuscope", *ROOMS):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignore)
    build = [sys.executable, "-m", "build", "--no-isolation", str(source), "--outdir"]
    for command in ([*build, str(out)], [*build, str(out / "direct"), "--wheel"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


KERNEL_HEADER = (
    "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us),Input Shapes\n"
)


class WriteProfile(Protocol):
    """Writes one rank's text profile: kernels as (step, name, start in us, duration in us)."""

    def __call__(
        self, folder: Path, rank: int, kernels: Sequence[tuple[int, str, str, str]] = ()
    ) -> Path: ...


@pytest.fixture(scope="session")
def write_profile() -> WriteProfile:
    """A minimal torch_npu text profile: kernel_details.csv and profiler_info."""

    def write(folder: Path, rank: int, kernels: Sequence[tuple[int, str, str, str]] = ()) -> Path:
        rows = kernels or [
            (7, "aclnnMatmul_MatMulV3", f"17364124740000{n:02}.250", "10.500") for n in range(20)
        ]
        output = folder / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True, exist_ok=True)
        lines = [
            f'{step},0,{name},MatMulV3,AI_CORE,{start}\t,{dur},"""4,8;8,16"""\n'
            for step, name, start, dur in rows
        ]
        (output / "kernel_details.csv").write_text(KERNEL_HEADER + "".join(lines))
        (folder / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
        return folder

    return write
