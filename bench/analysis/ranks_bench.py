"""How long `comm` and `ranks` take to answer from the summaries of many ranks.

    .venv/bin/python -m bench.analysis.ranks_bench [--full] [--runs N]

A planted job of two steps, one of whose chips runs slow, stands in a compacted store, as an ingest
leaves it. What all ranks together tell is computed by the first command that needs it, and kept:
both are measured. `ranks` must name the slow chip and nobody else. Limit: 2 s for 1,000 ranks.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import npuscope
from bench.measure import (
    BUILD,
    Command,
    arguments,
    failures,
    interleave,
    report,
    run,
    table,
    verdict,
)
from npuscope.analysis.summaries import summaries, summarise
from npuscope.collector import schema, staging
from npuscope.collector.store import segments, store
from npuscope.collector.store.compact import compact
from npuscope.collector.store.compact_files import Place
from npuscope.collector.store.folder_handles import staging_name
from npuscope.collector.store.manifest import Manifest, Segment, create_store, rank_folder
from npuscope.sample_traces.frames import canonical_frames
from npuscope.sample_traces.job import Job

LIMIT_S = 2.0
JOBS = {
    64: Job(name="ranks", layers=2, tp=2, pp=2, dp=16, ep=4),
    1000: Job(name="ranks", layers=5, tp=2, pp=5, dp=100, ep=10, experts=10),
}
SLOW = 37
_CAPTURE = "made"
_TABLES = ("ranks", "groups", "steps", "kernels", "comm_ops", "launches", "counters")
_MEMORY_BYTES = 1 << 30


def store_it(ranks: int) -> Path:
    """The store of a job of so many ranks; kept for the next time."""
    path = BUILD / f"ranks_{ranks}"
    record = path / ".bench.json"
    made_by = json.dumps([schema.digest(), *sorted(one.version for one in summaries())])
    if record.is_file() and record.read_text() == made_by:
        return path
    shutil.rmtree(path, ignore_errors=True)
    create_store(path)
    # Not forked: the engine of another store may have threads in this process.
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        list(pool.map(partial(_publish, path, ranks), range(2)))
    compact(path)
    record.write_text(made_by)
    return path


def _publish(path: Path, ranks: int, half: int) -> None:
    """Every second rank, from `half` on."""
    job = JOBS[ranks]
    planted = {
        **{name: getattr(job, name) for name in ("layers", "tp", "pp", "dp", "ep", "experts")},
        "steps": 2, "micro_batches": 1, "noise": 0.03, "expert_skew": 0.0, "slow_clock": SLOW,
        "memory": False, "comm_tasks": False, "seed": 7,
    }  # fmt: skip
    frames = canonical_frames(Job(name="ranks", **planted), tables=_TABLES, capture=_CAPTURE)
    by_rank = {
        name: frame.partition_by("rank", as_dict=True)
        for name, frame in (
            (name, frame.drop("pmu") if "pmu" in frame.columns else frame)
            for name, frame in frames.items()
        )
    }
    for rank in range(half, ranks, 2):
        folder = rank_folder(path, "ranks", _CAPTURE, rank)
        staged = folder / staging_name()
        staged.mkdir(parents=True)
        con = staging.open_staging(staged, memory_bytes=_MEMORY_BYTES)
        try:
            for name, parts in by_rank.items():
                if (rank,) in parts:
                    rows = parts[(rank,)].drop("run", "capture", "rank")
                    con.register("_rows", rows.to_arrow())
                    con.execute(f'insert into "{name}" by name select * from _rows')
                    con.unregister("_rows")
            written = segments.write_tables(con, ("ranks", _CAPTURE, rank), staged)
        finally:
            con.close()
        shutil.rmtree(staged / staging.SPILL, ignore_errors=True)
        located = {name: [Place(str(staged / one.file))] for name, one in written.items()}
        told = segments.write_summaries(staged, located, summarise, _MEMORY_BYTES)
        store.publish(path, staged, _manifest(rank, written, told))


def _manifest(rank: int, written: dict[str, Segment], told: dict[str, Segment]) -> Manifest:
    generation = "made"
    return Manifest(
        run="ranks", capture=_CAPTURE, rank=rank, generation=generation,
        npuscope_version=npuscope.__version__, schema_digest=schema.digest(),
        reading_digest=schema.reading_digest(),
        published_at=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        rank_origin="bench", source_root="", sources=[], window_start_ns=0, window_end_ns=0,
        tables=segments.in_generation(written, generation),
        summaries=segments.in_generation(told, generation),
    )  # fmt: skip


def _name(path: Path) -> set[tuple[int, str]]:
    """Ranks with a verdict, by the command itself."""
    command = [sys.executable, "-m", "npuscope", "ranks", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, check=True)
    return {(r["rank"], r["verdict"]) for r in json.loads(done.stdout)["rows"] if r["verdict"]}


def main() -> int:
    """Checks and measures every size, prints the table."""
    chosen = arguments(__doc__)
    rows, failed, slowest = [], "", 0.0
    for ranks in [64, 1000] if chosen.full else [64]:
        path = store_it(ranks)
        for derived in path.glob("run=*/capture=*/derived"):
            shutil.rmtree(derived)

        def asked(*words: str, path: Path = path) -> Command:
            return Command([sys.executable, "-m", "npuscope", words[0], str(path), *words[1:]])

        first = run(asked("ranks", "--json"))
        failed += failures({"ranks, first": first})
        if first.failed:
            continue
        named = _name(path)
        if named != {(SLOW, "frequency")}:
            print(f"ranks of {ranks}: WRONG, it names {sorted(named)}")
            return 1
        found = interleave(
            {
                "comm": asked("comm", "--by", "kind", "--top", "1", "--json"),
                "comm, table": asked("comm"),
                "ranks": asked("ranks", "--json"),
                "ranks, table": asked("ranks"),
            },
            chosen.runs,
        )
        failed += failures(found)
        for name, taken in {"ranks, first": first, **found}.items():
            rows.append((
                f"{ranks:,}", name, f"{taken.wall_s:.2f}", f"{taken.cpu_s:.2f}",
                f"{taken.peak_mib:.0f}", f"{taken.wall_s / LIMIT_S:.2f}",
            ))  # fmt: skip
            if name != "ranks, first":
                slowest = max(slowest, taken.wall_s / LIMIT_S)
    header = ("ranks", "command", "wall s", "CPU s", "peak MiB", f"wall / {LIMIT_S:g} s")
    said = table(header, rows)
    if rows:
        said += f"\n\nslowest answer over its limit {verdict(slowest, 1, at_least=False)}"
    report("Answers of many ranks", said + failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
