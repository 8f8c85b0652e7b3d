"""A training process that is killed leaves nothing that a watcher would take for a capture."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from npuscope.collector.watch.folders import judge, look

REPOSITORY = Path(__file__).resolve().parents[3]

# The child counts calls of `name`, and dies in the one that is asked for.
CHILD = """
import os, signal, sys
from pathlib import Path
from tests.collector.training import fake_torch_npu
from npuscope.collector.training import profile_session

script = fake_torch_npu.install()
folder, kills = sys.argv[1:]
with profile_session(folder, every=5, run="r") as session:
    for step in range(20):
        if step == 8:
            if kills == "replace":
                Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            script.kills = kills
        session.step()
"""


# Three steps of the window that begins with step 5, and nobody closes the session.
LEFT = """
import sys
from tests.collector.training import fake_torch_npu
from npuscope.collector.training import profile_session

fake_torch_npu.install()
session = profile_session(sys.argv[1], every=5, active=4)
session.start()
for step in range(8):
    session.step()
if sys.argv[2] == "fails":
    raise RuntimeError("out of memory")
"""


def end(script: str, folder: Path, how: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", script, str(folder), how],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "NPUSCOPE": ""},
        capture_output=True,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("how", "last_steps"), [("ends", [7]), ("fails", [])])
def test_a_session_that_is_not_closed_ends_with_its_process(
    tmp_path: Path, how: str, last_steps: list[int]
) -> None:
    done = end(LEFT, tmp_path, how)
    assert done.returncode == (how == "fails"), done.stderr
    (folder,) = tmp_path.glob("*_ascend_pt")
    assert (folder / "profiler_info_0.json").exists(), "the profiler was stopped"
    told = [json.loads(path.read_text()) for path in tmp_path.glob("*/READY.json")]
    assert [one["last_step"] for one in told] == last_steps


@pytest.mark.parametrize(
    "kills",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("profile", "start", "step")),
        "finalize",
        "replace",
    ],
)
def test_a_killed_process_publishes_nothing_more(tmp_path: Path, kills: str) -> None:
    # The first window (5, 6) was published; it dies in, or on the way to, the second one.
    done = end(CHILD, tmp_path, kills)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (ready,) = tmp_path.glob("*_ascend_pt/READY.json")
    assert json.loads(ready.read_text())["first_step"] == 5
    left = {path.name for path in tmp_path.rglob("*READY*") if path != ready}
    assert all(name.startswith(".READY.json.") and name.endswith(".tmp") for name in left)
    assert bool(left) == (kills == "replace")
    assert len(list(tmp_path.iterdir())) == (1 if kills in ("profile", "start") else 2)
    for folder in set(tmp_path.iterdir()) - {ready.parent}:
        told = [judge(look(folder), is_quiet=is_quiet) for is_quiet in (False, True)]
        assert [one.kind for one in told] == ["waiting", "waiting"]
