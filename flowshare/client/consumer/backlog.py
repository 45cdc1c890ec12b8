"""`Backlog`: records, and errors between them, that a consumer has fetched and not handed out yet, in order.

It also finds the acknowledgements that need no application (SG-17.5): gaps, damaged batches, offsets that were acquired
but not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from flowshare.client.consumer.inflight import Headers, ShareRecord
from flowshare.client.errors import CorruptRecords, RecordError
from flowshare.client.session.ranges import TopicIdPartition
from flowshare.protocol.batches import DecodedRecord, DecodeError, decode
from flowshare.protocol.compact import grouped
from flowshare.share.ranges import merged
from flowshare.share.types import AcknowledgeType, AckRange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.client.consumer.commits import Commits
    from flowshare.client.session.ranges import Fetched
    from flowshare.protocol.messages import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
Decoder = Callable[[bytes | None], K]
_Plain = tuple[int, int, K, V, Headers, int]
"""A decoded record whose key and value are the bytes themselves."""
Item = ShareRecord[K, V] | RecordError | CorruptRecords


class Unpacked(Generic[K, V]):
    """Items in offset order, and acknowledgements to send at once."""

    def __init__(self, source: TopicIdPartition, generation: int) -> None:
        self.source = source
        self.generation = generation
        self.items: list[Item[K, V]] = []
        self.acks: tuple[AckRange, ...] = ()
        self.size = 0
        """The bytes of keys and values."""


class Backlog(Generic[K, V]):
    """Records of one consumer that wait to be handed out. Records handed out are held in its `Commits`."""

    def __init__(
        self, commits: Commits[K, V], key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None
    ) -> None:
        self._commits = commits
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._items: deque[tuple[Unpacked[K, V], Item[K, V]]] = deque()

        self.records = 0
        """The number of records handed out."""
        self.bytes = 0
        """The bytes of the keys and values of all received records."""

    def __len__(self) -> int:
        return len(self._items)

    def receive(self, fetched: Fetched) -> None:
        """Add the records of a fetch, and send its own acknowledgements."""
        unpacked: Unpacked[K, V] = unpack(fetched, self._key_decoder, self._value_decoder)
        self.bytes += unpacked.size
        self._items.extend((unpacked, item) for item in unpacked.items)
        if unpacked.acks:
            self._commits.send_own(unpacked.source, unpacked.generation, unpacked.acks)

    def hand_out(self) -> list[ShareRecord[K, V]]:
        """Hand out the waiting records up to the first error. If an error comes first, raise it."""
        items = self._items
        if not items:
            return []
        records = [self.hand_out_first()]
        source: Unpacked[K, V] | None = None
        held: dict[int, ShareRecord[K, V] | None] = {}
        while items:
            unpacked, item = items[0]
            if not isinstance(item, ShareRecord):
                break
            if unpacked is not source:
                source, held = unpacked, self._commits.hold(unpacked.source, unpacked.generation).held
            held[item.offset] = item
            records.append(item)
            items.popleft()
        self.records += len(records) - 1  # the first one is counted
        return records

    def hand_out_first(self) -> ShareRecord[K, V]:
        """Hand out the first item: a record, or an error that is raised. Raises: CorruptRecords, RecordError."""
        unpacked, item = self._items.popleft()
        if isinstance(item, CorruptRecords):
            raise item
        held = self._commits.hold(unpacked.source, unpacked.generation)
        if isinstance(item, RecordError):
            held.held[item.offset] = None
            held.types[item.offset] = AcknowledgeType.RELEASE
            raise item
        self.records += 1
        held.held[item.offset] = item
        return item

    def unrun(self, holds: Callable[[TopicPartition, int], bool]) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Return the ranges that were never handed out, of partitions and generations that `holds` confirms."""
        offsets = grouped(
            (unpacked.source.tp, (item.offset, item.offset))
            for unpacked, item in self._items
            if holds(unpacked.source.tp, unpacked.generation) and not isinstance(item, CorruptRecords)
        )
        return {tp: merged(found) for tp, found in offsets.items()}


def unpack(fetched: Fetched, key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None) -> Unpacked[K, V]:
    """Decode all records of one partition; never raises for the content of records."""
    source = TopicIdPartition(fetched.topic, fetched.partition, fetched.topic_id)
    unpacked = Unpacked[K, V](source, fetched.generation)
    try:
        decoded = decode(fetched.records, fetched.acquired)
    except DecodeError:
        # The bytes as a whole make no sense: more likely this answer is damaged than the log, so other members may try.
        whole = [(run.first, run.last) for run in fetched.acquired]
        unpacked.acks = tuple(_acks(whole, AcknowledgeType.RELEASE))
        return unpacked
    unpacked.size = sum(len(record[2] or b"") + len(record[3] or b"") for record in decoded.records)
    if key_decoder is None and value_decoder is None:
        unpacked.items = [ShareRecord(source, *record) for record in cast("list[_Plain[K, V]]", decoded.records)]
    else:
        unpacked.items = [_item(source, record, key_decoder, value_decoder) for record in decoded.records]
    if decoded.corrupt:
        unpacked.items += [
            CorruptRecords(source.topic, source.partition, first, last, reason)
            for first, last, reason in decoded.corrupt
        ]
        unpacked.items.sort(key=_offset)
    rejected = [(first, last) for first, last, _ in decoded.corrupt]
    unpacked.acks = tuple(
        sorted(
            [
                *_acks(decoded.gaps, AcknowledgeType.GAP),
                *_acks(rejected, AcknowledgeType.REJECT),
                *_acks(decoded.missing, AcknowledgeType.RELEASE),
            ]
        )
    )
    return unpacked


def _item(
    source: TopicIdPartition, record: DecodedRecord, key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None
) -> ShareRecord[K, V] | RecordError:
    offset, timestamp_ms, key, value, headers, delivery_count = record
    try:
        return ShareRecord(
            source,
            offset,
            timestamp_ms,
            cast("K", key) if key_decoder is None else key_decoder(key),
            cast("V", value) if value_decoder is None else value_decoder(value),
            headers,
            delivery_count,
        )
    except Exception as error:  # noqa: BLE001 (a decoder is the application's and may raise anything)
        problem = RecordError(source.topic, source.partition, offset, f"{type(error).__name__}: {error}")
        problem.__cause__ = error
        return problem


def _acks(runs: Iterable[tuple[int, int]], type_: AcknowledgeType) -> list[AckRange]:
    return [AckRange(first, last, bytes((type_,))) for first, last in runs]


def _offset(item: Item[K, V]) -> int:
    return item.first if isinstance(item, CorruptRecords) else item.offset
