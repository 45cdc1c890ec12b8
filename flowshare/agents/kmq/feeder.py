"""`KmqFeeder` is the feeder of share agents, over a member that reads a KMQ queue.

What a member has marked is its own until the time in the start marker is over, and cannot be renewed or given back: an
agent that pauses or stops handles it. A record that no handler has begun in that time is dropped here, since the
tracker sends it again. A late handler still ends its record, which may have been sent again by then.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from flowshare.agents.feed.feeder import Feeder
from flowshare.agents.feed.locks import TICK_S, LockKeeper
from flowshare.agents.kmq.completion import KmqCompletion
from flowshare.agents.kmq.member import KmqMember
from flowshare.agents.kmq.setup import prepare
from flowshare.backend.base import EMBEDDED

if TYPE_CHECKING:
    from flowshare.agents.feed.acknowledgements import Observer
    from flowshare.agents.kmq.agent import KmqAgent
    from flowshare.agents.run.pool import Environment, Pool
    from flowshare.client.kmq.tracker import QueueTracker

logger = logging.getLogger("flowshare.agents")


class StartLimits(LockKeeper):
    """Keeper of an agent's times: no handler begins a record whose time is over, and none is renewed."""

    def watch(self) -> None:
        """Look at the held records now, and from time to time."""
        self._look()
        super().watch()

    def _tick(self) -> None:
        self._ticker = None
        if self._member is None or not self._held.live:
            return
        if self._prefetch.still_running(self._pool.busy, self._clock.monotonic(), full=self._held.buffered > 0):
            logger.debug("agent=%s: handlers take long, fewer records are marked", self._agent.name)
        self._look()
        self._ticker = self._clock.call_later(TICK_S, self._tick)

    def _look(self) -> None:
        """Drop records that nobody has begun in time; no handler begins one before this was checked again."""
        now = self._clock.monotonic()
        for chunk in [chunk for chunk in self._held.live if chunk.waiting and chunk.deadline <= now]:
            self._held.drop_waiting(chunk)
        permit = self._pool.permit
        permit.until_s = min((chunk.deadline for chunk in self._held.live if chunk.waiting), default=float("inf"))
        if permit.wanted:
            permit.wanted = False
            self._wake()


class KmqFeeder(Feeder):
    """Feeder of one KMQ agent: its member, its buffer and its markers."""

    agent: KmqAgent
    completion = KmqCompletion
    keeper = StartLimits
    returns = False

    def __init__(
        self,
        agent: KmqAgent,
        pool: Pool,
        environment: Environment,
        *,
        observer: Observer | None = None,
    ) -> None:
        """As `Feeder`."""
        # No broker has a part in delays and acknowledgements.
        super().__init__(agent, pool, replace(environment, capabilities=EMBEDDED), observer=observer)
        self._environment = environment
        self._watches = False  # a standstill costs no record: its limits hold after it as before
        self._queue: KmqMember | None = None

    @property
    def tracker(self) -> QueueTracker | None:
        """The feeder's own tracker, if it has one."""
        return None if self._queue is None else self._queue.tracker

    async def finished(self) -> bool:
        """Return True if all records of the member's partitions are handled and its own tracker has none to send again.

        Raises: ServerError, OSError, ClientError.
        """
        return self._queue is not None and await self._queue.finished() and self.idle

    def problems(self) -> list[str]:
        """Return the reasons why the agent is not healthy."""
        return super().problems() + ([] if self._queue is None else self._queue.problems())

    async def _joined(self) -> KmqMember:
        """Prepare topics and join."""
        await prepare(self.agent, self._admin, self._clock)
        member = self._member = self._queue = KmqMember(self.agent, self._environment, self._stats)
        await member.start()
        return member

    def _give_back(self) -> None:
        """Mark no more records; those that are marked are handled."""
        if self._queue is not None:
            self._queue.withdraw()
