"""Experts held otherwise: tokens of each device, bytes to each peer, and what that takes.

dispatch: a rank sends its tokens to the devices of their experts ──▶ experts ──▶ combine: back

Of the bytes of each pair of ranks, and what stays on a rank, each rank's tokens go to devices by
new shares. A transfer takes as much longer as it moves more, an all-to-all as long as its slowest;
kernels that work on the tokens of a device take the time of their line over tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from npuscope.collector.readers.expert_load.deployment_json import read_deployment
from npuscope.errors import UsageError
from npuscope.messages import Message

from ...views import frame
from ..captures import CaptureJob, Other
from ..changes import Change
from ..operations import EXCHANGES, UNKNOWN, programs
from ..points import Flags, Integers
from .payloads import payloads

Floats = NDArray[np.float64]
_UNEVEN, _ALIKE = 1.1, 1e-3  # bytes of pairs: most by least; their times: what they differ by
_LOADS = """
    select rank, step, layer, expert, sum(tokens) as tokens from expert_load
    where expert is not null and tokens is not null and run = ? and capture = ?
    group by all"""


@dataclass(frozen=True, slots=True)
class ExchangeGroup:
    """Ranks (positions) that exchange tokens, their all-to-alls in the order of the program as
    positions [exchanges, members], and kernels likewise [kernels, members]."""

    members: list[int]
    exchanges: Integers
    kernels: Integers


def experts(con: duckdb.DuckDBPyConnection, job: CaptureJob, own: Other, change: Change) -> Other:
    """`experts:balanced`: as many tokens for each device; `experts:plan=FILE`: placed as in the
    deployment JSON, by the tokens that were counted for each expert."""

    if change.name not in ("balanced", "plan") or (change.name == "plan") != bool(change.value):
        raise UsageError(
            Message("{change}: give experts:balanced, or experts:plan=FILE", change=change.word)
        )
    ops = job.ops
    exchanged = exchanges(job, EXCHANGES, change)
    if ops.names["shapes"].is_null().all():
        raise change.refusal(
            "no shapes were recorded, so tokens of kernels are not known: record shapes"
        )
    moved = payloads(con, job, own, change)
    scales = np.ones(moved.height)
    shares = _planned_shares(con, job, change) if change.name == "plan" else None
    durations = own.waits.transfer.astype(float)
    of_op, key_of_op = _tokens(job)
    for group in exchange_groups(job, exchanged):
        if not group.exchanges.size:
            raise change.refusal("ranks of an expert-parallel group do not run the same kernels")
        members = len(group.members)
        sent, took = matrices(job, group, moved)
        if are_staged(sent, took):
            raise change.refusal(
                "all-to-alls seem to go in stages over hosts: what each rank takes to send its"
                " tokens to each other one is not known"
            )
        is_dispatch = _spread(sent.sum(axis=2)) <= _spread(sent.sum(axis=1))
        homes = np.where(is_dispatch[:, None], sent.sum(axis=2), sent.sum(axis=1))
        tokens, key = _of_kernels(group, of_op, key_of_op)
        varies = (tokens > 0).all(axis=1) & (tokens.min(axis=1) < tokens.max(axis=1))
        even = np.full((1, members), 1 / members)
        if shares is None:
            of_exchange, of_kernel = even, even
        else:
            window = _windows(job, group, is_dispatch, varies)
            if window is None:
                raise change.refusal(
                    "dispatch and combine do not follow each other, layer after layer"
                )
            shares_of_group = shares.of(group, job, window)
            if shares_of_group is None:
                raise change.refusal(
                    "no tokens were counted for each expert and step, or layers do not fit"
                )
            of_exchange, of_kernel = shares_of_group
        new = np.where(
            is_dispatch[:, None, None],
            homes[:, :, None] * of_exchange[:, None, :],
            homes[:, None, :] * of_exchange[:, :, None],
        )
        rate = took.sum(axis=(1, 2)) / np.maximum(sent.sum(axis=(1, 2), where=took > 0), 1)
        pairs = ~np.eye(members, dtype=bool)
        rows, place = _places(job, group, moved)
        scales[rows] = (new / np.maximum(sent, 1))[place]
        each = np.where(took > 0, took / np.maximum(sent, 1), rate[:, None, None]) * new * pairs
        longer = each.max(axis=(1, 2)) - took.max(axis=(1, 2))
        durations[group.exchanges] += longer[:, None] * own.pace[group.exchanges]
        want = np.broadcast_to(tokens.sum(axis=1, keepdims=True) * of_kernel, tokens.shape)
        at = np.flatnonzero(varies)
        durations[group.kernels[at]] *= _relative(
            own.waits.transfer[group.kernels[at]].astype(float), tokens[at], want[at], key[at]
        )
    new_ones = np.round(durations).astype(np.int64)
    outside = np.where(own.outside == own.waits.transfer, new_ones, own.outside)
    moved = moved.with_columns((pl.col("payload_ns", "moved_bytes") * scales).round())
    return replace(own.with_durations(new_ones, outside), payloads=moved)


def exchanges(job: CaptureJob, kinds: Collection[str], change: Change) -> Flags:
    """All-to-alls of these parallel kinds. Raises CannotAnswer where there are none, or members of
    them were not captured."""
    ops = job.ops
    named = [at for at, name in enumerate(ops.kinds) if name in kinds]
    types = [at for at, name in enumerate(ops.types) if name.lower().startswith("alltoall")]
    result: Flags = np.isin(ops.kind, named) & np.isin(ops.type, types) & (ops.instance >= 0)
    result &= ops.step >= 0
    if not result.any():
        raise change.refusal("no all-to-alls of such groups were recorded")
    if ops.exogenous[result].any():
        raise change.refusal("all members of the groups are needed: record all ranks of the job")
    return result


def exchange_groups(job: CaptureJob, is_exchanged: Flags) -> list[ExchangeGroup]:
    """Groups whose ranks meet in these all-to-alls; where members run other kernels than others,
    one group without exchanges."""
    ops = job.ops
    order = np.flatnonzero(is_exchanged)
    order = order[np.lexsort((ops.rank[order], ops.instance[order]))]
    bounds = np.flatnonzero(np.diff(ops.instance[order], prepend=-1))
    alike: dict[tuple[int, ...], list[Integers]] = {}
    for its in np.split(order, bounds[1:]):
        alike.setdefault(tuple(ops.rank[its].tolist()), []).append(its)
    run = {int(ops.rank[row[0]]): row for at in programs(ops) for row in at if len(row)}
    groups = []
    for members, rows in alike.items():
        exchanges = np.stack(rows)
        exchanges = exchanges[np.argsort(_when(job, exchanges[:, 0]), kind="stable")]
        kernels = [run.get(one, np.zeros(0, np.int64)) for one in members]
        types = {ops.type[one].tobytes() for one in kernels}
        if len(types) > 1:
            return [ExchangeGroup([*members], np.zeros((0, len(members)), np.int64), exchanges)]
        groups.append(ExchangeGroup([*members], exchanges, np.stack(kernels, axis=1)))
    return groups


def _when(job: CaptureJob, at: Integers) -> Integers:
    """Order of the program: by launch, by start where launches are not known."""
    launch = job.ops.launch[at]
    times: Integers = job.ops.start[at] if (launch == UNKNOWN).any() else launch
    return times


def matrices(job: CaptureJob, group: ExchangeGroup, moved: pl.DataFrame) -> tuple[Floats, Floats]:
    """Of each exchange what each member sent to each, and how long: [exchanges, members, members].
    What a rank keeps is the rest of what the operation says it moves."""
    count = len(group.members)
    rows, place = _places(job, group, moved)
    shape = (len(group.exchanges), count, count)
    sent, took = np.zeros(shape), np.zeros(shape)
    np.maximum.at(sent, place, moved["moved_bytes"].to_numpy()[rows].astype(float))
    np.maximum.at(took, place, moved["payload_ns"].cast(pl.Float64).to_numpy()[rows])
    whole = job.ops.names["size_bytes"].fill_null(0).to_numpy()[group.exchanges]
    stay = np.maximum(whole - sent.sum(axis=2), 0)
    sent[:, np.arange(count), np.arange(count)] = stay
    return sent, took


def are_staged(sent: Floats, took: Floats) -> bool:
    """Whether transfers do not tell what pairs take: every member has another one that it never
    sends to, or all last alike, whatever they move."""
    pairs = ~np.eye(sent.shape[1], dtype=bool)
    never = (sent.sum(axis=0) == 0) & pairs
    moved, spent = sent[:, pairs], took[:, pairs]
    is_uneven = (moved.max(axis=1) > _UNEVEN * moved.min(axis=1)) & (spent.max(axis=1) > 0)
    is_alike = np.ptp(spent, axis=1) <= _ALIKE * spent.max(axis=1)
    return bool(never.any(axis=1).all() or (is_uneven.any() and is_alike[is_uneven].all()))


def _places(
    job: CaptureJob, group: ExchangeGroup, moved: pl.DataFrame
) -> tuple[Integers, tuple[Integers, Integers, Integers]]:
    """Rows of payloads that are of a group, and exchange, sender and receiver of each."""
    ranks = np.array(job.ops.ranks)[group.members]
    exchange = np.full(job.waits.meetings, -1)
    exchange[job.ops.instance[group.exchanges[:, 0]]] = np.arange(len(group.exchanges))
    number = exchange[moved["instance"].to_numpy()]
    ends = moved.select("src_rank", "dst_rank").to_numpy()
    at = np.minimum(np.searchsorted(ranks, ends), len(ranks) - 1)
    rows = np.flatnonzero((number >= 0) & (ranks[at] == ends).all(axis=1))
    return rows, (number[rows], at[rows, 0], at[rows, 1])


def _spread(values: Floats) -> Floats:
    spreads: Floats = values.std(axis=1) / np.maximum(values.mean(axis=1), 1)
    return spreads


def _tokens(job: CaptureJob) -> tuple[Floats, Integers]:
    """Of each operation the first dimension of its first input (0: none), and what else tells
    kernels apart."""
    shapes = pl.col("shapes")
    counts = job.ops.names.select("shapes").unique().with_columns(
        tokens=shapes.str.extract(r"^(\d+)").cast(pl.Float64).fill_null(0.0),
        others=shapes.str.replace_all(r"(^|;)\d+", "${1}"),
    )  # fmt: skip
    parts = job.ops.names.select("name", "shapes").join(
        counts, on="shapes", how="left", nulls_equal=True, maintain_order="left"
    )
    key = parts.select(pl.concat_str("name", "others").rank("dense").fill_null(0)).to_series()
    return parts["tokens"].to_numpy(), key.to_numpy().astype(np.int64)


def _of_kernels(group: ExchangeGroup, tokens: Floats, key: Integers) -> tuple[Floats, Integers]:
    """The same of a group, [kernels, members] and [kernels]: 0 and -1 where members differ."""
    keys = key[group.kernels]
    is_same = (keys == keys[:, :1]).all(axis=1)
    return np.where(is_same[:, None], tokens[group.kernels], 0.0), np.where(is_same, keys[:, 0], -1)


def _relative(took: Floats, tokens: Floats, want: Floats, key: Integers) -> Floats:
    """By what kernels take longer with other tokens: by the line of their kind."""
    ratios = np.ones_like(took)
    for one in np.unique(key).tolist():
        its = key == one
        x, y = tokens[its].ravel(), took[its].ravel()
        good = np.ones(len(x), bool)
        slope, fixed = 0.0, float(np.median(y))
        for _ in range(2):  # the second time without hiccups
            if len(np.unique(x[good])) > 1:
                slope, fixed = np.polyfit(x[good], y[good], 1)
            off = np.abs(y - fixed - slope * x)
            good = off <= 6 * np.median(off) + 1
        if slope <= 0:
            continue
        fixed = max(fixed, 0.0)
        ratios[its] = (fixed + slope * want[its]) / (fixed + slope * tokens[its])
    return ratios


@dataclass(frozen=True, slots=True)
class _Shares:
    """Tokens by rank, step, layer and expert, and slots of each device by layer and expert."""

    loads: pl.DataFrame
    slots: pl.DataFrame

    def of(
        self, group: ExchangeGroup, job: CaptureJob, window: tuple[Flags, Flags, Integers]
    ) -> tuple[Floats, Floats] | None:
        """Shares of the devices, [exchanges, members] and [kernels, members]; None where they are
        not told. `window`: of each exchange, whether it is backward, and of each kernel."""
        ops = job.ops
        ranks = [ops.ranks[one] for one in group.members]
        counted = self.loads.filter(pl.col("rank").is_in(ranks))
        layers = counted["layer"].unique().sort()
        ahead, back, of_kernel = window
        count, number = len(layers), np.zeros(len(ahead), np.int64)
        for its in (ahead, back):
            if not count or int(its.sum()) % count:
                return None
        turn = np.arange(len(ahead))
        number[ahead] = turn[: int(ahead.sum())] % count
        number[back] = count - 1 - turn[: int(back.sum())] % count
        steps = np.array(ops.steps)[ops.step[group.exchanges[0::2, 0]]]
        places = pl.DataFrame({
            "window": turn, "step": steps, "layer": layers.to_numpy()[number]
        })  # fmt: skip
        each = pl.col("tokens") / pl.col("slot").count().over("window", "expert")
        rows = (
            places.join(
                counted.group_by("step", "layer", "expert").agg(pl.col("tokens").sum()),
                on=["step", "layer"],
            )
            .join(self.slots.rename({"layer": "at"}), left_on=["layer", "expert"],
                  right_on=["at", "expert"], how="left")
        )  # fmt: skip
        if rows["device"].is_null().any() or rows["window"].n_unique() < len(turn):
            return None
        sums = rows.with_columns(each=each).group_by("window", "device").agg(pl.col("each").sum())
        shares = np.zeros((len(turn), len(ranks)))
        device = sums["device"].to_numpy()
        if device.max() >= len(ranks):
            return None
        shares[sums["window"].to_numpy(), device] = sums["each"].to_numpy()
        shares /= shares.sum(axis=1, keepdims=True)
        return np.repeat(shares, 2, axis=0), shares[np.maximum(of_kernel, 0)]


def _planned_shares(con: duckdb.DuckDBPyConnection, job: CaptureJob, change: Change) -> _Shares:
    slots = read_deployment(change.value).placement
    return _Shares(frame(con, _LOADS, [job.run, job.capture]), slots)


def _windows(
    job: CaptureJob, group: ExchangeGroup, is_dispatch: Flags, varies: Flags
) -> tuple[Flags, Flags, Integers] | None:
    """From each dispatch to its combine: forward and backward by what runs between, and in which
    of them each kernel runs; None where they do not take turns or are of more than two sorts."""
    if len(is_dispatch) % 2 or not is_dispatch[0::2].all() or is_dispatch[1::2].any():
        return None
    begins = _when(job, group.exchanges[0::2, 0])
    until = _when(job, group.exchanges[1::2, 0])
    when = _when(job, group.kernels[:, 0])
    at = np.searchsorted(begins, when, side="right") - 1
    inside = varies & (at >= 0) & (when < until[np.maximum(at, 0)])
    kinds = job.ops.type[group.kernels[:, 0]].astype(float) + 1
    signs = np.bincount(at[inside], weights=np.square(kinds[inside]), minlength=len(begins))
    ahead = signs == signs[0]
    if len(np.unique(signs)) > 2:
        return None
    return ahead, ~ahead, np.where(inside, at, -1)
