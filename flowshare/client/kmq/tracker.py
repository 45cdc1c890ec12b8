"""`QueueTracker`: reads a queue's markers, and sends again the messages that were begun and not ended in time.

Several trackers are members of one consumer group over the markers topic and share its partitions. The group commits
the oldest marker that is still needed, so a tracker that takes over a partition reads little again.

    due ──▶ the original is read ──▶ its copy, confirmed ──▶ the end marker, confirmed ──▶ done
     │             │ the log has it no more ─────────────────────────▲
     └ failed, at any step: again after a pause, which doubles

A tracker that dies between copy and end marker leaves a message that its successor sends again: a duplicate. Messages
are sent independently of each other: one that cannot be sent holds up only the group's committed offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.backoff import USUAL
from flowshare.client.admin.sizes import letter_bytes
from flowshare.client.errors import BufferFull, ClientError, RecordTooLarge, ServerError, check
from flowshare.client.groups.consumer import Bounds, GroupConsumer, Place
from flowshare.client.groups.membership import Generation, GroupSettings
from flowshare.client.groups.reading import read_log
from flowshare.client.kmq.topics import need_undelivered, partitions_of, warn_of_times
from flowshare.client.net.link import Connect, Link
from flowshare.client.settings import LinkSettings
from flowshare.kmq.markers import END, encode_key
from flowshare.kmq.redelivery import Copy, QueueRules, copy_of
from flowshare.kmq.tracker import QUIET_MS, PartitionTracker, TrackerCounts
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.messages import EARLIEST, FetchPartition, FetchRequest, ListOffsetsRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.client.producer.producer import Producer
    from flowshare.clock import Clock
    from flowshare.protocol.decoding import RawRecord
    from flowshare.protocol.messages import FetchedLog

WAIT_MS: Final = 250
"""The longest wait, in milliseconds, of a read for the next marker."""
WAIT_MS_MIN: Final = 10
COMMIT_S: Final = 1.0
BATCH: Final = 500
"""The most messages of one partition whose originals are read at once."""
SENDING_MAX: Final = 2_000
"""The most messages of one partition on their way."""
UNDELIVERING_MAX: Final = 500
"""The most messages on their way to the undelivered topic; others are due again after a pause, so that they hold up
none."""
ORIGINAL_BYTES: Final = 1 << 20
BEYOND_TRIES: Final = 5
"""The number of tries for an original that seems to lie behind the log's end: its leader may have changed."""

logger = logging.getLogger(__name__)


class _Partition:
    """A partition that the tracker works on, in one generation."""

    __slots__ = ("committed", "reading", "sending", "tracker")

    def __init__(self, tracker: PartitionTracker) -> None:
        self.tracker = tracker
        self.committed = -1
        self.reading: asyncio.Task[None] | None = None
        """The task that reads originals; None: no task runs."""
        self.sending: set[asyncio.Task[None]] = set()


class QueueTracker:
    """One tracker of one queue. Call all methods on one event loop.

    group_id: of all trackers of the queue, used for nothing else. quiet_ms: as in `PartitionTracker`. widens: as of
    `need_undelivered`.
    """

    def __init__(
        self,
        connect: Connect,
        rules: QueueRules,
        *,
        group_id: str,
        clock: Clock,
        admin: ShareAdmin,
        producer: Producer,
        quiet_ms: int = QUIET_MS,
        settings: GroupSettings | None = None,
        widens: bool = True,
    ) -> None:
        self._rules = rules
        self._widens = widens
        self._clock = clock
        self._admin = admin
        self._producer = producer
        self._quiet_ms = quiet_ms
        self._originals = Link(connect, clock=clock, settings=LinkSettings(), name=f"{group_id}: originals")
        self._consumer = GroupConsumer(
            connect,
            group_id=group_id,
            topics=(rules.markers,),
            clock=clock,
            on_assigned=self._assigned,
            on_revoked=self._let_go,
            settings=settings,
        )
        self._partitions: dict[int, _Partition] = {}
        self._generation: Generation | None = None
        """The generation by which messages are sent; None: nothing new is begun, the partitions are let go of."""
        self._undelivering = 0
        self._committed_s = clock.monotonic()
        self._past = TrackerCounts()
        """The counts of partitions that are not this tracker's any more."""
        self._task: asyncio.Task[None] | None = None
        self._beyond: dict[tuple[int, int], int] = {}
        self.trouble: str | None = None
        """The reason why markers cannot be read now."""

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check the topics, and begin. Raises: PartitionMismatch, ServerError, OSError, ClientError."""
        partitions = await partitions_of(self._admin, self._rules)
        await need_undelivered(self._admin, self._rules, partitions, widens=self._widens)
        self._producer.allow(await letter_bytes(self._admin, (self._rules.queue,)))
        await warn_of_times(self._admin, self._rules)
        self._consumer.start()
        self._task = asyncio.create_task(self._run(), name=f"tracker of {self._rules.queue}")

    async def close(self) -> None:
        """Wait briefly for messages on their way, commit, leave the group."""
        async with AsyncExitStack() as closing:  # all of it, also for a caller who waits no longer
            closing.push_async_callback(self._originals.close)
            closing.push_async_callback(self._consumer.close)
            await cancelled(self._task)

    # --- what is seen from outside ------------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """True if the tracker has partitions, and has read all markers that existed when it got them."""
        return bool(self._partitions) and all(one.tracker.caught_up for one in self._partitions.values())

    @property
    def counts(self) -> TrackerCounts:
        """The counts of everything read and done since the start."""
        total = TrackerCounts()
        for counts in (self._past, *(one.tracker.counts for one in self._partitions.values())):
            total.add(counts)
        return total

    @property
    def open(self) -> int:
        """The number of open messages in the tracker's partitions."""
        return sum(one.tracker.open for one in self._partitions.values())

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Tell if the tracker has these partitions, and has read each one up to the given offset."""
        parts = self._partitions
        return all(number in parts and parts[number].tracker.position >= end for number, end in ends.items())

    @property
    def partitions(self) -> tuple[int, ...]:
        """The tracker's current partitions."""
        return tuple(sorted(self._partitions))

    def problems(self) -> list[str]:
        """Return the tracker's problems, one sentence each."""
        full = [
            f"{self._rules.queue}-{number} has {one.tracker.open} open messages: more are read when half have ended"
            for number, one in sorted(self._partitions.items())
            if one.tracker.full
        ]
        return [*(text for text in (self._consumer.member.trouble, self.trouble) if text), *full]

    # --- generations --------------------------------------------------------------------------------------------

    def _assigned(self, generation: Generation, bounds: Mapping[Place, Bounds]) -> None:
        if generation is not self._generation:
            self._generation, self._partitions = generation, {}
            self._beyond.clear()
        for (_, number), one in bounds.items():
            self._partitions[number] = _Partition(PartitionTracker(number, one.position, one.end, self._quiet_ms))
        logger.info("queue=%s: tracks partitions %s", self._rules.queue, list(self.partitions))

    async def _let_go(self, generation: Generation) -> None:
        """Give up the partitions. Messages being sent get a moment to finish, so that none is sent twice; then all is
        committed."""
        parts, self._generation = self._partitions, None
        try:
            await cancelled(*(one.reading for one in parts.values()))
            sending = [task for one in parts.values() for task in one.sending]
            if sending:
                await self._clock.wait_for(asyncio.wait(sending), 2.0)
        except TimeoutError:
            logger.warning("queue=%s: messages that are just sent again may be so once more", self._rules.queue)
        finally:
            self._partitions = {}
            for one in parts.values():
                self._past.add(one.tracker.counts)
            await cancelled(*(task for one in parts.values() for task in (one.reading, *one.sending)))
        await self._commit(generation, parts)

    async def _commit(self, generation: Generation, parts: Mapping[int, _Partition]) -> None:
        needed = {number: one.tracker.needed for number, one in parts.items() if one.tracker.needed != one.committed}
        if not needed:
            return
        try:
            await self._consumer.commit(
                generation, {(self._rules.markers, number): offset for number, offset in needed.items()}
            )
        except (OSError, ClientError) as error:
            logger.info("queue=%s: where to go on is not committed: %s", self._rules.queue, error)
            return
        for number, offset in needed.items():
            parts[number].committed = offset

    # --- reading markers ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._step()
            except Exception as error:
                failures += 1
                self.trouble = f"the markers in {self._rules.markers} cannot be read: {error}"
                if isinstance(error, OSError | ClientError):
                    logger.warning("queue=%s: %s", self._rules.queue, self.trouble)
                else:
                    logger.exception("queue=%s: a fault of ours", self._rules.queue)
                await self._clock.sleep(USUAL.after(failures))
                continue
            failures, self.trouble = 0, None

    async def _step(self) -> None:
        """Read markers, send due messages, commit every `COMMIT_S`. Raises: OSError, ClientError."""
        generation = await self._consumer.ready()
        for log in await self._consumer.fetch(wait_ms=self._wait_ms()):
            self._read(generation, log)
        self._send_due()
        if self._clock.monotonic() - self._committed_s >= COMMIT_S:
            self._committed_s = self._clock.monotonic()
            await self._commit(generation, self._partitions)

    def _wait_ms(self) -> int:
        """Return the wait for the next marker, in milliseconds: until a message may be due."""
        wait_ms = WAIT_MS
        for one in self._partitions.values():
            now_ms, due_ms = one.tracker.clock_ms, one.tracker.next_due_ms()
            if now_ms is not None and due_ms is not None and one.reading is None:
                wait_ms = min(wait_ms, due_ms - now_ms)
        return max(WAIT_MS_MIN, wait_ms)

    def _read(self, generation: Generation, log: FetchedLog) -> None:
        one = self._partitions.get(log.partition)
        if one is None or self._consumer.generation is not generation:
            return
        tracker, now_ms = one.tracker, self._clock.now_ms()
        place = log.topic, log.partition
        tracker.position = min(tracker.position, self._consumer.positions[place])  # what was cut off is written anew
        try:
            read = read_log(log.records, tracker.position, log.aborted)
        except DecodeError as error:
            logger.error("%s-%d: an answer cannot be read, asked again: %s", *place, error)  # noqa: TRY400 - no trace is of use
            return
        for first, last, why in read.damaged:
            tracker.counts.odd += last - first + 1
            logger.error("%s-%d@%d..%d: the stored bytes cannot be read, passed over: %s",
                         log.topic, log.partition, first, last, why)  # fmt: skip
        tracker.read(read.records, now_ms)
        tracker.passed(read.next)
        self._consumer.move(generation, place, tracker.position)
        if tracker.position >= log.high_watermark:
            tracker.looked(now_ms)

    # --- sending again ------------------------------------------------------------------------------------------

    def _send_due(self) -> None:
        if self._generation is None or not self._consumer.member.sure:
            return
        for one in self._partitions.values():
            if one.reading is not None or len(one.sending) >= SENDING_MAX:
                continue
            messages = one.tracker.due(min(BATCH, SENDING_MAX - len(one.sending)))
            if messages:
                reading = self._redeliver(one, messages)
                one.reading = asyncio.create_task(reading, name=f"{self._rules.queue}-{one.tracker.partition}: again")

    async def _redeliver(self, one: _Partition, messages: Sequence[int]) -> None:
        """Read the originals of messages, and begin to send each one."""
        rest = list(messages)
        try:
            while rest:
                rest = await self._read_originals(one, rest)
        except Exception as error:
            if not isinstance(error, OSError | ClientError | DecodeError):
                logger.exception("queue=%s: a fault of ours", self._rules.queue)
            logger.warning("queue=%s: originals cannot be read: %s", self._rules.queue, error)
            for message in rest:
                one.tracker.failed(message)
        finally:
            one.reading = None

    async def _read_originals(self, one: _Partition, rest: list[int]) -> list[int]:
        """Begin to send the messages in one answer; return the others. Raises: OSError, ClientError, DecodeError."""
        number = one.tracker.partition
        log = await self._original(number, rest[0])
        if log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await self._log_start(number)
            gone = [message for message in rest if message < start]
            for message in gone:
                self._begin(one, message, partial(self._lost, one, message, f"the log begins at {start}"))
            return rest[len(gone) :] if gone else self._behind_end(one, rest)
        check(log.error, log.message, f"reading {self._rules.queue}-{number}@{rest[0]}")
        read = read_log(log.records, rest[0], log.aborted)
        if read.next == rest[0]:
            if rest[0] < log.high_watermark:  # of a transaction that is open: it is tried again when that has ended
                for message in rest:
                    one.tracker.failed(message)
                return []
            return self._behind_end(one, rest)
        found = {record.offset: record for record in read.records}
        for message in rest:
            if message >= read.next:
                break
            record = found.get(message)
            if record is None:
                self._begin(one, message, partial(self._lost, one, message, "there is no record any more"))
            else:
                self._begin(one, message, partial(self._send_on, one, message, record))
        return [message for message in rest if message >= read.next]

    def _behind_end(self, one: _Partition, rest: Sequence[int]) -> list[int]:
        """Count originals that seem to lie behind the log's end as failed, after `BEYOND_TRIES` as lost."""
        for message in rest:
            key = one.tracker.partition, message
            self._beyond[key] = self._beyond.get(key, 0) + 1
            if self._beyond[key] < BEYOND_TRIES:
                one.tracker.failed(message)
            else:
                del self._beyond[key]
                self._begin(one, message, partial(self._lost, one, message, "the log ends before it"))
        return []

    async def _original(self, partition: int, offset: int) -> FetchedLog:
        part = FetchPartition(self._rules.queue, partition, offset, ORIGINAL_BYTES)
        request = FetchRequest(partitions=(part,), max_bytes=ORIGINAL_BYTES, committed=True)
        answer = await self._originals.send(request)
        check(answer.error, answer.message, f"reading {self._rules.queue}-{partition}")
        (log,) = answer.partitions
        return log

    async def _log_start(self, partition: int) -> int:
        asked = ListOffsetsRequest(topic=self._rules.queue, partition=partition, timestamp_ms=EARLIEST)
        answer = await self._originals.send(asked)
        check(answer.error, answer.message, f"offsets of {self._rules.queue}-{partition}")
        return answer.offset

    def _begin(self, one: _Partition, message: int, steps: Callable[[], Awaitable[None]]) -> None:
        """Carry out the steps of one message beside those of the others."""
        task = asyncio.create_task(self._carry(one, message, steps), name=f"{self._rules.queue}: {message} again")
        one.sending.add(task)
        task.add_done_callback(one.sending.discard)

    async def _carry(self, one: _Partition, message: int, steps: Callable[[], Awaitable[None]]) -> None:
        try:
            await steps()
        except Exception as error:
            failures = one.tracker.failed(message)
            if not isinstance(error, OSError | ClientError):
                logger.exception("queue=%s: a fault of ours", self._rules.queue)
            logger.warning(
                "record=%s-%d@%d could not be sent on, tried %d times: %s",
                self._rules.queue,
                one.tracker.partition,
                message,
                failures,
                error,
            )

    async def _lost(self, one: _Partition, message: int, why: str) -> None:
        """End a message whose original is lost; no other record is sent in its place."""
        await self._end(one, message)
        one.tracker.counts.lost += 1
        one.tracker.ended(message)
        logger.error("record=%s-%d@%d: original lost: %s", self._rules.queue, one.tracker.partition, message, why)

    async def _send_on(self, one: _Partition, message: int, record: RawRecord) -> None:
        """Send a message again, or to the undelivered topic, and end it. Raises: OSError, ClientError."""
        if not one.tracker.wanted(message) or not self._consumer.member.sure:
            one.tracker.failed(message)  # harmless when it has ended
            return
        copy = copy_of(record.headers, self._rules)
        if copy.again:
            try:
                await self._produce(copy, record, one.tracker.partition)
            except (RecordTooLarge, ServerError) as error:
                if isinstance(error, ServerError) and error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                    raise
                copy = Copy(self._rules.undelivered_topic, False, tuple(record.headers))
            else:
                one.tracker.counts.redelivered += 1
        if not copy.again:
            await self._undeliver(copy, record)
            one.tracker.counts.undelivered += 1
            logger.warning(
                "record=%s-%d@%d: undelivered, goes to %s",
                self._rules.queue,
                one.tracker.partition,
                message,
                copy.topic,
            )
        await self._ended(one, message)

    async def _undeliver(self, copy: Copy, record: RawRecord) -> None:
        """Send a message to the undelivered topic. Raises: OSError, ClientError."""
        if self._undelivering >= UNDELIVERING_MAX:
            raise BufferFull(f"{self._undelivering} messages are on their way to {copy.topic}")
        self._undelivering += 1
        try:
            await self._produce(copy, record, None)
        finally:
            self._undelivering -= 1

    async def _produce(self, copy: Copy, record: RawRecord, partition: int | None) -> None:
        """Send a copy with the original's time if the queue accepts it (message.timestamp.before.max.ms). An
        undelivered message gets the present time: its topic should keep it as long as others, however old it is."""
        send = partial(
            self._producer.send_nowait,
            copy.topic,
            record.value,
            key=record.key,
            headers=copy.headers,
            partition=partition,
        )
        if not copy.again or record.timestamp < 0:
            await send()
            return
        try:
            await send(timestamp=record.timestamp / 1000)
        except ServerError as error:
            if error.code is not ErrorCode.INVALID_TIMESTAMP:
                raise
            await send()

    async def _ended(self, one: _Partition, message: int) -> None:
        """Write the end marker of a sent message; a retry writes the marker only, not the message."""
        failures = 0
        while True:
            try:
                await self._end(one, message)
            except (OSError, ClientError) as error:
                failures += 1
                logger.warning("queue=%s: an end marker could not be written: %s", self._rules.queue, error)
                if not self._consumer.member.sure:
                    raise
                await self._clock.sleep(USUAL.after(failures))
            else:
                one.tracker.ended(message)
                return

    async def _end(self, one: _Partition, message: int) -> None:
        number = one.tracker.partition
        await self._producer.send_nowait(self._rules.markers, END, key=encode_key(number, message), partition=number)
