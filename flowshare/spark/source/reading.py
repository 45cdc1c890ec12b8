"""Work of the executors: reads ranges straight from the log, by plain Fetch, and returns the records as Arrow.

Connections live as long as their Python worker, which Spark uses for one task after the other. Reading needs no lock
and changes nothing: a task that is tried again reads the same records. While one answer is decoded, the next is on its
way.

Invariant: a task leaves out an offset only if the offset is known not to be in the log. An answer without records
proves nothing.

| an answer | meaning for the offset that was asked for |
|---|---|
| batches behind it | compaction took it: left out |
| batches of aborted transactions, markers | no record: left out |
| out of range, and the log starts behind it | retention took it: data loss, see `DataLoss` |
| out of range, and the log ends before it | the task fails |
| no batch (a follower that leads, a slow remote tier, an open transaction) | nothing: asked again, at last it fails |
| throttled by a quota | nothing: asked again when the broker answers again; the time does not count |
| any error | the task fails |

A task that fails is tried again, and then its batch; nothing of the batch is accepted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from flowshare.agents.host.service import ServiceLoop
from flowshare.backend import open_backend
from flowshare.backend.path_login import security_at
from flowshare.backend.url import parse_broker
from flowshare.client.net.cluster import Cluster
from flowshare.client.producer.producer import Producer
from flowshare.client.settings import ProducerSettings
from flowshare.clock import LoopClock
from flowshare.core_errors import FlowshareError
from flowshare.fleet.log.chunk import aborted_batches
from flowshare.garbage import collector_paused
from flowshare.protocol.decoding import RawDecoded, decode_raw
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError, check_header, frames
from flowshare.protocol.messages import FetchRequest, ListOffsetsRequest, MetadataRequest
from flowshare.protocol.messages.records import EARLIEST, FetchedLog, FetchPartition
from flowshare.share.types import AcquiredRange
from flowshare.spark.source.columns import Decode, Poison, all_poison, to_arrow
from flowshare.spark.source.ranges import Range, RangeSet, by_place, records_in

if TYPE_CHECKING:
    import pyarrow as pa

    from flowshare.backend.base import Backend
    from flowshare.client.errors import ClientError
    from flowshare.client.net.routing import ClusterConnection
    from flowshare.client.net.security import Security
    from flowshare.client.producer.batching import RecordMetadata
    from flowshare.client.producer.message import Message
    from flowshare.protocol.messages import Connection, Request

R = TypeVar("R")

FETCH_BYTES: Final = 8 << 20
"""The most bytes of one answer; a larger batch of the log comes whole."""
FETCH_BYTES_MIN: Final = 64 << 10
GAP: Final = 1000
"""The largest gap, in offsets, between two ranges that are read with one request."""
RECORD_BYTES: Final = 256.0
"""The assumed size of a topic's offset, in bytes, before any was read."""
WAIT_MS: Final = 500
"""The longest wait, in milliseconds, of a broker for an acquired record that is not there yet (a replica that
follows)."""
STUCK_S: Final = 120.0
"""The seconds without a record after which the task fails."""
EMPTY_PAUSE_S: Final = 0.05
"""The pause, in seconds, after an empty answer: a broker with records in a remote tier does not wait."""
THROTTLED_S: Final = 600.0
"""The longest time, in seconds, that a quota may delay one answer."""
SENT_BYTES_MAX: Final = 1 << 30
"""The largest record that is sent, in bytes, so that the broker alone limits it by its topic's setting."""
CALL_S: Final = 60.0
PATIENCE_S: Final = 3.0
"""The seconds that workers living on an embedded path get to lead it when it has no leader."""
READER: Final = "spark-reader"
"""The client id, for quotas."""
TRIES: Final = 3
"""The most tries of a request whose connection ends before the answer."""

logger = logging.getLogger("flowshare.spark")


class LogGone(FlowshareError, RuntimeError):
    """The log cannot be read; the text names the log and the reason. The batch fails, and is read again."""


class DataLoss(FlowshareError, RuntimeError):
    """Records of a batch are gone from the log before they were read, and the source must not go on without them."""


LOSS_HELP: Final = (
    "To go on without them, set .option('on_data_loss', 'continue') on the source (source={'on_data_loss': 'continue'} "
    "of a pipeline)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTask:
    """The part of a batch that one task reads. broker: its URL. topics: ids of the ranges' topics.

    hosts: addresses of the log; empty for an embedded path without a leader. lossy: go on without records that are gone
    from the log. buried: reason why all of its records are dead letters; empty: they are rows.
    """

    broker: str = field(repr=False)
    hosts: tuple[str, ...]
    ranges: tuple[Range, ...]
    topics: dict[str, str]
    committed: bool
    lossy: bool = False
    buried: str = ""


class LogReader:
    """Connections to one cluster and their thread. One for each Python worker and cluster (`reader_of`)."""

    def __init__(self, broker: str, hosts: tuple[str, ...]) -> None:
        self._hosts = hosts
        self._clock = LoopClock()
        self._url = parse_broker(broker)
        self._backend: Backend | None = None
        self._service = ServiceLoop(name="flowshare log")
        self._service.start()
        self._connection: ClusterConnection | None = None
        self._connecting = asyncio.Lock()
        self._sizes: dict[str, float] = {}
        """The bytes of an offset of each topic, as of its last answer."""
        self._free_s = 0.0
        """The time, in monotonic seconds, from which the brokers' quotas allow the next request."""

    def fetch(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> concurrent.futures.Future[FetchedLog]:
        """Begin to read from `first` on, about as many bytes as up to `last`."""
        guess = int(1.25 * (last - first + 1) * self._sizes.get(topic, RECORD_BYTES)) + FETCH_BYTES_MIN
        part = FetchPartition(topic, partition, first, min(guess, FETCH_BYTES))
        return self._service.submit(lambda: self._fetch(part, committed))

    def learn(self, topic: str, offsets: int, size: int) -> None:
        """Store the bytes that an offset of a topic takes."""
        if offsets > 0:
            self._sizes[topic] = size / offsets

    def topic_ids(self, topics: Collection[str]) -> concurrent.futures.Future[dict[str, str]]:
        """Ask for the present ids of topics, without topics that do not exist."""
        return self._service.submit(lambda: self._topic_ids(topics))

    def send(self, topic: str, messages: Sequence[Message]) -> list[RecordMetadata | ClientError]:
        """Produce records, and return the outcome of each when all are known. Raises: ClientError, OSError."""
        return self._service.submit(lambda: self._send(topic, messages)).result(2 * CALL_S)

    def close(self) -> None:
        """End the connections and the thread."""
        self._service.submit(self._close).result(CALL_S)
        self._service.stop()

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            await self._connection.cluster.close()
        if self._backend is not None:
            await self._backend.close()

    async def _connected(self) -> ClusterConnection:
        async with self._connecting:
            if self._connection is None:
                hosts, security = await self._address()
                cluster = Cluster(hosts, clock=self._clock, security=security)
                try:
                    await cluster.start()
                except BaseException:
                    await cluster.close()
                    raise
                self._connection = cluster.connect(READER)
        return self._connection

    async def _address(self) -> tuple[tuple[str, ...], Security | None]:
        """Return the addresses of the log. A path without a leader is led by this process, or by another task that it
        joins."""
        if self._url.kind != "embedded":
            return self._hosts or self._url.hosts, self._url.security()
        if self._hosts:
            return self._hosts, security_at(Path(self._url.path), self._hosts[0])
        if self._backend is None:  # else what is opened leads the path already, or has joined it
            backend = open_backend(self._url, clock=self._clock, patience_s=PATIENCE_S)
            try:
                await backend.start()
            except BaseException:
                await backend.close()
                raise
            self._backend = backend
        assert self._backend.kafka is not None, "whoever leads the path listens"
        return self._backend.kafka.hosts, self._backend.kafka.security

    async def _fetch(self, part: FetchPartition, committed: bool) -> FetchedLog:
        request = FetchRequest(
            partitions=(part,), max_wait_ms=WAIT_MS, max_bytes=FETCH_BYTES, committed=committed, min_bytes=1
        )
        begun_s = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._free_s - self._clock.monotonic())
            answer = await self._ask(request)
            if answer.error is not ErrorCode.NONE:
                raise LogGone(f"{part.topic}-{part.partition} is not read: {answer.error.name}")
            log = answer.partitions[0]
            self._free_s = self._clock.monotonic() + answer.throttle_ms / 1000
            empty = not log.records and log.error in (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            if not answer.throttle_ms or not empty:
                break
            if self._free_s > begun_s + THROTTLED_S:
                raise LogGone(
                    f"{part.topic}-{part.partition}@{part.offset}: a quota of the brokers let nothing through for "
                    f"{THROTTLED_S:g} s: raise consumer_byte_rate of this user or client id ({READER})"
                )
        if log.error is ErrorCode.OFFSET_OUT_OF_RANGE and log.log_start < 0:  # Kafka's brokers do not say
            asked = ListOffsetsRequest(topic=part.topic, partition=part.partition, timestamp_ms=EARLIEST)
            log = replace(log, log_start=(await self._ask(asked)).offset)
        return log

    async def _ask(self, request: Request[R]) -> R:
        """Send a request that only reads; after a lost connection open a new one, to the present leader."""
        for tried in range(1, TRIES + 1):
            try:
                return await (await self._connected()).send(request)
            except OSError:
                if tried == TRIES:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _send(self, topic: str, messages: Sequence[Message]) -> list[RecordMetadata | ClientError]:
        connection = await self._connected()

        async def connect() -> Connection:
            return connection.cluster.connect(READER)

        producer = Producer(connect, clock=self._clock, settings=ProducerSettings(max_request_size=SENT_BYTES_MAX))
        try:
            return await producer.send_many(topic, messages, return_exceptions=True)
        finally:
            await producer.close()

    async def _topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        answer = await self._ask(MetadataRequest(topics=tuple(sorted(topics))))
        return {found.name: str(found.topic_id) for found in answer.topics if found.topic_id is not None}


_readers: dict[tuple[int, str, tuple[str, ...]], LogReader] = {}
"""Readers by process, broker and hosts: a fork has its own threads."""


def reader_of(broker: str, hosts: tuple[str, ...]) -> LogReader:
    """Return this process's reader for a cluster."""
    key = os.getpid(), broker, hosts
    if key not in _readers:
        _readers[key] = LogReader(broker, hosts)
    return _readers[key]


class TaskRows(NamedTuple):
    """The content of one answer, or of a part of it: rows, and records that cannot be read."""

    topic: str
    partition: int
    batches: list[pa.RecordBatch]
    poison: list[Poison]
    damaged: list[tuple[int, int, str]]
    """First and last offset of unreadable bytes, and the reason."""


def read(part: ReadTask, schema: pa.Schema, decode: Decode | None) -> Iterator[TaskRows]:
    """Yield the records of a part, partition by partition.

    Raises: LogGone, DataLoss, ClientError, OSError: the task fails, and is tried again.
    """
    if not part.ranges:
        return
    reader = reader_of(part.broker, part.hosts)
    # Looked up for each part: the topic may have been created anew since the last one, on either side.
    asked = reader.topic_ids({one.topic for one in part.ranges})
    waiting = [
        Fetches(reader, ranges, committed=part.committed, lossy=part.lossy) for ranges in by_place(part.ranges).values()
    ]
    waiting[0].begin()
    try:
        ids = asked.result(CALL_S)
    except TimeoutError:
        raise LogGone(_out_of_reach(part)) from None
    for one, following in zip(waiting, [*waiting[1:], None], strict=True):
        if ids.get(one.topic) != part.topics.get(one.topic):
            lose(
                f"topic {one.topic} is gone or was made anew: {records_in(one.ranges)} records of partition "
                f"{one.partition} cannot be read any more",
                lossy=part.lossy,
            )
            continue
        for decoded in one.decoded(following):
            if part.buried:
                yield TaskRows(one.topic, one.partition, [], all_poison(decoded, part.buried), decoded.corrupt)
                continue
            with collector_paused():
                batches, poison = to_arrow(one.topic, one.partition, decoded, schema, decode)
            yield TaskRows(one.topic, one.partition, batches, poison, decoded.corrupt)


class Fetches:
    """Reads ranges of one partition, ascending; the next answer is requested before one is returned."""

    def __init__(self, reader: LogReader, ranges: Sequence[Range], *, committed: bool, lossy: bool = False) -> None:
        (self.topic, self.partition), self.ranges = ranges[0].place, ranges
        self._reader, self._committed, self._lossy = reader, committed, lossy
        self._stuck_s: float | None = None
        """The time at which the task fails without any record until then; None: the last answer had records."""
        self._under_way: concurrent.futures.Future[FetchedLog] | None = None

    def begin(self) -> None:
        """Request the first answer, unless it is requested already."""
        if self._under_way is None:
            self._ask(self.ranges[0].first)

    def decoded(self, following: Fetches | None = None) -> Iterator[RawDecoded]:
        """Yield the records of the ranges. following: begun when all of these are requested.

        An answer whose batches are much larger without compression is decoded in parts: each ends where `decode_raw`
        reads no further batch, and the next begins there.
        """
        for log, wanted in self.answers(following):
            rest = wanted
            while rest:
                with collector_paused():
                    found = decode_raw(log.records, rest)
                rest = found.later
                yield found

    def answers(self, following: Fetches | None = None) -> Iterator[tuple[FetchedLog, list[AcquiredRange]]]:
        """Yield answers, each with its part of the ranges. following: begun when all of these are requested."""
        at, end = self.ranges[0].first, self.ranges[-1].last
        self.begin()
        while at <= end:
            assert self._under_way is not None
            log = self._under_way.result(CALL_S + THROTTLED_S)
            behind = self._behind(log, at, end)
            then = next((max(behind, one.first) for one in self.ranges if one.last >= behind), end + 1)
            if log.records:
                self._reader.learn(self.topic, behind - at, len(log.records))
            if then <= end:
                self._ask(then)
            elif following is not None:
                following.begin()
            wanted = _wanted(log, self.ranges, at, behind)
            if wanted:
                yield log, wanted
            at = then

    def _behind(self, log: FetchedLog, at: int, end: int) -> int:
        """Return the offset behind an answer: all before it are read, or known not to be in the log.

        Raises: LogGone, DataLoss.
        """
        where = f"{log.topic}-{log.partition}@{at}"
        if log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            if log.log_start <= at:
                raise LogGone(f"{where} is behind the end of the log: it was cut, or the topic was made anew")
            last = min(end, log.log_start - 1)
            gone = [one._replace(first=max(one.first, at), last=min(one.last, last)) for one in self.ranges]
            count = sum(max(0, one.last - one.first + 1) for one in gone)
            lose(f"{where} to {last}: retention took {count} records before they were read", lossy=self._lossy)
            return log.log_start
        if log.error is not ErrorCode.NONE:
            raise LogGone(f"{where} is not read: {log.error.name}")
        last = _last_offset(log, where)
        if last >= at:
            self._stuck_s = None
            return last + 1
        self._wait(f"{where} to {end}", log)
        return at

    def _wait(self, where: str, log: FetchedLog) -> None:
        """Wait after an empty answer. Raises: LogGone: there was no record for too long."""
        now_s = time.monotonic()
        if self._stuck_s is None:
            self._stuck_s = now_s + STUCK_S
        if now_s >= self._stuck_s:
            raise LogGone(
                f"{where}: the brokers gave no record of it for {STUCK_S:g} s, though they have not said that it is "
                f"gone (the log ends at {log.high_watermark}, {log.last_stable} of it without open transactions). "
                "If they are in a remote tier that is slow, raise remote.fetch.max.wait.ms of the brokers. Nothing is "
                "lost: the batch fails, and is read again"
            )
        time.sleep(EMPTY_PAUSE_S)

    def _ask(self, first: int) -> None:
        last = -1
        for one in self.ranges:
            if last >= 0 and one.first > last + GAP:
                break
            if one.last >= first:
                last = one.last
        self._under_way = self._reader.fetch(self.topic, self.partition, first, last, committed=self._committed)


def _out_of_reach(part: ReadTask) -> str:
    what = f"{', '.join(part.hosts)} is not reached from {socket.gethostname()} within {CALL_S:g} s"
    if part.broker.startswith("embedded:"):
        what += (
            ": an embedded path is one machine's. On a cluster serve it (`flowshare serve --data PATH "
            "--listen HOST:9092`) and use kafka://HOST:9092"
        )
    return what


def lose(what: str, *, lossy: bool) -> None:
    """Report that records of a batch are gone. Raises: DataLoss, unless `lossy`."""
    if not lossy:
        raise DataLoss(f"{what}. {LOSS_HELP}")
    logger.error("%s: the batch goes on without them", what)


def _last_offset(log: FetchedLog, where: str) -> int:
    """Return the last offset of an answer's batches; −1: no batches. Raises: LogGone."""
    try:
        headers = tuple(frames(log.records, partial_tail=True))
        for header in headers:
            check_header(header)
    except DecodeError as error:
        raise LogGone(f"{where} holds no batches: {error}") from error
    if log.records and not headers:
        raise LogGone(f"{where} holds no whole batch")
    return headers[-1].last_offset if headers else -1


def _wanted(log: FetchedLog, ranges: Sequence[Range], at: int, behind: int) -> list[AcquiredRange]:
    if not log.records:
        return []
    inside = [one._replace(first=max(one.first, at), last=min(one.last, behind - 1)) for one in ranges]
    inside = [one for one in inside if one.first <= one.last]
    if log.aborted:
        # Headers count even if not checked: behind a damaged batch, aborted records must not get through either.
        batches = aborted_batches(frames(log.records, partial_tail=True), log.aborted)
        aborted = RangeSet(Range(log.topic, log.partition, batch.first, batch.last) for batch in batches)
        inside = aborted.split(*inside)[1]
    return [AcquiredRange(one.first, one.last, one.delivery) for one in inside]
