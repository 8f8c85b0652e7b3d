"""The README's pictures, taken anew: `make screenshots`.

Overview and timeline show the committed sample, experts a job of 64 ranks with counted tokens.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.sample_traces.job import Job
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.served_pages import chromium, visit
from tests.dashboard.app.started_server import serve

REPOSITORY = Path(__file__).resolve().parents[3]
IMAGES = REPOSITORY / "docs" / "images"
PICTURES = (("overview", "sample"), ("timeline", "sample"), ("experts", "job"))
WIDTH, HEIGHT = 1280, 1000
JOB = Job(
    name="moe_64_ranks", layers=8, pp=2, dp=32, ep=8, experts=32, micro_batches=2,
    ranks_per_host=8, steps=4, expert_skew=0.6,
)  # fmt: skip


def take(images: Path) -> None:
    """Write one picture of each of PICTURES into a folder."""
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sample = REPOSITORY / "sample_traces" / "moe_8_ranks"
        ingest(sample, folder / "sample", summarise=summarise)
        now_s = datetime.now(timezone.utc).timestamp()
        publish_job(folder / "job", JOB, "20251127T123437.000Z", published_s=now_s)
        runs = {"sample": sample.name, "job": JOB.name}
        places = [folder / "sample", folder / "job"]
        with serve(places, folder) as address, chromium() as browser:
            for page, store in PICTURES:
                with visit(browser, address, width=WIDTH, height=HEIGHT) as seen:
                    seen.open(page, store=store, run=runs[store], lang="en")
                    seen.tab.wait_for_timeout(1_000)  # figures grow into place
                    seen.tab.screenshot(path=images / f"{page}.png")


if __name__ == "__main__":
    take(IMAGES)
    sys.stderr.write(f"written: {', '.join(page for page, _ in PICTURES)} to {IMAGES}\n")
