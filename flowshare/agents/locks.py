"""Locks of what an agent holds: renewed while handlers run, and taken away from handlers that are stuck."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.acks import AckSender
from flowshare.agents.chunk import Chunk, runs
from flowshare.agents.held import Holdings
from flowshare.agents.prefetch import Prefetch

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.agents.pair import Member
    from flowshare.agents.pool import Pool
    from flowshare.clock import Clock, TimerHandle

TICK_S: Final = 0.25
"""How often locks and stuck handlers are looked at while records are held."""
RENEW_LEFT: Final = 0.6
"""Locks are renewed when this part of their time is left."""
LOCK_S: Final = 30.0
"""Taken for the lock's time until the server told it."""


class LockKeeper:
    """Looks after the locks of one agent; on the service loop. No timer runs while nothing is held."""

    def __init__(
        self, agent: ShareAgent, *, pool: Pool, holdings: Holdings, acks: AckSender, prefetch: Prefetch, clock: Clock
    ) -> None:
        self._agent = agent
        self._pool = pool
        self._holdings = holdings
        self._acks = acks
        self._prefetch = prefetch
        self._clock = clock
        self._member: Member | None = None
        self._ticker: TimerHandle | None = None
        self._renewing: asyncio.Task[bool] | None = None
        self._single: set[asyncio.Task[None]] = set()

    def start(self, member: Member) -> None:
        """Begin, for this member."""
        self._member = member

    async def stop(self) -> None:
        """End all renewals."""
        self._member = None
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        tasks: list[asyncio.Task[Any]] = [*self._single, *([self._renewing] if self._renewing is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def watch(self) -> None:
        """Something is held: look at it from time to time."""
        if self._ticker is None and self._member is not None:
            self._ticker = self._clock.call_later(TICK_S, self._tick)

    def renew_one(self, chunk: Chunk, offset: int, soon: Callable[[Callable[[], object]], None]) -> _Held:
        """Renew one lock now, from any thread; `soon` runs a function on the service loop."""
        future: concurrent.futures.Future[bool] = concurrent.futures.Future()

        async def renew() -> None:
            lost, deadline = await self._acks.renew((chunk.tp, chunk.generation), [(offset, offset)])
            if not future.done():
                future.set_result(bool(deadline) and not lost)

        def begin() -> None:
            task = asyncio.ensure_future(renew())
            self._single.add(task)
            task.add_done_callback(self._single.discard)

        soon(begin)
        return future

    async def renew_all(self) -> bool:
        """Renew all that is held, now; whether each lock is renewed or known to be lost. Without renewals those are
        taken for lost that have lapsed by the clock."""
        if self._agent.options.renew:
            return await self._renew(list(self._holdings.live), self._lock_s())
        now = self._clock.monotonic()
        for chunk in [chunk for chunk in self._holdings.live if chunk.deadline <= now]:
            self._holdings.lose(chunk, chunk.unfinished())
        return True

    def _tick(self) -> None:
        self._ticker = None
        member = self._member
        if member is None or not self._holdings.live:
            return
        now = self._clock.monotonic()
        self._holdings.look(member)
        self._look_for_stuck_handlers(now)
        if self._agent.options.renew and (self._renewing is None or self._renewing.done()):
            lock_s = self._lock_s()
            due = [chunk for chunk in self._holdings.live if chunk.deadline - now < lock_s * RENEW_LEFT]
            if due:
                self._renewing = asyncio.create_task(self._renew(due, lock_s), name=f"renew {self._agent.name}")
        self._ticker = self._clock.call_later(TICK_S, self._tick)

    def _look_for_stuck_handlers(self, now: float) -> None:
        """Records that wait while no slot gets free, or while nobody takes them (the loop is blocked), go back."""
        batch = self._agent.options.batch
        busy = self._pool.busy
        full = busy >= len(self._pool.slots) or (batch is None and self._holdings.buffered > 0)
        if self._prefetch.still_running(busy * (batch.size if batch else 1), now, full=full):
            self._holdings.give_back()

    async def _renew(self, chunks: list[Chunk], lock_s: float) -> bool:
        """Whether of each lock is known what became of it."""
        abandoned = self._pool.abandoned(lock_s)
        known = True
        for chunk in chunks:
            held = [offset for offset in chunk.unfinished() if (id(chunk), offset) not in abandoned]
            if held and self._holdings.holds(chunk):
                lost, deadline = await self._acks.renew((chunk.tp, chunk.generation), runs(held))
                if deadline:
                    chunk.deadline = deadline
                gone = [offset for first, last in lost for offset in range(first, last + 1)]
                self._holdings.lose(chunk, gone)
                known = known and (bool(deadline) or len(gone) == len(held))
        return known

    def _lock_s(self) -> float:
        told_ms = 0 if self._member is None else self._member.lock_timeout_ms
        return told_ms / 1000 if told_ms > 0 else LOCK_S


_Held = concurrent.futures.Future[bool]
