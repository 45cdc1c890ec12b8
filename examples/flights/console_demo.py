"""`make console-demo`: three workers, flights that keep coming, and a console to look at, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from examples.flights.data import rows
from examples.flights.demo import ROOT, DemoFailed, opened, say
from flowshare.client.producer.producer import Message, Producer
from flowshare.clock import LoopClock

APP: Final = "examples.flights.console_app:app"
TOPIC: Final = "flights"
PARTITIONS: Final = 4
PAUSED: Final = "flights.archive"
WORKERS: Final = 3
BEGIN_WITH: Final = 2_000
A_SECOND: Final = 20
"""Flights that come."""
STOP_S: Final = 20.0
STARTED_S: Final = 60.0


class Processes:
    """The workers and the console, each with its log; all of them end with this."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        """Start a command of flowshare."""
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "flowshare.cli", *command],
                env={**os.environ, "FLOWSHARE_BROKER": f"embedded://{self._folder / 'broker'}"},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )

    def log(self, name: str) -> str:
        """Return the output of the process so far."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def check(self, needed: Collection[str] | None = None) -> None:
        """Say of those that have ended that they have. needed: without which it does not go on; None: without any.

        Raises: DemoFailed.
        """
        for name, process in tuple(self._running.items()):
            if (code := process.poll()) is None:
                continue
            del self._running[name]
            told = f"{name} ended with exit code {code}; its log is {self._folder / name}.log"
            if needed is None or name in needed:
                raise DemoFailed(told)
            say(told)

    def end(self) -> None:
        """SIGTERM to all, and SIGKILL to who does not go."""
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def show(data: Path | None, port: int) -> int:
    """Run it until it is interrupted; the exit code. data: where all of it is kept; None: it is removed at the end.

    Raises: DemoFailed, DataMissing.
    """
    folder = Path(data or tempfile.mkdtemp(prefix="flowshare-console-demo-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_run(folder, processes, port))
    finally:
        processes.end()
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


async def _run(folder: Path, processes: Processes, port: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    clock = LoopClock()
    flights = _messages()
    say(f"flights, three workers and the console, in {folder} …")
    async with opened(folder / "broker") as (admin, producer):
        await admin.create_topic(TOPIC, partitions=PARTITIONS)
        await admin.alter_group_configs(PAUSED, {"share.paused": "true"})
        await producer.send_many(TOPIC, [next(flights) for _ in range(BEGIN_WITH)])
    for number in range(1, WORKERS + 1):
        processes.start(f"worker {number}", "worker", APP)
    processes.start("console", "console", "--port", str(port))
    await _printed(processes, clock)
    async with opened(folder / "broker") as (_, producer):
        await _keep_coming(producer, flights, processes, ended, clock)


async def _printed(processes: Processes, clock: LoopClock) -> None:
    """Wait for the console's address and print it. Raises: DemoFailed."""
    until_s = clock.monotonic() + STARTED_S
    while clock.monotonic() < until_s:
        processes.check()
        for line in processes.log("console").splitlines():
            if line.startswith("console: "):
                say(f"{line}\nCtrl-C ends it")
                return
        await clock.sleep(0.1)
    raise DemoFailed(f"the console did not start within {STARTED_S:.0f} s: {processes.log('console')[-500:]}")


async def _keep_coming(
    producer: Producer, flights: Iterator[Message], processes: Processes, ended: asyncio.Event, clock: LoopClock
) -> None:
    while not ended.is_set():
        processes.check(needed=("console",))
        if some := [message for message, _ in zip(flights, range(A_SECOND), strict=False)]:
            await producer.send_many(TOPIC, some)
        await clock.sleep(1.0)


def _messages() -> Iterator[Message]:
    """The flights, keyed by tail number; the ones without one have no key."""
    for row in rows():
        yield Message(json.dumps(row).encode(), str(row["tailnum"]).encode() if row["tailnum"] else None)
