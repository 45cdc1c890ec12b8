"""Our own server in memory as the Kafka of a fleet: through `Cluster`, no sockets, virtual time, with faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from flowshare.client.errors import NotConnected
from flowshare.client.net.cluster import Cluster
from flowshare.groups.types import ClassicConfig
from flowshare.log import keys
from flowshare.log.base import StorageError
from flowshare.log.memory import MemoryStorage
from flowshare.log.partition import walk
from flowshare.log.store import StoreStep
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages.base import Response
from flowshare.server.server import Server
from flowshare.share.config import ServerConfig
from flowshare.transactions.coordinator import TransactionConfig

NODE = 1
HOST, PORT = "kafka", 9092


class FakeKafka:
    """One broker. Faults: `cut`, `lose`, `hold`, `drop_answers`, `refuse`, `refuse_after`, `forget_markers`."""

    def __init__(self, clock, *, classic=None, transactions=None):
        self.clock = clock
        self.storage = MemoryStorage(clock=clock)
        self.server = Server(
            storage=self.storage,
            config=ServerConfig.embedded(),
            clock=clock,
            classic=classic or ClassicConfig(),
            transactions=transactions or TransactionConfig(),
        )
        self.connections: set[FakeConnection] = set()
        self.asked: Counter[type] = Counter()
        self.down = False
        self.epochs = Epochs(self.storage)
        self.unmarked: set[tuple[str, int]] = set()
        """Partitions in which no transaction can be ended now, as (topic, number)."""
        self.not_led: set[tuple[str, int]] = set()
        """Partitions that have no leader, as far as Metadata says."""
        self.elections = 0
        """Leader epoch of all partitions, as far as Metadata says."""
        self._held: dict[type, asyncio.Event] = {}
        self._dropped: Counter[type] = Counter()
        self._refused: dict[type, list] = {}
        self._refused_after: dict[type, list] = {}
        self._late: set[type] = set()
        self._ghosts: set[asyncio.Task] = set()

    async def __aenter__(self):
        control = self.storage.append_control

        async def append_control(topic, partition, *ending, committed):
            if (topic, partition) in self.unmarked:
                raise StorageError("that partition's broker gives no answer")
            await control(topic, partition, *ending, committed=committed)

        self.storage.append_control = append_control
        await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.cut()
        for ghost in self._ghosts:
            ghost.cancel()
        await asyncio.gather(*self._ghosts, return_exceptions=True)
        await self.server.close()
        await self.storage.close()

    def cluster(self, **options):
        """A `Cluster` that reaches it."""
        return Cluster([f"{HOST}:{PORT}"], clock=self.clock, open_node=self.open_node, **options)

    async def open_node(self, host, port, client_id):
        """`Cluster`'s way in."""
        if self.down or (host, port) != (HOST, PORT):
            raise NotConnected(f"{host}:{port} is down")
        connection = FakeConnection(self, self.server.connect(client_id=client_id, host="10.0.0.1"))
        self.connections.add(connection)
        return connection

    # --- faults -------------------------------------------------------------------------------------------------

    async def cut(self):
        """All connections break."""
        for connection in tuple(self.connections):
            await connection.break_off()

    async def lose(self, topic, partition, end):
        """A leader dies with what no other broker has: the next one's log ends here, where a batch begins."""
        self.epochs.lose(topic, partition, end)
        await self.cut()

    def hold(self, kind, *, late=False):
        """Requests of this class wait, unanswered and not carried out, until `release`.

        late: those whose connection breaks meanwhile are carried out then all the same.
        """
        self._held.setdefault(kind, asyncio.Event())
        if late:
            self._late.add(kind)
        else:
            self._late.discard(kind)

    def release(self, kind):
        """Those that wait go on."""
        self._held.pop(kind).set()

    def hold_later_ones_no_more(self, kind):
        """Those that wait do so until the event is set that is returned."""
        return self._held.pop(kind)

    def drop_answers(self, kind, count=1):
        """The next ones of this class are carried out, and the connection breaks before the answer."""
        self._dropped[kind] += count

    def drop_no_more(self, kind):
        """They are answered again."""
        self._dropped.pop(kind, None)

    def refuse(self, kind, error, count=1):
        """The next ones of this class are answered with an error and not carried out."""
        self._refused.setdefault(kind, []).extend([error] * count)

    def refuse_no_more(self, kind):
        """They are carried out again."""
        self._refused.pop(kind, None)

    def refuse_after(self, kind, error, count=1):
        """The next ones of this class are carried out and answered with an error."""
        self._refused_after.setdefault(kind, []).extend([error] * count)

    def forget_markers(self, *, kept=()):
        """The next end of a transaction is called done, but reaches no partition (except those that are kept, as
        (topic, number)), and no group: as brokers do whose partitions have no leader just then (KAFKA-20734)."""
        coordinator = self.server._transactions
        mark, settle = type(coordinator)._mark, coordinator._settle

        async def some(ended, place, left, *, committed):
            if place in kept:
                await mark(coordinator, ended, place, left, committed=committed)
            left.discard(place)

        async def no_group(*_):
            del coordinator._mark
            coordinator._settle = settle

        coordinator._mark, coordinator._settle = some, no_group

    async def _wait(self, connection, request, held):
        try:
            await connection.or_broken(held.wait())
        except ConnectionError:
            if type(request) in self._late:
                self._ghosts.add(asyncio.create_task(self._carry_out_late(request, held)))
            raise

    async def _carry_out_late(self, request, held):
        await held.wait()
        inner = self.server.connect(client_id="ghost", host="10.0.0.1")
        await inner.send(request)
        await inner.close()

    # --- what a connection does ---------------------------------------------------------------------------------

    async def carry_out(self, connection, request):
        """Answer of the broker."""
        kind = type(request)
        self.asked[kind] += 1
        held = self._held.get(kind)
        if held is not None:
            await self._wait(connection, request, held)
        refused = self._refused.get(kind)
        if refused:
            return refusal(request, refused.pop(0))
        match request:
            case m.FindCoordinatorRequest():
                return m.FindCoordinatorResponse(node_id=NODE, host=HOST, port=PORT)
            case m.MetadataRequest():
                answer = await connection.inner.send(request)
                topics = tuple(self._led(topic) for topic in answer.topics)
                return replace(answer, topics=topics, nodes={NODE: (HOST, PORT)})
            case m.ManyOffsetsRequest():
                return await self._many_offsets(connection, request)
            case m.OffsetForLeaderEpochRequest():
                return self.epochs.ask(request)
            case m.FetchRequest():
                # Which records are wanted is flowshare's own: Kafka gives all there are.
                request = replace(request, partitions=tuple(one._replace(only=None) for one in request.partitions))
                answer = await connection.or_broken(self.epochs.fetch(connection.inner.send, request))
                return await self._answered(connection, request, answer)
        answer = await connection.or_broken(connection.inner.send(request))
        return await self._answered(connection, request, answer)

    def _led(self, topic):
        leaders = tuple(-1 if (topic.name, n) in self.not_led else NODE for n in range(topic.partitions))
        return replace(topic, leaders=leaders, leader_epochs=(self.elections,) * topic.partitions)

    async def _many_offsets(self, connection, request):
        """One after the other."""
        found = []
        for topic, partition in request.partitions:
            one = m.ListOffsetsRequest(
                topic=topic, partition=partition, timestamp_ms=request.timestamp_ms, committed=request.committed
            )
            found.append(await connection.or_broken(connection.inner.send(one)))
        return await self._answered(connection, request, m.ManyOffsetsResponse(offsets=tuple(found)))

    async def _answered(self, connection, request, answer):
        kind = type(request)
        if self._dropped[kind] > 0:
            self._dropped[kind] -= 1
            await connection.break_off()
            raise ConnectionError("the connection broke before the answer")
        refused = self._refused_after.get(kind)
        return refusal(request, refused.pop(0)) if refused else answer


class Epochs:
    """Leader epochs of the logs: (epoch, where it begins), ascending; a log has only 0 until it is cut."""

    def __init__(self, storage):
        self.storage = storage
        self._begins = {}

    def of(self, topic, partition):
        """Those of a log; a topic that is made anew begins anew."""
        return self._begins.setdefault((self.storage.topics()[topic].topic_id, partition), [(0, 0)])

    def lose(self, topic, partition, end):
        """A log ends here, and goes on under another leader."""
        log = self.storage._partitions[topic].at(partition)
        sizes = {header.base_offset: header.size for header, _ in walk(self.storage._store, log, 0)}
        assert end in (*sizes, log.end), "a log is cut where a batch begins"
        prefix = keys.batches(log.topic_id, log.number)
        self.storage._store.commit([StoreStep([(keys.at(prefix, first), None) for first in sizes if first >= end])])
        log.position -= sum(size for first, size in sizes.items() if first >= end)
        log.end, log.end_position = end, log.position
        log.roll_back()
        self.storage._budget.clear()
        self.storage._ahead.clear()
        begins = self.of(topic, partition)
        latest = begins[-1][0]
        begins[:] = [(epoch, first) for epoch, first in begins if first < end]
        begins.append((latest + 1, end))

    def end(self, topic, partition, epoch):
        """As brokers answer OffsetForLeaderEpoch."""
        begins = self.of(topic, partition)
        if epoch > begins[-1][0]:
            return -1, -1
        if epoch == begins[-1][0]:
            return epoch, self.storage.offsets(topic, partition).high_watermark
        later = next(first for known, first in begins if known > epoch)
        return max((known for known, _ in begins if known <= epoch), default=epoch), later

    def ask(self, request):
        """OffsetForLeaderEpoch."""
        if request.topic not in self.storage.topics():
            return m.OffsetForLeaderEpochResponse(error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        epoch, end = self.end(request.topic, request.partition, request.leader_epoch)
        return m.OffsetForLeaderEpochResponse(leader_epoch=epoch, end_offset=end)

    async def fetch(self, send, request):
        """Fetch: logs that part from what a reader has before its offset are told so; batches carry their epoch."""
        parted = {}
        for part in request.partitions:
            if part.last_epoch < 0 or part.topic not in self.storage.topics():
                continue
            epoch, end = self.end(part.topic, part.partition, part.last_epoch)
            if 0 <= end < part.offset or 0 <= epoch < part.last_epoch:
                parted[part.topic, part.partition] = (epoch, end)
        answer = await send(replace(request, max_wait_ms=0) if parted else request)
        return replace(answer, partitions=tuple(self._stamped(one, parted) for one in answer.partitions))

    def _stamped(self, one, parted):
        diverging = parted.get((one.topic, one.partition))
        if diverging is not None:
            return m.FetchedLog(topic=one.topic, partition=one.partition, diverging=diverging)
        if one.topic not in self.storage.topics() or len(begins := self.of(one.topic, one.partition)) == 1:
            return one
        records, at = bytearray(one.records), 0
        while at + 16 <= len(records):
            first, size = int.from_bytes(records[at : at + 8]), int.from_bytes(records[at + 8 : at + 12])
            epoch = max(epoch for epoch, begin in begins if begin <= first)
            records[at + 12 : at + 16] = epoch.to_bytes(4)
            at += size + 12
        return replace(one, records=bytes(records))


def refusal(request, error):
    """An answer of the right class that carries nothing but an error."""
    match request:
        case m.FetchRequest():
            return m.FetchResponse(
                partitions=tuple(
                    m.FetchedLog(topic=part.topic, partition=part.partition, error=error) for part in request.partitions
                )
            )
        case m.ProduceRequest():
            return m.ProduceResponse(error=error)
    name = type(request).__name__.replace("Request", "Response")
    return getattr(m, name, Response)(error=error)


class FakeConnection:
    """One connection to the broker."""

    def __init__(self, fake, inner):
        self.fake = fake
        self.inner = inner
        self.api_versions = {int(key): (0, 99) for key in ApiKey}
        self.is_flowshare = False
        self._broken = asyncio.get_running_loop().create_future()

    async def send(self, request):
        """As `Connection.send`."""
        if self._broken.done():
            raise ConnectionError("the connection is broken")
        return await self.fake.carry_out(self, request)

    def begin(self, request, told):
        """As `Connection.begin`."""
        asyncio.ensure_future(self.send(request)).add_done_callback(told)

    def on_closed(self, listener):
        """As `NodeConnection.on_closed`."""
        self._broken.add_done_callback(lambda _: listener("the connection ended"))

    async def or_broken(self, waiting):
        """Return the result, or raise ConnectionError if the connection breaks first."""
        task = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait([task, self._broken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if task.cancelled() or self._broken.done():
            if not task.cancelled():
                task.exception()  # seen
            raise ConnectionError("the connection broke")
        return task.result()

    async def break_off(self):
        """End it, from whichever side."""
        if not self._broken.done():
            self._broken.set_result(None)
        self.fake.connections.discard(self)
        await self.inner.close()

    close = break_off
