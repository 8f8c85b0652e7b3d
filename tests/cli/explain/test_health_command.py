"""`npuscope health`: logs and stores, against another log."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Run

LINE = (
    "iteration {0}/ 500 | elapsed time per iteration (ms): {1} | lm loss: {2} | grad norm: {3} |\n"
)


def log(path: Path, spiked: set[int]) -> Path:
    path.write_text(
        "".join(
            LINE.format(step, 5000 + step % 7, 9.1, (50 if step in spiked else 1) + step % 5 / 50)
            for step in range(1, 401)
        )
    )
    return path


def test_a_log_against_another(run: Run, tmp_path: Path) -> None:
    ours, theirs = log(tmp_path / "a.log", {99}), log(tmp_path / "b.log", set(range(60, 390, 10)))
    told = run("health", ours, "--against", theirs, "--json")
    assert (told.code, told.json()["metric"], len(told.rows)) == (0, "health", 400)
    (event,) = told.json()["events"]
    assert (event["kind"], event["metric"], event["step"]) == ("spike", "grad_norm", 99)
    assert told.json()["summary"]["grad_norm_spikes_count"] == 1
    assert "97.0 % fewer spikes" in told.json()["notes"][0]
    shown = run("health", ours, "--against", theirs)
    assert "spike" in shown.out
    assert "97.0 % fewer spikes" in shown.err


def test_what_has_no_log_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("nothing\n")
    told = run("health", tmp_path / "empty.log")
    assert (told.code, "no logged step" in told.err) == (3, True)
    assert run("health", tmp_path / "gone.log").code == 3
