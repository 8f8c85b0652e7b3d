"""`npuscope report` on a store of many ranks: from a disk, and from a bucket on this machine.

    python -m bench.collector.bucket_bench [--ranks 64]

The server is that of the tests, so there is next to no distance: what is measured is what asking,
listing and copying cost, which a real network adds its round trips to.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from pathlib import Path
from typing import Any

from bench.measure import BUILD, NPUSCOPE, Command, run
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.sample_traces.generate import small, write_job
from tests.collector.store.object_server import served_objects

URL = Path("s3://bucket/npuscope")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--ranks", type=int, default=64)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--full", action="store_true")
    given: Any = options.parse_args()
    folder = BUILD / "bucket"
    shutil.rmtree(folder, ignore_errors=True)
    write_job(small(dp=given.ranks, ep=1, steps=2), folder / "job")
    os.environ.update(
        AWS_ACCESS_KEY_ID="bench", AWS_SECRET_ACCESS_KEY="bench", AWS_DEFAULT_REGION="us-east-1",
        AWS_EC2_METADATA_DISABLED="true", XDG_CACHE_HOME=str(folder / "cache"),
    )  # fmt: skip
    with served_objects() as objects:
        os.environ["AWS_ENDPOINT_URL"] = objects.address
        for store in (folder / "store", URL):
            began = time.perf_counter()
            ingest(folder / "job", store, run="job", summarise=summarise, jobs=1)
            took_s = time.perf_counter() - began
            print(f"ingest of {given.ranks} ranks into {store}: {took_s:.1f} s")
        cache = folder / "other"
        ways = {
            "disk": (folder / "store", lambda: None),
            "bucket, first": (URL, lambda: shutil.rmtree(cache, ignore_errors=True)),
            "bucket, again": (URL, lambda: None),
        }
        disk_s = 0.0
        for name, (store, prepare) in ways.items():
            asked = [NPUSCOPE, "report", str(store)]
            command = Command(asked, prepare, {"XDG_CACHE_HOME": str(cache)})
            taken = sorted((run(command) for _ in range(given.runs)), key=lambda one: one.wall_s)
            middle = taken[len(taken) // 2]
            assert not middle.failed, middle.failed
            disk_s = disk_s or middle.wall_s
            print(
                f"report, {name}: {middle.wall_s:.2f} s, {middle.cpu_s:.2f} CPU-s,"
                f" ratio to the disk {middle.wall_s / disk_s:.2f}"
            )
        stored = sum(len(content) for content, _ in objects.kept.values())
        print(f"{len(objects.kept)} objects, {stored / 1e6:.1f} MB, {len(objects.asked)} requests")


if __name__ == "__main__":
    main()
