"""Dead letters that the server writes (SG-15.3): records that a group rejects, or that used up their deliveries.

A record's state is ARCHIVING, durably, until its dead letter is confirmed; so a crash in between writes it again, not
never. When the topic refuses after all tries the record is given up, as brokers do, with an error that names it; a disk
that refuses is waited for, and for a time brokers that are too few for a new topic (SG-15.4).

The right to have the server copy: the principal that last changed one of a group's dead-letter settings at a socket is
kept with them, and at each writing has to be allowed to READ the source. While it is not, the dead letter has its
headers only, no key, no value, none of the record's own headers: a subscription that grows, or a right that was taken
away, gives nothing away. Settings that the server's own process made need no right. The dead-letter topic cannot
consent in the source's place (KIP-1191's `errors.deadletterqueue.group.enable`): it belongs to its readers.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from flowshare.backoff import SLOW
from flowshare.core_errors import CoreError
from flowshare.log.base import (
    CorruptBatches,
    InvalidTopic,
    LogError,
    RecordsTooLarge,
    StorageDamaged,
    StorageError,
    TooFewBrokers,
    TopicExists,
    UnknownTopic,
)
from flowshare.log.topics import TopicSettings
from flowshare.protocol.batches import BatchBuilder, DecodeError, decode
from flowshare.protocol.decoding import AT_ONCE_RECORDS
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.security.acls import Authorizer
from flowshare.share.types import AcquiredRange
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from collections.abc import Set as AbstractSet

    from flowshare.clock import Clock
    from flowshare.log.base import Storage, Topic
    from flowshare.protocol.batches import DecodedRecord
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.stats import Stats
    from flowshare.share.partition import Archiving

logger = logging.getLogger(__name__)

TRIES: Final = 5
TOO_FEW_S: Final = 600.0
"""Seconds from the first refusal on for which brokers that are too few for a new topic cost no try: restarts of brokers
take less."""
PARK_AGAIN_S: Final = 5.0
"""Seconds before another try for records whose keys could not be parked, as too many are."""
CHUNK_RECORDS: Final = 500
"""Dead letters written at once."""
BATCH_BYTES: Final = 512 << 10
"""Largest batch of dead letters in bytes, unless the topic takes less (max.message.bytes)."""
BATCH_BYTES_LEAST: Final = 1 << 10
"""Bytes; a topic that takes less takes no dead letters."""
READ_BYTES: Final = 1 << 20
HEADER_PREFIX: Final = "__dlq.errors."

Letter = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]
"""Key, value, headers, timestamp in ms."""


class DeadLetters:
    """Writes dead letters, one task per share-partition with dead letters."""

    def __init__(self, *, storage: Storage, clock: Clock, stats: Stats, auto_create: bool) -> None:
        self._storage = storage
        self._clock = clock
        self._stats = stats
        self.auto_create = auto_create
        """True if a missing dead-letter topic is created."""
        self.authorizer: Authorizer = Authorizer()
        """The authorizer of the server's sockets."""
        self._tasks: dict[PartitionOwner, asyncio.Task[None]] = {}
        self._too_few_since: dict[str, float] = {}
        """Missing topics for which brokers are too few, with the time of the first refusal."""

    def start(self, owner: PartitionOwner) -> None:
        """Write the dead letters of a share-partition, unless that is under way."""
        if owner not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._work(owner), name=f"dead letters {owner.key}")
            self._tasks[owner] = task
            task.add_done_callback(lambda _: self._tasks.pop(owner, None))

    async def close(self) -> None:
        """Stop; unwritten dead letters are written after the next start."""
        await cancelled(*self._tasks.values())

    async def _work(self, owner: PartitionOwner) -> None:
        waiting: set[int] = set()
        try:
            while not owner.closed and (archiving := owner.partition.archiving()):
                chunk = next((one for run in archiving for one in _chunks(run, waiting)), None)
                if chunk is not None:
                    waiting.update(await self._settle(owner, chunk))
                    continue
                await self._clock.sleep(PARK_AGAIN_S)
                waiting = await self._park_again(owner, waiting)
        except Exception:
            logger.exception("dead letters stopped, they go on when the share-partition is loaded again %s", owner.key)

    async def _settle(self, owner: PartitionOwner, chunk: Archiving) -> list[int]:
        """Write a chunk's dead letters, or give it up after all tries; tries that the disk refused do not count.

        Returns offsets whose keys cannot be parked now.
        """
        if self._has_letter(owner, chunk):
            await self._write_or_give_up(owner, chunk)
        if owner.closed:
            return []
        if owner.parks:
            return await self._park(owner, chunk.first, chunk.last)
        owner.finish_archiving(chunk.first, chunk.last)
        return []

    @staticmethod
    async def _park(owner: PartitionOwner, first: int, last: int) -> list[int]:
        """Park the keys of records with written letters; return offsets that have to wait, for room or because they
        cannot be read."""
        try:
            return await owner.park_keys(first, last)
        except LogError as error:
            logger.warning("keys could not be parked, tried again: %s %s %d-%d", error, owner.key, first, last)
            return list(range(first, last + 1))

    @staticmethod
    async def _park_again(owner: PartitionOwner, waiting: AbstractSet[int]) -> set[int]:
        """Park keys that had to wait, each by itself; a log that cannot be read is logged once."""
        left = set(waiting)
        try:
            for offset in sorted(waiting):
                if not await owner.park_keys(offset, offset):
                    left.discard(offset)
        except LogError as error:
            logger.warning("keys of %d records could not be parked, tried again: %s %s", len(left), error, owner.key)
        return left

    @staticmethod
    def _has_letter(owner: PartitionOwner, chunk: Archiving) -> bool:
        """Return True if the server has a dead letter to write; in a group that parks keys, all rejected records come
        here."""
        config = owner.config
        named = chunk.by_limit or chunk.by_operator or config.dead_letter_on == "all"
        topic = bool(config.dead_letter_topic)
        return named and topic if owner.parks else named or topic  # a missing topic is logged and counted

    async def _write_or_give_up(self, owner: PartitionOwner, chunk: Archiving) -> None:
        count = chunk.last - chunk.first + 1
        failures, left = 0, TRIES
        while not owner.closed:  # else who serves the share-partition then writes them
            try:
                await self._write(owner, chunk)
            except (LogError, DecodeError, CoreError) as error:
                failures += 1
                left -= not self._may_pass(owner.config.dead_letter_topic or "", error)
                if left and not isinstance(error, InvalidTopic | RecordsTooLarge):
                    logger.warning("dead letters could not be written, tried again: %s %s", error, _where(owner, chunk))
                    await self._clock.sleep(SLOW.after(failures))
                    continue
                logger.error("dead letters are given up: %s %s", error, _where(owner, chunk))  # noqa: TRY400
                self._stats.failed_dead_letters += count
            else:
                self._stats.dead_letters += count
            break

    def _may_pass(self, topic: str, error: Exception) -> bool:
        """Tell if an error costs no try."""
        if not isinstance(error, TooFewBrokers):
            return isinstance(error, StorageError)
        now_s = self._clock.monotonic()
        return now_s - self._too_few_since.setdefault(topic, now_s) < TOO_FEW_S

    async def _write(self, owner: PartitionOwner, chunk: Archiving) -> None:
        name = owner.config.dead_letter_topic
        if not name:
            raise InvalidTopic(f"group {owner.key.group_id} names no dead-letter topic any more")
        topic = await self._ensure(name)
        originals = await self._originals(owner, chunk) if self._may_copy(owner, chunk) else {}
        taken = min(BATCH_BYTES, TopicSettings.of(topic.configs).max_message_bytes)
        left = range(chunk.first, chunk.last + 1)
        while left:
            letters = [self._fitting(owner, chunk, offset, originals.get(offset), taken) for offset in left]
            try:
                for count, batch in _batches(letters, taken):
                    await self._storage.append(name, owner.key.partition % topic.partitions, batch)
                    left = left[count:]
            except RecordsTooLarge:
                # Kafka does not tell a topic's limit: half of the size is tried, then half of the half.
                if taken < BATCH_BYTES_LEAST:
                    raise
                taken //= 2

    def _may_copy(self, owner: PartitionOwner, chunk: Archiving) -> bool:
        config, topic = owner.config, owner.log.topic
        if not config.dead_letter_copy_record or config.dead_letter_by is None:
            return config.dead_letter_copy_record
        principal, host = config.dead_letter_by
        if self.authorizer.allowed(principal, host, Operation.READ, ResourceType.TOPIC, topic):
            return True
        logger.warning(
            "dead letters carry no records: %s named their topic and may not read the source; let who may set "
            "errors.deadletterqueue.topic.name again %s",
            principal,
            _where(owner, chunk),
        )
        return False

    async def _ensure(self, name: str) -> Topic:
        topic = self._storage.topics().get(name)
        if topic is None:
            if not self.auto_create:
                raise UnknownTopic(
                    f"there is no topic {name!r}; create it or set errors.deadletterqueue.auto.create.topics.enable"
                )
            try:
                topic = await self._storage.create_topic(name, partitions=1)
            except TopicExists:
                topic = self._storage.topics()[name]
        self._too_few_since.pop(name, None)
        return topic

    async def _originals(self, owner: PartitionOwner, chunk: Archiving) -> dict[int, DecodedRecord]:
        """Read the records; one that is gone or cannot be read is left out, its dead letter has headers only.

        Raises: StorageError (the log gives less than it has), LogError, DecodeError.
        """
        found: dict[int, DecodedRecord] = {}
        told = False
        offset = max(chunk.first, owner.log.bounds().log_start)
        while offset <= chunk.last:
            try:
                read = await self._storage.read(owner.log.topic, owner.log.partition, offset, max_bytes=READ_BYTES)
            except (CorruptBatches, StorageDamaged) as error:
                if not told:
                    logger.warning("a dead letter's record cannot be read: %s %s", error, _where(owner, chunk))
                told = True
                offset += 1  # nobody knows how far the damage goes
                continue
            if not read.batches:
                if offset < read.offsets.high_watermark:
                    # A new Kafka leader knows less for a while; the records are there, and must not be left out.
                    raise StorageError(f"the log gives nothing from offset {offset} on now")
                break
            wanted = [AcquiredRange(offset, chunk.last, chunk.delivery_count)]
            if any(batch.last - batch.first >= AT_ONCE_RECORDS for batch in read.batches):
                decoded = await asyncio.to_thread(decode, read.records, wanted)  # others are to have their turns
            else:
                decoded = decode(read.records, wanted)
            found.update((record.offset, record) for record in decoded.records)
            # Large batches are read one by one: those that were too much at once are missing.
            behind = (first for first, _ in decoded.missing if first > offset)
            offset = min(next(behind, read.batches[-1].last + 1), read.batches[-1].last + 1)
        return found

    def _fitting(
        self, owner: PartitionOwner, chunk: Archiving, offset: int, original: DecodedRecord | None, size_max: int
    ) -> Letter:
        """Return a record's dead letter, with headers only if the topic does not take it whole."""
        letter = self._letter(owner, chunk, offset, original)
        if original is None or _size(letter) <= size_max:
            return letter
        logger.warning("a dead letter carries no record, the topic takes %d bytes offset=%d", size_max, offset)
        return self._letter(owner, chunk, offset, None)

    def _letter(self, owner: PartitionOwner, chunk: Archiving, offset: int, original: DecodedRecord | None) -> Letter:
        message = "Delivery count limit exceeded" if chunk.by_limit else "Rejected by the consumer"
        message = "Given up by an operator" if chunk.by_operator else message
        mark = None if original is None or owner.parked is None else owner.parked.mark_of(original)
        facts = {
            "topic": owner.log.topic,
            "topic.id": str(owner.key.topic_id),  # not in KIP-1191: a topic may be made anew under its name
            "partition": str(owner.key.partition),
            "offset": str(offset if mark is None else mark.original),
            "group": owner.key.group_id,
            "delivery.count": str(chunk.delivery_count),
            "message": message,
        }
        headers: list[tuple[str, bytes | None]] = [
            (HEADER_PREFIX + name, text.encode()) for name, text in facts.items()
        ]
        if original is None:
            return None, None, headers, self._clock.now_ms()
        own = [pair for pair in original.headers if pair[0] != REPLAY_HEADER]
        return original.key, original.value, [*own, *headers], self._clock.now_ms()


def _chunks(archiving: Archiving, without: Collection[int]) -> Iterator[Archiving]:
    """Yield pieces of at most CHUNK_RECORDS, around offsets that are left out."""
    edges = [archiving.first - 1, *sorted(one for one in without if archiving.first <= one <= archiving.last)]
    for before, after in pairwise((*edges, archiving.last + 1)):
        for first in range(before + 1, after, CHUNK_RECORDS):
            yield archiving._replace(first=first, last=min(first + CHUNK_RECORDS, after) - 1)


def _size(letter: Letter) -> int:
    """Return the bytes of a batch with this letter alone."""
    key, value, headers, timestamp_ms = letter
    builder = BatchBuilder(size_max=BATCH_BYTES)
    builder.add(key, value, headers, timestamp_ms=timestamp_ms)
    return builder.size


def _batches(letters: list[Letter], size_max: int) -> Iterator[tuple[int, bytes]]:
    """Yield batches with the number of letters in each."""
    builder = BatchBuilder(size_max=size_max)
    for key, value, headers, timestamp_ms in letters:
        if not builder.add(key, value, headers, timestamp_ms=timestamp_ms):
            yield builder.count, builder.build()
            builder = BatchBuilder(size_max=size_max)
            builder.add(key, value, headers, timestamp_ms=timestamp_ms)
    if builder.count:
        yield builder.count, builder.build()


def _where(owner: PartitionOwner, chunk: Archiving) -> str:
    key = owner.key
    return f"group={key.group_id} topic={owner.log.topic} partition={key.partition} offset={chunk.first}-{chunk.last}"
