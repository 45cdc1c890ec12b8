"""What every storage checks in the same way: produced batches, offsets asked for, where a log may be cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from flowshare.log.base import (
    CorruptRecords,
    LogOffsets,
    OffsetOutOfRange,
    RecordsTooLarge,
    StorageError,
    UnknownTopic,
)
from flowshare.log.topics import TopicSettings
from flowshare.protocol.batches import BatchHeader, DecodeError, check
from flowshare.protocol.decoding import PADDING, RawReader, plain
from flowshare.protocol.headers import frames

P = TypeVar("P")
STEP_RECORDS: Final = 4_096
"""Records of a large batch that are in memory at a time."""


def check_produced(records: bytes, settings: TopicSettings, *, checksums: bool) -> tuple[BatchHeader, ...]:
    """Headers of the batches that a producer sent; `checksums`: look at those, too.

    Raises: CorruptRecords, RecordsTooLarge.
    """
    try:
        headers = check(records, checksums=checksums)
    except DecodeError as error:
        raise CorruptRecords(str(error)) from error
    size = max(header.size for header in headers)
    if size > settings.max_message_bytes:
        raise RecordsTooLarge(f"a batch of {size} bytes; the topic takes {settings.max_message_bytes}")
    return headers


def check_offset(offset: int, offsets: LogOffsets) -> None:
    """Whether reading can start at `offset`: the end is allowed. Raises: OffsetOutOfRange."""
    if not offsets.log_start <= offset <= offsets.high_watermark:
        raise OffsetOutOfRange(f"offset {offset} is not in {offsets.log_start}-{offsets.high_watermark}")


def check_cut(before: int, offsets: LogOffsets) -> int:
    """The new log start when records before `before` (−1: all) are deleted. Raises: OffsetOutOfRange."""
    if before == -1:
        return offsets.high_watermark
    if not 0 <= before <= offsets.high_watermark:
        raise OffsetOutOfRange(f"records before {before} cannot be deleted: the log ends at {offsets.high_watermark}")
    return max(before, offsets.log_start)


class TopicPartitions(Generic[P]):
    """The partitions of one topic. An empty one is made when it is first asked for: a request may want thousands."""

    def __init__(self, count: int, make: Callable[[int], P], made: Iterable[tuple[int, P]] = ()) -> None:
        """make: an empty partition of a number; made: those that are not empty."""
        self.count = count
        """How many there are, made or not."""
        self._make = make
        self._made = dict(made)

    def at(self, number: int) -> P:
        """The partition of a number; whoever asks has seen that there is one."""
        found = self._made.get(number)
        if found is None:
            found = self._made[number] = self._make(number)
        return found

    def made(self) -> tuple[tuple[int, P], ...]:
        """Those that were asked for, by number; all others are empty."""
        return tuple(self._made.items())


def nth_partition(partitions: TopicPartitions[P] | None, topic: str, partition: int) -> P:
    """The entry of a partition. Raises: UnknownTopic."""
    if partitions is None:
        raise UnknownTopic(f"there is no topic {topic!r}")
    if not 0 <= partition < partitions.count:
        raise UnknownTopic(f"topic {topic!r} has {partitions.count} partitions, none is {partition}")
    return partitions.at(partition)


def first_at(records: bytes, timestamp_ms: int, log_start: int) -> tuple[int, int] | None:
    """First (offset, timestamp) of a batch from the log start on with timestamp ≥ `timestamp_ms`. A batch may be large:
    few of its records are in memory at a time.

    Raises: CorruptRecords, StorageError (no memory).
    """
    try:
        header = next(frames(records))
        if header.is_control:
            return None
        reader = RawReader(plain(records + PADDING, header))
        full = True
        while full:
            step = reader.take(STEP_RECORDS)
            full = len(step) == STEP_RECORDS
            for record in step:
                if record.offset >= log_start and record.timestamp >= timestamp_ms:
                    return record.offset, record.timestamp
    except DecodeError as error:
        raise CorruptRecords(str(error)) from error
    except MemoryError as error:
        raise StorageError("there is no memory to look for a time in a record batch: ask again") from error
    return None
