"""The worker processes of a run: `flowshare worker` in places 0 to n, each behind proxies of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from flowshare.dev.probe import HOST, free_ports
from flowshare.dev.processes import tied_to_parent
from tests.chaos.cluster import MortalKafka
from tests.chaos.journal import APP
from tests.chaos.proxy import Proxy, Wires

ROOT = Path(__file__).parents[2]
STOP_S = 60.0


@dataclass
class Worker:
    """One process. pid: of it. broker, peers: its proxies, to the broker and in front of its own listener."""

    place: int
    process: subprocess.Popen[bytes]
    broker: Proxy
    peers: Proxy
    log: Path
    born: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether its agents fetch."""
        return "flowshare.worker: ready" in self.log.read_text()

    def send(self, number: signal.Signals) -> float:
        """Send a signal; when that was."""
        self.process.send_signal(number)
        return time.monotonic()


class Workers:
    """All of them. state: whether each keeps its slots' state in a directory, and so its name."""

    def __init__(
        self,
        folder: Path,
        kafka: MortalKafka,
        wires: Wires,
        *,
        topic: str,
        slots: int,
        state: bool,
        short_s: float,
        concurrency: int,
    ) -> None:
        self.folder = folder
        self.journals = folder / "journals"
        self.journals.mkdir(parents=True, exist_ok=True)
        (folder / "chaosapp.py").write_text(APP)
        (folder / "hypothesis.py").write_text("raise ModuleNotFoundError")  # kio takes 0.4 s for it
        self._kafka = kafka
        self._topic, self._slots, self._state = topic, slots, state
        self._short_s, self._concurrency = short_s, concurrency
        self._peers = [wires.proxy() for _ in kafka.proxies]
        self.all: list[Worker] = []
        self.alive: dict[int, Worker] = {}
        """By place."""

    def url(self, broker: str, **more: object) -> str:
        """The broker URL of this fleet."""
        options = {"share": "workers", "fleet": self._topic, "slots": self._slots, **more}
        return f"kafka://{broker}?" + "&".join(f"{name}={value}" for name, value in options.items())

    def start(self, place: int) -> Worker:
        """Start a worker at a free place; it is not ready yet."""
        assert place not in self.alive
        broker, peers = self._kafka.proxies[place], self._peers[place]
        (port,) = free_ports(1)
        peers.target = port
        more = {"listen": f"{HOST}:{port}", "advertise": f"{HOST}:{peers.port}"}
        if self._state:
            more["state_dir"] = str(self.folder / "state")
        log = self.folder / f"worker-{place}-{len(self.all)}.log"
        environment = {
            **os.environ,
            "URL": self.url(f"{HOST}:{broker.port}", **more),
            "TOPIC": self._topic,
            "JOURNALS": str(self.journals),
            "SHORT_S": str(self._short_s),
            "CONCURRENCY": str(self._concurrency),
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
        }
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", "worker", "chaosapp:app"],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=tied_to_parent(),
            )
        worker = Worker(place, process, broker, peers, log)
        self.all.append(worker)
        self.alive[place] = worker
        return worker

    def wait_ready(self, *workers: Worker, limit_s: float = 90.0) -> None:
        """Wait until they fetch. Raises: AssertionError."""
        until = time.monotonic() + limit_s
        for worker in workers:
            while not worker.ready:
                assert worker.runs, f"worker {worker.pid} ended while it started:\n{worker.log.read_text()[-8000:]}"
                assert time.monotonic() < until, f"worker {worker.pid} is not ready:\n{worker.log.read_text()[-8000:]}"
                time.sleep(0.05)

    def kill(self, worker: Worker) -> float:
        """kill -9; when that was."""
        del self.alive[worker.place]
        at = worker.send(signal.SIGKILL)
        worker.process.wait(STOP_S)
        return at

    def stop(self, worker: Worker) -> int:
        """SIGTERM, and wait for its end; its exit code. Raises: AssertionError."""
        self.alive.pop(worker.place, None)
        worker.send(signal.SIGTERM)
        try:
            return worker.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            text = worker.log.read_text()[-8000:]
            raise AssertionError(f"worker {worker.pid} does not end by SIGTERM:\n{text}") from None

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
