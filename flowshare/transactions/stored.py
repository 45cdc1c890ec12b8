"""The stored bytes of producers, aborted transactions and transactions."""

from __future__ import annotations

import struct
from typing import Any, Final

import orjson

from flowshare.core_errors import TransactionStateCorrupt
from flowshare.transactions.aborted import Aborted
from flowshare.transactions.producers import SEQUENCES, ProducerState, Written
from flowshare.transactions.transaction import Transaction, TransactionState

LAYOUT: Final = 1
_producer = struct.Struct(">BhqqB")
_written = struct.Struct(">iiq")
_aborted = struct.Struct(">Bqqq")


def encode_producer(producer: ProducerState) -> bytes:
    """Encode a producer of a partition."""
    epoch, batches, open_since, touched_ms = producer
    head = _producer.pack(LAYOUT, epoch, open_since, touched_ms, len(batches))
    return head + b"".join(_written.pack(first, last, base) for first, last, base, _ in batches)


def decode_producer(stored: bytes) -> ProducerState:
    """Decode a producer that `encode_producer` wrote. Raises: TransactionStateCorrupt."""
    try:
        layout, epoch, open_since, touched_ms, count = _producer.unpack_from(stored)
        _check_layout(layout)
        body = memoryview(stored)[_producer.size :]
        if len(body) != count * _written.size:
            raise TransactionStateCorrupt(f"a stored producer says {count} batches in {len(body)} bytes")
        batches = tuple(
            Written(first, last, base, base + (last - first) % SEQUENCES)
            for first, last, base in _written.iter_unpack(body)
        )
    except struct.error as error:
        raise TransactionStateCorrupt(f"a stored producer cannot be read: {error}") from error
    return ProducerState(epoch, batches, open_since, touched_ms)


def encode_aborted(aborted: Aborted) -> bytes:
    """Encode an aborted transaction of a partition, without the offset of its marker, which is in the key."""
    return _aborted.pack(LAYOUT, aborted.producer_id, aborted.first, aborted.stable)


def decode_aborted(last: int, stored: bytes) -> Aborted:
    """Decode an aborted transaction that `encode_aborted` wrote. Raises: TransactionStateCorrupt."""
    try:
        layout, producer_id, first, stable = _aborted.unpack(stored)
    except struct.error as error:
        raise TransactionStateCorrupt(f"a stored aborted transaction cannot be read: {error}") from error
    _check_layout(layout)
    return Aborted(producer_id, first, last, stable)


def encode_transaction(transaction: Transaction) -> bytes:
    """Encode a transactional id's state after a step."""
    fields = {
        "layout": LAYOUT,
        "producer_id": transaction.producer_id,
        "epoch": transaction.epoch,
        "last_epoch": transaction.last_epoch,
        "last_producer_id": transaction.last_producer_id,
        "timeout_ms": transaction.timeout_ms,
        "state": transaction.state.value,
        "partitions": sorted(transaction.partitions),
        "groups": sorted(transaction.groups),
        "started_ms": transaction.started_ms,
        "updated_ms": transaction.updated_ms,
    }
    return orjson.dumps(fields)


def decode_transaction(transactional_id: str, stored: bytes) -> Transaction:
    """Decode a transaction that `encode_transaction` wrote. Raises: TransactionStateCorrupt."""
    try:
        fields: dict[str, Any] = orjson.loads(stored)
        _check_layout(fields.pop("layout"))
        return Transaction(
            transactional_id=transactional_id,
            producer_id=int(fields["producer_id"]),
            epoch=int(fields["epoch"]),
            last_epoch=int(fields["last_epoch"]),
            last_producer_id=int(fields["last_producer_id"]),
            timeout_ms=int(fields["timeout_ms"]),
            state=TransactionState(fields["state"]),
            partitions=frozenset((str(topic), int(partition)) for topic, partition in fields["partitions"]),
            groups=frozenset(str(group) for group in fields["groups"]),
            started_ms=int(fields["started_ms"]),
            updated_ms=int(fields["updated_ms"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TransactionStateCorrupt(f"transactional id {transactional_id!r}: its state cannot be read") from error


def _check_layout(layout: int) -> None:
    if layout != LAYOUT:
        raise TransactionStateCorrupt(f"state of layout {layout}; this version of flowshare knows {LAYOUT}")
