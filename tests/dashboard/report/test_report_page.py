"""The report as a page and as Markdown: whole, harmless, in both languages, shown by a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from npuscope.analysis import query
from npuscope.analysis.catalog import drawn_in, metrics
from npuscope.analysis.memo import remember
from npuscope.analysis.pipeline.answer import pipeline_answer
from npuscope.analysis.ranks.rank_views import open_across
from npuscope.analysis.replay import captures
from npuscope.analysis.report_rows import report_pipeline, report_rows
from npuscope.analysis.scope import ALL, Scope
from npuscope.analysis.wording import percent, ranks_named
from npuscope.collector.store import store
from npuscope.dashboard.locale.language import language_of
from npuscope.dashboard.report.blocks import Block, Chart, Facts, Findings, Sentence
from npuscope.dashboard.report.html_page import page
from npuscope.dashboard.report.markdown import markdown
from npuscope.dashboard.report.pipeline_section import pipeline_section
from npuscope.dashboard.report.report import report
from npuscope.dashboard.terminal.tables import FittedTable
from npuscope.messages import Message
from npuscope.profile import reading_warnings, summary_versions
from tests.analysis.tables import connect, fill, keep_summaries, kernel, op

chinese = language_of("zh")

MS = 1_000_000
STEERING = "mat\x1b[31mmul\u202etxt\u2066\x9b"
HOSTILE = '</script><script>alert("pwned")</script>|`*'


class Seen(HTMLParser):
    """Tags, what they name, and the words a reader sees."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.named += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style", "code"} & set(self.open) and data.strip():
            self.words.append(" ".join(data.split()))


def parse_page(html: str) -> Seen:
    parser = Seen()
    parser.feed(html)
    parser.close()
    return parser


def blocks_of(target: Path) -> list[Block]:
    con = store.open(target, summaries=summary_versions())
    open_across(target, con)
    remember(con)  # as a command does
    warnings = reading_warnings(target)
    return list(report(con, ALL, top=10, warnings=warnings, charts=True))


@pytest.fixture(scope="module")
def sample(sample_store: Path) -> list[Block]:
    return blocks_of(sample_store)


@pytest.fixture(scope="module")
def pages(sample: list[Block]) -> dict[str, str]:
    """The sample's page by language."""
    return {language: page(sample, language=language) for language in ("en", "zh")}


def blocks_with(name: str) -> list[Block]:
    """Of a job whose kernel, operation and warning have this name."""
    with connect() as con:
        fill(con, "ranks", [{}])
        fill(con, "kernels", [kernel(0, 9 * MS, 1, type=name, name=name)])
        fill(con, "comm_ops", [op(12 * MS, 9 * MS, 1, op_type=name)])
        keep_summaries(con)
        remember(con)
        return list(report(con, ALL, top=10, warnings=[name], charts=True))


@pytest.fixture(scope="module")
def hostile() -> list[Block]:
    return blocks_with(HOSTILE)


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return blocks_with(STEERING)


@pytest.mark.slow
def test_every_figure_names_its_metrics(pages: dict[str, str], sample: list[Block]) -> None:
    files = {one.name: f"analysis/{one.file}" for one in metrics()}
    charts = [one for one in sample if isinstance(one, Chart)]
    for html in pages.values():
        told = re.findall("<figcaption.*?</figcaption>", html, re.S)
        assert len(told) == len(charts) == html.count("<figure>") > 4
        for chart, one in zip(charts, told, strict=True):
            named = re.findall(r"<code title=\".+?\">(\w+): (\S+)</code>", one)
            assert (
                named == [(known.name, files[known.name]) for known in drawn_in(chart.name)] != []
            )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_names_nothing_outside_of_itself(pages: dict[str, str], language: str) -> None:
    html = pages[language]
    assert parse_page(html).named == []
    styles = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert styles
    assert "url(" not in styles
    assert "@import" not in styles


def test_a_page_has_every_part(sample: list[Block], pages: dict[str, str]) -> None:
    words = parse_page(pages["en"]).words
    for part in (
        "moe_8_ranks 20251127T123437.000Z", "What to look at first", "Evidence",
        "Where each step goes (ms)",
        "Top kernels by type: of a rank's step (mean of 8 ranks, 2 steps)",
        "Communication by group and operation: of a rank's step (mean of 8 ranks, 2 steps)",
        "Expert load by layer (mean of steps)",
        "of a mean rank and step; points add up to 100",
    ):  # fmt: skip
        assert part in words
    [found] = [block.items for block in sample if isinstance(block, Findings)]
    assert all(one.statement in words for one in found)
    assert {block.name for block in sample if isinstance(block, Chart)} == {
        "ranks", "parts", "kernels", "communication", "memory_curve", "waterfall", "devices"
    }  # fmt: skip


def test_the_pipeline_has_its_section(sample: list[Block], sample_store: Path) -> None:
    """Its figures are those of the command."""
    con = store.open(sample_store, summaries=summary_versions())
    open_across(sample_store, con)
    remember(con)
    ((run, capture),) = con.execute("select distinct run, capture from ranks").fetchall()
    (facts,) = pipeline_answer(con, run, capture).facts.to_dicts()
    said = next(one for one in sample if isinstance(one, Sentence) and "1f1b" in one.text)
    assert "high confidence), 2 stages, 2 micro-batches" in said.text
    assert said.emphasis == f"bubble {percent(facts['bubble_ratio'])}, most of it: schedule"
    assert facts["step_masking_ratio"] < facts["steady_masking_ratio"]  # two figures
    assert any(isinstance(one, Sentence) and one.text.endswith("in the whole step; transfers"
               " between stages are not counted") for one in sample)  # fmt: skip
    tables = {one.title: one.rows for one in sample if isinstance(one, FittedTable)}
    bubbles = tables["Bubble of each stage by cause (ms); causes add up to all"]
    assert [sum(v for k, v in row.items() if k not in ("stage", "all")) for row in bubbles] == [
        row["all"] for row in bubbles
    ]
    (row,) = report_rows(con, ALL, top=3)
    assert row["pipeline"]["bubble_ratio"] == facts["bubble_ratio"]


def test_a_pipeline_that_is_not_recognised_is_a_sentence(monkeypatch: pytest.MonkeyPatch,
                                                         sample_store: Path) -> None:  # fmt: skip
    monkeypatch.setattr(captures, "MOST_OPERATIONS", 10)
    con = store.open(sample_store, summaries=summary_versions())
    open_across(sample_store, con)
    remember(con)
    ((run, capture),) = con.execute("select distinct run, capture from ranks").fetchall()
    [block] = pipeline_section(report_pipeline(con, Scope(run, capture)))
    assert isinstance(block, Sentence) and "recognised here up to 10" in block.text
    assert not [*pipeline_section(report_pipeline(con, Scope(run, capture, rank=0)))]


def test_names_from_a_profile_are_text_on_the_page(hostile: list[Block]) -> None:
    html = page(hostile)
    assert "<script>alert" not in html
    assert HOSTILE in " ".join(parse_page(html).words)


OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_names_do_not_steer_a_page(blocks: list[Block], language: str) -> None:
    """Marks that reorder text, and control characters, are spelled out: in sentences, cells and
    figures."""
    html = page(blocks, language=language)
    whole, (_, *scripts) = (
        parse_page(html).words,
        re.findall("<script[^>]*>(.*?)</script>", html, re.DOTALL),
    )
    assert "mat\\u001b[31mmul\\u202etxt" in " ".join(whole)
    drawn = "".join(scripts)
    assert "31mmul" in drawn and "mat\\\\u001b[31mmul\\\\u202etxt" in drawn
    assert not OBEYED.search(" ".join(whole) + drawn)


def lacks(words: list[str]) -> list[str]:
    """Words in a row that only English has."""
    return [text for text in words if re.search(r"\b[a-z]+(?: [a-z]+){2,}", text)]


def test_a_chinese_page_is_chinese(pages: dict[str, str]) -> None:
    words = parse_page(pages["zh"]).words
    assert "首先关注" in words
    assert lacks(words) == []
    assert lacks(parse_page(pages["en"]).words)  # what the test looks for is there in English


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, told",
    [
        ("alexnet_ddp_db_level0", "2 个（0-1），Ascend910B"),
        ("alexnet_ddp_text_level1", "至少 8 个中的 2 个（0-1）"),
        (
            "qwen3_pp2_dp2_text_level2",
            "损失瀑布：2 个 step 中未计 1 个，其时长、峰值或设备时间未知",
        ),
    ],
)
def test_chinese_pages_of_real_profiles(
    name: str, told: str, real_stores: Callable[[str], Path]
) -> None:
    words = parse_page(page(blocks_of(real_stores(name)), language="zh")).words
    assert lacks(words) == []
    assert told in words


def test_sentences_keep_their_figures_and_names() -> None:
    ranks = ranks_named([0, 1, 2, 3, *range(7, 33, 2)])
    missing = "{ranks} of {all} missing: figures across ranks cover the others only."
    told = chinese(Message(missing, ranks=ranks, all=64))
    assert told.startswith("64 个 rank 中缺少 rank 0-3, 7, 9, 11, 13, 15, 17, 19 等另外 6 个：跨")
    assert chinese("a sentence nobody wrote") == "a sentence nobody wrote"
    assert (
        chinese(
            Message(
                "{ranks}: {missing}. To know it: {remedy}",
                ranks=ranks_named([2]),
                missing=HOSTILE,
                remedy="do this",
            )
        )
        == f"rank 2：{HOSTILE}。若要获知：do this"
    )


def test_findings_and_notes_of_the_code_have_a_template() -> None:
    con = connect()
    fill(con, "ranks", [{"world_size": 4}])
    fill(con, "kernels", [kernel(0, MS, 1), kernel(5 * MS, MS, 1), kernel(9 * MS, MS)])
    fill(con, "steps", [{"step": 1}, {"step": 2}])
    told = query.notes(con) + query.limits(con)
    assert len(told) > 4
    assert [text for text in told if chinese(text) == text] == []


def facts_of(blocks: list[Block]) -> dict[str, str]:
    return next(dict(block.lines) for block in blocks if isinstance(block, Facts))


@pytest.mark.parametrize(
    "world_size, told",
    [pytest.param(None, "1 of at least 8 (0)", marks=pytest.mark.slow), (4, "1 of 4 (0)")],
)
def test_ranks_that_are_not_here_are_told_of(world_size: int | None, told: str) -> None:
    """Where no world size was recorded, by the largest group, as doctor does."""
    with connect() as con:
        fill(con, "ranks", [{"world_size": world_size, "source_format": "db+text"}])
        fill(con, "kernels", [kernel(0, 9 * MS, 1)])
        fill(con, "comm_ops", [op(12 * MS, 9 * MS, 1, group_size=8)])
        keep_summaries(con)
        remember(con)
        facts = facts_of(list(report(con, ALL, top=3)))
    assert (facts["ranks"], facts["recorded"]) == (told, "db+text export")
    assert chinese(facts["recorded"]) == "db+text 导出"
    assert (
        chinese(facts["ranks"])
        == {None: "至少 8 个中的 1 个（0）", 4: "4 个中的 1 个（0）"}[world_size]
    )


def test_a_stage_of_a_step_is_none_of_the_pipeline(pages: dict[str, str]) -> None:
    words = parse_page(pages["zh"]).words
    for part in ("阶段", "流水级", "流水级 0", "各流水级的阶段（ms，各 rank 与 step 的平均）"):
        assert part in words
    (told,) = [one for one in words if one.startswith("通信掩盖率：稳定阶段")]
    assert told.endswith("；不计流水级之间的传输")


def rows_of(text: str) -> list[list[str]]:
    cells = re.compile(r"(?<!\\)\|")
    return [cells.split(line)[1:-1] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_markdown_tables_have_as_many_cells_everywhere(
    sample: list[Block], hostile: list[Block], language: str
) -> None:
    for blocks in (sample, hostile):
        text = markdown(blocks, language=language)
        tables = re.split(r"\n\n+", text)
        widths = [{len(row) for row in rows_of(table)} for table in tables]
        assert sum(map(bool, widths)) >= 3
        assert all(len(width) <= 1 for width in widths)


def test_markdown_says_what_the_page_says(sample: list[Block]) -> None:
    text = markdown(sample)
    assert "## What to look at first" in text
    assert "1. **1.537 ms per step at stake, 8.6 %** (estimated): Expert load is" in text
    assert "2. **3.986 ms per step at stake, 22.4 %** (measured): 3.986 ms of comm" in text
    assert re.search(r"gain: 1\.271 ms per step \(1\.\d+ to 1\.\d+\), replayed with comm:ep=", text)
    assert "3. **2.019 ms per step at stake, 11.4 %** (measured): 2.019 ms of comm" in text
    # Under ZB-H1 the job takes longer: its gradients are reduced behind the last pass then.
    assert re.search(r"gain: not known: schedule=zb-h1 is not sure to .* \(-0\.4\d+ ms: -0\.", text)
    assert "| communication that moves bytes | 3.986 | 22.4 % |" in text
    assert "| waiting in the pipeline | 3.463 | 19.5 % |" in text
    assert "| free: the host launches late | 0.025 | 0.1 % |" in text
    assert "| MatMulV3 | AI_CORE | 46.0 |" in text
    assert "`npuscope kernels --by type`" in text


def test_names_from_a_profile_are_text_in_markdown(hostile: list[Block]) -> None:
    assert "<script>" not in re.sub(r"\\<", "", markdown(hostile))


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.slow
def test_a_browser_without_network_shows_the_figures(pages: dict[str, str], tmp_path: Path) -> None:
    assert BROWSER, "Chromium is not installed: .ci/run does that"
    html = tmp_path / "report 报告.html"
    html.write_text(pages["zh"])
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'browser'}",
    ]  # fmt: skip
    shown = subprocess.run(
        [*command, "--dump-dom", html.as_uri()], capture_output=True, text=True, timeout=120
    ).stdout
    assert shown.count('class="js-plotly-plot"') + shown.count(" js-plotly-plot") >= 4
    # 8 ranks in three parts, 10 kernels, 7 kinds of communication in two parts.
    assert len(re.findall(r'<g class="point">', shown)) >= 8 * 3 + 10 + 7 * 2
    assert "首先关注" in shown
    pdf = tmp_path / "report.pdf"
    printing = [*command, f"--print-to-pdf={pdf}", html.as_uri()]
    subprocess.run(printing, capture_output=True, timeout=120, check=True)
    assert pdf.read_bytes().startswith(b"%PDF")
