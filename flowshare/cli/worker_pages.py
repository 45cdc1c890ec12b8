"""The workers' own pages, for what only they know: handlers in flight and where each of them is, counters of agents.

Those of an embedded path are found by it; others are named (`--web host:port`). They are asked by the way that their
own user has, else with the operator's token. A worker that does not answer within `ASK_S`, or says what no worker says,
is told as silent; it holds up nobody, and is not asked again before it is done with the last question. One that let a
question lie is waited for no longer than `AGAIN_S` until it has answered one in time, and takes none of the threads of
the others.
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.pages import own_user
from flowshare.backend.path_workers import running_workers
from flowshare.cli import worker_answers
from flowshare.ops.session import embedded_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ASK_S: Final = 2.0
LIMIT_S: Final = 2 * ASK_S
"""How long all of them may take together: one that answers in pieces, or so many that they are asked in turns."""
AGAIN_S: Final = 0.2
"""How long for one that let the last question lie."""
ASKERS: Final = 32
SLOW_ASKERS: Final = 8
WORKERS_MAX: Final = 256
"""Workers that are asked; of more the first ones."""
KEPT_S: Final = 0.9
ANSWER_MAX: Final = 8 * 1024 * 1024
"""Bytes of an answer."""
ANSWERS_MAX: Final = 64 * 1024 * 1024
"""Bytes of the answers of all workers to one question: of very many, each may say less."""
OF_EACH: Final = ("/ready", "/workers", "/pipelines")
"""Pages that each is asked for, whoever else speaks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A running worker. address: `host:port` of its pages. since_ms: when it came. Of one that was named no more is
    known."""

    name: str
    address: str
    host: str | None = None
    pid: int | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The answers of workers. rows: by worker's name. silent: by name, why other workers gave no answer."""

    rows: Mapping[str, Any] = field(default_factory=dict[str, Any])
    silent: Mapping[str, str] = field(default_factory=dict[str, str])


def needed_workers(told: Told) -> dict[tuple[str, str], float]:
    """Return the workers that each group and topic needs, where known, from the answers of `Workers.topics`."""
    found: dict[tuple[str, str], float] = {}
    for rows in told.rows.values():
        for row in rows:
            if None not in (row.get("group"), row.get("topic"), row.get("needed_workers")):
                found.setdefault((row["group"], row["topic"]), row["needed_workers"])
    return found


class Workers:
    """Asks them. url: of the log. addresses: of workers that it does not know."""

    def __init__(self, url: str, addresses: Sequence[str] = (), token: bytes | None = None) -> None:
        self._path = embedded_path(url)
        self._addresses = tuple(addresses)
        self._token = token
        self._askers = ThreadPoolExecutor(ASKERS, "ask worker")
        self._kept: dict[str, tuple[float, asyncio.Future[Told]]] = {}
        self._bytes_max = ANSWER_MAX
        self._slow_askers = ThreadPoolExecutor(SLOW_ASKERS, "ask slow worker")
        self._slow: set[str] = set()
        """Addresses of those who have let the last question lie."""
        self._late: set[str] = set()
        """Addresses of those who have not answered in time and are still waited for."""
        self._silent: frozenset[str] = frozenset()
        """Names of those who said nothing last time: they are asked last."""

    @property
    def known(self) -> bool:
        """True if workers can be found here at all."""
        return self._path is not None or bool(self._addresses)

    def close(self) -> None:
        """Ask nobody any more."""
        self._askers.shutdown(wait=False, cancel_futures=True)
        self._slow_askers.shutdown(wait=False, cancel_futures=True)

    async def running(self) -> list[Worker]:
        """Those that run, the first to come first."""
        found = [Worker(name=address, address=address) for address in self._addresses]
        if self._path is not None:
            entries = await asyncio.to_thread(running_workers, self._path)
            found += [
                Worker(name=str(one.pid), address=one.address, host=one.host, pid=one.pid, since_ms=one.since_ms)
                for one in entries
            ]
        return found[:WORKERS_MAX]

    async def in_flight(self, *, stacks: bool = False) -> Told:
        """Records that handlers work on, a list a worker."""
        return await self._all("/inflight?stacks=1" if stacks else "/inflight", worker_answers.handlers)

    async def in_hand(self) -> Told:
        """Ask each worker which records its agents hold and which errors their handlers raised last; one list a worker
        (`ops.in_hand`)."""
        return await self._all("/agents", worker_answers.agents)

    async def topics(self) -> Told:
        """Backlog and needed workers a group and topic, a list a worker."""
        return await self._all("/lag?topics=1", worker_answers.needs)

    async def scale(self) -> Told:
        """How many workers the app needs, one answer a worker."""
        return await self._all("/scale", worker_answers.scale)

    async def ready(self) -> Told:
        """Ask each worker if it is ready, and if not, why."""
        return await self._all("/ready", worker_answers.readiness, (200, 503))

    async def metrics(self) -> Told:
        """Its metrics, by name, a mapping a worker."""
        return await self._all("/metrics", worker_answers.families)

    async def supervised(self) -> Told:
        """Of each supervisor that was named its workers: number, process, address, state."""
        return await self._all("/workers", worker_answers.supervised)

    async def pipelines(self) -> Told:
        """Of each process that was named and runs pipelines on Spark: state, rate, batch time and backlog of each."""
        return await self._all("/pipelines", worker_answers.pipelines)

    async def order(self, address: str, page: str, timeout_s: float, figure: str) -> float:
        """The figure that a worker or supervisor answers to an order (POST). Raises: LookupError, OSError,
        ValueError."""
        worker = next((one for one in await self.running() if one.address == address), None)
        if worker is None:
            raise LookupError(f"nobody with pages at {address} runs here any more")
        token = self._token_for(worker)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(
            self._askers,
            lambda: own_user.ask(address, page, method="POST", timeout_s=timeout_s, token=token, bytes_max=ANSWER_MAX),
        )
        if answer.status != 200:
            raise OSError(f"{address} answered {answer.status}: {_line(answer.body)}")
        return worker_answers.ordered(answer.body, figure)

    def _token_for(self, worker: Worker) -> bytes | None:
        """Named workers are shown the token. Those of the path run here, as this user, and need none: who listens at
        the port of one that has just ended, or that lives on another machine, is somebody else."""
        return None if worker.pid is not None and sys.platform == "linux" else self._token

    async def _all(self, page: str, read: Callable[[Any], Any], statuses: Sequence[int] = (200,)) -> Told:
        """Asked once for all who ask within a second."""
        now_s = time.monotonic()
        kept = self._kept.get(page)
        if kept is None or (kept[1].done() and now_s - kept[0] >= KEPT_S):
            kept = self._kept[page] = now_s, asyncio.ensure_future(self._ask_all(page, read, statuses))
        return await asyncio.shield(kept[1])

    async def _ask_all(self, page: str, read: Callable[[Any], Any], statuses: Sequence[int]) -> Told:
        workers = sorted(await self.running(), key=lambda one: one.name in self._silent)
        self._bytes_max = min(ANSWER_MAX, ANSWERS_MAX // max(1, len(workers)))
        if page not in OF_EACH and self._addresses:
            covered = await self._covered()
            workers = [one for one in workers if one.address not in covered]
        asked = [self._asked(one, page, read, statuses) for one in workers]
        rows: dict[str, Any] = {}
        silent: dict[str, str] = {}
        for worker, answer in zip(workers, await asyncio.gather(*asked), strict=True):
            if isinstance(answer, _Silent):
                silent[worker.name] = answer.why
            else:
                rows[worker.name] = answer
        if page not in ("/workers", "/pipelines"):  # few have these
            self._silent = frozenset(silent)
        return Told(rows, silent)

    async def _covered(self) -> frozenset[str]:
        """Pages of workers for whom a supervisor that was named speaks."""
        told = await self.supervised()
        return frozenset(row["address"] for rows in told.rows.values() for row in rows if row.get("address"))

    async def _asked(self, worker: Worker, page: str, read: Callable[[Any], Any], statuses: Sequence[int]) -> Any:
        where = worker.address
        if where in self._late:
            return _Silent("it has not answered the last question yet")
        slow = where in self._slow
        limit_s = AGAIN_S if slow else LIMIT_S
        asking = (self._slow_askers if slow else self._askers).submit(self._one, worker, page, read, statuses)
        asked = asyncio.wrap_future(asking)
        done, _ = await asyncio.wait([asked], timeout=limit_s)
        if done:
            self._heard(where, asked)
            return asked.result()
        if slow or not asking.cancel():  # else no thread has begun with it
            self._late.add(where)
            self._slow.add(where)
            asked.add_done_callback(partial(self._heard, where))
        return _Silent(f"it has not answered within {limit_s:g} s")

    def _heard(self, where: str, asked: asyncio.Future[Any]) -> None:
        """It has answered, or the question was given up."""
        self._late.discard(where)
        if asked.cancelled():
            return
        answer = asked.result()
        if isinstance(answer, _Silent) and answer.late:
            self._slow.add(where)
        else:
            self._slow.discard(where)

    def _one(self, worker: Worker, page: str, read: Callable[[Any], Any], statuses: Sequence[int]) -> Any:
        try:
            token, bytes_max = self._token_for(worker), self._bytes_max
            answer = own_user.ask(worker.address, page, timeout_s=ASK_S, token=token, bytes_max=bytes_max)
            if answer.status not in statuses:
                return _Silent(f"it answered {answer.status}: {_line(answer.body)}")
            return read(answer.body)
        except (OSError, HTTPException, ValueError, RecursionError, own_user.OtherUser) as error:
            return _Silent(str(error) or type(error).__name__, isinstance(error, TimeoutError))


@dataclass(frozen=True, slots=True)
class _Silent:
    """late: it let the question lie, as against having refused it."""

    why: str
    late: bool = False


def _line(body: bytes) -> str:
    return " ".join(body[:300].decode(errors="replace").split())
