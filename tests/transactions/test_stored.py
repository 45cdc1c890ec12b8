"""Tests that stored state can be read again, and that other bytes are refused."""

from __future__ import annotations

import pytest

from flowshare.core_errors import TransactionStateCorrupt
from flowshare.transactions.aborted import Aborted
from flowshare.transactions.producers import SEQUENCES, ProducerState, Written
from flowshare.transactions.stored import (
    decode_aborted,
    decode_producer,
    decode_transaction,
    encode_aborted,
    encode_producer,
    encode_transaction,
)
from flowshare.transactions.transaction import Transaction, TransactionState

PRODUCER = ProducerState(7, (Written(SEQUENCES - 2, 1, 10, 13), Written(2, 2, 14, 14)), 10, 1_700_000_000_000)
TRANSACTION = Transaction(
    transactional_id="tx",
    producer_id=5,
    epoch=3,
    last_epoch=2,
    last_producer_id=5,
    timeout_ms=60_000,
    state=TransactionState.PREPARE_ABORT,
    partitions=frozenset({("t", 0), ("u", 3)}),
    groups=frozenset({"g"}),
    started_ms=11,
    updated_ms=12,
)


def test_a_producer_is_read_as_it_was_written():
    assert decode_producer(encode_producer(PRODUCER)) == PRODUCER


def test_an_aborted_transaction_is_read_as_it_was_written():
    aborted = Aborted(1, 2, 3, 4)

    assert decode_aborted(3, encode_aborted(aborted)) == aborted


def test_a_transaction_is_read_as_it_was_written():
    assert decode_transaction("tx", encode_transaction(TRANSACTION)) == TRANSACTION


@pytest.mark.parametrize("cut", [0, 1, 5, -1])
def test_cut_bytes_are_refused(cut):
    with pytest.raises(TransactionStateCorrupt):
        decode_producer(encode_producer(PRODUCER)[:cut])
    with pytest.raises(TransactionStateCorrupt):
        decode_aborted(3, encode_aborted(Aborted(1, 2, 3, 4))[:cut])
    with pytest.raises(TransactionStateCorrupt):
        decode_transaction("tx", encode_transaction(TRANSACTION)[:cut])


def test_a_layout_of_later_versions_is_refused():
    with pytest.raises(TransactionStateCorrupt, match="layout 2"):
        decode_producer(b"\x02" + encode_producer(PRODUCER)[1:])
    with pytest.raises(TransactionStateCorrupt):
        decode_transaction("tx", encode_transaction(TRANSACTION).replace(b'"layout":1', b'"layout":2'))
