"""The fixtures `kafka` and `kafka_pair`: one real broker (or two) for the whole run, shared by all workers of xdist.

A test that takes a broker's life asks for `mortal_pair` instead: two nodes of its own. One with `each_kafka` runs on
every version of Kafka that a fleet of workers is said to run on.

`kafka` is the broker that FLOWSHARE_TEST_KAFKA names (host:port,…), else one in a container if a Docker engine runs,
else one from jars. It is started by the first test that asks for it. Where it cannot be had (no Java, no Maven), the
tests are skipped; in CI (the variable CI is "true") they fail.

Topics and groups of all tests meet on it: take names from `unique`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from flowshare.dev import DevFailure, by_docker
from flowshare.dev.broker import DevBroker, Wanted, running
from flowshare.dev.jars import VERSION, locked
from flowshare.dev.java import java, javac, maven
from flowshare.dev.processes import Process, process
from tests.jvm import QUICK_JVM
from tests.waiting import blocking_until

ROOT = Path(__file__).resolve().parents[2]
RUN, NAMED = "FLOWSHARE_TEST_RUN", "FLOWSHARE_TEST_KAFKA"
START_LIMIT_S = 900.0
CORES = frozenset(
    ROOT / "tests" / name
    for name in ("share", "groups", "cooperative", "transactions", "slots", "kmq", "protocol", "client/session")
)
BROKERS = ("kafka", "kafka_pair", "kafka_with_letters", "mortal_pair", "each_kafka")
REAL = frozenset({*BROKERS, "browser"})
"""Who asks for one of these fixtures is a test of `make test-real`."""
OLD_VERSIONS = ("3.9.1", "2.8.2")
"""The last minor version before Kafka 4, and the oldest; neither has share groups."""
LETTERS_VERSION = "4.4.0"

REPLICATED = {
    # Every partition, Kafka's own topics' too, is on both nodes, and one of them is enough to go on.
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "share.coordinator.state.topic.replication.factor": "2",
    "min.insync.replicas": "1",
    # A node that died is given up after 9 s by Kafka's own; nothing here needs to wait that long.
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
}

_children: list[subprocess.Popen[bytes]] = []
_may_start = False
"""True if the test that begins is one of `make test-real`."""


# --- which tests run ----------------------------------------------------------------------------------------------


def mark(items: list[pytest.Item]) -> None:
    """Whose coverage is held is `core`. What needs a real broker, a browser or Java is `real`; the time that a broker
    takes to start is bounded by its own limit.

    A test that asks for a broker by `getfixturevalue` says so itself (`shared` looks).
    """
    for item in items:
        if not REAL.isdisjoint(getattr(item, "fixturenames", ())) or item.get_closest_marker("java"):
            item.add_marker(pytest.mark.real)
        if item.path.parent in CORES:
            item.add_marker(pytest.mark.core)
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(func_only=True))


def longest_first(items: list[pytest.Item]) -> None:
    """Files whose tests may take longest come first: the last one to begin would run alone, while workers have nothing.

    All others stay in the order that they have.
    """
    limits: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limit = marker.args[0] if marker is not None and marker.args else 0.0
        limits[item.path] = max(limit, limits.get(item.path, 0.0))
    items.sort(key=lambda item: -limits[item.path])


def begin(item: pytest.Item) -> None:
    """Before each test: without Java one that needs it is skipped, or fails in CI."""
    global _may_start
    _may_start = item.get_closest_marker("real") is not None
    if item.get_closest_marker("java"):
        require_java()


def require_java() -> None:
    """Skip without Java, its compiler and Maven; fail in CI."""
    try:
        java(), javac(), maven()
    except DevFailure as error:
        refuse(str(error))


def refuse(why: str) -> NoReturn:
    """Skip the test because a need of it is missing; in CI, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{why} (in CI nothing is skipped)", pytrace=False)
    pytest.skip(why)


# --- the run ------------------------------------------------------------------------------------------------------


def begin_run() -> Path | None:
    """Name a directory for what the processes of this run share, unless another process of it has. None then."""
    if RUN in os.environ:
        return None
    folder = Path(tempfile.gettempdir()) / f"flowshare-tests-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    os.environ[RUN] = str(folder)
    return folder


def end_run(folder: Path) -> None:
    """End the brokers of this run; for the process that began it."""
    del os.environ[RUN]
    for state in folder.glob("*.keeper"):
        pid, birth = state.read_text().split(maxsplit=1)
        Process(int(pid), birth).end(30)
    for child in _children:
        child.poll()
    shutil.rmtree(folder, ignore_errors=True)


def shared(nodes: int, version: str = VERSION) -> DevBroker:
    """The run's broker with so many nodes, started by whoever comes first. Skips or fails the test without it."""
    if not _may_start:
        pytest.fail("a test that runs on a real broker has the marker `real`", pytrace=False)
    folder = Path(os.environ[RUN])
    folder.mkdir(exist_ok=True)
    state = folder / f"kafka-{version}-{nodes}.json"
    with locked(state.with_suffix(".lock"), START_LIMIT_S):
        failed = state.with_suffix(".failed")
        if failed.exists():
            pytest.fail(failed.read_text(), pytrace=False)
        if not state.exists():
            try:
                _start(nodes, version, state)
            except DevFailure as error:
                failed.write_text(str(error))
                pytest.fail(str(error), pytrace=False)
    return DevBroker.from_json(json.loads(state.read_text()))


def _start(nodes: int, version: str, state: Path) -> None:
    owner = int(Path(os.environ[RUN]).name.split("-")[2])
    command = [sys.executable, "-m", "tests.kafka.keeper", f"--owner={owner}"]
    command += [f"--nodes={nodes}", f"--version={version}", f"--state={state}"]
    log = state.with_suffix(".log")
    with log.open("wb") as file:
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    _children.append(child)
    keeper = process(child.pid)
    if keeper is not None:
        state.with_suffix(".keeper").write_text(f"{keeper.pid} {keeper.birth}")
    try:
        blocking_until(lambda: state.exists() or child.poll() is not None, limit_s=START_LIMIT_S, look_s=0.05)
    except AssertionError as error:
        child.terminate()
        raise DevFailure(f"the broker for the tests is not ready: {log.read_text()}") from error
    if not state.exists():
        raise DevFailure(f"no broker for the tests: {log.read_text()}")


# --- fixtures -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka() -> DevBroker:
    """A real Kafka with share groups, one node (or what FLOWSHARE_TEST_KAFKA names)."""
    named = os.environ.get(NAMED)
    if named:
        return DevBroker(version="named", addresses=tuple(named.split(",")))
    if not by_docker.engine_runs():
        require_java()
    return shared(1)


@pytest.fixture(scope="session")
def kafka_pair() -> DevBroker:
    """A real Kafka of two nodes, for what one node cannot show; always from jars."""
    require_java()
    return shared(2)


@pytest.fixture(scope="session", params=[VERSION, *OLD_VERSIONS])
def each_kafka(request: pytest.FixtureRequest) -> DevBroker:
    """A real Kafka of one node, of each version; the old ones always from jars."""
    if request.param == VERSION:
        found: DevBroker = request.getfixturevalue("kafka")
        return found
    return old_kafka(request.param)


def old_kafka(version: str) -> DevBroker:
    """A real Kafka of one node, of a version without share groups; from jars."""
    require_java()
    return shared(1, version)


@pytest.fixture(scope="session")
def kafka_with_letters() -> DevBroker:
    """A real Kafka of one node whose brokers write dead letters of share groups (share.version=2); from jars."""
    require_java()
    return shared(1, LETTERS_VERSION)


@pytest.fixture
def mortal_pair() -> Iterator[DevBroker]:
    """Two nodes of this test's own with all partitions on both. Node 1 is the controller too, so node 2 may die."""
    require_java()
    with running(Wanted(nodes=2, heap="512m", jvm=QUICK_JVM, settings=REPLICATED)) as found:
        yield found


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test has: `unique("orders")` is the same name throughout one test."""
    mark_of_test = uuid.uuid4().hex[:8]
    return lambda name: f"{name}-{mark_of_test}"
