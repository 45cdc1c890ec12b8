"""From what a member fetched to what a consumer hands out: decoded records, errors in their place, and what is
acknowledged without the application: gaps (KIP-932), damaged batches, offsets that were acquired but not sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from flowshare.client.errors import CorruptRecords, RecordError
from flowshare.client.inflight import Headers, ShareRecord
from flowshare.client.ranges import TopicIdPartition
from flowshare.protocol.batches import DecodedRecord, DecodeError, decode
from flowshare.protocol.messages import AckBatch
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.client.ranges import Fetched

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
