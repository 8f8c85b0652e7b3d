"""Loads that MindIE dumped while it served: one CSV for each rank, its expert slots as columns.

    model_gen_config.json   num_moe_layers, collection_Interval, num_of_experts, ...
    decode_0.csv            59637,33430   layer 0   ┐
                            54567,69637   layer 1   ┘ first dump
                            80211,40007   layer 0   ┐ second: counts go on from the first,
                            ...                     ┘ so that a dump's own load is the difference
    decode_global_deployment.json          which logical expert a slot holds, where it is there

A rank is a position in the expert-parallel group. Without the deployment an expert stands for its
slot: rank x slots + column.

A headerless CSV of counts that only grow: its rows as dumps of layers, and each dump's own load.

rows    l0 l1 l2 | l0 l1 l2 | l0 l1 l2        counts since the start
loads   dump 0   | 1 less 0 | 2 less 1        what came between two dumps
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from npuscope.errors import TraceFormatError, TraceNotFound
from npuscope.messages import Message

from ...model import SourceFile
from ...small_files import decode, open_regular, read_small
from .deployment_json import Deployment, read_deployment
from .load_files import CONFIG, DUMP, ExpertFacts
from .load_frames import (
    LOAD_SCHEMA,
    PLACEMENT_SCHEMA,
    ExpertLoad,
    as_load,
    few_numbers,
    no_placement,
)

_Counts = npt.NDArray[np.int64]


class _Config(msgspec.Struct):
    num_moe_layers: int | None = None
    num_of_experts: int | None = None
    num_of_selected_experts: int | list[int] | None = None
    num_of_selected_expert: int | list[int] | None = None
    num_dangling_shared_experts: int | None = None
    enable_dangling_shared_expert: object = None
    eplb_expert_map_file: str | None = None

    @property
    def top_k(self) -> int | None:
        for count in (self.num_of_selected_experts, self.num_of_selected_expert):
            first = count[0] if isinstance(count, list) and count else count
            if isinstance(first, int):
                return first
        return None


@dataclass(frozen=True, slots=True)
class _Phase:
    """The dumps of one phase: `loads` by rank, each [dumps, layers, slots], every dump's own."""

    name: str
    loads: Mapping[int, npt.NDArray[np.int64]]
    deployment: Deployment | None

    @property
    def sizes(self) -> tuple[int, int]:
        dumps, layers, _ = next(iter(self.loads.values())).shape
        return dumps, layers


def read_dump(
    files: Sequence[SourceFile],
    *,
    advance: Callable[[int], None] = lambda n_bytes: None,
) -> ExpertLoad:
    """Read a folder's dumps; `files` are its CSVs, configuration and deployments, others ignored.

    Layers count from 0 (as the deployment numbers them, where it has them all): the n-th MoE layer,
    not the n-th of the model. `step` is the number of a dump, NULL where there is only one; the
    sum over steps is what the last dump says. Ranks of externally deployed shared experts (the
    first `num_dangling_shared_experts`) are left out, and the others numbered from 0.

    Raises TraceNotFound where there is no dump, TraceFormatError where a file's rows have different
    numbers of columns, hold no counts, or do not fit those of the other ranks.
    """
    notes: list[str] = []
    config = _config(files, notes)
    is_apart = config.enable_dangling_shared_expert is not False
    shared = max(0, config.num_dangling_shared_experts or 0) if is_apart else 0
    by_phase: dict[str, dict[int, SourceFile]] = {}
    for file in files:
        named = DUMP.fullmatch(Path(file.path).name)
        if named and int(named[2]) >= shared:
            ranks = by_phase.setdefault(named[1], {})
            rank = int(named[2]) - shared
            if rank in ranks:
                raise TraceFormatError(
                    file.path, "expert dump", f"rank {named[2]} is also in {ranks[rank].path}"
                )
            ranks[rank] = file
        advance(file.size_bytes)
    if not by_phase:
        raise TraceNotFound("no prefill_N.csv or decode_N.csv of a rank with routed experts")
    if shared:
        notes.append(
            Message(
                "ranks below {shared} hold shared experts only: left out, {shared} is rank 0",
                shared=shared,
            )
        )
    phases = [
        _phase(name, by_phase[name], config, _deployment_file(name, files, config), notes)
        for name in sorted(by_phase)
    ]  # fmt: skip
    load = pl.concat([_load(phase) for phase in phases]).sort(
        "step", "phase", "layer", "ep_rank", "expert", nulls_last=True
    )
    placement = _placement(phases, notes)
    facts = _facts(phases, config)
    for phase in phases:
        expected = _expected_ranks(phase, config)
        if expected is not None and len(phase.loads) < expected:
            notes.append(
                Message(
                    "{phase}: {count} of {expected} ranks are here: the load of the other "
                    "ranks' experts is unknown",
                    phase=phase.name,
                    count=len(phase.loads),
                    expected=expected,
                )
            )
    if facts.is_physical:
        notes.append(
            Message(
                "no deployment file maps slots to experts: experts are numbered by slot, rank"
                " x slots + column"
            )
        )
    return ExpertLoad(load, placement, facts, tuple(dict.fromkeys(notes)))


def _config(files: Sequence[SourceFile], notes: list[str]) -> _Config:
    paths = [file.path for file in files if Path(file.path).name == CONFIG]
    if not paths:
        notes.append(
            Message("no {config}: all rows of a file are read as layers of one dump", config=CONFIG)
        )
        return _Config()
    try:
        return decode(read_small(paths[0]), _Config, strict=False)
    except msgspec.DecodeError as error:
        raise TraceFormatError(paths[0], "configuration of the dump", str(error)) from error


def _deployment_file(phase: str, files: Sequence[SourceFile], config: _Config) -> Path | None:
    by_name = {Path(file.path).name: Path(file.path) for file in files}
    file_name = Path(config.eplb_expert_map_file or "").name
    general = [name for name in sorted(by_name) if name.startswith("expert_map")]
    for name in (f"{phase}_global_deployment.json", file_name, *general):
        if name in by_name:
            return by_name[name]
    return None


def _phase(
    name: str,
    files: Mapping[int, SourceFile],
    config: _Config,
    deployment: Path | None,
    notes: list[str],
) -> _Phase:
    rows: dict[int, _Counts] = {
        rank: _read_counts(file, notes) for rank, file in sorted(files.items())
    }
    widths = {values.shape[1] for values in rows.values()}
    if len(widths) > 1:
        narrow = min(rows, key=lambda rank: rows[rank].shape[1])
        raise TraceFormatError(
            files[narrow].path,
            "expert dump",
            f"{rows[narrow].shape[1]} slots, but another rank of this phase has {max(widths)}",
        )
    fits = {
        rank: layers_in(values, config.num_moe_layers, Path(files[rank].path), notes)
        for rank, values in rows.items()
    }
    if len(set(fits.values())) > 1:
        few = min(fits, key=lambda rank: fits[rank])
        raise TraceFormatError(
            files[few].path,
            "expert dump",
            f"{fits[few]} layers, but another rank of this phase has {max(fits.values())}",
        )
    layers = next(iter(fits.values()))
    counts = {rank: len(values) // layers for rank, values in rows.items()}
    dumps = min(counts.values())
    if dumps < max(counts.values()):
        late = sorted(rank for rank, count in counts.items() if count == dumps)
        notes.append(
            Message(
                "{file}: ranks {late} have {dumps} dump(s), others up to {counts}: only the "
                "first {dumps} are used",
                file=name,
                late=few_numbers(late),
                dumps=dumps,
                counts=max(counts.values()),
            )
        )
    loads = {
        rank: _own_loads(
            values[: dumps * layers].reshape(dumps, layers, -1), Path(files[rank].path), notes
        )
        for rank, values in rows.items()
    }
    content = None if deployment is None else read_deployment(deployment)
    if content is not None:
        notes += content.notes
        content = _deployment_of_dump(content, layers, loads, str(deployment), notes)
    return _Phase(name, loads, content)


def _deployment_of_dump(
    deployment: Deployment,
    layers: int,
    loads: Mapping[int, npt.NDArray[np.int64]],
    name: str,
    notes: list[str],
) -> Deployment | None:
    """The deployment of the dumped layers; None where it is of other layers, ranks or slots."""
    numbers = deployment.placement["layer"].unique().sort()
    slots = next(iter(loads.values())).shape[2]
    used = deployment.placement.filter(pl.col("layer").is_in(numbers.head(layers).to_list()))
    per_device = used.group_by("device").agg(pl.col("slot").max() + 1)
    why = None
    if len(numbers) < layers:
        why = f"{len(numbers)} layers, the dump has {layers}"
    elif missing := sorted(set(loads) - set(per_device["device"].to_list())):
        why = f"no devices {few_numbers(missing)}"
    elif (most := per_device.select(pl.col("slot").max()).item()) != slots:
        why = f"{most} slots of a device, the dump has {slots}"
    if why is None:
        return Deployment(used, deployment.experts_count, deployment.slots_count)
    notes.append(
        Message("{file} does not match this dump ({why}): not used", file=Path(name).name, why=why)
    )
    return None


def _load(phase: _Phase) -> pl.DataFrame:
    dumps, layers = phase.sizes
    parts: list[pl.DataFrame] = []
    for rank, values in phase.loads.items():
        slots = values.shape[2]
        columns = {
            "step": np.repeat(np.arange(dumps), layers * slots),
            "position": np.tile(np.repeat(np.arange(layers), slots), dumps),
            "slot": np.tile(np.arange(slots, dtype=np.int32), dumps * layers),
            "tokens": values.reshape(-1),
        }
        parts.append(pl.DataFrame(columns).with_columns(pl.lit(rank, pl.Int32).alias("ep_rank")))
    rows = pl.concat(parts).with_columns(pl.lit(phase.name).alias("phase"))
    if dumps == 1:
        rows = rows.with_columns(pl.lit(None, pl.Int64).alias("step"))
    if phase.deployment is None:
        rows = rows.with_columns(
            pl.col("position").alias("layer"),
            (pl.col("ep_rank") * slots + pl.col("slot")).alias("expert"),
        )
        return as_load(rows)
    numbers = phase.deployment.placement.select(pl.col("layer").unique().sort())
    mapped = (
        rows.with_columns(pl.col("position").cast(pl.UInt32))
        .join(numbers.with_row_index("position"), on="position")
        .join(phase.deployment.placement.rename({"device": "ep_rank"}),
              on=["layer", "ep_rank", "slot"], how="left")
    )  # fmt: skip
    # Replicas on one rank are one row; a slot that holds no expert has no row, unless it got some.
    mapped = mapped.filter(pl.col("expert").is_not_null() | (pl.col("tokens") > 0))
    key = [name for name in LOAD_SCHEMA if name != "tokens"]
    summed = mapped.group_by(key).agg(pl.col("tokens").sum())
    return as_load(summed)


def _placement(phases: Sequence[_Phase], notes: list[str]) -> pl.DataFrame:
    """Where experts are: of the decoding phase where the phases differ."""
    placements = [_own_placement(phase) for phase in phases]
    if any(not placements[0].equals(other) for other in placements[1:]):
        notes.append(
            Message(
                "the phases have different placements: that of {phases} is kept",
                phases=phases[0].name,
            )
        )
    return placements[0] if placements else no_placement()


def _own_placement(phase: _Phase) -> pl.DataFrame:
    if phase.deployment is not None:
        return phase.deployment.placement
    _, layers = phase.sizes
    return pl.DataFrame(
        [
            (layer, rank, slot, rank * values.shape[2] + slot)
            for layer in range(layers)
            for rank, values in phase.loads.items()
            for slot in range(values.shape[2])
        ],
        schema=PLACEMENT_SCHEMA,
        orient="row",
    )


def _expected_ranks(phase: _Phase, config: _Config) -> int | None:
    """Ranks of the whole group, as the deployment or the number of experts tells."""
    if phase.deployment is not None:
        return int(phase.deployment.placement["device"].n_unique())
    slots = next(iter(phase.loads.values())).shape[2]
    experts = config.num_of_experts or 0
    return experts // slots if experts and experts % slots == 0 else None


def _facts(phases: Sequence[_Phase], config: _Config) -> ExpertFacts:
    first = phases[0]
    count = first.deployment.experts_count if first.deployment else None
    return ExpertFacts(
        "dump",
        ranks_count=len(first.loads),
        ranks_expected=_expected_ranks(first, config),
        experts_count=config.num_of_experts or count,
        slots_count=next(iter(first.loads.values())).shape[2],
        top_k=config.top_k,
        is_physical=int(any(phase.deployment is None for phase in phases)),
    )


_ROW = r"^\d{1,18}(?:\s*,\s*\d{1,18})*$"


def _read_counts(file: SourceFile, notes: list[str]) -> _Counts:
    """Counts [rows, columns] of a file as long as it was when found.

    A last line that is cut off is left out and told. Raises TraceFormatError.
    """
    path = Path(file.path)
    with open_regular(path) as opened:
        text = opened.read(file.size_bytes).decode("utf-8-sig", "replace")
    lines = pl.DataFrame({"text": text.splitlines()}, schema={"text": pl.String})
    lines = lines.with_row_index("number", 1).with_columns(
        pl.col("text").str.strip_chars().str.strip_suffix(",").str.strip_chars()
    )
    lines = lines.filter(pl.col("text") != "")
    if lines.is_empty():
        raise TraceFormatError(path, "expert dump", "no rows")
    lines = lines.with_columns(
        pl.col("text").str.contains(_ROW).alias("is_count"),
        (pl.col("text").str.count_matches(",") + 1).alias("columns"),
    )
    width = lines["columns"][0]
    wrong = lines.filter(~pl.col("is_count") | (pl.col("columns") != width))
    is_cut = not text.endswith(("\n", "\r"))
    if wrong.height == 1 and is_cut and wrong["number"][0] == lines["number"][-1] > 1:
        notes.append(Message("{file}: the last line is incomplete and left out", file=path.name))
        lines, wrong = lines.head(-1), wrong.clear()
    if wrong.height:
        number, value, is_count, columns = wrong.select(
            "number", "text", "is_count", "columns"
        ).row(0)
        content = (
            f"{columns} columns, but the first row has {width}"
            if is_count
            else f"no counts: {value[:60]!r}"
        )
        raise TraceFormatError(path, f"line {number}", content)
    values = lines.select(pl.col("text").str.split(",").explode().str.strip_chars().cast(pl.Int64))
    counts: _Counts = values.to_series().to_numpy().reshape(-1, width)
    return counts


def layers_in(counts: _Counts, count: int | None, path: Path, notes: list[str]) -> int:
    """Layers of one dump: as the configuration tells, if rows that only grow bear it out.

    Fewer rows than that are one dump of so many layers. Some configurations count one layer more
    than is dumped. Raises TraceFormatError where rows fit neither.
    """
    rows = len(counts)
    if count is None or count < 1 or rows == count:
        return rows
    if rows < count:
        notes.append(
            Message(
                "{file}: {rows} rows, but there are {told} MoE layers: the rows are used",
                file=path.name,
                rows=rows,
                told=count,
            )
        )
        return rows
    if rows % count == 0:
        # A counter that starts again falls in whole dumps; nothing else would fit better.
        return count
    if count > 1 and rows % (count - 1) == 0 and _only_grows(counts, count - 1):
        notes.append(
            Message(
                "{file}: its rows repeat after {told} layers, not after {told_2}: the rows "
                "are used",
                file=path.name,
                told=count - 1,
                told_2=count,
            )
        )
        return count - 1
    if _only_grows(counts, count):
        notes.append(
            Message(
                "{file}: its last dump has {rows} of {told} layers: left out",
                file=path.name,
                rows=rows % count,
                told=count,
            )
        )
        return count
    raise TraceFormatError(
        path,
        "expert dump",
        (f"{rows} rows do not match dumps of {count} layers: counts would decrease"),
    )


def _own_loads(dumps: _Counts, path: Path, notes: list[str]) -> _Counts:
    """What came between dumps, of counts [dumps, layers, slots] since the start.

    A dump in which a count fell began anew: its counts are its own load.
    """
    grown = np.diff(dumps, axis=0, prepend=np.zeros_like(dumps[:1]))
    fell = np.flatnonzero((grown < 0).any(axis=(1, 2)))
    if len(fell):
        grown[fell] = dumps[fell]
        notes.append(
            Message(
                "{file}: counters were reset at dump {fell} ({count} time(s))",
                file=path.name,
                fell=fell[0],
                count=len(fell),
            )
        )
    return grown


def _only_grows(counts: _Counts, layers: int) -> bool:
    return bool((counts[layers:] >= counts[:-layers]).all())
