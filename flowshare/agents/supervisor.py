"""`flowshare worker --procs N`: N worker processes under one that runs no handler.

The supervisor holds the embedded path and leads its share-partitions, so that no handler, whatever it does to its own
process, can stall the fleet; on other brokers it only supervises. A worker that ends is started again, after a pause
that doubles while it keeps ending. On SIGTERM or Ctrl-C all workers drain; one that does not is killed. A worker whose
supervisor is gone drains and ends by itself (`supervised.py`), so that a restarted supervisor finds no strangers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.service import new_loop
from flowshare.agents.supervised import READY_FD, SUPERVISOR_PID, WORKER_NUMBER
from flowshare.clock import LoopClock

if TYPE_CHECKING:
    from flowshare.backend.base import Backend
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.supervisor")

EXIT_INTERRUPTED: Final = 130
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0
SETTLED_S: Final = 10.0
"""A worker that ran this long was started well: its next pause is the first one again."""
KILL_AFTER_S: Final = 6.0
"""How long after its drain time a worker is killed; by itself it ends 4 s after it."""
_STOP: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """How to run a fleet on one machine.

    command: a worker's command line. procs: how many. drain_timeout_s: what each has been told to drain within.
    """

    command: Sequence[str]
    procs: int
    drain_timeout_s: float
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def run_supervisor(backend: Backend | None, options: SupervisorOptions) -> int:
    """Lead `backend` (None: nothing to lead) and run the workers until SIGTERM, SIGINT or a start that fails.

    Returns the exit code: 0 when all workers drained, 3 when one was cut off or killed, 130 after a second Ctrl-C, and
    the worker's own code when no worker ever got going. Raises: what the backend refuses to start with.
    """
    supervisor = Supervisor(options, LoopClock())

    async def main() -> int:
        if backend is None:
            return await supervisor.run()
        await backend.start()
        try:
            return await supervisor.run()
        finally:
            await backend.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


class Supervisor:
    """Keeps `procs` workers running until it is told to stop."""

    def __init__(self, options: SupervisorOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._settled = False
        self._failed_start: int | None = None
        self._codes: dict[int, int] = {}
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, str] = {}

    @property
    def ready(self) -> Mapping[int, str]:
        """Health pages (`host:port`) of the workers that have said that they run, by number."""
        return self._ready

    @property
    def running(self) -> Mapping[int, int]:
        """Process ids of the workers that run, by number."""
        return {number: process.pid for number, process in self._running.items()}

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Drain all workers and end; told so twice by Ctrl-C: end them at once."""
        if self._stop.is_set() and number == signal.SIGINT:
            self._hurry.set()
        self._stop.set()

    async def run(self) -> int:
        """Run to the end; returns the exit code (see `run_supervisor`)."""
        loop = asyncio.get_running_loop()
        for stopping in _STOP:
            loop.add_signal_handler(stopping, self.stop, stopping)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        try:
            logger.info("supervising %d workers (process %d)", self._options.procs, os.getpid())
            async with asyncio.TaskGroup() as group:
                for number in range(1, self._options.procs + 1):
                    group.create_task(self._keep(number), name=f"worker {number}")
        finally:
            for taken in (*_STOP, signal.SIGUSR1):
                loop.remove_signal_handler(taken)
        return self._verdict()

    def _verdict(self) -> int:
        if self._failed_start is not None:
            return self._failed_start
        if self._hurry.is_set():
            return EXIT_INTERRUPTED
        if any(self._codes.values()):
            logger.warning("stopped; workers %s were cut off", sorted(n for n, code in self._codes.items() if code))
            return 3
        logger.info("stopped: all workers drained")
        return 0

    def _pass_on(self, number: signal.Signals) -> None:
        for worker in self._ready:  # before that it would end by the signal
            _signal(self._running[worker], number)

    async def _keep(self, number: int) -> None:
        """Run one worker, again and again."""
        pause_s = PAUSE_FIRST_S
        while not self._stop.is_set():
            begun = self._clock.monotonic()
            code = await self._run_once(number)
            lived_s = self._clock.monotonic() - begun
            if self._stop.is_set():
                self._codes[number] = 0 if code == -signal.SIGTERM else code  # that one had not begun yet
                return
            if lived_s >= SETTLED_S:
                self._settled = True
                pause_s = PAUSE_FIRST_S
            elif code > 0 and not self._settled:
                logger.error("worker %d ended with code %d before any worker got going; stopping", number, code)
                self._failed_start = code
                self.stop()
                return
            logger.warning("worker %d ended (%s) after %.1f s; again in %.1f s", number, _how(code), lived_s, pause_s)
            await self._within(self._stop.wait, pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _run_once(self, number: int) -> int:
        """Start one worker and wait for its end, which `stop` brings about; its exit code."""
        reader, writer = os.pipe()
        environment = {
            **os.environ,
            **self._options.environment,
            SUPERVISOR_PID: str(os.getpid()),
            WORKER_NUMBER: str(number),
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
        loop = asyncio.get_running_loop()
        loop.add_reader(reader, self._hear, number, reader)
        logger.info("worker %d is process %d", number, process.pid)
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            waited: set[asyncio.Future[Any]] = {ended, stopped}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                await self._drain(number, process, ended)
            return await ended
        finally:
            stopped.cancel()
            if not ended.done():  # the supervisor itself was given up: nobody would be there to end the worker
                _signal(process, signal.SIGKILL)
                await asyncio.shield(ended)
            del self._running[number]
            self._ready.pop(number, None)
            loop.remove_reader(reader)
            os.close(reader)

    def _hear(self, number: int, reader: int) -> None:
        """A worker says where its health pages are, or closes its end."""
        asyncio.get_running_loop().remove_reader(reader)
        said = os.read(reader, 256)
        if not said or number not in self._running:
            return
        self._ready[number] = said.decode(errors="replace").strip()
        if len(self._ready) == self._options.procs:
            pages = ", ".join(f"{one} http://{address}" for one, address in sorted(self._ready.items()) if address)
            logger.info("all %d workers are ready; health and metrics: %s", self._options.procs, pages or "none")

    async def _drain(self, number: int, process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
        """Let a worker drain; kill it when it does not."""
        _signal(process, signal.SIGTERM)
        limit_s = self._options.drain_timeout_s + KILL_AFTER_S

        async def either() -> None:
            hurry = asyncio.ensure_future(self._hurry.wait())
            waited: set[asyncio.Future[Any]] = {ended, hurry}
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurry.cancel()

        await self._within(either, limit_s)
        if not ended.done():
            why = "ending at once" if self._hurry.is_set() else f"it did not drain within {limit_s:.0f} s"
            logger.error("killing worker %d (process %d): %s; its records run again", number, process.pid, why)
            _signal(process, signal.SIGKILL)

    async def _within(self, wait: Callable[[], Awaitable[object]], limit_s: float) -> None:
        try:
            await self._clock.wait_for(wait(), limit_s)
        except TimeoutError:
            return


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return  # it ended meanwhile
