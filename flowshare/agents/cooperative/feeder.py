"""`CooperativeFeeder`: the feeder of share agents, over a member of a cooperative group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from flowshare.agents.cooperative.member import CooperativeFeed
from flowshare.agents.cooperative.setup import prepare
from flowshare.agents.feed.feeder import Feeder
from flowshare.backend.base import Capabilities

if TYPE_CHECKING:
    from flowshare.agents.cooperative.agent import CooperativeAgent
    from flowshare.agents.feed.acknowledgements import Observer
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.run.pool import Environment, Pool

HERE: Final = Capabilities(durable=True, settling=False, server_dead_letters=False)
"""What the member in this process can do, wherever the group's state is."""


class CooperativeFeeder(Feeder):
    """One agent's member, its buffer and its commits."""

    agent: CooperativeAgent

    def __init__(
        self,
        agent: CooperativeAgent,
        pool: Pool,
        environment: Environment,
        *,
        observer: Observer | None = None,
        member_id: str | None = None,
    ) -> None:
        """As `Feeder`."""
        super().__init__(agent, pool, replace(environment, capabilities=HERE), observer=observer, member_id=member_id)
        self._where = environment.capabilities

    async def _joined(self) -> CooperativeFeed:
        """Prepare topics and join."""
        await prepare(self.agent, self._admin, self._where, self._clock)
        member = CooperativeFeed(self._connect, self.agent, clock=self._clock, member_id=self._member_id)
        self._member = member
        await member.start()
        told = self._held.on_lost

        def lost(chunk: Chunk, offsets: set[int]) -> None:
            member.given_up(chunk.tp, offsets)
            if told is not None:
                told(chunk, offsets)

        self._held.on_lost = lost
        return member
