"""Committed offsets: what they take in memory, open transactions, and what is stored of them."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowshare.core_errors import InvalidProducerEpoch, StateCorrupt
from flowshare.groups.offsets import (
    Committed,
    OffsetPartition,
    Offsets,
    TransactionalProducer,
    decode_offset,
    encode_offset,
)
from flowshare.groups.stored import VERSION
from flowshare.sealing import seal

ONE, OTHER = OffsetPartition("t", 0), OffsetPartition("u", 3)
TX = TransactionalProducer(7, 2)
TOPIC_ID = UUID(int=7)


def committed(offset=5, *, order=1, metadata="", topic_id=TOPIC_ID):
    return Committed(offset=offset, commit_ms=1, topic_id=topic_id, order=order, metadata=metadata)


@pytest.fixture
def offsets():
    return Offsets()


def put(offsets, partition, value, producer=None):
    """A commit; by how much memory grew as it was foretold, and as it is."""
    told, before = offsets.growth(partition, value, producer), offsets.size
    offsets.apply(offsets.commit({partition: value}, producer))
    return told, offsets.size - before


@pytest.mark.parametrize("producer", [None, TX])
def test_what_a_commit_takes_in_memory_is_known_before(offsets, producer):
    for partition, value in (
        (ONE, committed()),
        (ONE, committed(metadata="m" * 100)),
        (ONE, committed(metadata="")),
        (OTHER, committed(metadata="ü")),
    ):
        told, grown = put(offsets, partition, value, producer)
        assert told == grown
    assert offsets.size > 0

    offsets.apply(offsets.clear())

    assert offsets.size == 0
    assert not offsets


def test_offsets_of_an_open_transaction_count_when_it_is_committed(offsets):
    put(offsets, ONE, committed(5, order=1))
    put(offsets, ONE, committed(9, order=2), TX)
    assert offsets.of([ONE, OTHER]) == [(ONE, committed(5, order=1), True), (OTHER, None, False)]
    assert offsets.unstable(ONE)

    offsets.apply(offsets.complete(TX, committed=True))

    assert offsets.of(None) == [(ONE, committed(9, order=2), False)]
    assert not offsets.unstable(ONE)


def test_a_commit_that_came_later_than_the_transactions_stays(offsets):
    put(offsets, ONE, committed(9, order=1), TX)
    put(offsets, ONE, committed(11, order=2))

    offsets.apply(offsets.complete(TX, committed=True))

    assert offsets.committed == {ONE: committed(11, order=2)}


def test_an_offset_of_a_transaction_whose_topic_is_gone_counts_for_nothing(offsets):
    put(offsets, ONE, committed(9, order=2), TX)
    put(offsets, OTHER, committed(3, order=1), TX)

    offsets.apply(offsets.complete(TX, committed=True, counts=lambda partition, value: value.offset != 9))

    assert offsets.committed == {OTHER: committed(3, order=1)}
    assert offsets.producers == ()


def test_two_open_transactions_on_a_partition_keep_it_unstable_until_both_are_over(offsets):
    for producer in (TX, TransactionalProducer(8, 0)):
        put(offsets, ONE, committed(), producer)

    offsets.apply(offsets.complete(TX, committed=False))
    assert offsets.unstable(ONE)
    offsets.apply(offsets.complete(TransactionalProducer(8, 0), committed=False))

    assert not offsets.unstable(ONE)
    assert not offsets


def test_a_producer_of_an_older_epoch_commits_and_ends_nothing(offsets):
    put(offsets, ONE, committed(), TX)

    with pytest.raises(InvalidProducerEpoch, match="is at epoch 2, not 1"):
        offsets.commit({ONE: committed(6)}, TransactionalProducer(7, 1))
    assert list(offsets.complete(TransactionalProducer(7, 1), committed=True)) == []
    assert list(offsets.complete(TransactionalProducer(99, 0), committed=True)) == []


def test_the_end_of_what_an_open_transaction_does_not_have_changes_nothing(offsets):
    put(offsets, ONE, committed(), TX)

    offsets.apply(change for change in [*offsets.delete([OTHER]), *offsets.delete([ONE]), *offsets.delete([ONE])])

    assert not offsets
    assert not offsets.unstable(ONE)


def test_offsets_of_topics_that_are_gone_go_also_out_of_transactions(offsets):
    put(offsets, ONE, committed(topic_id=UUID(int=1)))
    put(offsets, OTHER, committed(topic_id=UUID(int=2)))
    put(offsets, ONE, committed(topic_id=UUID(int=1)), TX)

    offsets.apply(offsets.forget_topics(lambda topic_id: topic_id == UUID(int=2)))

    assert set(offsets.committed) == {OTHER}
    assert not offsets.unstable(ONE)


@pytest.mark.parametrize("ended", [True, False])
def test_an_offset_of_a_transaction_that_may_be_stored_though_its_write_failed_is_removed_at_the_end(offsets, ended):
    put(offsets, ONE, committed(), TX)
    for partition in (ONE, OTHER):
        offsets.doubt(offsets.commit({partition: committed(9, order=2)}, TX))
    assert offsets.of([ONE, OTHER]) == [(ONE, None, True), (OTHER, None, False)]

    end = list(offsets.complete(TX, committed=ended))
    offsets.apply(end)

    assert {change.partition for change in end if change == (change.partition, None, TX)} == {ONE, OTHER}
    assert offsets.committed == ({ONE: committed()} if ended else {})
    assert (bool(offsets), offsets.producers) == (ended, ())


def test_an_offset_in_doubt_is_so_no_longer_when_it_is_written_again_or_removed(offsets):
    offsets.doubt(offsets.commit({ONE: committed(), OTHER: committed()}, TX))
    assert offsets.size > 0

    put(offsets, ONE, committed(6), TX)
    offsets.apply(offsets.delete([OTHER]))

    assert list(offsets.complete(TX, committed=False)) == [(ONE, None, TX)]
    offsets.apply(offsets.clear())
    assert offsets.size == 0
    assert not offsets


def test_an_offset_that_counts_at_once_is_in_no_doubt(offsets):
    offsets.doubt(offsets.commit({ONE: committed()}))

    assert not offsets


def test_an_offset_is_read_as_it_was_stored():
    value = committed(metadata="größe", order=12)

    assert decode_offset(encode_offset(value)) == value


@pytest.mark.parametrize("body", [b"{", b"[]", b"[1,2,3,4,5,6,7]", b'[1,2,"",4,5,"no id",7]', b"7"])
def test_a_stored_offset_that_says_something_else_is_refused(body):
    with pytest.raises(StateCorrupt, match="a stored offset cannot be read"):
        decode_offset(seal(body, VERSION))
