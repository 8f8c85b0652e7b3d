"""How long `npuscope health` takes for a training of a million steps, in each form of a log.

    .venv/bin/python -m bench.analysis.health_bench [--full] [--runs N]

Generated logs with a fixed seed: 2 % noise of step times, a spike of the gradient norm now and
then. Limits: a million lines in 10 CPU-s; and memory that is bounded by the steps that are logged.
Beside them what reading the bytes takes in Python. Without --full a tenth of the lines, in a tenth
of the time beyond what a hundred lines take: the command's start is not a tenth.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.measure import BUILD, NPUSCOPE, Command, arguments, commit, interleave, report, table

LINES, LIMIT_S, LIMIT_MIB = 1_000_000, 10.0, 2048
_BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_BYTES = "import sys\nwith open(sys.argv[1], 'rb', 0) as f:\n    while f.read(4 << 20): pass"


class Step(NamedTuple):
    """What a trainer prints of a step."""

    number: int
    at: str
    step_ms: float
    loss: float
    grad_norm: float


def steps(count: int) -> Iterator[Step]:
    """The steps of one training."""
    dice = np.random.default_rng(7)
    times_ms = 5000 * np.exp(0.02 * dice.standard_normal(count))
    losses = 2 + 9 / np.sqrt(np.arange(1, count + 1)) + 0.01 * dice.standard_normal(count)
    norms = np.exp(0.1 * dice.standard_normal(count)) * (1 + 9 * (dice.random(count) < 1e-3))
    ends_s = np.cumsum(times_ms) / 1e3
    told = zip(ends_s.tolist(), times_ms.tolist(), losses.tolist(), norms.tolist(), strict=True)
    for number, (end_s, step_ms, loss, norm) in enumerate(told, 1):
        at = (_BEGAN + timedelta(seconds=end_s)).strftime("%Y-%m-%d %H:%M:%S")
        yield Step(number, at, step_ms, loss, norm)


def _megatron(one: Step) -> str:
    return (
        f" [{one.at}] iteration {one.number:8d}/ {LINES} | consumed samples: {one.number * 64:12d}"
        f" | elapsed time per iteration (ms): {one.step_ms:.1f} | throughput per GPU (TFLOP/s/GPU):"
        f" {7e5 / one.step_ms:.1f} | learning rate: 1.000000E-05 | global batch size: {64:5d} |"
        f" lm loss: {one.loss:.6E} | loss scale: 1.0 | grad norm: {one.grad_norm:.3f} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def _titan(one: Step) -> str:
    return (
        f"[rank0]:[titan] {one.at},123 - root - INFO - step: {one.number:2d}  loss: {one.loss:7.4f}"
        f"  grad_norm: {one.grad_norm:7.4f}  memory: 47.26GiB(49.74%)  tps:"
        f" {round(4e7 / one.step_ms):,}  tflops: {7e5 / one.step_ms:,.2f}  mfu: 14.07%"
    )


def _jsonl(one: Step) -> str:
    return (
        f'{{"step": {one.number}, "loss": {one.loss:.5f}, "grad_norm": {one.grad_norm:.4f},'
        f' "learning_rate": 1e-05, "step_time": {one.step_ms / 1e3:.4f}}}'
    )


def _mindformers(one: Step) -> str:
    return (
        f"{one.at},123 - mindformers - INFO - {{ Epoch:[{1:3d}/{1:3d}], step:[{one.number:8d}/"
        f"{LINES}], loss: {one.loss:6.3f}, per_step_time: {one.step_ms:.0f}ms, lr: 1e-05, overflow"
        f" cond: False, loss_scale: 1.0, global_norm: [{one.grad_norm:.5f}],"
        f" train_throughput_per_npu: {7e5 / one.step_ms:.3f}T"
    )


def _verl(one: Step) -> str:
    gen_s, step_s = one.step_ms / 2e3, one.step_ms / 1e3
    return (
        f"\x1b[36m(TaskRunner pid=7)\x1b[0m step:{one.number} - actor/pg_loss:{one.loss:.6f} -"
        f" actor/grad_norm:{one.grad_norm:.6f} - actor/lr:1e-06 - timing_s/gen:{gen_s:.4f} -"
        f" timing_s/old_log_prob:{gen_s / 4:.4f} - timing_s/update_actor:{gen_s / 2:.4f} -"
        f" timing_s/step:{step_s:.4f} - perf/total_num_tokens:{5_000_000} -"
        f" perf/throughput:{5e6 / step_s / 8:.4f}"
    )


FORMATS: dict[str, Callable[[Step], str]] = {
    "Megatron": _megatron, "torchtitan": _titan, "JSON lines": _jsonl, "MindFormers": _mindformers,
    "verl": _verl,
}  # fmt: skip


def write(path: Path, form: Callable[[Step], str], count: int) -> None:
    """A log with one line for each step."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{form(one)}\n" for one in steps(count))


def main() -> int:
    """Writes the logs, measures, prints the table; 1 where a limit is broken."""
    chosen = arguments(__doc__)
    count = LINES if chosen.full else LINES // 10
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / "health_bench.log"
    health = Command([NPUSCOPE, "health", str(path)])
    limit_s = LIMIT_S
    if not chosen.full:
        write(path, _megatron, 100)
        limit_s = LIMIT_S / 10 + interleave({"start": health}, chosen.runs)["start"].cpu_s
    rows, is_met = [], True
    for name, form in FORMATS.items():
        write(path, form, count)
        size_mb = path.stat().st_size / 1e6
        found = interleave({
            "health": health,
            "bytes": Command([sys.executable, "-S", "-c", _BYTES, str(path)]),
        }, chosen.runs)  # fmt: skip
        path.unlink()
        taken, bare = found["health"], found["bytes"]
        is_met &= not taken.failed and taken.cpu_s <= limit_s and taken.peak_mib <= LIMIT_MIB
        rows.append([
            name, f"{size_mb:.0f}", f"{taken.cpu_s:.2f}", f"{taken.cpu_s / limit_s:.2f}",
            f"{taken.cpu_s / bare.cpu_s:.0f}", f"{taken.peak_mib:.0f}",
            f"{taken.peak_mib / LIMIT_MIB:.2f}", taken.failed or "",
        ])  # fmt: skip
    header = ["log", "MB", "CPU-s", "of the limit", "x reading bytes", "peak MiB",
              "of the limit", "failed"]  # fmt: skip
    note = (
        f"{count:,} lines, seed 7, {chosen.runs} run(s), commit {commit()}; limits {limit_s:.3g}"
        f" CPU-s and {LIMIT_MIB} MiB: {'met' if is_met else 'NOT met'}"
    )
    report("Health of a long training", f"{table(header, rows)}\n\n{note}")
    return 0 if is_met else 1


if __name__ == "__main__":
    raise SystemExit(main())
