"""A fleet that is written by the test: what members hold outlives every leader; workers die, freeze, hand over."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count, groupby

from flowshare.client.errors import NotConnected
from flowshare.client.net.cluster import Cluster
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcquiredRange
from tests.batches import place
from tests.client.brokers import ALL_APIS
from tests.client.fakes import ORDERS, FakeConnection

NOT_LED = ErrorCode.NOT_LEADER_OR_FOLLOWER
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def runs(offsets):
    """Ascending offsets as (first, last)."""
    for _, group in groupby(enumerate(sorted(offsets)), key=lambda pair: pair[1] - pair[0]):
        found = [offset for _, offset in group]
        yield found[0], found[-1]


def records(first, last):
    builder = BatchBuilder()
    for offset in range(first, last + 1):
        builder.add(None, b"v%d" % offset, timestamp_ms=1)
    return place(builder.build(), first)


class Path:
    """One partition: who leads it, how far its log goes, who holds what, what is done."""

    def __init__(self, leader):
        self.leader = leader
        self.epoch = 1
        self.end = 0
        self.held = {}
        self.done = {}
        self.given = []

    def acquire(self, member, most):
        free = [offset for offset in range(self.end) if offset not in self.held and offset not in self.done][:most]
        self.held.update(dict.fromkeys(free, member))
        self.given += free
        return tuple(AcquiredRange(first, last, 1) for first, last in runs(free))

    def acknowledge(self, member, batch):
        kind = batch.types[0]
        for offset in range(batch.first, batch.last + 1):
            if kind == RELEASE:
                del self.held[offset]
            elif kind != RENEW:
                del self.held[offset]
                self.done[offset] = kind

    def all_held(self, member, batches):
        return all(
            self.held.get(offset) == member for batch in batches for offset in range(batch.first, batch.last + 1)
        )


class WorkerConnection(FakeConnection):
    """A member's connection to one worker, with its session."""

    def __init__(self, worker):
        super().__init__(worker)
        self.api_versions = ALL_APIS
        self.session = set()

    def answered(self, request):
        return self.server.answer(self, request)


class Worker:
    """One worker of a `FakeFleet`."""

    def __init__(self, fleet, node_id):
        self.fleet = fleet
        self.node_id = node_id
        self.down = False
        self.frozen = False
        self.left = False
        self.requests = []
        self.connections = []
        self.unanswered = {}
        self.before = {}
        self.refuse_heartbeat = None
        """Error code that refuses the next heartbeat; None: the heartbeat is accepted."""

    def seen(self, kind):
        return [request for request in self.requests if type(request) is kind]

    def swallow(self, kind, *, carried_out):
        """The next request of a kind has no answer."""
        self.unanswered.setdefault(kind, []).append(carried_out)

    async def answer(self, connection, request):
        kind = type(request)
        if self.frozen:
            return await self._never(connection)
        if self.unanswered.get(kind):
            if self.unanswered[kind].pop(0):
                await self._carry_out(connection, request)
            return await self._never(connection)
        answer = await self._carry_out(connection, request)
        if kind in self.before:
            await asyncio.shield(self.before.pop(kind))
        return await self._never(connection) if self.frozen else answer

    async def _never(self, connection):
        await asyncio.shield(connection.gone)
        raise ConnectionResetError("no answer came")

    async def _carry_out(self, connection, request):
        match request:
            case m.MetadataRequest():
                return self.fleet.metadata(self)
            case m.FindCoordinatorRequest():
                return m.FindCoordinatorResponse(
                    node_id=self.fleet.coordinator, host="worker", port=self.fleet.coordinator
                )
            case m.ShareGroupHeartbeatRequest():
                return self._heartbeat(request)
            case m.ShareFetchRequest():
                return await self._fetch(connection, request)
            case m.ShareAcknowledgeRequest():
                return self._acknowledge(connection, request)
            case m.ShareResumeRequest():
                return self._resume(request)
        raise AssertionError(request)

    def _heartbeat(self, request):
        if self.node_id != self.fleet.coordinator:
            return m.ShareGroupHeartbeatResponse(error=ErrorCode.NOT_COORDINATOR)
        if self.refuse_heartbeat is not None:
            code, self.refuse_heartbeat = self.refuse_heartbeat, None
            return m.ShareGroupHeartbeatResponse(error=code)
        return m.ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=max(1, request.member_epoch) if request.member_epoch >= 0 else -1,
            heartbeat_interval_ms=500,
            assignment=self.fleet.assignment,
        )

    def leads(self, partition):
        return self.fleet.paths[partition].leader == self.node_id

    def _hint(self, partition):
        path = self.fleet.paths[partition]
        return (path.leader, path.epoch) if self.fleet.hints and path.leader >= 0 else (-1, -1)

    async def _fetch(self, connection, request):
        connection.session |= {part.partition for part in request.partitions}
        connection.session -= {tp.partition for tp in request.forgotten}
        if not request.max_records:
            self.fleet.stir()
            return m.ShareFetchResponse(lock_timeout_ms=self.fleet.lock_ms)
        parts = self._acquire(connection, request)
        if not parts:
            with contextlib.suppress(TimeoutError):
                await self.fleet.clock.wait_for(self.fleet.stirred(), request.max_wait_ms / 1000)
            parts = self._acquire(connection, request)
        return m.ShareFetchResponse(
            lock_timeout_ms=self.fleet.lock_ms, partitions=tuple(parts), node_endpoints=self.fleet.addresses()
        )

    def _acquire(self, connection, request):
        parts = []
        for partition in sorted(connection.session):
            if not self.leads(partition):
                connection.session.discard(partition)
                parts.append(
                    m.FetchedPartition(
                        topic_id=ORDERS, partition=partition, error=NOT_LED, current_leader=self._hint(partition)
                    )
                )
                continue
            acquired = self.fleet.paths[partition].acquire(request.member_id, request.max_records)
            if acquired:
                data = b"".join(records(one.first, one.last) for one in acquired)
                parts.append(m.FetchedPartition(topic_id=ORDERS, partition=partition, records=data, acquired=acquired))
        return parts

    def _acknowledge(self, connection, request):
        answers = []
        for topic_id, partition, acks in request.partitions:
            path, error = self.fleet.paths[partition], ErrorCode.NONE
            if not self.leads(partition):
                error = NOT_LED
            elif not path.all_held(request.member_id, acks):
                error = ErrorCode.INVALID_RECORD_STATE
            else:
                for batch in acks:
                    path.acknowledge(request.member_id, batch)
            hint = self._hint(partition) if error is NOT_LED else (-1, -1)
            answers.append(
                m.AcknowledgedPartition(topic_id=topic_id, partition=partition, error=error, current_leader=hint)
            )
        if request.session_epoch == -1:
            connection.session.clear()
        return m.ShareAcknowledgeResponse(
            lock_timeout_ms=self.fleet.lock_ms, partitions=tuple(answers), node_endpoints=self.fleet.addresses()
        )

    def _resume(self, request):
        kept, elsewhere = [], []
        for topic_id, partition, ranges, _ in request.partitions:
            if not self.leads(partition):
                elsewhere.append(m.TopicPartition(topic_id, partition))
                continue
            held = self.fleet.paths[partition].held
            mine = {offset for offset, member in held.items() if member == request.member_id}
            told = {offset for first, last in ranges for offset in range(first, last + 1)}
            for offset in sorted(mine - told):
                del held[offset]
            if mine & told:
                kept.append(m.HeldRanges(topic_id, partition, tuple(runs(mine & told))))
        return m.ShareResumeResponse(partitions=tuple(kept), elsewhere=tuple(elsewhere))


class FakeFleet:
    """Workers 1, 2, …; `leaders` says who leads each partition of `orders`."""

    def __init__(self, clock, leaders, *, workers=3, coordinator=1, **options):
        self.clock = clock
        self.paths = [Path(leader) for leader in leaders]
        self.coordinator = coordinator
        self.hints = True
        self.lock_ms = 30_000
        self.assignment = tuple(m.TopicPartition(ORDERS, index) for index in range(len(leaders)))
        self.workers = {node_id: Worker(self, node_id) for node_id in range(1, workers + 1)}
        self.old_maps = {}
        self._stirred = asyncio.Event()
        self._numbers = count()
        self.cluster = Cluster([f"worker:{coordinator}"], clock=clock, open_node=self.open_node, **options)

    async def connect(self):
        return self.cluster.connect(f"client {next(self._numbers)}")

    async def open_node(self, host, port, client_id):
        worker = self.workers.get(port)
        if worker is None or worker.down:
            raise NotConnected(f"worker {port} is down")
        if worker.frozen:
            await asyncio.Event().wait()
        connection = WorkerConnection(worker)
        worker.connections.append(connection)
        return connection

    def addresses(self):
        return {node_id: ("worker", node_id) for node_id, worker in self.workers.items() if not worker.left}

    def map(self):
        return [(path.leader, path.epoch) for path in self.paths]

    def metadata(self, worker):
        known = self.old_maps.get(worker.node_id) or self.map()
        topic = m.TopicMetadata(
            name="orders",
            topic_id=ORDERS,
            partitions=len(known),
            leaders=tuple(leader for leader, _ in known),
            leader_epochs=tuple(epoch for _, epoch in known),
        )
        return m.MetadataResponse(topics=(topic,), nodes=self.addresses())

    # --- what happens -------------------------------------------------------------------------------------------

    def append(self, partition, number):
        self.paths[partition].end += number
        self.stir()

    def stir(self):
        self._stirred.set()
        self._stirred = asyncio.Event()

    async def stirred(self):
        await self._stirred.wait()

    def lead(self, partition, node_id):
        """Another worker claims it (-1: nobody leads it)."""
        path = self.paths[partition]
        path.leader = node_id
        path.epoch += node_id >= 0
        self.stir()

    def die(self, node_id):
        """Killed: connections break, what it led has no leader."""
        worker = self.workers[node_id]
        worker.down = worker.left = True
        for connection in worker.connections:
            connection.break_off()
        for index, path in enumerate(self.paths):
            if path.leader == node_id:
                self.lead(index, -1)
        if self.coordinator == node_id:
            self.coordinator = min(one for one, other in self.workers.items() if not other.down and not other.frozen)

    def seen(self, kind):
        """Requests of a kind, each with the worker that got it."""
        return [(node, one) for node, worker in self.workers.items() for one in worker.seen(kind)]
