"""A throw-away Kafka in a container: image apache/kafka, by the docker command."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

from flowshare.dev import kafka_settings as settings
from flowshare.dev.broker import Broker, Wanted, await_ready
from flowshare.dev.failure import DevFailure
from flowshare.dev.jars import numbers
from flowshare.dev.probe import HOST, free_ports, is_free

IMAGE: Final = "apache/kafka"
_ASK_LIMIT_S: Final = 10
_PULL_LIMIT_S: Final = 600
_CONTROLLER: Final = "9093"


def engine_runs() -> bool:
    """Whether there is an engine, not just its command: the command names the server's version only if one answers."""
    if shutil.which("docker") is None:
        return False
    try:
        done = _docker("version", "--format", "{{.Server.Version}}", limit_s=_ASK_LIMIT_S)
    except DevFailure:
        return False
    return done.returncode == 0 and bool(done.stdout.strip())


def can(wanted: Wanted) -> bool:
    """Whether the image serves: it has no older versions than 3.7, and its containers keep their data inside."""
    return wanted.nodes == 1 and wanted.data is None and numbers(wanted.version) >= (3, 7, 0)


def image_settings(wanted: Wanted, port: int) -> dict[str, str]:
    """The variables for the image. The port is the same inside and outside, as clients are told it."""
    node = settings.kraft_node(
        1,
        f"0.0.0.0:{port}",  # of the container; the machine publishes it on its loopback only
        f"{HOST}:{port}",
        (f"0.0.0.0:{_CONTROLLER}", f"localhost:{_CONTROLLER}"),
        "/tmp/kraft-combined-logs",  # noqa: S108 the image's own place
    )
    return {
        **settings.environment({**node, **settings.common(wanted.version, wanted.settings)}),
        "KAFKA_HEAP_OPTS": f"-Xmx{wanted.heap}",
    }


def start(wanted: Wanted) -> Broker:
    """Start it and wait until it is ready; the first time the engine fetches the image. Raises: DevFailure."""
    if not can(wanted):
        raise DevFailure(
            "a container has one node, keeps its data inside and is Kafka 3.7 or newer: take jars (--by jars)"
        )
    if not engine_runs():
        raise DevFailure(
            "no Docker engine answers: start it (systemctl start docker, or Docker Desktop), or take jars (--by jars)"
        )
    port = wanted.port or free_ports(1)[0]
    if not is_free(port):
        raise DevFailure(f"port {port} is in use: name another one, or 0 for any that is free")
    command = ["run", "--detach", "--publish", f"{HOST}:{port}:{port}"]
    for name, value in image_settings(wanted, port).items():
        command += ["--env", f"{name}={value}"]
    done = _docker(*command, f"{IMAGE}:{wanted.version}", limit_s=_PULL_LIMIT_S)
    if done.returncode != 0:
        raise DevFailure(
            f"docker could not start {IMAGE}:{wanted.version} (or take jars: --by jars); it says: {done.stderr.strip()}"
        )
    container = done.stdout.split()[-1]
    broker = Broker(version=wanted.version, addresses=(f"{HOST}:{port}",), container=container)
    try:
        await_ready(broker, lambda: _docker("logs", "--tail", "20", container).stdout)
    except BaseException:
        broker.end()
        raise
    return broker


def container_runs(container: str) -> bool:
    """Whether the container with this id runs. Raises: DevFailure when docker does not answer."""
    return _docker("inspect", "--format", "{{.State.Running}}", container).stdout.strip() == "true"


def remove(container: str) -> None:
    """End and remove the container with this id; one that is not there is fine. Raises: DevFailure."""
    done = _docker("rm", "--force", "--volumes", container)
    if done.returncode != 0 and "No such container" not in done.stderr:
        raise DevFailure(f"docker could not remove container {container[:12]}; it says: {done.stderr.strip()}")


def _docker(*args: str, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["docker", *args], capture_output=True, text=True, check=False, timeout=limit_s, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DevFailure(f"docker {args[0]} did not answer within {limit_s:.0f} s: is its engine well?") from error
