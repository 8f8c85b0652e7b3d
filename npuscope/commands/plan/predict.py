"""`npuscope predict`: time and memory of a job before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npuscope.commands.command import Json, Out, leave_where_partial, say_notes
from npuscope.console import print_json, say, show
from npuscope.errors import TraceFormatError, TraceNotFound, UsageError

from .constants import Calibrate, calibration_of

What = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="As `npuscope model` takes it; a launch script of Megatron or MindSpeed has its own"
        " strategy.",
    ),
]
ChipName = Annotated[str, typer.Option("--chip", metavar="NAME", help="910B1 to 910B4, 910_9391.")]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NODESxNPUS", help="8x8; a script has its own."),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="KEY=N,...",
        help="tp, pp, vpp, cp, ep, etp, mbs, gbs, seq, recompute=none|selective|full|N, skew, and"
        " switches as sp=0, fb_overlap=1: docs/strategy.md.",
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option("--runs", metavar="FILE", help="Records of runs as JSON: predict each."),
]


def predict(
    what: What = None,
    chip: ChipName = "910B2",
    cluster: Cluster = None,
    strategy: Strategy = None,
    runs: Runs = None,
    calibrate: Calibrate = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Step time, rates, MFU and memory of each stage of a training job, before it runs.

    \b
    Examples:
      npuscope predict llama3-70b --cluster 8x8 --strategy tp=8,pp=8,mbs=1,gbs=512,seq=8192
      npuscope predict deepseek-v3 --chip 910B3 --cluster 64x8 \\
          --strategy tp=1,pp=16,ep=32,mbs=1,gbs=4096,seq=4096,recompute=full
      npuscope predict ./pretrain.sh --chip 910B2 --json
      npuscope predict ./pretrain.sh --calibrate ./profiles
      npuscope predict --runs runs.json -o predictions.json
    """
    if runs is not None:
        if what is not None or strategy is not None or cluster is not None:
            raise UsageError("--runs has its own models and strategies: do not combine it")
        _of_runs(runs, out, calibrate)
        return
    if what is None:
        raise UsageError("give a MODEL with --cluster and --strategy, or a launch script")
    if out is not None:
        raise UsageError("-o is for --runs: redirect --json instead")
    from npuscope.analysis.flops.model.describe import model_of
    from npuscope.analysis.strategy import describe
    from npuscope.analysis.strategy import predict as prediction
    from npuscope.analysis.strategy.notes import prediction_notes
    from npuscope.dashboard.terminal import strategy_tables

    machine = describe.machine_of(chip)
    size = None if cluster is None else describe.cluster_of(cluster)
    assumed: list[str] = []
    if strategy is None:
        if not Path(what).is_file():
            raise UsageError(f"{what}: give --strategy, or a launch script that has its own")
        job = describe.job_of_script(Path(what), machine, size)
        assumed = describe.script_notes(Path(what), size)
    else:
        if size is None:
            raise UsageError("give --cluster NODESxNPUS with --strategy")
        job = describe.job_of_strategy(model_of(what), machine, size, strategy)
    measured, constants, places = calibration_of(calibrate)
    outcome = prediction.predict(job, constants)
    parts, memory = prediction.part_rows(outcome), prediction.memory_rows(job, outcome)
    notes = assumed + prediction_notes(job, outcome, is_calibrated=measured is not None)
    if json:
        print_json(
            "predict", parts.to_dicts(), notes,
            figures=strategy_tables.figures(outcome), stages=memory.to_dicts(),
            calibration=None if measured is None else measured.to_dicts(),
        )  # fmt: skip
        leave_where_partial(*places)
        return
    show(strategy_tables.prediction_table(outcome))
    show(strategy_tables.parts_table(parts))
    show(strategy_tables.memory_table(memory))
    if measured is not None:
        show(strategy_tables.calibration_table(measured))
    say_notes(notes)
    leave_where_partial(*places)


def _of_runs(path: Path, out: Path | None, calibrate: Path | None) -> None:
    import msgspec

    from npuscope.analysis.strategy.predict import predict_records
    from npuscope.console import print_text

    try:
        records = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise TraceNotFound(f"{path}: no such file") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceFormatError(path, "not valid JSON", str(error)) from None
    if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
        raise UsageError(f"{path}: not a list of runs, each an object with id, model and parallel")
    ids = set[str]()  # answers are told apart by them
    for number, one in enumerate(records, 1):
        key = "" if one.get("id") is None else str(one["id"])
        if not key or key in ids:
            reason = f"has the id {key} of another" if key else "has no id"
            raise UsageError(f"{path}: run {number} of {len(records)} {reason}")
        ids.add(key)
    for one in records:
        # Sizes that lack get the likeliest ones, but a run of no model at all is no run.
        if not isinstance(one.get("model"), dict) or not one["model"]:
            raise UsageError(f"{path}: run {one['id']} has no model")
    _, constants, places = calibration_of(calibrate)
    predictions = predict_records(records, constants)
    text = msgspec.json.format(msgspec.json.encode(predictions))
    if out is None:
        print_text(text.decode() + "\n")
    else:
        from npuscope.dashboard.whole_files import write_bytes

        write_bytes(text, out)
        say(f"{len(records)} runs predicted: {out}")
    leave_where_partial(*places)
