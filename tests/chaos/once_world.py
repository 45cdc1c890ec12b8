"""The worlds of `tests.chaos.once`: workers on an embedded path, or a fleet on one real broker or two; who is killed.

embedded   three workers, one of which leads the path
fleet1     three workers that lead slots, and one that is a member only, on one broker
fleet2     the same on two brokers, everything on both
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from flowshare.dev.broker import DevBroker, Wanted, start
from flowshare.dev.probe import HOST
from flowshare.dev.processes import process, tied_to_parent
from tests.chaos.leadership import Leadership
from tests.chaos.workers import APP, Process, Processes
from tests.jvm import QUICK_JVM
from tests.kafka.fixtures import REPLICATED

PLACES = ("embedded", "fleet1", "fleet2")
MEMBER, LEADER, BROKER, ALL = "member", "leader", "broker", "all"
VICTIMS: Mapping[str, tuple[str, ...]] = {
    "embedded": (MEMBER, LEADER, ALL),
    "fleet1": (MEMBER, LEADER, BROKER, ALL),
    "fleet2": (MEMBER, LEADER, BROKER, ALL),
}
WORKERS = 3
MEMBERS_ONLY = 1
SLOTS = 8
BACK_S = 60.0
LOOK_S = 0.05
REAP_S = 10.0


class Brokers:
    """A real Kafka with its data in a folder, whose nodes are killed and come again where they were."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder / f"kafka-{nodes}"
        settings = {"broker.heartbeat.interval.ms": "300", "broker.session.timeout.ms": "2000"}
        if nodes > 1:
            settings |= REPLICATED | {"transaction.state.log.replication.factor": str(nodes)}
        self._wanted = Wanted(nodes=nodes, data=self._folder, heap="512m", jvm=QUICK_JVM, settings=settings)
        self._broker: DevBroker | None = None
        self._commands: list[list[bytes]] = []
        self._down: list[int] = []
        self._children: list[subprocess.Popen[bytes]] = []

    @property
    def bootstrap(self) -> str:
        """All nodes."""
        assert self._broker is not None
        return self._broker.bootstrap

    def start(self) -> None:
        """Raises: DevFailure."""
        self._broker = start(self._wanted, tied=True, how="jars")
        self._children = list(self._broker.children)
        self._commands = [
            Path(f"/proc/{one.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0") for one in self._broker.processes
        ]

    def kill(self, *, every: bool) -> None:
        """kill -9 of the last node, or of all of them."""
        assert self._broker is not None
        nodes = range(len(self._commands))
        self._down = list(nodes if every else nodes[-1:])
        for number in self._down:
            self._broker.processes[number].end(0)
        self._reap({self._broker.processes[number].pid for number in self._down})

    def _reap(self, pids: Collection[int]) -> None:
        """Hear the end of those that were killed, which nobody else does."""
        for child in [child for child in self._children if child.pid in pids]:
            child.wait(REAP_S)
            self._children.remove(child)

    def back(self) -> None:
        """Those that were killed come again. Raises: AssertionError."""
        assert self._broker is not None
        running = list(self._broker.processes)
        for number in self._down:
            with (self._folder / f"node-{number + 1}.log").open("ab") as log:
                child = subprocess.Popen(
                    self._commands[number],
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=tied_to_parent(),
                )
            self._children.append(child)
            found = process(child.pid)
            assert found is not None, f"node {number + 1} ended at once"
            running[number] = found
        self._down = []
        self._broker = DevBroker(
            version=self._broker.version,
            addresses=self._broker.addresses,
            processes=tuple(running),
            data=self._broker.data,
            keep=True,
            children=self._broker.children,
        )
        until = time.monotonic() + BACK_S
        while not self._broker.answers:
            assert time.monotonic() < until, f"the brokers do not come again; see {self._folder}"
            time.sleep(LOOK_S)

    def end(self) -> None:
        """All of them, at once."""
        if self._broker is not None:
            for one in self._broker.processes:
                one.end(0)
        self._reap({child.pid for child in self._children})


class Fleet(Processes):
    """Workers of a fleet, without proxies. The places behind the first WORKERS lead nothing."""

    def __init__(
        self, folder: Path, brokers: Brokers | DevBroker, *, fleet: str, environment: Mapping[str, str]
    ) -> None:
        super().__init__(folder, WORKERS + MEMBERS_ONLY, app=APP, environment=environment)
        self._brokers, self._fleet = brokers, fleet

    def url(self, **more: str) -> str:
        """The broker URL of this fleet."""
        options = {"share": "workers", "fleet": self._fleet, "slots": SLOTS, **more}
        return f"kafka://{self._brokers.bootstrap}?" + "&".join(f"{name}={value}" for name, value in options.items())

    def start(self, place: int) -> Process:
        """Start a worker at a free place."""
        url = self.url(listen=f"{HOST}:0") if place < WORKERS else self.url(lead="false")
        started, log = self.run(f"worker-{place}", ["flowshare.cli", "worker", self._app], URL=url)
        return self.add(Process(place, started, log))


class World:
    """The workers of one row, and what can be done to them.

    brokers: of a fleet, a DevBroker where others need it alive; None: the workers share a path.
    """

    def __init__(
        self,
        folder: Path,
        brokers: Brokers | DevBroker | None,
        *,
        topic: str,
        environment: Mapping[str, str],
        dice: random.Random,
    ) -> None:
        self._brokers, self._dice = brokers, dice
        self.workers: Processes
        if brokers is None:
            path = folder / "broker"
            self.url = f"embedded://{path}"
            self._leadership = Leadership(path)
            self.workers = Processes(folder, WORKERS, app=APP, environment={**environment, "URL": self.url})
        else:
            fleet = Fleet(folder, brokers, fleet=topic, environment=environment)
            self.workers = fleet
            self.url = fleet.url(lead="false")
        self.killed = 0

    def start(self) -> None:
        """All workers. Raises: AssertionError."""
        self.workers.wait_ready(*(self.workers.start(place) for place in range(self.workers.places)))

    def victims(self, victim: str, stopped: int | None) -> list[Process]:
        """Which workers are killed. stopped: the process that stopped at a step: it is the leader there, and a member
        is any other one, since each of them may be who waits for it."""
        alive = list(self.workers.alive.values())
        if victim == ALL:
            return alive
        if victim == BROKER:
            return []
        if stopped is not None:
            return [one for one in alive if (one.pid == stopped) == (victim == LEADER)]
        return [self._dice.choice([one for one in alive if self._leads(one) == (victim == LEADER)])]

    def _leads(self, worker: Process) -> bool:
        if self._brokers is not None:
            return worker.place < WORKERS
        return worker.pid == self._leadership.leader()

    def hit(self, victim: str, stopped: int | None = None) -> None:
        """kill -9 of them. Raises: AssertionError."""
        victims = self.victims(victim, stopped)
        if isinstance(self._brokers, Brokers) and victim in (BROKER, ALL):
            self._brokers.kill(every=victim == ALL)
        for one in victims:
            self.workers.kill(one)
        self.killed += 1

    def back(self) -> None:
        """Whoever was killed comes again; returns when all are at work. Raises: AssertionError."""
        if isinstance(self._brokers, Brokers):
            self._brokers.back()
        for place in range(self.workers.places):
            if place not in self.workers.alive:
                self.workers.start(place)
        self.workers.wait_ready(*self.workers.alive.values())
        self.workers.check()

    def stop(self) -> None:
        """In order. Raises: AssertionError."""
        for worker in list(self.workers.alive.values()):
            code = self.workers.stop(worker)
            assert code == 0, f"worker {worker.pid} ended with {code}:\n{worker.log.read_text()[-8000:]}"
