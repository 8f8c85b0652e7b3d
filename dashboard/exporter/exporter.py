"""The Prometheus exporter: samples of a store over HTTP, or once into a file.

    scrape --> Exporter.collect --> results of the store's version, gathered once
                              --> what the platform says of itself

Samples have no timestamps: a series that is gone goes stale at the next scrape, and how old the
data are is told by npuscope_last_ingest_timestamp_seconds.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

import npuscope
from npuscope.analysis.compare.side import Side
from npuscope.analysis.flops.mfu import ModelUse
from npuscope.collector.watch.watch_state import is_watching, read_watch_state
from npuscope.errors import StoreError, UsageError

from ..app.launch import allowed_hosts, is_known_host
from .gauges import BY_NAME
from .newest_results import PATIENCE_S, CachedResults, Status
from .shown_captures import version_key
from .snapshot import MAX_SERIES, Sample, ShownSeries, Snapshot, take_snapshot, within

# A client that says nothing for so long is left.
_TIMEOUT_S = 30.0
# Clients served at once; beyond them one is turned away without an answer.
_MOST_CLIENTS = 64
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_SHORT_PAUSE_S = 0.2
Say = Callable[[str], None]
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]  # of WSGI


@dataclass(frozen=True, slots=True)
class Options:
    """What is exported. `expire_s`: runs into which nothing was ingested for so long are left out
    (None: never). `run`: this one alone; `use` and `given_peaks` are those of all runs shown, as
    `analysis.flops.mfu` takes them; `baseline` is what they are held against."""

    store: Path
    expire_s: float | None = None
    max_series: int = MAX_SERIES
    with_experts: bool = False
    run: str | None = None
    use: ModelUse | None = None
    given_peaks: Mapping[str, float] | None = None
    baseline: Side | None = None


@dataclass(frozen=True, slots=True)
class ShownMetrics:
    """What is shown of runs: metrics, ready to be written."""

    runs: frozenset[str]
    series: ShownSeries
    families: tuple[Metric, ...]


class Exporter(Collector):
    """Collector of prometheus_client over a store; to be closed. Asking for it costs no query
    where the store is as it was."""

    def __init__(
        self, options: Options, say: Say, *, patience_s: float | None = PATIENCE_S
    ) -> None:
        self._options, self._say = options, say
        self._results = CachedResults(
            lambda: version_key(options.store), self._gather, say=say, patience_s=patience_s
        )
        self._dropped_said: dict[str, int] = {}
        self._said_once: set[str] = set()
        self._latest: tuple[Snapshot, ShownMetrics] | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing: being registered must not query the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every metric as it is now."""
        metrics, own = self.now()
        yield from metrics.families
        yield from own

    def now(self) -> tuple[ShownMetrics, list[Metric]]:
        """What is shown of runs, the same object for as long as it is the same; and what the
        platform says of itself."""
        standing = self._results.latest()
        metrics = self._shown_of(standing.snapshot)
        return metrics, [
            *exporter_metrics(standing, metrics.series), *watch_metrics(self._options.store)
        ]  # fmt: skip

    def require_results(self) -> None:
        """Raises StoreError where the store cannot be read now."""
        standing = self._results.latest()
        if standing.problem:
            raise StoreError(standing.problem)

    def close(self) -> None:
        """Gather nothing more."""
        self._results.close()

    def _gather(self) -> Snapshot:
        options = self._options
        return take_snapshot(
            options.store,
            now_s=time.time(),
            expire_s=options.expire_s,
            with_experts=options.with_experts,
            run=options.run,
            use=options.use,
            given_peaks=options.given_peaks,
            baseline=options.baseline,
            tell=self._say_once,
        )

    def _say_once(self, message: str) -> None:
        if message not in self._said_once:
            self._said_once.add(message)
            self._say(message)

    def _shown_of(self, snapshot: Snapshot) -> ShownMetrics:
        """Without what expired since it was gathered, and within the budget."""
        expire_s = self._options.expire_s
        oldest_s = None if expire_s is None else time.time() - expire_s
        alive = {
            run for run, at in snapshot.ingested_s.items() if oldest_s is None or at >= oldest_s
        }
        before = self._latest
        if before is not None and before[0] is snapshot and before[1].runs == alive:
            return before[1]
        samples = within(snapshot.of_runs(alive).samples, self._options.max_series)
        families = tuple(_family(name, rows) for name, rows in samples.samples.items() if rows)
        metrics = ShownMetrics(frozenset(alive), samples, families)
        self._latest = snapshot, metrics
        if samples.drops.keys() != self._dropped_said.keys():
            self._dropped_said = dict(samples.drops)
            names = ", ".join(f"{name} ({count:,})" for name, count in samples.drops.items())
            limit = f"more than --max-series {self._options.max_series:,}"
            self._say(
                f"{limit}: not shown: {names}" if names else ("all series are exported again")
            )
        return metrics


def _family(name: str, samples: Iterable[Sample]) -> Metric:
    gauge = BY_NAME[name]
    family = GaugeMetricFamily(name, gauge.meaning, labels=["run", *gauge.labels])
    for one in samples:
        family.add_metric([one.run, *one.labels], one.value)
    return family


def exporter_metrics(status: Status, samples: ShownSeries) -> Iterator[Metric]:
    """How the exporter does; `npuscope_up` is absent until the first attempt has ended."""
    if status.is_good is not None:
        yield _gauge(
            "npuscope_up", "Whether the last read of the store succeeded whole.", status.is_good
        )
    version = GaugeMetricFamily(
        "npuscope_exporter_info", "Version of the exporter.", labels=["version"]
    )
    version.add_metric([npuscope.__version__], 1.0)
    yield version
    yield _gauge(
        "npuscope_exporter_series",
        "Exported series of runs.",
        sum(map(len, samples.samples.values())),
    )
    yield _gauge(
        "npuscope_exporter_dropped_series",
        "Series dropped because of --max-series.",
        sum(samples.drops.values()),
    )
    yield _gauge(
        "npuscope_exporter_refresh_seconds",
        "Duration of the last collection of samples.",
        status.snapshot.took_s,
    )
    yield _counter(
        "npuscope_exporter_refreshes_total", "Collections of samples.", status.refreshes_total
    )
    yield _counter("npuscope_exporter_errors_total", "Failed collections of samples.",
        status.errors_total)  # fmt: skip


def watch_metrics(store: Path) -> Iterator[Metric]:
    """How `npuscope watch` does, by what it left in the store; nothing where nobody watched it."""
    state = read_watch_state(store)
    if state is None:
        return
    yield _counter(
        "npuscope_watch_captures_ingested_total",
        "Captures that the watcher began to ingest.",
        state.captures_ingested_total,
    )
    yield _counter(
        "npuscope_watch_ranks_ingested_total",
        "Ranks that the watcher ingested.",
        state.ranks_ingested_total,
    )
    yield _counter(
        "npuscope_watch_read_bytes_total",
        "Bytes of the files that the watcher read.",
        state.read_bytes_total,
    )
    yield _counter(
        "npuscope_watch_captures_dropped_total",
        "Captures dropped by the retention limit.",
        state.captures_dropped_total,
    )
    yield _counter(
        "npuscope_watch_errors_total",
        "Ranks that could not be read, and polls that failed.",
        state.errors_total,
    )
    yield _counter("npuscope_watch_polls_total", "Polls of the watcher.", state.polls_total)
    yield _gauge(
        "npuscope_watch_running",
        "Whether the watcher is running: 0 where it ended, its process is gone from this host, or"
        " its last poll is 10 polls and 15 minutes old.",
        is_watching(state),
    )
    yield _gauge(
        "npuscope_watch_quarantined_captures",
        "Profiles in quarantine because they cannot be read.",
        len(state.quarantined),
    )
    yield _gauge(
        "npuscope_watch_waiting_captures",
        "Profiles found and not ingested yet.",
        len(state.waiting),
    )
    yield _gauge(
        "npuscope_watch_disk_full", "Whether the store's disk is full.", state.is_disk_full
    )
    if state.last_poll_ns is not None:
        yield _gauge("npuscope_watch_last_poll_timestamp_seconds",
            "Unix time of the watcher's last poll.", state.last_poll_ns / 1e9)  # fmt: skip


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(name, meaning, value=float(value))


def _registry(exporter: Exporter) -> CollectorRegistry:
    """A registry with the exporter and nothing else: the process's own metrics are not ours."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(exporter)
    return registry


def scrape_application(exporter: Exporter) -> Application:
    """The application that answers scrapes.

    Text of runs is written, and compressed, once: that is what costs time in a scrape, and between
    two captures it stays the same. What the platform says of itself comes after it.
    """
    written: dict[tuple[str, bool], tuple[ShownMetrics, bytes]] = {}
    one_at_a_time = threading.Lock()

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET"), ("Content-Length", "0")])
            return [b""]
        encoder, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        is_compressed = gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", ""))
        key = (content_type, is_compressed)

        def text(families: Iterable[Metric]) -> bytes:
            return encoder(cast(CollectorRegistry, SimpleNamespace(collect=lambda: families)))

        def packed(content: bytes) -> bytes:
            # What is compressed apart may be joined: RFC 1952, section 2.2.
            return gzip.compress(content, 5) if is_compressed else content

        metrics, own = exporter.now()
        with one_at_a_time:
            page = written.get(key)
            if page is None or page[0] is not metrics:
                page = metrics, packed(text(metrics.families).removesuffix(b"# EOF\n"))
                written[key] = page
        content = [page[1], packed(text(own))]
        headers = [("Content-Type", content_type), ("Vary", "Accept, Accept-Encoding")]
        headers.append(("Content-Length", str(sum(map(len, content)))))
        if is_compressed:
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", headers)
        return content

    return respond


def for_hosts(application: Application, names: Collection[str]) -> Application:
    """The application for those who ask for it by one of these names, or by an address."""

    def respond(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if is_known_host(environ.get("HTTP_HOST"), names):
            return application(environ, start_response)
        content = b"not known by this name: see npuscope exporter --allowed-host\n"
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(content)))]
        start_response("421 Misdirected Request", headers)
        return [content]

    return respond


def write_textfile(options: Options, path: Path, say: Say) -> None:
    """Samples of now, for node_exporter's textfile collector: the file appears whole or not.

    Raises StoreError where the store cannot be read or the file not be written; an older file
    stays then.
    """
    with contextlib.closing(Exporter(options, say, patience_s=None)) as exporter:
        exporter.require_results()
        try:
            write_to_textfile(str(path), _registry(exporter))
        except OSError as error:
            raise StoreError(f"{path}: cannot be written ({error.strerror})") from error


@dataclass(frozen=True, slots=True)
class Protection:
    """Who may scrape: `certificate` and `key` for TLS, `client_ca` where clients must show a
    certificate of theirs."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None

    def tls(self) -> ssl.SSLContext | None:
        """TLS of a server; None without a certificate. Raises UsageError where files cannot be
        used."""
        if self.certificate is None or self.key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            if self.client_ca is not None:
                context.load_verify_locations(self.client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except OSError as error:  # as errors of ssl are
            raise UsageError(
                f"--tls-cert, --tls-key or --client-ca cannot be used: {error}"
            ) from error
        return context


@contextlib.contextmanager
def server(
    options: Options,
    protection: Protection,
    *,
    host: str,
    port: int,
    say: Say,
    names: Iterable[str] = (),
) -> Iterator[ThreadingWSGIServer]:
    """A server that listens; `serve_forever` answers, `server_port` is its port (for port 0).

    It may be asked by `names` beside the machine's own.
    Raises UsageError where it cannot listen, or certificates cannot be read.
    """
    with contextlib.closing(Exporter(options, say)) as exporter:
        application = for_hosts(scrape_application(exporter), {*allowed_hosts(host), *names})
        context = protection.tls()
        listening = _listen(application, host, port)
        try:
            if context is not None:
                # The handshake is left to the thread of the client: a client that does not shake
                # hands must not keep the others out.
                listening.socket = context.wrap_socket(
                    listening.socket, server_side=True, do_handshake_on_connect=False
                )
            yield listening
        finally:
            listening.server_close()


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: scrapes come every few seconds."""


class _Server(ThreadingWSGIServer):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._room = threading.BoundedSemaphore(_MOST_CLIENTS)
        super().__init__(*arguments, **options)

    def get_request(self) -> Any:
        """The next client. Without a descriptor for it we would be asked again and again."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in _SHORT:
                time.sleep(_SHORT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread for it
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that leaves or shows no certificate is no fault of ours."""

    def server_bind(self) -> None:
        """Without asking DNS for the machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


def _listen(application: Application, host: str, port: int) -> ThreadingWSGIServer:
    try:
        ((family, *_), *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        kind = type("_Server", (_Server,), {"address_family": family})
        return make_server(host, port, application, kind, handler_class=_Handler)
    except OSError as error:
        raise UsageError(
            f"--host {host} --port {port}: cannot listen there: {error.strerror or error}"
        ) from error
