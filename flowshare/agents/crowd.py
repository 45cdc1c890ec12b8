"""How many members a group has: they share the record locks of each partition, and nobody may take them all."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.client.admin import ShareAdmin
    from flowshare.clock import Clock

logger = logging.getLogger("flowshare.agents")

ASK_S: Final = 5.0
SOON_S: Final = 1.0
"""After the start members come one after the other."""
SOON_TIMES: Final = 5
WINDOW_PARTS: Final = 3
"""Fetches that a member's record locks are meant for."""


class Crowd:
    """Counts a group's members now and then; on the service loop. `share`: record locks for one of them."""

    def __init__(self, agent: ShareAgent, locks: int, *, clock: Clock, admin: ShareAdmin) -> None:
        self._group = agent.group
        self._topics = frozenset(agent.topics)
        self._locks = locks
        self._clock = clock
        self._admin = admin
        self._task: asyncio.Task[None] | None = None
        self.members = 1

    @property
    def share(self) -> int:
        """Record locks for one member, at least one."""
        return max(1, self._locks // self.members)

    @property
    def part(self) -> int:
        """Locks for one fetch, not all at once: while some are fetched, others are handled or acknowledged."""
        return max(1, self.share // WINDOW_PARTS)

    async def start(self) -> None:
        """Look now, and then every few seconds."""
        await self._look()
        self._task = asyncio.create_task(self._watch(), name=f"members {self._group}")

    async def stop(self) -> None:
        """Look no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        looks = 0
        while True:
            await self._clock.sleep(SOON_S if looks < SOON_TIMES else ASK_S)
            looks += 1
            await self._look()

    async def _look(self) -> None:
        try:
            group = await self._admin.describe_group(self._group)
        except ClientError as error:
            logger.debug("group=%s: its members cannot be counted: %s", self._group, error)
            return
        self.members = max(1, sum(not self._topics.isdisjoint(member.subscribed_topics) for member in group.members))
