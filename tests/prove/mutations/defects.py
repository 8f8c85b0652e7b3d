"""Defects of the kind that gives wrong numbers without an error, each planted by replacing text.

A defect that is found by no test would be one nobody notices. Every `old` stands exactly once in
its file, so that code which moves makes the proof fail and not pass by itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """`old`, which stands in the file exactly once, becomes `new`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong, and tests of which at least one must notice."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def _defect(name: str, file: str, old: str, new: str, *tests: str) -> Defect:
    return Defect(name, (Edit(file, old, new),), tests)


_PLANTED = "tests/prove/test_planted.py"
_TEXT = f"{_PLANTED}::test_steps[two ranks-text]"
_DB = f"{_PLANTED}::test_steps[two ranks-db]"
_KERNELS_OF_TEXT = f"{_PLANTED}::test_kernels_by_type[two ranks-text]"
_KERNELS_OF_DB = f"{_PLANTED}::test_kernels_by_type[two ranks-db]"
_STEPS = "tests/analysis/steps/test_steps.py"
_MASKING = "tests/analysis/communication/test_masking.py"
_ANALYSIS = "tests/collector/readers/ascend_db/test_analysis_db.py"
_JSON = "tests/collector/readers/hccl/test_communication_json.py"

DEFECTS: tuple[Defect, ...] = (
    # Whole nanoseconds pass through a double, which keeps a quarter of a microsecond.
    _defect(
        "text: instants as doubles", "collector/text.sql",
        "create macro us_ns(s) as case\n"
        "    when s between '0' and ':'",
        "create macro us_ns(s) as case when try_cast(s as double) is not null\n"
        "    then try_cast(round(try_cast(s as double) * 1000) as bigint)\n"
        "    when s between '0' and ':'",
        _TEXT,
    ),
    _defect(
        "timeline: instants as doubles", "collector/readers/chrome_trace/events.py",
        "    whole = _alike(values)\n",
        "    points = [float(bytes(one).strip(b'\"')) * 1000 if one else None for one in values]\n"
        "    whole = pc.round(pa.array(points, pa.float64())).cast(pa.int64())\n",
        _TEXT, "tests/collector/readers/chrome_trace/test_times.py",
    ),
    _defect(
        "database: integers as doubles", "collector/readers/ascend_db/source_tables.py",
        'and {LAST_NS} then {name} end as bigint)"',
        'and {LAST_NS} then cast({name} as double) end as bigint)"',
        _DB,
    ),
    _defect(
        "gaps.sql: operations as doubles", "analysis/sql/steps/gaps.sql",
        "        start_ns, start_ns + dur_ns as end_ns\n    from comm_ops as o",
        "        start_ns::double as start_ns, (start_ns + dur_ns)::double as end_ns\n"
        "    from comm_ops as o",
        _DB,
    ),
    _defect(
        "comm.sql: instants as doubles", "analysis/sql/comm/comm.sql",
        "        -sum(sign * t_ns) as union_ns,\n",
        "        -sum(sign * t_ns::double) as union_ns,\n",
        "tests/analysis/communication/test_masking_properties.py",
    ),
    # An exposed instant counts once, whoever communicates then.
    _defect(
        "comm.sql: exposed instants for each kind", "analysis/sql/comm/comm.sql",
        "cast(5342931457063200 // open_count as hugeint)",
        "cast(5342931457063200 as hugeint)",
        _MASKING,
    ),
    _defect(
        "comm.sql: shares that lose what is left of a ns", "analysis/sql/comm/comm.sql",
        "        then 1 else 0 end as exposed_attributed_ns",
        "        then 0 else 0 end as exposed_attributed_ns",
        _MASKING,
    ),
    _defect(
        "comm.sql: communication hidden by no kernel", "analysis/sql/comm/comm.sql",
        "            case when not is_silent and rank_key in (select rank_key from _cover)"
        " then coalesce(masked_ns, 0) end",
        "            coalesce(masked_ns, 0)",
        _MASKING,
    ),
    _defect(
        "comm.sql: measurements of names alone", "analysis/sql/comm/comm.sql",
        "        and t.group_hash is not distinct from o.group_hash\n    group by op_key",
        "    group by op_key",
        _MASKING,
    ),
    _defect(
        "repeats.sql: repeats of the capture alone", "analysis/sql/comm/repeats.sql",
        "    having sum(told) > 0\n",
        "    having false and sum(told) > 0\n",
        _MASKING,
    ),
    _defect(
        "repeats.sql: steps whose edges are drawn apart", "analysis/sql/comm/repeats.sql",
        "        and (sum(seen) <> sum(told) or bool_and(seen = told))\n",
        "",
        _MASKING,
    ),
    _defect(
        "kernels.sql: kernels as doubles", "analysis/sql/kernels/kernels.sql",
        "        select label, start_ns, start_ns + dur_ns as end_ns\n",
        "        select label, start_ns::double as start_ns, start_ns::double + dur_ns as end_ns\n",
        _KERNELS_OF_DB, "tests/analysis/steps/test_kernels.py",
    ),
    # An operation that lies in two steps is booked in both.
    _defect(
        "linking: every step that an event touches", "collector/ingest/link.py",
        'from "{table}" t asof left join _step_segments s on t.start_ns >= s.start_ns\n',
        'from "{table}" t left join _step_segments s\n'
        "            on t.start_ns < s.end_ns and t.start_ns + t.dur_ns > s.start_ns\n",
        _DB, _TEXT,
    ),
    _defect(
        "gaps.sql: operations in the step before, too", "analysis/sql/steps/gaps.sql",
        "        and l.step is not distinct from o.step\n",
        "        and (l.step is not distinct from o.step or l.step = o.step + 1)\n",
        _DB, _STEPS,
    ),
    # HCCL's own kernels stand beside compute kernels and are none.
    _defect(
        "HCCL's kernels by name", "collector/text.sql",
        "    not (ends_with(coalesce(name, ''), 'AicpuKernel')"
        " or ends_with(coalesce(name, ''), 'AivKernel'))\n    and not regexp_matches",
        "    not regexp_matches",
        _TEXT, _DB,
    ),
    _defect(
        "database: HCCL's scheduling kernels", "collector/readers/ascend_db/sql/kernels.sql",
        "    not k.scheduling and coalesce(name.is_compute_name, true)",
        "    coalesce(name.is_compute_name, true)",
        "tests/collector/readers/ascend_db/test_ascend_db_device.py",
    ),
    _defect(
        "kernels.sql: whatever the kernel table has", "analysis/sql/kernels/kernels.sql",
        "join _keys using (run, capture, rank)\n    where is_compute and dur_ns >= 0",
        "join _keys using (run, capture, rank)\n    where dur_ns >= 0",
        _KERNELS_OF_TEXT, _KERNELS_OF_DB,
    ),
    # What is not known is not zero.
    _defect(
        "text: cells without a number", "collector/text.sql",
        "create macro number(s) as case when isfinite(try_cast(s as double))"
        " then try_cast(s as double) end;",
        "create macro number(s) as case when isfinite(coalesce(try_cast(s as double), 0))"
        " then coalesce(try_cast(s as double), 0) end;",
        "tests/collector/readers/text/test_kernel_details.py",
    ),
    _defect(
        "database: values of another kind", "collector/readers/sqlite.py",
        "        f\" then cast({_WHOLE} as integer) end end\"\n",
        "        f\" then cast({_WHOLE} as integer) else 0 end else 0 end\"\n",
        "tests/collector/readers/ascend_db/test_sqlite_reader.py",
    ),
    _defect(
        "steps.sql: communication that nobody recorded", "analysis/sql/steps/steps.sql",
        "case when knows_communication then coalesce(communication_ns, 0) end as communication_ns",
        "coalesce(communication_ns, 0) as communication_ns",
        _STEPS,
    ),
    _defect(
        "steps.sql: computing that nobody recorded", "analysis/sql/steps/steps.sql",
        "case when has_compute then computing_ns end as computing_ns",
        "coalesce(computing_ns, 0) as computing_ns",
        _STEPS,
    ),
    # The sums that HCCL writes among the operations are no operations.
    Defect(
        "communication.json: Total Op Info among the operations",
        (
            Edit(
                "collector/readers/hccl/communication_json.py",
                'if not key.lower().startswith("total"):', "if key:",
            ),
            Edit(
                "collector/readers/hccl/communication_rows.py",
                "as idle_ns\n    from _incoming where {_IS_OPERATION}",
                "as idle_ns\n    from _incoming",
            ),
        ),
        (_JSON,),
    ),
    _defect(
        "database: Total Op Info among the times", "collector/readers/hccl/communication_rows.py",
        "as idle_ns\n    from _incoming where {_IS_OPERATION}", "as idle_ns\n    from _incoming",
        _ANALYSIS,
    ),
    _defect(
        "database: Total Op Info among the links", "collector/readers/hccl/communication_rows.py",
        "    from _incoming where {_IS_OPERATION}\n    group by all",
        "    from _incoming\n    group by all",
        _ANALYSIS,
    ),
    _defect(
        "database: Total Op Info in the matrix", "collector/readers/hccl/communication_rows.py",
        "as variant where {_IS_OPERATION})", "as variant)",
        _ANALYSIS,
    ),
)  # fmt: skip
