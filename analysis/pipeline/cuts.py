"""Where one pass ends and the next begins, on each rank by itself.

kernels of one direction, in order --> pieces between transfers of the pipeline
    --> what is part of no pass is cut off, parts are joined and doubles split, as others repeat it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl

from .directions import BACKWARD, FORWARD, WEIGHTS

_WAYS = {FORWARD: 0, BACKWARD: 1, WEIGHTS: 2}
_WIDTH = 4  # bytes of a type's code
_OWN = 0.5  # of backward kernels follow the run of their own forward: less, and they run beside it
_KNOWN_PARTNERS = 0.3  # of a rank's kernels, and sequence numbers cut passes
_MOST_KINDS = 8  # of pieces that may be split
_PART = 0.25  # of the longer of two passes, the shorter has at least
_WHOLE = (
    1.15  # times the products for each of the forward, that a backward with weights has at least
)
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
    main_kernels = kernels.join(main, on=["lane", "direction", "stream"], how="inner")
    main_kernels = _by_partners(_with_segments(main_kernels, transfers))
    code = pl.col("type").fill_null("?").rank("dense").cast(pl.Int32).alias("code")
    main_kernels = main_kernels.sort("lane", "direction", "row").with_columns(code)
    lanes = main_kernels["lane"].to_numpy()
    ways = main_kernels["direction"].replace_strict(_WAYS, return_dtype=pl.Int8).to_numpy()
    segments = main_kernels["segment"].to_numpy()
    codes = np.ascontiguousarray(main_kernels["code"].to_numpy())
    products = np.concatenate([[0], np.cumsum(main_kernels["is_cube"].to_numpy())])
    is_new = np.ones(len(main_kernels) + 1, bool)
    is_new[1:-1] = (np.diff(lanes) != 0) | (np.diff(ways) != 0) | (np.diff(segments) != 0)
    edges = np.flatnonzero(is_new)
    pieces_by_lane: dict[tuple[int, int], list[Piece]] = {}
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if products[last] > products[first]:
            key = (int(lanes[first]), int(ways[first]))
            pieces_by_lane.setdefault(key, []).append(
                Piece(first, last, codes[first:last].tobytes())
            )
    stage_of = dict(stages.select("lane", "stage").iter_rows())
    products_of = frozenset(main_kernels.filter("is_cube")["code"].unique().to_list())
    whole = _repeated_pieces(pieces_by_lane, stage_of, products_of)
    main_kernels = _with_whole_backwards(main_kernels, _places(main_kernels, whole))
    weights = np.concatenate([[0], np.cumsum(main_kernels["is_weight"].to_numpy())])
    for (lane, way), pieces in whole.items():
        if way == _WAYS[WEIGHTS]:
            others = whole.get((lane, _WAYS[BACKWARD]), [])
            left = sum(int(weights[one.last] == weights[one.first]) for one in others)
            trials = (pieces, _at_least(pieces, left), _split_repeats(pieces))
            whole[lane, way] = next((one for one in trials if len(one) == left), pieces)
    return main_kernels.with_columns(piece=_places(main_kernels, whole)).filter(
        pl.col("piece") >= 0
    )


def _places(kernels: pl.DataFrame, whole: dict[tuple[int, int], list[Piece]]) -> pl.Series:
    """Which of its lane's pieces of a direction each kernel is in; -1: none."""
    number = np.full(len(kernels), -1, np.int64)
    for pieces in whole.values():
        for at, piece in enumerate(pieces):
            number[piece.first : piece.last] = at
    return pl.Series(number)


def _with_whole_backwards(kernels: pl.DataFrame, piece: pl.Series) -> pl.DataFrame:
    """With `is_weight` also where no sizes tell: some passes of a lane leave weights to passes of
    their own, and a backward with more products for each of its own forward (by sequence numbers)
    than those makes gradients of weights itself."""
    rows = kernels.with_columns(piece=piece).filter(pl.col("piece") >= 0, pl.col("is_product"))
    is_unknown = rows.group_by("lane").agg(
        is_unknown=(~pl.col("is_sized")).all() & pl.col("direction").eq(WEIGHTS).any()
    )
    rows = rows.join(is_unknown.filter("is_unknown"), on="lane", how="semi")
    if rows.is_empty():
        return kernels
    keys = ["lane", "direction", "piece"]
    counts = rows.group_by(keys).agg(products=pl.len().cast(pl.Float64))
    numbered = rows.filter(pl.col("sequence").is_not_null()).join(counts, on=keys)
    forward = numbered.filter(direction=FORWARD).unique(["lane", "sequence"]).select(
        "lane", "sequence", own=pl.col("products")
    )  # fmt: skip
    ratios = (
        numbered.filter(direction=BACKWARD)
        .join(forward, on=["lane", "sequence"])
        .group_by(keys)
        .agg(ratio=pl.col("products").first() / pl.col("own").median())
    )
    least = pl.col("ratio").min().over("lane")
    whole = ratios.filter(pl.col("ratio") > _WHOLE * least).with_columns(is_whole=True)
    pieces = kernels.with_columns(piece=piece).join(whole.drop("ratio"), on=keys, how="left")
    return pieces.sort("lane", "direction", "row").with_columns(
        pl.col("is_weight") | (pl.col("is_product") & pl.col("is_whole").fill_null(value=False))
    ).drop("piece", "is_whole")  # fmt: skip


def _with_segments(kernels: pl.DataFrame, transfers: pl.DataFrame) -> pl.DataFrame:
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
    kernels = kernels.sort("lane", "row").with_columns(
        run=turns.cum_sum().over("lane").cast(pl.Int64)
    )
    kernels = kernels.join(_beside(kernels), on="lane", how="left")
    return kernels.with_columns(
        segment=pl.when(pl.col("mark_number").is_not_null().any().over("lane"))
        .then(pl.col("mark_number").fill_null(-1))
        .when(pl.col("marks") > 0)
        .then("segment")
        .when("is_beside")
        .then(0)
        .otherwise("run")
    ).drop("marks", "run", "is_beside")


def _beside(kernels: pl.DataFrame) -> pl.DataFrame:
    """Lanes with `is_beside`: backwards take turns with forwards that are not their own (by the
    sequence numbers of operators), so that they are of passes beside each other."""
    numbered = kernels.filter(pl.col("sequence").is_not_null())
    forward = numbered.filter(direction=FORWARD).group_by("lane", "sequence").agg(
        own=pl.col("run").max()
    )  # fmt: skip
    back = numbered.filter(direction=BACKWARD).join(forward, on=["lane", "sequence"], how="left")
    follows = (pl.col("own") == pl.col("run") - 1).fill_null(value=False)
    runs = pl.col("run").n_unique()
    return back.group_by("lane").agg(is_beside=(follows.mean() < _OWN) & (runs > 1)).join(
        kernels.select("lane").unique(), on="lane", how="right"
    ).with_columns(pl.col("is_beside").fill_null(value=False))  # fmt: skip


def _by_partners(kernels: pl.DataFrame) -> pl.DataFrame:
    """With `segment` that also changes where the other direction's of the same operators does: by
    the sequence numbers that join the backward of an operator to its forward."""
    numbered = kernels.filter(pl.col("sequence").is_not_null())
    of_way = [numbered.filter(direction=way).group_by("lane", "sequence").agg(
        pl.col("segment").min().alias("partner")).with_columns(direction=pl.lit(other))
        for way, other in ((FORWARD, BACKWARD), (BACKWARD, FORWARD))]  # fmt: skip
    place = ["lane", "direction"]
    rows = kernels.join(pl.concat(of_way), on=[*place, "sequence"], how="left").sort("row")
    is_known = pl.col("partner").is_not_null().mean().over(place) >= _KNOWN_PARTNERS
    # What has no counterpart (masks, sums of gradients) begins a forward and ends a backward.
    partner, within = pl.col("partner"), [*place, "segment"]
    near = (
        pl.when(pl.col("direction") == FORWARD)
        .then(partner.backward_fill().forward_fill().over(within))
        .otherwise(partner.forward_fill().backward_fill().over(within))
    )
    rows = rows.with_columns(partner=pl.when(is_known).then(near).fill_null(-1))
    is_new = pl.struct("segment", "partner") != pl.struct("segment", "partner").shift().over(place)
    return rows.with_columns(
        segment=is_new.fill_null(value=False).cast(pl.Int64).cum_sum().over(place)
    ).drop("partner")


def _repeated_pieces(
    pieces_by_lane: dict[tuple[int, int], list[Piece]],
    stage_of: dict[int, int],
    products: frozenset[int],
) -> dict[tuple[int, int], list[Piece]]:
    """Pieces by lane and direction as the repetition of the same stage's pieces has them.

    products: codes of kernels that multiply matrices: what has them is not cut off.
    """
    usual: dict[tuple[int, int], Counter[bytes]] = {}
    repeated: dict[tuple[int, int], set[bytes]] = {}
    for (lane, way), pieces in pieces_by_lane.items():
        key = (stage_of.get(lane, -1), way)
        own = Counter(piece.kinds for piece in pieces)
        usual.setdefault(key, Counter()).update(own)
        repeated.setdefault(key, set()).update(kinds for kinds in own if own[kinds] > 1)
    result = {}
    for (lane, way), pieces in pieces_by_lane.items():
        key = (stage_of.get(lane, -1), way)
        words_of = sorted(repeated[key], key=lambda one: (-len(one), one)) or _core(usual[key])
        result[lane, way] = _at_ends(_mend(pieces, words_of, products), products)
    return _as_many(result, usual, stage_of)


def _as_many(
    pieces_of: dict[tuple[int, int], list[Piece]],
    usual: dict[tuple[int, int], Counter[bytes]],
    stage_of: dict[int, int],
) -> dict[tuple[int, int], list[Piece]]:
    """Every rank runs as many forwards, and as many backwards: where no transfer lies between two
    passes of a rank, pieces are split so far that this is so, if they can be."""
    ways = {}
    for (lane, way), pieces in pieces_of.items():
        if way != _WAYS[WEIGHTS]:
            ways[lane, way] = _splits(pieces, {*usual[stage_of.get(lane, -1), way]})
    forwards = [{*counts} for (_, way), counts in ways.items() if way == _WAYS[FORWARD]]
    possible = set.intersection(*forwards) if forwards else set()
    if not possible:
        return pieces_of
    least = min(possible)
    result = dict(pieces_of)
    for place, counts in ways.items():
        if least in counts:
            result[place] = _split(pieces_of[place], counts[least])
    return result


Sizes = dict[bytes, tuple[int, ...]]  # of kinds that are split: of their parts


def _splits(pieces: list[Piece], alone: set[bytes]) -> dict[int, Sizes]:
    """How many passes pieces can be, and what of them is split for it: as little as can be, the
    longest first."""
    counts = Counter(piece.kinds for piece in pieces)
    options = {kinds: parts for kinds in counts if (parts := _parts(kinds, alone | {*counts}))}
    longest = sorted(options, key=lambda one: (-len(one), one))[:_MOST_KINDS]
    splits: dict[int, Sizes] = {}
    for many in range(len(longest) + 1):
        for kinds_to_split in combinations(longest, many):
            more = sum(counts[kinds] * (len(options[kinds]) - 1) for kinds in kinds_to_split)
            splits.setdefault(
                len(pieces) + more, {kinds: options[kinds] for kinds in kinds_to_split}
            )
    return splits


def _parts(kinds: bytes, alone: set[bytes]) -> tuple[int, ...]:
    """Sizes of two passes or more that a piece may be; none where nothing tells."""
    ends = [len(one) for one in alone if len(one) < len(kinds) and kinds.startswith(one)]
    ends += [
        len(kinds) - len(one) for one in alone if len(one) < len(kinds) and kinds.endswith(one)
    ]
    even = [at for at in ends if min(at, len(kinds) - at) >= _PART * max(at, len(kinds) - at)]
    half = len(kinds) // (2 * _WIDTH) * _WIDTH
    if kinds == kinds[:half] * 2:
        even = [at for at in even if kinds[:at] in alone and kinds[at:] in alone] or [half]
    if not even:
        return ()
    at = max(even, key=lambda one: (
        (kinds[:one] in alone) + (kinds[one:] in alone), min(one, len(kinds) - one)
    ))  # fmt: skip
    return at, len(kinds) - at


def _split(pieces: list[Piece], sizes: Sizes) -> list[Piece]:
    pieces_here: list[Piece] = []
    for piece in pieces:
        at = 0
        for size in sizes.get(piece.kinds, (len(piece.kinds),)):
            first = piece.first + at // _WIDTH
            pieces_here.append(Piece(first, first + size // _WIDTH, piece.kinds[at : at + size]))
            at += size
    return pieces_here


def _mend(pieces: list[Piece], words_of: list[bytes], products: frozenset[int]) -> list[Piece]:
    """Trimmed to, joined to, or split into what is known."""
    done: list[Piece] = []
    waiting: list[Piece] = []
    names = frozenset(words_of)
    for piece in pieces:
        if piece.kinds in names:
            done += _join_pieces(waiting, words_of, products)
            waiting = []
            done.append(piece)
        else:
            waiting.append(piece)
    return done + _join_pieces(waiting, words_of, products)


def _at_ends(pieces: list[Piece], products: frozenset[int]) -> list[Piece]:
    """The first and the last piece trimmed to what another one is, though nothing repeats it."""
    counts = Counter(piece.kinds for piece in pieces)
    result = list(pieces)
    for at in {0, len(pieces) - 1} if len(pieces) > 1 else ():
        if counts[pieces[at].kinds] == 1:
            others = sorted({*counts} - {pieces[at].kinds}, key=lambda one: (-len(one), one))
            result[at] = _trim(pieces[at], pieces[at].kinds, others, products) or pieces[at]
    return result


def _join_pieces(
    parts: list[Piece], words_of: list[bytes], products: frozenset[int]
) -> list[Piece]:
    """Pieces that nobody repeats, each trimmed, or some in a row together as one that is known."""
    done: list[Piece] = []
    at = 0
    while at < len(parts):
        for until in range(at + 1, len(parts) + 1):
            kinds = b"".join(one.kinds for one in parts[at:until])
            trimmed = _trim(parts[at], kinds, words_of, products)
            if trimmed is not None:
                done.append(trimmed)
                at = until
                break
        else:
            done.append(parts[at])
            at += 1
    return done


def _trim(
    first: Piece, kinds: bytes, words_of: list[bytes], products: frozenset[int]
) -> Piece | None:
    """What is known of it, where nothing else in it multiplies matrices."""
    for one in words_of:
        at = kinds.find(one)
        while at % _WIDTH and at > 0:
            at = kinds.find(one, at + 1)
        if at >= 0:
            rest = np.frombuffer(kinds[:at] + kinds[at + len(one) :], np.int32)
            if products.isdisjoint(rest.tolist()):
                begin = first.first + at // _WIDTH
                return Piece(begin, begin + len(one) // _WIDTH, one)
    return None


def _core(counts: Counter[bytes]) -> list[bytes]:
    """What the two shortest of several pieces have in common, where it is most of both."""
    shortest = sorted(counts, key=len)[:2]
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


def _split_repeats(pieces: list[Piece]) -> list[Piece]:
    """Pieces of which some repeat the shortest several times, split into these."""
    least = min((one.kinds for one in pieces), key=len, default=b"")
    done: list[Piece] = []
    for piece in pieces:
        times, rest = divmod(len(piece.kinds), len(least))
        size = len(least) // _WIDTH
        is_multiple = not rest and piece.kinds == least * times
        starts = range(piece.first, piece.last, size) if is_multiple else [piece.first]
        done += [Piece(at, at + size if is_multiple else piece.last,
                       least if is_multiple else piece.kinds) for at in starts]  # fmt: skip
    return done


def _at_least(pieces: list[Piece], least: int) -> list[Piece]:
    """So many pieces, the longest in equal parts where there are fewer and it has as many."""
    longest = max(pieces, key=lambda one: one.last - one.first)
    parts = least - len(pieces) + 1
    size, rest = divmod(longest.last - longest.first, max(parts, 1))
    if parts < 1 or rest:
        return pieces
    at = pieces.index(longest)
    equal = [Piece(start, start + size, longest.kinds[: size * _WIDTH])
             for start in range(longest.first, longest.last, size)]  # fmt: skip
    return [*pieces[:at], *equal, *pieces[at + 1 :]]
