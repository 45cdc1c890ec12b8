"""A chunk: what one fetch brought from one partition, shared between the feeder and the pool.

Its records are read when a pool takes it in (`open`), on the handlers' loop if it has one: records that one processor
makes and another one uses cost both of them; the rest of what becomes large when those are begun. They are popped off
`records` one by one (a list's pop is atomic), by whoever handles them next or by the feeder that gives unbegun ones
back. Finished offsets gather in `accepted`, other outcomes in `others`; the pool hands both to the feeder once per loop
iteration. Everything below the line in `__init__` belongs to the feeder alone.

Of an agent with an order `records` has only what may be begun; the rest of each key waits in `chains`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from flowshare.agents.handler.chains import Chains
from flowshare.agents.handler.codec import CodecDecoder
from flowshare.agents.handler.outcomes import Outcome
from flowshare.agents.handler.retry_headers import RetryOrigin
from flowshare.agents.handler.send import ProducerRecord
from flowshare.agents.handler.values import Decoder
from flowshare.protocol.decoding import DecodedRecord, RawRecord, whole
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.key_hash import KeyOrder
from flowshare.protocol.lazy_records import LazyRecords
from flowshare.protocol.messages import TopicPartition

COUNT_MAX: Final = 0x7FFF
"""Answers say no delivery count higher than that."""


class Postponed(NamedTuple):
    """Acquired records that would have been too much in memory with those before them."""

    first: int
    last: int
    delivery_count: int

    @property
    def waiting(self) -> int:
        """How many these are."""
        return self.last - self.first + 1

    def read(self) -> list[RawRecord]:
        """Raises: DecodeError, always."""
        raise DecodeError("these records are read when it is their turn")


class Unread(NamedTuple):
    """Records that nobody has read yet. failed: called with the chunk and the first offset that cannot be read, on any
    thread; none from there on is handled."""

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
        """decode, decode_key: of values and keys; None: they are bytes. fence: as `Fetched.fence`. group: that acquired
        it; empty: named as the agent. exactly_once: its outputs are settled with it.

        origins: for records of a retry topic, by their offsets in it; all from one partition, `topic`'s. unread:
        instead of records.
        """
        first = next(iter(origins.values())) if origins else None
        self.agent = agent
        self.group = group or agent
        self.topic = topic
        self.tp = tp
        """Where it was acquired; `topic`, `topic_id` and `partition` are where it comes from."""
        self.topic_id = tp.topic_id if first is None else first.topic_id
        self.partition = tp.partition if first is None else first.partition
        self._origins = origins
        self.decode = decode
        self.decode_key = decode_key
        self.fence = fence
        self.exactly_once = exactly_once
        self.is_accepted = False
        """Whether its records were accepted before they run (`AgentOptions.at_most_once`)."""
        self.order: KeyOrder | None = None
        """What orders its records; None: nothing does."""
        self.records = [record for raws, _ in records for record in raws]
        self.records.reverse()
        self.chains: Chains | None = None
        """What waits for a record before it; None: nothing does."""
        self.accepted: list[int] = []
        self.others: list[tuple[DecodedRecord | RawRecord, Outcome]] = []
        self.sends: dict[int, list[ProducerRecord]] = {}
        """What handlers at work have sent by their deliveries, by offset: it goes out when they end in an accept."""
        self.spans: dict[int, Any] = {}
        """How records are, or were, handled, by offset, where there is telemetry (`agents.telemetry`)."""
        self.plain_bytes = 0
        """Of the batches that `records` were read from, without compression."""
        self.deadline = deadline
        """When the lock lapses, in the clock's monotonic seconds; moved by renewals."""
        self.arrived = arrived
        # --- the feeder's
        self.generation = generation
        self.runs = [run for raws, _ in records for run in _offset_runs(raws)]
        self.remaining = len(self.records)
        self.settled: list[int] = []
        self.lost: set[int] = set()
        self.settling: set[int] = set()
        """Offsets on their way with their outputs: whoever leads keeps them until that is decided."""
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
        """Of the records of each key all but the first wait from now on. For a chunk that nobody else has yet."""
        self.order = order
        chains = Chains(self.records[::-1], order.hashes_of)
        if chains.waiting:
            self.chains = chains
            self.records = chains.first(self.records)

    def accepted_first(self, records: Sequence[RawRecord]) -> Chunk:
        """A chunk of some of its records, which were accepted: nobody holds them any more, and no lock of theirs can
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
        """Read the next records where none are left to be begun; whether there are any. Any thread, but not two."""
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
        self.records[:0] = records  # in one step: the feeder may have put back some meanwhile, which come first
        if unread.lazy.waiting:
            self._unread.append(unread)
        return True

    def take_unread(self) -> Unread | None:
        """What nobody has read, for whoever asks first; None: there is nothing, or somebody reads it. Any thread."""
        try:
            return self._unread.pop()
        except IndexError:
            return None

    def put_unread(self, unread: Unread) -> None:
        """Put back what was taken."""
        self._unread.append(unread)

    @property
    def waiting(self) -> int:
        """Records that no handler has begun. Any thread."""
        chained = 0 if self.chains is None else self.chains.waiting
        return len(self.records) + chained + sum(unread.lazy.waiting for unread in tuple(self._unread))

    def attempt(self, offset: int) -> int:
        """How often this record was delivered, this time included."""
        count = self._count if self._counts is None else self._counts.get(offset, self._count)
        return count if self._origins is None else count + self._origins[offset].attempts

    def counted(self, offsets: list[int]) -> Iterable[tuple[int, list[int]]]:
        """Offsets by the attempt that their acknowledgement says: the delivery count that they were acquired with, in
        an order; 0 without one, where it makes no difference."""
        if self.fence is None:
            return ((0, offsets),)
        if self._counts is None:
            return ((_said(self._count), offsets),)
        found: dict[int, list[int]] = {}
        for offset in offsets:
            found.setdefault(_said(self._counts.get(offset, self._count)), []).append(offset)
        return found.items()

    def redelivered(self) -> set[int]:
        """Offsets that were delivered before."""
        if self._counts is None and self._count == 1:
            return set()
        offsets = (offset for first, last in self.runs for offset in range(first, last + 1))
        return {offset for offset in offsets if self.attempt(offset) > 1}

    def counted_runs(self, offsets: list[int]) -> list[tuple[int, int, int]]:
        """Sorted offsets as ascending (first, last, attempt); see `counted`."""
        return sorted((first, last, attempt) for attempt, some in self.counted(offsets) for first, last in runs(some))

    def origin(self, offset: int) -> RetryOrigin | None:
        """Where a record of a retry topic came from."""
        return None if self._origins is None else self._origins[offset]

    def place(self, offset: int) -> int:
        """The record's offset in the partition that it comes from."""
        return offset if self._origins is None else self._origins[offset].offset

    def at(self, offset: int) -> str:
        """`topic-partition@offset` of the place that the record comes from."""
        return f"{self.topic}-{self.partition}@{self.place(offset)}"

    def where(self, offset: int) -> str:
        """How flowshare's own log lines name a delivery."""
        return f"agent={self.agent} record={self.at(offset)} attempt={self.attempt(offset)}"

    def value(self, record: RawRecord) -> Any:
        """The record's value as handlers get it. Raises: whatever the decoder raises."""
        raw = record.value
        if type(self.decode) is CodecDecoder:
            return self.decode.of(raw, record.headers)
        if self.decode is not None:
            return self.decode(raw)
        if raw is None:
            raise ValueError("null")
        return raw

    def whole(self, record: RawRecord | DecodedRecord) -> DecodedRecord:
        """One of the chunk's records with all its fields."""
        if isinstance(record, DecodedRecord):
            return record
        return whole((record,), self.attempt(record.offset))[0]

    @property
    def settles_with(self) -> tuple[TopicPartition, int]:
        """What can be settled in one step has the same."""
        return self.tp, self.generation

    def renewable(self) -> list[int]:
        """Offsets whose locks are to be renewed, in order: not what is being settled, which cannot lapse."""
        if not self.settling:
            return self.unfinished()
        return [offset for offset in self.unfinished() if offset not in self.settling]

    def unfinished(self) -> list[int]:
        """Offsets that are held and not settled, in order."""
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
    """Attempt by offset where it is not the usual one; None: nowhere."""
    found = {raw.offset: count for raws, count in records if count != usual for raw in raws}
    return found or None


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Sorted distinct offsets as (first, last) runs without gaps; halves the list, so it is cheap when there are few.

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
