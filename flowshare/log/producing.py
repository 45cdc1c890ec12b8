"""Idempotent producers and transactions in a partition's log: between batches, the pure core, and what is stored."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

from flowshare.log import keys
from flowshare.log.base import CorruptRecords, ProducerRefused, StorageDamaged
from flowshare.log.store import Store, Write
from flowshare.log.tail import TailBatch
from flowshare.protocol.batches import BatchHeader
from flowshare.protocol.headers import frames
from flowshare.share.types import LogBatch
from flowshare.transactions.aborted import AbortedSpans
from flowshare.transactions.errors import TransactionError, TransactionStateCorrupt
from flowshare.transactions.partition import Change, PartitionProducers
from flowshare.transactions.producers import Batch, Written
from flowshare.transactions.stored import decode_aborted, decode_producer, encode_aborted, encode_producer

Decide = Callable[[PartitionProducers, int, int], Change | Written]
"""(producers, base offset, now in ms) -> what the append changes, or where it is already. Raises: TransactionError."""


def produced(headers: Sequence[BatchHeader]) -> Batch | None:
    """What a checked append says of its producer; None when it names none. Raises: CorruptRecords."""
    header = headers[0]
    if len(headers) > 1:
        if any(header.producer_id >= 0 or header.is_transactional for header in headers):
            raise CorruptRecords("a batch with a producer id comes alone in its request")
        return None
    if header.producer_id < 0:
        if header.is_transactional:
            raise CorruptRecords("a transactional batch needs a producer id")
        return None
    if header.producer_epoch < 0 or header.base_sequence < 0:
        raise CorruptRecords("a batch with a producer id needs an epoch and a sequence")
    return Batch(
        header.producer_id, header.producer_epoch, header.base_sequence, header.record_count, header.is_transactional
    )


def decide_batch(batch: Batch, admit: Callable[[], None] | None, expiry_ms: int) -> Decide:
    """The decision about a producer's batch."""

    def decide(producers: PartitionProducers, base_offset: int, now_ms: int) -> Change | Written:
        written = producers.duplicate(batch)
        if written is not None:
            return written
        if admit is not None:
            admit()
        return producers.place(batch, base_offset, now_ms, expiry_ms=expiry_ms)

    return decide


def decide_marker(producer_id: int, epoch: int, *, committed: bool) -> Decide:
    """The decision about a marker."""

    def decide(producers: PartitionProducers, base_offset: int, now_ms: int) -> Change | Written:
        return producers.mark(producer_id, epoch, base_offset, now_ms, committed=committed)

    return decide


def decided(decide: Decide, producers: PartitionProducers, base_offset: int, now_ms: int) -> Change | Written:
    """What `decide` says. Raises: ProducerRefused."""
    try:
        return decide(producers, base_offset, now_ms)
    except TransactionError as error:
        raise ProducerRefused(error) from error


def writes(topic_id: uuid.UUID, partition: int, change: Change) -> list[Write]:
    """What is to be stored with the batch or marker."""
    prefix = keys.producers(topic_id, partition)
    stored: list[Write] = [
        (keys.at(prefix, producer_id), None if after is None else encode_producer(after))
        for producer_id, _, after in change.steps
    ]
    if change.aborted is not None:
        entry = keys.at(keys.aborted(topic_id, partition), change.aborted.last)
        stored.append((entry, encode_aborted(change.aborted)))
    return stored


def load_blocking(store: Store, topic_id: uuid.UUID, partition: int) -> PartitionProducers:
    """The producers of a partition as they are stored. Raises: StorageDamaged, StorageError."""
    producers, aborted = keys.producers(topic_id, partition), keys.aborted(topic_id, partition)
    try:
        return PartitionProducers(
            [
                (keys.offset_of(key), decode_producer(value))
                for key, value in store.scan(producers, keys.after(producers))
            ],
            [decode_aborted(keys.offset_of(key), value) for key, value in store.scan(aborted, keys.after(aborted))],
        )
    except TransactionStateCorrupt as error:
        raise StorageDamaged(str(error)) from error


def aborted_among(producers: PartitionProducers, found: Sequence[TailBatch]) -> tuple[LogBatch, ...]:
    """Batches among consecutive ones that belong to aborted transactions."""
    if not found:
        return ()
    entries = producers.aborted.between(found[0].first, found[-1].last + 1)
    if not entries:
        return ()
    spans, among = AbortedSpans(entries), list[LogBatch]()
    for batch in found:
        header = next(frames(batch.records))
        if header.is_transactional and not header.is_control and spans.holds(header.producer_id, batch.first):
            among.append(LogBatch(batch.first, batch.last))
    return tuple(among)
