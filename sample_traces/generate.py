"""Writes a described job as the captures its profilers would have left, with what is true of it.

python -m npuscope.sample_traces.generate OUT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from .capture import Capture, captures, without_collection
from .forms.db import write_db
from .forms.kineto import write_kineto
from .forms.metadata import folder_name, profiler_info, profiler_metadata
from .forms.mindspore import write_mindspore
from .forms.msprof import write_msprof
from .forms.text import write_text
from .frames import canonical_frames
from .job import Job, job_fields, small
from .truth import truth

__all__ = [
    "COMMITTED_FORMS",
    "COMMITTED_JOB",
    "Job",
    "canonical_frames",
    "small",
    "write_job",
    "write_sample",
]

Form = Literal["db", "text", "kineto", "msprof", "msprof_db", "ms_text", "ms_db"]

# The job of the committed sample: two hosts of four NPUs.
COMMITTED_JOB = Job(
    name="moe_8_ranks",
    slow_rank=5,
    clock_offsets_ns=(0, 0, 0, 0, 2_350_417, 2_350_417, 2_350_417, 2_350_417),
    ranks_per_host=4,
    seed=20251127,
)
COMMITTED_FORMS: dict[int, tuple[Form, ...]] = {
    0: ("db", "text"),
    1: ("text",),
    2: ("db",),
    3: ("db",),
    4: ("db",),
    5: ("text",),
    6: ("db",),
    7: ("db",),
}


@without_collection()
def write_job(
    job: Job,
    out: Path,
    *,
    forms: tuple[Form, ...] | Mapping[int, tuple[Form, ...]] = ("db", "text"),
) -> None:
    """Writes one `*_ascend_pt` folder per rank and truth.json into `out`.

    `forms` says how all ranks, or each rank, are exported. Beside or instead of the folders lie a
    GPU's trace (`kineto`), what the msprof command exports (`msprof`, `msprof_db`: a PROF folder),
    and what MindSpore exports (`ms_text`, `ms_db`: `rank_N/*_ascend_ms`). Equal jobs give equal
    files (databases: equal content).
    """
    out.mkdir(parents=True, exist_ok=True)
    profiles = captures(job)
    files: dict[str, object] = {}
    for capture in profiles:
        form = forms[capture.rank] if isinstance(forms, Mapping) else forms
        files[str(capture.rank)] = _write_rank(capture, out, form)
    facts = {"job": job_fields(job), "captures": files, **truth(job, profiles)}
    (out / "truth.json").write_text(_readable(facts) + "\n", encoding="utf-8")


def write_sample(out: Path, *, seed: int | None = None) -> None:
    """Writes the committed sample's job, drawn from another seed where one is given."""
    job = COMMITTED_JOB if seed is None else replace(COMMITTED_JOB, seed=seed)
    write_job(job, out, forms=COMMITTED_FORMS)


def _write_rank(c: Capture, out: Path, forms: tuple[Form, ...]) -> dict[str, object]:
    if "kineto" in forms:
        trace = write_kineto(c, out)
        if set(forms) == {"kineto"}:
            return {"folder": ".", "forms": ["kineto"], "files": [trace.name]}
    if {"msprof", "msprof_db"} & set(forms):
        prof = write_msprof([c], out, text="msprof" in forms, database="msprof_db" in forms)
        if {"msprof", "msprof_db"} >= set(forms):
            written = sorted(p.relative_to(prof).as_posix() for p in prof.rglob("*") if p.is_file())
            return {"folder": prof.name, "forms": list(forms), "files": written}
    if {"ms_text", "ms_db"} & set(forms):
        root = write_mindspore(c, out, "text" if "ms_text" in forms else "db")
        written = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.*"))
        return {"folder": root.relative_to(out).as_posix(), "forms": list(forms), "files": written}
    root = out / folder_name(c)
    output = root / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True, exist_ok=True)
    export: list[str] = [form for form in ("text", "db") if form in forms]
    _dump(root / f"profiler_info_{c.rank}.json", profiler_info(c, export), indent=4)
    _dump(root / "profiler_metadata.json", profiler_metadata(c))
    if "text" in forms:
        write_text(c, output)
    if "db" in forms:
        write_db(c, output)
    written = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.*"))
    return {"folder": root.name, "forms": export, "files": written}


def _dump(path: Path, content: object, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent), encoding="utf-8")


def _readable(facts: object, depth: int = 0) -> str:
    """JSON with one line per innermost object, so that a change of one figure is one line."""
    inner = list(facts.values()) if isinstance(facts, dict) else facts
    if not isinstance(inner, list) or not any(isinstance(v, (dict, list)) for v in inner):
        return json.dumps(facts)
    keys = [f"{json.dumps(k)}: " for k in facts] if isinstance(facts, dict) else [""] * len(inner)
    pad = "  " * depth
    items = (f"{pad}  {key}{_readable(v, depth + 1)}" for key, v in zip(keys, inner, strict=True))
    open_, close = ("{", "}") if isinstance(facts, dict) else ("[", "]")
    body = ",\n".join(items)
    return f"{open_}\n{body}\n{pad}{close}"


def main(arguments: list[str]) -> int:
    """Writes the committed sample to the folder named on the command line."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m npuscope.sample_traces.generate OUT\n")
        return 2
    write_sample(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
