"""`CooperativeConsumer`: hands out records of partitions that members share by keys; each is committed by itself.

    async with CooperativeConsumer(connect, group_id="billing", clock=LoopClock()) as consumer:
        consumer.subscribe(["orders"])
        async for record in consumer:
            ...
            consumer.commit(record)

Of each key one record is in hand at a time, the oldest that is not committed: the next one is handed out when that is
committed or released. So records of a poll may be handled at once, in any order, and each key keeps its own. Records
without a key have no order. One task uses a consumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, Self, TypeVar, cast, overload

from flowshare.client.arguments import check_argument, settings_of
from flowshare.client.consumer.inflight import Named, ShareRecord, named_of, neighbours
from flowshare.client.consumer.partitions import PartitionInfo, partitions_of
from flowshare.client.consumer.settles import keep, refusal
from flowshare.client.cooperative.member import CooperativeMember
from flowshare.client.cooperative.settles import UNKNOWN
from flowshare.client.errors import (
    ClientError,
    Closed,
    IllegalState,
    NotCommitted,
    RecordError,
)
from flowshare.client.producer.channel import TopicPlace
from flowshare.client.producer.outputs import Outputs, messages_of, packed
from flowshare.client.session.ranges import TopicIdPartition
from flowshare.client.settings import CooperativeSettings
from flowshare.protocol.each_record import UnreadableRecord
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError

if TYPE_CHECKING:
    from types import TracebackType

    from flowshare.client.consumer.backlog import Decoder
    from flowshare.client.cooperative.assigning import Place
    from flowshare.client.cooperative.partitions import Partition, Record
    from flowshare.client.cooperative.settles import Settled
    from flowshare.client.net.link import Connect
    from flowshare.client.producer.message import Message
    from flowshare.clock import Clock, TimerHandle
    from flowshare.cooperative.ranges import Pair
    from flowshare.cooperative.types import KeyRanges

K = TypeVar("K")
V = TypeVar("V")
FOREVER_S: Final = 3600.0
"""How long one round of an iteration waits; then comes the next one."""
WAIT_MIN_S: Final = 0.001
NO_ANSWER: Final = "the server has not answered, or topics are not there"
LEASE_ENDED: Final = "the lease ended, or keys went to another member, before the commit was answered"

logger = logging.getLogger(__name__)


class CooperativeConsumer(Generic[K, V]):
    """A member of a cooperative group that hands out records. Made for one task."""

    @overload
    def __init__(
        self: CooperativeConsumer[bytes | None, bytes | None],
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        settings: CooperativeSettings | None = None,
        member_id: str | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        settings: CooperativeSettings | None = None,
        member_id: str | None = None,
        key_decoder: Decoder[K],
        value_decoder: Decoder[V],
    ) -> None: ...
    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        settings: CooperativeSettings | None = None,
        member_id: str | None = None,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
    ) -> None:
        """A consumer that joins at its first poll. Decoders turn bytes (or None) into keys and values."""
        if not group_id:
            raise ValueError("a cooperative consumer needs a group_id")
        check_argument("group_id", group_id, str)
        self._connect = connect
        self._group_id = group_id
        self._clock = clock
        self._settings = settings_of(settings, CooperativeSettings)
        self._member_id = member_id
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._topics: tuple[str, ...] = ()
        self._manual: dict[Place, Sequence[Pair]] | None = None
        self._member: CooperativeMember | None = None
        self._ready = asyncio.Event()
        self._hand: dict[Named, tuple[Partition, Record]] = {}
        self._gone: dict[Named, bool] = {}
        """Records that were in hand and were lost. True: it is in doubt if a settle of the record was written."""
        self._open: dict[Named, None] = {}
        """Finished records whose commit will never be answered any more."""
        self._in_order = False
        """True if the caller settles records in partition order: then they are also handed out in that order."""
        self._broken: list[RecordError] = []
        self._busy = False
        self._closed = False
        self._overdue: TimerHandle | None = None
        self._leaving: dict[asyncio.Task[None], CooperativeMember] = {}
        self._lives = 0
        self._settles = 0
        self._records = 0
        """How many records were handed out."""
        self._bytes = 0
        """Bytes of their keys and values."""
        self._polled_s: float | None = None

    # --- what it reads ------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics; the group's members share their partitions. Once, before the first poll.

        Raises: ValueError (empty), TypeError, IllegalState.
        """
        if isinstance(topics, str) or not topics:
            raise ValueError("subscribe to a list of at least one topic")
        check_argument("topics", topics, Sequence[str])
        self._check_unset()
        self._topics = tuple(sorted(set(topics)))

    def assign(self, partitions: Mapping[Place, Sequence[Pair]]) -> None:
        """Read these partitions, and of each the keys whose hashes lie in these half-open ranges; none: all of them.

        Nobody else deals them out: what members leave out nobody reads, and what two of them name waits for the other
        one's end. Once, before the first poll. Raises: ValueError (empty, ranges overlap), IllegalState.
        """
        from flowshare.cooperative.ranges import assigned
        from flowshare.core_errors import InvalidRequest

        if not partitions:
            raise ValueError("assign at least one partition")
        self._check_unset()
        for (topic, number), ranges in partitions.items():
            try:
                assigned(list(ranges))
            except InvalidRequest as error:
                raise ValueError(f"assign: {topic}-{number}: {error}") from None
        self._manual = dict(partitions)

    def assignment(self) -> dict[Place, KeyRanges]:
        """The target of this consumer: of each partition the half-open ranges of key hashes that it is assigned."""
        return {} if self._member is None else self._member.target

    def held(self) -> dict[Place, KeyRanges]:
        """The key ranges that this consumer holds now: other members may not have finished with the rest of the
        assignment."""
        return {} if self._member is None else self._member.held

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionInfo]:
        """The partitions of a topic with their leaders and replicas, as far as brokers tell.

        timeout: seconds (default_api_timeout). Raises: ServerError (there is no such topic, or it may not be seen),
        NotConnected, ClientError (not in time), Closed.
        """
        self._check_usable()
        return await partitions_of(
            self._connect,
            topic,
            clock=self._clock,
            settings=self._settings.link,
            timeout_s=self._settings.default_api_timeout if timeout is None else timeout,
        )

    def metrics(self) -> dict[str, float]:
        """Return the counters of this consumer, by the names of Kafka's consumers; docs/clients.md explains each one.

        May be called at any time, also when the consumer is closed.
        """
        return {
            "records_consumed_total": self._records,
            "bytes_consumed_total": self._bytes,
            "last_poll_seconds_ago": -1.0 if self._polled_s is None else self._clock.monotonic() - self._polled_s,
            "assigned_partitions": 0 if self._closed else len(self.assignment()),
        }

    @property
    def trouble(self) -> str | None:
        """Why nothing arrives, in words; None when all is well (there may just be nothing to read)."""
        return "it has not polled yet" if self._member is None else self._member.trouble

    # --- polling ------------------------------------------------------------------------------------------------

    async def poll(self, timeout: float) -> list[CooperativeRecord[K, V]]:
        """Records, or an empty list when none came within `timeout`; `max_poll_records` at most.

        With `enable_auto_commit` what the last poll returned counts as finished. Raises: RecordError (that record can
        be given to `commit` as it is; the others come with the next polls), IllegalState, Closed.
        """
        check_argument("poll: timeout", timeout, float)
        with self._turn():
            return await self._poll(timeout, self._settings.max_poll_records)

    async def _poll(self, timeout: float, count: int) -> list[CooperativeRecord[K, V]]:
        self._polled_s = self._clock.monotonic()
        member = self._joined()
        if self._settings.enable_auto_commit:
            for named in list(self._hand):
                self._end(named)
        deadline_s = self._clock.monotonic() + timeout
        while True:
            self._ready.clear()
            records = self._decoded(member.take(count, in_order=self._in_order))
            if records:
                return records
            if self._broken:
                raise self._broken.pop(0)
            now_s = self._clock.monotonic()
            if now_s >= deadline_s:
                return []
            due_s = member.next_s()
            await self._wait(min(deadline_s, due_s or deadline_s) - now_s)

    async def _wait(self, limit_s: float) -> None:
        with suppress(TimeoutError):
            await self._clock.wait_for(self._ready.wait(), max(WAIT_MIN_S, limit_s))
        if self._closed:
            raise Closed("the consumer was closed")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CooperativeRecord[K, V]:
        """The next record, however long it takes; ends when the consumer is closed. Raises: as `poll`."""
        if self._closed:
            raise StopAsyncIteration
        with self._turn():
            try:
                while True:
                    records = await self._poll(FOREVER_S, 1)
                    if records:
                        return records[0]
            except Closed:
                raise StopAsyncIteration from None

    # --- what became of records ---------------------------------------------------------------------------------

    def commit(self, record: CooperativeRecord[K, V] | RecordError) -> bool:
        """The record is finished: it is committed soon, by itself, and then the next one of its key may come.

        False: the record is not in hand any more; its keys went to another member, which handles it again. The next
        `commit_sync` tells of it, too.
        """
        self._check_usable()
        named = named_of("commit", record)
        if self._gone.pop(named, None) is not None:
            keep(self._open, named, None)
        return self._end(named)

    def release(self, record: CooperativeRecord[K, V] | RecordError, *, delay: float = 0.0) -> bool:
        """The record is to be handed out again, not before `delay` seconds; its key waits. False: as `commit`."""
        self._check_usable()
        found = self._hand.pop(named_of("release", record), None)
        if found is None:
            return False
        given = self._joined().give_back(*found, delay_s=delay)
        self._ready.set()
        return given

    async def commit_sync(self, timeout: float | None = None) -> None:
        """Wait until all that is finished is committed.

        Raises: NotCommitted: that is not known of its `records`, within `timeout` seconds (default_api_timeout) or at
        all, as the lease ended, or their keys went to another member, before it was answered. All others are.
        """
        self._check_usable()
        limit_s = self._settings.default_api_timeout if timeout is None else timeout
        why, pending = LEASE_ENDED, list[Named]()
        try:
            await self._clock.wait_for(self._flushed(), limit_s)
        except TimeoutError:
            trouble = "the server has not answered" if self._member is None else self._member.trouble
            why = f"not all is committed within {limit_s:g} s: {trouble or 'the server has not answered'}"
            members = [*self._leaving.values(), *([] if self._member is None else [self._member])]
            pending = [(*place, offset) for one in members for place, offset in one.partitions.uncommitted()]
        told, self._open = {*self._open, *pending}, {}
        if told:
            raise NotCommitted(told, why)

    async def _flushed(self) -> None:
        """All that is finished is answered, or open: what a member is about that leaves, too."""
        if self._leaving:
            await asyncio.wait(set(self._leaving))
        if self._member is not None:
            await self._member.flush()

    async def settle(
        self,
        records: Sequence[CooperativeRecord[K, V] | RecordError],
        outputs: Outputs,
        *,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> bool:
        """Commit records of one partition and write outputs, in one step or nothing: whoever is killed, the outputs are
        there exactly if the records are committed, and once.

        outputs: records by topic, values or `Message`s as of `Producer.send_many`. ordered: they become visible in the
        order of the partition's offsets: not before all offsets before these are committed, so the records are
        neighbours then. From the first such settle on polls hand out the records of a partition in the order of the
        log, so that a loop that settles one by one never waits for a record that it has not polled yet; of what it
        polled it settles the lower offset first. timeout: seconds (default_api_timeout).

        False: nothing is written, as some of the records are not in hand any more, or (ordered) were given back: they
        come again behind a record of this consumer's that was not handed out yet. Those that are in hand may be
        settled again.
        Raises: ValueError, TypeError (no such settle can be), ServerError, RecordTooLarge (an output cannot be written,
        nothing is, the records stay in hand), Unsupported (the server cannot do it), ClientError (it is not known
        whether it is written: settle the same records again, the outputs are written once at most).
        """
        self._check_usable()
        messages = messages_of(outputs)
        named = neighbours(records, ordered=ordered)
        found = [self._hand.get(one) for one in named]
        hand = [one for one in found if one is not None]
        if any(self._gone.get(one) for one in named):
            raise ClientError(f"{UNKNOWN}; the records come again where they are not committed")
        if len(hand) < len(found):
            return False
        if ordered and self._give_back_early(hand):
            return False
        limit_s = self._settings.default_api_timeout if timeout is None else timeout
        try:
            settled = await self._clock.wait_for(self._settled(hand, messages, ordered=ordered), limit_s)
        except TimeoutError:
            trouble = self._joined().trouble or self._first_in_hand(named[0], ordered=ordered) or NO_ANSWER
            raise ClientError(f"not settled within {limit_s:g} s: {trouble}; settle the same records again") from None
        return self._is_settled(named, settled)

    def _give_back_early(self, hand: Sequence[tuple[Partition, Record]]) -> bool:
        """Give back what would wait for a record of this consumer's that is not handed out: nobody polls meanwhile.
        In doubt nothing is: it may be written."""
        self._in_order = True
        partition, first = hand[0]
        if any(one.doubted for _, one in hand) or not partition.scan.begins_before(first.offset):
            return False
        for at, one in hand:
            self._hand.pop((*at.place, one.offset), None)
            self._joined().give_back(at, one, unrun=True)
        self._ready.set()
        return True

    def _first_in_hand(self, named: Named, *, ordered: bool) -> str | None:
        """Name this consumer's own earlier record that an ordered settle waits for; None: there is none."""
        before = min((one for one in self._hand if one[:2] == named[:2] and one[2] < named[2]), default=None)
        if before is None or not ordered:
            return None
        return f"{before[0]}-{before[1]}@{before[2]} is in hand and comes first"

    async def _settled(
        self, hand: Sequence[tuple[Partition, Record]], messages: Mapping[str, Sequence[Message]], *, ordered: bool
    ) -> Settled:
        member = self._joined()
        self._settles += 1
        sizes = await member.topic_sizes(sorted(messages))
        topics = {name: TopicPlace(*size) for name, size in sizes.items()}
        made = packed(messages, topics, now_ms=self._clock.now_ms(), spread=self._settles)
        return await member.settle(hand[0][0], [one for _, one in hand], made, ordered=ordered)

    def _is_settled(self, named: Sequence[Named], settled: Settled) -> bool:
        """Tell if a settle was written, and drop its settled or lost records. Raises: ServerError, Unsupported,
        ClientError."""
        gone = {offset for first, end in settled.refused for offset in range(first, end)}
        for one in named:
            if settled.error is ErrorCode.NONE or one[2] in gone:
                self._hand.pop(one, None)
        if settled.error is ErrorCode.NONE:
            return True
        if settled.error is ErrorCode.INVALID_RECORD_STATE:
            return False
        if settled.error is ErrorCode.NETWORK_EXCEPTION:
            for one in named:
                self._hand.pop(one, None)
            raise ClientError(f"{settled.message}; the records come again where they are not committed")
        where = f"settling {named[0][0]}-{named[0][1]}"
        raise refusal(settled.error, settled.message, settled.outputs, where)

    # --- closing ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Commit what is finished, give everything back, leave the group. Calling it again does nothing.

        Raises: NotCommitted, when all is closed: of these of its `records` nobody has said so in time.
        """
        if self._closed:
            return
        self._closed = True
        self._ready.set()
        if self._overdue is not None:
            self._overdue.cancel()
        try:
            await asyncio.gather(*self._leaving, return_exceptions=True)
        finally:  # also for a caller who waits no longer: the member must not live on
            before = set(self._open)
            if self._member is not None:
                await self._member.close()
        left = self._open.keys() - before
        if left:
            raise NotCommitted(left, "the consumer was closed before all was answered")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with behind(error):
            await self.close()

    # --- inside -------------------------------------------------------------------------------------------------

    def _joined(self) -> CooperativeMember:
        if self._member is None:
            if not self._topics and self._manual is None:
                raise IllegalState("the consumer reads nothing; call subscribe() or assign() first")
            self._member = self._new_member()
            self._member.start()
        return self._member

    def _new_member(self) -> CooperativeMember:
        self._lives += 1
        again = self._member_id is not None and self._lives > 1  # calls of one id are numbered from its first one on
        member = CooperativeMember(
            self._connect,
            group_id=self._group_id,
            clock=self._clock,
            topics=self._topics,
            manual=self._manual,
            settings=self._settings,
            member_id=f"{self._member_id}.{self._lives}" if again else self._member_id,
            on_ready=self._ready.set,
            on_lost=self._lost,
        )
        member.partitions.on_unanswered = self._unanswered
        return member

    def _decoded(self, taken: list[tuple[Partition, list[Record]]]) -> list[CooperativeRecord[K, V]]:
        records: list[CooperativeRecord[K, V]] = []
        for partition, found in taken:
            source = TopicIdPartition(*partition.place, partition.topic_id)
            for one in found:
                named = (*partition.place, one.offset)
                self._hand[named] = (partition, one)
                self._gone.pop(named, None)  # it came again: so it was not committed
                self._open.pop(named, None)
                record = self._record(source, one)
                if record is not None:
                    self._bytes += len(one.record.key or b"") + len(one.record.value or b"")
                    records.append(record)
        self._records += len(records)
        return records

    def _record(self, source: TopicIdPartition, found: Record) -> CooperativeRecord[K, V] | None:
        raw = found.record
        try:
            if isinstance(raw, UnreadableRecord):
                raise DecodeError(raw.reason)
            return CooperativeRecord(
                source,
                raw.offset,
                raw.timestamp,
                cast("K", raw.key) if self._key_decoder is None else self._key_decoder(raw.key),
                cast("V", raw.value) if self._value_decoder is None else self._value_decoder(raw.value),
                tuple(raw.headers or ()),
                found.attempt,
            )
        except Exception as error:  # noqa: BLE001 (a decoder is the application's and may raise anything)
            problem = RecordError(source.topic, source.partition, raw.offset, f"{type(error).__name__}: {error}")
            problem.__cause__ = error
            self._broken.append(problem)
            return None

    def _end(self, named: Named) -> bool:
        found = self._hand.pop(named, None)
        if found is None:
            return False
        finished = self._joined().finish(*found)
        if not finished:
            keep(self._open, named, None)
        return finished

    def _lost(self, partition: Partition, lost: list[Record]) -> None:
        for one in lost:
            named = (*partition.place, one.offset)
            if self._hand.pop(named, None) is not None:
                keep(self._gone, named, one.doubted)

    def _unanswered(self, partition: Partition, offsets: Sequence[int]) -> None:
        for offset in offsets:
            keep(self._open, (*partition.place, offset), None)

    def _check_unset(self) -> None:
        self._check_usable()
        if self._topics or self._manual is not None:
            raise IllegalState("what the consumer reads was said before; make another one for something else")

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed("the consumer was closed")

    @contextmanager
    def _turn(self) -> Generator[None]:
        self._check_usable()
        if self._busy:
            raise IllegalState("a consumer is used by one task at a time")
        self._busy = True
        if self._overdue is not None:
            self._overdue.cancel()
        try:
            yield
        finally:
            self._busy = False
            if not self._closed:
                self._overdue = self._clock.call_later(self._settings.max_poll_interval, self._late)

    def _late(self) -> None:
        """The application has not polled for too long: others get what it holds."""
        member, self._member = self._member, None
        if member is None:
            return
        logger.warning(
            "no poll for %g s: what the consumer of group %s has in hand goes to others, the next poll joins again; "
            "poll more often, or raise max_poll_interval",
            self._settings.max_poll_interval,
            self._group_id,
        )
        for named, (_, one) in self._hand.items():
            keep(self._gone, named, one.doubted)
        self._hand.clear()
        leaving = asyncio.get_running_loop().create_task(member.close(), name="leave")
        self._leaving[leaving] = member
        leaving.add_done_callback(self._leaving.pop)


@contextmanager
def behind(error: BaseException | None) -> Generator[None]:
    """A close at the end of a block. What is not known to be committed is only logged where `error` ends the block."""
    try:
        yield
    except NotCommitted as left:
        if error is None:
            raise
        logger.warning("%s", left)


class CooperativeRecord(ShareRecord[K, V]):
    """One record as a consumer hands it out.

    timestamp: seconds since 1970. attempt: how often it was given out, 1 the first time; by members that are gone, too.
    """

    __slots__ = ()
