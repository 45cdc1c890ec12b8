"""Interfaces of a place that keeps records and durable state.

`Log` and `StateStore` are the interfaces that share groups need, on every backend; those of a fleet lie in a Kafka
(`fleet.storage`). `BrokerStorage` (`storage.py`) adds all that a server needs when the server is the broker itself.

Records are Kafka record batches (v2) in bytes, as produced, with the base offset filled in. All methods are called on
one event loop; no method blocks it. Errors: see the classes below. A confirmed write is never lost. The
implementation's setting says which failures "confirmed" survives.
"""

from __future__ import annotations

import errno
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from flowshare.core_errors import CoreError, FlowshareError
from flowshare.protocol.headers import BatchHeader
from flowshare.share.types import LogBatch


class LogError(FlowshareError):
    """Base of the log's errors."""


class TopicExists(LogError):
    """A topic of this name exists."""


class UnknownTopic(LogError):
    """The topic or partition does not exist."""


class InvalidTopic(LogError):
    """A topic name, partition count or topic setting is refused."""


class InvalidTopicConfig(InvalidTopic):
    """A topic setting's name or value is not allowed."""


class OffsetOutOfRange(LogError):
    """The offset is below the log start or above the log end."""


class CorruptBatches(LogError):
    """The bytes are not whole record batches with right checksums."""


class InvalidRecord(LogError):
    """A record does not fit its topic (a compacted topic takes none without key), or contradicts its batch's header."""


class InvalidTimestamp(LogError):
    """A record's timestamp is further from now than the topic allows."""


class RecordsTooLarge(LogError):
    """A batch is larger than the topic takes (max.message.bytes)."""


class NotAllowed(LogError):
    """The login that writes may not write to the topic."""


class ProducerRefused(LogError):
    """A batch's producer id, epoch or sequence is refused; `reason` says how."""

    def __init__(self, reason: CoreError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class StorageError(LogError):
    """The disk refused the write; no part of the write was confirmed."""


class StorageFull(StorageError):
    """The disk has no room. Stored data can be read; writing goes on when the disk has room again."""


class TooFewBrokers(StorageError):
    """A topic cannot be made: it needs more brokers than run now. A restart of a broker passes, a setting does not."""


class InDoubt(StorageError):
    """A write failed, and the storage ended before the write's outcome was known: stored or not.

    The outcome is known when the storage is opened again.
    """


class NotDecided(StorageError):
    """The outcome of settles is not known yet. The outcome may stay unknown until the coordinators of the settles'
    transactions answer again."""


class StorageDamaged(LogError):
    """The stored data contradicts itself. Opening the data changed nothing."""


class OutputRefused(LogError):
    """Outputs of a settle are refused, and no part of the settle was written.

    places: position of each refused output -> its error.
    """

    def __init__(self, places: Mapping[int, LogError]) -> None:
        super().__init__("; ".join(f"output {index}: {error}" for index, error in places.items()))
        self.places = places


class NotLed(LogError):
    """Another node leads the target of the request, or no node does at the moment; nothing was written.

    leader: node id and leader epoch of the present leader; (−1, −1): not known.
    """

    def __init__(self, message: str, leader: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(message)
        self.leader = leader


class Undecided(NotLed):
    """The outcome of a settle is not known at this node, and never will be. The next leader finds the outcome out."""


class StorageHeld(LogError):
    """Another process holds the path; the error's text names the process."""


def no_room(error: BaseException) -> bool:
    """Return True if an operation failed because the disk, or a quota on it, is full: RocksDB says so only in its
    text."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic. `configs` holds only settings that were set, under Kafka's names."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOffsets:
    """Bounds of a partition's log: first offset, next offset of the confirmed records, last stable offset.

    last_stable: first offset of the oldest open transaction, the high watermark without one. size: bytes between the
    first two bounds, about; 0 where not known.
    """

    log_start: int
    high_watermark: int
    last_stable: int
    size: int = 0


def check_offset(offset: int, offsets: LogOffsets) -> None:
    """Check that reading can start at `offset`; the log's end is allowed. Raises: OffsetOutOfRange."""
    if not offsets.log_start <= offset <= offsets.high_watermark:
        raise OffsetOutOfRange(f"offset {offset} is not in {offsets.log_start}-{offsets.high_watermark}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Offsets of a confirmed append.

    append_time_ms: the timestamp of all its records (message.timestamp.type=LogAppendTime), else −1.
    """

    base_offset: int
    last_offset: int
    log_start: int
    append_time_ms: int = -1


@dataclass(slots=True, kw_only=True)
class ReadResult:
    """Whole record batches, from the one that holds the asked offset on; empty at the log's end.

    pieces: the batches' bytes, not copied for a caller that needs only the batches' places.
    aborted: those of the batches that belong to aborted transactions; filled in for readers of committed records only.
    leader_epoch: for a log that may lose its end with a leader: the leader epoch in which the last of the batches was
        written, or a later one; −1: not known, or the log has none.
    """

    pieces: Sequence[bytes]
    batches: tuple[LogBatch, ...]
    offsets: LogOffsets
    aborted: tuple[LogBatch, ...] = ()
    leader_epoch: int = -1
    _joined: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def records(self) -> bytes:
        """The batches' bytes in one piece, joined at the first use."""
        if self._joined is None:
            self._joined = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        return self._joined

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return sum(map(len, self.pieces))


class Output(NamedTuple):
    """Record batches for one partition, to be written in one step with the accepts of their inputs.

    topic_id: id of the topic that the batches were made for; a topic made later under the same name is another topic.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes


class CheckedOutput(NamedTuple):
    """An output whose record batches were checked. headers: the batches' headers, with values that the check found
    true."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    records: bytes
    headers: tuple[BatchHeader, ...]


AppendListener = Callable[[str, int], None]
Admission = Callable[[], None]
"""Refuses a batch by raising CoreError; called at the moment in which the batch gets its offset."""


class Log(Protocol):
    """Topics and their records, on any backend: the part that share groups need."""

    def topics(self) -> Mapping[str, Topic]:
        """Return all topics by name: a view to read, not to keep."""
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
        """Read batches from `offset` on, at least one if the log has one; `committed`: none past the last stable
        offset.

        Raises: UnknownTopic, OffsetOutOfRange, CorruptBatches.
        """
        ...

    def offsets(self, topic: str, partition: int) -> LogOffsets:
        """Return the partition's bounds as this process knows them. Raises: UnknownTopic."""
        ...

    def dense(self, topic: str, partition: int, offset: int, end: int) -> bool:
        """Return True if a reader gets every record from `offset` to before `end`: compaction removed none, and none
        was aborted. Return False also if that is not known here. Raises: UnknownTopic."""
        ...

    async def bounds(self, topic: str, partition: int) -> LogOffsets:
        """Return the partition's bounds, asked of the node that has the partition. Raises: UnknownTopic,
        StorageError."""
        ...

    async def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """Return the first (offset, timestamp in ms) with timestamp ≥ `timestamp_ms`, or None. Raises: UnknownTopic."""
        ...

    def on_append(self, listener: AppendListener) -> None:
        """Call `listener(topic, partition)` on the loop after each confirmed append and each log start move."""


class StateStore(Protocol):
    """Small durable values under byte keys."""

    async def write(self, writes: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Put entries (None: delete), all or none, in order of calls; return when durable. Raises: StorageError."""

    async def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries under a prefix, in key order, confirmed writes included."""
        ...


class Storage(Log, StateStore, Protocol):
    """Log and state, as one server of share groups has them."""

    async def checked(
        self, outputs: Sequence[Output | CheckedOutput], *, source: Hashable | None = None
    ) -> list[CheckedOutput]:
        """Return outputs in their order, checked as appended batches are, by the present settings of their topics, so
        that `settle` takes them at once. Writes nothing. Of outputs that are already checked, only topic and partition
        are checked.

        source: the sender of the outputs over a socket; None: the outputs were made in this process.

        Raises: OutputRefused (names all that are refused: InvalidTopic for an internal one, UnknownTopic, also when
            the topic was made anew, CorruptBatches, also when they have a producer id or are transactional,
            RecordsTooLarge, InvalidRecord, InvalidTimestamp), StorageError (the outputs could not be checked now).
        """
        ...

    async def settle(
        self, outputs: Sequence[Output | CheckedOutput], writes: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        """Place outputs and put (None: delete) state, all or none, in order of calls; return when durable.

        Outputs that are not checked yet are checked first, as made in this process; outputs from a socket must come
        `checked`. Calls whose outputs are checked keep their order; a call whose outputs must be checked first may be
        overtaken. Several outputs for one partition get consecutive offsets, in their order.

        After an error no part of the call is stored, now or later, InDoubt excepted. Where a failed write may be in the
        store all the same, the call returns or raises only when the outcome is known: when the disk can be written
        again. A caller that is cancelled meanwhile does not hear the outcome.

        Raises: OutputRefused (these are refused, nothing was written: the rest may be settled without them),
            StorageError, InDoubt (the storage ended before the outcome was known).
        """
        ...


class SettlesApart(ABC):
    """A storage whose outputs lie elsewhere than its state, so that no write has both: settles are decided first, and
    the state is written after that. A death between the two loses nothing: `decided` writes the missing state.

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
        """Decide a settle: return when its outputs are committed, with the state to write next.

        update: the new state of the records. beside: entries to write with the update.

        Raises: OutputRefused, StorageError, NotLed (in all cases nothing of it is stored, now or later), Undecided.
        """

    @abstractmethod
    async def decided(self, share: bytes) -> None:
        """Write the state of settles that were decided but whose state is missing. Called before the state is read,
        while nobody else writes the state. Raises: NotDecided, StorageError, NotLed."""
