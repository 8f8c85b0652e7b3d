"""`npuscope exporter`: samples of a store for Prometheus."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from npuscope.commands.explain.model_options import (
    Again,
    AutoTokens,
    Counting,
    Length,
    ModelName,
    PeakText,
    use_of,
)
from npuscope.console import say
from npuscope.console.printable import one_line
from npuscope.errors import StoreError, UsageError

if TYPE_CHECKING:
    from npuscope.analysis.compare.side import Side
    from npuscope.dashboard.exporter.exporter import Options, Protection

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_File = Path | None


def exporter(
    store: Annotated[
        Path | None, typer.Argument(metavar="STORE", help="A store; it may not exist yet.")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="0: a free port, printed at start."
        ),
    ] = 9868,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDR", help="0.0.0.0 or :: for other machines.")
    ] = "127.0.0.1",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="Also accept this Host name; repeatable.",
        ),
    ] = None,
    expire: Annotated[
        str,
        typer.Option(
            "--expire", metavar="T", help="Hide runs without a new capture for this long."
        ),
    ] = "24h",
    max_series: Annotated[
        int | None,
        typer.Option(
            "--max-series",
            metavar="N",
            min=1,
            help="Drop detail above this many series.  [default: 30000]",
        ),
    ] = None,
    expert_detail: Annotated[
        bool, typer.Option("--expert-detail", help="Tokens of every expert of every layer.")
    ] = False,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="Only this run.")] = None,
    model: ModelName = None,
    sequence_length: Length = None,
    tokens_per_step: AutoTokens = None,
    attention: Counting = "causal",
    recompute: Again = None,
    peak: PeakText = None,
    baseline: Annotated[
        _File,
        typer.Option(
            "--baseline", metavar="FILE", help="Of `baseline save`: what runs are held against."
        ),
    ] = None,
    tls_cert: Annotated[_File, typer.Option("--tls-cert", metavar="FILE", help="PEM.")] = None,
    tls_key: Annotated[_File, typer.Option("--tls-key", metavar="FILE", help="PEM.")] = None,
    client_ca: Annotated[
        _File,
        typer.Option("--client-ca", metavar="FILE", help="Require client certificates of this CA."),
    ] = None,
    textfile: Annotated[
        _File,
        typer.Option("--textfile", metavar="FILE.prom", help="Write once, for node_exporter."),
    ] = None,
) -> None:
    """Serve the newest capture of every run to Prometheus: MFU, masking, experts, slow ranks.

    \b
    Examples:
      npuscope exporter ./store
      npuscope exporter ./store --run pretrain --model qwen3-8b --tokens-per-step 4194304
      npuscope exporter ./store --run pretrain --baseline base.json
      npuscope exporter ./store --host 0.0.0.0 --tls-cert c.pem --tls-key k.pem --client-ca ca.pem
      npuscope exporter ./store --textfile /var/lib/node_exporter/npuscope.prom
    """  # fmt: skip
    from npuscope.analysis.flops.peaks import parse_peaks
    from npuscope.collector.store.mirror import local

    if store is None:
        raise UsageError(
            "no store given: give STORE, the folder that `npuscope watch --store` fills"
        )
    if textfile is not None and textfile.suffix != ".prom":
        raise UsageError(f"--textfile {textfile}: node_exporter reads files named *.prom alone")
    expire_s = seconds(expire, "--expire")
    here = local(store)
    options = replace(
        _options(here, expire_s, max_series, expert_detail),
        run=run,
        use=use_of(model, sequence_length, tokens_per_step, attention, recompute, is_auto=True),
        given_peaks=parse_peaks(peak) if peak is not None else None,
        baseline=_read_side(baseline) if baseline is not None else None,
    )
    protection = _protection(tls_cert, tls_key, client_ca)
    if textfile is not None:
        _require_store(here, run)
        from npuscope.dashboard.exporter.exporter import write_textfile

        write_textfile(options, textfile, _log)
        say(f"written: {textfile}")
        return
    _serve(options, protection, host, port, allowed_host or [])


def _serve(
    options: Options, protection: Protection, host: str, port: int, names: list[str]
) -> None:
    from npuscope.dashboard.app.launch import is_loopback
    from npuscope.dashboard.exporter.exporter import server

    if not is_loopback(host) and protection.client_ca is None:
        _log(
            f"WARNING: anyone who can reach {host} can read the metrics: see --client-ca, or leave"
            " it on 127.0.0.1 behind a reverse proxy (docs/monitoring.md)"
        )
    if not options.store.exists():
        _log(f"{options.store}: no store yet: waiting for `npuscope watch` or `ingest` to make it")
    with (
        server(options, protection, host=host, port=port, say=_log, names=names) as listening,
        _terminable(),
    ):
        scheme = "http" if protection.certificate is None else "https"
        name = f"[{host}]" if ":" in host else host
        _log(f"listening on {scheme}://{name}:{listening.server_port}/metrics")
        with suppress(KeyboardInterrupt):
            listening.serve_forever()
    _end()


def _end() -> NoReturn:
    """End now: Python would wait for a gathering that is under way, which only reads and may take
    longer than a service manager waits."""
    from npuscope.collector.store.store import remove_spilled

    remove_spilled()
    with suppress(OSError, ValueError):  # who read our stderr may have left
        _log("stopped")
        sys.stderr.flush()
    os._exit(0)


def _options(
    store: Path, expire_s: float | None, max_series: int | None, with_experts: bool
) -> Options:
    try:
        from npuscope.dashboard.exporter.exporter import Options
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise UsageError(
            "the exporter needs prometheus_client: pip install 'npuscope[exporter]'"
        ) from None
    from npuscope.dashboard.exporter.snapshot import MAX_SERIES

    return Options(store, expire_s, max_series or MAX_SERIES, with_experts)


def _read_side(baseline: Path) -> Side:
    from npuscope.analysis.compare.baseline import is_baseline, read_baseline

    if not is_baseline(baseline):
        raise UsageError(f"--baseline {baseline}: no file of `npuscope baseline save PATH -o FILE`")
    return read_baseline(baseline)


def _protection(certificate: _File, key: _File, client_ca: _File) -> Protection:
    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key must be given together")
    if client_ca is not None and certificate is None:
        raise UsageError("--client-ca needs --tls-cert and --tls-key")
    from npuscope.dashboard.exporter.exporter import Protection

    return Protection(certificate, key, client_ca)


def _require_store(store: Path, run: str | None) -> None:
    """Raises StoreError where it is none, UsageError where it has not the run asked for."""
    from npuscope.collector.store.manifest import is_store, manifests

    if not is_store(store):
        raise StoreError(f"{store}: not a store: `npuscope ingest PATH --store {store}` makes one")
    if run is not None and run not in (runs := sorted({one.run for one in manifests(store)})):
        raise UsageError(f"no run {run} here: there is {', '.join(runs) or 'none'}")


def seconds(text: str, option: str) -> float | None:
    """Seconds of `30s`, `15m`, `24h`, `7d`; None of `never`. Raises UsageError."""
    if text == "never":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None or float(match[1]) == 0:
        raise UsageError(f"{option} {text}: give a time such as 30m, 24h, 7d, or never")
    return float(match[1]) * _UNITS[match[2]]


@contextmanager
def _terminable() -> Iterator[None]:
    """A service manager's SIGTERM, or a terminal that closes, ends serving as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # started by nohup, to outlive its terminal
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _log(message: str) -> None:
    say(f"npuscope exporter: {one_line(message)}")
