"""A throw-away Kafka in a container: image apache/kafka, by the docker command."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from flowshare.dev import DevFailure
from flowshare.dev import kafka_settings as settings
from flowshare.dev.broker import DevBroker, Wanted, await_ready
from flowshare.dev.jars import numbers
from flowshare.dev.probe import HOST, free_ports, is_free
from flowshare.dev.processes import said

IMAGE: Final = "apache/kafka"
_ASK_LIMIT_S: Final = 10
_PULL_LIMIT_S: Final = 600
_CONTROLLER: Final = (9093, 9094)
"""Where the controller listens inside: the first of these that is not the broker's own port."""
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1", None})


def engine_runs() -> bool:
    """True if an engine of this machine answers: ports that another machine's engine publishes cannot be reached."""
    return _answers() and _elsewhere() is None


def can(wanted: Wanted) -> bool:
    """True if the image serves: it has no versions older than 3.7, and its containers keep their data inside."""
    return wanted.nodes == 1 and wanted.data is None and numbers(wanted.version) >= (3, 7, 0)


def image_settings(wanted: Wanted, port: int) -> dict[str, str]:
    """The variables for the image. The port is the same inside and outside, as clients are told it."""
    controller = f"{HOST}:{next(one for one in _CONTROLLER if one != port)}"  # nobody outside asks it
    node = settings.kraft_node(
        1,
        f"0.0.0.0:{port}",  # of the container; the machine publishes it on its loopback only
        f"{HOST}:{port}",
        (controller, controller),
        "/tmp/kraft-combined-logs",  # noqa: S108 the image's own place
    )
    return {
        **settings.environment({**node, **settings.common(wanted.version, wanted.settings)}),
        "KAFKA_HEAP_OPTS": f"-Xmx{wanted.heap}",
    }


def start(wanted: Wanted) -> DevBroker:
    """Start it and wait until it is ready; the first time the engine fetches the image. Raises: DevFailure."""
    if not can(wanted):
        raise DevFailure(
            "a container has one node, keeps its data inside and is Kafka 3.7 or newer: take jars (--by jars)"
        )
    if not _answers():
        raise DevFailure(
            "no Docker engine answers: start it (systemctl start docker, or Docker Desktop), or take jars (--by jars)"
        )
    elsewhere = _elsewhere()
    if elsewhere is not None:
        raise DevFailure(
            f"the Docker engine is at {elsewhere}, and a broker there is not to be reached from here: "
            "name one of this machine (DOCKER_HOST, docker context use), or take jars (--by jars)"
        )
    port = wanted.port or free_ports(1)[0]
    if not is_free(port):
        raise DevFailure(f"port {port} is in use: name another one, or 0 for any that is free")
    name = f"flowshare-kafka-{uuid.uuid4().hex[:12]}"
    try:
        return _run(wanted, port, name)
    except BaseException:
        # A container that was made is there even if it could not be started, or nobody waited for it.
        with suppress(DevFailure):
            remove(name)
        raise


def _run(wanted: Wanted, port: int, name: str) -> DevBroker:
    command = ["run", "--detach", "--name", name, "--publish", f"{HOST}:{port}:{port}"]
    for variable, value in image_settings(wanted, port).items():
        command += ["--env", f"{variable}={value}"]
    done = _docker(*command, f"{IMAGE}:{wanted.version}", limit_s=_PULL_LIMIT_S)
    if done.returncode != 0:
        raise DevFailure(
            f"docker could not start {IMAGE}:{wanted.version} (or take jars: --by jars); it says: {done.stderr.strip()}"
        )
    container = done.stdout.split()[-1]
    broker = DevBroker(version=wanted.version, addresses=(f"{HOST}:{port}",), container=container)
    await_ready(broker, lambda: _log(container))
    return broker


def container_runs(container: str) -> bool:
    """True if the container with this id runs. Raises: DevFailure when docker does not answer."""
    return _docker("inspect", "--format", "{{.State.Running}}", container).stdout.strip() == "true"


def remove(container: str) -> None:
    """End and remove the container with this id; one that is not there is fine. Raises: DevFailure."""
    done = _docker("rm", "--force", "--volumes", container)
    if done.returncode != 0 and "No such container" not in done.stderr:
        raise DevFailure(f"docker could not remove container {container[:12]}; it says: {done.stderr.strip()}")


def _log(container: str) -> str:
    """The end of both its outputs: Java tells on the second why it cannot start."""
    done = _docker("logs", "--tail", "20", container)
    return done.stdout + done.stderr


def _answers() -> bool:
    """True if there is an engine, not just its command: the command names the server's version only if an engine
    answers."""
    if shutil.which("docker") is None:
        return False
    try:
        done = _docker("version", "--format", "{{.Server.Version}}", limit_s=_ASK_LIMIT_S)
    except DevFailure:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def _elsewhere() -> str | None:
    """The address of an engine on another machine; None for one here, or when the command has no contexts."""
    try:
        done = _docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}", limit_s=_ASK_LIMIT_S)
    except DevFailure:
        return None
    address = done.stdout.strip()
    return None if urlsplit(address).hostname in _LOCAL else address


def _docker(*args: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    try:
        return said(["docker", *args], limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevFailure(f"docker {args[0]} did not answer within {limit_s:.0f} s: is its engine well?") from error
