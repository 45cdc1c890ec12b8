"""Processes that handle records for an arm: Python's are forked from one that has everything imported, Java's are JVMs.

A process has one or more members, which note in one journal what they did, and goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from confluent_kafka import Consumer, KafkaException, TopicPartition

import flowshare as fs
from benchmarks import arena
from benchmarks.modes.arms import AT_MOST, WORKERS, Arm
from benchmarks.modes.journal import Journal
from benchmarks.modes.work import Handler, Work
from flowshare.agents.app.app import App
from flowshare.agents.host.host import Host, HostSettings
from flowshare.backend import open_backend
from flowshare.clock import LoopClock
from flowshare.dev import cache_dir
from flowshare.dev.jars import class_path, libraries, locked
from flowshare.dev.java import java, javac
from flowshare.dev.processes import tied_to_parent

if TYPE_CHECKING:
    from collections.abc import Callable

COMMIT_S = 0.2
"""How often the plain loop commits."""
HEARTBEAT_MS = 500
"""Of the consumer groups of others: a member hears of a rebalance no later."""
BATCH = 500
PRELOADED = (
    "aiokafka",
    "flowshare.agents.cooperative.feeder",
    "flowshare.agents.kmq.feeder",
    "flowshare.backend.embedded",
    "flowshare.backend.fleet",
    "flowshare.client.cooperative.consumer",
    "flowshare.client.kmq.tracker",
    "flowshare.fleet.worker",
    "flowshare.log.embedded",
    "flowshare.server.server",
)
"""Modules that members import when they start, so that the import is no part of a trial."""
JAVA = arena.SOURCES / "modes"
COMPILE_LIMIT_S = 300
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A trial's place, as a member's process is told of it. url: broker URL of flowshare's apps. bootstrap: addresses
    for other clients. lease_s: time after which a dead member loses its records, whatever the arm calls it. retry_s:
    time after which a failed record is to be delivered again."""

    url: str
    bootstrap: str
    topic: str
    group: str
    lease_s: float
    retry_s: float

    @property
    def markers(self) -> str:
        """Topic of a queue's markers."""
        return f"{self.topic}-markers"

    @property
    def sink(self) -> str:
        """Topic of what handlers return."""
        return f"{self.topic}-out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The members of one process. first: number of the first one; concurrency: of each."""

    arm: Arm
    place: Place
    work: Work
    journal: Path
    members: int
    first: int = 0
    concurrency: int = 1

    @property
    def numbers(self) -> range:
        """The members' numbers."""
        return range(self.first, self.first + self.members)


# --- processes ----------------------------------------------------------------------------------------------------


class Running:
    """A process that was started."""

    def __init__(self, process: Any) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Its number."""
        found: int = self._process.pid
        return found

    @property
    def runs(self) -> bool:
        """True if the process has not ended by itself."""
        if isinstance(self._process, subprocess.Popen):
            return self._process.poll() is None
        alive: bool = self._process.is_alive()
        return alive

    def kill(self) -> None:
        """End it at once, as `kill -9` does."""
        self._process.kill()
        if isinstance(self._process, subprocess.Popen):
            self._process.wait()
        else:
            self._process.join()


def forks() -> ForkServerContext:
    """Where Python's processes come from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.modes.run", *PRELOADED])
    return context


def start(crew: Crew, log: Path) -> Running:
    """Start a process; what it says goes to `log`."""
    if crew.arm.java:
        with log.open("ab") as file:
            return Running(
                subprocess.Popen(
                    java_command(crew),
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    preexec_fn=tied_to_parent(),
                )
            )
    process = forks().Process(target=run, args=(crew, log), daemon=True)
    process.start()
    return Running(process)


def tie() -> None:
    """Have the system kill this process when its parent is gone; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def run(crew: Crew, log: Path) -> None:
    """A Python process, which ends with the one that everything is forked from, and so with the benchmark."""
    tie()
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    logging.basicConfig(level=logging.ERROR if crew.work.fail_every else logging.WARNING)
    KINDS[crew.arm.kind](crew, Handler(crew.work, Journal(crew.journal)))


# --- consumer groups ----------------------------------------------------------------------------------------------


def plain(crew: Crew, handler: Handler) -> None:
    """Loops of librdkafka's consumer, each on a thread: one record after the other."""
    loops = [threading.Thread(target=_Loop(crew, handler, number).run) for number in crew.numbers]
    for one in loops:
        one.start()


class _Loop:
    """poll, handle, commit; or poll, commit, handle."""

    def __init__(self, crew: Crew, handler: Handler, number: int) -> None:
        self._handler, self._number = handler, number
        self._first_commits = crew.arm.delivery == AT_MOST
        self._batch = BATCH if crew.work.quiet else 1  # a rebalance waits for the end of a batch
        self._done: dict[int, int] = {}
        self._committed_at = 0.0
        self._topic = crew.place.topic
        session_ms = round(1000 * crew.place.lease_s)
        self._consumer = Consumer(
            {
                "bootstrap.servers": crew.place.bootstrap,
                "group.id": crew.place.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": session_ms,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        self._consumer.subscribe([self._topic], on_revoke=lambda *_: self._commit())
        while True:
            messages = self._consumer.consume(self._batch, timeout=0.001) or filter(None, [self._consumer.poll(0.1)])
            messages = [one for one in messages if one.error() is None]
            if messages:
                self._take(messages)
            elif not self._first_commits:
                self._commit(wait=False)

    def _take(self, messages: list[Any]) -> None:
        if self._first_commits:
            for one in messages:
                self._done[one.partition()] = one.offset() + 1
            if not self._commit():
                return  # it is not ours any more: whoever has it runs it
        for one in messages:
            self._handle(one.value())
            self._done[one.partition()] = one.offset() + 1
            if not self._first_commits and time.monotonic() >= self._committed_at + COMMIT_S:
                self._commit(wait=False)

    def _handle(self, value: bytes) -> None:
        while True:
            try:
                self._handler.now(value, self._number)
            except Exception:  # noqa: BLE001
                if not self._first_commits:
                    continue
            return

    def _commit(self, *, wait: bool = True) -> bool:
        places = [TopicPartition(self._topic, number, offset) for number, offset in self._done.items()]
        self._done = {}
        self._committed_at = time.monotonic()
        if not places:
            return True
        try:
            self._consumer.commit(offsets=places, asynchronous=not wait)
        except KafkaException:
            return False
        return True


# --- agents -------------------------------------------------------------------------------------------------------


def agents(crew: Crew, handler: Handler) -> None:
    """One app for each member."""

    async def main() -> None:
        if crew.members == 1:
            async with app_of(crew, handler, crew.first).running():
                await asyncio.Event().wait()
        clock = LoopClock()
        leads, shares = crew.arm.query == WORKERS, not crew.arm.queue
        backend = open_backend(crew.place.url, clock=clock, lead=leads, share_groups=shares)
        await backend.start()
        settings = HostSettings(threads=False)
        async with AsyncExitStack() as stack:
            hosts = [
                Host(app_of(crew, handler, number), backend=backend, clock=clock, settings=settings)
                for number in crew.numbers
            ]
            for host in hosts:
                stack.push_async_callback(host.stop)
            await asyncio.gather(*(host.start() for host in hosts))
            await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def app_of(crew: Crew, handler: Handler, number: int) -> App:
    """A member's app."""
    app = App("modes", broker=crew.place.url)
    arm, place = crew.arm, crew.place
    options: dict[str, Any] = {"group": place.group, "concurrency": crew.concurrency, "name": "work", **arm.options}
    if arm.sends:
        options["sink"] = [app.topic(place.sink, value_type=bytes)]
    topic = app.topic(place.topic, value_type=bytes)
    fun = handler.agent(number, returns=arm.sends)
    retry = fs.Retry(max_attempts=5, delay=place.retry_s)
    if arm.kind == "kmq":
        app.kmq_agent(topic, markers=place.markers, redeliver_after=place.retry_s, tracker=True, **options)(fun)
    elif arm.kind == "cooperative":
        app.cooperative_agent(topic, retry=retry, lease=place.lease_s, **options)(fun)
    else:
        app.share_agent(topic, retry=retry, lock_duration=place.lease_s, **options)(fun)
    return app


KINDS: dict[str, Callable[[Crew, Handler], None]] = {
    "plain": plain,
    "share": agents,
    "cooperative": agents,
    "kmq": agents,
}


# --- JVMs ---------------------------------------------------------------------------------------------------------


def java_command(crew: Crew) -> list[str]:
    """A JVM with the crew's members."""
    program, on_path = ("KmqMembers", kmq_libraries()) if crew.arm.queue else ("ParallelMembers", parallel_libraries())
    place, work = crew.place, crew.work
    told = {
        "bootstrap": place.bootstrap,
        "topic": place.topic,
        "markers": place.markers,
        "group": place.group,
        "journal": crew.journal,
        "members": crew.members,
        "first": crew.first,
        "concurrency": crew.concurrency,
        "lease": round(1000 * place.lease_s),
        "heartbeat": HEARTBEAT_MS,
        "retry": round(1000 * place.retry_s),
        "order": crew.arm.options.get("order", ""),
        "sleep": work.sleep_ms,
        "slowEvery": work.slow_every,
        "slow": work.slow_ms,
        "jitter": work.jitter_ms,
        "failEvery": work.fail_every,
    }
    command = [str(java()), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"]
    command += ["-cp", f"{compiled(program, on_path)}:{on_path}", program]
    return [*command, *(f"{name}={value}" for name, value in told.items())]


def parallel_libraries() -> str:
    """Class path of parallel-consumer."""
    return arena.parallel_libraries()


def kmq_libraries() -> str:
    """Class path of KMQ."""
    return class_path(libraries("kmq-libs", (arena.SOURCES / "kmq" / "pom.xml").read_bytes()))


def compiled(program: str, on_path: str) -> Path:
    """The directory with a compiled program of java/modes, made when it is not there."""
    sources = [JAVA / "Journal.java", JAVA / "Work.java", JAVA / f"{program}.java"]
    content = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:16]
    target = cache_dir() / f"modes-{program}-{content}"
    if target.is_dir():
        return target
    with locked(cache_dir() / "modes.lock", COMPILE_LIMIT_S):
        if not target.is_dir():
            draft = Path(tempfile.mkdtemp(prefix="modes-", dir=cache_dir()))
            command = [str(javac()), "-nowarn", "-proc:none", "-cp", on_path, "-d", str(draft), *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_LIMIT_S)
            if done.returncode:
                shutil.rmtree(draft)
                raise SystemExit(f"{program}.java does not compile:\n{done.stderr}")
            draft.rename(target)
    return target
