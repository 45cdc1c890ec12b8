"""The manifests and Dockerfiles: what they name exists, and their numbers fit together.

Neither Kubernetes nor a container engine takes part: this reads the files and asks the command line and the pages.
"""

from __future__ import annotations

import json
import re
import shlex
from importlib.metadata import requires
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

from flowshare.backend.base import NATIVE
from flowshare.cli import cli
from flowshare.clock import LoopClock
from flowshare.ops.load import LoadWatch
from flowshare.ops.scaling import read_seconds
from flowshare.web.server import WebServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "kubernetes"
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}


def manifests(name: str) -> dict[str, Any]:
    """The file's objects by kind."""
    found = list(yaml.safe_load_all((EXAMPLE / name).read_text()))
    return {one["kind"]: one for one in found}


def pod() -> dict[str, Any]:
    return manifests("deployment.yaml")["Deployment"]["spec"]["template"]["spec"]


def container() -> dict[str, Any]:
    [found] = pod()["containers"]
    return found


def parsed(arguments: list[str]) -> click.Context:
    """The command's context; an unknown command, option or value is an error."""
    name, *rest = arguments
    context = click.Context(cli, info_name="flowshare")
    command = cli.get_command(context, name)
    assert command is not None, f"there is no command {name}"
    return command.make_context(name, rest, parent=context)


def port_named(name: str) -> int:
    return next(port["containerPort"] for port in container()["ports"] if port["name"] == name)


class Nobody:
    """An app without agents."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.runtimes: dict[str, Any] = {}
        self.admin: Any = None
        self.backend: Any = None


def test_the_worker_is_started_with_options_that_exist_and_listens_where_it_is_asked():
    options = parsed(container()["args"]).params

    assert options["web_port"] == port_named("pages")
    assert options["web_bind"] == "0.0.0.0"
    assert options["app_path"] == "shop:app"


@pytest.mark.parametrize("probe", ["readinessProbe", "livenessProbe", "startupProbe"])
def test_probes_ask_pages_that_exist(probe):
    asked = container()[probe]["httpGet"]

    assert asked["path"] in WebServer(Nobody())._routes()
    assert asked["port"] == "pages"


def test_the_hook_before_the_stop_drains_the_worker_and_there_is_time_for_it():
    program, *arguments = container()["lifecycle"]["preStop"]["exec"]["command"]
    options = parsed(arguments).params

    assert program == "flowshare"
    assert options["worker"] == f"127.0.0.1:{port_named('pages')}"
    drain_s = parsed(container()["args"]).params["drain_timeout"]
    assert drain_s + 5 < pod()["terminationGracePeriodSeconds"] < options["wait_s"]


def test_prometheus_and_the_service_find_the_pages():
    deployment, service = (manifests("deployment.yaml")[kind] for kind in ("Deployment", "Service"))
    template = deployment["spec"]["template"]["metadata"]

    assert template["annotations"]["prometheus.io/path"] in WebServer(Nobody())._routes()
    assert template["annotations"]["prometheus.io/port"] == str(port_named("pages"))
    assert "$(POD_IP)" in parsed(container()["args"]).params["web_host"], "it scrapes by the pod's address"
    assert "POD_IP" in [one["name"] for one in container()["env"]]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == template["labels"]
    assert service["spec"]["ports"][0]["targetPort"] == "pages"


def test_keda_asks_the_service_for_a_number_that_is_there():
    spec = manifests("scaledobject.yaml")["ScaledObject"]["spec"]
    deployment, service = (manifests("deployment.yaml")[kind] for kind in ("Deployment", "Service"))
    [trigger] = spec["triggers"]
    url = urlsplit(trigger["metadata"]["url"])

    assert spec["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "applying it again would undo what KEDA decided"
    assert spec["minReplicaCount"] >= 1, "without a worker nobody answers"
    assert url.hostname is not None
    assert url.hostname.split(".")[0] == service["metadata"]["name"]
    assert url.port == service["spec"]["ports"][0]["port"]
    assert url.path in WebServer(Nobody())._routes()
    assert url.hostname in parsed(container()["args"]).params["web_host"], "a foreign host gets no answer"
    assert read_seconds(url.query.removeprefix("target_age=")) == 10
    assert trigger["type"] == "metrics-api"
    value = report()[trigger["metadata"]["valueLocation"]]
    assert type(value) is int, "KEDA reads a whole number"
    assert (trigger["metadata"]["targetValue"], trigger["metricType"]) == ("1", "AverageValue")


def report() -> dict[str, Any]:
    return json.loads(json.dumps(LoadWatch({}, None, NATIVE, clock=LoopClock()).report()))


@pytest.mark.slow
def test_the_app_is_there_and_fits_the_drain(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from flowshare.agents.app.loading import load_app

    app = load_app(parsed(container()["args"]).params["app_path"])

    assert app.drain_timeout_s <= parsed(container()["args"]).params["drain_timeout"]


# --- Dockerfiles ------------------------------------------------------------------------------------------------------


def steps(file: Path) -> list[tuple[str, str]]:
    """Instructions with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


@pytest.mark.parametrize("file", [ROOT / "Dockerfile", EXAMPLE / "Dockerfile"], ids=["flowshare", "shop"])
def test_a_dockerfile_has_known_instructions_and_copies_what_is_there(file: Path):
    found = steps(file)

    assert found[0][0] == "FROM"
    assert {word for word, _ in found} <= INSTRUCTIONS
    for word, rest in found:
        if word in ("CMD", "ENTRYPOINT"):
            assert isinstance(json.loads(rest), list), "a list: the process itself is to get the signals"
        if word == "COPY" and not rest.startswith("--from="):
            *sources, _ = shlex.split(rest)
            assert [source for source in sources if not (file.parent / source).exists()] == []


def test_the_image_is_built_in_a_stage_of_its_own_and_runs_as_nobody_in_particular():
    found = steps(ROOT / "Dockerfile")
    stages = [rest for word, rest in found if word == "FROM"]
    last = found[max(index for index, (word, _) in enumerate(found) if word == "FROM") :]

    assert len(stages) == 2
    assert stages[0].endswith(" AS build")
    assert any(word == "COPY" and rest.startswith("--from=build ") for word, rest in last)
    [user] = [rest for word, rest in last if word == "USER"]
    assert user == "10001:10001", "a number: Kubernetes' runAsNonRoot reads no names"
    assert dict(last)["ENTRYPOINT"] == '["flowshare"]'


def test_whatever_is_installed_into_the_image_is_held_against_its_hash_and_is_what_the_tests_have():
    def locked(file: str) -> set[str]:
        return set(re.split(r"^(?=\w)", (ROOT / "requirements" / file).read_text(), flags=re.MULTILINE)) - {""}

    installs = [rest for word, rest in steps(ROOT / "Dockerfile") if word == "RUN" and " install " in rest]
    image = locked("image.txt")
    needed = [re.match(r"[\w-]+", one) for one in requires("flowshare") or () if "extra ==" not in one]

    assert all(("--require-hashes" in one or "--no-build-isolation ." in one) for one in installs if "pip" in one)
    assert all("--no-deps" in one for one in installs if "pip" in one)
    assert image <= locked("lock.txt")
    assert all("--hash=sha256:" in one for one in image)
    assert {name[0] for name in needed if name} <= {one.partition("==")[0] for one in image}


def test_the_apps_image_stands_on_flowshares_and_is_the_one_that_is_deployed():
    text = (EXAMPLE / "Dockerfile").read_text()
    base = dict(steps(EXAMPLE / "Dockerfile"))["FROM"]

    assert f"docker build -t {base} ." in text
    assert f"docker build -t {base} ." in (ROOT / "Dockerfile").read_text()
    assert f"docker build -t {container()['image']} examples/kubernetes" in text
    parsed(json.loads(dict(steps(EXAMPLE / "Dockerfile"))["CMD"]))


def test_what_is_copied_is_not_ignored():
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source
        for word, rest in steps(ROOT / "Dockerfile")
        if word == "COPY" and not rest.startswith("--from=")
        for source in shlex.split(rest)[:-1]
    ]

    assert sorted(kept) == sorted(copied)
