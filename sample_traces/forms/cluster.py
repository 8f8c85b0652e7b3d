"""What msprof-analyze makes of all ranks' profiles: one folder of tables with global ranks.

From text exports it writes CSV and JSON, from databases cluster_analysis.db. `old` is the form of
2023 and early 2024: point-to-point operations under one key, no Preparing, no parallel indices, no
names of groups; in the database other table names.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ..capture import Capture
from ..job import Group, group_hash
from . import reports
from .db import save
from .text import communication, matrix

_FIGURES = (
    "computing", "communication_not_overlapped", "overlapped", "communication", "free", "stage",
    "bubble", "communication_not_overlapped_and_exclude_receive", "preparing",
)  # fmt: skip
_GROUP = "type TEXT, rank_set TEXT, group_name TEXT, group_id TEXT, pg_name TEXT"
_OP = "step TEXT, rank_id INTEGER, hccl_op_name TEXT, group_name TEXT"
# New name, old name, columns.
_TABLES = (
    ("ClusterStepTraceTime", "ClusterStepTraceTime",
     'step TEXT, type TEXT, "index" TEXT, ' + ", ".join(f"{name} NUMERIC" for name in _FIGURES)
     + ", dp_index INTEGER, pp_index INTEGER, tp_index INTEGER"),
    ("ClusterCommunicationTime", "ClusterCommAnalyzerTime",
     f"{_OP}, start_timestamp REAL, elapsed_time REAL, transit_time REAL, wait_time REAL,"
     " synchronization_time REAL, idle_time REAL"),
    ("ClusterCommunicationBandwidth", "ClusterCommAnalyzerBandwidth",
     f"{_OP}, band_type TEXT, transit_size REAL, transit_time REAL, bandwidth REAL,"
     " large_packet_ratio REAL, package_size REAL, count INTEGER, total_duration REAL"),
    ("ClusterCommunicationMatrix", "ClusterCommAnalyzerMatrix",
     "step TEXT, hccl_op_name TEXT, group_name TEXT, src_rank REAL, dst_rank REAL,"
     " transport_type TEXT, op_name TEXT, transit_size REAL, transit_time REAL, bandwidth REAL"),
    ("CommunicationGroupMapping", "CommunicationGroup", _GROUP),
    ("ClusterBaseInfo", "ClusterBaseInfo", "key TEXT, value TEXT"),
    ("HostInfo", "HostInfo", "hostUid TEXT, hostName TEXT"),
    ("RankDeviceMap", "RankDeviceMap",
     "rankId INTEGER, deviceId INTEGER, hostUid TEXT, profilePath TEXT"),
)  # fmt: skip
Tree = dict[str, Any]


ClusterForm = Literal["text", "db"]


def write_cluster_output(
    captures: Sequence[Capture], out: Path, form: ClusterForm, *, old: bool = False
) -> Path:
    """Writes `cluster_analysis_output` below `out`; returns the folder."""
    folder = out / "cluster_analysis_output"
    folder.mkdir(parents=True, exist_ok=True)
    if form == "db":
        _write_db(captures, folder / "cluster_analysis.db", old=old)
        return folder
    _write_steps(captures, folder / "cluster_step_trace_time.csv", old=old)
    times, links = _merge(captures, communication, old=old), _merge(captures, matrix, old=old)
    for name, content in (
        ("cluster_communication.json", times),
        ("cluster_communication_matrix.json", links),
        ("communication_group.json", _groups_json(captures, old=old)),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def _groups(captures: Sequence[Capture]) -> list[tuple[str, Group]]:
    """Groups that communicate, each with how its first operation is filed."""
    groups: dict[str, tuple[str, Group]] = {}
    for c in captures:
        for op in c.comm_ops:
            groups.setdefault(op.group.name, (reports.category(op), op.group))
    return list(groups.values())


def _members(group: Group) -> str:
    return f"({', '.join(map(str, group.ranks))}{',' if len(group.ranks) == 1 else ''})"


def _step_rows(captures: Sequence[Capture], figures: Any) -> list[list[Any]]:
    """(step, type, index, figures, capture or None), ranks before stages."""
    rows: list[list[Any]] = []
    stages: dict[tuple[int, tuple[int, ...]], list[tuple[float, ...]]] = {}
    stage_of: dict[int, list[int]] = {}
    for c in captures:
        stage_of.setdefault(c.place["pp"], []).append(c.rank)
    for c in captures:
        for step, row in zip(c.steps, figures(c), strict=True):
            rows.append([step.step, "rank", c.rank, row, c])
            key = (step.step, tuple(sorted(stage_of[c.place["pp"]])))
            stages.setdefault(key, []).append(row)
    for (step_number, ranks), mine in stages.items():
        rows.append([step_number, "stage", ranks, tuple(map(max, zip(*mine, strict=True))), None])
    return rows


def _write_steps(captures: Sequence[Capture], path: Path, *, old: bool) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = reports.STEP_COLUMNS[:-1] if old else reports.STEP_COLUMNS
    axes = () if old else ("DP Index", "PP Index", "TP Index")
    writer.writerow(["Step", "Type", "Index", *columns, *axes])
    for step, kind, index, row, c in _step_rows(captures, reports.step_trace_text):
        places = [c.place[axis] for axis in ("dp", "pp", "tp")] if c else ["NA"] * 3
        writer.writerow([step, kind, index, *row[: len(columns)], *places[: len(axes)]])
    path.write_text(text.getvalue(), encoding="utf-8")


def _merge(captures: Sequence[Capture], of_rank: Any, *, old: bool) -> Tree:
    """All ranks' files as one: members -> step -> operation -> rank (or pair of global ranks)."""
    groups = {str(group_hash(g.name)): g for _, g in _groups(captures)}
    tree: Tree = {}
    for c in captures:
        for step, kinds in of_rank(c).items():
            for kind, operations in kinds.items():
                for key, entry in operations.items():
                    group = groups.get(key.rpartition("@")[2])
                    if group is None:  # sums over operations
                        continue
                    top = "p2p" if old and kind == "p2p" else _members(group)
                    place = tree.setdefault(top, {}).setdefault(step, {}).setdefault(key, {})
                    if of_rank is matrix:
                        pairs = ((pair.split("-"), link) for pair, link in entry.items())
                        place.update({
                            f"{group.ranks[int(a)]}-{group.ranks[int(b)]}": link
                            for (a, b), link in pairs
                        })  # fmt: skip
                    else:
                        place[str(c.rank)] = entry
    for steps in tree.values():
        for operations in steps.values():
            operations["Total Op Info"] = next(iter(operations.values()))
    return tree


def _groups_json(captures: Sequence[Capture], *, old: bool) -> Tree:
    tree: Tree = {"collective": [], "p2p": []}
    for kind, group in _groups(captures):
        # A set is written as it iterates.
        tree[kind].append(list(reversed(group.ranks)))
    if not old:
        tree["comm_group_parallel_info"] = [_group_row(*one) for one in _groups(captures)]
    return tree


def _group_row(kind: str, group: Group) -> Tree:
    return {
        "type": kind,
        "rank_set": list(group.ranks),
        "group_name": str(group_hash(group.name)),
        "group_id": group.name,
        "pg_name": group.label,
    }


def _write_db(captures: Sequence[Capture], path: Path, *, old: bool) -> None:
    rows: dict[str, list[tuple[object, ...]]] = {new: [] for new, _, _ in _TABLES}
    for step, kind, index, row, c in _step_rows(captures, reports.step_trace_db):
        text = str(index).replace(" ", "")
        places = [c.place[axis] if c and not old else 0 for axis in ("dp", "pp", "tp")]
        rows["ClusterStepTraceTime"].append((str(step), kind, text, *row, *places))
    for c in captures:
        _add_matrix(c, rows)
        path_of_rank = f"/data/{c.host_name}_{c.process_id}_20251127123437000_ascend_pt"
        rows["RankDeviceMap"].append((c.rank, c.device_id, c.host_uid, path_of_rank))
        if (c.host_uid, c.host_name) not in rows["HostInfo"]:
            rows["HostInfo"].append((c.host_uid, c.host_name))
    for kind, group in _groups(captures):
        row_of_group = _group_row(kind, group)
        text = _members(group).replace(" ", "")
        rows["CommunicationGroupMapping"].append(
            (
                kind,
                text,
                row_of_group["group_name"],
                row_of_group["group_id"],
                row_of_group["pg_name"],
            )
        )
    job = captures[0].job
    sizes = {
        "tensor_model_parallel_size": job.tp, "pipeline_model_parallel_size": job.pp,
        "data_parallel_size": job.dp, "context_parallel_size": 1,
        "expert_model_parallel_size": job.ep, "world_size": job.world_size,
    }  # fmt: skip
    rows["ClusterBaseInfo"] = [] if old else [("distributed_args", json.dumps(sizes))]
    names = {new: before if old else new for new, before, _ in _TABLES}
    tables = {names[new]: columns for new, _, columns in _TABLES}
    save(path, tables, {names[new]: table_rows for new, table_rows in rows.items()}, ())


def _add_matrix(c: Capture, rows: dict[str, list[tuple[object, ...]]]) -> None:
    for report in reports.op_reports(c) if c.job.comm_tasks else ():
        op = report.op
        head = (f"step{op.step}", c.rank, op.name, str(group_hash(op.group.name)))
        rows["ClusterCommunicationTime"].append((
            *head, op.start_ns / 1000, report.elapse_ms, report.transit_ms, report.wait_ms,
            report.synchronization_ms, report.idle_ms,
        ))  # fmt: skip
        for link, band in report.bands.items():
            size = (link, band.size_mb, band.time_ms, band.bandwidth_gb_s, band.large_ratio)
            packets = [(mb, *packet) for mb, packet in band.packets.items()] or [(0.0, 0, 0.0)]
            rows["ClusterCommunicationBandwidth"] += [(*head, *size, *one) for one in packets]
    groups = {str(group_hash(op.group.name)): op.group for op in c.comm_ops}
    for row in reports.matrix_rows(c) if c.job.comm_tasks else ():
        name, group_name = row.name.split("@")
        ranks = groups[group_name].ranks
        rows["ClusterCommunicationMatrix"].append((
            f"step{row.step}", name, group_name, float(ranks[row.source]), float(ranks[row.target]),
            row.transport, row.op_name or None, row.size_mb, row.time_ms, row.bandwidth_gb_s,
        ))  # fmt: skip
