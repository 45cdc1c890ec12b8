"""A chunk: the records of one fetch from one partition, shared between the feeder and the pool.

Records are read when a pool opens the chunk (`open`), on the handlers' loop if it has one, as records that one
processor makes and another one uses cost both processors. Large parts of a record are made when it is begun. Records
are popped off `records` one by one (a list's pop is atomic), by the next handler or by the feeder that releases unbegun
ones. Finished offsets gather in `accepted`, other outcomes in `others`; the pool hands both to the feeder once per loop
iteration. Everything below the line in `__init__` belongs to the feeder alone.

With an order, `records` has only records that may be begun; the rest of each key waits in `chains`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowshare.agents.handler.chains import Chains
from flowshare.agents.handler.codec import CodecDecoder
from flowshare.agents.handler.errors import UnreadableBytes
from flowshare.agents.handler.outcomes import Outcome
from flowshare.agents.handler.retry_headers import RetryOrigin
from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.handler.values import Decoder
from flowshare.protocol.decoding import DecodedRecord, RawRecord, whole
from flowshare.protocol.each_record import UnreadableRecord
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.key_hash import KeyOrder
from flowshare.protocol.lazy_records import LazyRecords
from flowshare.protocol.messages import TopicPartition

COUNT_MAX: Final = 0x7FFF
"""Highest delivery count in answers."""


class Postponed(NamedTuple):
    """Acquired records that would not fit in memory together with those before them."""

    first: int
    last: int
    delivery_count: int

    @property
    def waiting(self) -> int:
        """Number of these records."""
        return self.last - self.first + 1

    def read(self) -> list[RawRecord]:
        """Refuse to read. Raises: DecodeError."""
        raise DecodeError("these records are read when it is their turn")


class Unread(NamedTuple):
    """Records that nobody has read yet. failed: called with the chunk and the first unreadable offset, on any thread;
    no record from that offset on is handled."""

    lazy: LazyRecords | Postponed
    failed: Callable[[Chunk, int], None]


class Chunk:
    """Records of one partition that were acquired together."""

    __slots__ = (
        "_count",
        "_counts",
        "_origins",
        "_unread",
        "accepted",
        "agent",
        "arrived",
        "attempts",
        "chains",
        "deadline",
        "decode",
        "decode_key",
        "exactly_once",
        "fence",
        "generation",
        "group",
        "is_accepted",
        "lost",
        "order",
        "others",
        "partition",
        "plain_bytes",
        "records",
        "remaining",
        "repeated",
        "runs",
        "sends",
        "settled",
        "settling",
        "spans",
        "topic",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        agent: str,
        topic: str,
        tp: TopicPartition,
        records: Sequence[tuple[list[RawRecord], int]],
        *,
        decode: Decoder | None,
        deadline: float,
        generation: int,
        arrived: float,
        origins: Mapping[int, RetryOrigin] | None = None,
        unread: Unread | None = None,
        decode_key: Decoder | None = None,
        fence: tuple[int, int] | None = None,
        group: str = "",
        exactly_once: bool = False,
    ) -> None:
        """decode, decode_key: decoders of values and keys; None: they are bytes. fence: as `Fetched.fence`. group: that
        acquired the records; empty: named as the agent. exactly_once: outputs are settled with the records.

        origins: for records of a retry topic, by their offsets in it; all from one partition, `topic`'s. unread:
        instead of records.
        """
        first = next(iter(origins.values())) if origins else None
        self.agent = agent
        self.group = group or agent
        self.topic = topic
        self.tp = tp
        """Partition of the acquire; `topic`, `topic_id` and `partition` are the records' origin."""
        self.topic_id = tp.topic_id if first is None else first.topic_id
        self.partition = tp.partition if first is None else first.partition
        self._origins = origins
        self.decode = decode
        self.decode_key = decode_key
        self.fence = fence
        self.exactly_once = exactly_once
        self.is_accepted = False
        """True if the records were accepted before they run (`AgentOptions.at_most_once`)."""
        self.order: KeyOrder | None = None
        """The rule that orders the records; None: they have no order."""
        self.records = [record for raws, _ in records for record in raws]
        self.records.reverse()
        self.chains: Chains | None = None
        """Records that wait for another record before them; None: no record waits."""
        self.accepted: list[int] = []
        self.others: list[tuple[DecodedRecord | RawRecord, Outcome]] = []
        self.sends: dict[int, list[ProducerRecord]] = {}
        """Records sent by running handlers' deliveries, by offset; produced when the handler ends in an accept."""
        self.repeated: set[int] = set()
        """Offsets whose handlers were told by `fs.Once` that their effects are there already."""
        self.spans: dict[int, Any] = {}
        """Telemetry of handled records, by offset, where there is telemetry (`agents.telemetry`)."""
        self.plain_bytes = 0
        """Bytes of the batches that `records` were read from, without compression."""
        self.deadline = deadline
        """Time when the lock lapses, in the clock's monotonic seconds; renewals move it."""
        self.arrived = arrived
        # --- the feeder's
        self.generation = generation
        self.runs = [run for raws, _ in records for run in _offset_runs(raws)]
        self.remaining = len(self.records)
        self.settled: list[int] = []
        self.lost: set[int] = set()
        self.settling: set[int] = set()
        """Offsets being settled with their outputs: the leader keeps the records until that is decided."""
        self._count = records[0][1] if records else 0
        self._unread: list[Unread] = []
        if unread is not None:
            self._unread.append(unread)
            self._count = unread.lazy.delivery_count
            self.runs = [(unread.lazy.first, unread.lazy.last)]
            self.remaining = unread.lazy.waiting
        self._counts = _other_counts(records, self._count)
        self.attempts: dict[int, int] = {}
        """Attempt by offset, kept for an observer only."""

    def keep_order(self, order: KeyOrder) -> None:
        """Let all records but the first of each key wait from now on. For a chunk that nobody else has yet."""
        self.order = order
        chains = Chains(self.records[::-1], order.hashes_of)
        if chains.waiting:
            self.chains = chains
            self.records = chains.first(self.records)

    def accepted_first(self, records: Sequence[RawRecord]) -> Chunk:
        """Make a chunk of some records that were accepted: nobody holds them any more, and they have no lock that can
        lapse."""
        by_attempt: dict[int, list[RawRecord]] = {}
        for record in sorted(records, key=lambda record: record.offset):
            by_attempt.setdefault(self.attempt(record.offset), []).append(record)
        accepted = Chunk(
            self.agent,
            self.topic,
            self.tp,
            [(some, attempt) for attempt, some in by_attempt.items()],
            decode=self.decode,
            decode_key=self.decode_key,
            deadline=math.inf,
            generation=self.generation,
            arrived=self.arrived,
            group=self.group,
        )
        accepted.is_accepted = True
        return accepted

    def open(self) -> bool:
        """Read the next records if none are left to begin; return True if the chunk has any. Any thread, but one at a
        time."""
        if self.records:
            return True
        unread = self.take_unread()
        if unread is None:
            return False
        try:
            records = unread.lazy.read()
        except (DecodeError, MemoryError):
            unread.failed(self, unread.lazy.first)
            return False
        records.reverse()
        self.records[:0] = records  # in one step: records that the feeder put back meanwhile come first
        if unread.lazy.waiting:
            self._unread.append(unread)
        return True

    def take_unread(self) -> Unread | None:
        """Take the records that nobody has read; None: there are none, or another caller reads them. Any thread."""
        try:
            return self._unread.pop()
        except IndexError:
            return None

    def put_unread(self, unread: Unread) -> None:
        """Put unread records back."""
        self._unread.append(unread)

    @property
    def waiting(self) -> int:
        """Number of records that no handler has begun. Any thread."""
        chained = 0 if self.chains is None else self.chains.waiting
        return len(self.records) + chained + sum(unread.lazy.waiting for unread in tuple(self._unread))

    def attempt(self, offset: int) -> int:
        """Return the number of deliveries of this record, this one included."""
        count = self._count if self._counts is None else self._counts.get(offset, self._count)
        return count if self._origins is None else count + self._origins[offset].attempts

    def counted(self, offsets: list[int]) -> Iterable[tuple[int, list[int]]]:
        """Group offsets by the attempt in their acknowledgement: the delivery count at their acquire, with an order; 0
        without an order, where the count does not matter."""
        if self.fence is None:
            return ((0, offsets),)
        if self._counts is None:
            return ((_said(self._count), offsets),)
        found: dict[int, list[int]] = {}
        for offset in offsets:
            found.setdefault(_said(self._counts.get(offset, self._count)), []).append(offset)
        return found.items()

    def redelivered(self) -> set[int]:
        """Return offsets that were delivered before."""
        if self._counts is None and self._count == 1:
            return set()
        offsets = (offset for first, last in self.runs for offset in range(first, last + 1))
        return {offset for offset in offsets if self.attempt(offset) > 1}

    def counted_runs(self, offsets: list[int]) -> list[tuple[int, int, int]]:
        """Return sorted offsets as ascending (first, last, attempt); see `counted`."""
        return sorted((first, last, attempt) for attempt, some in self.counted(offsets) for first, last in runs(some))

    def origin(self, offset: int) -> RetryOrigin | None:
        """Return the origin of a record of a retry topic."""
        return None if self._origins is None else self._origins[offset]

    def place(self, offset: int) -> int:
        """Return the record's offset in its original partition."""
        return offset if self._origins is None else self._origins[offset].offset

    def timestamp_ms(self, record: RawRecord) -> int:
        """Return the time when the record was made, in milliseconds since 1970."""
        origin = self.origin(record.offset)
        return record.timestamp if origin is None or origin.timestamp_ms is None else origin.timestamp_ms

    def at(self, offset: int) -> str:
        """Return `topic-partition@offset` of the record's origin."""
        return f"{self.topic}-{self.partition}@{self.place(offset)}"

    def where(self, offset: int) -> str:
        """Name a delivery as flowshare's own log lines do."""
        return f"agent={self.agent} record={self.at(offset)} attempt={self.attempt(offset)}"

    def value(self, record: RawRecord) -> Any:
        """Return the record's value as handlers get it. Raises: UnreadableBytes, and the decoder's errors."""
        raw = record.value
        if raw is None and isinstance(record, UnreadableRecord):
            raise UnreadableBytes(f"the stored bytes cannot be read: {record.reason}")
        if type(self.decode) is CodecDecoder:
            return self.decode.of(raw, record.headers)
        if self.decode is not None:
            return self.decode(raw)
        if raw is None:
            raise ValueError("null")
        return raw

    def whole(self, record: RawRecord | DecodedRecord) -> DecodedRecord:
        """Return one of the chunk's records with all its fields."""
        if isinstance(record, DecodedRecord):
            return record
        (read,) = whole((record,), self.attempt(record.offset))
        return read if self._origins is None else read._replace(timestamp_ms=self.timestamp_ms(record))

    @property
    def settles_with(self) -> tuple[TopicPartition, int]:
        """Key that is equal for records that can be settled in one step."""
        return self.tp, self.generation

    def renewable(self) -> list[int]:
        """Return offsets whose locks are to be renewed, in order: not those being settled, which cannot lapse."""
        if not self.settling:
            return self.unfinished()
        return [offset for offset in self.unfinished() if offset not in self.settling]

    def unfinished(self) -> list[int]:
        """Return offsets that are held and not settled, in order."""
        finished = set(self.settled)
        finished |= self.lost
        return [offset for first, last in self.runs for offset in range(first, last + 1) if offset not in finished]


def _said(count: int) -> int:
    return count if count < COUNT_MAX else 0


def _offset_runs(raws: list[RawRecord]) -> list[tuple[int, int]]:
    if not raws:
        return []
    first, last = raws[0].offset, raws[-1].offset
    return [(first, last)] if last - first == len(raws) - 1 else runs([raw.offset for raw in raws])


def _other_counts(records: Sequence[tuple[list[RawRecord], int]], usual: int) -> dict[int, int] | None:
    """Return the attempt by offset where it is not the usual one; None: nowhere."""
    found = {raw.offset: count for raws, count in records if count != usual for raw in raws}
    return found or None


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Turn sorted distinct offsets into (first, last) runs without gaps; cheap when runs are few, as it halves the
    list.

    >>> runs([1, 2, 3, 7, 9, 10])
    [(1, 3), (7, 7), (9, 10)]
    """
    if not offsets:
        return []
    found: list[tuple[int, int]] = []
    todo = [(0, len(offsets) - 1)]
    while todo:
        low, high = todo.pop()
        first, last = offsets[low], offsets[high]
        if last - first == high - low:
            if found and found[-1][1] + 1 == first:
                found[-1] = (found[-1][0], last)
            else:
                found.append((first, last))
        else:
            middle = (low + high) // 2
            todo.append((middle + 1, high))
            todo.append((low, middle))
    return found
