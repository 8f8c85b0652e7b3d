"""What the notes say, and when they are silent."""

from __future__ import annotations

import duckdb
import polars as pl

from npuscope.analysis import query
from npuscope.analysis.flops.lengths import step_lengths
from npuscope.analysis.means import mean_kernels, mean_steps, without_warm_up
from npuscope.analysis.memo import remember
from npuscope.analysis.ranks.stages import ranks_apart
from npuscope.analysis.scope import ALL, Scope
from tests.analysis.tables import connect, fill, keep_summaries, kernel, op

MS = 1_000_000


def notes(con: duckdb.DuckDBPyConnection, scope: Scope = ALL) -> list[str]:
    """Of the tables as they are now, as a command asks them."""
    keep_summaries(con)
    remember(con)
    return query.notes(con, scope)


def test_a_whole_capture_needs_no_notes() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": 0, "world_size": 1, "device_id": 0}])
    fill(con, "kernels", [kernel(0, 10, 1)])
    fill(con, "steps", [{"step": 1, "window_start_ns": 0, "window_end_ns": 10}])
    fill(con, "profiler_steps", [{"step": 1, "device_id": 0}, {"step": 1, "device_id": 1}])
    assert notes(con) == []
    assert notes(connect()) == []
    # Nor do steps of forward passes alone, until another one has a gradient.
    fill(con, "kernels", [kernel(20, 10, 2, type="SwiGlu")])
    assert notes(con) == []
    fill(con, "kernels", [kernel(40, 10, 1, type="SwiGluGrad")])
    assert notes(con) == [
        "steps without gradients, as of an evaluation: 2. Means of passes of the pipeline leave"
        " them out; all other means count them like the others: `npuscope steps PATH --step 1`"
        " looks at one of those alone."
    ]


def test_every_gap_is_told() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": rank, "world_size": 16} for rank in (0, 1, 2, 3, 5)])
    fill(con, "kernels", [kernel(0, 10, 1), kernel(20, 10), kernel(0, 10, 1, rank=1)])
    fill(con, "comm_ops", [op(30, 5), op(0, 5, rank=3)])
    fill(con, "steps", [{"rank": rank, "step": step} for rank in (0, 1) for step in (1, 2)])
    fill(con, "profiler_steps", [{"rank": 2, "step": 1, "device_id": d} for d in (4, 5, 6)])
    assert notes(con) == [
        "ranks 4, 6-15 of 16 missing: figures across ranks cover the others only.",
        "rank 5: no step has events or a row in the profiler's table: no figures.",
        "rank 3: operations but no compute kernel was recorded, so computing, overlap and free"
        " time are unknown.",
        "rank 2: no compute kernels; figures come from the profiler's own table (basis"
        " profiler_table).",
        "rank 2: the profiler's table has devices 4-6; shown is device 4, as the rank's own is"
        " unknown.",
        "step 2, ranks 0-1: recorded, but without any kernel or operation.",
        "rank 3: no step was recorded, only on others. Their rows are of all they recorded; means"
        " leave them out.",
        "rank 0: outside all steps are 1 compute kernels (10 ns) and 1 communication operations"
        " (5 ns); they count in no step.",
    ]


def test_ranks_that_do_not_step_together_are_told() -> None:
    con = connect()
    starts = {0: (0, 30, 60), 1: (2, 32, 61), 2: (500, 510, 520), 3: (501, 509, 521)}
    fill(con, "ranks", [{"rank": rank, "world_size": 4} for rank in starts])
    fill(con, "kernels", [
        kernel(start * MS, MS, step, rank=rank)
        for rank, found in starts.items() for step, start in enumerate(found)
    ])  # fmt: skip
    assert notes(con) == [
        "ranks 0-1 and ranks 2-3 do not step together: the same steps last 29.8 ms on the first and"
        " 10.0 ms on the others. Who is slow is judged in each program by itself; means and masking"
        " mix them: `npuscope ingest PATH --ranks LIST` reads one alone."
    ]
    # One step as long as a slow one elsewhere, or one alone that both have, tells nothing.
    con.execute(f"update kernels set start_ns = {60 * MS} where rank > 1 and step = 2")
    assert not notes(con)
    con.execute("delete from kernels where rank = 3 and step > 0")
    assert notes(con) == [
        "rank 3: without steps 1-2, which others recorded. Means count each recorded step of each"
        " rank once, so ranks with more steps weigh more. `--step 0` compares like with like."
    ]
    con.execute("update kernels set step = 5 where rank = 3")
    assert notes(con)[0].endswith("weigh more.")  # no step that all have
    con.execute("update kernels set step = null where rank = 3")
    assert notes(con) == [
        "rank 3: no step was recorded, only on others. Their rows are of all they recorded; means"
        " leave them out."
    ]
    (mean,) = mean_steps(con).to_dicts()
    assert (mean["rank_count"], mean["step_count"]) == (3, 3)
    of_types = {row["rank_count"] for row in mean_kernels(con).to_dicts()}
    assert of_types == {3} and query.steps(con)["rank"].n_unique() == 4
    every = query.steps(con).with_columns(capture=pl.lit("other"), step=pl.lit(None, pl.Int64))
    assert without_warm_up(con, pl.concat([query.steps(con), every])).height == 9 + every.height
    # Programs whose steps are as long: an engine that generates for a training runs no gradients.
    con = connect()
    fill(con, "ranks", [{"rank": rank, "world_size": 4} for rank in range(4)])
    fill(con, "kernels", [
        kernel(step * 10 * MS, MS, step, rank=rank, type="SwiGluGrad" if rank < 2 else "SwiGlu")
        for rank in range(4) for step in range(3)
    ])  # fmt: skip
    assert notes(con) == [
        "ranks 2-3: no step has gradients, those of ranks 0-1 have: another program, as an engine"
        " that generates for a training. Who is slow is judged in each by itself; means, masking"
        " and MFU mix them: `npuscope ingest PATH --ranks LIST` reads one alone."
    ]
    assert ranks_apart(con, "job", "c") == [2, 3]
    # All means hide three quarters of what communicates, each of these programs something else.
    fill(con, "comm_ops", [
        op(step * 10 * MS + (rank > 1) * MS // 2, MS, step, rank=rank)
        for rank in range(4) for step in range(3)
    ])  # fmt: skip
    assert notes(con)[1:] == [
        "ranks 2-3: 50.0 % of their communication is masked in a mean step of 7.167 ms; ranks 0-1:"
        " 100.0 % in one of 7.000 ms."
    ]
    assert mean_steps(con)["masking_ratio"].to_list() == [0.75]
    # A frozen stage of the same pipeline runs none either.
    fill(con, "groups", [{"rank": 0, "parallel_kind": "pp", "global_ranks": [0, 2]},
                         {"rank": 1, "parallel_kind": "pp", "global_ranks": [1, 3]}])  # fmt: skip
    assert not notes(con) and not ranks_apart(con, "job", "c")


def test_the_ranks_own_device_is_named() -> None:
    con = connect()
    fill(con, "ranks", [{"device_id": 5}])
    fill(con, "profiler_steps", [{"step": 1, "device_id": device} for device in (4, 5)])
    assert notes(con)[-1] == (
        "rank 0: the profiler's table has devices 4-5; shown is the rank's own."
    )


def test_several_captures_are_named() -> None:
    con = connect()
    for capture in ("a", "b"):
        fill(con, "ranks", [{"capture": capture, "world_size": 2}])
        fill(con, "kernels", [kernel(0, 10, 1, capture=capture)])
    said = "rank 1 of 2 missing: figures across ranks cover the others only."
    assert notes(con) == [f"job, a: {said}", f"job, b: {said}"]
    assert notes(con, Scope(capture="b")) == [said]
    # Rank 1 of the same steps at another time: the clock of its host may be off.
    for step, rank, count in ((2, 1, 3), (1, 0, 3), (1, 1, 6)):
        fill(con, "ranks", [{"capture": "c", "rank": rank, "world_size": 2}])
        fill(con, "kernels", [kernel(0, 10, step, rank=rank, capture="c")])
        assert len(notes(con)) == count
        if count == 3:
            con.execute("delete from ranks where capture = 'c'")
            con.execute("delete from kernels where capture = 'c'")
    assert notes(con, Scope(capture="a")) == [
        said,
        "rank 1 of the same steps stand in capture c, of another time. If they ran together, the"
        " clocks of their hosts differ by more than the recording lasts, and nothing is compared"
        " across them: set the clocks, and record again.",
    ]


def test_long_lists_are_cut() -> None:
    con = connect()
    fill(con, "ranks", [{"rank": rank, "world_size": 40} for rank in range(0, 40, 2)])
    fill(con, "kernels", [kernel(0, 10, 1, rank=rank) for rank in range(0, 40, 2)])
    assert notes(con) == [
        "ranks 1, 3, 5, 7, 9, 11, 13, 15 and 12 more of 40 missing: figures across ranks cover"
        " the others only."
    ]


def test_a_longer_window_of_a_last_step_is_told() -> None:
    """What the device waits for after it is in no length."""
    con = connect()
    fill(con, "ranks", [{"rank": 0, "world_size": 1}])
    fill(con, "kernels", [kernel(1_000_000 * n, 500_000, n) for n in (0, 1)])
    windows = [(0, 0, 900_000), (1, 900_000, 1_800_000)]
    fill(con, "steps", [{"step": s, "window_start_ns": a, "window_end_ns": b}
                        for s, a, b in windows])  # fmt: skip
    assert step_lengths(con)["step_ns"].to_list() == [1_000_000, 500_000]
    assert notes(con) == [
        "steps without a recorded next one (1) are measured to their last kernel or operation; the"
        " host took up to 0.4 ms longer over them: what the device waits for before a next step is"
        " not in their length, and MFU is at most as shown."
    ]
    # Fifty steps more, and it is below a twentieth of all.
    fill(con, "kernels", [kernel(-1_000_000 * n, 500_000, -n) for n in range(1, 50)])
    assert notes(con) == []
