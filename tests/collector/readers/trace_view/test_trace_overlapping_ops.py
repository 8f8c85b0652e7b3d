"""Two operations of one group at the same time: each keeps its own tasks."""

from __future__ import annotations

import json
from typing import Any

from npuscope.collector.readers.trace_view import trace_view
from tests.collector.conftest import Staged

HARDWARE, COMMUNICATION, GROUP = 101, 102, 0


def names(label: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": label, "pid": pid, "tid": tid, "args": {"name": name}}


def piece(pid: int, tid: int, name: str, at_us: int, dur_us: int, **args: object) -> dict[str, Any]:
    ts = f"{1736412474000000 + at_us}.000"
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur_us, "args": args}


def test_tasks_belong_to_the_operation_that_launched_them(stage: Staged) -> None:
    send = {"connection_id": 7, "data_type": "FP16", "alg_type": "NA", "count": 4}
    receive = {**send, "connection_id": 9}
    events = [
        names("process_name", HARDWARE, 0, "Ascend Hardware"),
        names("process_name", COMMUNICATION, 0, "Communication"),
        names("thread_name", HARDWARE, 5, "Stream 5"),
        names("thread_name", COMMUNICATION, GROUP, "Group 0 Communication"),
        names("thread_name", COMMUNICATION, 1, "Plane 0"),
        piece(COMMUNICATION, GROUP, "hcom_send__097_0_1", 0, 100, **send),
        piece(COMMUNICATION, GROUP, "hcom_receive__097_1_1", 20, 50, **receive),
    ]
    # The first operation's second task begins after the second operation did.
    for task_id, at_us, connection_id in ((1, 1, 7), (2, 25, 9), (3, 60, 7), (4, 99, None)):
        plane = {"stream id": 5, "task id": task_id, "task type": "Memcpy", "size(Byte)": 8}
        events.append(piece(COMMUNICATION, 1, "Memcpy", at_us, 1, **plane))
        if connection_id is not None:
            task = {"Task Id": task_id, "Task Type": "SDMA", "connection_id": connection_id}
            events.append(piece(HARDWARE, 5, "SDMA", at_us, 1, **task))
    trace = stage.folder / "trace_view.json"
    trace.write_text(json.dumps(events))

    stage.read(trace_view, {"trace": trace})

    found = stage.rows("select task_id, op_name from comm_tasks order by task_id")
    assert found == [
        (1, "hcom_send__097_0_1"),
        (2, "hcom_receive__097_1_1"),
        (3, "hcom_send__097_0_1"),
        (4, "hcom_receive__097_1_1"),  # nothing tells: the one that began last
    ]
