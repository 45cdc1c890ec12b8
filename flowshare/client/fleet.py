"""The nodes of a member in a fleet: its servers are flowshare's workers, and a partition's leader may be another one
any time, while the member goes on to work on what it holds.

What is held, and where each partition is at home, are `client.custody`'s rules; here are the tasks that carry them
out. Each node that partitions are bound for is told what is held (ShareResume). As long as something is adrift its
leader is looked up. A node that owes answers and says nothing is doubted: its partitions' leaders are looked up, and
when all of them are led elsewhere its connection is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.custody import Custody
from flowshare.client.errors import ClientError, Closed, ConnectionLost, NotConnected
from flowshare.client.fetching import REFUSED, Move
from flowshare.client.forwarding import LEFT, Forwarder
from flowshare.client.node import FleetNode, Node
from flowshare.client.nodes import Nodes
from flowshare.client.routing import ClusterConnection
from flowshare.client.topology import NOBODY
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import HeldRanges, ShareResumeRequest, ShareResumeResponse, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.client.arrivals import Arrivals
    from flowshare.client.link import Link
    from flowshare.client.membership import Membership
    from flowshare.client.node import Generations
    from flowshare.client.node_client import NodeClient
    from flowshare.client.nodes import Late
    from flowshare.client.ranges import AckResult
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import AckBatch, Connection

LOOK_S_MAX: Final = 1.0
"""Longest pause between two looks for the leaders of what is adrift."""
RESUME_S: Final = 6.0
"""How long a worker may take to say what is still the member's."""
LOCK_S: Final = 30.0
"""Taken for the lock's time until a worker told it."""
SILENT_S: Final = 2.0
"""A worker that owes an answer and says nothing for so long is doubted."""
WATCH_S: Final = 1.0
CLOSE_S: Final = 2.0
"""How long a member that ends waits for a leader of what it gives back unrun."""
GIVEN_UP: Final = "the group gave this member up; it begins anew"

logger = logging.getLogger(__name__)


def in_fleet(connection: Connection) -> bool:
    """Whether a member's connection leads to a fleet: several of flowshare's own servers."""
    return isinstance(connection, ClusterConnection) and connection.cluster.is_flowshare


class FleetNodes(Nodes):
    """All workers of a fleet that one member has to do with."""

    def __init__(
        self,
        link: Link,
        membership: Membership,
        *,
        clock: Clock,
        settings: LinkSettings,
        name: str,
        generations: Generations,
        arrivals: Arrivals,
    ) -> None:
        self._custody = Custody(generations)
        self._forwarder = Forwarder(self._custody, membership, lambda node_id: self._clients.get(node_id))
        self._resuming: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._looked_s = -1.0
        self._stirred = asyncio.Event()
        super().__init__(
            link,
            membership,
            clock=clock,
            settings=settings,
            name=name,
            generations=generations,
            arrivals=arrivals,
        )

    # --- which nodes --------------------------------------------------------------------------------------------

    def route(self, connection: Connection) -> None:
        """Begin with the fleet that the member's link leads to."""
        if self._cluster is None:
            super().route(connection)
            assert isinstance(connection, ClusterConnection)
            connection.on_lost(self._membership.refresh)  # a member whose connection ended is waited for for seconds
            self._begin(self._watch(), "silent workers")

    def assign(self) -> None:
        """The assignment, or who leads what, is another one."""
        if self._closed:
            return
        cluster, custody, wanted = self._cluster, self._custody, self._membership.assignment
        if cluster is None:
            return
        custody.forget(wanted)
        now_s = self._clock.monotonic()
        for tp in wanted | custody.partitions:
            custody.found(tp, cluster.leader_of(tp), now_s)
        self._arrange()

    def given_up(self) -> None:
        """The group has this member no more: what it held is others' by now, and so may be what is on its way to it.

        Each worker is begun with anew, so that it hears first what is held.
        """
        self._custody.given_up()
        self.changes = self._custody.losses
        for client in list(self._clients.values()):
            connection = client.node.link.current
            if connection is not None:
                client.node.link.lost(connection, GIVEN_UP)
                self._begin(connection.close(), f"the end of the session with worker {client.node.node_id}")

    async def adopt(self, held: Mapping[TopicPartition, Sequence[tuple[int, int]]], limit_s: float) -> None:
        """As `Nodes.adopt`."""
        began_s = self._clock.monotonic()
        self._custody.adopt(held, began_s)
        self._arrange()
        while self._custody.adrift and self._clock.monotonic() - began_s < limit_s:
            await self.wait_change(limit_s)

    def _arrange(self) -> None:
        """Have each partition fetched where it is at home, and asked for where it is bound for."""
        custody, wanted = self._custody, self._membership.assignment
        at: dict[int, set[TopicPartition]] = {}
        for tp, home in custody.homes.items():
            at.setdefault(home, set()).add(tp)
        bound = {drift.bound for drift in custody.adrift.values()} - {NOBODY}
        for node_id in (at.keys() | bound) - self._clients.keys():
            self._add(node_id, self._link_to(node_id))
        for node_id, client in list(self._clients.items()):
            client.node.wanted = wanted.intersection(at.get(node_id, ()))
            if node_id in bound:
                self._resume_at(node_id)
        self._part()
        if custody.adrift:
            self._look_soon()
        self.changes = custody.losses
        self._changed.set()
        self._forwarder.moved()

    def _part(self) -> None:
        """Where nothing is at home a live worker hears that nothing is fetched any more, a dead one is forgotten."""
        needed = {*self._custody.homes.values(), *(drift.bound for drift in self._custody.adrift.values())}
        for node_id, client in list(self._clients.items()):
            link = client.node.link
            if node_id in needed:
                continue
            link.rest()
            if link.current is None and not client.busy and not client.acknowledger.busy:
                del self._clients[node_id]
                self._begin(self._end_client(client), f"the end of worker {node_id}")

    async def _end_client(self, client: NodeClient) -> None:
        await client.stop()
        await client.node.link.close()

    def _new_node(self, node_id: int) -> Node:
        return FleetNode(node_id, self._generations, self._clock, self._custody)

    def _node_lost(self, node_id: int) -> None:
        client = self._clients.get(node_id)
        if client is not None:
            client.node.lost()
            self._arrange()

    def _doubt(self, node_id: int) -> None:
        """It is not reached: what is bound for it is being looked up anyway, what is at home there never was there."""
        self._custody.cut_off(node_id, self._clock.monotonic())
        self._arrange()

    def _moved(self, move: Move) -> None:
        """A worker says that it does not lead a partition, or cannot serve it now."""
        cluster, now_s = self._cluster, self._clock.monotonic()
        assert cluster is not None
        named = cluster.moved(move.tp, move.leader, move.endpoints)
        if move.error not in LEFT:
            self._begin(self._look_at(frozenset({move.tp})), "leaders")
            return
        self._custody.refused(move.tp, move.said_by, now_s)
        if named:
            self._custody.found(move.tp, cluster.leader_of(move.tp), now_s)
        self._arrange()

    # --- looking for leaders ------------------------------------------------------------------------------------

    def _look_soon(self) -> None:
        """At once for what went adrift since the last look, else after the pause."""
        if self._newly_adrift():
            self._stirred.set()
        if self._looking is None and not self._closed:
            self._looking = asyncio.create_task(self._look(), name=f"{self._name}: leaders")

    def _newly_adrift(self) -> bool:
        return any(not drift.sure and drift.since_s >= self._looked_s for drift in self._custody.adrift.values())

    async def _look(self) -> None:
        """Find out who leads what is adrift, until nothing is; what is adrift for too long is lost."""
        custody, pause_s = self._custody, self._settings.backoff_min_s
        try:
            while custody.adrift:
                if any(not drift.sure for drift in custody.adrift.values()):
                    await self._look_at(custody.adrift)
                    self._looked_s = self._clock.monotonic()
                try:
                    await self._clock.wait_for(self._stirred.wait(), pause_s)
                    pause_s = self._settings.backoff_min_s
                except TimeoutError:
                    pause_s = min(2 * pause_s, LOOK_S_MAX)
                    custody.doubt()
                self._stirred.clear()
                self._lose_overdue()
        finally:
            self._looking = None

    async def _look_at(self, partitions: Iterable[TopicPartition]) -> None:
        cluster = self._cluster
        assert cluster is not None
        asked = tuple(partitions)
        await cluster.look_for(sorted({self._membership.topic_name(tp.topic_id) for tp in asked}))
        if not self._closed:
            self._custody.looked({tp: cluster.leader_of(tp) for tp in asked}, self._clock.monotonic())
            self.assign()

    def _lose_overdue(self) -> None:
        lock_s = self.lock_timeout_ms / 1000 or LOCK_S
        self._forwarder.give_up(self._custody.overdue(self._clock.monotonic(), lock_s))
        self.changes = self._custody.losses

    async def _watch(self) -> None:
        """Look after workers that owe an answer and say nothing."""
        while True:
            await self._clock.sleep(WATCH_S)
            self._part()
            now_s = self._clock.monotonic()
            silent = [client for client in self._clients.values() if client.silent(now_s, SILENT_S)]
            ids = {client.node.node_id for client in silent}
            partitions = [tp for tp, home in self._custody.homes.items() if home in ids]
            if partitions:
                await self._look_at(partitions)
            for client in silent:
                at_home = client.node.node_id in self._custody.homes.values()
                connection = client.node.link.current
                if not at_home and connection is not None:
                    await client.node.link.give_up(connection, f"worker {client.node.node_id} does not answer")

    # --- resuming -----------------------------------------------------------------------------------------------

    def _resume_at(self, node_id: int) -> None:
        if node_id not in self._resuming:
            resuming = self._settle_with(node_id)
            self._resuming[node_id] = asyncio.create_task(resuming, name=f"{self._name}: resume at {node_id}")

    async def _settle_with(self, node_id: int) -> None:
        """Tell a worker what is held of all that is bound for it, until nothing is."""
        pause_s = self._settings.backoff_min_s
        try:
            while self._custody.bound_for(node_id):
                if not await self._resume_once(self._clients[node_id]):
                    await self._clock.sleep(pause_s)
                    pause_s = min(2 * pause_s, LOOK_S_MAX)
        except Closed:
            pass
        except ClientError as error:
            self._arrivals.fail(error)
        finally:
            del self._resuming[node_id]

    async def _resume_once(self, client: NodeClient) -> bool:
        """One try; whether the worker said something. Raises: Closed, ClientError."""
        node_id, link = client.node.node_id, client.node.link
        try:
            connection = await link.connection(RESUME_S)
        except NotConnected:
            return False
        told = self._custody.tell(node_id)
        if not told:
            return True
        request = ShareResumeRequest(
            group_id=self._membership.group_id, member_id=self._membership.member_id, partitions=told
        )
        try:
            answer = await self._clock.wait_for(link.send_on(connection, request), RESUME_S)
        except TimeoutError:
            await link.give_up(connection, f"worker {node_id} does not say what is held")
            return False
        except ConnectionLost:
            return False
        if answer.error is not ErrorCode.NONE and answer.error not in REFUSED:
            logger.info("%s: worker %d cannot say what is held: %s", self._name, node_id, answer.message)
            return False
        if link.current is connection:
            self._resumed(client, told, answer)
        return True

    def _resumed(self, client: NodeClient, told: Sequence[HeldRanges], answer: ShareResumeResponse) -> None:
        kept = {TopicPartition(part.topic_id, part.partition): part.ranges for part in answer.partitions}
        came = self._custody.resumed(client.node.node_id, told, kept, frozenset(answer.elsewhere))
        if came:
            logger.info("%s: %d partitions are led by worker %d", self._name, len(came), client.node.node_id)
        self._arrange()
        if client.busy:
            self._begin(client.fetcher.end_wait(), "fetch again")
        elif self._arrivals.awaited:
            self._arrivals.put([])

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives from some worker."""
        adrift = self._custody.adrift
        if adrift:
            names = ", ".join(sorted({self._membership.topic_name(tp.topic_id) for tp in adrift}))
            return f"{len(adrift)} partitions of {names} wait for their next leader"
        return super().trouble

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether what was acquired under this number can still be this member's."""
        return self._custody.holds(tp, generation)

    def connected(self, generation: int) -> bool:
        """Whether this member acquires, or acquired, under this number."""
        return self._custody.gave(generation)

    def generation_at(self, tp: TopicPartition) -> int | None:
        """The number under which records of a partition are acquired now."""
        return self._custody.generation if tp in self._custody.partitions else None

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckBatch]],
        generation: int | None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Send to the leaders of now; outcomes in the order of the partitions, but for those that `on_late` is told."""
        return await self._forwarder.acknowledge(acks, generation, on_late)

    # --- closing ------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until no acknowledgement is under way, or waits for a leader."""
        await super().settle()
        await self._forwarder.settle()

    async def close_sessions(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int, int]]]) -> None:
        """End all sessions; what is given back goes to the leaders of now."""
        custody, began_s = self._custody, self._clock.monotonic()
        while any(tp in custody.adrift for tp in unrun):
            left_s = began_s + CLOSE_S - self._clock.monotonic()
            if left_s <= 0:
                break
            await self.wait_change(left_s)
        at: dict[int, dict[TopicPartition, list[tuple[int, int]]]] = {}
        for tp, runs in unrun.items():
            held = [(first, last) for first, last, generation in runs if custody.holds(tp, generation)]
            if held and tp in custody.homes:
                at.setdefault(custody.homes[tp], {})[tp] = held
        await asyncio.gather(
            *(self._close_session(client, at.get(node_id, {})) for node_id, client in self._clients.items())
        )

    async def _close_session(
        self, client: NodeClient, unrun: Mapping[TopicPartition, Sequence[tuple[int, int]]]
    ) -> None:
        connection = client.node.link.current
        if unrun and connection is not None and not client.node.session.open:
            await client.fetcher.open_session(connection)  # it came home only now
        await client.acknowledger.close_session(unrun)

    async def close(self) -> None:
        """End everything; the member's own link is the member's."""
        self._closed = True
        await self._forwarder.stop()
        tasks = [*self._tasks, *self._resuming.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    def _begin(self, work: Coroutine[Any, Any, object], what: str) -> None:
        task = asyncio.create_task(work, name=f"{self._name}: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
