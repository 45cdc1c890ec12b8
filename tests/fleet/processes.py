"""A fleet of worker processes on a real Kafka, and the session fixture `fleet`: three of them, shared by all tests."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowshare.dev.broker import DevBroker
from flowshare.dev.processes import tail, tied_to_parent
from tests.waiting import blocking_until

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0
LOOK_S = 0.02
SLOTS = 6


class WorkerProcess:
    """One worker in a process of its own, started at once."""

    def __init__(self, url: str, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "tests.fleet.serving", url]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=tied_to_parent()
            )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str | None:
        """`host:port`, as soon as it listens."""
        return next((line.rpartition(" ")[2] for line in self._lines("listening on ")), None)

    @property
    def served(self) -> frozenset[int]:
        """Slots that it serves."""
        told = [line.removeprefix("serves").strip() for line in self._lines("serves")]
        return frozenset(int(slot) for slot in told[-1].split(",") if slot) if told and self.runs else frozenset()

    def stop(self) -> None:
        """It leaves in order."""
        self.terminate()
        self.wait()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()

    def wait(self) -> None:
        """Until it has ended; SIGKILL when that takes too long."""
        try:
            self._process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"a worker did not stop within {LIMIT_S:g} s:\n{tail(self._log)}") from None

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """That it runs."""
        assert self.runs, f"a worker ended:\n{tail(self._log)}"

    def _lines(self, begin: str) -> list[str]:
        return [line for line in self._log.read_text().splitlines() if line.startswith(begin)]


class FleetProcesses:
    """Workers of one fleet: the first `workers` of them serve all slots when this has been made."""

    def __init__(self, kafka: DevBroker, folder: Path, *, workers: int = 3, slots: int = SLOTS) -> None:
        self.kafka = kafka
        self.slots = slots
        self.name = f"fleet-{uuid.uuid4().hex[:8]}"
        self._folder = folder
        self._made = 0
        self.workers: list[WorkerProcess] = []
        for _ in range(workers):
            self.add()
        self.settled()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all workers that run, as `host:port`."""
        return tuple(one.address for one in self.workers if one.runs and one.address is not None)

    @property
    def bootstrap(self) -> str:
        """For Kafka's clients."""
        return ",".join(self.addresses)

    def add(self) -> WorkerProcess:
        """One worker more."""
        url = f"kafka://{self.kafka.bootstrap}?share=workers&fleet={self.name}&slots={self.slots}&listen=127.0.0.1:0"
        self._made += 1
        worker = WorkerProcess(url, self._folder / f"{self.name}-{self._made}.log")
        self.workers.append(worker)
        return worker

    def settled(self) -> None:
        """Wait until each slot is served by exactly one worker, and every worker has its share."""

        def right() -> bool:
            for worker in self.workers:
                worker.check()
            led = [worker.served for worker in self.workers]
            return sorted(slot for one in led for slot in one) == list(range(self.slots)) and (
                all(led) or self.slots < len(led)
            )

        blocking_until(right, f"the slots of {self.name} are not served by its workers")

    def stop(self, worker: WorkerProcess) -> None:
        """One leaves in order; the others have its slots when this returns."""
        worker.stop()
        self.workers.remove(worker)
        self.settled()

    def replace(self, *, kill: bool) -> None:
        """As many others in the place of all; `kill`: these end without a word, else when the others are there."""
        old = tuple(self.workers)
        if kill:
            for worker in old:
                worker.kill()
                self.workers.remove(worker)
        for _ in old:
            self.add()
        self.settled()
        for worker in () if kill else old:
            worker.terminate()
        for worker in () if kill else old:
            worker.wait()
            self.workers.remove(worker)
        self.settled()

    def close(self) -> None:
        """End all of them."""
        for worker in self.workers:
            worker.kill()


@pytest.fixture(scope="session")
def fleet(kafka: DevBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FleetProcesses]:
    """Three workers on the run's Kafka, with six slots; for tests that leave them as they are."""
    processes = FleetProcesses(kafka, tmp_path_factory.mktemp("fleet"))
    yield processes
    processes.close()
