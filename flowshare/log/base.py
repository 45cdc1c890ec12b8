"""What a place that keeps records and durable state offers.

`Log` and `StateStore` are what share groups need, on every backend; those of a fleet lie in a Kafka (`fleet.storage`).
What a server needs beside that is the broker itself is `BrokerStorage` (`storage.py`).

Records are Kafka record batches (v2) in bytes, as produced, base offset filled in. All methods are called on one
event loop; no method blocks it. Errors: see the classes below. A confirmed write is never lost (what "confirmed"
survives is the implementation's setting).
"""

from __future__ import annotations

import errno
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from flowshare.core_errors import CoreError
from flowshare.errors import FlowshareError
from flowshare.protocol.headers import BatchHeader
from flowshare.share.types import LogBatch


class LogError(FlowshareError):
    """Base of the log's errors."""


class TopicExists(LogError):
    """A topic of this name exists."""


class UnknownTopic(LogError):
    """There is no such topic or partition."""


class InvalidTopic(LogError):
    """A topic name, partition count or topic setting is refused."""


class InvalidTopicConfig(InvalidTopic):
    """A topic setting's name or value is not allowed."""


class OffsetOutOfRange(LogError):
    """The offset is below the log start or above the log end."""


class CorruptBatches(LogError):
    """The bytes are not whole record batches with right checksums."""


class InvalidRecord(LogError):
    """A record is not what the topic takes (a compacted one takes none without key), or not what its batch says."""


class InvalidTimestamp(LogError):
    """A record's timestamp is further from now than the topic allows."""


class RecordsTooLarge(LogError):
    """A batch is larger than the topic takes (max.message.bytes)."""


class NotAllowed(LogError):
    """The login under which it would be written may not write there."""


class ProducerRefused(LogError):
    """A batch's producer id, epoch or sequence is refused; `reason` says how."""

    def __init__(self, reason: CoreError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class StorageError(LogError):
    """The disk refused the write; nothing of it was confirmed."""


class StorageFull(StorageError):
    """There is no room on the disk. What is stored can be read; writing goes on when there is room again."""


class InDoubt(StorageError):
    """A write failed, and the storage ended before it was known whether it is stored all the same.

    Whether it was stored is known when the storage is opened again.
    """


class NotDecided(StorageError):
    """Whether settles are written is not known yet; it may take until coordinators of transactions answer again."""


class StorageDamaged(LogError):
    """What is stored contradicts itself; nothing was changed by opening it."""


class OutputRefused(LogError):
    """Outputs of a settle are refused, and nothing of it was written.

    places: which of the outputs, by their position, and why.
    """

    def __init__(self, places: Mapping[int, LogError]) -> None:
        super().__init__("; ".join(f"output {index}: {error}" for index, error in places.items()))
        self.places = places


class NotLed(LogError):
    """What is asked for is led elsewhere, or by nobody at the moment; nothing was written.

    leader: node and leader epoch of who leads it, if that is known.
    """

    def __init__(self, message: str, leader: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(message)
        self.leader = leader


class Undecided(NotLed):
    """Whether a settle is written is not known here, and will not be: who leads next finds it out."""


class StorageHeld(LogError):
    """Another process holds the path; the text names it."""


def no_room(error: BaseException) -> bool:
    """Whether a disk refused something because it, or a quota on it, is full; RocksDB says so in words only."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic. `configs` holds only what was set, under Kafka's names."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOffsets:
    """Bounds of a partition's log: first offset, next offset of what is confirmed, last stable offset.

    last_stable: first offset of the oldest open transaction, the high watermark without one.
    """

    log_start: int
    high_watermark: int
    last_stable: int


def check_offset(offset: int, offsets: LogOffsets) -> None:
    """Whether reading can start at `offset`: the end is allowed. Raises: OffsetOutOfRange."""
    if not offsets.log_start <= offset <= offsets.high_watermark:
        raise OffsetOutOfRange(f"offset {offset} is not in {offsets.log_start}-{offsets.high_watermark}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where a confirmed append went.

    append_time_ms: the time that all its records were stamped with (message.timestamp.type=LogAppendTime), else −1.
    """

    base_offset: int
    last_offset: int
    log_start: int
    append_time_ms: int = -1


@dataclass(slots=True, kw_only=True)
class ReadResult:
    """Whole record batches from the one that holds the asked offset on; empty at the log's end.

    pieces: their bytes, which who only asks where records are need not copy.
    aborted: batches among them that belong to aborted transactions; filled in for readers of committed records only.
    leader_epoch: of a log that may lose its end with a leader: under which leader the last of the batches was written,
        or one behind it; −1: not known, or there is none.
    """

    pieces: Sequence[bytes]
    batches: tuple[LogBatch, ...]
    offsets: LogOffsets
    aborted: tuple[LogBatch, ...] = ()
    leader_epoch: int = -1
    _joined: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def records(self) -> bytes:
        """The batches' bytes in one piece; made when it is first asked for."""
        if self._joined is None:
            self._joined = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        return self._joined

    @property
    def size(self) -> int:
        """How many bytes they are."""
        return sum(map(len, self.pieces))


class Output(NamedTuple):
    """Record batches for one partition, to be written in one step with what accepts their inputs.

    topic_id: of the topic that they were made for; one of its name that was made since is another one.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes


class CheckedOutput(NamedTuple):
    """An output whose record batches were looked into. headers: theirs, with what is true in them."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes
    headers: tuple[BatchHeader, ...]


AppendListener = Callable[[str, int], None]
Admission = Callable[[], None]
"""Says no by raising CoreError; asked at the moment in which a batch gets its offset."""


class Log(Protocol):
    """Topics and their records, wherever they lie: what share groups need of them."""

    def topics(self) -> Mapping[str, Topic]:
        """All topics by name: a view to read, not to keep."""
        ...

    async def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] = ..., internal: bool = False
    ) -> Topic:
        """Make a topic; names that start with `__` only when `internal`.

        Raises: TopicExists, InvalidTopic, StorageError.
        """
        ...

    async def append(self, topic: str, partition: int, records: bytes) -> Appended:
        """Check, place and confirm record batches.

        Raises: UnknownTopic, CorruptBatches, RecordsTooLarge, InvalidRecord, InvalidTimestamp, StorageError.
        """
        ...

    async def read(
        self, topic: str, partition: int, offset: int, *, max_bytes: int, committed: bool = False
    ) -> ReadResult:
        """Batches from `offset` on, at least one if there is one; `committed`: none past the last stable offset.

        Raises: UnknownTopic, OffsetOutOfRange, CorruptBatches.
        """
        ...

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Bounds of the partition as they are known here. Raises: UnknownTopic."""
        ...

    def dense(self, topic: str, partition: int, offset: int, end: int) -> bool:
        """Whether a reader gets all that is from `offset` to before `end`: compaction took nothing, and nothing is of
        an aborted transaction. False as well where that is not known here. Raises: UnknownTopic."""
        ...

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Bounds of the partition, asked of wherever it lies. Raises: UnknownTopic, StorageError."""
        ...

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """First (offset, timestamp) with timestamp ≥ `timestamp_ms`, or None. Raises: UnknownTopic."""
        ...

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` on the loop after each confirmed append and each log start move."""


class StateStore(Protocol):
    """Small durable values under byte keys."""

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put (None: delete) all or none, in order of calls; returns when durable. Raises: StorageError."""

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries under a prefix, in key order, confirmed writes included."""
        ...


class Storage(Log, StateStore, Protocol):
    """Log and state, as one server of share groups has them."""

    async def checked(
        self, outputs: Sequence[Output | CheckedOutput], *, source: Hashable | None = None
    ) -> list[CheckedOutput]:
        """Outputs as `settle` takes them at once, in their order: checked as appended batches are, by the settings that
        their topics have now. Nothing is written. Of those that were checked before, only the places are looked at.

        source: who sent them over a socket; None: they were made in this process.

        Raises: OutputRefused (all that are refused: UnknownTopic, also when the topic was made anew, CorruptBatches,
            also when they have a producer id or are transactional, RecordsTooLarge, InvalidRecord, InvalidTimestamp),
            StorageError (they could not be looked into now).
        """
        ...

    async def settle(
        self, outputs: Sequence[Output | CheckedOutput], writes: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        """Place outputs and put (None: delete) state, all or none, in order of calls; returns when durable.

        Outputs that are not checked yet are checked first, as made in this process; what came over a socket must come
        `checked`. Calls whose outputs are checked keep their order; one whose outputs must be looked into may be
        overtaken meanwhile. Several outputs for one partition get consecutive offsets, in their order.

        What it raises means that nothing of it is stored, now or later, InDoubt apart: where a failed write may be in
        the store all the same, it returns or raises only when that is known, which takes until the disk can be written
        again. It says so only to a caller that waits for it: who gives up (is cancelled) meanwhile does not hear
        whether it was stored.

        Raises: OutputRefused (these are refused, nothing was written: the rest may be settled without them),
            StorageError, InDoubt (the storage ended before it knew).
        """
        ...


class SettlesApart(ABC):
    """A storage whose outputs lie elsewhere than its state, so that no write has both: settles are decided first, and
    the state is written after that. In between a death loses nothing: `decided` makes up for it.

    share: start of the state keys of the share-partition.
    """

    @abstractmethod
    async def settle_apart(
        self,
        share: bytes,
        update: bytes,
        beside: Sequence[tuple[bytes, bytes | None]],
        outputs: Sequence[CheckedOutput],
    ) -> Sequence[tuple[bytes, bytes | None]]:
        """Returns when the outputs are committed; what is returned is to be written with what follows from it.

        update: what becomes of the records. beside: what is to be written with that.

        Raises: OutputRefused, StorageError, NotLed (in all cases nothing of it is stored, now or later), Undecided.
        """

    @abstractmethod
    async def decided(self, share: bytes) -> None:
        """Write what follows from settles that were decided, but not followed: before the state is read, while nobody
        else writes it. Raises: NotDecided, StorageError, NotLed."""
