"""Finding ranks at any depth, under any folder name."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from npuscope.collector.discover.search import discover
from npuscope.errors import TraceNotFound

KERNELS = "Step Id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"


def write_rank(folder: Path, rank: int | None, *, output: str = "ASCEND_PROFILER_OUTPUT") -> Path:
    """A minimal text profile of one rank."""
    place = folder / output if output else folder
    place.mkdir(parents=True)
    (place / "kernel_details.csv").write_text(KERNELS)
    suffix = "" if rank is None else f"_{rank}"
    info = {"rank_id": -1 if rank is None else rank}
    (folder / f"profiler_info{suffix}.json").write_text(json.dumps(info))
    return folder


def ranks(path: Path) -> dict[str, int]:
    return {Path(source.root).name: source.rank for source in discover(path).ranks}


@pytest.mark.parametrize(
    "place",
    ["h_1_2025_ascend_pt", "deep/er/h_2_2025_ascend_pt", "12/actor/h_3_ascend_pt", "renamed"],
)
def test_a_profile_is_found_at_any_depth(tmp_path: Path, place: str) -> None:
    folder = write_rank(tmp_path / place, 5)

    assert ranks(tmp_path) == {folder.name: 5}
    assert ranks(folder) == {folder.name: 5}


def test_many_ranks_under_one_parent(tmp_path: Path) -> None:
    for rank in range(6):
        write_rank(tmp_path / f"host_{rank}_2025_ascend_pt", rank)

    assert sorted(ranks(tmp_path).values()) == list(range(6))


def test_a_bare_output_folder_takes_its_rank_from_the_folder_above(tmp_path: Path) -> None:
    write_rank(tmp_path / "x_ascend_pt", 4)

    (source,) = discover(tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT").ranks

    assert source.rank == 4
    assert "kernels" in source.files


def test_files_without_any_sub_folder(tmp_path: Path) -> None:
    write_rank(tmp_path / "flat", 2, output="")

    assert ranks(tmp_path) == {"flat": 2}


def test_the_light_set_is_a_profile(tmp_path: Path) -> None:
    folder = tmp_path / "light"
    folder.mkdir()
    (folder / "profiler_info_9.json").write_text("{}")
    with closing(sqlite3.connect(folder / "analysis.db")) as database:
        database.execute("create table StepTraceTime (step text)")

    (source,) = discover(tmp_path).ranks

    assert (source.rank, set(source.files)) == (9, {"analysis_db", "profiler_info"})


def test_the_folder_name_never_tells_the_rank(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank_7_ascend_pt", 0)

    assert ranks(tmp_path) == {"rank_7_ascend_pt": 0}


def test_rank_comes_from_the_database_where_no_info_tells(tmp_path: Path) -> None:
    output = tmp_path / "a_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    with closing(sqlite3.connect(output / "ascend_pytorch_profiler_3.db")) as database:
        database.execute("create table RANK_DEVICE_MAP (rankId integer, deviceId integer)")
        database.execute("insert into RANK_DEVICE_MAP values (2, 4), (1, 3)")  # all of the host
        database.execute("create table TASK (deviceId integer)")
        database.execute("insert into TASK values (4)")
        database.commit()

    (source,) = discover(tmp_path).ranks

    assert (source.rank, source.rank_origin) == (2, "RANK_DEVICE_MAP of the DB")
    assert any("disagree" in warning for warning in source.warnings)


def test_the_file_name_tells_the_rank_where_the_map_says_unknown(tmp_path: Path) -> None:
    output = tmp_path / "a_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    with closing(sqlite3.connect(output / "ascend_pytorch_profiler_3.db")) as database:
        database.execute("create table RANK_DEVICE_MAP (rankId integer, deviceId integer)")
        database.execute("insert into RANK_DEVICE_MAP values (-1, 4)")
        database.commit()

    assert ranks(tmp_path) == {"a_ascend_pt": 3}


def test_untold_ranks_are_numbered_past_the_known(tmp_path: Path) -> None:
    write_rank(tmp_path / "a_ascend_pt", None)
    write_rank(tmp_path / "b_ascend_pt", 0)
    write_rank(tmp_path / "c_ascend_pt", None)

    told = write_rank(tmp_path / "d_ascend_pt", None)
    metadata = {"distributed_args": {"rank": 5, "world_size": 8}}
    (told / "profiler_metadata.json").write_text(json.dumps(metadata))

    assert ranks(tmp_path) == {
        "a_ascend_pt": 1, "b_ascend_pt": 0, "c_ascend_pt": 2, "d_ascend_pt": 5
    }  # fmt: skip

    # Its place in its groups tells the same; groups that differ tell nothing.
    groups: dict[str, dict[str, object]] = {
        "g0": {"group_name": "tp", "group_rank": 1, "global_ranks": [2, 3]},
              "g1": {"group_name": "dp", "group_rank": 0, "global_ranks": [3, 7]}}  # fmt: skip
    (told / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups}))
    output = write_rank(tmp_path / "e_ascend_pt", None) / "ASCEND_PROFILER_OUTPUT"
    with closing(sqlite3.connect(output / "ascend_pytorch_profiler.db")) as database:
        database.execute("create table META_DATA (name text, value text)")
        group = json.dumps({"g2": {"group_rank": 2, "global_ranks": [4, 5, 6]}})
        database.execute("insert into META_DATA values ('parallel_group_info', ?)", [group])
        database.commit()
    known = {"a_ascend_pt": 1, "b_ascend_pt": 0, "c_ascend_pt": 2, "e_ascend_pt": 6}
    assert ranks(tmp_path) == {**known, "d_ascend_pt": 3}
    groups["g1"]["global_ranks"] = [5, 9]
    (told / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups}))
    assert ranks(tmp_path) == {**known, "d_ascend_pt": 3}
    [guess] = [one for one in discover(tmp_path).ranks if "d_ascend" in one.root]
    [warning] = guess.warnings
    assert warning.startswith("no file records the rank: numbered 3, the first that is free.")


def test_window_from_the_profilers_clocks(tmp_path: Path) -> None:
    folder = write_rank(tmp_path / "a_ascend_pt", None)
    (folder / "profiler_info.json").unlink()
    info = {
        "rank_id": "1",
        "start_info": {"start_monotonic": 1_000},
        "end_info": {"collectionTimeEnd": 1_736_412_473_886_000_500, "MonotonicTimeEnd": 1_500},
    }
    (folder / "profiler_info_1.json").write_text(json.dumps(info))

    (source,) = discover(tmp_path).ranks

    assert source.window_start_ns == 1_736_412_473_886_000_000
    assert source.window_end_ns == 1_736_412_473_886_000_500


def test_window_from_the_kernel_table_where_the_job_died(tmp_path: Path) -> None:
    folder = write_rank(tmp_path / "a_ascend_pt", 0)
    rows = "".join(f"1,k,t,AI_CORE,17364124740000{n}.500\t,1.5\n" for n in (10, 20, 90))
    (folder / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text(KERNELS + rows)

    (source,) = discover(tmp_path).ranks

    assert source.window_start_ns == 1_736_412_474_000_010_500
    assert source.window_end_ns == 1_736_412_474_000_090_500


def test_raw_data_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a_ascend_pt" / "PROF_000001_20250101000000000_ABC" / "host").mkdir(parents=True)

    found = discover(tmp_path)

    assert not found.ranks
    assert "torch_npu.profiler.profiler.analyse" in found.problems[0].message
    # Renamed, it is known by what is in it, and whose it is.
    for name, owner in (("torch.op_range", "torch_npu"), ("mindspore.op_range", "mindspore")):
        raw = tmp_path / owner / "monday"
        (raw / "FRAMEWORK").mkdir(parents=True)
        (raw / "FRAMEWORK" / name).touch()
        (raw / "profiler_info_0.json").write_text("{}")
        (raw / "PROF_000001_20250101000000000_ABC" / "host").mkdir(parents=True)
        (problem,) = discover(tmp_path / owner).problems
        assert (problem.path, f"run {owner}.profiler" in problem.message) == (str(raw), True)
        shutil.rmtree(tmp_path / owner)
    # Two sessions of msprof in it, exported one after the other, both count.
    for number in (1, 2):
        output = tmp_path / f"a_ascend_pt/PROF_00000{number}_2025_ABC/mindstudio_profiler_output"
        output.mkdir(parents=True)
        (output / f"op_summary_2025010100000{number}.csv").write_text(KERNELS)
    (source,) = discover(tmp_path).ranks
    assert len(source.files["kernels"]) == 2


def test_an_empty_folder_has_no_raw_data(tmp_path: Path) -> None:
    write_rank(tmp_path / "a_ascend_pt", 0)
    for name in ("b_ascend_pt", "PROF_000001_20250101000000000_ABC"):
        (tmp_path / name).mkdir()

    messages = {Path(one.path).name: one.message for one in discover(tmp_path).problems}

    assert messages.keys() == {"b_ascend_pt", "PROF_000001_20250101000000000_ABC"}
    assert all(told.startswith("the folder is empty") for told in messages.values())


def test_a_packed_profile_is_to_be_unpacked(tmp_path: Path) -> None:
    write_rank(tmp_path / "job" / "a_ascend_pt", 0)
    (tmp_path / "sent").mkdir()
    for form in ("zip", "tar", "gztar", "xztar"):
        packed = shutil.make_archive(str(tmp_path / "sent" / "p"), form, tmp_path / "job")
        for path in (tmp_path / "sent", Path(packed)):
            with pytest.raises(TraceNotFound, match="unpack it"):
                discover(path)
        Path(packed).unlink()


def test_a_link_to_a_profile_that_is_not_there_is_told(tmp_path: Path) -> None:
    there = write_rank(tmp_path / "disk" / "a_ascend_pt", 1)
    job = write_rank(tmp_path / "job" / "b_ascend_pt", 0).parent
    (job / "node1").symlink_to(there)
    (job / "notes").symlink_to(tmp_path / "gone")
    assert ranks(job) == {"a_ascend_pt": 1, "b_ascend_pt": 0}

    there.parent.rename(tmp_path / "unmounted")
    [problem] = discover(job).problems

    assert problem.path == str(there) and str(job / "node1") in problem.message
    assert ranks(job) == {"b_ascend_pt": 0}


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFound, match="analyse"):
        discover(tmp_path)
    with pytest.raises(TraceNotFound, match="no such"):
        discover(tmp_path / "absent")
    for name in ("rank0_trace_view.json", "kernel_details (1).csv", "rank0.db"):
        (tmp_path / name).write_text("[]")
        with pytest.raises(TraceNotFound, match=re.escape(f"but {name}: give each rank's files")):
            discover(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "step_trace_raw_0_detail_time.csv").touch()
    with pytest.raises(TraceNotFound, match="of an older MindSpore's profiler"):
        discover(tmp_path)
    for name in ("token_collects_all.json", "decode_info.csv"):
        (tmp_path / name).touch()
        with pytest.raises(TraceNotFound, match=f"{name}: tokens per expert in a form"):
            discover(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "step_trace_raw_0_detail_time.csv").unlink()
    for name, verb in (
        ("decode_0.csv", "experts"), ("rank3.jsonl", "experts"), ("train.log", "health"),
        ("events.out.tfevents.17.node0.1.0", "health"), ("trace-ST.parquet", "whatif"),
    ):  # fmt: skip
        (tmp_path / name).touch()
        with pytest.raises(TraceNotFound, match=f"but {name}.*`npuscope {verb}` tells"):
            discover(tmp_path)
        (tmp_path / name).unlink()


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    write_rank(tmp_path / "a_ascend_pt", 0)
    (tmp_path / "loop").symlink_to(tmp_path)

    assert ranks(tmp_path) == {"a_ascend_pt": 0}


def test_only_the_newest_export_of_several_counts(tmp_path: Path) -> None:
    output = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    for name in ("20250101000000", "20250102000000"):
        for piece in (0, 1):
            (output / f"op_summary_slice_{piece}_{name}.csv").write_text(KERNELS)

    (source,) = discover(tmp_path).ranks

    names = [Path(file.path).name for file in source.files["kernels"]]
    assert names == [
        "op_summary_slice_0_20250102000000.csv",
        "op_summary_slice_1_20250102000000.csv",
    ]
    # A framework's table, which knows steps, counts before msprof's of the same kernels.
    (output / "kernel_details.csv").write_text(KERNELS)
    (source,) = discover(tmp_path).ranks
    assert [Path(file.path).name for file in source.files["kernels"]] == ["kernel_details.csv"]
    # In one piece or in slices, as it was written last, where names have no time.
    for names in (
        ["kernel_details_slice_0.csv", "kernel_details_slice_1.csv"],
        ["kernel_details.csv"],
    ):
        for number, path in enumerate(sorted(output.glob("kernel_details*"))):
            os.utime(path, (number, number))
        for name in names:
            (output / name).write_text(KERNELS)
        (source,) = discover(tmp_path).ranks
        assert [Path(file.path).name for file in source.files["kernels"]] == names


def test_slices_with_times_of_their_own_are_one_table(tmp_path: Path) -> None:
    output = tmp_path / "PROF_1" / "mindstudio_profiler_output"
    output.mkdir(parents=True)
    names = [f"op_summary_slice_{piece}_2025010100000{9 - piece}.csv" for piece in range(3)]
    for name in names:
        (output / name).write_text(KERNELS)
    # An older export beside it, and a newer one of fewer slices.
    older = [f"op_summary_slice_{piece}_2024010100000{piece}.csv" for piece in range(2)]
    newer = [f"op_summary_slice_{piece}_2025020100000{piece}.csv" for piece in range(2)]
    for added, kept in (([], names), (older + newer, newer), (["op_summary_2023.csv"], newer)):
        for name in added:
            (output / name).write_text(KERNELS)
        found = discover(tmp_path)
        (source,) = found.ranks
        assert [Path(file.path).name for file in source.files["kernels"]] == kept
        assert not found.problems
    for name in (names[0], *older, *newer, "op_summary_2023.csv"):
        (output / name).unlink()
    [problem] = discover(tmp_path).problems
    assert (Path(problem.path).name, problem.message.split(":")[0]) == (
        names[2], "slices 0 of this table are missing"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["kernel_details.csv", "kernel_details_1.csv"], "kernel_details.csv"),
        (["kernel_details_0.csv", "kernel_details_1.csv"], "kernel_details_0.csv"),
        (["kernel_details_10.csv", "kernel_details_9.csv"], "kernel_details_9.csv"),
    ],
)
def test_tables_of_several_ranks_in_one_folder_are_never_one_ranks(
    tmp_path: Path, names: list[str], kept: str
) -> None:
    for name in names:
        (tmp_path / name).write_text(KERNELS)
    found = discover(tmp_path)
    (source,) = found.ranks
    assert [Path(file.path).name for file in source.files["kernels"]] == [kept]
    (problem,) = found.problems
    assert Path(problem.path).name in set(names) - {kept} and "stands beside" in problem.message


def test_packed_tables_are_told(tmp_path: Path) -> None:
    folder = write_rank(tmp_path / "x_ascend_pt", 0) / "ASCEND_PROFILER_OUTPUT"
    (folder / "communication.json.gz").write_bytes(b"packed")
    (folder / "kernel_details.csv.gz").write_bytes(b"stands there unpacked, too")
    flat = "z_ascend_pt\\ASCEND_PROFILER_OUTPUT\\kernel_details.csv"  # Windows made the archive
    (folder / "Memory_Record.CSV").write_text("elsewhere names have no case")
    (tmp_path / "c_ascend_pt" / "ascend_profiler_output").mkdir(parents=True)
    # The first is unpacked.
    for name in ("x_ascend_pt.zip", "y_ascend_pt.tar.gz", "notes.zip", flat):
        (tmp_path / name).write_bytes(b"packed")
    told = {Path(one.path).name: one.message for one in discover(tmp_path).problems}
    assert told == {
        "communication.json.gz": "packed, not read: `gunzip` it",
        "Memory_Record.CSV": "not read: rename it to memory_record.csv, as the profiler calls it",
        "c_ascend_pt": "ascend_profiler_output is not read: rename it to ASCEND_PROFILER_OUTPUT, as"
        " the profiler calls it",
        "y_ascend_pt.tar.gz": "packed, not read: unpack it",
        flat: "not read: \\ in names stands for folders: unpack it with a tool that makes them",
    }


def test_an_unreadable_folder_is_reported() -> None:
    # Not below tmp_path, which only its owner may enter: root must step down to be refused.
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        parent.chmod(0o755)
        write_rank(parent / "a_ascend_pt", 0)
        locked = parent / "locked"
        locked.mkdir(mode=0)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            found = discover(parent)
        finally:
            os.seteuid(user)

    assert [source.rank for source in found.ranks] == [0]
    assert [problem.path for problem in found.problems] == [str(locked)]
    assert "Permission denied" in found.problems[0].message


def test_real_profiles(real_data: Path) -> None:
    found = [s for s in discover(real_data).ranks if s.framework in ("pytorch", "msprof")]

    sets = {(Path(s.root).parent.name, s.rank): set(s.files) for s in found}
    assert len(sets) == 11
    assert {"trace", "iterations", "info", "session"} <= sets["msprof_timeline_2023", 0]
    assert "main_db" in sets["alexnet_ddp_db_level1", 1]
    assert {"trace", "kernels"} <= sets["alexnet_ddp_text_level0", 0]
    assert "kernels" not in sets["qwen3_pp2_dp2_text_level2", 1]
    assert all(s.window_start_ns and s.window_end_ns for s in found)


def test_databases_of_several_ranks_in_one_folder(tmp_path: Path) -> None:
    for rank in (3, 5):
        with closing(sqlite3.connect(tmp_path / f"ascend_pytorch_profiler_{rank}.db")) as database:
            database.execute("create table TASK (startNs integer)")
        (tmp_path / f"profiler_info_{rank}.json").write_text("{}")
    (tmp_path / "profiler_info_35.json").write_text("{}")

    found = discover(tmp_path).ranks

    assert [source.rank for source in found] == [3, 5]
    for source in found:
        names = sorted(Path(f.path).name for group in source.files.values() for f in group)
        wanted = ["ascend_pytorch_profiler_{}.db", "profiler_info_{}.json"]
        assert names == [name.format(source.rank) for name in wanted]
