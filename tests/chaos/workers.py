"""The worker processes of a run: `flowshare worker` in places 0 to n, those of a fleet behind proxies of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flowshare.dev.probe import HOST, free_ports
from flowshare.dev.processes import tied_to_parent
from tests.chaos.cluster import MortalKafka
from tests.chaos.proxy import Proxy, Wires

ROOT = Path(__file__).parents[2]
STOP_S = 60.0
APP = "tests.chaos.app:app"


@dataclass
class Process:
    """One process. pid: of it."""

    place: int
    process: subprocess.Popen[bytes]
    log: Path
    born: float = field(default_factory=time.monotonic)
    ended: float | None = None
    """When it had ended in order."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """True if the worker's agents fetch."""
        return "flowshare.worker: ready" in self.log.read_text()

    def send(self, number: signal.Signals) -> float:
        """Send a signal; when that was."""
        self.process.send_signal(number)
        return time.monotonic()


@dataclass
class Worker(Process):
    """One of a fleet. broker, peers: its proxies, to the broker and in front of its own listener."""

    broker: Proxy = field(kw_only=True)
    peers: Proxy = field(kw_only=True)


class Processes:
    """Workers of one app, which has its settings from the environment, and writes its journals where JOURNALS says."""

    def __init__(self, folder: Path, places: int, *, app: str, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.journals = folder / "journals"
        self.journals.mkdir(parents=True, exist_ok=True)
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")  # kio takes 0.4 s for it
        self.places = places
        self._app, self._environment = app, environment
        self.all: list[Process] = []
        self.alive: dict[int, Process] = {}
        """By place."""

    def start(self, place: int) -> Process:
        """Start a worker at a free place; it is not ready yet."""
        process, log = self.run(f"worker-{place}", ["flowshare.cli", "worker", self._app])
        return self.add(Process(place, process, log))

    def add(self, worker: Process) -> Process:
        """Take a worker that was started among the others."""
        assert worker.place not in self.alive
        self.all.append(worker)
        self.alive[worker.place] = worker
        return worker

    def run(self, name: str, arguments: list[str], **more: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a Python process of this run, with the app's environment and `more`; it, and its log."""
        log = self.folder / f"{name}-{len(self.all)}.log"
        environment = {
            **os.environ,
            "JOURNALS": str(self.journals),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
            **self._environment,
            **more,
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=tied_to_parent(),
            )
        return process, log

    def wait_ready(self, *workers: Process, limit_s: float = 90.0) -> None:
        """Wait until they fetch. Raises: AssertionError."""
        until = time.monotonic() + limit_s
        for worker in workers:
            while not worker.ready:
                assert worker.runs, f"worker {worker.pid} ended while it started:\n{worker.log.read_text()[-8000:]}"
                assert time.monotonic() < until, f"worker {worker.pid} is not ready:\n{worker.log.read_text()[-8000:]}"
                time.sleep(0.05)

    def kill(self, worker: Process) -> float:
        """kill -9; when that was."""
        del self.alive[worker.place]
        at = worker.send(signal.SIGKILL)
        worker.process.wait(STOP_S)
        return at

    def stop(self, worker: Process) -> int:
        """SIGTERM, and wait for its end; its exit code. Raises: AssertionError."""
        self.alive.pop(worker.place, None)
        worker.send(signal.SIGTERM)
        try:
            code = worker.process.wait(STOP_S)
            worker.ended = time.monotonic()
        except subprocess.TimeoutExpired:
            text = worker.log.read_text()[-8000:]
            raise AssertionError(f"worker {worker.pid} does not end by SIGTERM:\n{text}") from None
        return code

    def check(self) -> None:
        """Nobody ended by itself. Raises: AssertionError."""
        for worker in self.alive.values():
            assert worker.runs, (
                f"worker {worker.pid} ended by itself with {worker.process.returncode}:\n"
                f"{worker.log.read_text()[-8000:]}"
            )

    def end(self) -> None:
        """Whatever still runs."""
        for worker in self.all:
            if worker.runs:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.kill()
                worker.process.wait(STOP_S)


class Workers(Processes):
    """Those of a fleet. state: whether each keeps its slots' state in a directory, and so its name."""

    all: list[Worker]  # type: ignore[assignment]
    alive: dict[int, Worker]  # type: ignore[assignment]

    def __init__(
        self,
        folder: Path,
        kafka: MortalKafka,
        wires: Wires,
        *,
        topic: str,
        slots: int,
        state: bool,
        app: str,
        environment: Mapping[str, str],
    ) -> None:
        super().__init__(folder, len(kafka.proxies), app=app, environment={"TOPIC": topic, **environment})
        self._kafka = kafka
        self._topic, self._slots, self._state = topic, slots, state
        self._peers = [wires.proxy() for _ in kafka.proxies]

    def url(self, broker: str, **more: object) -> str:
        """The broker URL of this fleet."""
        options = {"share": "workers", "fleet": self._topic, "slots": self._slots, **more}
        return f"kafka://{broker}?" + "&".join(f"{name}={value}" for name, value in options.items())

    def start(self, place: int) -> Worker:
        """Start a worker at a free place; it is not ready yet."""
        broker, peers = self._kafka.proxies[place], self._peers[place]
        (port,) = free_ports(1)
        peers.target = port
        more = {"listen": f"{HOST}:{port}", "advertise": f"{HOST}:{peers.port}"}
        if self._state:
            more["state_dir"] = str(self.folder / "state")
        url = self.url(f"{HOST}:{broker.port}", **more)
        process, log = self.run(f"worker-{place}", ["flowshare.cli", "worker", self._app], URL=url)
        worker = Worker(place, process, log, broker=broker, peers=peers)
        self.add(worker)
        return worker
