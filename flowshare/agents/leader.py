"""Which process of an app leads: the one for `on_leader` timers and cron jobs, decided by share-group membership.

Leader is the member with the lowest id in the group of the app's first agent (by name). An app without agents has no
group; where a single process can use the backend, that process leads.
"""

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
"""How often the members are looked at."""


class Leadership:
    """Keeps `app.leads` up to date while an agent's member is in its group; on the service loop."""

    def __init__(self, agent: ShareAgent, *, clock: Clock, admin: ShareAdmin) -> None:
        self._agent = agent
        self._clock = clock
        self._admin = admin
        self._task: asyncio.Task[None] | None = None

    @property
    def decides(self) -> bool:
        """Whether this agent's group is the one that decides."""
        return min(self._agent.app.share_agents) == self._agent.name

    async def start(self, member_id: str) -> None:
        """Look now, and then every few seconds; does nothing when another agent's group decides."""
        if self.decides:
            await self._look(member_id)
            self._task = asyncio.create_task(self._watch(member_id), name=f"leader {self._agent.group}")

    async def stop(self) -> None:
        """This process leads no longer."""
        task, self._task = self._task, None
        if task is not None:
            self._agent.app.leads = False
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, member_id: str) -> None:
        while True:
            await self._clock.sleep(ASK_S)
            await self._look(member_id)

    async def _look(self, member_id: str) -> None:
        try:
            group = await self._admin.describe_group(self._agent.group)
        except ClientError as error:
            # Nobody may lead twice: who cannot see the group does not lead.
            self._agent.app.leads = False
            logger.warning("group=%s: who leads is not known: %s", self._agent.group, error)
            return
        leads = member_id == min((member.member_id for member in group.members), default="")
        if leads != self._agent.app.leads:
            self._agent.app.leads = leads
            logger.info("group=%s: this process %s", self._agent.group, "leads" if leads else "does not lead")
