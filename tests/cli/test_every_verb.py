"""Every verb in four ways: as a table, as JSON, where nothing was recorded, and asked wrongly."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest

from npuscope.analysis import memo
from npuscope.analysis.catalog import column_names, metrics
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from tests.analysis.tables import connect, fill
from tests.cli.command import Run
from tests.conftest import REPOSITORY

COMM = "kind type op stretch link matrix bandwidth contention part".split()
MEMORY = "component holder block step growth spread curve".split()
EXPERTS = "layer expert device node time cost".split()
PLAIN = (
    "report findings steps clocks ranks doctor mfu memory host experts kernels comm replay"
    " critical-path operators"
).split()
VERBS = [
    *(pytest.param((verb,), id=verb) for verb in PLAIN),
    *(
        pytest.param((verb, "--by", key), id=f"{verb} --by {key}", marks=pytest.mark.slow)
        for verb, keys in (("comm", COMM), ("memory", MEMORY), ("experts", EXPERTS))
        for key in keys
    ),
    pytest.param(("mfu", "--waterfall"), id="mfu --waterfall"),
]
# What shows a metric, as the catalog has it; without --by by the key that is the default.
SHOWN = {asked: known for known in metrics() for asked in known.commands}
DEFAULTS = {"comm": "kind", "kernels": "type", "memory": "component", "mfu": "step"}
SHOWN |= {verb: SHOWN[f"{verb} --by {key}"] for verb, key in DEFAULTS.items()}
SHOWN["experts"] = SHOWN["experts --by layer"]
CALLS = ("asked.answer", "print_json", "_answer", "View")
MATRIX = {
    "step1": {
        "p2p": {},
        "collective": {
            "hcom_allReduce__123_0_1@1": {
                "0-1": {
                    "Transport Type": "HCCS",
                    "Transit Time(ms)": 1.5,
                    "Transit Size(MB)": 10.0,
                    "Op Name": "hcom_allReduce__123_0_1",
                    "Bandwidth(GB/s)": 6.6,
                }
            }
        },
    }
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`none`: an export of one rank and nothing else; `kernel`: a store of one kernel in a step."""
    folder = tmp_path_factory.mktemp("bare")
    with connect(folder / "none.duckdb") as con:
        fill(con, "ranks", [{}])
    profile = folder / "job" / "h_ascend_pt"
    output = profile / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text(
        "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"
        "1,MatMul1,N/A,AI_CORE,1700000000000000.000,10.000\n"
    )
    (profile / "profiler_info_0.json").write_text("{}")
    assert ingest(folder / "job", folder / "store", summarise=summarise, jobs=1).is_complete
    return {"none": folder / "none.duckdb", "kernel": folder / "store"}


@pytest.fixture(autouse=True)
def answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a store keeps them: what is shown in two ways is computed once."""
    monkeypatch.setattr(memo, "WORTH_S", 0.0)


@pytest.fixture(scope="module")
def own_store(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, for no other test is to find answers in the store that all read."""
    return shutil.copytree(small_store, tmp_path_factory.mktemp("own") / "store")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_table_and_json_say_the_same_thing(
    run: Run, own_store: Path, verb: tuple[str, ...]
) -> None:
    told = run(verb[0], own_store, *verb[1:], "--json")
    table = run(verb[0], own_store, *verb[1:])
    assert table.code == told.code
    if told.code:  # no counts were recorded, and shapes of kernels tell only tokens per device
        assert verb[0] == "experts" and told.code == 3
        assert "no expert load here" in told.err and table.err == told.err
        return
    answer = told.json()
    assert list(answer) == ["schema_version", "metric", "rows", "notes"]
    assert answer["schema_version"] == 1
    assert answer["metric"] == SHOWN[" ".join(verb)].name
    if verb in (("report",), ("doctor",), ("ranks",)):  # made of several metrics
        assert answer["rows"][0].keys() <= {one.name for one in SHOWN[verb[0]].columns}
    assert answer["rows"] and {tuple(row) for row in answer["rows"]} == {tuple(answer["rows"][0])}
    assert all(isinstance(note, str) for note in answer["notes"])
    if "contention" not in verb:  # whose table leaves out links that never shared the time
        assert len(table.out.splitlines()) > 2 and "{" not in table.out.partition("\n")[0]


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ((), "models"), (("deepseek-v3",), "model"),
        (("deepseek-v3", "--reconcile"), "model_reconcile"),
        (("pangu-ultra-moe-718b", "--reconcile"), "model_reconcile"),
    ],
)  # fmt: skip
def test_answers_on_models_are_metrics(run: Run, asked: tuple[str, ...], name: str) -> None:
    answer = run("model", *asked, "--json").json()
    assert answer["metric"] == name
    assert tuple(answer["rows"][0]) == column_names(name)


def test_every_metric_that_a_command_answers_with_is_in_the_catalog() -> None:
    """Also where these tests have no input for it."""
    named = {"stores", "profile_config", "profile_config_check"}  # no analyses
    for path in (REPOSITORY / "npuscope" / "commands").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in CALLS and call.args:
                [first, *_] = call.args
                if isinstance(first, ast.Constant):
                    named.add(str(first.value))
    assert len(named) > 15
    assert named - {known.name for known in metrics()} == {
        "stores", "profile_config", "profile_config_check",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("none", marks=pytest.mark.slow), "kernel"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_word_of_rows_that_are_not_there(
    run: Run, bare: dict[str, Path], verb: tuple[str, ...], name: str
) -> None:
    path = bare[name]
    table = run(verb[0], path, *verb[1:])
    rows = run(verb[0], path, *verb[1:], "--json")
    assert table.code == rows.code and table.code in (0, 3)
    if table.code == 3:
        assert table.out == "" and table.err.strip()
        return
    answer = rows.json()
    if not answer["rows"] and verb[0] != "doctor":
        assert re.fullmatch(r"([^\n]*: no rows|no [\w ]+ recorded)?\n?", table.out)
        assert answer["notes"] or table.err, "why there is nothing is said"
        for text in (*answer["notes"], table.out, table.err):
            assert not any(word in text for word in ("verdicts", "add up", "mean rank"))


@pytest.mark.parametrize(
    ("verb", "reason"),
    [("findings", "no finding costs 1 %"), ("ranks", "no rank waits for another")],
)
def test_json_without_rows_says_why_as_the_table_does(
    run: Run, bare: dict[str, Path], verb: str, reason: str
) -> None:
    answer = run(verb, bare["kernel"], "--json").json()
    assert answer["rows"] == [] and reason in answer["notes"][0]
    assert answer["notes"][0] in run(verb, bare["kernel"]).err


@pytest.mark.parametrize("verb", PLAIN)
def test_what_is_asked_wrongly_is_refused(run: Run, bare: dict[str, Path], verb: str) -> None:
    path = bare["kernel"]
    for asked, told in (
        (("--nonsense",), "--nonsense"),
        (("--rank", "9"), "rank 9"),
        (("--run", "x"), "run x"),
        (("--capture", "x"), "capture x"),
        (("--by", "colour"), "colour"),
    ):
        refused = run(verb, path, *asked)
        assert (refused.code, refused.out) == (2, ""), asked
        assert told in refused.err or asked[0] in refused.err
    absent = run(verb, path / "absent")
    assert (absent.code, absent.out) == (3, "") and absent.err.startswith("npuscope: ")


MISSING = (
    "From the peak to what is achieved: not known: FLOPs of 1 kernels without a type",
    "Communication: no communication operation was recorded",
    "Who makes the others wait: no operation was recorded by two ranks or more",
    "Expert load: no tokens per expert were recorded, and no kernel shows them",
)
MISSING_CHINESE = (
    "从峰值到实际达到：未知：",
    "通信：未采集到",
    "谁让别人等：没有",
    "专家负载：未采集",
)


@pytest.mark.slow
def test_a_section_that_cannot_be_computed_says_why_in_its_place(
    run: Run, bare: dict[str, Path], tmp_path: Path
) -> None:
    path = bare["kernel"]
    page, chinese = tmp_path / "page.html", tmp_path / "zh.html"
    assert run("report", path, "--html", page).code == 0
    assert run("report", path, "--html", chinese, "--lang", "zh").code == 0
    for told in (
        run("report", path).out,
        run("report", path, "--markdown").out,
        page.read_text(encoding="utf-8"),
    ):
        told = " ".join(told.split())  # terminals fold lines
        places = [told.index(words) for words in MISSING]
        assert places == sorted(places)
        assert places[0] < told.index("What to know about these figures")
    assert "Memory: no memory curve was recorded" in page.read_text(encoding="utf-8")
    assert all(words in chinese.read_text(encoding="utf-8") for words in MISSING_CHINESE)

    (capture,) = run("report", path, "--json").rows
    assert [any(one.startswith(words) for one in capture["not_shown"]) for words in MISSING] == [
        True
    ] * 4


def test_a_matrix_or_blocks_alone_are_read(run: Run, tmp_path: Path) -> None:
    matrix = tmp_path / "communication_matrix.json"
    matrix.write_text(json.dumps(MATRIX))
    blocks = tmp_path / "operator_memory.csv"
    blocks.write_text(
        "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us)\n"
        "aten::empty,512.0,1700000000000000.0,1700000000000100.0,100.0\n"
    )
    for file, table in ((matrix, "comm_matrix"), (blocks, "operator_memory")):
        asked = run("sql", file, f"select count(*) n from {table}", "--json")
        assert asked.code == 0 and asked.rows == [{"n": 1}], asked.err
