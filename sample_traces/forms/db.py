"""The SQLite export of one rank: the profiler's main database and analysis.db.

Tables and columns are those of schema 1.0.0; names are ids of STRING_IDS, whose three producers
(CANN, framework, memory view) keep pools of their own, so that values repeat.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from .. import memory
from ..capture import NONE_32, Capture, Launch
from ..job import group_hash
from . import reports
from .metadata import profiler_metadata
from .pmu import database_only, pmu

TABLES = {
    "AICORE_FREQ": "deviceId INTEGER,timestampNs NUMERIC,freq INTEGER",
    "CANN_API": "startNs INTEGER,endNs INTEGER,type INTEGER,globalTid INTEGER,"
    "connectionId INTEGER PRIMARY KEY,name INTEGER",
    "COMMUNICATION_OP": "opName INTEGER,startNs INTEGER,endNs INTEGER,connectionId INTEGER,"
    "groupName INTEGER,opId INTEGER PRIMARY KEY,relay INTEGER,retry INTEGER,dataType INTEGER,"
    "algType INTEGER,count NUMERIC,opType INTEGER",
    "COMMUNICATION_TASK_INFO": "name INTEGER,globalTaskId INTEGER,taskType INTEGER,"
    "planeId INTEGER,groupName INTEGER,notifyId INTEGER,rdmaType INTEGER,srcRank INTEGER,"
    "dstRank INTEGER,transportType INTEGER,size INTEGER,dataType INTEGER,linkType INTEGER,"
    "opId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER,globalTaskId INTEGER PRIMARY KEY,blockDim INTEGER,"
    "mixBlockDim INTEGER,taskType INTEGER,opType INTEGER,inputFormats INTEGER,"
    "inputDataTypes INTEGER,inputShapes INTEGER,outputFormats INTEGER,outputDataTypes INTEGER,"
    "outputShapes INTEGER,attrInfo INTEGER",
    "CONNECTION_IDS": "id INTEGER, connectionId INTEGER",
    "GC_RECORD": "startNs INTEGER,endNs INTEGER,globalTid INTEGER",
    "HOST_INFO": "hostUid TEXT,hostName TEXT",
    "MEMORY_RECORD": "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, "
    "totalReserved INTEGER, totalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "META_DATA": "name TEXT,value TEXT",
    "NPU_INFO": "id INTEGER,name TEXT",
    "NPU_MODULE_MEM": "moduleId INTEGER,timestampNs INTEGER,totalReserved NUMERIC,deviceId INTEGER",
    "OP_MEMORY": "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, "
    "activeReleaseTime INTEGER, duration INTEGER, activeDuration INTEGER, "
    "allocationTotalAllocated INTEGER, allocationTotalReserved INTEGER, "
    "allocationTotalActive INTEGER, releaseTotalAllocated INTEGER, releaseTotalReserved INTEGER, "
    "releaseTotalActive INTEGER, streamPtr INTEGER, deviceId INTEGER",
    "PYTORCH_API": "startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, "
    "name INTEGER, sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, "
    "inputShapes INTEGER, callchainId INTEGER, type INTEGER",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "SESSION_TIME_INFO": "startTimeNs INTEGER,endTimeNs INTEGER",
    "STEP_TIME": "id INTEGER, startNs INTEGER, endNs INTEGER",
    "STRING_IDS": "id INTEGER PRIMARY KEY,value TEXT",
    "TASK": "startNs INTEGER,endNs INTEGER,deviceId INTEGER,connectionId INTEGER,"
    "globalTaskId INTEGER,globalPid INTEGER,taskType INTEGER,contextId INTEGER,streamId INTEGER,"
    "taskId INTEGER,modelId INTEGER",
    "TASK_PMU_INFO": "globalTaskId INTEGER,name INTEGER,value NUMERIC",
}
ENUMS: dict[str, dict[int, str]] = {
    "ENUM_API_TYPE": {5000: "runtime", 5500: "communication", 10000: "node", 15000: "model",
                      20000: "acl", 50001: "op", 50002: "queue", 50003: "trace", 50004: "mstx"},
    "ENUM_HCCL_DATA_TYPE": {0: "INT8", 1: "INT16", 2: "INT32", 3: "FP16", 4: "FP32", 5: "INT64",
                            6: "UINT64", 7: "UINT8", 8: "UINT16", 9: "UINT32", 10: "FP64",
                            11: "BFP16", 12: "INT128", 65534: "N/A", 65535: "INVALID_TYPE"},
    "ENUM_HCCL_LINK_TYPE": {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW",
                            6: "STANDARD_ROCE", 7: "RESERVED", 65534: "N/A",
                            65535: "INVALID_TYPE"},
    "ENUM_HCCL_RDMA_TYPE": {0: "RDMA_SEND_NOTIFY", 1: "RDMA_SEND_PAYLOAD",
                            2: "RDMA_PAYLOAD_PREPARE", 3: "RDMA_PAYLOAD_CHECK",
                            4: "RDMA_PAYLOAD_ACK", 5: "RDMA_SEND_OP", 65534: "N/A",
                            65535: "INVALID_TYPE"},
    "ENUM_HCCL_TRANSPORT_TYPE": {0: "SDMA", 1: "RDMA", 2: "LOCAL", 65534: "N/A",
                                 65535: "INVALID_TYPE"},
    "ENUM_MODULE": {0: "SLOG", 3: "HCCL", 7: "RUNTIME", 33: "APP", 45: "GE"},
    "ENUM_MSTX_EVENT_TYPE": {0: "marker", 1: "push/pop", 2: "start/end", 3: "marker_ex"},
}  # fmt: skip
_ANALYSIS = {
    "CommAnalyzerTime": "hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, "
    "elapse_time NUMERIC, transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC, "
    "idle_time NUMERIC, step TEXT, type TEXT",
    "CommAnalyzerBandwidth": "hccl_op_name TEXT, group_name TEXT, transport_type TEXT, "
    "transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, large_packet_ratio NUMERIC, "
    "package_size NUMERIC, count NUMERIC, total_duration NUMERIC, step TEXT, type TEXT",
    "CommAnalyzerMatrix": "hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT, "
    "transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, "
    "step TEXT, type TEXT, op_name TEXT",
    "StepTraceTime": "deviceId INTEGER, step TEXT, computing NUMERIC, "
    "communication_not_overlapped NUMERIC, overlapped NUMERIC, communication NUMERIC, "
    "free NUMERIC, stage NUMERIC, bubble NUMERIC, "
    "communication_not_overlapped_and_exclude_receive NUMERIC, preparing NUMERIC",
}
_TASK_TYPES = {"AI_CORE": "KERNEL_AICORE", "AI_VECTOR_CORE": "KERNEL_AIVEC",
               "AI_CPU": "KERNEL_AICPU", "DSA_SQE": "STARS_COMMON"}  # fmt: skip
_COMM_TASKS = {"Notify_Record": "Write Value", "Notify_Wait": "Notify Wait"}
_ACL, _NODE, _COMMUNICATION, _OP, _QUEUE = 20000, 10000, 5500, 50001, 50002

Row = tuple[object, ...]
Rows = dict[str, list[Row]]
Pool = dict[str, int]


def write_db(c: Capture, folder: Path) -> None:
    """Writes ascend_pytorch_profiler_<rank>.db and analysis.db into `folder`."""
    rows: Rows = {table: [] for table in TABLES}
    cann, framework, view = Pool(), Pool(), Pool()
    add_tasks(c, rows, cann)
    add_calls(c, rows, cann)
    _pytorch(c, rows, framework)
    if c.job.memory:
        _memory(c, rows, view)
    rows |= session_rows(c)
    rows["STEP_TIME"] = [(s.step, s.window_start_ns, s.window_end_ns) for s in c.steps]
    rows["META_DATA"] = [
        ("SCHEMA_VERSION_MICRO", "0"), ("SCHEMA_VERSION_MINOR", "0"),
        ("SCHEMA_VERSION_MAJOR", "1"), ("SCHEMA_VERSION", "1.0.0"),
        *((name, json.dumps(value)) for name, value in profiler_metadata(c).items()),
    ]  # fmt: skip
    save_main(folder / f"ascend_pytorch_profiler_{c.rank}.db", rows, (cann, framework, view))
    save(folder / "analysis.db", _ANALYSIS, _analysis(c), ())


def session_rows(c: Capture) -> Rows:
    """Host, devices and time of the session."""
    return {
        "AICORE_FREQ": frequency_rows(c),
        "HOST_INFO": [(c.host_uid, c.host_name)],
        "NPU_INFO": [(device, "Ascend910B") for device in range(c.job.ranks_per_host)],
        "RANK_DEVICE_MAP": [(c.rank, c.device_id)],
        "SESSION_TIME_INFO": [(c.session_start_ns, c.session_end_ns)],
    }


def save_main(path: Path, rows: Rows, pools: Iterable[Pool]) -> None:
    """Writes a main database: rows by table, and the names they refer to."""
    rows["STRING_IDS"] = [(id_, value) for pool in pools for value, id_ in pool.items()]
    tables = {**TABLES, **dict.fromkeys(ENUMS, "id INTEGER PRIMARY KEY,name TEXT")}
    for table, values in ENUMS.items():
        rows[table] = list(values.items())
    indexes = (
        "CREATE INDEX TaskIndex ON TASK (startNs,globalTaskId)",
        "CREATE INDEX CommunicationTaskIndex ON COMMUNICATION_TASK_INFO (globalTaskId)",
    )
    save(path, tables, rows, indexes)


def save(path: Path, tables: dict[str, str], rows: Rows, indexes: Iterable[str]) -> None:
    """A table exists only where it has rows."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("pragma journal_mode = off")
        db.execute("pragma synchronous = off")
        db.execute("begin")
        tables_here: set[str] = set()
        for table, columns in tables.items():
            if rows[table]:
                tables_here.add(table)
                db.execute(f"CREATE TABLE {table} ({columns})")
                places = ",".join("?" * len(rows[table][0]))
                db.executemany(f"insert into {table} values ({places})", rows[table])
        for index in indexes:
            if index.split(" ON ")[1].split()[0] in tables_here:
                db.execute(index)
        db.execute("commit")


def _id(pool: Pool, value: str, base: int = 0) -> int:
    return pool.setdefault(value, base + len(pool))


def _framework_id(pool: Pool, value: str) -> int:
    return _id(pool, value, 2**28)


def _view_id(pool: Pool, value: str) -> int:
    return _id(pool, value, 2**29)


def enum_id(table: str, name: str) -> int:
    """The number of a name in one of ENUMS."""
    return next(id_ for id_, value in ENUMS[table].items() if value == name)


def add_tasks(c: Capture, rows: Rows, pool: Pool) -> None:
    """Adds what ran on the device; names go to the pool."""
    tasks = rows["TASK"]

    def task(
        kind: str, start_ns: int, end_ns: int, launch: Launch | None, place: tuple[int, int],
        context: int | None = None,
    ) -> int:  # fmt: skip
        id_ = len(tasks)
        connection = NONE_32 if launch is None else launch.connection_id
        tasks.append((
            start_ns, end_ns, c.device_id, connection, id_, c.process_id, _id(pool, kind),
            NONE_32 if context is None else context, *place, NONE_32,
        ))  # fmt: skip
        return id_

    begin, end = c.session_start_ns, c.session_end_ns - 400_000
    task("PROFILING_ENABLE", begin, begin + 20, None, (0, 8))
    for x in c.kernels:
        work = x.work
        kind = _TASK_TYPES.get(work.core, work.core)
        end_ns = x.start_ns + x.dur_ns
        id_ = task(kind, x.start_ns, end_ns, x.launch, (x.stream_id, x.task_id), x.context_id)
        rows["COMPUTE_TASK_INFO"].append((
            _id(pool, work.name), id_, work.block_count, work.mix_block_count,
            _id(pool, work.core), _id(pool, work.type),
            *_tensors(pool, work.input_shapes, work.input_dtypes),
            *_tensors(pool, work.output_shapes, work.output_dtypes), _id(pool, "N/A"),
        ))  # fmt: skip
        metrics = pmu(work, x.dur_ns, c.frequency_mhz)
        if metrics is not None:
            rows["TASK_PMU_INFO"] += [
                (id_, _id(pool, name), value)
                for name, value in {**metrics, **database_only()}.items()
            ]
    for copy in c.copies:
        place = (copy.stream_id, copy.task_id)
        task("MEMCPY_ASYNC", copy.start_ns, copy.start_ns + copy.dur_ns, copy.launch, place)
    for op in c.comm_ops:
        end_ns, place = op.start_ns + op.dur_ns, (op.stream_id, op.task_id)
        name, group = _id(pool, op.name), _id(pool, op.group.name)
        rows["COMMUNICATION_OP"].append((
            name, op.start_ns, end_ns, op.launch.connection_id, group, op.op_id, 0, 0,
            enum_id("ENUM_HCCL_DATA_TYPE", op.data_type), _id(pool, op.algorithm),
            op.element_count, _id(pool, op.hccl_type),
        ))  # fmt: skip
        # The task that holds the operation's parts: longer than it, and no kernel.
        task("AI_CORE", op.start_ns - 1_220, end_ns + 1_500, op.launch, place)
        for part in op.tasks:
            kind = _COMM_TASKS.get(part.task_type, "SDMA")
            until_ns = part.start_ns + part.dur_ns
            id_ = task(kind, part.start_ns, until_ns, op.launch, place, part.context_id)
            rows["COMMUNICATION_TASK_INFO"].append((
                name, id_, _id(pool, part.task_type), part.plane_id, group, part.notify_id,
                enum_id("ENUM_HCCL_RDMA_TYPE", part.rdma_type), part.src, part.dst,
                enum_id("ENUM_HCCL_TRANSPORT_TYPE", part.transport), part.size_bytes,
                enum_id("ENUM_HCCL_DATA_TYPE", part.data_type),
                enum_id("ENUM_HCCL_LINK_TYPE", part.link), op.op_id,
            ))  # fmt: skip
    task("PROFILING_DISABLE", end, end, None, (0, 9))


def _tensors(pool: Pool, shapes: str, dtypes: str) -> tuple[int, int, int]:
    """Formats, dtypes, shapes; shapes keep their quotes."""
    if dtypes == "N/A":
        return (_id(pool, "N/A"),) * 3
    formats = ";".join(["ND"] * (dtypes.count(";") + 1))
    return _id(pool, formats), _id(pool, dtypes), _id(pool, f'"{shapes}"')


def add_calls(c: Capture, rows: Rows, pool: Pool) -> None:
    """Adds the host's calls of CANN; names go to the pool."""
    queue = c.process_id << 32 | c.queue_thread
    communicates = {op.launch.connection_id for op in c.comm_ops}
    copies = {copy.launch.connection_id for copy in c.copies}
    calls = rows["CANN_API"]
    for launch in c.launches():
        t, id_, inner_id = launch.times, launch.connection_id, launch.api_connection_id
        api, inner = (t.api_start_ns, t.api_end_ns), (t.launch_start_ns, t.launch_end_ns)
        name = _id(pool, launch.api)
        if id_ in communicates:
            calls.append((*api, _ACL, queue, id_, name))
            calls.append((*inner, _COMMUNICATION, queue, inner_id, _id(pool, "Launch_Ffts")))
        elif id_ in copies:
            calls.append((*api, _ACL, queue, id_, name))
        else:
            calls.append((*api, _ACL, queue, inner_id, name))
            calls.append((*inner, _NODE, queue, id_, _id(pool, "launch")))
    main = c.process_id << 32 | c.main_thread
    wait = _id(pool, "aclrtSynchronizeStreamWithTimeout")
    calls += [(start_ns, end_ns, _ACL, main, id_, wait) for start_ns, end_ns, id_ in c.waits]


def _pytorch(c: Capture, rows: Rows, pool: Pool) -> None:
    """Operators point to their launches, both ends of the task queue to one correlation id."""
    pid = c.process_id << 32
    api, connections = rows["PYTORCH_API"], rows["CONNECTION_IDS"]

    def row(name: str, times: tuple[int, int], tid: int, kind: int, more: Row) -> None:
        start, end = str(times[0]), str(times[1])
        api.append((start, end, pid | tid, more[0], _framework_id(pool, name), *more[1:], kind))

    for step in c.steps:
        window = (step.window_start_ns, step.window_end_ns)
        more: Row = (None, -1, 0, None, None, None)
        row(f"ProfilerStep#{step.step}", window, c.main_thread, _OP, more)
    for call in c.host_calls:
        if call.kind == "operator":
            row(call.name, (call.start_ns, call.end_ns), c.main_thread, _OP, more)
        else:
            rows["GC_RECORD"].append((call.start_ns, call.end_ns, pid | c.main_thread))
    for number, launch in enumerate(c.launches()):
        t, tid = launch.times, c.backward_thread if launch.backward else c.main_thread
        connections += [(2 * number, launch.correlation_id), (2 * number + 1, launch.connection_id)]
        queued: Row = (2 * number, None, None, None, None, None)
        enqueue = (t.enqueue_ns, t.enqueue_ns + 900)
        row(f"Enqueue@{launch.operator}", enqueue, tid, _QUEUE, queued)
        dequeue = (t.dequeue_ns, t.dequeue_end_ns)
        row(f"Dequeue@{launch.api}", dequeue, c.queue_thread, _QUEUE, queued)
        forward = c.main_thread if launch.backward and launch.sequence >= 0 else 0
        called: Row = (2 * number + 1, launch.sequence, forward, None, None, None)
        row(launch.operator, (t.operator_start_ns, t.operator_end_ns), tid, _OP, called)


def _memory(c: Capture, rows: Rows, pool: Pool) -> None:
    levels, blocks = memory.curve(c)
    for level in levels:
        for component, extra in (("PTA", 0), ("PTA+GE", level.ge_bytes)):
            rows["MEMORY_RECORD"].append((
                _view_id(pool, component), level.timestamp_ns, level.allocated_bytes + extra,
                level.reserved_bytes + extra, level.allocated_bytes, memory.STREAM_PTR,
                c.device_id,
            ))  # fmt: skip
    for block in blocks:
        born, died = block.allocated, block.released
        held = None if died is None else died.timestamp_ns - born.timestamp_ns
        at = None if died is None else died.timestamp_ns
        after: Row = (None, None, None)
        if died is not None:
            after = (died.allocated_bytes, died.reserved_bytes, died.allocated_bytes)
        rows["OP_MEMORY"].append((
            _view_id(pool, block.name), block.size_bytes, born.timestamp_ns, at, at, held, held,
            born.allocated_bytes, born.reserved_bytes, born.allocated_bytes, *after,
            memory.STREAM_PTR, c.device_id,
        ))  # fmt: skip
    rows["NPU_MODULE_MEM"] = module_rows(c)


def frequency_rows(c: Capture) -> list[Row]:
    """Rows of AICORE_FREQ, unsorted, as found."""
    times = (c.session_end_ns, c.session_start_ns) if c.job.frequency else ()
    return [(c.device_id, ns, c.frequency_mhz) for ns in times]


def module_rows(c: Capture) -> list[Row]:
    """Rows of NPU_MODULE_MEM."""
    return [
        (enum_id("ENUM_MODULE", module), ns, size, c.device_id)
        for module, ns, size in memory.module_samples(c)
    ]


def _analysis(c: Capture) -> Rows:
    rows: Rows = {table: [] for table in _ANALYSIS}
    with_tasks = c.job.comm_tasks
    for report in reports.op_reports(c) if with_tasks else ():
        op = report.op
        names, ends = (op.name, str(group_hash(op.group.name))), (
            f"step{op.step}", reports.category(op))  # fmt: skip
        rows["CommAnalyzerTime"].append((
            *names, op.start_ns / 1000, report.elapse_ms, report.transit_ms, report.wait_ms,
            report.synchronization_ms, report.idle_ms, *ends,
        ))  # fmt: skip
        for link, band in report.bands.items():
            head = (*names, link, band.size_mb, band.time_ms, band.bandwidth_gb_s, band.large_ratio)
            packets = [(size, *packet) for size, packet in band.packets.items()] or [(0, 0, 0)]
            rows["CommAnalyzerBandwidth"] += [(*head, *packet, *ends) for packet in packets]
    for row in reports.matrix_rows(c) if with_tasks else ():
        name, group = row.name.split("@")
        rows["CommAnalyzerMatrix"].append((
            name, group, str(row.source), str(row.target), row.transport, row.size_mb,
            row.time_ms, row.bandwidth_gb_s, f"step{row.step}", row.category, row.op_name,
        ))  # fmt: skip
    for step, figures in zip(c.steps, reports.step_trace_db(c), strict=True):
        rows["StepTraceTime"].append((c.device_id, str(step.step), *figures))
    return rows
