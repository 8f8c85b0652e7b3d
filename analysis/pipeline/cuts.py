"""Where one pass ends and the next begins, on each rank by itself.

kernels of one direction, in order --> pieces between transfers of the pipeline
    --> what is part of no pass is cut off, parts are joined and doubles split, as others repeat it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from .directions import BACKWARD, FORWARD, WEIGHTS

_WAYS = {FORWARD: 0, BACKWARD: 1, WEIGHTS: 2}
_WIDTH = 4  # bytes of a type's code
_CORE = 0.8  # of the shorter of two pieces that no other repeats


@dataclass(frozen=True, slots=True)
class Piece:
    """Kernels `first` to `last` (in the order of their direction) that may be a pass; `kinds`:
    types of its kernels as bytes, four to each."""

    first: int
    last: int
    kinds: bytes


def cut(kernels: pl.DataFrame, transfers: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """Kernels of passes with `piece`, which counts the passes of a lane and direction.

    kernels: as `with_directions` makes them. transfers: lane and order of what cuts: starts of
    sends and ends of receives (or where the program launches them). stages: lane, stage.
    """
    main = (
        kernels.group_by("lane", "direction", "stream", maintain_order=True)
        .agg(pl.col("dur").sum())
        .sort("dur", descending=True, maintain_order=True)
        .unique(["lane", "direction"], keep="first", maintain_order=True)
        .drop("dur")
    )
    kept = kernels.join(main, on=["lane", "direction", "stream"], how="inner")
    kept = _numbered(kept, transfers)
    code = pl.col("type").fill_null("?").rank("dense").cast(pl.Int32).alias("code")
    kept = kept.sort("lane", "direction", "row").with_columns(code)
    lanes = kept["lane"].to_numpy()
    ways = kept["direction"].replace_strict(_WAYS, return_dtype=pl.Int8).to_numpy()
    segments = kept["segment"].to_numpy()
    codes = np.ascontiguousarray(kept["code"].to_numpy())
    products = np.concatenate([[0], np.cumsum(kept["is_cube"].to_numpy())])
    is_new = np.ones(len(kept) + 1, bool)
    is_new[1:-1] = (np.diff(lanes) != 0) | (np.diff(ways) != 0) | (np.diff(segments) != 0)
    edges = np.flatnonzero(is_new)
    found: dict[tuple[int, int], list[Piece]] = {}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if products[last] > products[first]:
            key = (int(lanes[first]), int(ways[first]))
            found.setdefault(key, []).append(Piece(first, last, codes[first:last].tobytes()))
    stage_of = dict(stages.select("lane", "stage").iter_rows())
    whole = _repeated(found, stage_of)
    number = np.full(len(kept), -1, np.int64)
    for pieces in whole.values():
        for at, piece in enumerate(pieces):
            number[piece.first : piece.last] = at
    return kept.with_columns(piece=pl.Series(number)).filter(pl.col("piece") >= 0)


def _numbered(kernels: pl.DataFrame, transfers: pl.DataFrame) -> pl.DataFrame:
    """With `segment`: how many transfers, or where a lane has none, changes of direction, are
    before a kernel."""
    marks = transfers.select("lane", "order", is_mark=pl.lit(value=True))
    both = pl.concat(
        [kernels.select("lane", "order", "row", is_mark=pl.lit(value=False)), marks],
        how="diagonal",
    ).sort("lane", "order", "is_mark", descending=[False, False, True], maintain_order=True)
    counted = both.with_columns(
        segment=pl.col("is_mark").cast(pl.Int64).cum_sum().over("lane"),
        marks=pl.col("is_mark").sum().over("lane"),
    ).filter(~pl.col("is_mark"))
    kernels = kernels.join(counted.select("row", "segment", "marks"), on="row", how="left")
    turns = (pl.col("direction") != pl.col("direction").shift()).fill_null(value=False)
    kernels = kernels.sort("lane", "row").with_columns(run=turns.cum_sum().over("lane"))
    return kernels.with_columns(
        segment=pl.when(pl.col("marks") > 0).then("segment").otherwise(pl.col("run").cast(pl.Int64))
    ).drop("marks", "run")


def _repeated(
    found: dict[tuple[int, int], list[Piece]], stage_of: dict[int, int]
) -> dict[tuple[int, int], list[Piece]]:
    """Pieces by lane and direction as the repetition of the same stage's pieces has them."""
    usual: dict[tuple[int, int], Counter[bytes]] = {}
    for (lane, way), pieces in found.items():
        usual.setdefault((stage_of.get(lane, -1), way), Counter()).update(p.kinds for p in pieces)
    made = {}
    for (lane, way), pieces in found.items():
        seen = usual[stage_of.get(lane, -1), way]
        known = [kinds for kinds, count in seen.most_common() if count > 1] or _core(seen)
        made[lane, way] = _mended(pieces, known)
    counts = Counter(len(pieces) for (_, way), pieces in made.items() if way == 0)
    if not counts:
        return made
    most = max(counts)
    for (lane, way), pieces in made.items():
        wanted = len(made.get((lane, _WAYS[BACKWARD]), [])) if way == _WAYS[WEIGHTS] else most
        if len(pieces) < wanted:
            made[lane, way] = _halved(pieces, wanted)
    return made


def _mended(pieces: list[Piece], known: list[bytes]) -> list[Piece]:
    """Trimmed to, joined to, or split into what is known."""
    done: list[Piece] = []
    waiting: list[Piece] = []
    names = frozenset(known)
    for piece in pieces:
        if piece.kinds in names:
            done += _joined(waiting, known)
            waiting = []
            done.append(piece)
        else:
            waiting.append(piece)
    return done + _joined(waiting, known)


def _joined(parts: list[Piece], known: list[bytes]) -> list[Piece]:
    """Pieces that nobody repeats, each trimmed, or some in a row together as one that is known."""
    done: list[Piece] = []
    at = 0
    while at < len(parts):
        for until in range(at + 1, len(parts) + 1):
            kinds = b"".join(one.kinds for one in parts[at:until])
            trimmed = _trimmed(parts[at], kinds, known)
            if trimmed is not None:
                done.append(trimmed)
                at = until
                break
        else:
            done.append(parts[at])
            at += 1
    return done


def _trimmed(first: Piece, kinds: bytes, known: list[bytes]) -> Piece | None:
    for one in known:
        at = kinds.find(one)
        while at % _WIDTH and at > 0:
            at = kinds.find(one, at + 1)
        if at >= 0:
            begin = first.first + at // _WIDTH
            return Piece(begin, begin + len(one) // _WIDTH, one)
    return None


def _core(seen: Counter[bytes]) -> list[bytes]:
    """What the two shortest of several pieces have in common, where it is most of both."""
    shortest = sorted(seen, key=len)[:2]
    if len(shortest) == 1:
        return []
    one, other = (np.frombuffer(kinds, np.int32) for kinds in shortest)
    best = (0, 0)
    for shift in range(1 - len(one), len(other)):
        low, high = max(0, -shift), min(len(one), len(other) - shift)
        if high - low > best[0]:
            differ = np.flatnonzero(one[low:high] != other[low + shift : high + shift])
            edges = np.concatenate([[-1], differ, [high - low]])
            gap = int(np.argmax(np.diff(edges)))
            best = max(best, (int(edges[gap + 1] - edges[gap]) - 1, low + int(edges[gap]) + 1))
    size, at = best
    if size < _CORE * len(one):
        return []
    return [one[at : at + size].tobytes()]


def _halved(pieces: list[Piece], wanted: int) -> list[Piece]:
    """Pieces of which some are passes in a row with no transfer between, split into equal ones."""
    if not pieces:
        return pieces
    least = min(len(one.kinds) for one in pieces)
    done = []
    for piece in pieces:
        times, rest = divmod(len(piece.kinds), least)
        unit = piece.kinds[:least]
        if times > 1 and not rest and piece.kinds == unit * times:
            size = least // _WIDTH
            starts = range(piece.first, piece.last, size)
            done += [Piece(start, start + size, unit) for start in starts]
        else:
            done.append(piece)
    if len(done) == len(pieces) and 2 * len(pieces) == wanted:
        done = []
        for piece in pieces:
            half = len(piece.kinds) // (2 * _WIDTH)
            middle = piece.first + half
            done += [Piece(piece.first, middle, piece.kinds[: _WIDTH * half]),
                     Piece(middle, piece.last, piece.kinds[_WIDTH * half :])]  # fmt: skip
    return done
