"""Peaks of chips: from metadata, by name, from kernels, as given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npuscope.analysis.flops.chips import peaks
from npuscope.analysis.flops.peaks import CHIPS, MeasuredChip, parse_peaks, peak_of
from npuscope.analysis.summaries import summarise
from npuscope.collector.ingest.ingest import ingest
from npuscope.collector.store import store
from npuscope.errors import UsageError
from npuscope.sample_traces.generate import small, write_job
from tests.analysis.tables import connect, fill, kernel

NOTHING = MeasuredChip()


@pytest.mark.parametrize(
    ("chip", "tera"), [("Ascend910B2", 353.9), ("910B3", 294.9), ("Ascend910B4", 245.8)]
)
def test_published_peaks_by_name(chip: str, tera: float) -> None:
    """Cores x MHz x 8192, as published for BF16; FP32 and memory from the table."""
    peak = peak_of(chip, None, None, NOTHING)
    assert peak.of("bf16") == peak.of("fp16") == pytest.approx(tera * 1e12, rel=2e-4)
    assert peak.of("int8") == 2 * (peak.of("bf16") or 0)
    assert peak.of("fp32") and peak.hbm_bytes_per_s
    assert chip in peak.source_of("bf16") and chip in peak.source_of("fp32")


def test_metadata_comes_first_and_kernels_last() -> None:
    peak = peak_of("Ascend910B", 24, 1850.0, MeasuredChip(20, 1650.0))
    assert peak.of("bf16") == 24 * 1850e6 * 8192
    assert peak.source_of("bf16") == "24 cores (metadata) x 1850 MHz (metadata) x 8192"
    peak = peak_of("Ascend910B", None, None, MeasuredChip(20, 1650.0))
    assert peak.of("bf16") == 270.336e12
    source = "20 cores (inferred from block counts) x 1650 MHz (cycles / core time) x 8192"
    assert peak.source_of("bf16") == peak.source_of(None) == source
    assert peak.of("fp32") is None and "--peak fp32" in peak.source_of("fp32")


def test_no_clock_below_the_measured_one() -> None:
    peak = peak_of(None, 20, 800.0, MeasuredChip(None, 1800.0))
    assert peak.of(None) == 20 * 1800e6 * 8192
    assert "above the configured clock" in peak.source_of("bf16")


@pytest.mark.parametrize(
    ("chip", "blocks", "mhz", "reason"),
    [
        (None, 64, 994.0, "64 blocks"),  # they exceed the cores of a 910A
        (None, 32, 1000.0, "32 blocks"),
        (None, 48, 1650.0, "48 blocks"),
        (None, 16, 1800.0, "16 blocks"),  # kernels that do not fill a chip
        (None, 20, 1801.0, "20 cores at 1801 MHz"),
        (None, 24, 1851.0, "24 cores at 1851 MHz"),
        ("Ascend310P", 20, 1000.0, "Ascend310P"),
        ("Ascend910A", 64, 994.0, ""),
        (None, 20, 1800.0, ""),
        ("Ascend910_9381", 24, 1850.0, ""),
        (None, 20, None, "no cores and no frequency"),
    ],
)
def test_blocks_are_cores_only_where_a_known_chip_has_as_many(
    chip: str | None, blocks: int, mhz: float | None, reason: str
) -> None:
    peak = peak_of(chip, None, None, MeasuredChip(blocks, mhz))
    assert (peak.of("bf16") is None) == (peak.cores is None) == bool(reason)
    assert reason in peak.source_of("bf16") and "bound" not in peak.source_of("bf16")
    assert bool(reason) == ("give --peak" in peak.source_of("bf16"))
    assert peak_of(chip, None, None, MeasuredChip(blocks, mhz), {"bf16": 1e14}).of("bf16") == 1e14


def test_a_named_chip_has_its_own_cores_and_clock() -> None:
    """Whatever its kernels show, but for a clock that was recorded while it idled."""
    assert peak_of("Ascend910A", None, None, MeasuredChip(64, 994.0)).of("fp16") == 32 * 1e9 * 8192
    assert peak_of("910B3", None, None, MeasuredChip(40, 1990.0)).of("bf16") == 20 * 1800e6 * 8192
    assert peak_of("910B3", None, 800.0, MeasuredChip(20, 1800.0)).mhz == 1800.0
    assert peak_of("910B4", None, None, MeasuredChip(24, 1850.0)).source_of("bf16") == (
        "20 cores (table, 910B4) x 1500 MHz (table, 910B4) x 8192"
    )


def test_a_recorded_clock_alone_tells_no_cores() -> None:
    """It may have been read while the chip idled."""
    peak = peak_of("Ascend910B", None, 800.0, MeasuredChip(20, None))
    assert peak.source_of("bf16") == "unknown: no cores of the chip; give --peak to `npuscope mfu`"


def test_unknown_chips_say_what_is_missing() -> None:
    peak = peak_of("Unheard", None, None, NOTHING)
    assert peak.of("bf16") is None
    assert (
        peak.source_of("bf16")
        == "unknown: no cores and no frequency of the chip; give --peak to `npuscope mfu`"
    )
    assert "no frequency" in peak_of(None, 20, None, NOTHING).source_of("fp16")


def test_given_peaks() -> None:
    assert parse_peaks("294.9T") == {"bf16": 294.9e12, "fp16": 294.9e12}
    assert parse_peaks("bf16=1e3T, fp32=83000G,hbm=1.6T") == {
        "bf16": 1e15, "fp32": 83e12, "hbm": 1.6e12,
    }  # fmt: skip
    peak = peak_of("910B3", None, None, NOTHING, parse_peaks("bf16=300T,hbm=1T"))
    assert (peak.of("bf16"), peak.hbm_bytes_per_s) == (300e12, 1e12)
    assert peak.source_of("bf16") == "--peak" and "910B3" in peak.source_of("fp16")


@pytest.mark.parametrize("text", ["", "fast", "bf16=", "bf17=3T", "3", "-3T", "bf16=3T,,", "1e400"])
def test_unreadable_peaks(text: str) -> None:
    with pytest.raises(UsageError, match="--peak"):
        parse_peaks(text)


def cube(rank: int, mhz: float, blocks: int, core: str = "AI_CORE") -> dict[str, object]:
    return {
        **kernel(0, 50_000, type="MatMulV3", core=core, block_count=blocks), "rank": rank,
        "aic_time_ns": 40_000.0, "aic_cycles": 40.0 * mhz * blocks,
    }  # fmt: skip


def test_ranks_of_a_capture_share_what_each_tells() -> None:
    """A slow chip is held against the others' clock; block counts of vector kernels say nothing."""
    con = connect()
    fill(con, "ranks", [{"rank": 0, "chip_name": "Ascend910B"}, {"rank": 1}])
    fill(con, "kernels", [cube(0, 1800.0003, 16), cube(1, 1440.0, 20)])
    fill(con, "kernels", [kernel(0, 9, type="Add", core="AI_VECTOR_CORE", block_count=40)])
    found = peaks(con)
    assert found["job", "c", 0] == found["job", "c", 1]
    assert found["job", "c", 1].of("bf16") == 20 * 1800e6 * 8192


def test_chips_of_two_names_do_not_mix() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "chip_name": "910B3"}, {"rank": 1, "chip_name": "910B4"}])
    found = peaks(con)
    assert [found["job", "c", rank].mhz for rank in (0, 1)] == [1800.0, 1500.0]


def test_mixed_kernels_tell_cores_where_no_other_does() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0}])
    fill(con, "kernels", [cube(0, 1500.0, 16), cube(0, 1500.0, 20, "MIX_AIC")])
    assert peaks(con)["job", "c", 0].of("bf16") == 20 * 1500e6 * 8192


@pytest.mark.parametrize(
    ("own", "others", "chip"),
    [
        (None, ["Ascend910A"], "910A"),
        ("Ascend910B", ["Ascend910B4"], "910B4"),
        ("Ascend910B", ["Ascend910B", None, "910B4"], "910B4"),
        (None, ["Ascend910B4", "910B4"], "910B4"),
        ("Ascend910B3", ["Ascend910B4"], "910B3"),
        ("Ascend910B", ["Ascend910A"], None),
        (None, ["Ascend910B3", "Ascend910B4"], None),
        (None, ["Ascend910B"], None),
    ],
)
def test_a_chip_s_name_from_all_ranks(
    own: str | None, others: list[str | None], chip: str | None
) -> None:
    """Whose name stands for several chips or who has none; 64 blocks tell nothing."""
    con = connect()
    names = enumerate([own, *others])
    fill(con, "ranks", [{"rank": rank, "chip_name": name} for rank, name in names])
    fill(con, "kernels", [cube(0, 994.0, 64)])
    peak = peaks(con)["job", "c", 0]
    known = CHIPS[chip] if chip else None
    assert peak.of("bf16") == (known and known.cores * known.mhz * 1e6 * 8192)


def test_a_gpu_has_no_such_cores() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "framework": "kineto", "ai_core_count": 132}])
    assert peaks(con)["job", "c", 0].of("bf16") is None
    assert peaks(con, {"bf16": 989e12})["job", "c", 0].of("bf16") == 989e12


@pytest.mark.slow
def test_raw_data_that_was_kept_names_the_chip_of_a_text_export(tmp_path: Path) -> None:
    """One rank's PROF folder beside its text; its rank_id is the process's own word."""
    folder = tmp_path / "job"
    write_job(small(steps=1, memory=False, comm_tasks=False), folder, forms=("text",))
    told = {"platform_version": "1", "rank_id": 7, "DeviceInfo": [{"id": 0}]}
    device = next(folder.glob("*_ascend_pt")) / "PROF_000001_20251127000000000_ABC" / "device_0"
    device.mkdir(parents=True)
    (device / "info.json.0").write_text(json.dumps(told))
    assert ingest(folder, tmp_path / "store", summarise=summarise, jobs=1).is_complete
    found = peaks(store.open(tmp_path / "store"))
    assert sorted(rank for *_, rank in found) == [0, 1]
    assert {one.source_of("fp16") for one in found.values()} == {
        "32 cores (table, Ascend910A) x 1000 MHz (table, Ascend910A) x 8192"
    }
