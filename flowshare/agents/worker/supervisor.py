"""`flowshare worker --procs N`, `flowshare scale`: worker processes under one that runs no handler.

The supervisor holds the embedded path and leads its share-partitions, so that no handler, whatever it does to its own
process, can stall the others; on other brokers it only supervises. A worker that ends is started again, after a pause
that doubles while it keeps ending. On SIGTERM, SIGHUP or Ctrl-C all workers drain; one that does not is killed. A
worker whose supervisor is gone drains and ends by itself (`orphaned`), so that a restarted supervisor finds no
strangers.

`keeper` decides which numbers are kept.

A worker that ends never ends another one. The supervisor ends only if no worker has ever reported that it runs, and
each has reported that it cannot (its module is not imported, the app is refused).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flowshare.agents.host.host import ServicePart
from flowshare.agents.worker.keeper import (
    KILL_AFTER_S,
    PAUSES,
    SETTLED_S,
    Keeper,
    Place,
    either,
    pause,
)
from flowshare.agents.worker.signals import on_loop
from flowshare.backend.base import Backend
from flowshare.clock import Clock, LoopClock, new_loop

logger = logging.getLogger("flowshare.supervisor")

SUPERVISOR_PID: Final = "FLOWSHARE_SUPERVISOR_PID"
"""Environment variable with the process id of a worker's supervisor."""
WORKER_NUMBER: Final = "FLOWSHARE_WORKER_NUMBER"
"""Environment variable with the worker's number, 1 to N; it is the same after a restart."""
SUPERVISOR_PAGES: Final = "FLOWSHARE_SUPERVISOR_PAGES"
"""Environment variable with `host:port` of the supervisor's pages, by which `flowshare resize` finds them."""
READY_FD: Final = "FLOWSHARE_READY_FD"
"""Environment variable with the descriptor on which a worker reports, once, the address of its health pages."""
EXIT_LOST: Final = 1
REFUSED: Final = "refused: "
"""Prefix of the text that a worker reports instead of an address when it cannot start."""
WHY_MAX: Final = 500
"""Most characters of the reason."""
OF_SUPERVISOR: Final = ("--procs", "--web-port", "--web-bind")
"""Options, each with a value, that workers do not get: their own pages are on free ports of this machine."""
PATIENCE_S: Final = 0.75
"""Seconds that a worker leaves an embedded path that nobody leads to its supervisor, which runs no handlers."""
SAID_MAX: Final = 4 * (WHY_MAX + len(REFUSED))
"""Most bytes of a worker's report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """Options for several workers on one machine.

    command: a worker's command line. procs: number at the start. drain_timeout_s: seconds that each has to drain.
    """

    command: Sequence[str]
    procs: int
    drain_timeout_s: float


def run_supervisor(
    backend: Backend | None,
    options: SupervisorOptions,
    beside: Callable[[Supervisor], Awaitable[None]] | None = None,
    pages: Callable[[Supervisor], ServicePart] | None = None,
) -> int:
    """Lead `backend` (None: nothing to lead) and run the workers until SIGTERM, SIGHUP, SIGINT or a start that fails.

    beside: runs as long as the supervisor does, and may resize it. pages: makes the pages about all workers. Returns
    the exit code: 0 when all workers drained, 3 when one was cut off or killed, 130 after a second Ctrl-C, the worker's
    own code when no worker ever got going, and 1 when the place that `backend` leads is gone. Raises: the backend's
    errors at its start.
    """
    supervisor = Supervisor(options, LoopClock())

    async def main() -> int:
        async with contextlib.AsyncExitStack() as stack:
            if pages is not None:
                served = pages(supervisor)
                address = await served.start() or ""
                supervisor.pages_at = address
                stack.push_async_callback(served.close)
                logger.info("health and metrics of all workers at http://%s", address)
            if backend is not None:
                backend.on_lost(lambda error: supervisor.fail(EXIT_LOST, str(error)))
                await backend.start()
                stack.push_async_callback(backend.close)
            return await supervisor.run(beside)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


class Supervisor(Keeper[Place]):
    """Keeps worker processes running until it is stopped: `procs`, or as many as the last `resize` asked for."""

    def __init__(self, options: SupervisorOptions, clock: Clock) -> None:
        super().__init__(Place)
        self._options = options
        self._clock = clock
        self._going = False
        """True if any worker ever reported that it runs."""
        self._refused: dict[int, str] = {}
        """Reasons why workers could not start at their last try, by number."""
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self.ready: dict[int, str] = {}
        """Health pages (`host:port`) of the workers that have reported that they run, by number."""
        self.pages_at = ""
        """Address of this supervisor's own pages (`host:port`); empty: it has none."""
        self._down: dict[int, str] = {}
        """Reasons why workers do not run, in words."""

    @property
    def running(self) -> Mapping[int, int]:
        """Process ids of the running workers, by number."""
        return {number: process.pid for number, process in self._running.items()}

    @property
    def down(self) -> Mapping[int, str]:
        """Reasons why kept workers do not run, by number."""
        return {number: self._down[number] for number in self._kept if number in self._down}

    async def run(self, beside: Callable[[Supervisor], Awaitable[None]] | None = None) -> int:
        """Run to the end; return the exit code (see `run_supervisor`)."""
        with on_loop(self.stop, self._on_show):
            logger.info("supervising %d workers (process %d)", self._options.procs, os.getpid())
            return await self._run(self._options.procs, beside)

    def _on_show(self) -> None:
        for worker in self.ready:  # before it is ready, the signal would end the worker
            _signal(self._running[worker], signal.SIGUSR1)

    async def _run_again(self, place: Place) -> None:
        number, leaving = place.number, place.leaving
        failures = 0
        while not leaving.is_set():
            begun = self._clock.monotonic()
            try:
                code = await self._run_once(number, leaving)
            except OSError as error:  # no process, descriptor or memory for the moment: the others go on
                code, self._refused[number] = EXIT_LOST, f"{error}"
            lived_s = self._clock.monotonic() - begun
            if leaving.is_set():
                logger.info("worker %d has left after %.1f s (%s)", number, lived_s, _how(code))
                self._codes[number] = 0 if code == -signal.SIGTERM else code  # the worker had not begun yet
                return
            if lived_s >= SETTLED_S:
                failures = 0
            failures += 1
            why = self._refused.get(number)
            if why is not None and not self._going and self._refused.keys() >= set(self._kept):
                self.fail(code, f"no worker can start: {why}")
                return
            what = f"ended ({_how(code)})" if why is None else f"cannot start: {why}"
            self._down[number] = f"worker {number} {what}"
            logger.warning(
                "worker %d %s after %.1f s; again in %.1f s, others that run: %d",
                number,
                what if why is None else f"cannot start ({why})",
                lived_s,
                PAUSES.after(failures),
                len(self.ready),
            )
            await pause(leaving, PAUSES.after(failures))

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why kept workers do not run, one line each."""
        waited_for = [number for number in self._kept if number not in self.ready]
        return tuple(self._down.get(number, f"worker {number} starts") for number in waited_for)

    async def _run_once(self, number: int, leaving: asyncio.Event) -> int:
        """Start one worker and wait for its end, which `leaving` brings about; return its exit code."""
        reader, writer = os.pipe()
        environment = {
            **os.environ,
            SUPERVISOR_PID: str(os.getpid()),
            WORKER_NUMBER: str(number),
            SUPERVISOR_PAGES: self.pages_at,
            READY_FD: str(writer),
        }
        command = self._options.command
        try:
            process = await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=(writer,))
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._running[number] = process
        self._refused.pop(number, None)
        loop = asyncio.get_running_loop()
        loop.add_reader(reader, self._hear, number, reader)
        logger.info("worker %d is process %d", number, process.pid)
        ended = asyncio.ensure_future(process.wait())
        try:
            await either(ended, leaving)
            if not ended.done():
                await self._drain(number, process, ended)
            return await ended
        finally:
            if not ended.done():  # the supervisor was cancelled: nobody else would end the worker
                _signal(process, signal.SIGKILL)
                await asyncio.shield(ended)
            if loop.remove_reader(reader):
                self._hear(number, reader)  # a report sent just before the worker's end
            del self._running[number]
            self.ready.pop(number, None)
            os.close(reader)

    def _hear(self, number: int, reader: int) -> None:
        """Read a worker's report: the address of its health pages, or its closed end."""
        asyncio.get_running_loop().remove_reader(reader)
        readable, _, _ = select.select([reader], [], [], 0)  # a worker's word, or its end
        raw = os.read(reader, SAID_MAX) if readable else b""
        if not raw or number not in self._running:  # its end was closed without a word
            return
        said = raw.decode(errors="replace").strip()
        if said.startswith(REFUSED):
            self._refused[number] = said.removeprefix(REFUSED)
            return
        self._going = True
        self._down.pop(number, None)
        self.ready[number] = said
        if self.ready.keys() >= set(self._kept):
            pages = ", ".join(f"{one} http://{address}" for one, address in sorted(self.ready.items()) if address)
            logger.info("all %d workers are ready; health and metrics: %s", self.size, pages or "none")

    async def _drain(self, number: int, process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
        """Let a worker drain; kill one that does not."""
        _signal(process, signal.SIGTERM)
        why = await self._late(ended, self._options.drain_timeout_s + KILL_AFTER_S)
        if why is not None:
            logger.error("killing worker %d (process %d): %s; its records run again", number, process.pid, why)
            _signal(process, signal.SIGKILL)


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process ended meanwhile
        process.send_signal(number)


# --- a worker's side: whose it is, which one it is, and telling that it is ready --------------------------------------


def supervised() -> bool:
    """Tell if this process is a supervisor's worker."""
    return SUPERVISOR_PID in os.environ


def orphaned() -> bool:
    """Tell if this process is a supervisor's worker and the supervisor is gone."""
    supervisor = os.environ.get(SUPERVISOR_PID)
    return supervisor is not None and supervisor != str(os.getppid())


def supervisor_pages() -> str:
    """Return the address of the supervisor's pages (`host:port`); empty: no supervisor, or no pages."""
    return os.environ.get(SUPERVISOR_PAGES, "") if supervised() else ""


def worker_number() -> int | None:
    """Return this process's number among the supervisor's workers; None without a supervisor."""
    number = os.environ.get(WORKER_NUMBER, "")
    return int(number) if supervised() and number.isdecimal() else None


def report_ready(address: str) -> None:
    """Tell the supervisor, once, that this worker runs, and `host:port` of its health pages (or an empty text)."""
    descriptor = os.environ.pop(READY_FD, "")
    if not descriptor.isdecimal():
        return
    try:
        os.write(int(descriptor), f"{address}\n".encode(errors="replace"))
        os.close(int(descriptor))
    except OSError:
        return  # the supervisor is gone


def report_refused(why: str) -> None:
    """Tell the supervisor why this worker cannot start; harmless once it has started."""
    report_ready(f"{REFUSED}{why[:WHY_MAX]}")


def worker_command(arguments: Sequence[str]) -> list[str]:
    """Return a worker's command line: the supervisor's arguments without its own options."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in OF_SUPERVISOR:
            skip = True
        elif not argument.startswith(tuple(f"{name}=" for name in OF_SUPERVISOR)):
            kept.append(argument)
    return [sys.executable, "-m", "flowshare.cli", *kept]
