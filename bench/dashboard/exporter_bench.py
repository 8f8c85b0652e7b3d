"""How long a scrape of a large job takes: 1,000 ranks, 58 layers of 256 experts.

    .venv/bin/python -m bench.dashboard.exporter_bench [--full] [--runs N]

A store with a row of expert load for every rank, layer and expert (14.8 million of them with
--full; 100 ranks without) and a capture of as many ranks, as `npuscope watch` and `compact` leave
it. The exporter runs as the command does; one scraper asks, then eight at once, then one while
what changed is gathered anew. Gathering happens once for each version of the store, and is shown
beside. Limits: a scrape below 0.5 s and 20 MB, at most 30,000 series.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

import duckdb

from bench.inputs.new_store import in_two_processes, publish_rank, store_once
from bench.measure import arguments, report, table, verdict
from npuscope.analysis.ranks.derive import compare_capture
from npuscope.collector.store.compact import compact
from npuscope.collector.store.manifest import rank_folder, write_index
from npuscope.dashboard.exporter.snapshot import MAX_SERIES

LIMIT_S, LIMIT_BYTES = 0.5, 20e6
LAYERS, EXPERTS, STEPS = 58, 256, 2
START_NS = 1_764_246_877_000_000_000
_KEY = ("large", "made")


def store_it(ranks: int) -> Path:
    """The store, kept for the next time."""

    def write(path: Path) -> None:
        in_two_processes(partial(_publish, path, ranks), range(ranks))
        write_index(rank_folder(path, *_KEY, 0).parent)
        compact(path)
        compare_capture(path, *_KEY)

    return store_once(f"exporter_{ranks}", write, _rows(0, 1))


def _publish(path: Path, ranks: int, rank: int) -> None:
    def fill(con: duckdb.DuckDBPyConnection) -> None:
        for statement in _rows(rank, ranks):
            con.execute(statement)

    window_ns = (START_NS, START_NS + STEPS * 10**9)
    publish_rank(path, (*_KEY, rank), fill, window_ns=window_ns)


def _rows(rank: int, ranks: int) -> list[str]:
    """Kernels and all-to-alls of a group of all ranks, and tokens for every layer and expert."""
    stages = 2 if ranks % 2 == 0 else 1
    members = f"[x::integer for x in range({ranks})]"
    kernels = 40
    return [
        f"""insert into ranks by name select {rank % 8} as device_id,
            'node{rank // 8:03}' as host_name, 'Ascend910B' as chip_name, 'epoch' as clock,
            1800.0 as ai_core_frequency_mhz, {ranks} as world_size, {stages} as pp_size,
            {rank * stages // ranks} as pp_rank, 0 as tp_rank, {rank} as dp_rank, 8 as ep_size,
            {rank % 8} as ep_rank, {START_NS} as window_start_ns,
            {START_NS + STEPS * 10**9} as window_end_ns""",
        f"""insert into groups by name select '77' as group_hash, 'g' as group_name,
            'ep' as group_label, 'ep' as parallel_kind, {rank} as group_rank,
            {members} as global_ranks""",
        f"""insert into steps by name select s as step, {START_NS} + s * 1000000000
            as window_start_ns, {START_NS} + (s + 1) * 1000000000 as window_end_ns
            from range({STEPS}) t(s)""",
        f"""insert into kernels by name select s as step, 0 as device_id, 2 as stream_id,
            'matmul' as name, 'MatMulV2' as type, 'AI_CORE' as core, true as is_compute,
            {START_NS} + s * 1000000000 + k * 20000000 as start_ns,
            10000000 + hash(s, k, {rank}) % 500000 as dur_ns, 20 as block_count,
            '4096,4096;4096,4096' as input_shapes, 'DT_BF16;DT_BF16' as input_dtypes,
            'ND;ND' as input_formats, '4096,4096' as output_shapes, 'DT_BF16' as output_dtypes,
            'ND' as output_formats from range({STEPS}) t(s), range({kernels}) u(k)""",
        f"""insert into comm_ops by name select s as step, 0 as device_id, s * 10 + k as op_id,
            'hcom_allToAllV__077_' || (s * 10 + k) || '_1' as name, 'allToAllV' as op_type,
            '77' as group_hash, {START_NS} + s * 1000000000 + k * 80000000 + 5000000
            + hash(k, {rank}) % 100000 as start_ns, 30000000 as dur_ns, {ranks} as group_size
            from range({STEPS}) t(s), range(10) u(k)""",
        f"""insert into expert_load by name select 0 as step, 'train' as phase, l as layer,
            e as expert, {rank % 8} as ep_rank, 1000 + hash(l, e) % 900 + hash(l, e, {rank}) % 90
            as tokens from range({LAYERS}) t(l), range({EXPERTS}) u(e)""",
    ]  # fmt: skip


def scrape(url: str) -> tuple[float, int, str]:
    """Seconds, bytes and text of a scrape."""
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=300) as answer:
        content = answer.read()
    return time.monotonic() - began, len(content), content.decode()


def value(text: str, name: str) -> float:
    """Of a metric without labels."""
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else float("nan")


def measure(path: Path, runs: int, *words: str) -> tuple[list[str], float]:
    """A row of the table, and the worst ratio to a limit."""
    command = [sys.executable, "-m", "npuscope", "exporter", str(path), "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            found = re.search(r"listening on (\S+)", line)
            if found:
                break
        else:
            raise RuntimeError("the exporter does not listen")
        url = found[1]
        text = scrape(url)[2]
        while value(text, "npuscope_exporter_refreshes_total") < 1:
            time.sleep(0.5)
            text = scrape(url)[2]
        gathered_s = value(text, "npuscope_exporter_refresh_seconds")
        alone = [scrape(url) for _ in range(max(runs, 3))]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(scrape, [url] * 24))
        refreshes = value(together[-1][2], "npuscope_exporter_refreshes_total")
        write_index(rank_folder(path, *_KEY, 0).parent)  # so there is something new
        meanwhile = [scrape(url)]
        while value(meanwhile[-1][2], "npuscope_exporter_refreshes_total") < 2:
            meanwhile.append(scrape(url))
        during = [one for one in meanwhile[:-1] if one[1] == alone[0][1]]
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+)", status)
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()
    seconds, size = median(one[0] for one in alone), alone[0][1]
    series = value(text, "npuscope_exporter_series")
    dropped = value(text, "npuscope_exporter_dropped_series")
    if refreshes != 1 or series + dropped < 1000 or series > MAX_SERIES:
        raise RuntimeError(f"{series} series, {dropped} left out, gathered {refreshes} times")
    if len(during) < len(meanwhile) - 1:
        raise RuntimeError("while it gathers, the last results are not what a scrape gets")
    waited = max((one[0] for one in during), default=0.0)
    worst = max(waited / LIMIT_S, seconds / LIMIT_S, size / LIMIT_BYTES, series / MAX_SERIES)
    row = [
        " ".join(words) or "default", f"{series:,.0f}", f"{dropped:,.0f}", f"{gathered_s:.2f}",
        f"{seconds:.3f}", f"{median(one[0] for one in together):.3f}", f"{waited:.3f}",
        f"{size / 1e6:.2f}",
        f"{int(peak[1]) / 1024:.0f}" if peak else "", f"{seconds / LIMIT_S:.2f}",
        f"{size / LIMIT_BYTES:.2f}",
    ]  # fmt: skip
    return row, worst


def main() -> int:
    """Measures, prints the table."""
    chosen = arguments(__doc__)
    ranks = 1000 if chosen.full else 100
    path = store_it(ranks)
    rows, worst = [], 0.0
    for words in ((), ("--expert-detail",)):
        row, ratio = measure(path, chosen.runs, *words)
        rows.append(row)
        worst = max(worst, ratio)
    header = (
        "exporter", "series", "left out", "gathering s", "scrape s", "of 8 at once s",
        "longest while gathering s", "MB",
        "peak MiB", f"scrape / {LIMIT_S} s", f"size / {LIMIT_BYTES / 1e6:.0f} MB",
    )  # fmt: skip
    said = table(header, rows)
    said += f"\n\nworst ratio to a limit: {worst:.2f}, {verdict(worst, 1, at_least=False)}"
    report(f"A scrape of {ranks:,} ranks x {LAYERS} layers x {EXPERTS} experts", said)
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
