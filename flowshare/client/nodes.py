"""The brokers that one member fetches from: one session and one fetch at a time each, as KIP-932 has it.

Within a process, and with one broker, there is one node. Losing a broker takes only what was acquired from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.acknowledging import GONE
from flowshare.client.fetching import Move, Plan
from flowshare.client.link import Link
from flowshare.client.node import LOCAL, Generations, Node
from flowshare.client.node_client import NodeClient
from flowshare.client.routing import ClusterConnection
from flowshare.client.topology import NOBODY
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import HeldRanges, ShareResumeRequest

if TYPE_CHECKING:
    from flowshare.client.arrivals import Arrivals
    from flowshare.client.cluster import Cluster
    from flowshare.client.membership import Membership
    from flowshare.client.ranges import AckResult
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import AckBatch, Connection, TopicPartition

ELSEWHERE: Final = "the partition is led by another broker by now; the records are given to others"
LOOK_S_MAX: Final = 5.0
"""Longest pause between two looks for the leader of a partition that has none."""

Late = Callable[["AckResult"], object]
"""Told of an outcome that came late."""

logger = logging.getLogger(__name__)


class Nodes:
    """All nodes of one member."""

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
        """link: the member's own; when it turns out to lead to a cluster, each of its brokers gets another one."""
        self._membership = membership
        self._clock = clock
        self._settings = settings
        self._name = name
        self._generations = generations
        self._arrivals = arrivals
        self._cluster: Cluster | None = None
        self._client_id = ""
        self._looking: asyncio.Task[None] | None = None
        self._stale: set[TopicPartition] = set()
        self._changed = asyncio.Event()
        self._closed = False
        self.changes = 0
        """How often something that was held may have been lost: connections that ended, partitions that moved."""
        self._clients: dict[int, NodeClient] = {}
        self._add(LOCAL, link)

    # --- which nodes --------------------------------------------------------------------------------------------

    def route(self, connection: Connection) -> None:
        """Look at what the member's link leads to: a server, or a cluster."""
        if not isinstance(connection, ClusterConnection) or self._cluster is not None:
            return
        self._cluster = connection.cluster
        self._client_id = connection.client_id
        self._clients.clear()
        self.assign()

    def lost(self) -> None:
        """The member's own connection ended: in one process, that of its only node."""
        if self._cluster is None:
            self._lost(self._clients[LOCAL].node)
            self._membership.refresh()  # a new leader waits for us for a short while only

    async def opened(self, connection: Connection) -> None:
        """The member's own link has a new connection, which nobody has used yet: what was held may still be.

        Raises: OSError (the connection failed meanwhile).
        """
        if isinstance(connection, ClusterConnection) or self._cluster is not None:
            return
        node = self._clients[LOCAL].node
        node.may_resume = bool(getattr(connection, "is_flowshare", True))
        if not node.interrupted:
            return
        if node.may_resume and await self._resume(node, connection):
            node.resume()
        else:
            node.give_up()
            self.changes += 1

    async def adopt(self, held: Mapping[TopicPartition, Sequence[tuple[int, int]]], limit_s: float) -> None:
        """Take the place of an earlier process of this member, which held this: a server of flowshare's own keeps it
        for the member, and gives what else that process held to others, as if it had not been delivered.

        Kafka's brokers are told nothing: what their locks still hold is acknowledged as ever. Raises: NotConnected,
        ConnectionLost.
        """
        del limit_s  # there is one server, which answers
        if self._cluster is not None:
            return
        node = self._clients[LOCAL].node
        for tp, runs in held.items():
            for first, last in runs:
                node.holding.acquired(tp, first, last)
        await self._resume(node, await node.link.connection())

    async def _resume(self, node: Node, connection: Connection) -> bool:
        """Whether the server, another one than before, still has what we hold as ours."""
        held = node.holding.all()
        partitions = tuple(HeldRanges(*tp, held.get(tp, ())) for tp in sorted(node.wanted.union(held)))
        request = ShareResumeRequest(
            group_id=self._membership.group_id, member_id=self._membership.member_id, partitions=partitions
        )
        answer = await self._clock.wait_for(connection.send(request), self._settings.request_timeout_s)
        return bool(answer.partitions)

    def given_up(self) -> None:
        """The group has this member no more. Kafka's brokers leave it what it holds for the locks' time; of one server
        by itself, what is not held any more is heard with the next acknowledgement or renewal."""

    def assign(self) -> None:
        """The assignment, or who leads what, is another one: every node gets what it leads."""
        if self._closed:  # a broker may still be lost while `close` waits for another
            return
        wanted = self._membership.assignment
        cluster = self._cluster
        leaders = {tp: LOCAL if cluster is None else cluster.leader_of(tp) for tp in wanted}
        for node_id in set(leaders.values()) - {NOBODY} - set(self._clients):
            self._add(node_id, self._link_to(node_id))
        for node_id, client in self._clients.items():
            mine = frozenset(tp for tp, leader in leaders.items() if leader == node_id)
            moved = len(client.node.moved)
            client.node.lead(mine, wanted - mine)
            if not mine and node_id != LOCAL:
                client.node.link.rest()
            self.changes += len(client.node.moved) > moved
        self._stale.update(tp for tp, leader in leaders.items() if leader == NOBODY)
        if self._stale and self._looking is None:
            self._looking = asyncio.create_task(self._look(), name=f"{self._name}: leaders")
        self._changed.set()

    async def wait_change(self, limit_s: float) -> None:
        """Wait until the assignment, or who leads what, is another one."""
        self._changed.clear()
        try:
            await self._clock.wait_for(self._changed.wait(), limit_s)
        except TimeoutError:
            return

    def _add(self, node_id: int, link: Link) -> None:
        node = self._new_node(node_id)
        node.link = link
        self._clients[node_id] = NodeClient(node, self._membership, self._clock, self._moved, self._arrivals)

    def _new_node(self, node_id: int) -> Node:
        return Node(node_id, self._generations, self._clock, ride_s=self._settings.ride_s)

    def _link_to(self, node_id: int) -> Link:
        cluster = self._cluster
        assert cluster is not None

        async def connect() -> Connection:
            try:
                connection = await cluster.open_node(node_id, self._client_id)
            except OSError:
                self._doubt(node_id)
                raise
            connection.on_closed(lambda reason: link.lost(connection, reason))
            return connection

        link = Link(
            connect,
            clock=self._clock,
            settings=self._settings,
            name=f"{self._name} at {'worker' if cluster.is_flowshare else 'broker'} {node_id}",
            on_lost=lambda: self._node_lost(node_id),
        )
        return link

    def _node_lost(self, node_id: int) -> None:
        self._lost(self._clients[node_id].node)
        self._doubt(node_id)

    def _doubt(self, node_id: int) -> None:
        """Ask who leads the partitions of a broker that is not reached: right after its end the others still name it,
        so every try that fails asks again."""
        self._stale |= self._clients[node_id].node.wanted
        self.assign()

    def _lost(self, node: Node) -> None:
        node.lost()
        self.changes += not node.interrupted

    def _moved(self, move: Move) -> None:
        """A broker says that it does not lead a partition."""
        cluster = self._cluster
        if cluster is None:
            return
        if not cluster.moved(move.tp, move.leader, move.endpoints):
            self._stale.add(move.tp)
        self.assign()

    async def _look(self) -> None:
        """Find out who leads what is in doubt, until all of it has a leader."""
        cluster, pause_s = self._cluster, self._settings.backoff_min_s
        assert cluster is not None
        try:
            while self._stale:
                asked, self._stale = self._stale & self._membership.assignment, set()
                if not asked:
                    break
                await cluster.look_for(sorted({self._membership.topic_name(tp.topic_id) for tp in asked}))
                self.assign()
                if self._stale:
                    await self._clock.sleep(pause_s)
                    pause_s = min(2 * pause_s, LOOK_S_MAX)
        finally:
            self._looking = None

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def lock_timeout_ms(self) -> int:
        """As of the last answers, the shortest; 0 before the first."""
        known = [client.fetcher.lock_timeout_ms for client in self._clients.values()]
        return min((one for one in known if one > 0), default=0)

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives from some node."""
        for client in self._clients.values():
            trouble = client.node.link.trouble or client.fetcher.trouble
            if trouble and client.fetcher.needed:
                return trouble
        if self._stale:
            names = ", ".join(sorted({self._membership.topic_name(tp.topic_id) for tp in self._stale}))
            return f"the leaders of some partitions of {names} are not known"
        return None

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether what was acquired over the connection of this number can still be this member's."""
        return any(
            client.node.generation == generation and tp not in client.node.moved for client in self._clients.values()
        )

    def connected(self, generation: int) -> bool:
        """Whether one of the connections has this number."""
        return any(client.node.generation == generation for client in self._clients.values())

    def generation_at(self, tp: TopicPartition) -> int | None:
        """Number of the connection over which a partition is fetched now."""
        return next((one.node.generation for one in self._clients.values() if tp in one.node.wanted), None)

    # --- fetching and acknowledging -----------------------------------------------------------------------------

    def raise_refusal(self) -> None:
        """Raises: ServerError, once for each refusal."""
        for client in self._clients.values():
            client.fetcher.raise_refusal()

    @property
    def busy(self) -> bool:
        """Whether a fetch is under way at some node."""
        return any(client.busy for client in self._clients.values())

    def ask(self, plan: Plan) -> None:
        """Fetch from each node that has something to fetch and is not fetched from; each is asked for its part."""
        needed = [client for client in self._clients.values() if client.fetcher.needed]
        if len(needed) > 1 and plan.records_max > 0:
            plan = plan._replace(records_max=max(1, plan.records_max // len(needed)))
        for client in needed:
            if not client.busy:
                client.ask(plan)

    async def end_fetches(self) -> None:
        """Have the fetches that are parked answered, where servers can, and wait for the answers."""
        busy = [client for client in self._clients.values() if client.busy]
        await asyncio.gather(*(client.fetcher.end_wait() for client in busy))
        for client in busy:
            await client.wait_idle()

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckBatch]],
        generation: int | None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Send to the nodes over which the records came; outcomes in the order of the partitions.

        on_late: of use in a fleet only (`client.fleet`).
        """
        del on_late
        by_client: dict[int, dict[TopicPartition, Sequence[AckBatch]]] = {}
        for tp, batches in acks.items():
            by_client.setdefault(self._holder(tp, generation), {})[tp] = batches
        if len(by_client) == 1:
            ((node_id, alone),) = by_client.items()
            return await self._acknowledge(node_id, alone, generation)
        found = await asyncio.gather(*(self._acknowledge(one, part, generation) for one, part in by_client.items()))
        by_partition = {result.tp: result for results in found for result in results}
        return [by_partition[tp] for tp in acks]

    def _holder(self, tp: TopicPartition, generation: int | None) -> int:
        """The node that a partition's acknowledgements go to, NOBODY when what was held is in other hands."""
        if generation is None:
            if self._cluster is None:
                return LOCAL
            return next((node_id for node_id, one in self._clients.items() if tp in one.node.wanted), NOBODY)
        for node_id, client in self._clients.items():
            if client.node.generation == generation:
                return NOBODY if tp in client.node.moved else node_id
        return NOBODY

    async def _acknowledge(
        self, node_id: int, acks: Mapping[TopicPartition, Sequence[AckBatch]], generation: int | None
    ) -> list[AckResult]:
        if node_id != NOBODY:
            return await self._clients[node_id].acknowledger.acknowledge(acks)
        alive = generation is not None and self.connected(generation)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if alive else ErrorCode.NETWORK_EXCEPTION
        failed = next(iter(self._clients.values()), None)
        if failed is None:
            return []
        return failed.acknowledger.all_failed(acks, code, ELSEWHERE if alive else GONE)

    # --- closing ------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until no acknowledgement is under way."""
        for client in self._clients.values():
            await client.acknowledger.settle()

    async def close_sessions(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int, int]]]) -> None:
        """End all sessions; each gives back what was acquired over it: (first, last, generation)."""
        closing: list[Coroutine[Any, Any, None]] = []
        for client in self._clients.values():
            generation = client.node.generation
            mine = {
                tp: [(first, last) for first, last, held_over in runs if held_over == generation]
                for tp, runs in unrun.items()
            }
            closing.append(client.acknowledger.close_session({tp: runs for tp, runs in mine.items() if runs}))
        await asyncio.gather(*closing)

    async def close(self) -> None:
        """End everything; the member's own link is the member's."""
        self._closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        for node_id, client in self._clients.items():
            await client.stop()
            await client.acknowledger.stop()
            if node_id != LOCAL:
                await client.node.link.close()
