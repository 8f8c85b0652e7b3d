"""Every page in a real browser: drawn without a complaint, with the figures the commands print."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("playwright")

from playwright.sync_api import Browser
from typer.testing import CliRunner

from npuscope.cli import app
from npuscope.dashboard.app.page import PAGES
from npuscope.dashboard.figures.operators import MOST_ROWS
from npuscope.sample_traces.job import Job
from tests.conftest import REAL_DATA
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.app.served_pages import Visit, chromium, visit
from tests.dashboard.app.started_server import serve
from tests.dashboard.report.printed_figures import (
    chosen_store,
    command_output,
    mean_by,
    of_run,
    ranks_of,
    scale,
    steps_of,
)  # fmt: skip

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]
SHOTS = REPOSITORY / "build" / "screenshots"
REAL = "alexnet_ddp_db_level1"
TWO_SCREENS_PX = 1600  # of 1280 x 800
MANY = Job(
    name="many", layers=2, pp=2, dp=32, ep=8, experts=16, micro_batches=2, ranks_per_host=8,
    steps=2, slow_rank=11,
)  # fmt: skip


@pytest.fixture(scope="module")
def stores(
    tmp_path_factory: pytest.TempPathFactory, sample_store: Path, request: pytest.FixtureRequest
) -> dict[str, Path]:
    """The committed sample, a job of 64 ranks, and a real profile where there is one."""
    folder = tmp_path_factory.mktemp("stores")
    now_s = datetime.now(timezone.utc).timestamp()
    publish_job(folder / "many", MANY, "20251127T123437.000Z", published_s=now_s)
    made = {"sample": sample_store, "many": folder / "many"}
    if REAL_DATA.is_dir():
        made["real"] = request.getfixturevalue("real_stores")(REAL)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def address(stores: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One dashboard over all stores, with what a search found."""
    folder = tmp_path_factory.mktemp("served")
    found = folder / "strategies.parquet"
    asked = ["search", "qwen3-30b-a3b", "--cluster", "2x8", "--only", "gbs=64,seq=4096"]
    done = CliRunner().invoke(app, [*asked, "-o", str(found)])
    assert done.exit_code == 0, done.output
    with serve(list(stores.values()), folder, "--strategies", str(found)) as started:
        yield started


# Words do not depend on how many ranks there are, nor does the layout of the sample: that of `many`
# is wider. A page takes seconds to draw.
@pytest.mark.parametrize(
    ("name", "width", "lang", "is_dark"),
    [("many", 1280, "en", False), ("real", 1280, "en", False), ("real", 1920, "zh", True)],
)
def test_pages_are_drawn_without_complaint(
    stores: dict[str, Path],
    address: str,
    browser: Browser,
    name: str,
    width: int,
    lang: str,
    is_dark: bool,
) -> None:
    """No exception, nothing on the console, labels apart, no word of where stores lie, no English
    on a Chinese page, nothing empty, and at most two screens; pictures are left in build/."""
    chosen = chosen_store(stores, name)
    with visit(browser, address, width=width, dark=is_dark) as seen:
        for number, page in enumerate(PAGES):
            if name == "many" or not number:  # by links
                seen.open(page, **chosen, lang=lang)
            else:
                seen.turn_to(page)
            assert str(stores[name].parent) not in seen.tab.content(), page
            for part in seen.parts():
                seen.shot(SHOTS / name / f"{page}-{part}-{width}-{lang}.png")
                assert "" not in seen.shown_by_tabs(), (page, part)
                assert seen.overlaps() == [], (page, part)
                told = seen.tables_of_tab()
                assert len(set(told)) == len(told), (page, part, told)
                assert width != 1280 or seen.height_px() <= TWO_SCREENS_PX, (page, part)
                assert seen.tab.evaluate("document.body.scrollWidth") <= width, (page, part)
                assert os.environ.get("HOME", "/root") + "/" not in seen.text(), (page, part)
                if lang == "zh":
                    assert english_left(seen) == [], (page, part)
            assert seen.complaints == [], page
            if lang == "zh":
                assert re.search(r"[\u4e00-\u9fff]", seen.tab.locator("h3").first.inner_text())


def test_tables_have_no_csv_button_but_ours(address: str, browser: Browser) -> None:
    """The grid's own writes names as they are, which spreadsheets would run as formulas."""
    with visit(browser, address) as seen:
        seen.open("operators")
        seen.tab.locator("details:not([open]) > summary").filter(visible=True).first.click()
        grid = seen.tab.locator('[data-testid="stDataFrame"]').first
        grid.hover()
        buttons = grid.locator("xpath=..").locator("button")
        buttons.first.wait_for(state="attached")
        labels = [one.get_attribute("aria-label") or "" for one in buttons.all()]
        assert labels and not [one for one in labels if "ownload" in one]
        assert seen.tab.get_by_role("button", name="CSV").count()


# English on a Chinese page: names that profiles bring, options of programs, figures, commands.
_PHRASE = re.compile(r"[A-Za-z][a-z]{2,} [a-z]{2,} [a-z]{2,}")
_RECORDED = "<built-in method"  # names of host calls


def english_left(seen: Visit) -> list[str]:
    """Lines of a page and of its figures, closed parts opened, that are English sentences."""
    closed = seen.tab.locator("details:not([open]) > summary").filter(visible=True)
    while closed.count():
        closed.first.click()
    seen.settle()
    code = "\n".join(seen.tab.locator('[data-testid="stCode"]').all_inner_texts())
    lines = [line for line in seen.text().splitlines() if line not in code]
    for figure in seen.figures():
        lines += [figure["title"], *figure["units"], *(one["name"] for one in figure["traces"])]
    return [line for line in lines if _PHRASE.search(line) and _RECORDED not in line]


@pytest.fixture(scope="module", params=["sample", "real", "many"])
def page_visit(
    request: pytest.FixtureRequest,
    stores: dict[str, Path],
    address: str,
    browser: Browser,
) -> Iterator[tuple[Visit, Path]]:
    name = str(request.param)
    chosen = chosen_store(stores, name)
    with visit(browser, address) as seen:
        seen.open("overview", **chosen)
        yield seen, stores[name]


Shown = tuple[Visit, Path]


def test_the_overview_shows_the_steps_command(page_visit: Shown) -> None:
    seen, store = page_visit
    seen.turn_to("overview")
    label = seen.tab.locator(".st-key-fresh")  # a figure scrolls below it
    assert label.evaluate("one => getComputedStyle(one).backgroundColor") != "rgba(0, 0, 0, 0)"
    for card in seen.tab.locator('[class*="st-key-finding_"]').filter(visible=True).all():
        link = card.locator('[data-testid="stPageLink"]').first.bounding_box()
        badge = card.locator(".stMarkdownBadge").first.bounding_box()
        assert link and badge and badge["y"] < link["y"] + link["height"], "one row"
    rows = command_output(store, "steps")
    overlapped = sum(row["overlapped_ns"] for row in rows)
    gauges = seen.gauges()
    assert gauges[-1] == pytest.approx(100 * overlapped / sum(r["communication_ns"] for r in rows))
    is_one = len({row["rank"] for row in rows}) < 2 < len({row["step"] for row in rows})
    figure = seen.figure("Each step" if is_one else "A mean step of each rank")
    for trace, column in zip(
        figure["traces"], ("computing_ns", "exposed_communication_ns", "free_ns"), strict=True
    ):
        means = mean_by(rows, "step" if is_one else "rank", column)
        assert [int(value) for value in trace["x"]] == sorted(means)
        assert scale(trace["y"], figure["units"][1]) == pytest.approx(
            [means[key] for key in sorted(means)]
        )


def test_the_gauge_and_the_waterfall_show_the_mfu_command(page_visit: Shown) -> None:
    seen, store = page_visit
    known = [r for r in command_output(store, "mfu") if r["kernel_mfu_causal_ratio"] is not None]
    seen.turn_to("overview")
    figures = {one["title"]: one for one in seen.figures()}
    if not known:
        assert "From the peak to what is achieved" not in figures
        return
    # Sums over ranks and steps, as the waterfall beside it.
    possible = [row["step_ns"] * row["peak_flops_per_s"] for row in known]
    achieved = [
        r["kernel_mfu_causal_ratio"] * most for r, most in zip(known, possible, strict=True)
    ]
    gauges = seen.gauges()
    assert gauges[0] == pytest.approx(100 * sum(achieved) / sum(possible))
    lost = figures["From the peak to what is achieved"]["traces"][0]["x"]
    # From 100 down by each loss to what is achieved.
    assert lost[0] == 100 and sum(lost[:-1]) == pytest.approx(lost[-1], abs=0.06)


def test_communication_shows_the_comm_command(page_visit: Shown) -> None:
    seen, store = page_visit
    seen.turn_to("communication")
    rows = steps_of(
        [r for r in command_output(store, "comm", "--by", "kind") if r["union_ns"] is not None]
    )
    over = len({(row["rank"], row["step"]) for row in rows})
    exposed, masked, _ = seen.figure("Communication of a mean step")["traces"]
    for trace, column in ((exposed, "exposed_ns"), (masked, "masked_ns")):
        sums: dict[str, int] = defaultdict(int)
        for row in rows:
            sums[row["kind"]] += row[column]
        drawn = dict(zip(trace["y"], scale(trace["x"], "ms"), strict=True))
        assert drawn == pytest.approx({kind: value / over for kind, value in sums.items()})


def test_operators_show_the_kernels_command(page_visit: Shown) -> None:
    seen, store = page_visit
    seen.turn_to("operators")
    rows = steps_of(command_output(store, "kernels", "--by", "type"))
    over = len({(row["rank"], row["step"]) for row in rows})
    sums: dict[str, int] = defaultdict(int)
    for row in rows:
        sums[row["type"]] += row["total_ns"]
    (bars,) = seen.figure("Longest kernels")["traces"]
    expected = sorted((value / over for value in sums.values()), reverse=True)
    assert scale(bars["x"], "ms") == pytest.approx(expected[: len(bars["x"])])
    assert len(bars["x"]) == min(len(sums), MOST_ROWS)


def test_ranks_show_the_steps_command(page_visit: Shown) -> None:
    seen, store = page_visit
    seen.turn_to("ranks")
    rows = [row for row in steps_of(command_output(store, "steps")) if row["stage_ns"] is not None]
    grid = seen.figure("step without bubble")["traces"][0]
    ranks = [int(rank) for rank in grid["y"]]
    by_step: dict[int | None, dict[int, int]] = defaultdict(dict)
    for row in rows:
        by_step[row["step"]][row["rank"]] = row["stage_ns"]
    assert sorted(ranks) == sorted({row["rank"] for row in rows})
    stages = {row["rank"]: row["pp_rank"] for row in ranks_of(store)}
    if None in stages.values():
        stages = dict.fromkeys(stages, 0)
    for at, step in enumerate(sorted(by_step, key=lambda one: (one is None, one))):
        of_step = by_step[step]
        middles = {
            stage: median(ns for rank, ns in of_step.items() if stages[rank] == stage)
            for stage in set(stages.values())
        }
        assert scale([line[at] for line in grid["z"]], "ms") == pytest.approx(
            [of_step[rank] - middles[stages[rank]] for rank in ranks], abs=1e-3
        )


def test_experts_show_the_experts_command(page_visit: Shown) -> None:
    seen, store = page_visit
    seen.turn_to("experts")
    done = CliRunner().invoke(app, ["experts", str(store), "--by", "device", "--json"])
    rows = json.loads(done.stdout)["rows"] if done.exit_code == 0 and done.stdout else []
    grids = [f for f in seen.figures() if f["title"].startswith("Load of each device")]
    if not rows:
        assert not grids and "No expert load here" in seen.text()
        return
    tokens: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        tokens[str(row["layer"]), str(row["device"])] += row["tokens"]
    grid = grids[0]["traces"][0]
    for layer, line in zip(grid["y"], grid["z"], strict=True):
        of_layer = [tokens[layer, device] for device in grid["x"]]
        mean = sum(of_layer) / len(of_layer)
        assert line == pytest.approx([value / mean for value in of_layer])


def test_memory_shows_the_memory_command(page_visit: Shown) -> None:
    seen, store = page_visit
    seen.turn_to("memory")
    drawn = [figure for figure in seen.figures() if figure["title"] == "Peak of each rank"]
    done = CliRunner().invoke(app, ["memory", str(store), "--json"])
    rows = json.loads(done.stdout)["rows"] if done.exit_code == 0 else []
    if not drawn:  # a rank alone has its curve only
        assert len({row["rank"] for row in rows}) < 2
        assert rows or "No memory was recorded here" in seen.text()
        return
    reserved = drawn[0]["traces"][0]
    unit = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}[drawn[0]["units"][0]]
    peaks = {row["peak_bytes"] for row in rows if row["peak_bytes"]}
    for value in reserved["x"]:
        assert any(value * unit == pytest.approx(peak) for peak in peaks)


def test_a_link_shows_the_same(stores: dict[str, Path], address: str, browser: Browser) -> None:
    with visit(browser, address) as seen, visit(browser, address) as other:
        seen.open("communication", **of_run(stores, "sample"))
        seen.tab.get_by_role("combobox").nth(2).click()
        seen.tab.get_by_role("option", name="3", exact=False).first.click()
        seen.tab.wait_for_url(re.compile(r"[?&]rank=3"))
        seen.settle()
        other.tab.goto(seen.tab.url)
        other.settle()
        assert other.parameters() == seen.parameters()
        assert other.figures() == seen.figures()
        rows = command_output(stores["sample"], "comm", "--by", "kind", "--rank", "3")
        exposed = seen.figure("Communication of a mean step")["traces"][0]
        assert set(exposed["y"]) == {row["kind"] for row in rows}


def test_the_language_is_switched_and_kept(
    stores: dict[str, Path], address: str, browser: Browser
) -> None:
    with visit(browser, address) as seen:
        seen.open("overview", **of_run(stores, "sample"))
        before = seen.figures()
        seen.tab.get_by_role("combobox").last.click()
        seen.tab.get_by_role("option", name="中文").click()
        seen.tab.wait_for_url(re.compile("lang=zh"))
        seen.settle()
        assert "首先关注" in seen.text()
        numbers = [[t.get("y") for t in f["traces"]] for f in before if f["units"][1]]
        now = [[t.get("y") for t in f["traces"]] for f in seen.figures() if f["units"][1]]
        assert now == numbers
        seen.tab.get_by_role("link", name="时间线").first.click()
        seen.tab.wait_for_url(re.compile("/timeline"))
        seen.settle()
        assert seen.parameters()["lang"] == "zh"


@pytest.mark.parametrize(
    "query",
    [
        "rank=../../x&step=%00&run=..%2f..%2fetc%2fpasswd&store=/etc",
        "rank=99999999999999999999999999&start_ns=-1&end_ns=" + "9" * 400,
        "run=<script>document.title='owned'</script>&lang=<img src=x onerror=alert(1)>",
        "capture=' or 1=1 --&rank=1;drop table kernels&step=1e309",
        "start_ns=5&end_ns=5&rank=-7&rank=2&lang=fr",
    ],
)
def test_a_hostile_link_shows_what_there_is(
    stores: dict[str, Path], address: str, browser: Browser, query: str
) -> None:
    with visit(browser, address) as seen:
        seen.tab.on("dialog", lambda dialog: seen.complaints.append(dialog.message))
        for page in ("overview", "timeline", "ranks"):
            name = "" if page == "overview" else page
            seen.tab.goto(f"{seen.address}/{name}?{query}")
            seen.settle()
            if page == "timeline":
                seen.tab.locator(".tracks").wait_for()
            else:
                assert seen.figures()
            assert "owned" not in seen.tab.title()
            assert seen.complaints == []
            assert not seen.tab.locator('[data-testid="stAlertContentError"]').count()


def test_a_new_capture_appears_by_itself_and_a_click_opens_it(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    folder = tmp_path_factory.mktemp("live")
    job = Job(name="live", layers=2, pp=1, dp=2, ep=2, experts=4, micro_batches=1, steps=2)
    now_s = datetime.now(timezone.utc).timestamp()
    publish_job(folder / "store", job, "20251127T123437.000Z", published_s=now_s)
    with serve([folder / "store"], folder) as address, visit(browser, address) as seen:
        seen.open("trends")
        publish_job(folder / "store", job, "20251127T133437.000Z", published_s=now_s + 3600)
        points = seen.tab.locator(".js-plotly-plot").first.locator(".scatterlayer .points path")
        points.nth(1).wait_for(state="attached", timeout=60_000)
        seen.settle()
        points.last.hover(force=True)
        points.last.click(force=True)
        seen.tab.wait_for_url(lambda url: "/trends" not in url)
        seen.settle()
        assert seen.parameters()["capture"] in ("20251127T123437.000Z", "20251127T133437.000Z")
        assert seen.gauges()  # the overview
        assert seen.complaints == []
