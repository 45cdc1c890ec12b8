"""`SessionShell`: carries out the commands of a member's `SessionCore`: connections, requests, timers, leader look-ups.

It works with a server in this process, Kafka's brokers and a fleet's workers. Within a process, and with one server,
the member's own link is the node's. In a cluster each node has its own link, because a broker answers the requests of
one connection strictly one after another.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flowshare.client.errors import ClientError, NotConnected
from flowshare.client.net.link import Link
from flowshare.client.net.routing import ClusterConnection
from flowshare.client.session import commands as c
from flowshare.client.session.core import LOCAL, SessionCore
from flowshare.protocol.messages import ShareFetchRequest, ShareResumeRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from flowshare.client.net.cluster import Cluster
    from flowshare.client.session.arrivals import Arrivals
    from flowshare.client.session.custody import Generations
    from flowshare.client.session.membership import Membership
    from flowshare.client.session.ranges import AckResult
    from flowshare.client.session.share_session import Plan
    from flowshare.client.settings import LinkSettings
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import Connection, SettleOutput, TopicPartition
    from flowshare.protocol.messages.base import FinishedRequest
    from flowshare.share.types import AckRange

    Told = Callable[[list[AckResult]], object]
    """Gets the outcomes of a call."""
    Late = Callable[[AckResult], object]
    """Gets an outcome that came late."""

CLOSE_S = 2.0
"""The longest wait, in seconds, of a member that ends for a leader of records that it gives back."""

logger = logging.getLogger(__name__)


class Asker(NamedTuple):
    """The receivers of a call's outcomes, and of those that come late."""

    told: Told
    on_late: Late | None


async def answered(begin: Callable[[Told], object]) -> list[AckResult]:
    """Wait for the outcomes of a call. begin: begins the call, and gets the receiver of the outcomes."""
    answer: asyncio.Future[list[AckResult]] = asyncio.get_running_loop().create_future()

    def told(results: list[AckResult]) -> None:
        if not answer.done():
            answer.set_result(results)

    begin(told)
    return await answer


class SessionShell:
    """The sessions of one member with all its nodes."""

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
        adopts: bool = False,
    ) -> None:
        """link: the member's own; if it leads to a cluster, each broker gets another one. adopts: as of
        `SessionCore`."""
        self._membership = membership
        self._clock = clock
        self._settings = settings
        self._name = name
        self._arrivals = arrivals
        self._own = link
        self._links: dict[int, Link] = {LOCAL: link}
        self._cluster: Cluster | None = None
        self._client_id = ""
        self._tasks: set[asyncio.Task[object]] = set()
        self._acting = False
        self._rides = False
        """True if waiting acknowledgements are handled together with the `ask` that follows."""
        self._timer: TimerHandle | None = None
        self._timer_at_s = 0.0
        self._closed = False
        self.fetches = 0
        """The number of answered fetches."""
        self._acted: asyncio.Event | None = None
        self._doing: dict[type[Any], Callable[[Any], object]] = {
            c.SendRequest: self._send,
            c.Arrived: lambda one: arrivals.put(one.fetched),
            c.Answered: self._answer,
            c.Late: self._tell_late,
            c.Stir: self._stir,
            c.Broke: lambda one: arrivals.fail(one.error),
            c.Connect: lambda one: self._connect(one.node_id),
            c.Look: lambda one: self._begin(self._look(one.partitions), "leaders"),
            c.Refresh: lambda _: membership.refresh(),
            c.Note: lambda one: logger.log(one.level, "%s", one.text),
            c.Rest: self._let_go,
            c.Drop: self._let_go,
            c.Forget: self._let_go,
        }
        self.core = SessionCore(
            group_id=membership.group_id,
            member_id=membership.member_id,
            generations=generations,
            name_of=membership.topic_name,
            settings=settings,
            pause_s=link.pause_s,
            adopts=adopts,
        )

    # --- what the member's link, group and assignment do --------------------------------------------------------

    def route(self, connection: Connection) -> None:
        """Take in the target of the member's link: a server, or a cluster."""
        if self._cluster is not None:
            return
        if isinstance(connection, ClusterConnection):
            self._cluster, self._client_id = connection.cluster, connection.client_id
            self._links.clear()
        topology = None if self._cluster is None else self._cluster.topology
        self.core.route(topology, keeps=connection.is_flowshare, now_s=self._clock.monotonic())
        if isinstance(connection, ClusterConnection):
            self._see_end(connection)
        self.assign()

    def _see_end(self, connection: ClusterConnection) -> None:
        """Have a heartbeat sent as soon as a connection to the fleet ends: the group waits for a member for seconds."""
        if self.core.fleet:
            connection.on_lost(self._membership.refresh)

    def opened(self, connection: Connection) -> None:
        """Take in a new connection of the member's own link."""
        if isinstance(connection, ClusterConnection):
            self._see_end(connection)
        elif self._cluster is None:
            self.core.custody.keeps = connection.is_flowshare
            self._opened(LOCAL, connection)

    def lost(self) -> None:
        """Take in the end of the member's own connection: in one process, that of its only node."""
        if self._cluster is None:
            self._lost(LOCAL)

    def assign(self) -> None:
        """Take in a new assignment."""
        self.core.assign(self._membership.assignment, self._clock.monotonic())
        self.act()

    def given_up(self) -> None:
        """Take in that the group no longer has this member."""
        self.core.given_up(self._clock.monotonic())
        self.act()

    async def adopt(self, held: Mapping[TopicPartition, Sequence[tuple[int, int]]], limit_s: float) -> None:
        """Adopt as `SessionCore.adopt`, and wait until the servers have confirmed the member's records. Raises:
        NotConnected."""
        if self._cluster is None:
            await self._own.connection()
        self.core.adopt(held, self._clock.monotonic())
        self.act()
        await self._until(lambda: not self.core.keeps or not self.core.custody.adrift, limit_s)

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """The reason why no records arrive from some node."""
        for node in self.core.nodes.values():
            link = self._links.get(node.node_id)
            if link is not None and link.trouble and node.needed:
                return link.trouble
        return self.core.trouble

    # --- fetching and acknowledging -----------------------------------------------------------------------------

    def ask(self, plan: Plan) -> None:
        """Fetch where no fetch is under way. Raises: ServerError, once for each refusal."""
        refusal, self.core.refusal = self.core.refusal, None
        if refusal is not None:
            self.act()
            raise refusal
        rides, self._rides = self._rides, False
        if self.core.ask(plan, self._clock.monotonic()) or rides:
            self.act()

    async def end_fetches(self) -> None:
        """Have the servers answer parked fetches, where they can, and wait for the answers."""
        self.core.end_fetches(self._clock.monotonic())
        self.act()
        await self._until(lambda: not self.core.busy)

    def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Told,
        generation: int | None,
        on_late: Late | None = None,
        *,
        rides: bool = False,
    ) -> None:
        """Send acknowledgements; `told` is called once, maybe before this returns, with the outcomes in the order of
        the partitions, without those that `on_late` gets. rides: an `ask` follows and sends them."""
        asker, now_s = Asker(told, on_late), self._clock.monotonic()
        self.core.acknowledge(acks, generation, now_s, asker=asker, tells_late=on_late is not None)
        self._rides |= rides
        if not rides:
            self.act()

    def settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckRange],
        outputs: tuple[SettleOutput, ...],
        told: Told,
        generation: int | None,
        on_late: Late | None = None,
        *,
        ordered: bool = False,
    ) -> None:
        """Settle records of one partition as `acknowledge`, with outputs that are written in the same step."""
        asker, now_s = Asker(told, on_late), self._clock.monotonic()
        tells_late = on_late is not None
        self.core.settle(tp, acks, outputs, generation, now_s, asker=asker, tells_late=tells_late, ordered=ordered)
        self.act()

    # --- closing ------------------------------------------------------------------------------------------------

    async def all_told(self) -> None:
        """Wait until every acknowledgement and settle has its outcome."""
        await self._until(lambda: self.core.all_told)

    async def close_sessions(self, unrun: Mapping[TopicPartition, Sequence[tuple[int, int, int]]]) -> None:
        """End all sessions; give back `unrun` ranges (first, last, generation) over the session that acquired them."""
        await self._until(lambda: unrun.keys().isdisjoint(self.core.custody.adrift), CLOSE_S)
        self.core.close_sessions(unrun, self._clock.monotonic())
        self.act()
        await self._until(lambda: self.core.ended)

    async def close(self) -> None:
        """Stop the core and close all links but the member's own."""
        self.core.stop()
        self.act()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await cancelled(*self._tasks)
        for node_id, link in self._links.items():
            if node_id != LOCAL:
                await link.close()

    # --- doing what the core says -------------------------------------------------------------------------------

    def act(self) -> None:
        """Carry out all commands of the core, and set the timer for its next due time."""
        if self._acting:
            return
        self._acting = True
        try:
            while self.core.said:
                for one in self.core.take():
                    if not self._closed or isinstance(one, c.Answered | c.Late):
                        self._doing[type(one)](one)
        finally:
            self._acting = False
        due_s = None if self._closed else self.core.due_s()
        if due_s is not None and (self._timer is None or due_s < self._timer_at_s):
            self._wait_until(due_s)
        if self._acted is not None:
            self._acted.set()

    def _answer(self, one: c.Answered) -> None:
        self._tell(one.asker.told, one.results)

    def _tell_late(self, one: c.Late) -> None:
        self._tell(one.asker.on_late, one.result)

    def _tell(self, who: Callable[[Any], object], what: object) -> None:
        try:
            who(what)
        except Exception:  # what else is to be done does not wait for it
            logger.exception("%s: who was told of an outcome failed", self._name)

    def _stir(self, _: c.Stir) -> None:
        if self._arrivals.awaited:
            self._arrivals.put([])

    def _let_go(self, one: c.Rest | c.Drop | c.Forget) -> None:
        link = self._links.get(one.node_id)
        if link is None:
            return
        if isinstance(one, c.Rest):
            link.rest()
        elif isinstance(one, c.Forget):
            del self._links[one.node_id]
            self._begin(link.close(), f"the end of node {one.node_id}")
        elif link.current is not None:
            self._end_connection(one.node_id, link.current, one.reason)

    def _send(self, one: c.SendRequest) -> None:
        link = self._links.get(one.node_id)
        connection = None if link is None else link.current
        if connection is not None:  # else lost meanwhile, as the core knows
            connection.begin(one.request, partial(self._answered, one, connection))

    def _answered(self, one: c.SendRequest, connection: Connection, outcome: FinishedRequest) -> None:
        answer: Any = None
        error: Exception | asyncio.CancelledError | None = None
        try:
            answer = outcome.result()
        except (Exception, asyncio.CancelledError) as caught:  # noqa: BLE001 - each kind means something else
            error = caught
        if self._closed:
            return
        now_s = self._clock.monotonic()
        if error is None:
            self.fetches += isinstance(one.request, ShareFetchRequest)
            link = self._links.get(one.node_id)
            if link is not None and not isinstance(one.request, ShareResumeRequest):
                link.heard()  # what is asked after each loss does not count: a server may drop all that follows
            self.core.answered(one.node_id, one.number, answer, now_s)
        elif isinstance(error, OSError | asyncio.CancelledError):
            self._end_connection(one.node_id, connection, str(error) or type(error).__name__)
        else:
            if not isinstance(error, ClientError):
                logger.error("%s: %s failed", self._name, type(one.request).__name__, exc_info=error)
            self.core.failed(one.node_id, one.number, error, now_s)
        self.act()

    def _end_connection(self, node_id: int, connection: Connection, reason: str) -> None:
        link = self._links.get(node_id)
        if link is not None and link.current is connection:
            link.lost(connection, reason)
            self._begin(connection.close(), f"the end of the connection to node {node_id}")

    async def _look(self, partitions: tuple[TopicPartition, ...]) -> None:
        assert self._cluster is not None
        try:
            await self._cluster.look_for(sorted({self._membership.topic_name(tp.topic_id) for tp in partitions}))
        finally:  # while one look is under way, no other is begun
            self.core.looked(partitions, self._clock.monotonic())
            self.act()

    def _wait_until(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = due_s
        self._timer = self._clock.call_later(max(0.0, due_s - self._clock.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.core.tick(self._clock.monotonic())
        self.act()

    async def _until(self, true: Callable[[], bool], limit_s: float | None = None) -> None:
        """Wait until the condition is true, at most `limit_s` seconds."""
        acted = self._acted = self._acted or asyncio.Event()

        async def wait() -> None:
            while not true():
                acted.clear()
                await acted.wait()

        try:
            await self._clock.wait_for(wait(), limit_s)
        except TimeoutError:
            return

    # --- connections --------------------------------------------------------------------------------------------

    def _connect(self, node_id: int) -> None:
        link = self._links.get(node_id)
        if link is None:
            link = self._links[node_id] = self._link_to(node_id)
        opening = link.open()
        if opening is not None:
            opening.add_done_callback(lambda task: self._tried(node_id, task))

    def _tried(self, node_id: int, opening: asyncio.Task[Connection]) -> None:
        error = None if opening.cancelled() else opening.exception()
        if isinstance(error, Exception):
            self.core.refused(node_id, error, self._clock.monotonic())
            self.act()

    def _link_to(self, node_id: int) -> Link:
        cluster = self._cluster
        assert cluster is not None

        async def connect() -> Connection:
            try:
                connection = await cluster.open_node(node_id, self._client_id)
            except OSError:
                self.core.unreachable(node_id, self._clock.monotonic())
                self.act()
                raise
            if self._links.get(node_id) is not link:
                await connection.close()
                raise NotConnected(f"node {node_id} is not needed any more")
            connection.on_closed(lambda reason: link.lost(connection, reason))
            return connection

        link = Link(
            connect,
            clock=self._clock,
            settings=self._settings,
            name=f"{self._name} at {'worker' if cluster.is_flowshare else 'broker'} {node_id}",
            on_lost=lambda: self._lost(node_id),
            on_open=lambda connection: self._opened(node_id, connection),
        )
        return link

    def _opened(self, node_id: int, connection: Connection) -> None:
        self.core.opened(
            node_id,
            self._clock.monotonic(),
            keeps_time=connection.keeps_time,
            serial=not connection.is_flowshare,
        )
        self.act()

    def _lost(self, node_id: int) -> None:
        self.core.lost(node_id, self._clock.monotonic())
        self.act()

    def _begin(self, work: Coroutine[Any, Any, object], what: str) -> None:
        task = asyncio.create_task(work, name=f"{self._name}: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("%s failed", task.get_name(), exc_info=error)
