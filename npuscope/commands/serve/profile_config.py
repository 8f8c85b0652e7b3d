"""`npuscope profile-config`: write or check what torch_npu's dynamic profiling reads."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from npuscope.commands.command import Json
from npuscope.console import print_json, print_text, say
from npuscope.errors import NpuscopeError, TraceFormatError, TraceNotFound, UsageError

_BYTES_AT_MOST = 1 << 20  # torch_npu's own buffer
_RANKS_AT_MOST = 100_000

Check = Annotated[
    Path | None, typer.Option("--check", metavar="FILE", help="Name each wrong field of a file.")
]
Target = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="OUT", help="The file, or the folder the job looks at."),
]
ProfDir = Annotated[str, typer.Option("--prof-dir", metavar="DIR", help="Where captures go.")]
Start = Annotated[
    int | None, typer.Option("--start-step", metavar="N", min=-1, help="[default: the next step]")
]
Active = Annotated[int, typer.Option("--active", metavar="N", min=1, help="Steps to record.")]
Warmup = Annotated[int, typer.Option("--warmup", metavar="N", min=0, help="Steps before them.")]
OfRanks = Annotated[
    str | None, typer.Option("--ranks", metavar="LIST", help="0,7,8-15.  [default: all]")
]
Level = Annotated[str, typer.Option("--level", metavar="N", help="none|0|1|2")]
Metrics = Annotated[
    str | None,
    typer.Option("--aic-metrics", metavar="NAME", help="[default: PipeUtilization from level 1]"),
]
Export = Annotated[str, typer.Option("--export", metavar="KIND", help="db|text|both")]
Analyse = Annotated[
    bool, typer.Option("--analyse", help=("Run analyse() in the job, asynchronously."))
]
Shapes = Annotated[bool, typer.Option("--record-shapes", help="Shapes of host operations.")]
MemoryToo = Annotated[bool, typer.Option("--profile-memory", help="Memory of operators.")]
Stack = Annotated[bool, typer.Option("--with-stack", help="Host call stacks.")]
Marks = Annotated[bool, typer.Option("--mstx", help="Marks of mstx.")]
Certificates = Annotated[
    str | None, typer.Option("--certs-dir", metavar="DIR", help="Certificates of msMonitor.")
]


def profile_config(
    check: Check = None,
    out: Target = None,
    prof_dir: ProfDir = "./profiles",
    start_step: Start = None,
    active: Active = 2,
    warmup: Warmup = 1,
    ranks: OfRanks = None,
    level: Level = "1",
    aic_metrics: Metrics = None,
    export: Export = "db",
    analyse: Analyse = False,
    record_shapes: Shapes = False,
    profile_memory: MemoryToo = False,
    with_stack: Stack = False,
    mstx: Marks = False,
    certs_dir: Certificates = None,
    json: Json = False,
) -> None:
    """Profile a job that runs, without a change of its code: torch_npu's profiler_config.json.

    The file goes to stdout or to -o; ms Monitor's command for the same is told with it.

    \b
    Examples:
      npuscope profile-config --start-step 500 --ranks 0,8-15 -o ./prof_conf
      npuscope profile-config --level none --mstx
      npuscope profile-config --check ./prof_conf/profiler_config.json
    """
    from npuscope.collector.training import dynamic_profile as dynamic

    if check is not None:
        _check(check, json)
        return
    name = f"Level_{level}" if level == "none" else f"Level{level}"
    has_metrics = name in ("Level1", "Level2")
    numbers = _ranks(ranks)
    content = dynamic.config(
        {
            "prof_dir": prof_dir,
            "start_step": dynamic.AT_ONCE if start_step is None else start_step,
            "active": active,
            "warmup": warmup,
            "is_rank": bool(numbers),
            "rank_list": numbers,
            "analyse": analyse,
            "async_mode": analyse,
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
            "with_stack": with_stack,
        },
        {
            "profiler_level": name,
            "aic_metrics": aic_metrics or ("PipeUtilization" if has_metrics else "AiCoreNone"),
            "export_type": ["db", "text"] if export == "both" else [export],
            "mstx": mstx or name == "Level_none",
        },
    )
    if wrong := dynamic.check(content):
        raise UsageError("; ".join(f"{one.field}: {one.value}, not {one.rule}" for one in wrong))
    command = dynamic.dyno_command(content, certs_dir)
    if json:
        row = {"config": content, "dyno_command": command}
        print_json("profile_config", [row], [])
        return
    text = json_text.dumps(content, indent=4) + "\n"
    if out is None:
        print_text(text)
        say(f"the same with msMonitor: {command}")
        return
    from npuscope.dashboard.whole_files import write_text

    target = out if out.suffix == ".json" and not out.is_dir() else out / dynamic.FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(text, target)  # at once: the job must not read half of it
    is_found = target.name == dynamic.FILE
    started = f"the job is started with PROF_CONFIG_PATH={target.parent}"
    say(f"written: {target}; {started if is_found else f'torch_npu reads {dynamic.FILE} alone'}")
    print_text(f"the same with msMonitor: {command}\n")


def _check(path: Path, json: bool) -> None:
    from npuscope.collector.training import dynamic_profile as dynamic

    target = path / dynamic.FILE if path.is_dir() else path
    if not target.is_file():
        raise TraceNotFound(f"{target}: no such file; give torch_npu's {dynamic.FILE}")
    if target.stat().st_size > _BYTES_AT_MOST:
        raise TraceFormatError(target, "size", "more than 1 MiB, which torch_npu does not read")
    try:
        content = json_text.loads(target.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(target, "JSON", str(error)) from None
    wrong = dynamic.check(content)
    if json:
        rows = [{"field": one.field, "got": one.value, "allowed": one.rule} for one in wrong]
        print_json("profile_config_check", rows, [])
    if not wrong:
        if not json:
            command = dynamic.dyno_command(content)
            print_text(f"{target}: valid\nthe same with msMonitor: {command}\n")
        return
    names = "".join(f"\n  {one.field}: {one.value}; allowed: {one.rule}" for one in wrong)
    raise NpuscopeError(f"{target}: {len(wrong)} field(s) that torch_npu would not use:{names}")


def _ranks(text: str | None) -> list[int]:
    from npuscope.collector.selection import parse_numbers

    if text is None:
        return []
    spans = parse_numbers("--ranks", text)
    if sum(last - first + 1 for first, last in spans) > _RANKS_AT_MOST:
        raise UsageError(f"--ranks {text}: more than {_RANKS_AT_MOST} ranks")
    return [rank for first, last in spans for rank in range(first, last + 1)]
