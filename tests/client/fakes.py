"""A server that is written by the test: answers are functions, connections break when told, answers can be held."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from flowshare.protocol import messages as m
from flowshare.protocol.batches import batch_headers
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcquiredRange
from tests.batches import place

ORDERS = uuid.UUID(int=7)


class FakeConnection:
    """One connection to a `FakeServer`."""

    is_flowshare = True
    keeps_time = False

    def __init__(self, server: Any) -> None:
        self.server = server
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(self, request: Any) -> Any:
        if self.gone.done():
            raise ConnectionError("the connection is closed")
        self.server.requests.append(request)
        answering = asyncio.ensure_future(self.answered(request))
        try:
            await asyncio.wait({answering, self.gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ConnectionResetError("reset by the test")
            return answering.result()
        finally:
            if not answering.done():
                answering.cancel()

    async def answered(self, request: Any) -> Any:
        return await self.server.answer(request)

    def begin(self, request: Any, told: Callable[[Any], object]) -> None:
        asyncio.ensure_future(self.send(request)).add_done_callback(told)

    def on_closed(self, listener: Callable[[str], object]) -> None:
        self.gone.add_done_callback(lambda _: listener("the connection ended"))

    async def close(self) -> None:
        self.break_off()

    def break_off(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class FakeServer:
    """One topic `orders`, one group. `script` holds answers (or exceptions, or futures of them) to give first."""

    def __init__(self, *, partitions: int = 1) -> None:
        self.requests: list[Any] = []
        self.connections: list[FakeConnection] = []
        self.refuse_connects = 0
        self.keeps = False
        self.partitions = partitions
        self.script: dict[type, list[Any]] = {}
        self.known = {"orders": (ORDERS, partitions)}
        self.heartbeat_interval_ms = 5000
        self.member_epoch = 1
        self.assignment: tuple[m.TopicPartition, ...] | None = tuple(
            m.TopicPartition(ORDERS, index) for index in range(partitions)
        )
        self.log: dict[tuple[str, int], list[bytes]] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.producer_ids = 0
        self.ready: list[m.FetchedPartition] = []
        self.more = asyncio.Event()
        self.lock_timeout_ms = 30_000

    async def connect(self) -> FakeConnection:
        if self.refuse_connects:
            self.refuse_connects -= 1
            raise ConnectionRefusedError("nobody listens")
        connection = FakeConnection(self)
        self.connections.append(connection)
        return connection

    def then(self, kind: type, *answers: Any) -> None:
        """Answer the next requests of this kind so."""
        self.script.setdefault(kind, []).extend(answers)

    def seen(self, kind: type) -> list[Any]:
        return [request for request in self.requests if type(request) is kind]

    def offer(self, records: bytes, *, partition: int = 0, count: int = 1, first: int | None = None) -> None:
        """The next fetch gets these batches, all of them acquired."""
        headers = batch_headers(records)
        acquired = AcquiredRange(headers[0].base_offset if first is None else first, headers[-1].last_offset, count)
        self.ready.append(
            m.FetchedPartition(topic_id=ORDERS, partition=partition, records=records, acquired=(acquired,))
        )
        self.more.set()

    async def answer(self, request: Any) -> Any:
        scripted = self.script.get(type(request))
        if scripted:
            answer = scripted.pop(0)
            if isinstance(answer, asyncio.Future):
                answer = await answer
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                return answer
        return await getattr(self, "_" + type(request).__name__)(request)

    async def _ShareGroupHeartbeatRequest(self, request: Any) -> Any:  # noqa: N802
        leaving = request.member_epoch == -1
        joining = request.member_epoch == 0
        return m.ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=-1 if leaving else self.member_epoch,
            heartbeat_interval_ms=self.heartbeat_interval_ms,
            assignment=self.assignment if joining else None,
        )

    async def _MetadataRequest(self, request: Any) -> Any:  # noqa: N802
        names = request.topics if request.topics is not None else tuple(self.known)
        return m.MetadataResponse(
            topics=tuple(
                m.TopicMetadata(name=name, topic_id=self.known[name][0], partitions=self.known[name][1])
                if name in self.known
                else m.TopicMetadata(name=name, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                for name in names
            )
        )

    async def _CreateTopicRequest(self, request: Any) -> Any:  # noqa: N802
        self.known[request.name] = (uuid.uuid4(), request.partitions)
        return m.TopicResult(topic=request.name, topic_id=self.known[request.name][0])

    async def _ShareFetchRequest(self, request: Any) -> Any:  # noqa: N802
        if not request.max_records:
            self.more.set()  # what is parked answers with what there is
        elif not self.ready:
            self.more.clear()
            await self.more.wait()
        parts, self.ready = (tuple(self.ready), []) if request.max_records else ((), self.ready)
        return m.ShareFetchResponse(lock_timeout_ms=self.lock_timeout_ms, partitions=parts)

    async def _ShareResumeRequest(self, request: Any) -> Any:  # noqa: N802
        """A server that was there all the time has given everything to others; a successor may have kept it."""
        return m.ShareResumeResponse(partitions=request.partitions if self.keeps else ())

    async def _ShareAcknowledgeRequest(self, request: Any) -> Any:  # noqa: N802
        return m.ShareAcknowledgeResponse(
            lock_timeout_ms=self.lock_timeout_ms,
            partitions=tuple(m.AcknowledgedPartition(topic_id=p[0], partition=p[1]) for p in request.partitions),
        )

    async def _ShareSettleRequest(self, request: Any) -> Any:  # noqa: N802
        return m.ShareSettleResponse(lock_timeout_ms=self.lock_timeout_ms)

    async def _InitProducerIdRequest(self, request: Any) -> Any:  # noqa: N802
        if request.known.producer_id >= 0:
            return m.InitProducerIdResponse(producer=request.known._replace(epoch=request.known.epoch + 1))
        self.producer_ids += 1
        return m.InitProducerIdResponse(producer=m.ProducerIdentity(self.producer_ids, 0))

    async def _AddPartitionsToTxnRequest(self, request: Any) -> Any:  # noqa: N802
        return m.Response()

    async def _EndTxnRequest(self, request: Any) -> Any:  # noqa: N802
        return m.Response()

    async def _ProduceRequest(self, request: Any) -> Any:  # noqa: N802
        where = (request.topic, request.partition)
        base = self.ends.get(where, 0)
        placed = place(request.records, base)
        self.log.setdefault(where, []).append(placed)
        self.ends[where] = batch_headers(placed)[-1].last_offset + 1
        return m.ProduceResponse(base_offset=base)
