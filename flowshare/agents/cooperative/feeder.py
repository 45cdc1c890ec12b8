"""`CooperativeFeeder` is the feeder of share agents, over a member of a cooperative group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.cooperative.member import CooperativeFeed
from flowshare.agents.feed.backend_limits import check_asked
from flowshare.agents.feed.feeder import Feeder
from flowshare.agents.feed.setup import need_outputs, need_topic, retried
from flowshare.agents.handler.errors import UsageError
from flowshare.backend.base import EMBEDDED, Capabilities, Leader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from flowshare.agents.cooperative.agent import CooperativeAgent
    from flowshare.agents.feed.acknowledgements import Observer
    from flowshare.agents.handler.chunk import Chunk
    from flowshare.agents.run.pool import Environment, Pool
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.clock import Clock
    from flowshare.protocol.messages import TopicPartition

VIRTUAL_WAIT_S: Final = 20.0
"""Seconds that a fetch waits where time is virtual: each wait that ends costs more than one that goes on."""
CONSUMERS: Final = ("classic", "consumer")
"""Kinds of groups whose members may form a cooperative group."""


class CooperativeFeeder(Feeder):
    """Feeder of one cooperative agent: its member, its buffer and its commits."""

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
        where = environment.capabilities
        here = replace(EMBEDDED, settling=where.settling)  # the member in this process leads, but for the settling
        super().__init__(agent, pool, replace(environment, capabilities=here), observer=observer, member_id=member_id)
        self._where = where

    async def _joined(self) -> CooperativeFeed:
        """Prepare topics and join."""
        await prepare(self.agent, self._admin, self._where, self._clock, self._allow)
        member = CooperativeFeed(
            self._connect,
            self.agent,
            clock=self._clock,
            member_id=self._member_id,
            on_damaged=self._damaged,
            wait_s=VIRTUAL_WAIT_S if self._virtual_time else None,
        )
        self._member = member
        if self._early is not None:
            self._early.on_ended = member.ended
            member.on_accepted_lost = lambda tp, offsets: self._at_pool(self._end, tp, offsets)
        await member.start()
        settler = self._completion.settler
        if settler is not None and self.agent.ordered_outputs:
            settler.on_added = member.handled
        told = self._held.on_lost

        def lost(chunk: Chunk, offsets: set[int]) -> None:
            member.given_up(chunk.tp, offsets)
            if told is not None:
                told(chunk, offsets)

        self._held.on_lost = lost
        return member

    def _damaged(self, count: int) -> None:
        """Count stored bytes that are no records: they are committed without a letter, as a share agent rejects
        them."""
        self._stats.undecodable += count
        self._stats.rejected += count

    def _end(self, tp: TopicPartition, offsets: Collection[int]) -> None:
        """End the handlers of records accepted before they ran whose keys are another member's, where possible: the
        key's next record may begin there. On the handler loop."""
        for runner in self._pool.running():
            theirs = any(chunk.tp == tp and record.offset in offsets for chunk, record in runner.records())
            if theirs and runner.task is not None:
                runner.task.cancel()


async def prepare(
    agent: CooperativeAgent,
    admin: ShareAdmin,
    capabilities: Capabilities,
    clock: Clock,
    allow: Callable[[int], object] = lambda record_bytes: None,
) -> None:
    """Make missing topics if the app allows it, and check the group. allow: called with the size of the agent's largest
    dead letter, for the producer. Raises: UsageError (what to change), ServerError, BackendError."""
    _check_place(agent, capabilities)
    await retried(agent, clock, lambda: _prepare(agent, admin, allow))


async def rehearse(agent: CooperativeAgent, admin: ShareAdmin, capabilities: Capabilities, groups: ShareAdmin) -> None:
    """Check if `prepare` would be refused; change nothing. groups: client that knows groups. Raises: as `prepare`."""
    _check_place(agent, capabilities)
    for channel in (*agent.channels, *_outputs(agent)):
        await need_topic(agent, admin, channel, dry_run=True)
    await _check_group(agent, groups)


def _check_place(agent: CooperativeAgent, capabilities: Capabilities) -> None:
    if capabilities.leader is Leader.BROKERS:
        raise UsageError(
            f"cooperative agent {agent.name}: Kafka's brokers keep no committed sets; run the app on an embedded path, "
            "or on a cluster with fs.App(…, share='workers')"
        )
    check_asked(agent, capabilities)


def _outputs(agent: CooperativeAgent) -> list[Any]:
    """Return the topics that the agent writes, by name or as they were declared."""
    found = [*agent.options.sink]
    if agent.dead_letter_topic is not None:
        given = agent.options.dead_letter
        found.append(agent.dead_letter_topic if given is True else given)
    return found


async def _prepare(agent: CooperativeAgent, admin: ShareAdmin, allow: Callable[[int], object]) -> None:
    for channel in agent.channels:
        await need_topic(agent, admin, channel)
    await need_outputs(agent, admin, _outputs(agent), allow)
    await _check_group(agent, admin)


async def _check_group(agent: CooperativeAgent, admin: ShareAdmin) -> None:
    kind = await admin.group_kind(agent.group)
    if kind is not None and kind not in CONSUMERS:
        raise UsageError(
            f"cooperative agent {agent.name}: {agent.group!r} is a {kind} group, and members of a cooperative group "
            "are in a consumer group: give it another name with group=…"
        )
