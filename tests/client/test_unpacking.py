"""From fetched bytes to items and the acknowledgements that a consumer gives by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.client.consumer.backlog import unpack
from flowshare.client.consumer.consumer import ShareConsumer
from flowshare.client.consumer.inflight import Held, ShareRecord, ack_batches
from flowshare.client.errors import CorruptRecords, IllegalState, RecordError
from flowshare.client.session.ranges import Fetched, TopicIdPartition
from flowshare.client.settings import ConsumerSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.share.types import AcknowledgeType, AckRange, AcquiredRange
from flowshare.testing.clock import settle
from tests.batches import place
from tests.client.fakes import ORDERS, FakeServer

SOURCE = TopicIdPartition("orders", 0, ORDERS)
ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


def batch(base, *values):
    builder = BatchBuilder()
    for value in values:
        builder.add(None, value, timestamp_ms=1)
    return place(builder.build(), base)


def fetched(records, *acquired):
    return Fetched("orders", ORDERS, 0, records, tuple(AcquiredRange(*one) for one in acquired), 0.0, 0)


def held(*offsets):
    kept = Held(SOURCE, 0)
    for offset in offsets:
        kept.held[offset] = ShareRecord(SOURCE, offset, 1, None, b"v", (), 1)
    return kept


def test_only_acquired_offsets_become_records_with_their_delivery_count():
    unpacked = unpack(fetched(batch(5, b"a", b"b", b"c"), (6, 7, 3)), None, None)

    assert [(item.offset, item.value, item.attempt) for item in unpacked.items] == [(6, b"b", 3), (7, b"c", 3)]
    assert unpacked.acks == ()


def test_acquired_offsets_without_a_record_are_gaps():
    unpacked = unpack(fetched(batch(0, b"a") + batch(4, b"b"), (0, 4, 1)), None, None)

    assert [item.offset for item in unpacked.items] == [0, 4]
    assert unpacked.acks == (AckRange(1, 3, b"\x00"),)


def test_a_damaged_batch_is_an_error_in_its_place_and_rejected():
    broken = bytearray(batch(1, b"bbb"))
    broken[-2] ^= 1
    unpacked = unpack(fetched(batch(0, b"a") + bytes(broken) + batch(2, b"c"), (0, 2, 1)), None, None)

    assert [type(item) for item in unpacked.items] == [ShareRecord, CorruptRecords, ShareRecord]
    assert unpacked.acks == (AckRange(1, 1, bytes((REJECT,))),)


def test_what_was_acquired_but_not_sent_is_released():
    unpacked = unpack(fetched(batch(0, b"a"), (0, 3, 1)), None, None)

    assert unpacked.acks == (AckRange(1, 3, bytes((RELEASE,))),)


def test_bytes_that_are_no_batches_are_given_back():
    unpacked = unpack(fetched(bytes(range(200)), (0, 3, 1)), None, None)

    assert unpacked.items == []
    assert unpacked.acks == (AckRange(0, 3, bytes((RELEASE,))),)


def test_a_decoder_that_raises_makes_that_one_record_an_error():
    unpacked = unpack(fetched(batch(0, b"1", b"x"), (0, 1, 1)), None, lambda value: int(value))

    first, second = unpacked.items
    assert first.value == 1
    assert isinstance(second, RecordError)
    assert (second.offset, type(second.__cause__)) == (1, ValueError)


@pytest.mark.parametrize(
    ("types", "batches"),
    [
        ({}, ()),
        ({3: ACCEPT, 1: ACCEPT, 2: ACCEPT}, ((1, 3, b"\x01"),)),
        ({1: ACCEPT, 2: REJECT}, ((1, 2, b"\x01\x03"),)),
        ({1: ACCEPT, 3: ACCEPT}, ((1, 1, b"\x01"), (3, 3, b"\x01"))),
    ],
)
def test_acknowledgements_travel_as_contiguous_ranges(types, batches):
    assert ack_batches(types) == tuple(AckRange(*one) for one in batches)


@given(st.dictionaries(st.integers(0, 60), st.sampled_from([ACCEPT, RELEASE, REJECT])))
def test_ranges_say_exactly_what_was_said(types):
    said = {}
    for one in ack_batches(types):
        kinds = one.types * (one.last - one.first + 1) if len(one.types) == 1 else one.types
        assert len(kinds) == one.last - one.first + 1
        said |= dict(zip(range(one.first, one.last + 1), kinds, strict=True))

    assert said == types


def test_a_record_is_in_one_place_at_a_time():
    kept = held(1, 2, 3)
    kept.acknowledge(1, ACCEPT)
    kept.acknowledge(2, RENEW)

    assert kept.unacknowledged() == 1
    assert kept.take().types == {1: ACCEPT, 2: RENEW}
    assert (list(kept.held), list(kept.renewing)) == ([3], [2])
    with pytest.raises(IllegalState):
        kept.acknowledge(2, ACCEPT)
    kept.settle_renewals([2], renewed=True)
    assert [record.offset for record in kept.hand_out_renewed(5)] == [2]
    kept.acknowledge_rest(REJECT)
    assert kept.take().types == {3: REJECT, 2: REJECT}
    assert kept.idle


def test_a_renewal_that_failed_does_not_come_back():
    kept = held(1)
    kept.acknowledge(1, RENEW)
    kept.take()

    kept.settle_renewals([1], renewed=False)

    assert kept.hand_out_renewed(5) == []
    assert kept.idle


def test_an_undecodable_record_that_was_renewed_is_released():
    kept = Held(SOURCE, 0)
    kept.held[1] = None
    kept.types[1] = RENEW
    kept.take()
    kept.settle_renewals([1], renewed=True)

    assert kept.hand_out_renewed(5) == []
    assert kept.take().types == {1: RELEASE}


@pytest.mark.asyncio
async def test_gaps_are_acknowledged_at_once_and_not_told_to_the_callback(clock):
    server = FakeServer()
    server.offer(batch(0, b"a") + batch(3, b"b"))
    settings = ConsumerSettings(isolation_level=None)  # this server has no settings of groups
    consumer = ShareConsumer(server.connect, group_id="g", clock=clock, settings=settings)
    consumer.subscribe(["orders"])
    told = []
    consumer.set_acknowledgement_commit_callback(lambda offsets, error: told.append(offsets))

    records = await consumer.poll(1)
    await settle()
    (gap,) = server.seen(m.ShareAcknowledgeRequest)
    await consumer.commit_sync()
    await consumer.close()

    assert [record.offset for record in records] == [0, 3]
    assert gap.partitions[0].acks == (AckRange(1, 2, b"\x00"),)
    assert [set(offsets) for found in told for offsets in found.values()] == [{0, 3}]
