"""profiler_metadata.json: the job's parallel layout and groups, as frameworks tell the profiler.

The same mapping stands in a profiler database (META_DATA), each value as JSON text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from npuscope.errors import TraceFormatError

from ...groups import group_hash, parallel_kind
from ...model import ReadLog
from ...small_files import decode, read_small
from ..damaged_files import open_error

if TYPE_CHECKING:
    import pyarrow as pa

SIZE_KINDS = ("tp", "pp", "dp", "cp", "ep")

# Keys of `distributed_args` per kind: Megatron's, and the short ones people write themselves.
_SIZE_KEYS = {
    "tp": ("tensor_model_parallel_size", "tensor_parallel_size", "tp_size", "tp"),
    "pp": ("pipeline_model_parallel_size", "pipeline_parallel_size", "pp_size", "pp"),
    "dp": ("data_parallel_size", "dp_size", "dp"),
    "cp": ("context_parallel_size", "cp_size", "cp"),
    "ep": ("expert_model_parallel_size", "expert_parallel_size", "ep_size", "ep"),
}
# Experts of a token, as Hugging Face's and Megatron's configurations name them.
_TOP_K_KEYS = ("num_experts_per_tok", "moe_router_topk")
TOP_K_RULE = "model.top_k"
# Settings of a job, not files in them.
_LONGEST, _MOST_NAMES = 400, 200
_JOB_KEYS = ("job_name", "jobname", "run_name", "task_name", "experiment_name")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A communication group this rank belongs to; `global_ranks` empty where not told."""

    name: str
    label: str | None
    group_rank: int | None
    global_ranks: tuple[int, ...]

    @property
    def kind(self) -> str:
        return parallel_kind(self.label)


@dataclass(frozen=True, slots=True)
class ProfilerMetadata:
    """The job as its framework describes it; `sizes` are (kind, ranks per group), `top_k` the
    experts that a router sends a token to. `environment` and `model_config`: JSON objects of texts,
    by name."""

    job_name: str | None = None
    rank: int | None = None
    world_size: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    groups: tuple[ProcessGroup, ...] = ()
    top_k: int | None = None
    environment: str | None = None
    model_config: str | None = None

    def rules(self) -> dict[str, str]:
        """What no table has a column for, for a rank's rules."""
        return {} if self.top_k is None else {TOP_K_RULE: str(self.top_k)}


def read_metadata(path: str, log: ReadLog | None = None) -> ProfilerMetadata:
    """The file as a record; one that cannot be read says nothing, and `log` is told."""
    try:
        mapping = json_object(path)
        if {"config", "start_info"} <= mapping.keys():
            raise TraceFormatError(path, "content", "that of profiler_info.json")
        return parse_metadata(mapping)
    except TraceFormatError as error:
        if log is not None:
            log.lose(path, "{where}: {got}", where=error.where, got=error.got)
        return ProfilerMetadata()


def parse_metadata(mapping: Mapping[str, object]) -> ProfilerMetadata:
    """The record of a metadata mapping; a value may be JSON text. Nonsense is left out."""
    lower = {str(key).lower(): value for key, value in mapping.items()}
    args = _object(lower.get("distributed_args"))
    model = _object(lower.get("model_config"))
    groups = tuple(_groups(_object(lower.get("parallel_group_info"))))
    world_size = natural(args.get("world_size"))
    if world_size is None:
        world_size = next((len(g.global_ranks) for g in groups if g.kind == "world"), 0) or None
    return ProfilerMetadata(
        job_name=next((name for k in _JOB_KEYS if (name := text(lower.get(k)))), None),
        rank=_own_rank(args, groups),
        world_size=world_size,
        sizes=tuple(_sizes(args, groups)),
        groups=groups,
        top_k=next((number for key in _TOP_K_KEYS if (number := natural(model.get(key)))), None),
        environment=_texts(lower.get("env_variables")),
        model_config=_texts(lower.get("model_config")),
    )


def _own_rank(args: Mapping[str, object], groups: Iterable[ProcessGroup]) -> int | None:
    """The rank as the job tells it, else as its place in every group does."""
    places = {
        group.global_ranks[group.group_rank]
        for group in groups
        if group.group_rank is not None and group.group_rank < len(group.global_ranks)
    }
    told = natural(args.get("rank"))
    return places.pop() if told is None and len(places) == 1 else told


def group_rows(metadata: ProfilerMetadata, rank: int) -> pa.Table:
    """Rows of the canonical table `groups`, as a rank sees them."""
    rows = []
    for group in metadata.groups:
        members = list(group.global_ranks)
        place = members.index(rank) if rank in members else group.group_rank
        rows.append({
            "group_hash": group_hash(group.name), "group_name": group.name,
            "group_label": group.label, "parallel_kind": group.kind, "group_rank": place,
            "global_ranks": members or None,
        })  # fmt: skip
    return groups_table(rows)


def groups_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of the canonical table `groups`, as a table."""
    import pyarrow as pa  # here: who looks for profiles makes no rows

    schema = pa.schema([
        ("group_hash", pa.string()), ("group_name", pa.string()), ("group_label", pa.string()),
        ("parallel_kind", pa.string()), ("group_rank", pa.int32()),
        ("global_ranks", pa.list_(pa.int32())),
    ])  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


def coordinates(metadata: ProfilerMetadata, rank: int) -> dict[str, int | None]:
    """`tp_rank`, ...: a rank's place in its group of each kind; 0 where the kind's size is 1."""
    sizes = dict(metadata.sizes)
    coordinates_here: dict[str, int | None] = {}
    for kind in SIZE_KINDS:
        # Without context parallelism a dp_cp group is the dp group.
        kinds = (kind, "dp_cp") if kind == "dp" and sizes.get("cp") == 1 else (kind,)
        members = _first_group(metadata.groups, kinds, rank)
        alone = 0 if sizes.get(kind) == 1 else None
        coordinates_here[f"{kind}_rank"] = alone if members is None else members.index(rank)
    return coordinates_here


def rank_columns(metadata: ProfilerMetadata, rank: int) -> dict[str, int | str | None]:
    """Columns of the canonical table `ranks` that the metadata tells: sizes, coordinates, and how
    the job was started."""
    sizes = dict(metadata.sizes)
    return {
        "world_size": metadata.world_size,
        **{f"{kind}_size": sizes.get(kind) for kind in SIZE_KINDS},
        **coordinates(metadata, rank),
        "environment": metadata.environment,
        "model_config": metadata.model_config,
    }


def _first_group(
    groups: tuple[ProcessGroup, ...], kinds: tuple[str, ...], rank: int
) -> tuple[int, ...] | None:
    for kind in kinds:
        for group in groups:
            if group.kind == kind and rank in group.global_ranks:
                return group.global_ranks
    return None


def _sizes(
    args: Mapping[str, object], groups: tuple[ProcessGroup, ...]
) -> Iterator[tuple[str, int]]:
    for kind in SIZE_KINDS:
        number = next((n for key in _SIZE_KEYS[kind] if (n := natural(args.get(key)))), None)
        size = number or next((len(g.global_ranks) for g in groups if g.kind == kind), 0)
        if size:
            yield kind, size


def _groups(info: Mapping[str, object]) -> Iterator[ProcessGroup]:
    for name, value in info.items():
        group = _object(value)
        members = group.get("global_ranks")
        if isinstance(members, str):  # "[0, 1]"
            members = members.strip(" []()").split(",")
        ranks = [natural(r) for r in members] if isinstance(members, list) else []
        member_ranks = tuple(r for r in ranks if r is not None)
        yield ProcessGroup(
            name=str(name),
            label=text(group.get("group_name")),
            group_rank=natural(group.get("group_rank")),
            global_ranks=member_ranks
            if len(member_ranks) == len(ranks) == len(set(member_ranks))
            else (),
        )


def _object(value: object) -> Mapping[str, object]:
    """A mapping, also out of its JSON text; anything else is an empty one."""
    if isinstance(value, str):
        try:
            value = decode(value, dict[str, object])
        except msgspec.DecodeError:
            return {}
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> str | None:
    """A mapping's values as texts, as JSON in order of names; None: there is no mapping. What is
    empty, or deeper than lists, is left out; so is what is longer than a setting."""
    mapping = _object(value)
    if not mapping and not isinstance(value, dict):
        return None
    texts = {
        str(name): one if isinstance(one, str) else json.dumps(one)
        for name, one in mapping.items()
        if isinstance(one, (str, int, float, list)) and one not in ("", [])
    }
    pairs = sorted((name, one) for name, one in texts.items() if len(name) + len(one) <= _LONGEST)
    return json.dumps(dict(pairs[:_MOST_NAMES]))


def json_object(path: str) -> dict[str, object]:
    """A small JSON file that holds one object. Raises TraceFormatError for anything else."""
    try:
        data = read_small(path).removeprefix(b"\xef\xbb\xbf")
        if not data.strip():
            raise TraceFormatError(path, "JSON", "empty file")
        return decode(data, dict[str, object])
    except OSError as error:
        raise open_error(path, error) from None
    except msgspec.DecodeError as error:
        raise TraceFormatError(path, "JSON", f"{error}: cut short or edited?") from None


def text(value: object) -> str | None:
    """A string without quotes and blanks around it; None for none."""
    return value.strip(" \"'\t\r\n") or None if isinstance(value, str) else None


def whole(value: object) -> int | None:
    """An integer, also written as text."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"\s*-?\d{1,18}\s*", value, re.A) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def natural(value: object) -> int | None:
    """A rank, device or size: an integer of 0 or more that a column of 32 bits holds."""
    number = whole(value)
    return number if number is not None and 0 <= number < 1 << 31 else None
