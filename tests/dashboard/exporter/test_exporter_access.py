"""Who may scrape: TLS and client certificates, tried with real clients."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from npuscope.sample_traces.generate import small
from tests.dashboard.app.published_jobs import publish_job
from tests.dashboard.exporter.scraping import export, prometheus, require_prometheus, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "store"
    publish_job(path, small(), "c", published_s=time.time(), tables=("ranks", "steps"))
    return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca, server and client, and a client of a stranger's CA; by openssl."""
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for ca in ("ca", "stranger"):
        openssl("req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-days", "2",
                "-subj", f"/CN={ca}")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name, ca in (("server", "ca"), ("client", "ca"), ("other", "stranger")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj",
                f"/CN={name}")  # fmt: skip
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile",
                "names")  # fmt: skip
    return folder


def fetch(url: str, context: ssl.SSLContext | None = None) -> str:
    """A page, when samples were gathered: until then it does not say whether that went well."""

    def page() -> str | None:
        with urllib.request.urlopen(url, timeout=60, context=context) as answer:
            text: str = answer.read().decode()
        return text if "\nnpuscope_up " in text else None

    return wait_for(page, "samples are gathered")


def test_client_certificates(store: Path, certificates: Path) -> None:
    def client(name: str | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        if name:
            context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
        return context

    files = {name: str(certificates / f"{name}") for name in ("server.pem", "server.key", "ca.pem")}
    words = ["--tls-cert", files["server.pem"], "--tls-key", files["server.key"]]
    words += ["--client-ca", files["ca.pem"]]
    with export(store, *words) as one:
        url = f"https://127.0.0.1:{one.port}/metrics"
        # A client that connects and says nothing keeps nobody out.
        with socket.create_connection(("127.0.0.1", one.port)):
            assert "npuscope_up 1.0" in fetch(url, client("client"))
            for stranger in (None, "other"):
                with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
                    fetch(url, client(stranger))
            with pytest.raises((urllib.error.URLError, ConnectionError)):
                fetch(url.replace("https", "http"))
            assert "npuscope_up 1.0" in fetch(url, client("client"))
        require_prometheus()
        tls = (
            f"scheme: https\n    tls_config: {{ca_file: {files['ca.pem']},"
            f" cert_file: {certificates / 'client.pem'}, key_file: {certificates / 'client.key'}}}"
        )
        with prometheus(store.parent, {"tls": one.port}, more=tls) as server:
            wait_for(lambda: server.query("npuscope_up == 1"), "scraped over mTLS")


def test_other_machines_are_warned_of(store: Path) -> None:
    with export(store, "--host", "0.0.0.0") as one:
        assert any("WARNING: anyone who can reach 0.0.0.0" in line for line in one.said)
    with export(store) as one:
        assert not any("WARNING" in line for line in one.said)
        with pytest.raises(OSError):  # only on this machine's own address
            socket.create_connection((_outer_address(), one.port), timeout=5).close()


def _outer_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but its own")
        address: str = probe.getsockname()[0]
    return address


def test_eight_scrapers_at_once(store: Path) -> None:
    with export(store) as one:
        url = f"http://127.0.0.1:{one.port}/metrics"
        until = time.monotonic() + 60
        while "npuscope_up 1.0" not in fetch(url):  # the first results take a moment
            assert time.monotonic() < until
        found: list[str] = []
        scrapers = [threading.Thread(target=_often(url, found)) for _ in range(8)]
        for scraper in scrapers:
            scraper.start()
        for scraper in scrapers:
            scraper.join(120)
        assert len(found) == 40 and all("npuscope_up 1.0" in text for text in found)
        assert all("npuscope_exporter_refreshes_total 1.0" in text for text in found)


def _often(url: str, found: list[str]) -> Callable[[], None]:
    return lambda: found.extend(fetch(url) for _ in range(5))


def test_written_once_for_node_exporter(store: Path) -> None:
    out = store.parent / "npuscope.prom"
    command = [sys.executable, "-m", "npuscope", "exporter", str(store), "--textfile", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    assert "npuscope_up 1.0" in out.read_text() and out.stat().st_mode & 0o044
    assert [path.name for path in out.parent.iterdir() if "prom." in path.name] == []
    absent = subprocess.run([*command[:4], str(store.parent / "no"), *command[5:]],
                            capture_output=True, text=True)  # fmt: skip
    assert absent.returncode == 3 and "not a store" in absent.stderr
    assert "npuscope_up 1.0" in out.read_text()
    refused = subprocess.run([*command[:5], "--expire", "soon"], capture_output=True, text=True)
    assert refused.returncode == 2 and "--expire soon" in refused.stderr
    nobody = subprocess.run([*command[:6], f"{out}.prom", "--run", "nosuch"],
                            capture_output=True, text=True)  # fmt: skip
    assert nobody.returncode == 2 and "no run nosuch here: there is" in nobody.stderr
    assert not Path(f"{out}.prom").exists()
    text = subprocess.run([*command[:5], "--textfile", "it.txt"], capture_output=True, text=True)
    assert text.returncode == 2 and "named *.prom alone" in text.stderr
    env = {**os.environ, "PYTHONPATH": str(store.parent)}
    (store.parent / "prometheus_client.py").write_text("raise ModuleNotFoundError(name=__name__)")
    bare = subprocess.run(command, capture_output=True, text=True, env=env)
    assert bare.returncode == 2 and "npuscope[exporter]" in bare.stderr
