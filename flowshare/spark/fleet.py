"""The driver's side of a fleet on Spark: which workers there are, and that they come back.

A slot is a worker's number with the task that keeps a worker there. Each of its runs is one Spark job of one task,
which calls the driver over the control channel:

    waiting   the job is submitted, no executor has called yet (there may be no free core)
    starting  the worker has called and loads the application
    ready     its agents fetch
    draining  it was told to finish what it runs
    pausing   it ended; the next one is started soon

What brings a worker back: its job ends, however. At once when it had been ready, and after a pause that doubles from
PAUSE_FIRST_S to PAUSE_MAX_S when it keeps ending within SETTLED_S of being ready; it is tried for ever, and the reason
is said each time. Only when the application is refused before any worker ever was ready, the fleet ends with that
reason. Spark itself tries nothing again (`jobs.py`).

What becomes of a dead worker's records: its connections end with it, so the servers hand out what it held. Its members
leave their groups at once (`fleet_calls.py`). Member ids are `<fleet>-<slot>-<agent>`, the same for each run of a slot:
where no coordinator could be reached, the next run is the same member.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from flowshare.agents import inflight
from flowshare.agents.supervisor import EXIT_INTERRUPTED, KILL_AFTER_S, PAUSE_FIRST_S, PAUSE_MAX_S, SETTLED_S
from flowshare.spark.control import Listener
from flowshare.spark.figures import Figures
from flowshare.spark.fleet_calls import Calls, Rows
from flowshare.spark.fleet_slot import Slot
from flowshare.spark.gone import SparkGone
from flowshare.spark.jobs import Jobs
from flowshare.spark.task import Ended, WorkerTask

logger = logging.getLogger("flowshare.spark")

LIVE_S: Final = 300.0
"""A worker that has not called for so long, though Spark says that it runs, is ended and started again."""
WAITING_S: Final = 20.0
"""How long a job waits for a core before that is said."""
LOOK_S: Final = 5.0
CANCEL_S: Final = 1.0
CANCEL_TRIES: Final = 20
OFTEN: Final = 5
"""From so many ends in a row on, they are an error."""


class FleetOnSpark:
    """Keeps workers running until it is told to stop: as many as `resize` said last. All on one loop.

    make_task: what the worker in a slot is told, for a run of this name. leave: takes the members of a worker, by what
    their ids begin with, out of their groups. agents: names of the app's.
    """

    def __init__(
        self,
        jobs: Jobs,
        make_task: Callable[[int, str], WorkerTask],
        leave: Callable[[str], Awaitable[None]],
        *,
        agents: Sequence[str],
        drain_timeout_s: float,
    ) -> None:
        self._jobs = jobs
        self._make_task = make_task
        self._drain_timeout_s = drain_timeout_s
        self.figures = Figures(agents)
        self._slots: dict[int, Slot] = {}
        self._calls = Calls(
            self._slots, self.figures, spawn=self._spawn, leave=leave, cancel=jobs.cancel, on_ready=self._now_ready
        )
        self._calls.drain_order = {"do": "drain", "timeout_s": drain_timeout_s}
        self._group: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._codes: dict[int, int] = {}
        self._scaling: asyncio.Task[None] | None = None
        self._drained = False
        self._was_ready = False
        self._fatal: str | None = None

    # --- what is seen from outside ----------------------------------------------------------------------------------

    @property
    def listener(self) -> Listener:
        """For the control server."""
        return self._calls.listener

    @property
    def size(self) -> int:
        """How many workers are kept; those that drain do not count."""
        return len(self._kept)

    @property
    def ready(self) -> Mapping[int, str]:
        """Where each worker that is ready runs, `host/process`, by slot."""
        peers = {slot.number: slot.peer for slot in self._all if slot.ready}
        return {number: f"{peer.who.host}/{peer.who.pid}" for number, peer in peers.items() if peer is not None}

    def rows(self) -> Rows:
        """One JSON-ready row a slot."""
        return [slot.row() for slot in self._all]

    def problems(self) -> tuple[str, ...]:
        """Why the fleet does not work; empty when at least one worker does."""
        if self._stop.is_set() or self._drained:
            return ("the fleet drains",)
        if self.ready:
            return ()
        told = [f"worker {slot.number} is {slot.state}" + (f": {slot.why}" if slot.why else "") for slot in self._all]
        return ("no worker is ready", *told[:5])

    async def in_flight(self, *, stacks: bool = False) -> Rows:
        """What all handlers work on, oldest first, each row with its `worker`; without workers that do not answer."""
        return await self._calls.in_flight(stacks=stacks)

    async def show(self) -> None:
        """Write what is in flight to stderr, worker by worker."""
        rows = await self.in_flight(stacks=True)
        for slot in self._all:
            mine = [row for row in rows if row["worker"] == slot.number]
            sys.stderr.write(inflight.text(mine, worker=slot.number))
        sys.stderr.flush()

    # --- orders -----------------------------------------------------------------------------------------------------

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Drain all workers and end; told so twice by Ctrl-C: end them at once."""
        if self._stop.is_set() and number == signal.SIGINT:
            self._hurry.set()
        self._stop.set()
        for slot in self._slots.values():
            slot.leaving.set()

    def resize(self, count: int) -> None:
        """Keep `count` workers (at least 1): start some, or have those with the highest numbers drain."""
        assert count >= 1
        if self._group is None or self._stop.is_set() or self._drained:
            return
        kept = self._kept
        for number in kept[count:]:
            logger.info("worker %d drains: %d are enough", number, count)
            self._slots[number].leaving.set()
        number = 0
        for _ in range(count - len(kept)):
            number = next(free for free in itertools.count(number + 1) if free not in self._slots)
            slot = self._slots[number] = Slot(number, asyncio.Event())
            slot.task = self._group.create_task(self._keep(slot), name=f"worker {number}")

    async def drain(self) -> bool:
        """Have all workers drain; whether none was cut off. The driver stays, and starts no workers any more."""
        self._drained = True
        if self._scaling is not None:
            self._scaling.cancel()
        for slot in self._slots.values():
            slot.leaving.set()
        await self._until_empty()
        return not any(self._codes.values())

    async def run(self, workers: int, beside: Callable[[FleetOnSpark], Awaitable[None]] | None = None) -> int:
        """Keep workers until `stop`; the exit code, as of `flowshare worker`. beside: runs as long, and may resize."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self.resize(workers)
            watching = group.create_task(self._watch(), name="watch the workers")
            if beside is not None:
                self._scaling = self._spawn(lambda: beside(self), "scaling")
            await self._stop.wait()
            await self._until_empty()
            watching.cancel()
            if self._scaling is not None:
                self._scaling.cancel()
            self._group = None
        return self._verdict()

    # --- one slot ---------------------------------------------------------------------------------------------------

    async def _keep(self, slot: Slot) -> None:
        """Run one worker, again and again, until it is to leave."""
        pause_s, row = 0.0, 0
        try:
            while not slot.leaving.is_set():
                begun_s = time.monotonic()
                ended = await self._run_once(slot)
                lived_s = time.monotonic() - begun_s
                slot.why = ended.why
                if slot.leaving.is_set():
                    self._left(slot, ended, lived_s)
                    return
                if ended.refused and not self._was_ready:
                    self._end_with(ended.why)
                    return
                well = slot.fetched and time.monotonic() - slot.ready_s >= SETTLED_S
                row = 1 if well else row + 1
                at_once = row == 1 and slot.fetched
                pause_s = 0.0 if at_once else min(max(2 * pause_s, PAUSE_FIRST_S), PAUSE_MAX_S)
                self._say_ended(slot, lived_s, row, pause_s)
                slot.become("pausing")
                if pause_s:
                    await _within(slot.leaving.wait(), pause_s)
        except SparkGone as error:
            self._end_with(str(error))
        finally:
            slot.stop_waiting()
            self.figures.ended(slot.number)
            del self._slots[slot.number]

    async def _run_once(self, slot: Slot) -> Ended:
        """One job, from its submission to its end. Raises: SparkGone."""
        task = self._make_task(slot.number, uuid.uuid4().hex[:12])
        slot.begin(task)
        job = slot.job = asyncio.ensure_future(self._jobs.run(task))
        leaving = asyncio.ensure_future(slot.leaving.wait())
        either: set[asyncio.Future[Any]] = {job, leaving}
        try:
            done, _ = await asyncio.wait(either, timeout=WAITING_S, return_when=asyncio.FIRST_COMPLETED)
            if not done and not slot.called:
                logger.warning("worker %d waits: Spark has no free core, or its executors do not start", slot.number)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                await self._drain(slot, task, job)
            ended = job.result() if job.done() else Ended(code=None, why="Spark does not end its job")
        finally:
            leaving.cancel()
            if not job.done():  # the fleet itself is given up, or Spark does not answer
                job.cancel()
        if ended.code in (0, 3):
            self._calls.tell_others(slot)  # it has left its groups by itself
        elif slot.called:
            await self._calls.give_up(slot)
        return slot.bye if ended.code is None and slot.bye is not None else ended

    async def _drain(self, slot: Slot, task: WorkerTask, job: asyncio.Future[Ended]) -> None:
        """Let a worker drain; have Spark end it when it does not, or when nothing of it has begun."""
        slot.become("draining")
        if slot.called:
            slot.send(self._calls.drain_order)
            limit_s = self._drain_timeout_s + KILL_AFTER_S
            hurry = asyncio.ensure_future(self._hurry.wait())
            either: set[asyncio.Future[Any]] = {job, hurry}
            await asyncio.wait(either, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if job.done():
                return
            why = "ending at once" if self._hurry.is_set() else f"it did not drain within {limit_s:.0f} s"
            logger.error("worker %d is ended by Spark: %s; its records run again", slot.number, why)
        for _ in range(CANCEL_TRIES):  # again and again: the job may not have been submitted yet
            await self._jobs.cancel(task)
            await asyncio.wait({job}, timeout=CANCEL_S)
            if job.done():
                return
        logger.error("Spark does not end the job of worker %d", slot.number)

    def _left(self, slot: Slot, ended: Ended, lived_s: float) -> None:
        logger.info("worker %d has left after %.1f s (%s)", slot.number, lived_s, ended.why)
        cut_off = slot.fetched and ended.code is None
        self._codes[slot.number] = 3 if cut_off else (ended.code or 0)

    def _say_ended(self, slot: Slot, lived_s: float, row: int, pause_s: float) -> None:
        again = f"again in {pause_s:.1f} s" if pause_s else "again at once"
        if row < OFTEN:
            logger.warning("worker %d ended (%s) after %.1f s; %s", slot.number, slot.why, lived_s, again)
        else:
            text = "worker %d keeps ending, %d times in a row now: %s; it is tried for ever, %s"
            logger.error(text, slot.number, row, slot.why, again)

    def _end_with(self, why: str) -> None:
        if self._fatal is None:
            self._fatal = why
            logger.error("%s; stopping", why)
        self.stop()

    async def _watch(self) -> None:
        """End what Spark takes for running and nobody has heard of for long; see that there is a Spark."""
        while True:
            await asyncio.sleep(LOOK_S)
            if (gone := await self._jobs.gone()) is not None:  # who has no job is told by nobody
                self._end_with(gone)
                return
            for slot in self._all:
                if slot.unheard_s > LIVE_S and slot.worker is not None:
                    logger.error("worker %d has not been heard for %.0f s: Spark ends it", slot.number, LIVE_S)
                    await self._jobs.cancel(slot.worker)

    # --- helpers ----------------------------------------------------------------------------------------------------

    @property
    def _all(self) -> list[Slot]:
        return sorted(self._slots.values(), key=lambda slot: slot.number)

    @property
    def _kept(self) -> list[int]:
        return sorted(number for number, slot in self._slots.items() if not slot.leaving.is_set())

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None] | None:
        return None if self._group is None else self._group.create_task(_logged(work, name), name=name)

    def _now_ready(self) -> None:
        self._was_ready = True
        if len(self.ready) == self.size:
            logger.info("all %d workers are ready", self.size)

    async def _until_empty(self) -> None:
        while tasks := [slot.task for slot in self._slots.values() if slot.task is not None]:
            await asyncio.wait(tasks)

    def _verdict(self) -> int:
        if self._hurry.is_set():
            return EXIT_INTERRUPTED
        if self._fatal is not None:
            return 1
        cut_off = sorted(number for number, code in self._codes.items() if code)
        if cut_off:
            logger.warning("stopped; workers %s were cut off, their records run again", cut_off)
            return 3
        logger.info("stopped: all workers drained")
        return 0


async def _logged(work: Callable[[], Awaitable[None]], name: str) -> None:
    """What goes wrong beside the workers does not end them."""
    try:
        await work()
    except Exception:
        logger.exception("%s failed", name)


async def _within(wait: Awaitable[Any], limit_s: float) -> None:
    task: asyncio.Future[Any] = asyncio.ensure_future(wait)
    await asyncio.wait({task}, timeout=limit_s)
    task.cancel()
