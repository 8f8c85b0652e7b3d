"""Steps, launches, operators and marks: what the host did, joined to what it caused."""

from __future__ import annotations

from tests.collector.conftest import Staged
from tests.collector.readers.ascend_db.profiler_databases import (
    CANN,
    LAUNCHED,
    STRINGS,
    T0,
    TASK,
    fill,
    task,
)


def test_step_range_on_the_device(stage: Staged) -> None:
    steps = ("id, startNs, endNs", [
        ("step7", T0 + 50, T0 + 200), (7, T0 + 50, T0 + 200), (8, T0 + 300, T0 + 350),
        (None, T0 + 400, T0 + 450)])  # fmt: skip
    fill(stage, {"TASK": LAUNCHED, "CANN_API": CANN, "STEP_TIME": steps})
    assert stage.rows("select * from steps order by step") == [
        (7, T0 + 50, T0 + 200, T0 + 150, T0 + 450),
        (8, T0 + 300, T0 + 350, T0 + 300, T0 + 350),
    ]
    (stage.folder / "a.db").unlink()
    stage.con.execute("delete from steps")
    rounded = (TASK.replace("startNs", "startNs real"), LAUNCHED[1])
    log = fill(stage, {"TASK": rounded, "STEP_TIME": ("id, startNs, endNs", steps[1][-1:])})
    assert stage.rows("from steps") == []  # kernels in a step without a number would be in none
    *_, times, numbers = log.warnings
    assert "256 ns" in times and "its steps have no numbers" in numbers


def test_launches_and_their_operators(stage: Staged) -> None:
    api = ("startNs TEXT, endNs TEXT, globalTid, connectionId, name, sequenceNumber, fwdThreadId,"
           " inputDtypes, inputShapes, callchainId, type")  # fmt: skip
    fill(stage, {
        "STRING_IDS": STRINGS, "TASK": LAUNCHED, "CANN_API": CANN,
        "COMPUTE_TASK_INFO": ("name, globalTaskId", [(2, 1)]),
        "COMMUNICATION_OP": ("opName, startNs, endNs, connectionId", [(6, T0 + 165, T0 + 170, 70)]),
        "PYTORCH_API": (api, [
            (str(T0 + 90), str(T0 + 115), 5 << 32 | 4, 1, 12, 3, 0, None, None, None, 50001),
            # An autograd id that equals connection 70 by chance, long before and after.
            (str(T0 + 10), str(T0 + 15), 5 << 32 | 4, 2, 21, 3, 1, None, None, None, 50001),
            (str(T0 + 120), str(T0 + 121), 5 << 32 | 4, 2, 21, 3, 1, None, None, None, 50001),
            # Queue ids and calls above the node level join no operator.
            (str(T0 + 99), str(T0 + 100), 5 << 32 | 4, 1, 11, -1, 0, None, None, None, 50002),
            (str(T0 + 100), str(T0 + 101), 5 << 32 | 4, 3, 12, -1, 0, None, None, None, 50001),
            (str(T0 + 50), str(T0 + 200), 5 << 32 | 4, None, 14, -1, 0, None, None, None, 50001)]),
        "CONNECTION_IDS": ("id, connectionId", [(1, 70), (1, 71), (2, 70), (3, 73)]),
    })  # fmt: skip
    assert stage.rows(
        f"""select connection_id, target, target_name, operator_name, operator_start_ns - {T0},
            latency_ns, api_thread_id from launches order by device_start_ns""",
    ) == [
        ("72", "task", "KERNEL_AICORE", None, None, -180, 9),
        ("73", "task", "KERNEL_AICORE", None, None, -71, 9),
        ("70", "kernel", "matmul", "aten::mm", 90, 50, 9),
        ("70", "task", "KERNEL_AICORE", "aten::mm", 90, 60, 9),
        ("70", "communication", "hcom_allReduce__097_0_1", "aten::mm", 90, 65, 9),
        ("71", "task", "KERNEL_AICORE", "aten::mm", 90, 210, 9),
    ]
    assert stage.rows("select kind, name, start_ns, dur_ns, process_id, thread_id from marks") == [
        ("profiler_step", "ProfilerStep#7", T0 + 50, 150, 5, 4)
    ]
    assert stage.rows(
        """select kind, name, connection_id, sequence_number, forward_thread_id from host_ops
        where kind <> 'api' order by start_ns""",
    ) == [
        ("operator", "aten::backward", None, 3, 1),
        ("operator", "aten::mm", None, 3, None),
        ("enqueue", "launch", "70", None, None),
        ("operator", "aten::mm", None, None, None),
        ("operator", "aten::backward", None, 3, 1),
    ]


def test_call_stacks(stage: Staged) -> None:
    strings = (STRINGS[0], [*STRINGS[1], (40, "inner.py(1): f"), (41, "outer.py(2): g")])
    api = "startNs, endNs, globalTid, name, type, callchainId, inputShapes, inputDtypes"
    fill(stage, {
        "STRING_IDS": strings,
        "PYTORCH_API": (api, [
            (T0 + n, T0 + n + 1, 1, 12, 50001, chain, 13, 3)
            for n, chain in enumerate((1, 2, 3, None))]),
        "PYTORCH_CALLCHAINS": ("id, stack, stackDepth", [
            (1, 41, 1), (1, 40, 0), (2, 40, 0), (2, 41, 1), (3, 40, 1), (3, 41, 0)]),
    })  # fmt: skip
    one, other = "inner.py(1): f\nouter.py(2): g", "outer.py(2): g\ninner.py(1): f"
    assert stage.rows("select call_stack from host_ops order by start_ns") == [
        (one,), (one,), (other,), (None,),
    ]  # fmt: skip
    # Where each stands in its own column, they stay there.
    assert stage.rows("select distinct input_shapes, input_dtypes from host_ops") == [
        ('"2,3;3,4"', "AI_CORE")
    ]


def test_marks_are_counted_once(stage: Staged) -> None:
    api = "startNs, endNs, globalTid, connectionId, name, type"
    fill(stage, {
        "STRING_IDS": STRINGS,
        "TASK": (TASK, [task(1, 150, 10, 4000000001)]),
        "MSTX_EVENTS": ("startNs, endNs, eventType, message, globalTid, domainId, connectionId", [
            (T0, T0 + 5, 2, 20, 5 << 32 | 9, 4, 4000000001),
            (T0, T0, 0, 20, 5 << 32 | 9, 3, 4000000000)]),
        "PYTORCH_API": (api, [(T0, T0 + 5, 1, 1, 20, 50004), (T0 + 8, T0 + 9, 1, 2, 20, 50004)]),
        "CONNECTION_IDS": ("id, connectionId", [(1, 4000000001), (2, 4000000007)]),
    })  # fmt: skip
    assert stage.rows(
        "select kind, name, domain, start_ns, dur_ns, device_start_ns, device_dur_ns from marks"
        " order by start_ns, dur_ns desc",
    ) == [
        ("mstx", "message", None, T0, 5, T0 + 150, 10),
        ("mstx", "message", "AI_CORE", T0, 0, None, None),
        ("mstx", "message", None, T0 + 8, 1, None, None),
    ]
