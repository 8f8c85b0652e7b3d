"""How far predictions of jobs are off: constants fitted without the family that they predict.

    .venv/bin/python -m bench.analysis.strategy_bench [--fit] [--truth FILE] [--score FILE]

Each family of measured runs is predicted by constants fitted to all other families, and the
predictions are judged by the runs' own score.py. The fit is least squares on logarithms of steps,
robust, with each constant drawn to its prior (constants.json). `--fit` writes the constants that
all runs together give, and the intervals of 90 % that the left-out errors give. Rules of memory are
not fitted. Takes some ten minutes of two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from bench.measure import HERE
from npuscope.analysis.strategy.constants import (
    Constants,
    default_constants,
    described_constants,
)
from npuscope.analysis.strategy.cost import step_parts
from npuscope.analysis.strategy.job import Job
from npuscope.analysis.strategy.predict import predict, predict_records, stratum
from npuscope.analysis.strategy.run_records import job_of_record

DATA = HERE.parent.parent / "shared" / "data" / "strategy_runs"
ROOM = HERE.parent / "analysis" / "strategy"
OF_MEMORY = ("transient_layers", "logit_bytes", "overlap_layer_bytes")
NOISE = 0.1  # of a logarithm of a step: same configuration, other software
LEAST_ROBUST = 1.5  # deviations from which on an error counts linearly
COVERED = 0.9
Floats = npt.NDArray[np.float64]
Run = Mapping[str, Any]


def fitted_names() -> list[str]:
    """Constants of time that have a spread."""
    return [
        name
        for name, constant in described_constants().items()
        if constant.spread > 0 and name not in OF_MEMORY
    ]


def weight(run: Run) -> float:
    """How much a run counts in the fit: those derived from a logged rate less."""
    if not run["usable_time"] or run["stratum"] in ("C_mindspore", "A_special", "A_post"):
        return 0.0
    return 1.0 if run["headline_time"] else 0.6


def step_ms(job: Job, constants: Constants) -> float:
    """A predicted step."""
    return float(sum(step_parts(job, constants).values())) * 1e3


def fit(runs: Iterable[Run], start: Constants | None = None, most: int = 12) -> Constants:
    """Constants of these runs."""
    names, described = fitted_names(), described_constants()
    prior = np.log([described[name].prior for name in names])
    spread = np.array([described[name].spread for name in names])
    known = [
        (job_of_record(run), weight(run), run["measured"]["ms"]) for run in runs if weight(run)
    ]
    fixed = default_constants()

    def constants(x: Floats) -> Constants:
        return fixed | dict(zip(names, np.exp(x).tolist(), strict=True))

    def residuals(x: Floats) -> Floats:
        chosen = constants(x)
        errors = np.array([
            counts * log(step_ms(job, chosen) / measured) / NOISE
            for job, counts, measured in known
        ])  # fmt: skip
        scaled = errors / LEAST_ROBUST
        robust = LEAST_ROBUST * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1)) * np.sign(errors)
        return np.concatenate([robust, (x - prior) / spread])

    began = prior if start is None else np.log([start[name] for name in names])
    found = least_squares(
        residuals,
        began,
        max_nfev=most,
        x_scale=spread,
        ftol=1e-3,
        diff_step=np.full(prior.size, 1e-3),
    )
    return constants(found.x)


def left_out(runs: list[Run], start: Constants, family: str) -> dict[str, dict[str, float]]:
    """Predictions of a family by the others' constants."""
    chosen = fit([run for run in runs if run["family"] != family], start, 6)
    return predict_records([run for run in runs if run["family"] == family], chosen)


def intervals(
    runs: list[Run], predictions: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Half widths that hold 90 % of the left-out errors of a stratum; where it has fewer than five,
    all of these and 90 % of those of all strata."""
    errors: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        kind, found, told = stratum(job_of_record(run)), predictions[run["id"]], run["measured"]
        pairs = [("time", "ms", "ms", run["headline_time"]),
                 ("peak", "mb", "mb_peak", run["headline_memory"]),
                 ("allocated", "mb_alloc", "mb_alloc", run["headline_memory"])]  # fmt: skip
        for figure, ours, theirs, counts in pairs:
            if counts and told.get(theirs):
                error = abs(log(found[ours] / told[theirs]))
                errors.setdefault((kind, figure), []).append(error)
                errors.setdefault(("all", figure), []).append(error)
    widths: dict[str, dict[str, float]] = {}
    for kind in ("full dense", "full experts", "cut dense", "cut experts"):
        for figure in ("time", "peak", "allocated"):
            own, least = errors.get((kind, figure), []), 0.01
            if len(own) < 5:
                own, least = errors["all", figure], max([least, *own])
            held = float(np.quantile(own, COVERED, method="higher"))
            widths.setdefault(kind, {})[figure] = round(max(held, least), 3)
    return widths


def coverage(runs: list[Run], predictions: Mapping[str, Mapping[str, float]]) -> str:
    """Which share of runs is held by intervals of the errors of all other families."""
    said = []
    for key, ours, theirs, counts in (
        ("time", "ms", "ms", "headline_time"),
        ("peak", "mb", "mb_peak", "headline_memory"),
        ("allocated", "mb_alloc", "mb_alloc", "headline_memory"),
    ):
        held = []
        for run in runs:
            if run[counts] and run["measured"].get(theirs):
                others = [one for one in runs if one["family"] != run["family"]]
                width = intervals(others, predictions)[stratum(job_of_record(run))][key]
                ratio = predictions[run["id"]][ours] / run["measured"][theirs]
                held.append(abs(log(ratio)) <= width)
        said.append(f"{key} {100 * float(np.mean(held)):.1f} % of {len(held)}")
    return "intervals of 90 % hold " + ", ".join(said)


def of_usual_mfu(runs: list[Run]) -> Floats:
    """Errors of steps by FLOPs at the median MFU of all other families: a roofline, to beat."""
    told = [run for run in runs if run["headline_time"]]
    found = [predict(job_of_record(run)) for run in told]
    peak_s = np.array([one.mfu.predicted * one.step_s.predicted for one in found])
    step_s = np.array([run["measured"]["ms"] / 1e3 for run in told])
    family = np.array([run["family"] for run in told])
    usual = [np.median((step_s / peak_s)[family != own]) for own in family]
    errors: Floats = np.abs(peak_s * usual / step_s - 1)
    return errors


def main() -> int:
    """Predicts every family without it, prints the score."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--full", action="store_true", help="changes nothing: all runs are taken")
    options.add_argument("--fit", action="store_true", help="write constants and intervals")
    options.add_argument("--truth", type=Path, default=DATA / "runs.json")
    options.add_argument("--score", type=Path, default=DATA / "score.py")
    given = options.parse_args()
    if not given.truth.is_file():
        print(f"{given.truth}: no measured runs here")
        return 0
    runs: list[Run] = json.loads(given.truth.read_text())
    of_all = fit(runs)
    families = sorted({run["family"] for run in runs})
    predictions: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor(2) as pool:
        for found in pool.map(partial(left_out, runs, of_all), families):
            predictions |= found
    if given.fit:
        described = {
            name: replace(one, value=float(f"{of_all[name]:.4g}")) if name in of_all else one
            for name, one in described_constants().items()
        }
        _write(ROOM / "constants.json", described)
        _write(ROOM / "intervals.json", intervals(runs, predictions))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.json"
        path.write_text(json.dumps(predictions))
        said = subprocess.run(
            [sys.executable, given.score, path, given.truth], capture_output=True, check=True
        )
    print(said.stdout.decode())
    if not given.fit:
        print(coverage(runs, predictions))
        errors = 100 * of_usual_mfu(runs)
        print(f"by the usual MFU: mean {errors.mean():.1f} %, median {np.median(errors):.1f} %")
    return 0


def _write(path: Path, content: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
