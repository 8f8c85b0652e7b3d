"""What is shipped for Prometheus, Grafana and containers: parsed, checked, fitting the commands."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from npuscope.cli import app
from npuscope.dashboard.app.launch import DEFAULT_PORT
from npuscope.dashboard.exporter.exporter import exporter_metrics
from npuscope.dashboard.exporter.gauges import GAUGES
from npuscope.dashboard.exporter.newest_results import Status
from npuscope.dashboard.exporter.snapshot import ShownSeries, Snapshot, take_snapshot
from tests.dashboard.exporter.scraping import promtool, require_prometheus

REPOSITORY = Path(__file__).resolve().parents[3]
DEPLOY, DASHBOARD = REPOSITORY / "deploy", REPOSITORY / "dashboard"
RULES = DASHBOARD / "alerts" / "npuscope.rules.yml"
_NAME = re.compile(r"npuscope_[a-z_]+")

pytestmark = pytest.mark.slow


def parse(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def own_names() -> set[str]:
    named = [*exporter_metrics(Status(is_good=True), ShownSeries({}, {}))]
    own = {f"{one.name}_total" if one.type == "counter" else one.name for one in named}
    exporter = (DASHBOARD / "exporter" / "exporter.py").read_text()
    watch = set(re.findall(r'"(npuscope_watch_[a-z_]+)"', exporter))
    assert sum(name.endswith("_total") for name in watch) == 6
    return own | watch


def expressions() -> Iterator[tuple[str, str]]:
    """Of rules and dashboards: where it stands, PromQL."""
    for group in parse(RULES)["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for path in sorted((DASHBOARD / "grafana").glob("*.json")):
        told = json.loads(path.read_text())
        for panel in told["panels"]:
            for target in panel["targets"]:
                yield f"{path.name}: {panel['title']}", target["expr"]
        for variable in told["templating"]["list"]:
            if variable["type"] == "query":
                yield f"{path.name}: ${variable['name']}", variable["query"]["query"]


def test_rules_are_sound() -> None:
    require_prometheus()
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    done = promtool("test", "rules", str(RULES.parent / "npuscope_test.yml"))
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_rules_say_what_to_look_at_next() -> None:
    tested = (RULES.parent / "npuscope_test.yml").read_text()
    rules = [rule for group in parse(RULES)["groups"] for rule in group["rules"]]
    for rule in rules:
        told = rule["annotations"]
        assert set(told) == {"summary", "description"} and len(told["description"]) > 100
        assert rule["alert"] in tested
    words = " ".join(rule["annotations"]["description"] for rule in rules)
    commands = {*_commands(), "compact"}
    for named in re.findall(r"`npuscope (\w+)", words):
        assert named in commands, named


def test_only_metrics_that_there_are() -> None:
    known = {gauge.name for gauge in GAUGES} | own_names()
    for place, expr in expressions():
        for name in _NAME.findall(expr):
            assert name in known, f"{place}: {name}"
    documented = (REPOSITORY / "docs" / "monitoring.md").read_text()
    for name in _NAME.findall(documented):
        assert name in known or name == "npuscope_test", name  # a file
    for gauge in GAUGES:
        assert f"`{gauge.name}" in documented, gauge.name


def test_dashboards_are_as_they_are_built() -> None:
    pytest.importorskip("grafana_foundation_sdk")
    spec = importlib.util.spec_from_file_location("build", DASHBOARD / "grafana" / "build.py")
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    written = {path.name: path.read_text() for path in (DASHBOARD / "grafana").glob("*.json")}
    # Of some ranks nothing tells by kind what is exposed: kinds add up to less than there is.
    assert "sum by (run) (npuscope_exposed_seconds" not in written["overview.json"]
    assert dict(build.dashboards()) == written
    for text in written.values():
        told = json.loads(text)
        assert [one["name"] for one in told["templating"]["list"]] == ["source", "run", "rank"]
        for panel in told["panels"]:
            place = panel["gridPos"]
            assert place.get("x", 0) + place["w"] <= 24 and panel["description"]


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = group.commands
    return found


def taken_by_the_cli(words: list[str]) -> None:
    """Parse a command line as npuscope would, without running it."""
    name, *rest = words
    command = _commands()[name]
    command.make_context(name, list(rest), resilient_parsing=False).close()


def test_containers(tmp_path: Path) -> None:
    compose = parse(DEPLOY / "compose.yaml")
    services = compose["services"]
    assert set(services) == {"watch", "exporter", "dashboard", "prometheus", "grafana"}
    for name in ("watch", "exporter", "dashboard"):
        assert services[name]["command"][0] == name
        taken_by_the_cli(services[name]["command"])
        assert "store:/store" in services[name]["volumes"]
    for service in services.values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:")
    targets = parse(DEPLOY / "prometheus.yml")["scrape_configs"][0]
    words = services["exporter"]["command"]
    port = words[words.index("--port") + 1]
    assert targets["static_configs"][0]["targets"] == [f"exporter:{port}"]
    assert targets["job_name"] == "npuscope"  # as the alert rules expect
    for path in (DEPLOY / "grafana").rglob("*.yaml"):
        assert parse(path)["apiVersion"] == 1
    require_prometheus()
    for path in (DEPLOY / "prometheus.yml", RULES):
        (tmp_path / path.name).write_text(path.read_text())
    done = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert done.returncode == 0, done.stderr.decode()


def test_the_image() -> None:
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    words = [line.split(None, 1) for line in text.splitlines() if line and line[0] != "#"]
    known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in words} == known
    bases = [rest.split()[0] for word, rest in words if word == "FROM"]
    assert len(set(bases)) == 1 and re.fullmatch(r"python:3\.\d+-slim", bases[0])
    copied = [rest.split() for word, rest in words if word == "COPY" and "--from" not in rest]
    for *sources, _ in copied:
        for source in sources:
            assert (REPOSITORY / source).exists(), source
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line[1:] for line in ignored if line.startswith("!")}
    assert kept == {source for *sources, _ in copied for source in sources}
    # What the package needs to be built: the rooms that its links point at, too.
    links = [path for path in (REPOSITORY / "npuscope").iterdir() if path.is_symlink()]
    assert {path.readlink().name for path in links} <= kept
    users = [rest for word, rest in words if word == "USER"]
    assert users and users[-1] not in ("root", "0")
    assert json.loads(dict(words)["ENTRYPOINT"]) == ["npuscope"]
    for script in (rest for word, rest in words if word == "RUN"):
        subprocess.run(["sh", "-n", "-c", script], check=True)


def test_services() -> None:
    units = sorted((DEPLOY / "systemd").glob("*.service"))
    assert len(units) == 3
    for path in units:
        lines = [line for line in path.read_text().splitlines() if "=" in line]
        told = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        program, *words = shlex.split(told["ExecStart"])
        assert program.endswith("/npuscope") and path.stem == f"npuscope-{words[0]}"
        taken_by_the_cli(words)
        assert told["User"] == "npuscope" and told["Restart"] == "always"
    # The processes that read are not to be ended beside the watcher, which waits for them.
    assert "KillMode=mixed" in (DEPLOY / "systemd" / "npuscope-watch.service").read_text()


def directives(text: str) -> Iterator[tuple[str, ...]]:
    """Of an nginx configuration: each with what stands around it. Raises ValueError."""
    words, around = list[str](), list[str]()
    for token in re.findall(r'"[^"]*"|[{};]|[^\s{};]+', re.sub(r"#.*", "", text)):
        if token not in ("{", "}", ";"):
            words.append(token)
        elif token == "}" and around and not words:
            around.pop()
        elif token != "}" and words:
            yield (*around, *words)
            around += [" ".join(words)] * (token == "{")
            words = []
        else:
            raise ValueError(f"{token} after {words}")
    if words or around:
        raise ValueError(f"the end within {around} {words}")


@pytest.mark.parametrize(("page", "command"), [("monitoring", "exporter"), ("dashboard", None)])
def test_the_proxy_in_front_asks_for_passwords_and_reaches_only_us(
    page: str, command: str | None
) -> None:
    (text,) = re.findall(
        r"```nginx\n(.*?)```", (REPOSITORY / "docs" / f"{page}.md").read_text(), re.DOTALL
    )
    found = list(directives(text))
    assert {"listen", "ssl_certificate", "ssl_certificate_key"} <= {
        one[1] for one in found if len(one) > 1
    }
    (proxied,) = [one for one in found if "proxy_pass" in one]
    place = proxied[:-2]
    assert {one[-2] for one in found if one[:-2] == place and "auth_basic" in one[-2]} == {
        "auth_basic", "auth_basic_user_file",
    }  # fmt: skip
    port = DEFAULT_PORT
    if command is not None:
        (port,) = [one.default for one in _commands()[command].params if one.name == "port"]
    assert proxied[-1] == f"http://127.0.0.1:{port}"
    with pytest.raises(ValueError):
        list(directives(text.replace("}", "", 1)))


def test_nothing_without_a_store(tmp_path: Path) -> None:
    (tmp_path / "npuscope-store.json").write_text('{"layout": 2}')
    empty = take_snapshot(tmp_path, now_s=0.0)
    assert isinstance(empty, Snapshot) and not any(empty.samples.values())
