"""`flowshare worker --procs N`, `flowshare scale`: worker processes under one that runs no handler.

The supervisor holds the embedded path and leads its share-partitions, so that no handler, whatever it does to its own
process, can stall the fleet; on other brokers it only supervises. A worker that ends is started again, after a pause
that doubles while it keeps ending. On SIGTERM, SIGHUP or Ctrl-C all workers drain; one that does not is killed. One
whose supervisor is gone drains and ends by itself (`supervised.py`), so that a restarted supervisor finds no strangers.

A place is a worker's number with the task that keeps a process there:

    resize up       → kept       the lowest numbers that are free
    resize down     kept → leaving    the highest numbers; the worker drains, as at the end, and is not started again
    its end         leaving → free    (kept: started again)
    stop            all → leaving

so `resize` holds for places that are kept, and while old ones still drain there may be more processes than that.

A worker that ends never ends another one. Only where no worker has ever said that it runs, and each has said that it
cannot (its module is not imported, the app is refused), is there nothing to look after, and the supervisor ends, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import select
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from flowshare.agents.service import new_loop
from flowshare.agents.signals import stop_signals
from flowshare.agents.supervised import READY_FD, REFUSED, SUPERVISOR_PID, WHY_MAX, WORKER_NUMBER
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
SAID_MAX: Final = 4 * (WHY_MAX + len(REFUSED))
"""Bytes of a worker's word."""
KILL_AFTER_S: Final = 10.0
"""How long after its drain time a worker is killed; by itself it ends 9 s after it at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """How to run a fleet on one machine.

    command: a worker's command line. procs: how many at the start. drain_timeout_s: what each has been told to drain
    within.
    """

    command: Sequence[str]
    procs: int
    drain_timeout_s: float
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class Pages(Protocol):
    """What serves a supervisor's pages (`web.supervisor`)."""

    async def start(self) -> str:
        """Listen; returns the address."""
        ...

    async def close(self) -> None:
        """Stop listening."""


def run_supervisor(
    backend: Backend | None,
    options: SupervisorOptions,
    beside: Callable[[Supervisor], Awaitable[None]] | None = None,
    pages: Callable[[Supervisor], Pages] | None = None,
) -> int:
    """Lead `backend` (None: nothing to lead) and run the workers until SIGTERM, SIGHUP, SIGINT or a start that fails.

    beside: what runs as long as the supervisor does, and may resize it. pages: makes what is served about all workers.
    Returns the exit code: 0 when all workers drained, 3 when one was cut off or killed, 130 after a second Ctrl-C, and
    the worker's own code when no worker ever got going. Raises: what the backend refuses to start with.
    """
    supervisor = Supervisor(options, LoopClock())

    async def main() -> int:
        async with contextlib.AsyncExitStack() as stack:
            if pages is not None:
                served = pages(supervisor)
                address = await served.start()
                stack.push_async_callback(served.close)
                logger.info("health and metrics of all workers at http://%s", address)
            if backend is not None:
                await backend.start()
                stack.push_async_callback(backend.close)
            return await supervisor.run(beside)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main())


@dataclass(slots=True)
class _Place:
    """A worker's number and what keeps it."""

    task: asyncio.Task[None]
    leaving: asyncio.Event


class Supervisor:
    """Keeps workers running until it is told to stop: `procs`, or as many as `resize` said last."""

    def __init__(self, options: SupervisorOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._going = False
        """Whether any worker ever said that it runs."""
        self._refused: dict[int, str] = {}
        """Why workers could not start when they tried last, by number."""
        self._failed_start: int | None = None
        self._codes: dict[int, int] = {}
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, str] = {}
        self._down: dict[int, str] = {}
        """Why a worker does not run, in words."""
        self._places: dict[int, _Place] = {}
        self._group: asyncio.TaskGroup | None = None

    @property
    def size(self) -> int:
        """How many workers are kept; those that drain do not count."""
        return len(self._kept)

    @property
    def _kept(self) -> list[int]:
        return sorted(number for number, place in self._places.items() if not place.leaving.is_set())

    @property
    def ready(self) -> Mapping[int, str]:
        """Health pages (`host:port`) of the workers that have said that they run, by number."""
        return self._ready

    @property
    def running(self) -> Mapping[int, int]:
        """Process ids of the workers that run, by number."""
        return {number: process.pid for number, process in self._running.items()}

    @property
    def down(self) -> Mapping[int, str]:
        """Why workers that are to run do not, by number."""
        return {number: self._down[number] for number in self._kept if number in self._down}

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Drain all workers and end; told so twice by Ctrl-C: end them at once."""
        if self._stop.is_set() and number == signal.SIGINT:
            self._hurry.set()
        self._stop.set()
        for place in self._places.values():
            place.leaving.set()

    def resize(self, count: int) -> None:
        """Keep `count` workers (at least 1): start some, or have those with the highest numbers drain."""
        assert count >= 1
        if self._group is None or self._stop.is_set():
            return
        kept = self._kept
        for number in kept[count:]:
            logger.info("worker %d drains: %d are enough", number, count)
            self._places[number].leaving.set()
        number = 0
        for _ in range(count - len(kept)):
            number = next(free for free in itertools.count(number + 1) if free not in self._places)
            leaving = asyncio.Event()
            task = self._group.create_task(self._keep(number, leaving), name=f"worker {number}")
            self._places[number] = _Place(task, leaving)

    async def run(self, beside: Callable[[Supervisor], Awaitable[None]] | None = None) -> int:
        """Run to the end; returns the exit code (see `run_supervisor`)."""
        loop, stops = asyncio.get_running_loop(), stop_signals()
        for stopping in stops:
            loop.add_signal_handler(stopping, self.stop, stopping)
        loop.add_signal_handler(signal.SIGUSR1, self._pass_on, signal.SIGUSR1)
        try:
            logger.info("supervising %d workers (process %d)", self._options.procs, os.getpid())
            async with asyncio.TaskGroup() as group:
                self._group = group
                self.resize(self._options.procs)
                if beside is not None:
                    group.create_task(self._beside(beside), name="beside the supervisor")
        finally:
            self._group = None
            for taken in (*stops, signal.SIGUSR1):
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

    async def _beside(self, beside: Callable[[Supervisor], Awaitable[None]]) -> None:
        task = asyncio.ensure_future(beside(self))
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _pass_on(self, number: signal.Signals) -> None:
        for worker in self._ready:  # before that it would end by the signal
            _signal(self._running[worker], number)

    async def _keep(self, number: int, leaving: asyncio.Event) -> None:
        """Run one worker, again and again, until it is to leave."""
        try:
            await self._run_again(number, leaving)
        finally:
            del self._places[number]

    async def _run_again(self, number: int, leaving: asyncio.Event) -> None:
        pause_s = PAUSE_FIRST_S
        while not leaving.is_set():
            begun = self._clock.monotonic()
            code = await self._run_once(number, leaving)
            lived_s = self._clock.monotonic() - begun
            if leaving.is_set():
                logger.info("worker %d has left after %.1f s (%s)", number, lived_s, _how(code))
                self._codes[number] = 0 if code == -signal.SIGTERM else code  # that one had not begun yet
                return
            if lived_s >= SETTLED_S:
                pause_s = PAUSE_FIRST_S
            why = self._refused.get(number)
            if why is not None and not self._going and self._refused.keys() >= set(self._kept):
                logger.error("no worker can start, so the supervisor ends: %s", why)
                self._failed_start = code
                self.stop()
                return
            what = f"ended ({_how(code)})" if why is None else f"cannot start: {why}"
            self._down[number] = f"worker {number} {what}"
            logger.warning(
                "worker %d %s after %.1f s; again in %.1f s, others that run: %d",
                number,
                what if why is None else f"cannot start ({why})",
                lived_s,
                pause_s,
                len(self._ready),
            )
            await self._within(leaving.wait, pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def problems(self) -> tuple[str, ...]:
        """Why not all workers that are to run do, one line each."""
        down = [self._down.get(number, f"worker {number} starts") for number in self._kept if number not in self._ready]
        return tuple(down)

    async def _run_once(self, number: int, leaving: asyncio.Event) -> int:
        """Start one worker and wait for its end, which `leaving` brings about; its exit code."""
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
        self._refused.pop(number, None)
        loop = asyncio.get_running_loop()
        loop.add_reader(reader, self._hear, number, reader)
        logger.info("worker %d is process %d", number, process.pid)
        ended = asyncio.ensure_future(process.wait())
        stopped = asyncio.ensure_future(leaving.wait())
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
            if loop.remove_reader(reader):
                self._hear(number, reader)  # a word that it said just before its end
            del self._running[number]
            self._ready.pop(number, None)
            os.close(reader)

    def _hear(self, number: int, reader: int) -> None:
        """A worker says where its health pages are, or closes its end."""
        asyncio.get_running_loop().remove_reader(reader)
        raw = os.read(reader, SAID_MAX) if _readable(reader) else b""
        if not raw or number not in self._running:  # its end was closed without a word
            return
        said = raw.decode(errors="replace").strip()
        if said.startswith(REFUSED):
            self._refused[number] = said.removeprefix(REFUSED)
            return
        self._going = True
        self._down.pop(number, None)
        self._ready[number] = said
        if self._ready.keys() >= set(self._kept):
            pages = ", ".join(f"{one} http://{address}" for one, address in sorted(self._ready.items()) if address)
            logger.info("all %d workers are ready; health and metrics: %s", self.size, pages or "none")

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


def _readable(reader: int) -> bool:
    """Whether something is there: a worker's word, or its end."""
    return bool(select.select([reader], [], [], 0)[0])


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return  # it ended meanwhile
