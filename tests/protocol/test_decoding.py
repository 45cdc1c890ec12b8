"""Answers that are read in steps: what is too much at once is for later, a large batch is kept in part."""

from __future__ import annotations

import pytest

from flowshare import core_errors
from flowshare.protocol import decoding
from flowshare.protocol.batches import batch_headers
from flowshare.protocol.decoding import (
    PADDING,
    LastBatch,
    RawReader,
    decode,
    decode_all,
    decode_raw,
    decode_within,
    load_reader,
    plain,
    with_unreadable,
)
from flowshare.protocol.each_record import Unreadable
from flowshare.protocol.errors import ErrorCode, error_code
from flowshare.protocol.headers import DecodeError, frames
from flowshare.share.types import AcquiredRange
from tests.batches import place
from tests.protocol.test_batches import build, patch, values

ALL = [AcquiredRange(0, 99, 1)]


def log(*sizes, compression="none"):
    found, offset = b"", 0
    for size in sizes:
        found += place(build(values(size), compression=compression), offset)
        offset += size
    return found


def offsets(decoded):
    return [record.offset for record in decoded.records]


def test_what_would_be_too_much_at_once_is_for_later():
    records = log(3, 3, 3)

    found = decode_raw(records, [AcquiredRange(0, 4, 1), AcquiredRange(5, 8, 2)], bytes_max=1)

    assert offsets(found) == [0, 1, 2]
    assert found.later == [AcquiredRange(3, 4, 1), AcquiredRange(5, 8, 2)]
    assert (found.gaps, found.corrupt, found.missing) == ([], [], [])


def test_where_memory_ends_behind_the_first_batch_the_rest_is_for_later(monkeypatch):
    def short(padded, header, size_max, wanted):
        if header.base_offset:
            raise MemoryError
        return read(padded, header, size_max, wanted)

    read = decoding._read_batch
    monkeypatch.setattr(decoding, "_read_batch", short)

    found = decode(log(3, 3), ALL)

    assert offsets(found) == [0, 1, 2]
    assert found.missing == [(3, 99)]


def test_where_there_is_no_memory_for_the_first_batch_the_caller_hears_of_it(monkeypatch):
    def short(*_):
        raise MemoryError

    monkeypatch.setattr(decoding, "_read_batch", short)

    with pytest.raises(MemoryError):
        decode(log(3), ALL)


def test_of_a_batch_of_very_many_records_only_those_that_were_asked_for_are_kept(monkeypatch):
    load_reader()
    monkeypatch.setattr(decoding, "WHOLE_RECORDS_MAX", 10)
    monkeypatch.setattr(decoding, "AT_ONCE_RECORDS", 8)

    found = decode_raw(log(30), [AcquiredRange(7, 9, 1), AcquiredRange(20, 21, 1)])

    assert offsets(found) == [7, 8, 9, 20, 21]
    assert found.gaps == []


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_who_looks_at_a_part_of_a_log_gets_it_and_reads_no_further(monkeypatch, at_once):
    monkeypatch.setattr(decoding, "AT_ONCE_RECORDS", at_once)
    records = log(3, 10, 3)

    assert [one.offset for one in decode_within(records, 2, 4)] == [2, 3, 4]
    assert [one.offset for one in decode_within(records, 2, limit=5)] == [2, 3, 4, 5, 6]
    assert decode_within(records, 0) == decode_all(records)
    assert decode_within(records, 16) == []


def test_who_looks_at_a_part_of_a_log_with_damage_gets_what_can_be_read_and_hears_of_the_rest():
    records, damaged = log(3) + place(displaced(6, 9), 3), []

    with pytest.raises(DecodeError):
        decode_within(records, 1, 6)
    found = decode_within(records, 1, 6, damaged=damaged)

    assert [one.offset for one in found] == [1, 2, 4, 5, 6]
    assert [(one.first, one.last) for one in damaged] == [(3, 3)]


def test_who_looks_at_a_part_of_a_log_hears_of_a_batch_that_cannot_be_opened():
    whole = log(2, compression="gzip")
    damaged = []

    with pytest.raises(DecodeError):
        decode_within(broken(whole), 0)
    assert decode_within(broken(whole), 0, damaged=damaged) == []
    assert [(one.first, one.last) for one in damaged] == [(0, 1)]

    with pytest.raises(DecodeError):
        decode_all(broken(whole))
    damaged.clear()
    assert decode_all(broken(whole), damaged=damaged) == []
    assert [(one.first, one.last) for one in damaged] == [(0, 1)]


def test_an_unreadable_offset_has_a_record_that_stands_for_it_at_its_place():
    good = decode_raw(log(4), [AcquiredRange(0, 0, 1), AcquiredRange(3, 3, 1)]).records

    found = with_unreadable(good, [Unreadable(1, 2, "torn")])

    assert [(one.offset, getattr(one, "reason", None)) for one in found] == [
        (0, None),
        (1, "torn"),
        (2, "torn"),
        (3, None),
    ]
    assert with_unreadable(good, []) is good


def broken(batch):
    """A compressed batch whose content does not open, with a right checksum."""
    return patch(batch, 70, ">i", -1)


def displaced(count, to):
    """A batch whose first record says that it is at offset `to`."""
    changed = bytearray(log(count))
    changed[64] = 2 * to  # behind its length, attributes and time, as a zigzag
    return patch(bytes(changed), 57, ">i", count)


@pytest.mark.parametrize("to", [1, 9])
@pytest.mark.parametrize("whole", [2, 100])
def test_a_record_with_an_offset_that_is_not_its_place_is_corrupt_and_no_other_one(monkeypatch, whole, to):
    monkeypatch.setattr(decoding, "WHOLE_RECORDS_MAX", whole)

    found = decode_raw(displaced(6, to), [AcquiredRange(0, 5, 1)])

    assert [(first, last) for first, last, _ in found.corrupt] == [(0, 0)]
    assert "which is not its place" in found.corrupt[0][2]
    assert offsets(found) == [1, 2, 3, 4, 5]


def test_a_batch_between_two_ranges_is_not_read_and_what_is_behind_them_neither(monkeypatch):
    seen = []

    def seeing(padded, header, size_max, wanted):
        seen.append(header.base_offset)
        return read(padded, header, size_max, wanted)

    read = decoding._read_batch
    monkeypatch.setattr(decoding, "_read_batch", seeing)

    found = decode_raw(log(3, 3, 3, 3), [AcquiredRange(0, 1, 1), AcquiredRange(6, 6, 1)])

    assert offsets(found) == [0, 1, 6]
    assert seen == [0, 6]


def test_the_last_batch_is_read_once_for_answers_that_bring_it_again():
    last, records = LastBatch(), log(3, 5)

    first = decode_raw(records, [AcquiredRange(0, 4, 1)], last=last)
    again = decode_raw(log(3, 5)[len(log(3)) :], [AcquiredRange(5, 7, 1)], last=last)

    assert offsets(first) == [0, 1, 2, 3, 4]
    assert offsets(again) == [5, 6, 7]
    assert again.records[0] is last._batch.records[2]


def test_another_batch_at_the_same_offset_is_read_anew():
    last = LastBatch()
    decode_raw(log(3), ALL, last=last)

    other = decode_raw(place(build(values(3, b"other")), 0) + place(build(values(1)), 3), ALL, last=last)

    assert [record.value for record in other.records] == [b"other0", b"other1", b"other2", b"v0"]


def test_records_are_taken_in_steps_until_there_are_no_more():
    batch = log(5)
    (header,) = batch_headers(batch)
    reader = RawReader(plain(batch + PADDING, header), header)

    assert [[record.offset for record in reader.take(2)] for _ in range(4)] == [[0, 1], [2, 3], [4], []]


def test_a_step_into_damaged_records_is_refused():
    batch = bytearray(log(2) + PADDING)
    batch[61] = 1  # the first record's length, as a zigzag: −1

    with pytest.raises(DecodeError):
        RawReader(memoryview(batch)[: -len(PADDING)], next(frames(bytes(batch)))).take(5)


def test_every_error_of_the_cores_has_its_number():
    assert error_code(core_errors.InvalidRecordState("x")) is ErrorCode.INVALID_RECORD_STATE
    assert error_code(core_errors.IllegalGeneration("x")) is ErrorCode.ILLEGAL_GENERATION
