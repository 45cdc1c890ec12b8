"""An agent's member of its group; with a retry topic two members, which the feeder sees as one (`MemberPair`).

Kafka's assignor spreads the partitions of members that all have the same topics over them: of two topics with one
partition each, every member gets one. Members with different topics are assigned topic by topic, each topic to all
members that want it, so that a retry topic takes no member away from the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from flowshare.client.errors import ClientError
from flowshare.client.session.arrivals import Arrivals
from flowshare.client.session.custody import Generations
from flowshare.client.session.member import ShareMember
from flowshare.protocol.messages import TopicPartition

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent
    from flowshare.client.net.link import Connect
    from flowshare.client.session.ranges import AckResult, Fetched, TopicIdPartition
    from flowshare.client.session.share_session import Plan
    from flowshare.client.session.shell import Late, Told
    from flowshare.clock import Clock
    from flowshare.protocol.messages import SettleOutput
    from flowshare.share.types import AckRange

Unrun = Mapping[TopicPartition, Sequence[tuple[int, int]]]


class Member(Protocol):
    """A member as the feed uses it: a `ShareMember`, two of them, or a member of a cooperative group."""

    @property
    def member_id(self) -> str:
        """Its id in the group."""
        ...

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions that the member reads."""
        ...

    @property
    def lock_timeout_ms(self) -> int:
        """Milliseconds that the member's locks last without a renewal; 0: not known yet."""
        ...

    @property
    def generation(self) -> int:
        """Number that changes when a held record may be lost."""
        ...

    @property
    def trouble(self) -> str | None:
        """Reason why nothing arrives; None when all is well."""
        ...

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Tell if records acquired under this generation can still be the member's."""
        ...

    async def start(self) -> None:
        """Join the group. Raises: NotConnected, ServerError."""

    async def confirm(self) -> None:
        """Wait until the held records are known. Raises: ClientError."""

    def unsubscribe(self) -> None:
        """Leave the partitions to others."""

    def ask(self, plan: Plan) -> None:
        """Begin to acquire. Raises: ServerError, Closed."""

    def on_fetched(self, listener: Callable[[], object] | None) -> None:
        """Call `listener` when an `ask` has ended."""

    def take_fetched(self) -> list[Fetched]:
        """Return the records that the last `ask` brought. Raises: ServerError."""
        ...

    async def last_fetch(self) -> list[Fetched]:
        """Return the records that are still on their way, for a member that stops. Raises: ServerError."""
        ...

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Settle records."""
        ...

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        rides: bool = False,
    ) -> None:
        """Settle records without waiting; `told` is called once."""

    async def close(self, *, unrun: Unrun | None = None) -> None:
        """Release records and leave."""

    async def leave_to_locks(self, *, unrun: Unrun) -> None:
        """Leave while handlers go on: their records are left to their locks."""


@runtime_checkable
class SettlingMember(Protocol):
    """A member that can accept and reject records in one step with outputs."""

    def begin_settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckRange],
        outputs: Sequence[SettleOutput],
        told: Told,
        *,
        generation: int | None = None,
    ) -> None:
        """Settle records of one partition; `told` is called once with a list of one result. Raises: ValueError."""


RETRY_RECORDS_MAX: Final = 100
"""Records that one fetch of the retry topic asks for."""
RETRY_MEMBER_PREFIX: Final = "~"
"""Prefix of the second member's id, so that it sorts behind members that may lead."""
ID_MAX: Final = 36
"""Kafka's limit for a member's id, in characters."""


def member_ids(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return the id of each agent's member, by the agent's name. prefix: the process's prefix of ids."""
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(sorted(names))}
    assert all(len(retry_member_id(one)) <= ID_MAX for one in ids.values()), f"{prefix!r} is too long for members' ids"
    return ids


def retry_member_id(member_id: str) -> str:
    """Return the id of an agent's second member. member_id: of its first one."""
    return f"{RETRY_MEMBER_PREFIX}{member_id}"


def new_member(
    connect: Connect, agent: ShareAgent, retry_topic: str | None, *, clock: Clock, member_id: str | None = None
) -> Member:
    """Make an agent's member; with a retry topic, both of its members. member_id: None draws one."""
    if retry_topic is not None:
        return MemberPair(connect, agent, retry_topic, clock=clock, member_id=member_id)
    return ShareMember(connect, group_id=agent.group, topics=agent.topics, clock=clock, member_id=member_id)


class MemberPair:
    """Both members as one. Their connections have different generations, so that each acknowledgement finds its way
    back."""

    def __init__(
        self, connect: Connect, agent: ShareAgent, retry_topic: str, *, clock: Clock, member_id: str | None = None
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
        self._retry = ShareMember(
            connect,
            group_id=agent.group,
            topics=(retry_topic,),
            clock=clock,
            member_id=retry_member_id(member_id or uuid.uuid4().hex),
            generations=generations,
            arrivals=self._arrivals,
        )

    @property
    def member_id(self) -> str:
        """Id of the member for the agent's topics."""
        return self._main.member_id

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions of both members."""
        return self._main.assignment | self._retry.assignment

    @property
    def lock_timeout_ms(self) -> int:
        """The group's lock timeout in milliseconds, as of the last answers; 0 before the first."""
        known = [one.lock_timeout_ms for one in (self._main, self._retry) if one.lock_timeout_ms > 0]
        return min(known, default=0)

    @property
    def generation(self) -> int:
        """Number that changes when a held record may be lost."""
        return self._main.generation + self._retry.generation

    @property
    def trouble(self) -> str | None:
        """Reason why nothing arrives."""
        return self._main.trouble or self._retry.trouble

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Tell if records acquired under this generation can still belong to one of the two members."""
        return self._main.holds(tp, generation) or self._retry.holds(tp, generation)

    async def start(self) -> None:
        """Join with both members. Raises: NotConnected, ServerError."""
        await asyncio.gather(self._main.start(), self._retry.start())

    async def confirm(self) -> None:
        """Wait until the held records of both are known. Raises: ClientError."""
        await self._main.confirm()
        await self._retry.confirm()

    def unsubscribe(self) -> None:
        """Leave the partitions of both to others."""
        self._main.unsubscribe()
        self._retry.unsubscribe()

    def ask(self, plan: Plan) -> None:
        """Begin to acquire with both. Raises: ServerError, Closed."""
        few = plan.records_max <= RETRY_RECORDS_MAX
        beside = plan if few else plan._replace(records_max=RETRY_RECORDS_MAX)
        try:
            self._main.ask(plan)
        except ClientError:
            with contextlib.suppress(ClientError):
                self._retry.ask(beside)
            raise
        self._retry.ask(beside)

    def on_fetched(self, listener: Callable[[], object] | None) -> None:
        """Call `listener` when records of either came."""
        self._main.on_fetched(listener)

    def take_fetched(self) -> list[Fetched]:
        """Return the records that the last `ask` of both members brought. Raises: ServerError."""
        return self._main.take_fetched()

    async def last_fetch(self) -> list[Fetched]:
        """Return the records that are still on their way to either member. Raises: ServerError."""
        await asyncio.gather(self._main.end_fetches(), self._retry.end_fetches())
        return self._arrivals.take()

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Settle records over the member that acquired them."""
        return await self._holder(generation).acknowledge(acks, generation=generation, on_late=on_late)

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        rides: bool = False,
    ) -> None:
        """Settle records over the member that acquired them."""
        self._holder(generation).begin_acknowledge(acks, told, generation=generation, on_late=on_late, rides=rides)

    def _holder(self, generation: int | None) -> ShareMember:
        """Return the member whose connection acquired under this generation."""
        return self._retry if generation is not None and self._retry.acquired_over(generation) else self._main

    async def close(self, *, unrun: Unrun | None = None) -> None:
        """Close both members."""
        await asyncio.gather(self._main.close(unrun=unrun), self._retry.close(unrun=unrun))

    async def leave_to_locks(self, *, unrun: Unrun) -> None:
        """Close as `close`: brokers give held records to others."""
        await self.close(unrun=unrun)
