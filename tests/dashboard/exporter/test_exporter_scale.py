"""A scrape with every expert of a large model: how long, how large, in both formats."""

from __future__ import annotations

import gzip
import time
import urllib.request
from collections.abc import Iterator

import polars as pl
import pytest

from npuscope.sample_traces.generate import small
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.exporter.scraping import export, page, wait_for

LAYERS, EXPERTS = 58, 256
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    store = tmp_path_factory.mktemp("scale") / "store"
    loads = pl.DataFrame({"layer": range(LAYERS)}).join(
        pl.DataFrame({"expert": range(EXPERTS)}), how="cross"
    )
    loads = loads.with_columns(
        step=0, phase=pl.lit("train"), tokens=1000 + pl.col("expert") * (pl.col("layer") + 1)
    )
    few = ("ranks", "steps")
    more = {"expert_load": loads}
    publish_job(store, small(), "c", published_s=time.time(), tables=few, more=more)
    with export(store, "--expert-detail") as one:
        wait_for(lambda: "\nnpuscope_up 1.0" in page(one.port), "samples are gathered")
        yield one.port


def scrape(port: int, **headers: str) -> tuple[float, bytes, str]:
    url = f"http://127.0.0.1:{port}/metrics"
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        content, encoding = answer.read(), answer.headers.get("Content-Encoding", "")
    return time.monotonic() - began, content, encoding


def test_a_large_scrape(port: int) -> None:
    taken = [scrape(port) for _ in range(5)]
    content = taken[-1][1]
    assert min(seconds for seconds, *_ in taken) < 0.5 and len(content) < 20e6
    assert content.count(b"\nnpuscope_expert_tokens{") == LAYERS * EXPERTS
    least = b'npuscope_expert_tokens{expert="0",layer="3",phase="train",run="small"} 1000.0\n'
    assert least in content
    top = b'npuscope_expert_top_expert{layer="3",phase="train",position="1",run="small"} 255.0\n'
    assert top in content


def test_formats_and_compression_tell_the_same(port: int) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_open
    from prometheus_client.parser import text_string_to_metric_families as parsed

    plain = scrape(port)[1]
    _, packed, encoding = scrape(port, **{"Accept-Encoding": "gzip"})
    assert encoding == "gzip" and len(packed) < len(plain) / 5
    assert gzip.decompress(packed) == plain
    _, packed, _ = scrape(port, **{"Accept": OPENMETRICS, "Accept-Encoding": "gzip"})
    text = gzip.decompress(packed).decode()
    assert text.count("# EOF") == 1 and text.endswith("# EOF\n")
    told = [
        {(one.name, *sorted(one.labels.items())): one.value for each in read(form)
         for one in each.samples}
        for read, form in ((parsed, plain.decode()), (parsed_open, text))
    ]  # fmt: skip
    assert told[0] == told[1] and len(told[0]) > LAYERS * EXPERTS
