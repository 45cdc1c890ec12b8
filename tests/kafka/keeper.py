"""The process that holds a Kafka of a test run.

`python -m tests.kafka.keeper --owner PID --nodes N --version V --state FILE`

It starts the broker, writes its addresses to FILE, and ends it on SIGTERM or when the process that owns the run is
gone, however that ended. The broker itself is tied to this process (by the system for jars, by testcontainers' reaper
for a container), so that nothing stays behind even if this one is killed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flowshare.dev import DevFailure, by_docker
from flowshare.dev.broker import DevBroker, Wanted, await_ready, running
from flowshare.dev.kafka_settings import share_groups
from flowshare.dev.probe import HOST, free_ports
from flowshare.dev.processes import process

POLL_S = 0.2

SETTINGS_OF_ALL = {
    # Bounds that let a test see in seconds what takes a minute by Kafka's own; the defaults between them stay Kafka's.
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
SETTINGS = {
    **SETTINGS_OF_ALL,
    "group.share.min.heartbeat.interval.ms": "100",
    "group.share.min.session.timeout.ms": "1000",
    # The tools for ACLs want an authorizer; everybody may do everything under this one.
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@contextmanager
def broker(nodes: int, version: str) -> Iterator[DevBroker]:
    """A container where an engine runs and one node is enough, else jars. Raises: DevFailure."""
    settings = SETTINGS if share_groups(version) else SETTINGS_OF_ALL
    wanted = Wanted(version=version, nodes=nodes, heap="512m", settings=settings)
    if by_docker.can(wanted) and by_docker.engine_runs():
        with in_container(wanted) as found:
            yield found
    else:
        with running(wanted) as found:
            yield found


@contextmanager
def in_container(wanted: Wanted) -> Iterator[DevBroker]:
    from testcontainers.core.container import DockerContainer

    (port,) = free_ports(1)
    container = DockerContainer(f"{by_docker.IMAGE}:{wanted.version}")
    container.ports[f"{port}/tcp"] = (HOST, port)  # with_bind_ports takes no address, and binds to all of the machine's
    for name, value in by_docker.image_settings(wanted, port).items():
        container.with_env(name, value)
    with container:
        found = DevBroker(
            version=wanted.version, addresses=(f"{HOST}:{port}",), container=container.get_wrapped_container().id
        )
        await_ready(found, lambda: b"".join(container.get_logs()).decode(errors="replace")[-4000:])
        yield found


def hold(owner: int, nodes: int, version: str, state: Path) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    holder = process(owner)
    with broker(nodes, version) as found:
        draft = state.with_suffix(".new")
        draft.write_text(json.dumps(found.as_json()))
        draft.replace(state)
        while holder is not None and holder.runs and not ended.wait(POLL_S):
            pass
    if not ended.is_set():
        shutil.rmtree(state.parent, ignore_errors=True)  # nobody else is left to do it


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--state", type=Path, required=True)
    options = parser.parse_args()
    try:
        hold(options.owner, options.nodes, options.version, options.state)
    except DevFailure as error:
        sys.exit(str(error))
