"""A throw-away Kafka: what is wanted, what runs, and how it ends.

`start` takes a Docker engine if one runs, else Kafka's jars and Java. A broker is ready when every node answers
ApiVersions and knows every other. Tied brokers (tests, benchmarks) end with the process that started them, however
that ends; the others (`flowshare dev up`) stay until they are ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from flowshare.dev import DevFailure, cache_dir
from flowshare.dev.jars import FETCH_LIMIT_S, VERSION, locked
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
class DevBroker:
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
    def from_json(cls, found: Mapping[str, Any]) -> DevBroker:
        """The broker that another process started. Raises: KeyError, TypeError, ValueError."""
        return cls(
            version=found["version"],
            addresses=tuple(found["addresses"]),
            processes=tuple(Process(int(pid), str(birth)) for pid, birth in found["processes"]),
            container=found["container"],
            data=Path(found["data"]) if found["data"] is not None else None,
            keep=bool(found["keep"]),
        )


def start(wanted: Wanted, *, tied: bool, how: How | None = None) -> DevBroker:
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
def running(wanted: Wanted) -> Iterator[DevBroker]:
    """A tied broker for the time of a `with`."""
    broker = start(wanted, tied=True)
    try:
        yield broker
    finally:
        broker.end()


def await_ready(broker: DevBroker, log: Callable[[], str]) -> None:
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


# --- the one of `flowshare dev up`: started once a user, remembered in a file, ended from any other process -----------

PORT: Final = 9092
"""Where it listens when no port is named: Kafka's own."""

STATE_FILE: Final = "dev-broker.json"


def current() -> DevBroker | None:
    """The broker that was started last and not ended; it may have died since (`DevBroker.runs`). Raises: DevFailure."""
    file = _file()
    try:
        return DevBroker.from_json(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DevFailure(
            f"{file} cannot be read ({error}): remove it, and end its broker by hand if one runs"
        ) from error


def up(
    *, version: str | None = None, port: int | None = None, data: Path | None = None, how: How | None = None
) -> tuple[DevBroker, bool]:
    """Start the broker unless it runs. Returns it, and whether it was started now.

    None leaves the choice: version 4.3.1, port 9092, a temporary directory, `start`'s way; or what runs already.
    Raises: DevFailure, also when a broker runs that is not the one that is wanted.
    """
    with _alone():
        found = current()
        if found is not None and found.runs:
            _refuse_another(found, version, port, data)
            return found, False
        if found is not None:
            found.end()  # what a broker that died left behind
        wanted = Wanted(version=version or VERSION, port=PORT if port is None else port, data=data)
        broker = start(wanted, tied=False, how=how)
        _write(broker)
        return broker, True


def down() -> DevBroker | None:
    """End the broker; None when there was none. Only processes that are the very ones that `up` started are ended.

    Raises: DevFailure.
    """
    with _alone():
        found = current()
        if found is not None:
            found.end()
            _file().unlink(missing_ok=True)
        return found


def _refuse_another(found: DevBroker, version: str | None, port: int | None, data: Path | None) -> None:
    """Raises: DevFailure."""
    other = [
        f"{name} {there}, not {asked}"
        for name, there, asked in (
            ("version", found.version, version),
            ("port", int(found.addresses[0].rpartition(":")[2]), port or None),
            ("data", found.data if found.keep else "temporary", data.absolute() if data is not None else None),
        )
        if asked is not None and there != asked
    ]
    if other:
        raise DevFailure(
            f"a broker runs at {found.url} with {'; '.join(other)}: end it first with `flowshare dev down`"
        )


def _write(broker: DevBroker) -> None:
    draft = _file().with_suffix(".new")
    try:
        draft.write_text(json.dumps(broker.as_json()))
        draft.replace(_file())
    except OSError as error:
        broker.end()
        raise DevFailure(f"{draft} cannot be written ({error.strerror}); the broker was ended again") from error


def _file() -> Path:
    return cache_dir() / STATE_FILE


def _alone() -> AbstractContextManager[None]:
    return locked(cache_dir() / "dev-broker.lock", FETCH_LIMIT_S)
