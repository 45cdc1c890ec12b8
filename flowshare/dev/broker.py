"""A throw-away Kafka: what is wanted, what runs, and how it ends.

`start` takes a Docker engine if one runs, else Kafka's jars and Java. A broker is ready when every node answers
ApiVersions and knows every other. Tied brokers (tests, benchmarks) end with the process that started them, however
that ends; the others (`flowshare dev up`) stay until they are ended.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
logger = logging.getLogger("flowshare.dev")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Settings of a Kafka to start.

    port: of the first node; 0: a free port. The other nodes always take free ports. data: a directory that is kept;
    None: a temporary directory, removed at the end. settings: broker settings, which override the single-node settings.
    heap: largest heap of each JVM. jvm: further options of each JVM (from jars only; an image has Kafka's own).
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
        """Addresses for bootstrap.servers of clients."""
        return ",".join(self.addresses)

    @property
    def url(self) -> str:
        """The broker URL of an App."""
        return f"kafka://{self.bootstrap}"

    @property
    def port(self) -> int:
        """Of the first node."""
        return _split(self.addresses[0])[1]

    @property
    def runs(self) -> bool:
        """True if all nodes are still there, even if they do not answer."""
        if self.container is not None:
            from flowshare.dev.by_docker import container_runs

            return container_runs(self.container)
        return all(one.runs for one in self.processes)

    @property
    def answers(self) -> bool:
        """True if every node answers and knows all others."""
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
        """Return the broker in the form that `from_json` takes."""
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
        """The broker that another process started. Raises: LookupError, TypeError, ValueError."""
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


# --- those of `flowshare dev up`: one a port, each remembered in a file, ended from any other process -----------------

PORT: Final = 9092
"""Where one listens when no port is named: Kafka's own."""

STATE_NAME: Final = "dev-broker"


class Several(DevFailure):
    """Several brokers run, and none was named."""

    def __init__(self, brokers: Sequence[DevBroker]) -> None:
        listed = ", ".join(one.url for one in brokers)
        super().__init__(f"{len(brokers)} brokers run: {listed}; name one with --port")


def current(port: int | None = None) -> DevBroker | None:
    """The broker that was started at `port` and not ended, None: the only one; it may have died (`DevBroker.runs`).

    Raises: DevFailure, Several.
    """
    found = [one for one in _known().values() if port is None or one.port == port]
    return _only([one for one in found if one.runs]) or (found[-1] if found else None)


def up(
    *,
    version: str | None = None,
    port: int | None = None,
    data: Path | None = None,
    how: How | None = None,
    starting: Callable[[], object] = lambda: None,
) -> tuple[DevBroker, bool]:
    """Start the broker of a port unless it runs. Returns it, and whether it was started now.

    None leaves the choice: version 4.3.1, a temporary directory, `start`'s way, or what runs already; of ports 9092, or
    that of the only one that runs. Port 0 starts another one at a free port. starting: called before one is started.
    Raises: DevFailure, also when a broker runs that is not the one that is wanted; Several.
    """
    with _alone():
        there = _without_dead(_known(), needed=PORT if port is None else port)
        found = _meant(there, port)
        if found is not None:
            _refuse_another(found, version, data)
            return found, False
        _refuse_held(there, data)
        wanted = Wanted(version=version or VERSION, port=PORT if port is None else port, data=data)
        starting()
        broker = start(wanted, tied=False, how=how)
        _write(broker)
        return broker, True


def down(port: int | None = None) -> DevBroker | None:
    """End the broker at `port`, None: the only one. None when there was none.

    Only processes that are the very ones that `up` started are ended. Raises: DevFailure, Several.
    """
    with _alone():
        known = {file: one for file, one in _known().items() if port is None or one.port == port}
        left = _without_dead(known)
        found = _only(left)
        for file in (file for file, one in known.items() if one is found):
            _end(file, known[file])
        return found or next(reversed(known.values()), None)


def _meant(there: Sequence[DevBroker], port: int | None) -> DevBroker | None:
    """Which of those that run is asked for; None: one is to be started. Raises: Several."""
    if port is not None:
        return next((one for one in there if one.port == port), None)
    return next((one for one in there if one.port == PORT), None) or _only(there)


def _only(brokers: Sequence[DevBroker]) -> DevBroker | None:
    """Raises: Several."""
    if len(brokers) > 1:
        raise Several(brokers)
    return brokers[0] if brokers else None


def _refuse_another(found: DevBroker, version: str | None, data: Path | None) -> None:
    """Raises: DevFailure."""
    other = [
        f"{name} {there}, not {asked}"
        for name, there, asked in (
            ("version", found.version, version),
            ("data", found.data if found.keep else "temporary", data.absolute() if data is not None else None),
        )
        if asked is not None and there != asked
    ]
    if other:
        raise DevFailure(
            f"a broker runs at {found.url} with {'; '.join(other)}: end it first with "
            f"`flowshare dev down --port {found.port}`, or name another port with --port"
        )


def _refuse_held(there: Sequence[DevBroker], data: Path | None) -> None:
    """Raises: DevFailure when a broker at another port has this data."""
    for one in there:
        if data is not None and one.keep and one.data == data.absolute():
            raise DevFailure(
                f"the broker at {one.url} has its data in {data}: name another directory, or end it first with "
                f"`flowshare dev down --port {one.port}`"
            )


def _known() -> dict[Path, DevBroker]:
    """All that were started and not ended, by their files, in the order of their ports. Raises: DevFailure."""
    found: dict[Path, DevBroker] = {}
    ports: dict[Path, int] = {}
    for file in cache_dir().glob(f"{STATE_NAME}*.json"):
        try:
            found[file] = DevBroker.from_json(json.loads(file.read_bytes()))
            ports[file] = found[file].port
        except FileNotFoundError:  # it was ended meanwhile
            continue
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DevFailure(
                f"{file} cannot be read ({error}): remove it, and end its broker by hand if one runs"
            ) from error
    return {file: found[file] for file in sorted(found, key=lambda file: ports[file])}


def _without_dead(known: Mapping[Path, DevBroker], needed: int | None = None) -> list[DevBroker]:
    """Those that run; what the others left behind is removed.

    needed: of a broker at another port that cannot be asked, or ended, a warning is logged; None: all are needed.
    Raises: DevFailure.
    """
    left = []
    for file, one in known.items():
        try:
            if one.runs:
                left.append(one)
            else:
                _end(file, one)
        except DevFailure as error:
            if needed in (None, one.port):
                raise
            logger.warning("the broker at %s is left as it is: %s", one.url, error)
    return left


def _end(file: Path, broker: DevBroker) -> None:
    """Raises: DevFailure."""
    broker.end()
    file.unlink(missing_ok=True)


def _write(broker: DevBroker) -> None:
    file = cache_dir() / f"{STATE_NAME}-{broker.port}.json"
    draft = file.with_suffix(".new")
    try:
        draft.write_text(json.dumps(broker.as_json()))
        draft.replace(file)
    except OSError as error:
        broker.end()
        raise DevFailure(f"{draft} cannot be written ({error.strerror}); the broker was ended again") from error


def _alone() -> AbstractContextManager[None]:
    return locked(cache_dir() / f"{STATE_NAME}.lock", FETCH_LIMIT_S)
