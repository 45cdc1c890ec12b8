"""Two members of one group in one process: one for the agent's topics, one for its retry topic.

Kafka's assignor spreads the partitions of members that all have the same topics over them: of two topics with one
partition each, every member gets one. Members with different topics are assigned topic by topic, each to all that
want it, so that a retry topic takes no member away from the work.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.client.arrivals import Arrivals
from flowshare.client.member import ShareMember
from flowshare.client.node import Generations

if TYPE_CHECKING:
    from flowshare.agents.agent import ShareAgent
    from flowshare.client.fetching import Plan
    from flowshare.client.link import Connect
    from flowshare.client.nodes import Late
    from flowshare.client.ranges import AckResult, Fetched, TopicIdPartition
    from flowshare.clock import Clock
    from flowshare.protocol.messages import AckBatch, TopicPartition

SIDE_RECORDS_MAX: Final = 100
"""Records of the retry topic that one fetch asks for."""
SIDE_PREFIX: Final = "~"
"""Begins the second member's id, so that it sorts behind those that may lead."""
ID_MAX: Final = 36
"""Kafka's limit for a member's id, in characters."""


class Member(Protocol):
    """What agents ask of a member; `ShareMember` says what each does."""

    @property
    def member_id(self) -> str:
        """Its id."""
        ...

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Its partitions."""
        ...

    @property
    def lock_timeout_ms(self) -> int:
        """How long records are locked."""
        ...

    @property
    def generation(self) -> int:
        """Changes when something held may be lost."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives."""
        ...

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether something acquired can still be its."""
        ...

    async def start(self) -> None:
        """Join."""

    async def confirm(self) -> None:
        """Wait for the group's answer to a heartbeat sent from now on."""

    def unsubscribe(self) -> None:
        """Leave its partitions to others; what is held stays held."""

    def ask(self, plan: Plan) -> None:
        """Begin to acquire."""

    async def fetched(self) -> list[Fetched]:
        """What was acquired."""
        ...

    async def last_fetch(self) -> list[Fetched]:
        """Take what is under way."""
        ...

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckBatch]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Acknowledge."""
        ...

    async def close(self, *, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None) -> None:
        """Leave."""


def member_ids(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """The id of each agent's member, by the agent's name, in a process whose ids are to begin so."""
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(names))}
    assert all(len(side_id(one)) <= ID_MAX for one in ids.values()), f"{prefix!r} is too long for members' ids"
    return ids


def side_id(member_id: str) -> str:
    """The id of the second member of an agent whose first one has this id."""
    return f"{SIDE_PREFIX}{member_id}"


def new_member(
    connect: Connect, agent: ShareAgent, side_topic: str | None, *, clock: Clock, member_id: str | None = None
) -> Member:
    """An agent's member; with a retry topic both of its members. member_id: None draws one."""
    if side_topic is not None:
        return MemberPair(connect, agent, side_topic, clock=clock, member_id=member_id)
    return ShareMember(connect, group_id=agent.group, topics=agent.topics, clock=clock, member_id=member_id)


class MemberPair:
    """Both as one. Their connections have different numbers, so that each acknowledgement finds its way back."""

    def __init__(
        self, connect: Connect, agent: ShareAgent, side_topic: str, *, clock: Clock, member_id: str | None = None
    ) -> None:
        generations = Generations()
        self._arrivals = Arrivals()
        self._main = ShareMember(
            connect,
            group_id=agent.group,
            topics=agent.topics,
            clock=clock,
            member_id=member_id,
            generations=generations,
            arrivals=self._arrivals,
        )
        self._side = ShareMember(
            connect,
            group_id=agent.group,
            topics=(side_topic,),
            clock=clock,
            member_id=side_id(member_id or uuid.uuid4().hex),
            generations=generations,
            arrivals=self._arrivals,
        )

    @property
    def member_id(self) -> str:
        """Id of the member for the agent's topics."""
        return self._main.member_id

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions of both."""
        return self._main.assignment | self._side.assignment

    @property
    def lock_timeout_ms(self) -> int:
        """The group's, as of the last answers; 0 before the first."""
        known = [one.lock_timeout_ms for one in (self._main, self._side) if one.lock_timeout_ms > 0]
        return min(known, default=0)

    @property
    def generation(self) -> int:
        """Changes when something held may be lost."""
        return self._main.generation + self._side.generation

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives."""
        return self._main.trouble or self._side.trouble

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether something acquired can still be one's."""
        return self._main.holds(tp, generation) or self._side.holds(tp, generation)

    async def start(self) -> None:
        """Join with both. Raises: NotConnected, ServerError."""
        await asyncio.gather(self._main.start(), self._side.start())

    async def confirm(self) -> None:
        """Have both confirmed. Raises: ClientError."""
        await self._main.confirm()
        await self._side.confirm()

    def unsubscribe(self) -> None:
        """Leave the partitions of both to others."""
        self._main.unsubscribe()
        self._side.unsubscribe()

    def ask(self, plan: Plan) -> None:
        """Begin to acquire with both. Raises: ServerError, Closed."""
        self._main.ask(plan)
        self._side.ask(plan._replace(records_max=min(plan.records_max, SIDE_RECORDS_MAX)))

    async def fetched(self) -> list[Fetched]:
        """What either brings first. Raises: ServerError."""
        return await self._main.fetched()

    async def last_fetch(self) -> list[Fetched]:
        """What is on its way to either. Raises: ServerError."""
        await asyncio.gather(self._main.end_fetches(), self._side.end_fetches())
        return self._arrivals.take()

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckBatch]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """To whichever acquired it: the connection's number says."""
        member = self._side if generation is not None and self._side.acquired_over(generation) else self._main
        return await member.acknowledge(acks, generation=generation, on_late=on_late)

    async def close(self, *, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None) -> None:
        """Leave with both."""
        await asyncio.gather(self._main.close(unrun=unrun), self._side.close(unrun=unrun))
