"""Tests of parsing a fetch answer, which is done once."""

from __future__ import annotations

import struct

import pytest

from flowshare.fleet.log.chunk import leader_epoch, parse
from flowshare.protocol.batches import batch_headers, marker, rebase
from flowshare.protocol.headers import CRC_AT, HEADER, TRANSACTIONAL_MASK, crc32c
from flowshare.protocol.messages.records import AbortedTransaction
from flowshare.share.types import LogBatch
from tests.fleet.log.worlds import batch, numbers


def at(offset, count=10, size=0):
    made = batch(*numbers(offset, count), size=size)
    return rebase(made, batch_headers(made), offset)


def transactional(offset, producer_id, count=1):
    made = bytearray(at(offset, count))
    head = list(HEADER.unpack_from(made))
    head[5] |= TRANSACTIONAL_MASK
    head[9], head[10], head[11] = producer_id, 0, 0
    HEADER.pack_into(made, 0, *head)
    struct.pack_into(">I", made, CRC_AT, crc32c(memoryview(made)[21:]))
    return bytes(made)


def ended(offset, producer_id, *, committed=False):
    made = marker(producer_id, 0, committed=committed, timestamp_ms=1)
    return rebase(made, batch_headers(made), offset)


def test_a_whole_answer_is_given_without_a_copy():
    records = at(0) + at(10)
    chunk, damage = parse(records, 0)

    piece = chunk.read(0, 1 << 20)

    assert damage is None
    assert piece.records is chunk.records
    assert piece.batches == (LogBatch(0, 9), LogBatch(10, 19))
    assert chunk.end == 20


def test_a_read_begins_with_the_batch_that_holds_the_offset_and_keeps_to_its_bytes():
    size = len(at(0, size=5))
    chunk, _ = parse(at(0, size=5) + at(10, size=5) + at(20, size=5), 0)

    assert chunk.read(15, 2 * size).batches == (LogBatch(10, 19), LogBatch(20, 29))
    assert chunk.read(15, 2 * size - 1).batches == (LogBatch(10, 19),)
    assert chunk.read(15, 1).records == at(10, size=5), "one batch at least"


def test_what_is_missing_in_the_log_is_passed_over():
    chunk, _ = parse(at(5) + at(30), 0)

    assert chunk.read(0, 1).batches == (LogBatch(5, 14),)
    assert chunk.read(20, 1).batches == (LogBatch(30, 39),)


def test_batches_before_the_offset_are_left_out():
    chunk, _ = parse(at(0) + at(10), 10)

    assert chunk.records == at(10)
    assert chunk.read(10, 1000).batches == (LogBatch(10, 19),)


@pytest.mark.parametrize("left", [1, 60, 100])
def test_a_batch_that_the_broker_cut_off_is_left_out(left):
    chunk, damage = parse(at(0) + at(10)[:left], 0)

    assert damage is None
    assert chunk.end == 10


def test_a_cut_off_batch_alone_is_nothing():
    assert parse(at(0)[:70], 0) == (None, None)
    assert parse(b"", 0) == (None, None)


def test_what_comes_before_damage_is_good():
    bad = bytearray(at(10))
    bad[-1] ^= 1
    chunk, damage = parse(at(0) + bytes(bad) + at(20), 0)

    assert chunk.end == 10
    assert "checksum" in damage


@pytest.mark.parametrize("position", range(0, len(at(0)), 7))
def test_a_changed_byte_never_passes_for_another_batch(position):
    bad = bytearray(at(0))
    bad[position] ^= 0x55
    chunk, _ = parse(bytes(bad), 0)

    # Base offset and leader epoch lie outside of the checksum, as Kafka has it.
    assert chunk is None or position < 8 or 12 <= position < 16


def test_offsets_that_go_back_are_damage():
    chunk, damage = parse(at(10) + at(5), 0)

    assert chunk.end == 20
    assert "behind" in damage


def test_batches_of_aborted_transactions_are_known_by_producer_up_to_its_marker():
    records = b"".join(
        [
            transactional(0, 1),  # aborted
            transactional(1, 2),  # committed
            at(2, 1),
            ended(3, 1),
            transactional(4, 1),  # the same producer's next transaction
            ended(5, 2, committed=True),
            transactional(6, 2),  # aborted, its marker is not here yet
        ]
    )
    chunk, damage = parse(records, 0, (AbortedTransaction(2, 6), AbortedTransaction(1, 0)))

    assert damage is None
    assert chunk.aborted == (LogBatch(0, 0), LogBatch(6, 6))
    assert chunk.read(1, 1 << 20).aborted == (LogBatch(6, 6),)
    assert chunk.read(4, 1).aborted == ()


def test_a_transaction_that_began_before_is_aborted_from_the_first_batch_on():
    chunk, _ = parse(
        transactional(10, 7, count=5) + ended(15, 7) + transactional(16, 7), 12, (AbortedTransaction(7, 3),)
    )

    assert chunk.aborted == (LogBatch(10, 14),)


def test_the_leader_epoch_of_the_last_batch_is_known():
    second = bytearray(at(10))
    struct.pack_into(">i", second, 12, 7)
    chunk, _ = parse(at(0) + bytes(second), 0)

    assert chunk.epoch == 7
    assert leader_epoch(chunk.records) == 0
