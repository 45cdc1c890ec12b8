"""A throw-away Kafka: what is wanted, what runs, and how it ends.

`start` takes a Docker engine if one runs, else Kafka's jars and Java. A broker is ready when every node answers
ApiVersions and knows every other. Tied brokers (tests, benchmarks) end with the process that started them, however
that ends; the others (`flowshare dev up`) stay until they are ended.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from flowshare.dev.failure import DevFailure
from flowshare.dev.jars import VERSION
from flowshare.dev.probe import nodes_seen
from flowshare.dev.processes import Process

How = Literal["docker", "jars"]

READY_LIMIT_S: Final = 90.0
STOP_LIMIT_S: Final = 30.0
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to start.

    port: of the first node; 0 takes a free one, the other nodes always do. data: a directory that is kept; None is a
    temporary one, removed at the end. settings: broker settings over the single-node ones. heap: of each JVM at most.
    jvm: further options of each JVM (from jars only; an image has Kafka's own).
    """

    version: str = VERSION
    nodes: int = 1
    port: int = 0
    data: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    heap: str = "1g"
    jvm: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A Kafka that runs. addresses: host:port of each node. data: None in a container."""

    version: str
    addresses: tuple[str, ...]
    processes: tuple[Process, ...] = ()
    container: str | None = None
    data: Path | None = None
    keep: bool = False
    children: tuple[subprocess.Popen[bytes], ...] = field(default=(), compare=False, repr=False)

    @property
    def bootstrap(self) -> str:
        """What clients call bootstrap.servers."""
        return ",".join(self.addresses)

    @property
    def url(self) -> str:
        """The broker URL of an App."""
        return f"kafka://{self.bootstrap}"

    @property
    def runs(self) -> bool:
        """Whether all of it is still there (not whether it answers)."""
        if self.container is not None:
            from flowshare.dev.by_docker import container_runs

            return container_runs(self.container)
        return all(one.runs for one in self.processes)

    @property
    def answers(self) -> bool:
        """Whether every node answers and knows all others."""
        return all(nodes_seen(host, port) == len(self.addresses) for host, port in map(_split, self.addresses))

    def end(self) -> None:
        """End it and remove its data, unless that is to be kept. Raises: DevFailure when a process does not go."""
        if self.container is not None:
            from flowshare.dev.by_docker import remove

            remove(self.container)
        # Nodes end before the controller, ZooKeeper last: a node without its controller waits for it when it ends.
        stuck = [one.pid for one in reversed(self.processes) if not one.end(STOP_LIMIT_S if self.keep else 0)]
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(1.0)  # a JVM whose first thread has ended is collected when its other threads have, too
        if stuck:
            raise DevFailure(f"process {stuck[0]} does not end; end it with: kill -9 {stuck[0]}")
        if self.data is not None and not self.keep:
            shutil.rmtree(self.data, ignore_errors=True)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {
            "version": self.version,
            "addresses": self.addresses,
            "processes": [[one.pid, one.birth] for one in self.processes],
            "container": self.container,
            "data": str(self.data) if self.data is not None else None,
            "keep": self.keep,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Broker:
        """The broker that another process started. Raises: KeyError, TypeError, ValueError."""
        return cls(
            version=found["version"],
            addresses=tuple(found["addresses"]),
            processes=tuple(Process(int(pid), str(birth)) for pid, birth in found["processes"]),
            container=found["container"],
            data=Path(found["data"]) if found["data"] is not None else None,
            keep=bool(found["keep"]),
        )


def start(wanted: Wanted, *, tied: bool, how: How | None = None) -> Broker:
    """Start it and wait until it is ready.

    how: None takes Docker for what its image can do (one node, no directory of one's own, Kafka 3.7 or newer) if an
    engine runs, else jars. tied: the broker ends with this process; only jars can be. Raises: DevFailure.
    """
    from flowshare.dev import by_docker, by_jars

    if wanted.nodes < 1:
        raise DevFailure("a Kafka has at least one node")
    if how is None:
        how = "docker" if not tied and by_docker.can(wanted) and by_docker.engine_runs() else "jars"
    return by_docker.start(wanted) if how == "docker" else by_jars.start(wanted, tied=tied)


@contextmanager
def running(wanted: Wanted) -> Iterator[Broker]:
    """A tied broker for the time of a `with`."""
    broker = start(wanted, tied=True)
    try:
        yield broker
    finally:
        broker.end()


def await_ready(broker: Broker, log: Callable[[], str]) -> None:
    """Wait until every node answers. log: the end of the broker's log. Raises: DevFailure."""
    deadline = time.monotonic() + READY_LIMIT_S
    while not broker.answers:
        if not broker.runs:
            raise DevFailure(f"Kafka {broker.version} ended while it started; the end of its log:\n{log()}")
        if time.monotonic() >= deadline:
            raise DevFailure(
                f"Kafka {broker.version} was not ready within {READY_LIMIT_S:.0f} s; the end of its log:\n{log()}"
            )
        time.sleep(_POLL_S)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
