"""Shared parts of the benchmarks beside other clients: servers, filled topics, prepared groups, peers as processes.

Each peer is a process of its own. Its last line is its figures, in JSON. librdkafka prepares topics and groups.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from flowshare.dev import broker, cache_dir
from flowshare.dev.jars import class_path, jars, libraries, locked
from flowshare.dev.java import java, javac
from flowshare.dev.processes import tied_to_parent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "java"
START_LIMIT_S = 60
CALL_LIMIT_S = 60
PEER_LIMIT_S = 300
VALUE = b"x" * 100
KEYS = 10_000
GROUP = {"share.auto.offset.reset": "earliest"}
BROKER_JVM = (
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:MaxInlineLevel=15",
)
"""As Kafka's own start scripts have it; with a heap that starts small the collector stops the broker once a second."""

_numbers = itertools.count()


class Server:
    """A real broker or a `flowshare serve`, and what the peers need in it."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """A new topic."""
        made = NewTopic(name, partitions, 1, config=dict(config or {}))
        self._admin.create_topics([made])[name].result(CALL_LIMIT_S)
        return name

    def fill(self, name: str, records: int, *, batch: int = 1000, random_keys: bool = False) -> str:
        """A topic of one partition with records of 100 bytes, keyed, uncompressed, in batches of about `batch`.

        random_keys: all equally often, in an order drawn by a seed; else in turns.
        """
        self.send(self.topic(name), records, batch=batch, random_keys=random_keys)
        return name

    def send(self, name: str, records: int, *, batch: int = 1000, random_keys: bool = False) -> None:
        """As `fill`, into a topic that there is."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "linger.ms": 50,
                "batch.num.messages": batch,
                "queue.buffering.max.messages": 200_000,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        dice = random.Random(7)
        for number in range(records):
            key = dice.randrange(KEYS) if random_keys else number % KEYS
            while True:
                try:
                    producer.produce(name, VALUE, key=b"%06d" % key)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(CALL_LIMIT_S):
            raise SystemExit(f"{self.name} did not take the records in {CALL_LIMIT_S} s")

    def group(self, **settings: str) -> str:
        """A new share group that begins at the oldest record. Settings by Kafka's names, with `_` for `.`."""
        name = self.unused_group()
        wanted = {**GROUP, **{key.replace("_", "."): value for key, value in settings.items()}}
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in wanted.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=entries)
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(CALL_LIMIT_S)
        return name

    def unused_group(self) -> str:
        """A group's name that nobody has used."""
        return f"bench-{next(_numbers)}"


@contextmanager
def kafka(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A Kafka of its own with one node, gone afterwards."""
    with broker.running(broker.Wanted(settings=settings or {}, jvm=BROKER_JVM)) as running:
        yield Server("kafka", running.bootstrap)


@contextmanager
def serve() -> Iterator[Server]:
    """A `flowshare serve` of its own on a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="flowshare-bench-") as folder, ExitStack() as stack:
        log = Path(folder, "serve.log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", "serve", "--data", f"{folder}/log", "--listen", "127.0.0.1:0"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                preexec_fn=tied_to_parent(),
            )
        stack.callback(_end, process)
        yield Server("flowshare", _address(log, process))


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("listening on "):
                return line.split()[2]
        time.sleep(0.05)
    raise SystemExit(f"flowshare serve does not listen; it said:\n{log.read_text(errors='replace')}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- peers ------------------------------------------------------------------------------------------------------


def python_peer(script: str, peer: str, **options: object) -> dict[str, float]:
    """Run a peer of one of the scripts here in a new process; its figures."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return _figures(peer, [sys.executable, str(HERE / script), "--peer", peer, *words])


def java_peer(program: str, *arguments: object, libraries: str) -> dict[str, float]:
    """Run a Java program in a new JVM; its figures. libraries: a class path."""
    command = [str(java()), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    command += ["-cp", f"{programs()}:{libraries}", program, *map(str, arguments)]
    return _figures(program, command)


def _figures(name: str, command: list[str]) -> dict[str, float]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PEER_LIMIT_S, preexec_fn=tied_to_parent()
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{name} did not end within {PEER_LIMIT_S} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{name} ended with {done.returncode} and no figures:\n{(done.stdout + done.stderr)[-3000:]}")
    figures: dict[str, float] = json.loads(lines[-1])
    return figures


def kafka_libraries() -> str:
    """Class path of Kafka's own clients."""
    return class_path(jars())


def parallel_libraries() -> str:
    """Class path of parallel-consumer, fetched with Maven when it is not there."""
    return class_path(libraries("bench-libs", (SOURCES / "pom.xml").read_bytes()))


def programs() -> Path:
    """The directory with the compiled programs of java/."""
    sources = sorted(SOURCES.glob("*.java"))
    content = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:16]
    target = cache_dir() / f"bench-{content}"
    libraries = f"{parallel_libraries()}:{kafka_libraries()}"
    with locked(cache_dir() / "bench.lock", PEER_LIMIT_S):
        if not target.is_dir():
            draft = Path(tempfile.mkdtemp(prefix="bench-", dir=cache_dir()))
            # parallel-consumer's own Kafka client comes first and knows no share groups: it is left to the run.
            command = [str(javac()), "-nowarn", "-proc:none", "-cp", _newest_first(libraries), "-d", str(draft)]
            _checked([*command, *map(str, sources)], draft)
            draft.rename(target)
    return target


def _newest_first(libraries: str) -> str:
    return ":".join(reversed(libraries.split(":")))


def _checked(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PEER_LIMIT_S)
    if done.returncode:
        shutil.rmtree(folder)
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}
