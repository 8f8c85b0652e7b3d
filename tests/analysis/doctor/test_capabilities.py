"""Each need of each analysis: what goes when it lacks, why, and what brings it back."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from npuscope.analysis.doctor.capabilities import CAPABILITIES, RANKS, Need
from npuscope.analysis.doctor.judge import RankRecord, Verdict, judge
from npuscope.analysis.doctor.profiler_options import LEVEL1, Options
from npuscope.analysis.metric import sql_text
from npuscope.collector import schema

REPOSITORY = Path(__file__).resolve().parents[3]
EVERYTHING = {
    content for known in CAPABILITIES for need in known.needs for content in need.contents
}
# Every table has what its parts count.
COUNTS = dict.fromkeys(
    {*EVERYTHING, *(content.partition(".")[0] for content in EVERYTHING)}, 10
) | {"kernels.cores": 10, "kernels.cubes": 10}  # fmt: skip
ALL_ON: Options = {
    "activities": ["CPU", "NPU"], "profiler_level": "Level1", "profile_memory": True,
    "aic_metrics": "ACL_AICORE_PIPE_UTILIZATION", "with_stack": True, "record_shapes": True,
    "sys_io": True, "sys_interconnection": True, "schedule.active": 1,
}  # fmt: skip
ALL_OFF: Options = {
    "activities": [], "profiler_level": "Level0", "profile_memory": False,
    "aic_metrics": "ACL_AICORE_NONE", "with_stack": False, "record_shapes": False,
    "sys_io": False, "sys_interconnection": False,
}  # fmt: skip
NEEDS = [(known.name, need) for known in CAPABILITIES for need in known.needs]
each_need = pytest.mark.parametrize(
    ("name", "need"), NEEDS, ids=[f"{name}:{need.contents[0]}" for name, need in NEEDS]
)


def verdict(rank: RankRecord, name: str) -> Verdict:
    return next(one for one in judge(rank) if one.capability == name)


def without(need: Need) -> dict[str, int]:
    """Counts of a rank that has everything but this."""
    lost = {*need.contents, *need.instead}
    return {content: count for content, count in COUNTS.items() if content not in lost}


def test_a_rank_with_everything_can_answer_everything() -> None:
    assert [(one.capability, one.support) for one in judge(RankRecord(COUNTS))] == [
        (known.name, "yes") for known in CAPABILITIES
    ]


@each_need
def test_what_lacks_turns_its_analysis_off(name: str, need: Need) -> None:
    found = verdict(RankRecord(without(need), options=ALL_OFF), name)
    assert found.support == ("no" if need.essential else "partly")
    assert need.missing in (found.reason or "")
    for setting in need.settings:
        assert setting in found.settings
        assert setting.says in (found.remedy or "")
    assert found.remedy


@each_need
def test_it_turns_off_nothing_that_does_not_need_it(name: str, need: Need) -> None:
    lost = {*need.contents, *need.instead}
    before = {known.name: known for known in CAPABILITIES}
    for one in judge(RankRecord(without(need))):
        needs = before[one.capability].needs
        if not any(lost & {*other.contents, *other.instead} for other in needs):
            assert one.support == "yes", one


@pytest.mark.parametrize(
    ("name", "need"), [pair for pair in NEEDS if pair[1].instead],
    ids=[name for name, need in NEEDS if need.instead],
)  # fmt: skip
def test_something_instead_gives_a_part(name: str, need: Need) -> None:
    counts = {**without(need), need.instead[0]: 3}
    found = verdict(RankRecord(counts), name)
    assert found.support == "partly"
    assert need.only in (found.reason or "")


@pytest.mark.parametrize(
    ("name", "need"), [pair for pair in NEEDS if pair[1].of],
    ids=[f"{name}:{need.contents[0]}" for name, need in NEEDS if need.of],
)  # fmt: skip
def test_a_part_of_them_is_partly(name: str, need: Need) -> None:
    some = {**COUNTS, need.contents[0]: 2}
    found = verdict(RankRecord(some), name)
    assert found.support == "partly"
    assert "2 of 10 only" in (found.reason or "")
    enough = {**COUNTS, need.contents[0]: int(10 * need.least)}
    assert verdict(RankRecord(enough), name).support == "yes"


@pytest.mark.parametrize(
    ("name", "need"), [pair for pair in NEEDS if pair[1].settings and not pair[1].ingest],
    ids=[f"{name}:{need.contents[0]}" for name, need in NEEDS
         if need.settings and not need.ingest],
)  # fmt: skip
def test_what_was_asked_for_is_not_asked_for_again(name: str, need: Need) -> None:
    recorded = RankRecord(without(need), options=ALL_ON, files=frozenset({"profiler_info_0.json"}))
    found = verdict(recorded, name)
    is_known = all(setting.is_on(ALL_ON) for setting in need.settings)
    assert bool(found.settings) == (not is_known)
    if is_known and need.file:
        assert f"({need.file} is not here)" in (found.reason or "")
        assert "analyse()" in (found.remedy or "")


@pytest.mark.parametrize(
    "file",
    ["trace_view.json", "ascend_pytorch_profiler_3.db", "msprof_20250101010101.db"],
)
def test_a_file_that_is_there_is_not_asked_for(file: str) -> None:
    counts = {content: 1 for content in COUNTS if not content.startswith(("host", "launch"))}
    found = verdict(RankRecord(counts, options=ALL_ON, files=frozenset({file})), "host")
    assert found == Verdict("host", "no", "no host activity was recorded (though it was asked for)")
    damaged = RankRecord(counts, ALL_ON, frozenset({file}), unread=frozenset({file}))
    assert verdict(damaged, "host").reason == (
        f"no host activity was recorded ({file} was not read in full)"
    )
    # What the options did not ask for no file could hold.
    off = replace(damaged, options={**ALL_ON, "activities": ["NPU"]})
    assert verdict(off, "host").reason == "no host activity was recorded"


def test_what_was_not_selected_is_asked_of_ingest() -> None:
    counts = {c: n for c, n in COUNTS.items() if not c.startswith("kernels")}
    found = verdict(RankRecord(counts, left_out=frozenset({"kernels"})), "kernels")
    assert found == Verdict(
        "kernels", "no", "no compute kernel was recorded (not selected when the rank was read)",
        "`npuscope ingest PATH --tables kernels --ranks LIST`",
    )  # fmt: skip


def test_stacks_that_were_recorded_are_asked_of_ingest() -> None:
    counts = {c: n for c, n in COUNTS.items() if c != "host_ops.stacked"} | {"host_ops.python": 5}
    found = verdict(RankRecord(counts, options=ALL_ON), "stacks")
    assert (found.support, found.settings) == ("partly", ())
    assert found.remedy == "`npuscope ingest PATH --stacks`"
    kept = verdict(RankRecord(counts, options=ALL_ON, stacks=True), "stacks")
    assert "--stacks" not in (kept.remedy or "")


def test_a_job_of_one_rank_has_nothing_to_communicate() -> None:
    counts = {c: n for c, n in COUNTS.items() if not c.startswith("comm_")}
    for known in CAPABILITIES:
        found = verdict(RankRecord(counts, world_size=1), known.name)
        if known.talks:
            assert found == Verdict(known.name, "no", "a job of one rank has no communication")
    assert verdict(RankRecord(counts, world_size=2), "links").settings == (LEVEL1,)
    assert verdict(RankRecord(COUNTS, world_size=1), "links").support == "yes"


def test_an_empty_rank_is_told_once_for_each_analysis() -> None:
    for one in judge(RankRecord({})):
        assert one.support == "no"
        reasons = (one.reason or "").split("; ")
        assert len(set(reasons)) == len(reasons) <= 2


def test_contents_and_tables_are_counted() -> None:
    sql = sql_text("contents.sql")
    counted = set(re.findall(r"content: '([a-z_.]+)'", sql)) | {"largest_group"}
    counted |= set(re.findall(r"'([a-z_.]+)' as content", sql))
    assert EVERYTHING | {"kernels.cores", "kernels.cubes"} <= counted
    assert {content.partition(".")[0] for content in counted} - {"largest_group"} <= set(
        schema.tables()
    )
    for _, need in NEEDS:
        assert need.tables <= set(schema.tables())
        assert {*need.instead, *([need.of] if need.of else [])} <= counted


def test_every_need_says_what_helps() -> None:
    for name, need in NEEDS:
        assert need.missing, name
        assert need.settings or need.advice, (name, need.missing)
        assert bool(need.instead) == bool(need.only)
    names = [known.name for known in CAPABILITIES]
    assert len(set(names)) == len(names)


def _need(need: Need) -> str:
    counted = " or ".join(f"`{content}`" for content in need.contents)
    instead = " or ".join(f"`{content}`" for content in need.instead)
    part = f" (partly with {instead})" if instead else "" if need.essential else " (else partly)"
    return counted + part


def _table() -> str:
    """The table as Markdown, for the documentation."""
    lines = ["| analysis | needs | else |", "| --- | --- | --- |"]
    for known in CAPABILITIES:
        needs = "<br>".join(map(_need, known.needs))
        told = dict.fromkeys(
            f"`{s.says}`" if "=" in s.says else s.says for n in known.needs for s in n.settings
        )
        told |= dict.fromkeys(need.advice for need in known.needs if need.advice)
        lines.append(f"| **{known.name}**: {known.question} | {needs} | {'<br>'.join(told)} |")
    ranks = "two ranks or more; partly where ranks or steps are missing"
    lines.append(f"| **{RANKS.name}**: {RANKS.question} | {ranks} | profile every rank |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table() -> None:
    page = (REPOSITORY / "docs" / "doctor.md").read_text(encoding="utf-8")
    assert _table() in page, "put _table() into docs/doctor.md"
