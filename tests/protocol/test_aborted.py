"""A reader of committed records leaves out the batches of aborted transactions, and only those."""

from __future__ import annotations

from flowshare.protocol.aborted import AbortedBatches
from flowshare.protocol.headers import ATTRIBUTES_AT, frames
from flowshare.protocol.messages import AbortedTransaction
from tests.batches import raw_batch, raw_record
from tests.protocol.test_batches import patch

TRANSACTIONAL, CONTROL = 0x10, 0x20
PRODUCER_ID_AT = 43


def batch(offset, producer_id=-1, attributes=0):
    made = raw_batch([raw_record(0)], offset)
    made = patch(made, ATTRIBUTES_AT, ">h", attributes)
    return patch(made, PRODUCER_ID_AT, ">q", producer_id)


def part(offset, producer_id):
    return batch(offset, producer_id, TRANSACTIONAL)


def marker(offset, producer_id):
    return batch(offset, producer_id, TRANSACTIONAL | CONTROL)


def read(aborted, *batches):
    """The offsets that are not left out."""
    known = AbortedBatches([AbortedTransaction(*one) for one in aborted])
    return [header.base_offset for header in frames(b"".join(batches)) if not known.skips(header)]


def test_a_transaction_that_was_aborted_is_left_out_up_to_its_marker():
    assert read([(7, 1)], batch(0), part(1, 7), part(2, 7), marker(3, 7), part(4, 7), marker(5, 7)) == [0, 4]


def test_other_producers_and_those_without_transactions_are_read_between_its_batches():
    assert read([(7, 0)], part(0, 7), part(1, 8), batch(2), part(3, 7), marker(4, 8), marker(5, 7)) == [1, 2]


def test_a_second_aborted_transaction_of_a_producer_begins_where_it_is_said_to_begin():
    log = (part(0, 7), marker(1, 7), part(2, 7), marker(3, 7), part(4, 7), marker(5, 7))

    assert read([(7, 4), (7, 0)], *log) == [2]


def test_an_aborted_transaction_that_began_before_what_is_read_counts_from_the_first_batch():
    assert read([(7, 2)], part(10, 7), marker(11, 7), part(12, 7)) == [12]


def test_a_batch_of_a_producer_that_is_not_transactional_is_read_even_if_it_aborted_one():
    assert read([(7, 0)], batch(0, 7), part(1, 7), marker(2, 7)) == [0]
