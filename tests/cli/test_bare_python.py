"""What must work without dependencies, and what `--help` may cost."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import Job, write_job

MOST_OF_TYPER = 3  # times what a bare `import typer` takes
HEAVY = frozenset(
    "adbc_driver_manager adbc_driver_sqlite duckdb msgspec numpy pandas plotly polars "
    "prometheus_client pyarrow streamlit torch torch_npu".split()
)

# Names of everything the import loads that is neither Python's own nor ours.
FOREIGN = """
import sys
before = set(sys.modules)
import npuscope, npuscope.collector.training
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(roots - sys.stdlib_module_names - {"npuscope"}))
"""

HELP = """
import sys
from npuscope.cli import main
sys.argv = ["npuscope", "--help"]
try:
    main()
except SystemExit as stop:
    code = stop.code
else:
    code = 0
print([code or 0, sorted({name.partition(".")[0] for name in sys.modules})], file=sys.stderr)
"""

READS = """
import sys
from npuscope.cli import main
sys.argv = ["npuscope", "ingest", sys.argv[1], "--store", sys.argv[2]]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
import pyarrow
pyarrow.array(["a list"])
print("pandas" in sys.modules, list(pyarrow.table({"a": [1, None]}).to_pandas()["a"].isna()))
"""


def bare_venv(python: str, folder: Path, wheel: Path) -> Path:
    """Interpreter of a new virtual environment that holds the wheel and nothing else."""
    folder.mkdir()
    subprocess.run([python, "-m", "venv", "--without-pip", "env"], cwd=folder, check=True)
    interpreter = folder / "env" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet"]
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run([*install, *options], cwd=folder, check=True, timeout=120)
    return interpreter


def check_bare_import(python: str, folder: Path, wheel: Path) -> None:
    interpreter = bare_venv(python, folder, wheel)
    run = [str(interpreter), "-I", "-W", "error", "-c", FOREIGN]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
    # Every module is at least valid in this version of the language.
    [package] = (folder / "env" / "lib").glob("python*/site-packages/npuscope")
    compile_all = [str(interpreter), "-m", "compileall", "-q", "-f", str(package)]
    done = subprocess.run(compile_all, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def find_python(version: str) -> str | None:
    """A working interpreter of this version on PATH or among pyenv's, else None."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [on_path] if on_path else []
    candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*"))]
    for candidate in candidates:
        probe = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(probe, capture_output=True, text=True, timeout=60)
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


@pytest.mark.slow
def test_a_training_process_needs_the_standard_library_only(
    distribution: dict[str, Path], tmp_path: Path
) -> None:
    check_bare_import(sys.executable, tmp_path / "bare", distribution["wheel"])


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_it_does_so_in_every_supported_python(
    version: str, distribution: dict[str, Path], tmp_path: Path
) -> None:
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    check_bare_import(python, tmp_path / "bare", distribution["wheel"])


def test_importing_the_package_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN], capture_output=True, text=True, timeout=60, check=True
    )
    assert set(ast.literal_eval(done.stdout)) & HEAVY == set()


def test_help_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    code, loaded = ast.literal_eval(done.stderr.splitlines()[-1])
    assert code == 0
    assert "Usage" in done.stdout and "report" in done.stdout
    assert set(loaded) & HEAVY == set()


def test_reading_loads_no_pandas_and_takes_it_from_nobody(tmp_path: Path) -> None:
    """pyarrow would, with the first list: more than a tenth of what reading a small rank takes."""
    pytest.importorskip("pandas")
    write_job(Job(name="job", layers=1, pp=1, dp=1, ep=1, steps=1), tmp_path / "job", forms=("db",))
    reads = [sys.executable, "-c", READS, str(tmp_path / "job"), str(tmp_path / "store")]
    done = subprocess.run(reads, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["False [False, True]"])


def test_help_is_quick() -> None:
    def cpu_s(*arguments: str) -> float:
        command = [sys.executable, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return usage.ru_utime + usage.ru_stime

    # In turns, as a machine's speed changes.
    taken = [(cpu_s("-m", "npuscope", "--help"), cpu_s("-c", "import typer")) for _ in range(4)]
    help_s, typer_s = map(min, zip(*taken, strict=True))
    assert help_s < MOST_OF_TYPER * typer_s
