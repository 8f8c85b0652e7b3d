"""Limits on a change, and a side kept as a small file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from npuscope.analysis.compare.baseline import baseline_bytes, is_baseline, read_baseline
from npuscope.analysis.compare.difference import Comparison, compare
from npuscope.analysis.compare.limits import MEASURE_OF, judge, limits_of, parse_limit
from npuscope.analysis.compare.side import MEASURES, Side, together
from npuscope.errors import TraceFormatError, TraceNotFound, UsageError
from npuscope.sample_traces.job import small
from tests.analysis.compare.test_compare import adds_up, side, steps_only

LEVELS = [1.00, 1.01, 1.00, 1.01]


def figure(**figures: float | None) -> Side:
    """Four steps of these mean figures, each 1 % apart; unknown otherwise."""
    steps = steps_only([1e7 * level for level in LEVELS]).steps
    return replace(
        steps_only([1e7]),
        steps=steps.with_columns(
            pl.lit([None if mean is None else mean * level for level in LEVELS])
            .explode()
            .alias(name)
            for name, mean in figures.items()
        ),
    )


def verdict_of(limit: str, a: float | None, b: float | None) -> str:
    name, _, text = limit.partition("=")
    measure = MEASURE_OF[name]
    found = compare(figure(**{measure: a}), figure(**{measure: b}))
    (row,) = judge([parse_limit(name, text)], found).to_dicts()
    return str(row["verdict"])


@pytest.mark.parametrize(
    ("limit", "a", "b", "verdict"),
    [
        ("step_time=+3 %", 1e7, 1.05e7, "broken"),
        ("step_time=+3 %", 1e7, 1.029e7, "kept"),
        ("step_time=+3 %", 1e7, 0.5e7, "kept"),
        ("step_time=-3 %", 1e7, 0.5e7, "broken"),  # somebody may want to know that, too
        ("step_time=+0.6ms", 1e7, 1.05e7, "kept"),
        ("step_time=+ .4 ms", 1e7, 1.05e7, "broken"),
        ("step_time=+0 %", 1e7, 1.001e7, "not_enough"),
        ("computing_time=+400us", 1e7, 1.05e7, "broken"),
        ("free_time=+1 s", 1e7, 2e7, "kept"),
        ("masking_ratio=-2 points", 0.60, 0.55, "broken"),
        ("masking_ratio=\u22126 points", 0.60, 0.55, "kept"),
        ("masking_ratio=-1 point", 0.60, 0.595, "kept"),
        ("mfu=-5 %", 0.40, 0.37, "broken"),
        ("mfu=-8%", 0.40, 0.37, "kept"),
        ("peak_memory=+1 GiB", 60 * 2.0**30, 62 * 2.0**30, "broken"),
        ("peak_memory=+2.1 GB", 60 * 2.0**30, 62 * 2.0**30, "broken"),
        ("peak_memory=+2.2 GB", 60 * 2.0**30, 62 * 2.0**30, "kept"),
        ("expert_imbalance=+0.1", 1.5, 1.7, "broken"),
        ("expert_imbalance=+0.3", 1.5, 1.7, "kept"),
        ("mfu=-1 %", None, 0.3, "unknown"),
        ("mfu=-1 %", 0.3, None, "unknown"),
    ],
)  # fmt: skip
def test_a_limit_is_broken_where_the_difference_is_beyond_and_real(
    limit: str, a: float | None, b: float | None, verdict: str
) -> None:
    assert verdict_of(limit, a, b) == verdict


def test_how_many_more_steps_would_tell() -> None:
    """As many as narrow the interval to the difference; recorded, they tell."""
    level = [1.00e7, 1.03e7, 1.01e7]
    limits = [parse_limit("step_time", "+1 %")]

    def row(count: int) -> dict[str, object]:
        slower = steps_only([one * 1.02 for one in level * count])
        (found,) = judge(limits, compare(steps_only(level * count), slower)).to_dicts()
        return found

    told = row(1)
    assert told["verdict"] == "not_enough" and isinstance(told["more_count"], int)
    assert row(1 + -(-told["more_count"] // 3))["verdict"] == "broken"
    (one,) = judge(limits, compare(steps_only([1e7]), steps_only([2e7, 2e7]))).to_dicts()
    assert (one["verdict"], one["more_count"], one["low"]) == ("not_enough", 1, None)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("step_tme", "+3 %", "choose of step_time, computing_time"),
        ("step_time", "3 %", "give + (may grow) or - (may fall)"),
        ("step_time", "+3", "%, s, ms, us, ns"),
        ("step_time", "+1 GiB", "%, s, ms, us, ns"),
        ("masking_ratio", "-0.02", "points"),
        ("peak_memory", "+1 points", "GiB"),
        ("expert_imbalance", "+1 GiB", "none"),
        ("step_time", "+nan %", "+3 %"),
        ("step_time", "", "+3 %"),
        ("step_time", 0.03, "0.03"),
        ("step_time", {"most": "+3 %"}, "+3 %"),
    ],
)
def test_bad_limits_say_what_is_allowed(name: str, text: object, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_limit(name, text)
    assert said in str(refused.value)


def test_limits_of_a_file_and_of_options(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('# ours\nstep_time = "+3 %"\nmasking_ratio = "-2 points"\n')
    found = limits_of(["peak_memory = +1 GiB", "step_time=+5%"], file)
    assert [(one.name, one.text) for one in found] == [
        ("step_time", "+5 %"), ("masking_ratio", "-2 points"), ("peak_memory", "+1 GiB"),
    ]  # fmt: skip
    for options, text, said in (
        ((), "", "no limits"),
        (("step_time",), "", "NAME=LIMIT"),
        (("mfu=-1%", "mfu=-2%"), "", "twice"),
        ((), "step_time = +3 %", "no TOML"),
        ((), "[limits]\nstep_time = '+3 %'", "no limit limits"),
        ((), b"\xff\xfe", "no TOML"),
    ):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UsageError, match=said):
            limits_of(options, file)
    with pytest.raises(TraceNotFound, match="absent"):
        limits_of([], tmp_path / "absent")


def keep(ours: Side, path: Path) -> Side:
    path.write_bytes(baseline_bytes(ours))
    assert is_baseline(path)
    return read_baseline(path)


def test_a_baseline_is_as_good_as_its_run(tmp_path: Path) -> None:
    job = small(steps=3)
    ours, theirs = side(job), side(replace(job, repeated_kernel="ApplyAdamWV2"))
    ours = replace(ours, steps=ours.steps.with_columns(peak_memory_bytes=pl.lit(1e9)))
    file = tmp_path / "base.json"
    base = keep(ours, file)
    assert file.stat().st_size < 4000
    assert base.steps.equals(ours.steps) and base.facts == ours.facts
    direct, through = compare(ours, theirs), compare(base, theirs)
    adds_up(through)
    assert through.figures.equals(direct.figures)
    # Kernels are kept by type: only what shapes would tell is told otherwise.
    parts = ["part", "name"]
    assert both(through, parts).equals(both(direct, parts))
    again = replace(base, steps=base.steps.with_columns(peak_memory_bytes=pl.lit(2e9)))
    alone = compare(base, together([base, again]))
    adds_up(alone)
    assert set(alone.rows["delta_ns"]) == {0}


def both(found: Comparison, by: list[str]) -> pl.DataFrame:
    sums = found.rows.group_by(by).agg(pl.col("a_ns", "b_ns").sum()).sort(by, nulls_last=True)
    return sums.filter(pl.col("name").is_not_null())


def test_types_alone_and_names_alone_are_not_paired(tmp_path: Path) -> None:
    ours = side(small(steps=3))
    names = replace(
        ours,
        kernels=ours.kernels.with_columns(
            type=pl.lit(None, pl.String), shape=pl.lit(None, pl.String)
        ),
    )
    for found in (
        compare(keep(ours, tmp_path / "types.json"), names),
        compare(keep(names, tmp_path / "none.json"), ours),
    ):
        adds_up(found)
        told = found.rows.filter(part="computing", change="gone")
        assert told.is_empty()
    assert set(compare(read_baseline(tmp_path / "types.json"), names).rows["delta_ns"]) == {0}


@pytest.mark.parametrize(
    "text",
    [
        '{"npuscope_baseline":2,"steps":[],"parts":[],"kernels":[],"facts":{}}',
        '{"npuscope_baseline":1,"steps":[],"parts":[],"kernels":[],"facts":{}}',
        '{"npuscope_baseline":1,"steps":[{"run":"r","capture":"c","step":[1,2],"step_ns":[5],'
        '"measures":{}}],"parts":[],"kernels":[],"facts":{}}',
        '{"npuscope_baseline":1,"steps":[{"run":"r","capture":"c","step":[1],"step_ns":[5],'
        '"measures":{}}],"parts":[["magic",null,1.0]],"kernels":[],"facts":{}}',
        '{"npuscope_baseline":1,"steps":"none"}',
        '{"npuscope_baseline":1,',
    ],
)
def test_damaged_baselines_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "base.json"
    file.write_text(text)
    assert is_baseline(file)
    with pytest.raises(TraceFormatError, match=r"base\.json"):
        read_baseline(file)


def test_measures_that_an_older_file_lacks_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    file.write_text(
        '{"npuscope_baseline":1,"steps":[{"run":"r","capture":"c","step":[1,2],"step_ns":[5,6],'
        '"measures":{"free_ns":[1.0,null]}}],"parts":[],"kernels":[],"facts":{"colour":["red"]}}'
    )
    found = read_baseline(file)
    assert found.steps["free_ns"].to_list() == [1.0, None]
    for name in {*MEASURES} - {"free_ns"}:
        assert found.steps[name].null_count() == 2
    assert compare(found, found).delta_ns == 0
