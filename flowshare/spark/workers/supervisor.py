"""Keeps the workers on Spark running, at the driver: knows them, and starts them again.

A worker has a number, and a task here that keeps it running. Each of its runs is one Spark job of one task, which calls
the driver over the control channel:

    waiting   the job is submitted, no executor has called yet (there may be no free core)
    starting  the worker has called and loads the application
    ready     its agents fetch
    draining  it was told to finish what it runs
    pausing   it ended; the next one is started soon

A worker is started again when its job ends in any way: at once if it had been ready, and after `PAUSES` if it keeps
ending within SETTLED_S of being ready. This has no end, and the reason is logged each time. Only when the application
is refused before any worker ever was ready, all end with that reason. Spark itself does not retry (`jobs.py`).

A worker is dead when its connection ended and it did not call again within AWAY_S, or when it was silent and did not
for STILL_S more: its record locks have lapsed by then. Its connections end with it, so the servers hand out the records
that it held. Its members leave their groups at once (`run.py`), and the other workers are told to ask their groups for
the free partitions. Member ids are `<tag>-<number>-<agent>`, the same for each run of a worker: if no coordinator could
be reached, the next run is the same member.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowshare.agents.host import inflight
from flowshare.agents.worker.keeper import (
    KILL_AFTER_S,
    PAUSES,
    SETTLED_S,
    Keeper,
    Place,
    either,
    logged,
    pause,
)
from flowshare.agents.worker.worker import EXIT_FAILED
from flowshare.spark.errors import SparkGone
from flowshare.spark.workers.control import Message, WorkerConnection
from flowshare.spark.workers.jobs import SparkJobs
from flowshare.spark.workers.metrics import WorkerFigures
from flowshare.spark.workers.task import TaskEnd, WorkerTask

logger = logging.getLogger("flowshare.spark")

Rows = list[dict[str, Any]]

LIVE_S: Final = 300.0
"""The seconds without a call after which a worker that Spark reports as running is ended and started again."""
WAITING_S: Final = 20.0
"""The seconds that a job waits for a core before that is logged."""
LOOK_S: Final = 5.0
CANCEL_S: Final = 1.0
CANCEL_TRIES: Final = 20
AWAY_S: Final = 0.25
STILL_S: Final = 20.0
ASK_S: Final = 2.0
"""The time limit, in seconds, for the workers' reports of records in flight."""
PROBLEMS_MAX: Final = 10
OFTEN: Final = 5
"""The number of ends in a row from which they are logged as an error."""


@dataclass(slots=True, kw_only=True)
class KeptWorker(Place):
    """One worker: its number, and the driver's facts on it.

    task: the present run. peer: its connection; None: none. called: True: the run ever had one; attempt: Spark's
    attempt of it. fetched: True: its agents ever fetched; ready_s: since when. since_s: the time when its state began
    or, without a connection, when it was last heard. why: how the run before ended. bye: how the present run says that
    it ends. away: waits for an ended connection to be opened again. giving: takes its members out of their groups.
    """

    task: WorkerTask | None = None
    peer: WorkerConnection | None = None
    called: bool = False
    fetched: bool = False
    ready_s: float = 0.0
    attempt: int = -1
    state: str = "waiting"
    since_s: float = field(default_factory=time.monotonic)
    runs: int = 0
    why: str = ""
    problems: Sequence[str] = ()
    bye: TaskEnd | None = None
    away: asyncio.Task[None] | None = None
    giving: asyncio.Task[None] | None = None

    def begin(self, task: WorkerTask) -> None:
        """Reset the state for a run that is about to be submitted."""
        self.stop_waiting()
        self.task = task
        self.peer, self.called, self.fetched, self.attempt = None, False, False, -1
        self.problems, self.bye, self.giving = (), None, None
        self.runs += 1
        self.become("waiting")

    def become(self, state: str) -> None:
        """Change the state."""
        self.state = state
        self.since_s = time.monotonic()

    def stop_waiting(self) -> None:
        """Stop waiting for a connection to come back."""
        if self.away is not None:
            self.away.cancel()
            self.away = None

    def send(self, order: Message) -> None:
        """Send an order, if there is a connection."""
        if self.peer is not None:
            self.peer.send(order)

    @property
    def ready(self) -> bool:
        """True if the worker's agents fetch, as far as is known."""
        return self.state == "ready" and self.peer is not None

    @property
    def unheard_s(self) -> float:
        """Seconds without a connection, of a worker that should have one; 0.0 of any other."""
        lost = self.peer is None and self.state in ("starting", "ready")
        return time.monotonic() - self.since_s if lost else 0.0

    def row(self) -> dict[str, Any]:
        """Return the worker's facts as a JSON-ready row."""
        who = None if self.peer is None else self.peer.who
        return {
            "worker": self.number,
            "state": "silent" if self.unheard_s else self.state,
            "since_s": round(time.monotonic() - self.since_s, 1),
            "runs": self.runs,
            "host": None if who is None else who.host,
            "pid": None if who is None else who.pid,
            "problems": list(self.problems),
            "ended_before": self.why or None,
        }


class SparkSupervisor(Keeper[KeptWorker]):
    """Keeps workers on Spark running until it is told to stop: as many as the last `resize`. Call all methods on one
    loop.

    make_task: makes a worker's task from its number and the name of its run. leave: takes a worker's members, by their
    id prefix, out of their groups. agents: names of the app's agents.
    """

    def __init__(
        self,
        jobs: SparkJobs,
        make_task: Callable[[int, str], WorkerTask],
        leave: Callable[[str], Awaitable[None]],
        *,
        agents: Sequence[str],
        drain_timeout_s: float,
    ) -> None:
        super().__init__(KeptWorker)
        self._jobs = jobs
        self._make_task = make_task
        self._drain_timeout_s = drain_timeout_s
        self.figures = WorkerFigures(agents)
        self._leave = leave
        self._drain_order: Message = {"do": "drain", "timeout_s": drain_timeout_s}
        self._asked: dict[int, asyncio.Future[Rows]] = {}
        self._numbers = itertools.count(1)
        self._drained = False
        self._was_ready = False

    # --- what is seen from outside ----------------------------------------------------------------------------------

    @property
    def ready(self) -> Mapping[int, str]:
        """The place of each ready worker, `host/process`, by number."""
        peers = {worker.number: worker.peer for worker in self._all if worker.ready}
        return {number: f"{peer.who.host}/{peer.who.pid}" for number, peer in peers.items() if peer is not None}

    def rows(self) -> Rows:
        """Return one JSON-ready row a worker."""
        return [worker.row() for worker in self._all]

    def problems(self) -> tuple[str, ...]:
        """Return the reasons why no worker works; empty if at least one does."""
        if self._stop.is_set() or self._drained:
            return ("the workers drain",)
        if self.ready:
            return ()
        told = [
            f"worker {worker.number} is {worker.state}" + (f": {worker.why}" if worker.why else "")
            for worker in self._all
        ]
        return ("no worker is ready", *told[:5])

    async def in_flight(self, *, stacks: bool = False) -> Rows:
        """Return the records that all handlers work on, oldest first, each row with its `worker`; workers without an
        answer are left out."""
        asked: dict[int, tuple[int, asyncio.Future[Rows]]] = {}
        for worker in tuple(self._places.values()):
            if worker.peer is not None:
                number = next(self._numbers)
                future = self._asked[number] = asyncio.get_running_loop().create_future()
                asked[worker.number] = number, future
                worker.send({"do": "in flight", "number": number, "stacks": stacks})
        if asked:
            await asyncio.wait([future for _, future in asked.values()], timeout=ASK_S)
        rows: Rows = []
        for worker_number, (number, future) in asked.items():
            del self._asked[number]
            if future.done():
                rows += [{"worker": worker_number, **row} for row in future.result()]
        return sorted(rows, key=lambda row: -float(row.get("age_s", 0.0)))

    async def show(self) -> None:
        """Write the records in flight to stderr, worker by worker."""
        rows = await self.in_flight(stacks=True)
        for worker in self._all:
            mine = [row for row in rows if row["worker"] == worker.number]
            sys.stderr.write(inflight.text(mine, worker=worker.number))
        sys.stderr.flush()

    # --- orders -----------------------------------------------------------------------------------------------------

    async def drain(self) -> bool:
        """Drain all workers; True: none was cut off. The driver stays, and starts no more workers."""
        self._drained = True
        if self._scaling is not None:
            self._scaling.cancel()
        self._leave_all()
        await self._until_empty()
        return not any(self._codes.values())

    async def run(self, workers: int, beside: Callable[[SparkSupervisor], Awaitable[None]] | None = None) -> int:
        """Keep workers until `stop`; return the exit code of `flowshare worker`. beside: runs as long, and may
        resize."""
        watching = asyncio.create_task(logged(self._watch, "watching the workers"))
        try:
            return await self._run(workers, beside)
        finally:
            watching.cancel()

    # --- one worker ---------------------------------------------------------------------------------------------------

    async def _run_again(self, worker: KeptWorker) -> None:
        failures = row = 0
        try:
            while not worker.leaving.is_set():
                begun_s = time.monotonic()
                ended = await self._run_once(worker)
                lived_s = time.monotonic() - begun_s
                worker.why = ended.why
                if worker.leaving.is_set():
                    self._left(worker, ended, lived_s)
                    return
                if ended.refused and not self._was_ready:
                    self.fail(EXIT_FAILED, ended.why)
                    return
                well = worker.fetched and time.monotonic() - worker.ready_s >= SETTLED_S
                row = 1 if well else row + 1
                failures = 0 if row == 1 and worker.fetched else failures + 1
                pause_s = PAUSES.after(failures)
                self._say_ended(worker, lived_s, row, pause_s)
                worker.become("pausing")
                if pause_s:
                    await pause(worker.leaving, pause_s)
        except SparkGone as error:
            self.fail(EXIT_FAILED, str(error))
        finally:
            worker.stop_waiting()
            self.figures.ended(worker.number)

    async def _run_once(self, worker: KeptWorker) -> TaskEnd:
        """Run one job, from its submission to its end. Raises: SparkGone."""
        task = self._make_task(worker.number, uuid.uuid4().hex[:12])
        worker.begin(task)
        job = asyncio.ensure_future(self._jobs.run(task))
        try:
            await either(job, worker.leaving, WAITING_S)
            if not (job.done() or worker.leaving.is_set() or worker.called):
                logger.warning("worker %d waits: Spark has no free core, or its executors do not start", worker.number)
            await either(job, worker.leaving)
            if not job.done():
                await self._drain(worker, task, job)
            ended = job.result() if job.done() else TaskEnd(code=None, why="Spark does not end its job")
        finally:
            if not job.done():  # all are given up, or Spark does not answer
                job.cancel()
        if ended.code in (0, 3):
            self._tell_others(worker)  # it has left its groups by itself
        elif worker.called:
            await self._give_up_once(worker)
        return worker.bye if ended.code is None and worker.bye is not None else ended

    async def _drain(self, worker: KeptWorker, task: WorkerTask, job: asyncio.Future[TaskEnd]) -> None:
        """Drain a worker; have Spark end it if it does not end, or if it has not begun."""
        worker.become("draining")
        if worker.called:
            worker.send(self._drain_order)
            why = await self._late(job, self._drain_timeout_s + KILL_AFTER_S)
            if why is None:
                return
            logger.error("worker %d is ended by Spark: %s; its records run again", worker.number, why)
        for _ in range(CANCEL_TRIES):  # again and again: the job may not have been submitted yet
            await self._jobs.cancel(task)
            await asyncio.wait({job}, timeout=CANCEL_S)
            if job.done():
                return
        logger.error("Spark does not end the job of worker %d", worker.number)

    def _left(self, worker: KeptWorker, ended: TaskEnd, lived_s: float) -> None:
        logger.info("worker %d has left after %.1f s (%s)", worker.number, lived_s, ended.why)
        cut_off = worker.fetched and ended.code is None
        self._codes[worker.number] = 3 if cut_off else (ended.code or 0)

    def _say_ended(self, worker: KeptWorker, lived_s: float, row: int, pause_s: float) -> None:
        again = f"again in {pause_s:.1f} s" if pause_s else "again at once"
        if row < OFTEN:
            logger.warning("worker %d ended (%s) after %.1f s; %s", worker.number, worker.why, lived_s, again)
        else:
            text = "worker %d keeps ending, %d times in a row now: %s; it is tried for ever, %s"
            logger.error(text, worker.number, row, worker.why, again)

    async def _watch(self) -> None:
        """End workers that Spark reports as running but that were not heard for long; check that Spark exists."""
        while True:
            await asyncio.sleep(LOOK_S)
            if (gone := await self._jobs.gone()) is not None:  # who has no job is told by nobody
                self.fail(EXIT_FAILED, gone)
                return
            for worker in self._all:
                if worker.unheard_s > LIVE_S and worker.task is not None:
                    logger.error("worker %d has not been heard for %.0f s: Spark ends it", worker.number, LIVE_S)
                    await self._jobs.cancel(worker.task)

    # --- what workers say -------------------------------------------------------------------------------------------

    def opened(self, peer: WorkerConnection) -> bool:
        """Take in a worker's call; False: the worker should end."""
        worker, who = self._places.get(peer.who.number), peer.who
        known = worker is not None and worker.task is not None and worker.task.run == who.run
        if worker is None or not known or who.attempt < worker.attempt:
            logger.warning("a worker that is not kept any more called, and is told to end: %s", who)
            return False
        before, worker.peer = worker.peer, peer
        if before is not None:
            if before.who != who:
                before.send({"do": "end"})
            before.close()
        worker.stop_waiting()
        worker.giving = None
        if who.attempt != worker.attempt:
            worker.attempt, worker.called, worker.bye = who.attempt, True, None
            logger.info("worker %d is process %d on %s", worker.number, who.pid, who.host)
            if worker.state != "draining":
                worker.become("starting")
        if worker.state == "draining":
            peer.send(self._drain_order)
        return True

    def closed(self, peer: WorkerConnection, silent: bool) -> None:
        """Take in the end of a worker's connection. silent: it was closed because the worker was silent."""
        worker = self._places.get(peer.who.number)
        if worker is None or worker.peer is not peer:
            return
        worker.peer = None
        worker.since_s = time.monotonic()
        if worker.bye is None:
            if silent:
                logger.warning("worker %d does not answer; its process may stand still", worker.number)
            limit_s = STILL_S if silent else AWAY_S
            worker.away = self._spawn(lambda: self._away(worker, limit_s), f"worker {worker.number} is away")

    def heard(self, peer: WorkerConnection, message: Message) -> None:
        """Take in a worker's message; a lasting one comes again over each connection."""
        worker = self._places.get(peer.who.number)
        if worker is None or worker.peer is not peer:
            return
        match message.get("say"):
            case "figures":
                self.figures.take(worker.number, (peer.who.run, peer.who.attempt), message.get("agents"))
                worker.problems = [str(one) for one in message.get("problems") or ()][:PROBLEMS_MAX]
            case "ready":
                if worker.state == "starting" or not worker.fetched:
                    worker.fetched, worker.ready_s = True, time.monotonic()
                if worker.state == "starting":
                    worker.become("ready")
                    self._now_ready()
            case "in flight":
                self._answered(message)
            case "bye":
                self._said_bye(worker, message)
            case _:
                pass  # of a later version

    def _answered(self, message: Message) -> None:
        future = self._asked.get(message.get("number") or 0)
        rows = message.get("rows")
        if future is not None and not future.done() and isinstance(rows, list):
            future.set_result([row for row in rows if isinstance(row, dict)])

    def _said_bye(self, worker: KeptWorker, message: Message) -> None:
        code, again = message.get("code"), worker.bye is not None
        worker.bye = TaskEnd(
            code=code if isinstance(code, int) else None,
            why=str(message.get("why")),
            refused=bool(message.get("refused")),
        )
        task = worker.task
        if message.get("stuck") and task is not None and not again:
            self._spawn(lambda: self._jobs.cancel(task), f"end worker {worker.number}")

    # --- the dead ----------------------------------------------------------------------------------------------------

    async def _give_up_once(self, worker: KeptWorker) -> None:
        """Make a dead worker's members leave, so that others get its partitions. Once a run; waits for the end."""
        task = worker.task
        if task is None:
            return
        if worker.giving is None:
            worker.giving = self._spawn(lambda: self._give_up(worker, task), f"give up worker {worker.number}")
        if worker.giving is not None:
            await asyncio.wait({worker.giving})

    def _tell_others(self, gone: KeptWorker) -> None:
        """Tell the other workers to ask their groups for the partitions of a worker that has left."""
        for worker in tuple(self._places.values()):
            if worker is not gone:
                worker.send({"do": "heartbeat"})

    async def _give_up(self, worker: KeptWorker, task: WorkerTask) -> None:
        self.figures.ended(worker.number)
        await self._leave(task.member_id)
        self._tell_others(worker)

    async def _away(self, worker: KeptWorker, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        worker.away = None  # what follows is not to be stopped
        if worker.peer is None and worker.bye is None:
            await self._give_up_once(worker)

    # --- helpers ----------------------------------------------------------------------------------------------------

    @property
    def _all(self) -> list[KeptWorker]:
        return sorted(self._places.values(), key=lambda worker: worker.number)

    @property
    def _closed(self) -> bool:
        return self._stop.is_set() or self._drained

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None] | None:
        return None if self._group is None else self._group.create_task(logged(work, name), name=name)

    def _now_ready(self) -> None:
        self._was_ready = True
        if len(self.ready) == self.size:
            logger.info("all %d workers are ready", self.size)
