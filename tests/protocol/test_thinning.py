"""Records taken out of a batch: what stays is as it was, whoever reads it; markers as Kafka's clients read them."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from flowshare.protocol import thinning
from flowshare.protocol.batches import BatchBuilder, batch_headers, marker
from flowshare.protocol.headers import DecodeError, check_crc
from flowshare.protocol.thinning import OPENED_RECORDS_MAX, OpenedBatch, _encoded, _varint
from tests.batches import place

NOW_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def opened(count=5, *, codec="none", base=100, step_ms=1000):
    builder = BatchBuilder(compression=codec)
    for number in range(count):
        value = None if number == 1 else b"v%d" % number
        assert builder.add(b"k%d" % number, value, timestamp_ms=NOW_MS + step_ms * number, headers=[("h", b"x")])
    batch = place(builder.build(), base)
    (header,) = batch_headers(batch)
    return OpenedBatch(batch, header)


def place_of(batch):
    """The bytes of a whole batch."""
    return batch.keep(range(len(batch.records)))


def read(batch):
    """Header, and offset, time, key and value of each record, by aiokafka."""
    (header,) = batch_headers(batch)
    check_crc(batch, header)
    found = DefaultRecordBatch(bytearray(batch))
    assert found.validate_crc()
    return header, [(one.offset, one.timestamp, one.key, one.value) for one in found]


@pytest.mark.parametrize("codec", CODECS)
def test_what_stays_is_where_and_as_it_was(codec):
    header, records = read(opened(codec=codec).keep([0, 3]))

    assert records == [(100, NOW_MS, b"k0", b"v0"), (103, NOW_MS + 3000, b"k3", b"v3")]
    assert (header.base_offset, header.last_offset, header.record_count) == (100, 104, 2)
    assert (header.codec, header.max_timestamp, header.delete_horizon_ms) == (codec, NOW_MS + 3000, None)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("horizon_ms", [NOW_MS, NOW_MS + 86_400_000, 5])
def test_a_delete_horizon_takes_the_place_of_the_first_time_and_records_keep_theirs(codec, horizon_ms):
    header, records = read(opened(codec=codec).keep([1, 4], horizon_ms=horizon_ms))

    assert header.delete_horizon_ms == horizon_ms
    assert records == [(101, NOW_MS + 1000, b"k1", None), (104, NOW_MS + 4000, b"k4", b"v4")]


def test_a_batch_of_which_nothing_stays_keeps_its_extent():
    header, records = read(opened().keep([]))

    assert (records, header.last_offset, header.record_count) == ([], 104, 0)


def test_the_time_of_the_append_stays_that_of_all_records():
    builder = BatchBuilder()
    for number in range(2):
        builder.add(b"k", b"v", timestamp_ms=NOW_MS + number)
    batch = place(builder.build(), 0, now_ms=NOW_MS + 500)
    (header,) = batch_headers(batch)

    kept, records = read(OpenedBatch(batch, header).keep([0]))

    assert kept.is_append_time
    assert records == [(0, NOW_MS + 500, b"k", b"v")]


def test_a_batch_of_more_records_than_lie_in_memory_at_once_is_refused():
    one = opened()

    with pytest.raises(DecodeError, match="too many"):
        OpenedBatch(bytes(one._plain), one.header._replace(record_count=OPENED_RECORDS_MAX + 1))


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_is_opened_a_step_at_a_time_is_the_same(codec, monkeypatch):
    monkeypatch.setattr(thinning, "STEP_RECORDS", 3)
    at_once = opened(10, codec=codec)
    steps = OpenedBatch.in_steps(place_of(at_once), at_once.header)
    for _ in range(4 + 4):  # to read, and to find out where the records lie
        next(steps)
    with pytest.raises(StopIteration) as end:
        next(steps)
    made = end.value.value

    assert [one.offset for one in made.records] == [one.offset for one in at_once.records]
    for indexes in ([0], [2, 3, 4], range(10), [1, 9]):
        assert made.keep(indexes) == at_once.keep(indexes)
        assert made.keep(indexes, horizon_ms=5) == at_once.keep(indexes, horizon_ms=5)


@pytest.mark.parametrize("length", [b"\x00", b"\x7e", b"\xff" * 11, b""])
def test_a_record_whose_length_cannot_be_is_refused(length):
    one = opened(1)
    one._plain = memoryview(bytes(one._plain[:61]) + length)

    with pytest.raises(DecodeError, match=r"says \d+ bytes|has no end|is cut off"):
        one.keep([0])


def test_numbers_come_back_in_as_few_bytes_as_kafka_writes():
    for number in (0, -1, 1, 63, 64, -64, -65, 2**31, -(2**31), 2**63 - 1, -(2**63), random.Random(4).getrandbits(60)):
        encoded = _encoded(number)
        assert _varint(memoryview(encoded), 0) == (number, len(encoded))
    assert [_encoded(number) for number in (0, -1, 1, 64)] == [b"\0", b"\1", b"\2", b"\x80\1"]


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_is_a_control_batch_that_kafkas_clients_take_for_the_end_of_a_transaction(committed):
    batch = marker(7, 3, committed=committed, timestamp_ms=NOW_MS)
    header, [(offset, timestamp, key, value)] = read(batch)

    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.record_count) == (7, 3, 1)
    assert (offset, timestamp, key) == (0, NOW_MS, b"\0\0\0\1" if committed else b"\0\0\0\0")
    assert value == bytes(6)
