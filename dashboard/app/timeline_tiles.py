"""What the timeline of the pages draws, which the server has beside them.

    /timeline-data/tracks      tracks of some ranks, from where to where they are
    /timeline-data/tile        events of some ranks in a tile, Arrow: `part` device, host or curves;
                               overlap: of the device this track alone; path, whatif: what a
                               replay tells of all ranks, of `change` too
    /timeline-data/overview    what each rank does in each of some hundred bins, Arrow
    /timeline-data/event       all that is known of one event
    /timeline-data/found       events whose name has some letters
    /timeline-data/slack       how much longer one operation may take
    /timeline-data/measured    time and busy time of a stretch, by type

All of them take `store`, `run` and `capture` by the names that pages show: what is not among these
is answered with 404, what cannot be meant with 400. Nobody can name a path, and numbers are numbers
before anything is asked of a store.

A browser may keep tiles, and asks each time whether they are still the same: their ETag is of the
store's version and of all that was asked, so that nothing is loaded to say yes.

In memory are at most MOST_BYTES of events and their coarser rows, and MOST_TILE_BYTES of tiles as
they were sent; what was not asked for longest goes first.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from npuscope import __version__
from npuscope.analysis.timeline import (
    coarser_rows,
    event_details,
    rank_events,
    replay_tracks,
    series,
    tiles,
)
from npuscope.analysis.timeline.bins import overview
from npuscope.analysis.timeline.shared_axis import Extent, extent
from npuscope.console.printable import visible
from npuscope.errors import CannotAnswer, NpuscopeError
from npuscope.messages import Message

from ..locale.language import language_of, languages
from . import sources
from .state import KnownCapture

MOST_RANKS = 16  # of one request
MOST_LETTERS = 200
# Some 13 million events of the device, with their coarser rows.
MOST_BYTES = 512 << 20
MOST_TILE_BYTES = 64 << 20
_ZSTD = pa.Codec("zstd", compression_level=1)
_LAST_NS = 2**62
_MOST_COLUMNS = 2_000
MAP_COLUMNS = 1_000  # as many as side.js asks for
TileSource = tiles.DrawnRank | replay_tracks.ReplayTracks | tuple[series.Series, ...]
_Load = Callable[[duckdb.DuckDBPyConnection], TileSource]
OF_ALL = -1  # in place of a rank
REPLAYS = ("path", "whatif")
_Key = tuple[str, str, str, str, int, str]
_LOADERS: Mapping[str, Callable[[duckdb.DuckDBPyConnection, Extent, int], TileSource]] = {
    "device": lambda con, at, rank: tiles.drawn_rank(rank_events.device_events(con, at, rank)),
    "host": lambda con, at, rank: tiles.drawn_rank(rank_events.host_events(con, at, rank)),
    "curves": series.rank_series,
}
_parts: OrderedDict[_Key, TileSource] = OrderedDict()
_locks: dict[_Key, threading.Lock] = {}
_answers: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
_guard = threading.Lock()


class _Refusal(Exception):
    """An answer other than what was asked for: its status."""


def answer(name: str, request: Request) -> Response:
    """The answer of that name, one of ANSWERS, to a request."""
    if name not in ANSWERS:
        return Response(status_code=404)
    try:
        tile = _TileRequest(request.query_params, request.headers)
        return ANSWERS[name](tile)
    except _Refusal as refused:
        return Response(status_code=int(str(refused)))
    except (NpuscopeError, duckdb.Error, OSError):
        return Response(status_code=503)  # the page itself says what is wrong with the store


class _TileRequest:
    """A request's parameters, each checked when it is read."""

    def __init__(self, params: Mapping[str, str], headers: Mapping[str, str]) -> None:
        self._params = params
        self.takes_zstd = "zstd" in headers.get("accept-encoding", "")
        self._etag = headers.get("if-none-match", "")
        names = [params.get(name) for name in ("run", "capture")]
        store = params.get("store")
        captures = [
            one
            for one in sources.choices().captures
            if [one.run, one.capture] == names and store in (None, one.store)
        ]
        if not captures:
            raise _Refusal(404)
        self.capture: KnownCapture = captures[0]
        self.path = sources.place_named(self.capture.store).path
        self.version = sources.version_of(self.path)

    def has(self, etag: str) -> bool:
        """Whether who asks has the answer of that ETag already."""
        return etag in (one.strip() for one in self._etag.split(","))

    def number(self, name: str, least: int, most: int) -> int:
        """A whole number between two others."""
        text = self._params.get(name, "")
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise _Refusal(400)
        value = int(text)
        if not least <= value <= most:
            raise _Refusal(400)
        return value

    def text(self, name: str) -> str:
        """Some letters that can be printed."""
        text = self._params.get(name, "")
        if not 0 < len(text) <= MOST_LETTERS or not text.isprintable():
            raise _Refusal(400)
        return text

    def hint(self, name: str) -> str:
        """What only chooses among several that fit, so that anything will do."""
        return self._params.get(name, "")

    def word(self, name: str, words: Sequence[str]) -> str:
        """One of some words."""
        text = self._params.get(name, "")
        if text not in words:
            raise _Refusal(400)
        return text

    def ranks(self, most: int = MOST_RANKS) -> tuple[int, ...]:
        """Ranks of the capture, `0.1.5`."""
        words = self._params.get("ranks", "").split(".", most)
        if len(words) > most or not all(one.isascii() and one.isdigit() for one in words):
            raise _Refusal(400)
        ranks = tuple(dict.fromkeys(int(one) for one in words if len(one) < 10))
        if not ranks or not set(ranks) <= set(self.capture.ranks):
            raise _Refusal(404)
        return ranks

    def extent(self) -> Extent:
        """Where the capture's ranks stand in time."""
        place = {"run": self.capture.run, "capture": self.capture.capture}
        extent_here: Extent = sources.answer_of(self.path, self.version, extent, place)
        return extent_here

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What of which version of a store is looked at."""
        return self.path, self.version, self.capture.run, self.capture.capture

    def load(self, part: str, ranks: Sequence[int]) -> dict[int, Any]:
        """Events or curves of some ranks, from memory where they were asked for before."""
        if part == "path":
            return {OF_ALL: self.replay().path}
        if part == "whatif":
            return {OF_ALL: self.whatif()}
        return {rank: self._of_rank(part, rank) for rank in ranks}

    def _of_rank(self, part: str, rank: int) -> TileSource:
        key = (*self.place, rank, part)
        return _load(key, lambda con: _LOADERS[part](con, self.extent(), rank))

    def replay(self) -> replay_tracks.ReplayTracks:
        """What a replay tells; raises NpuscopeError with the reason where it tells nothing."""
        self._needs_all()
        tracks = _load(
            (*self.place, OF_ALL, "replay"),
            lambda con: replay_tracks.replay_capture(con, self.extent()),
        )
        assert isinstance(tracks, replay_tracks.ReplayTracks)
        return tracks

    def whatif(self) -> TileSource:
        """Steps beside those with the change asked for."""
        self._needs_all()
        words = tuple(self.text("change").split())
        return _load(
            (*self.place, OF_ALL, " ".join(("whatif", *words))),
            lambda con: replay_tracks.whatif_track(con, self.extent(), words),
        )

    def _needs_all(self) -> None:
        if not sources.open_tables(self.path, self.version).is_across:
            raise CannotAnswer(Message("The ranks were not compared with each other."))

    def reason(self, error: NpuscopeError) -> str:
        """What an error says, for people, in their language."""
        lang = self._params.get("lang", "")
        say = language_of(lang if lang in languages() else "en")
        return visible(sources.without_paths(say(error.message)))

    def events(self, part: str) -> dict[int, rank_events.RankEvents]:
        """Events of the asked ranks."""
        return {rank: one.events for rank, one in self.load(part, self.ranks()).items()}


def _load(key: _Key, make: _Load) -> TileSource:
    """What was loaded before; else it is, by one thread while others wait."""
    with _guard:
        lock = _locks.setdefault(key, threading.Lock())
    with lock:
        with _guard:
            if key in _parts:
                _parts.move_to_end(key)
                return _parts[key]
        with sources.open_tables(key[0], key[1]).borrow() as con:
            result = make(con)
        with _guard:
            _parts[key] = result
            _locks.pop(key, None)
            while sum(map(_size, _parts.values())) > MOST_BYTES and len(_parts) > 1:
                _parts.popitem(last=False)
    return result


def _size(one: TileSource) -> int:
    if isinstance(one, tiles.DrawnRank | replay_tracks.ReplayTracks):
        return one.nbytes
    return sum(curve.at.nbytes + curve.value.nbytes for curve in one)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _arrow(table: pa.Table, request: _TileRequest) -> Response:
    return _sent_as(_pack(table, request), request, {})


def _pack(table: pa.Table, request: _TileRequest) -> bytes:
    """A table as Arrow. The server's own gzip takes ten times as long as making it: browsers that
    know zstd get that, the others what the server does of itself."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body = sink.getvalue()
    if request.takes_zstd:
        packed: bytes = _ZSTD.compress(body, asbytes=True)
        return packed
    return bytes(body)


def _sent_as(body: bytes, request: _TileRequest, more: Mapping[str, str]) -> Response:
    headers = {"Vary": "Accept-Encoding", **more}
    if request.takes_zstd:
        headers["Content-Encoding"] = "zstd"
    return Response(body, headers=headers, media_type="application/vnd.apache.arrow.stream")


def _tracks(request: _TileRequest) -> Response:
    part = request.word("part", (*_LOADERS, *REPLAYS))
    if part in REPLAYS:
        try:
            one = request.load(part, ())[OF_ALL]
        except NpuscopeError as error:
            return _json({OF_ALL: {"tracks": (), "reason": request.reason(error)}})
        return _json({OF_ALL: {"tracks": one.events.tracks}})
    tracks = request.load(part, request.ranks())
    if part != "curves":
        return _json({
            rank: {"tracks": one.events.tracks, "is_whole": one.events.is_whole}
            for rank, one in tracks.items()
        })  # fmt: skip
    return _json({
        rank: {"tracks": [
            {"kind": one.kind, "key": f"{one.name}/{one.unit}", "label": one.name,
             "unit": one.unit, "least": one.least, "most": one.most, "events": len(one.at)}
            for one in curves
        ], "is_whole": True}
        for rank, curves in tracks.items()
    })  # fmt: skip


def _tile(request: _TileRequest) -> Response:
    part = request.word("part", (*_LOADERS, "overlap", *REPLAYS))
    level = request.number("level", 0, coarser_rows.MOST_LEVEL)
    most = _LAST_NS >> (level + 11)
    index = request.number("index", -most, most)
    ranks = () if part in REPLAYS else request.ranks()
    change = request.text("change") if part == "whatif" else ""
    key = (*request.place, part, ranks, change, level, index, request.takes_zstd)
    etag = _etag(key)
    may_keep = {"Cache-Control": "private, no-cache", "ETag": etag}
    if request.has(etag):
        return Response(status_code=304, headers={"Vary": "Accept-Encoding", **may_keep})
    with _guard:
        body = _answers.get(key)
        if body is not None:
            _answers.move_to_end(key)
    if body is None:
        is_overlap = part == "overlap"
        events = request.load("device" if is_overlap else part, ranks)
        table = (
            series.timeline_curves(events, level, index)
            if part == "curves"
            else tiles.timeline_tiles(events, level, index, is_first_track=is_overlap)
        )
        body = _pack(table, request)
        with _guard:
            _answers[key] = body
            while sum(map(len, _answers.values())) > MOST_TILE_BYTES:
                _answers.popitem(last=False)
    return _sent_as(body, request, may_keep)


def _etag(key: tuple[object, ...]) -> str:
    """Of what is asked of a store's version; weak, since who sends it may pack it."""
    digest = hashlib.sha256(repr((__version__, *key)).encode()).hexdigest()
    return f'W/"{digest[:32]}"'


def _overview(request: _TileRequest) -> Response:
    at = request.extent()
    if at.window_ns is None:
        raise _Refusal(404)
    columns = request.number("columns", 1, _MOST_COLUMNS)
    arguments = {"at": at, "window_ns": at.window_ns, "columns": columns}
    view = sources.answer_of(request.path, request.version, overview, arguments)
    cells = view.cells.with_columns(bin_start_ns=view.cells["bin_start_ns"] - at.window_ns[0])
    table = pa.table(cells.rechunk())
    return _arrow(table.replace_schema_metadata({"width_ns": str(view.width_ns)}), request)


def _event(request: _TileRequest) -> Response:
    rank = request.number("rank", 0, 2**31 - 1)
    if rank not in request.capture.ranks:
        raise _Refusal(404)
    kind = request.word("kind", ("stream", "group", "host"))
    start_ns = request.number("start_ns", -_LAST_NS, _LAST_NS)
    dur_ns = request.number("dur_ns", 1, _LAST_NS)
    at = request.extent()
    with sources.open_tables(request.path, request.version).borrow() as con:
        details = event_details.event_details(
            con,
            at,
            rank,
            kind,
            start_ns,
            dur_ns,
            key=request.hint("key"),
            name=request.hint("name"),
        )
    if details is None:
        raise _Refusal(404)
    return _json(details)


def _slack(request: _TileRequest) -> Response:
    (rank,) = request.ranks(1)
    kind = request.word("kind", ("stream", "group"))
    start_ns = request.number("start_ns", -_LAST_NS, _LAST_NS)
    dur_ns = request.number("dur_ns", 1, _LAST_NS)
    try:
        tracks, at = request.replay(), request.extent()
        with sources.open_tables(request.path, request.version).borrow() as con:
            slack_ns = replay_tracks.slack_of(con, at, tracks, rank, kind, start_ns, dur_ns)
    except NpuscopeError as error:
        return _json({"slack_ns": None, "reason": request.reason(error)})
    return _json({"slack_ns": slack_ns})


def _found_events(request: _TileRequest) -> Response:
    part, text = request.word("part", ("device", "host")), request.text("text")
    rows, count = tiles.timeline_found(request.events(part), text)
    return _json({"count": count, "rows": rows.to_dicts()})


def _measured_window(request: _TileRequest) -> Response:
    part = request.word("part", ("device", "host"))
    from_ns = request.number("from_ns", -_LAST_NS, _LAST_NS)
    to_ns = request.number("to_ns", from_ns + 1, _LAST_NS)
    rows = tiles.timeline_measured(request.events(part), from_ns, to_ns)
    return _json(rows.to_dicts())


ANSWERS: Mapping[str, Callable[[_TileRequest], Response]] = {
    "tracks": _tracks, "tile": _tile, "overview": _overview, "event": _event,
    "found": _found_events, "measured": _measured_window, "slack": _slack,
}  # fmt: skip
