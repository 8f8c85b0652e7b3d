"""Words of the pages: what is said where nothing is, and Chinese that means the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("streamlit")

from npuscope import console
from npuscope.analysis.catalog import metrics
from npuscope.analysis.communication import volume
from npuscope.analysis.doctor.capabilities import CAPABILITIES
from npuscope.analysis.doctor.judge import RankRecord, judge
from npuscope.analysis.doctor.limits import lacks
from npuscope.analysis.experts.plan import plan_inputs
from npuscope.analysis.experts.plan.placement import checked_sizes
from npuscope.analysis.pipeline.schedules import SCHEDULES, schedule
from npuscope.analysis.replay.changes import parse_change
from npuscope.analysis.scope import ALL
from npuscope.analysis.timeline.event_details import event_columns
from npuscope.console.printable import json_text
from npuscope.dashboard.answers.rank_answers import (
    evidence,
    in_sentences,
    in_words,
    is_waiting_known,
    nobody,
    with_hosts,
)
from npuscope.dashboard.app import state
from npuscope.dashboard.app.page import _helps, _text_px
from npuscope.dashboard.app.plain_text import plain, sentence
from npuscope.dashboard.figures import timeline
from npuscope.dashboard.figures.communication import masking_figure
from npuscope.dashboard.figures.ranks import capability_named
from npuscope.dashboard.locale.language import catalog, catalogs, label_of, language_of
from npuscope.dashboard.units import readable, words_of
from npuscope.errors import UsageError
from npuscope.messages import Message, join
from tests.analysis.tables import connect, fill, kernel
from tests.cli.command import Run, runner

chinese = language_of("zh")

MS = 1_000_000


def test_what_to_collect_is_said_of_this_capture() -> None:
    con = connect()
    fill(con, "ranks", [{"world_size": 2}])
    fill(con, "kernels", [kernel(0, MS, 1)])
    told = {one.capability: one for one in lacks(con)}
    waiting = told["waiting"]
    assert (waiting.ranks, waiting.support, waiting.reason, waiting.remedy) == (
        (0,), "no", "waiting and transfer cannot be separated",
        "profiler_level=ProfilerLevel.Level1",
    )  # fmt: skip
    assert told["steps"].reason != "no compute kernel was recorded"


def test_nobody_is_told_to_set_options_that_a_gpu_has_not() -> None:
    con = connect()
    fill(con, "ranks", [{"world_size": 2, "framework": "kineto"}])
    fill(con, "kernels", [kernel(0, MS, 1)])
    remedies = [one.remedy for one in lacks(con) if one.remedy]
    assert remedies
    assert not [one for one in remedies if "NPU" in one or "Level1" in one or "AiC" in one]


def test_whatever_a_capture_lacks_is_said_in_chinese() -> None:
    told = [verdict for is_gpu in (False, True) for verdict in judge(RankRecord({}, is_gpu=is_gpu))]
    sentences = {text for one in told for text in (one.reason, one.remedy) if text}
    sentences |= {need.missing for known in CAPABILITIES for need in known.needs}
    sentences |= {need.only for known in CAPABILITIES for need in known.needs if need.only}
    sentences = {one for one in sentences if "=" not in one}  # options of programs
    assert len(sentences) > 30
    assert [one for one in sentences if chinese(one).isascii()] == []


def test_help_of_columns_is_said_in_chinese() -> None:
    tables = [(table, known) for known in metrics() for table in known.tables]
    assert len(tables) > 30
    for table, known in tables:
        told, english = _helps(table, chinese), _helps(table, str)
        assert list(told) == list(english) == ["", *(one.name for one in known.columns)]
        place = f"`{known.name}`: analysis/{known.file}"
        for column in known.columns:
            assert english[column.name] == f"{sentence(column.meaning)}  \n{place}"
            said = told[column.name].removesuffix(f"  \n{place}")
            assert not said.isascii() or (not PHRASE.search(said) and "/" in said), said


def test_joined_sentences_are_translated_each() -> None:
    lacks = join((Message("no PMU counters"), Message("no link matrix")), "; ")
    assert (lacks, chinese(lacks)) == (
        "no PMU counters; no link matrix", "没有 PMU 计数；没有通信矩阵"
    )  # fmt: skip
    assert chinese("a name; another") == "a name; another"


def test_a_word_means_in_a_column_what_the_column_holds() -> None:
    times, ratio = readable(pl.DataFrame({"masked_ns": [MS], "masking_ratio": [0.5]}))
    assert label_of("masked_ns", times.words, chinese) == "已掩盖"
    assert label_of("masking_ratio", ratio.words, chinese) == "掩盖率"
    assert label_of("masked_ns", times.words, str) == "masked"
    level, share = readable(
        pl.DataFrame({"fragmentation_bytes": [2**20], "fragmentation_ratio": [0.5]})
    )
    assert label_of("fragmentation_bytes", level.words, chinese) == "碎片"
    assert label_of("fragmentation_ratio", share.words, chinese) == "碎片率"
    assert (chinese("measure"), chinese("measure a stretch")) == ("指标", "测量一段时间")
    assert (chinese("micro-batches"), chinese("micro-batch size")) == ("微批数", "微批大小")
    assert capability_named("groups", chinese) == "通信域"
    assert capability_named("groups", str) == "groups"


# Headings that Chinese has as they are: abbreviations, names and letters of a formula.
KEPT = frozenset({
    "a", "b", "by key", "by step", "cp", "delta", "dp", "ep", "FLOPs", "FLOPs / MAC", "key",
    "loss", "mac", "matmul", "MaxVio", "ns", "P50", "P99", "pp", "rank", "step",
    "token/s", "tp", "vector", "vpp",
})  # fmt: skip


def test_every_heading_of_a_table_is_said_in_chinese() -> None:
    left = set()
    for known in metrics():
        if not known.tables or known.name == "doctor":  # of its columns none is a heading
            continue
        for column in known.columns:
            values = [1.0] if column.name.endswith(("_ns", "_bytes", "_ratio", "_per_s")) else ["x"]
            (one,) = readable(pl.DataFrame({column.name: values}))
            told = label_of(column.name, one.words, chinese)
            if (told.isascii() and told not in KEPT) or re.match("[a-z].*（距", told):
                left.add(told)
    assert not left


def test_what_the_timeline_tells_of_an_event_has_names_in_chinese() -> None:
    said = {
        name: label_of(f"event {name}", words_of(name), chinese)
        for name in event_columns(connect())
    }
    assert {one for one in said.values() if one.isascii()} <= {"rank", "step", "FLOPs"}
    assert (said["kind"], said["block_count"]) == ("种类", "核数")  # not as in tables


def test_a_kind_of_communication_that_is_unknown_is_said_in_chinese() -> None:
    row = {"kind": "unknown", "masked_ns": MS, "exposed_ns": MS, "masking_ratio": 0.5,
           "exposed_attributed_ns": MS}  # fmt: skip
    rows = pl.DataFrame([row, row | {"kind": "dp"}])
    assert [*masking_figure(rows, chinese).data[0].y] == ["未知", "dp"]


@pytest.mark.parametrize(
    ("option", "command"),
    [
        ("--peak", "`npuscope mfu"), ("--tokens-a", "`npuscope compare"),
        ("--from-ranks-present", "`npuscope experts plan"),
    ],
)  # fmt: skip
def test_an_option_that_pages_name_is_of_a_command(option: str, command: str) -> None:
    """Pages have no such control: who reads it there has to know where it is given."""
    told = {one: other for one, other in catalog(catalogs()["zh"]).items() if option in one}
    assert told
    assert all(command in one and command in other for one, other in told.items())


def test_a_link_can_name_whatever_the_timeline_draws() -> None:
    assert tuple(timeline.SHARES) == state.SHARES


def test_who_came_last_is_unknown_where_nobody_did() -> None:
    rows = pl.DataFrame(
        {
            "rank": [0, 1], "verdict": [None, None], "score": [0.0, 0.0], "caused_wait_ns": [0, 0],
            "share_ratio": [None, None], "last_arrivals_count": [0, 0], "step_count": [1, 1],
        },
        schema_overrides={"verdict": pl.String, "share_ratio": pl.Float64},
    )  # fmt: skip
    hosts = pl.DataFrame({"rank": [0, 1], "host": ["a", "a"], "host_name": [None, "n0"]})
    told = with_hosts(rows, hosts)
    assert told["host"].to_list() == ["a", "n0"]
    assert told["caused_wait_ns"].null_count() == told["last_arrivals_count"].null_count() == 2
    seen = with_hosts(rows.with_columns(last_arrivals_count=pl.Series([3, 0])), hosts)
    assert seen["caused_wait_ns"].to_list() == [0, 0]


def test_that_nobody_is_slow_is_said_of_ranks_that_were_compared() -> None:
    rows = pl.DataFrame({"caused_wait_ns": [MS, 0], "last_arrivals_count": [1, 0]})
    unknown = rows.with_columns(caused_wait_ns=pl.lit(None, pl.Int64))
    nobody_came = rows.with_columns(last_arrivals_count=pl.lit(0, pl.Int64))
    assert [is_waiting_known(one) for one in (rows, unknown, nobody_came)] == [True, False, False]
    assert nobody(rows) == nobody(nobody_came) == "No rank is slower than its peers."
    assert nobody(unknown) == "No rank is known to be slower than its peers."


def test_a_long_text_among_short_ones_has_room() -> None:
    short = pl.Series(["stream 2", None])
    assert _text_px(short) is None and _text_px(pl.Series([1, 2])) is None
    long = _text_px(pl.Series(["-", "chip runs at a lower clock"]))
    assert long is not None and long > 26 * 6
    assert _text_px(pl.Series(["芯片频率较低，低于标称值"])) == _text_px(pl.Series(["ab" * 12]))
    assert _text_px(pl.Series(["n" * 5000])) == 420


def test_evidence_without_a_figure_is_a_sentence() -> None:
    line = '{"what": "WHAT", "value": VALUE, "peers": null, "unit": "count"}'
    lines = [line.replace("WHAT", "a").replace("VALUE", "3")]
    lines.append(line.replace("WHAT", "which experts: not recorded").replace("VALUE", "null"))
    figures, sentences = in_sentences(evidence({"evidence": f"[{', '.join(lines)}]"}))
    assert ([one["what"] for one in figures], sentences) == (["a"], ["which experts: not recorded"])


def test_evidence_that_is_a_part_of_a_count_says_of_how_many() -> None:
    told = '[{"what": "a", "value": 7.0, "peers": null, "unit": "pieces", "of": 15}]'
    lines = evidence({"evidence": told})
    assert lines == [{"what": "a", "rank": "7 of 15", "peers": "-"}]
    assert in_words(lines, language_of("zh")).row(0) == ("a", "7 / 15", "-")


def test_names_do_not_steer_a_sentence_of_a_page() -> None:
    assert plain("mat\x1bmul\u202e*") == r"mat\\u001bmul\\u202e\*"


def refuse(error: UsageError) -> None:
    raise error


REFUSED: dict[str, Callable[[], object]] = {
    "设备数、每设备专家数和主机数必须不小于 1：得到 0、1 和 1": lambda: checked_sizes(8, 0, 1),
    "3 个设备不能被 2 台主机均分": lambda: checked_sizes(8, 3, 4, 2),
    "2 个设备 × 3 个位置 = 6，少于一层的 8 个专家：每设备需要 4 个位置": (
        lambda: checked_sizes(8, 2, 3)
    ),
    "8 个专家不能取 top-k 9：请选 1 到 8": (
        lambda: volume.hierarchy(connect(), ALL, experts=8, top_k=9)
    ),
    "任何 step 都没有一层记录了其全部专家的计数": (
        lambda: plan_inputs.known_loads(np.full((2, 1, 4), np.nan))
    ),
    "rank=5：改动的写法是 TARGET=VALUE，例如 comm:pp=0.5，或 ideal": (
        lambda: parse_change("rank=5")
    ),
    "comm:pp=x：取值应为不小于 0 的数（0.5 即时间减半），`median`": (
        lambda: parse_change("comm:pp=x").factor("median")
    ),
    "rank:9=1：此处没有这样的 rank，现有：0, 1": lambda: refuse(
        parse_change("rank:9=1").no_such([0, 1])
    ),
    "没有名为 'zz' 的调度，可选 " + ", ".join(SCHEDULES): lambda: schedule("zz", 4, 8),
    "dualpipev 要求每个流水级有两个微批：应为 8 个，而不是 4 个": (
        lambda: schedule("dualpipev", 4, 4)
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_errors_of_pages_are_said_in_chinese(said: str) -> None:
    with pytest.raises(UsageError) as refused:
        REFUSED[said]()
    assert chinese(refused.value.message) == said
    assert str(refused.value) == refused.value.message and str(refused.value).isascii()


# Commands whose notes pages and reports show, too.
NOTED = (
    ("steps",), ("kernels",), ("comm",), ("comm", "--by", "link"), ("comm", "--by", "stretch"),
    ("comm", "--by", "hierarchy", "--experts", "16", "--top-k", "2"), ("ranks",), ("clocks",),
    ("memory",), ("mfu",), ("mfu", "--waterfall"), ("mfu", "--model", "qwen3-0.6b"),
    ("mfu", "--model", "qwen3-0.6b", "--tokens-per-step", "auto"),
    ("mfu", "--model", "qwen3-0.6b", "--tokens-per-step", "999999", "--recompute", "full",
     "--sequence-length", "4096"),
    ("experts", "--by", "device"), ("experts", "--by", "cost"), ("doctor",),
)  # fmt: skip
PHRASE = re.compile(r"\b[a-z]+(?: [a-z]+){2,}")


def notes_in_english(run: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Notes of the commands that have no Chinese; names of commands and options stay."""
    told: set[str] = set()

    def heard(value: dict[str, list[str]], encoding: str) -> str:
        told.update(value["notes"])  # before they are JSON, and English
        return json_text(value, encoding)

    monkeypatch.setattr(console, "json_text", heard)
    for command in NOTED:
        run(command[0], store, *command[1:], "--json")
    assert told
    return {note for note in told if PHRASE.search(re.sub("`[^`]*`", "", chinese(note)))}


@pytest.mark.slow
def test_notes_of_the_sample_are_said_in_chinese(
    sample_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = runner(tmp_path, monkeypatch, capsys)
    assert notes_in_english(run, sample_store, monkeypatch) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["alexnet_ddp_db_level0", "alexnet_ddp_text_level1", "qwen3_pp2_dp2_text_level2"]
)
def test_notes_of_real_profiles_are_said_in_chinese(
    name: str, real_stores: Callable[[str], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = runner(tmp_path, monkeypatch, capsys)
    assert notes_in_english(run, real_stores(name), monkeypatch) == set()
