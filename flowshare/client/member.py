"""`ShareMember`: one member of one share group in ranges and bytes. `ShareConsumer` and the agents stand on it.

Nothing here is done per record. Partitions are fetched from the brokers that lead them, each over a session and a
connection of its own (`client.nodes`); heartbeats go to the group's coordinator.

When a connection ends, the server gives what this member held over it to others. An acknowledgement whose outcome is
not known is reported as an error and never sent again: the record may have been given to somebody in between. When
the leader of an embedded path ends and another process takes over, members keep what they hold (`client.node`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import Closed, IllegalState
from flowshare.client.fetching import Plan
from flowshare.client.link import Connect, Link
from flowshare.client.membership import Membership
from flowshare.client.node import Generations
from flowshare.client.nodes import Nodes
from flowshare.client.ranges import AckResult, Fetched, TopicIdPartition
from flowshare.client.settings import MIB, MemberSettings
from flowshare.protocol.messages import AckBatch, TopicPartition
from flowshare.share.types import AcknowledgeType, AcquireMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flowshare.clock import Clock

__all__ = ["AckResult", "Fetched", "ShareMember", "TopicIdPartition"]

RENEW: Final = bytes((AcknowledgeType.RENEW,))
LAST_FETCH_S: Final = 1.0
"""How long a member that stops waits for what its last fetches bring."""
NO_NODE: Final = -3
"""In place of a node: waiting for the first partition."""

logger = logging.getLogger(__name__)


class ShareMember:
    """One member of one share group. One task fetches; any number acknowledge."""

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        topics: Sequence[str],
        clock: Clock,
        member_id: str | None = None,
        settings: MemberSettings | None = None,
        on_assignment: Callable[[frozenset[TopicIdPartition]], None] | None = None,
        generations: Generations | None = None,
    ) -> None:
        """A member that is not started; `on_assignment` is called on the loop with each new assignment.

        generations: where its connections get their numbers, for members whose records are kept together.
        """
        self.group_id = group_id
        self.member_id = member_id or str(uuid.uuid4())
        self._clock = clock
        self._settings = settings or MemberSettings()
        self._on_assignment = on_assignment
        name = f"member {self.member_id} of {group_id}"
        self._link = Link(
            connect,
            clock=clock,
            settings=self._settings.link,
            name=name,
            on_lost=lambda: self._nodes.lost(),
            on_open=lambda connection: self._nodes.opened(connection),
        )
        self._membership = Membership(
            self._link,
            group_id=group_id,
            member_id=self.member_id,
            topics=topics,
            clock=clock,
            settings=self._settings,
            on_assignment=self._assigned,
        )
        self._nodes = Nodes(
            self._link,
            self._membership,
            clock=clock,
            settings=self._settings.link,
            name=name,
            generations=generations or Generations(),
        )
        self._fetching: dict[int, asyncio.Task[list[Fetched]]] = {}
        self._fetch_called = False
        self._woken = False
        self._waker: asyncio.Future[None] | None = None
        self._closing = False

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions that this member fetches from."""
        names = self._membership.names
        return frozenset(
            TopicIdPartition(names[tp.topic_id], tp.partition, tp.topic_id) for tp in self._membership.assignment
        )

    @property
    def member_epoch(self) -> int:
        """The member's epoch in its group; 0: not joined."""
        return self._membership.epoch

    @property
    def lock_timeout_ms(self) -> int:
        """How long acquired records are locked, as of the last answer; 0 before the first."""
        return self._nodes.lock_timeout_ms

    @property
    def generation(self) -> int:
        """How often a connection was lost or a partition moved; a change means: ask `holds` of all that is held."""
        return self._nodes.changes

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether what a `Fetched` of this generation brought can still be this member's."""
        return self._nodes.holds(tp, generation)

    def acquired_over(self, generation: int) -> bool:
        """Whether one of this member's connections has this number now."""
        return self._nodes.connected(generation)

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to fetch)."""
        if self._membership.failed is not None:
            return str(self._membership.failed)
        trouble = self._membership.trouble or self._link.trouble or self._nodes.trouble
        if trouble:
            return trouble
        if not self._membership.assignment:
            return f"no partition is assigned; do the topics exist: {', '.join(self._membership.topics)}?"
        return None

    def topic_name(self, topic_id: uuid.UUID) -> str:
        """Name of a topic that is or was assigned."""
        return self._membership.topic_name(topic_id)

    # --- joining ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join; returns after the first heartbeat's answer.

        Raises: NotConnected (no server within the settings' connect_timeout_s), ServerError (the group refuses).
        """
        self._check_open()
        await self._membership.join()
        self._nodes.route(await self._link.connection())

    def subscribe(self, topics: Sequence[str]) -> None:
        """Replace the subscribed topics; the group is told at once."""
        self._membership.subscribe(topics)

    async def leave(self) -> None:
        """Leave the group but stay usable: `start` joins again. What is held may still be acknowledged."""
        await self._membership.leave()

    # --- fetching -----------------------------------------------------------------------------------------------

    async def fetch(
        self,
        *,
        records_max: int,
        batch_size: int | None = None,
        max_wait_s: float = 0.5,
        bytes_max: int = 50 * MIB,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> list[Fetched]:
        """Acquire up to about `records_max` records, waiting up to `max_wait_s` for the first.

        Empty when there was nothing, when `wakeup` was called, or while the server cannot be reached (then after a
        pause; `trouble` says why). Acquired ranges aim at `batch_size` offsets. With `bytes_max=0` ranges come
        without records. What a cancelled or woken call was about to get is returned by the next call.
        Raises: ServerError (refused), Closed, IllegalState (two fetches at once).
        """
        self._check_open()
        if self._fetch_called:
            raise IllegalState("one fetch of a member at a time; wait for the other call")
        self._nodes.raise_refusal()
        if self._woken:
            self._woken = False
            return []
        return await self._wait_fetch(Plan(records_max, batch_size or max(1, records_max), max_wait_s, bytes_max, mode))

    def wakeup(self) -> None:
        """Make the fetch that waits (or else the next one) return at once, empty. Call on the member's loop."""
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)
        else:
            self._woken = True

    async def last_fetch(self) -> list[Fetched]:
        """What is on its way from fetches under way, for a member that stops: what nobody takes waits for `close`.

        Flowshare's servers answer them at once, brokers within their wait; LAST_FETCH_S at most is waited for.
        """
        await self._end_fetches()
        return self._fetched()

    async def _end_fetches(self) -> None:
        try:
            await self._clock.wait_for(self._wait_for_fetches(), LAST_FETCH_S)
        except TimeoutError:
            logger.info("member %s of %s stops with fetches unanswered", self.member_id, self.group_id)

    async def _wait_for_fetches(self) -> None:
        waiting = self._fetching.pop(NO_NODE, None)
        if waiting is not None:
            waiting.cancel()
        under_way = {node: task for node, task in self._fetching.items() if not task.done()}
        if under_way:
            await self._nodes.end_waits(under_way)
            await asyncio.wait(under_way.values())

    async def _wait_fetch(self, plan: Plan) -> list[Fetched]:
        """Have a fetch under way at each node; return what the first ones bring."""
        waker = self._waker = asyncio.get_running_loop().create_future()
        self._fetch_called = True
        try:
            while True:
                self._start_fetches(plan)
                waited: set[asyncio.Future[Any]] = {waker, *self._fetching.values()}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                assigned = self._fetching.get(NO_NODE)
                if assigned is None or not assigned.done() or waker.done():
                    break
                del self._fetching[NO_NODE]
                if not self._membership.assignment:
                    break
        finally:
            self._fetch_called = False
            self._waker = None
        return [] if self._closing else self._fetched()

    def _start_fetches(self, plan: Plan) -> None:
        self._fetching.update(self._nodes.fetches(plan, self._fetching))
        if not self._fetching:
            waiting = self._wait_change(plan.max_wait_s)
            self._fetching[NO_NODE] = asyncio.create_task(waiting, name=f"assignment {self.group_id}")

    async def _wait_change(self, limit_s: float) -> list[Fetched]:
        await self._nodes.wait_change(limit_s)
        return []

    def _fetched(self) -> list[Fetched]:
        """What finished fetches brought, taken once. Raises: what one of them raised; the others' stays for later."""
        fetched: list[Fetched] = []
        for node, task in list(self._fetching.items()):
            if task.done() and (not fetched or task.exception() is None):
                del self._fetching[node]
                fetched += task.result()
        return fetched

    # --- acknowledging ------------------------------------------------------------------------------------------

    async def acknowledge(
        self, acks: Mapping[TopicPartition, Sequence[AckBatch]], *, generation: int | None = None
    ) -> list[AckResult]:
        """Send acknowledgements now, in one request; one result a partition, in order.

        A result with an error means that nothing of that partition's is known to hold: the records may run again.
        Never raises for what the server or the connection does. With `generation` (of the `Fetched`) of a connection
        that ended nothing is sent and all fail; a partition that another broker leads by now fails alone. RENEW among
        the types makes the request a renewal (KIP-1222).
        """
        return await self._nodes.acknowledge(acks, generation)

    async def renew(
        self, ranges: Mapping[TopicPartition, Iterable[tuple[int, int]]], *, generation: int | None = None
    ) -> list[AckResult]:
        """Start the locks of these ranges (first, last: inclusive) anew; costs no delivery. Results as above."""
        acks = {tp: tuple(AckBatch(first, last, RENEW) for first, last in runs) for tp, runs in ranges.items()}
        return await self.acknowledge(acks, generation=generation)

    # --- closing ------------------------------------------------------------------------------------------------

    async def close(
        self,
        *,
        unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Stop in order, within `timeout_s` (default: the settings').

        No new fetch; acknowledgements in flight are waited for; `unrun` ranges (first, last: inclusive) and what a
        fetch brought that nobody took go back without costing an attempt; the session is closed, which releases
        whatever else is held; the member leaves; the connection is closed. Calling it again does nothing.
        """
        if self._closing:
            return
        self._closing = True
        self.wakeup()
        limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
        try:
            await self._clock.wait_for(self._close(unrun or {}), limit_s)
        except TimeoutError:
            logger.warning("member %s of %s closed late: not all was answered", self.member_id, self.group_id)
        finally:
            await self._end()

    async def _close(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]) -> None:
        await self._end_fetches()
        await self._nodes.settle()
        back: dict[TopicPartition, list[tuple[int, int, int]]] = {}
        for tp, runs in unrun.items():
            generation = self._nodes.generation_at(tp)
            if generation is not None:
                back[tp] = [(first, last, generation) for first, last in runs]
        for fetched in self._untaken():
            runs_back = back.setdefault(fetched.tp, [])
            runs_back += [(run.first, run.last, fetched.generation) for run in fetched.acquired]
        await self._nodes.close_sessions(back)
        await self._membership.leave()

    def _untaken(self) -> list[Fetched]:
        """What finished fetches brought after their caller was gone."""
        done = [task for task in self._fetching.values() if task.done() and not task.cancelled()]
        return [fetched for task in done if task.exception() is None for fetched in task.result()]

    async def _end(self) -> None:
        await self._membership.stop()
        await self._nodes.close()
        await self._link.close()
        tasks, self._fetching = list(self._fetching.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- helpers ------------------------------------------------------------------------------------------------

    def _assigned(self) -> None:
        self._nodes.assign()
        if self._on_assignment is not None:
            self._on_assignment(self.assignment)

    def _check_open(self) -> None:
        if self._closing:
            raise Closed(f"member {self.member_id} of {self.group_id} is closed")
        if self._membership.failed is not None:
            raise self._membership.failed
