"""`Backlog`: what a consumer fetched and did not hand out yet, records and the errors between them, in order; and what
is acknowledged without the application (SG-17.5): gaps, damaged batches, offsets that were acquired but not sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from flowshare.client.consumer.inflight import Headers, ShareRecord
from flowshare.client.errors import CorruptRecords, RecordError
from flowshare.client.session.ranges import TopicIdPartition
from flowshare.protocol.batches import DecodedRecord, DecodeError, decode
from flowshare.protocol.compact import grouped
from flowshare.protocol.messages import AckBatch
from flowshare.share.ranges import merged
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.client.consumer.commits import Commits
    from flowshare.client.session.ranges import Fetched
    from flowshare.protocol.messages import TopicPartition

K = TypeVar("K")
V = TypeVar("V")
Decoder = Callable[[bytes | None], K]
_Plain = tuple[int, int, K, V, Headers, int]
"""A decoded record of which the bytes are the key and the value."""
Item = ShareRecord[K, V] | RecordError | CorruptRecords


class Unpacked(Generic[K, V]):
    """Items in offset order, and acknowledgements to send at once."""

    def __init__(self, source: TopicIdPartition, generation: int) -> None:
        self.source = source
        self.generation = generation
        self.items: list[Item[K, V]] = []
        self.acks: tuple[AckBatch, ...] = ()


class Backlog(Generic[K, V]):
    """Records of one consumer that wait to be handed out; what is handed out is in hand, as its `Commits` know."""

    def __init__(
        self, commits: Commits[K, V], key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None
    ) -> None:
        self._commits = commits
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._items: deque[tuple[Unpacked[K, V], Item[K, V]]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def receive(self, fetched: Fetched) -> None:
        """Take in what a fetch brought."""
        unpacked: Unpacked[K, V] = unpack(fetched, self._key_decoder, self._value_decoder)
        self._items.extend((unpacked, item) for item in unpacked.items)
        if unpacked.acks:
            self._commits.send_own(unpacked.source, unpacked.generation, unpacked.acks)

    def hand_out(self) -> list[ShareRecord[K, V]]:
        """What is there up to the first error; an error that comes first is raised."""
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
        return records

    def hand_out_first(self) -> ShareRecord[K, V]:
        """The first item: a record, or an error that is raised. Raises: CorruptRecords, RecordError."""
        unpacked, item = self._items.popleft()
        if isinstance(item, CorruptRecords):
            raise item
        held = self._commits.hold(unpacked.source, unpacked.generation)
        if isinstance(item, RecordError):
            held.held[item.offset] = None
            held.types[item.offset] = AcknowledgeType.RELEASE
            raise item
        held.held[item.offset] = item
        return item

    def unrun(self, holds: Callable[[TopicPartition, int], bool]) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Ranges that were never handed out, of partitions and generations that `holds` still has."""
        offsets = grouped(
            (unpacked.source.tp, (item.offset, item.offset))
            for unpacked, item in self._items
            if holds(unpacked.source.tp, unpacked.generation) and not isinstance(item, CorruptRecords)
        )
        return {tp: merged(found) for tp, found in offsets.items()}


def unpack(fetched: Fetched, key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None) -> Unpacked[K, V]:
    """Decode everything of one partition; never raises for what is in the records."""
    source = TopicIdPartition(fetched.topic, fetched.partition, fetched.topic_id)
    unpacked = Unpacked[K, V](source, fetched.generation)
    try:
        decoded = decode(fetched.records, fetched.acquired)
    except DecodeError:
        # The bytes as a whole make no sense: more likely this answer than the log is at fault, so others may try.
        whole = [(run.first, run.last) for run in fetched.acquired]
        unpacked.acks = tuple(_acks(whole, AcknowledgeType.RELEASE))
        return unpacked
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


def _acks(runs: Iterable[tuple[int, int]], type_: AcknowledgeType) -> list[AckBatch]:
    return [AckBatch(first, last, bytes((type_,))) for first, last in runs]


def _offset(item: Item[K, V]) -> int:
    return item.first if isinstance(item, CorruptRecords) else item.offset
