"""One bad record in a batch: those around it are read, and it is told of at its place."""

from __future__ import annotations

import random

import pytest

from flowshare.protocol import each_record as module
from flowshare.protocol import thinning
from flowshare.protocol.decoding import (
    PADDING,
    RawReader,
    decode,
    decode_all,
    decode_raw,
    plain,
    read_plain,
    with_unreadable,
)
from flowshare.protocol.each_record import UNREADABLE_MAX, Unreadable, UnreadableRecord, each_record
from flowshare.protocol.headers import HEADER_BYTES, DecodeError, frames
from flowshare.protocol.lazy_records import lazy_records
from flowshare.protocol.thinning import OpenedBatch
from flowshare.share.types import AcquiredRange
from tests.batches import raw_batch, raw_record, zigzag
from tests.sim.seeds import drawn

NAME = b"na\xefve"
READ = "na\N{REPLACEMENT CHARACTER}ve"


def records(count):
    return [raw_record(index, b"%d" % index) for index in range(count)]


def opened(batch):
    header = next(frames(batch))
    return plain(batch + PADDING, header), header


def read(batch, first=0, last=9):
    found = decode(batch, [AcquiredRange(first, last, 1)])
    bad = [(one[0], one[1]) for one in found.corrupt]
    assert found.missing == []
    return [record.offset for record in found.records], bad, found.gaps


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
def test_a_headers_name_that_is_no_utf_8_is_read_with_replacement_characters(compression):
    rows = records(10)
    rows[4] = raw_record(4, b"4", key=b"k", headers=[(NAME, b"\xff"), (b"good", None)])
    batch = raw_batch(rows, compression=compression)

    found = decode(batch, [AcquiredRange(0, 9, 3)])

    assert [record.value for record in found.records] == [b"%d" % index for index in range(10)]
    assert found.records[4] == (4, 1_000, b"k", b"4", ((READ, b"\xff"), ("good", None)), 3)
    assert found.records[3] == (3, 1_000, None, b"3", (), 3)
    assert decode_all(batch)[4].headers == ((READ, b"\xff"), ("good", None))
    assert [record.offset for record in lazy_records(batch, [AcquiredRange(0, 9, 1)]).read()] == list(range(10))
    assert len(read_plain(*opened(batch))) == 10


def test_steps_go_on_behind_a_name_that_is_no_utf_8():
    rows = records(10)
    rows[4] = raw_record(4, headers=[(NAME, b"")])
    reader = RawReader(*opened(raw_batch(rows)))

    steps = [[record.offset for record in reader.take(3)] for _ in range(4)]

    assert steps == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert reader.take(3) == []


def test_what_was_read_before_a_name_that_is_no_utf_8_is_passed_over_and_not_read_again(monkeypatch):
    rows = [raw_record(index, bytes(index)) for index in range(300)]
    rows[-1] = raw_record(299, headers=[(NAME, b"")])
    reader, read_each = RawReader(*opened(raw_batch(rows))), []
    slowly = module._record
    monkeypatch.setattr(module, "_record", lambda *fields: read_each.append(1) or slowly(*fields))

    steps = [reader.take(7) for _ in range(43)]

    assert [record.offset for step in steps for record in step] == list(range(300))
    assert [len(record.value) for step in steps[:-1] for record in step] == list(range(294))
    assert steps[-1][-1].headers == [(READ, b"")]
    assert len(read_each) == 300 % 7


def test_lengths_of_any_size_are_passed_over():
    for size in (1, 63, 64, 8_191, 8_192, 1 << 20, 1 << 21):
        row = zigzag(size) + bytes(size)
        assert module._behind(memoryview(bytes(HEADER_BYTES) + row * 3), 3) == HEADER_BYTES + 3 * len(row)


def test_a_batch_with_a_name_that_is_no_utf_8_and_very_many_headers_is_not_opened(monkeypatch):
    monkeypatch.setattr(thinning, "STEP_RECORDS", 2)
    rows = [raw_record(index, headers=[(NAME, b"")] * 5) for index in range(10)]
    batch = raw_batch(rows)
    header = next(frames(batch))

    monkeypatch.setattr(thinning, "HEADERS_MAX", 10)
    assert len(OpenedBatch(batch, header).records) == 10

    monkeypatch.setattr(thinning, "HEADERS_MAX", 9)
    with pytest.raises(DecodeError, match="5 headers, and 4 more are read"):
        OpenedBatch(batch, header)
    assert len(decode_all(batch)) == 10


BAD = {
    "a header without a name": lambda: raw_record(4, headers=[(None, b"v")]),
    "a key that is longer than the record": lambda: zigzag(7) + b"\0" + zigzag(0) + zigzag(4) + zigzag(99) + b"ab",
    "a number without an end": lambda: zigzag(14) + b"\0" + b"\xff" * 13,
    "too many headers": lambda: zigzag(6) + b"\0" + zigzag(0) + zigzag(4) + zigzag(-1) * 2 + zigzag(60),
    "fewer than no headers": lambda: zigzag(6) + b"\0" + zigzag(0) + zigzag(4) + zigzag(-1) * 2 + zigzag(-1),
    "bytes behind its headers": lambda: zigzag(8) + b"\0" + zigzag(0) + zigzag(4) + zigzag(-1) * 2 + zigzag(0) + b"xx",
    "the offset of another one": lambda: raw_record(7),
    "no field at all": lambda: zigzag(1) + b"\0",
}


@pytest.mark.parametrize("bad", list(BAD))
@pytest.mark.parametrize("at", [0, 4, 9])
def test_one_bad_record_costs_none_of_its_neighbours(bad, at):
    rows = records(10)
    rows[at] = BAD[bad]() if at == 4 or bad != "the offset of another one" else raw_record(5)
    batch = raw_batch(rows)

    assert read(batch) == ([offset for offset in range(10) if offset != at], [(at, at)], [])
    with pytest.raises(DecodeError):
        decode_all(batch)
    damaged = []
    assert len(decode_all(batch, damaged=damaged)) == 9
    assert [(one.first, one.last) for one in damaged] == [(at, at)]
    with pytest.raises(DecodeError):
        read_plain(*opened(batch))
    if bad != "the offset of another one":  # whoever takes records looks at that
        with pytest.raises(DecodeError):
            RawReader(*opened(batch)).take(10)


def test_behind_a_length_that_cannot_be_all_is_unreadable():
    rows = records(10)
    rows[4] = zigzag(5_000) + rows[4][1:]

    assert read(raw_batch(rows)) == ([0, 1, 2, 3], [(4, 4), (5, 9)], [])


@pytest.mark.parametrize(("count", "bad"), [(9, [(9, 9)]), (1, [(1, 9)])])
def test_what_is_behind_the_records_that_a_batch_says_is_unreadable(count, bad):
    assert read(raw_batch(records(10), count=count))[0::1] == (list(range(count)), bad, [])


def test_records_that_a_batch_says_and_has_not_are_unreadable():
    assert read(raw_batch(records(8), count=10, last_delta=9)) == (list(range(8)), [(8, 8), (9, 9)], [])


def test_in_a_compacted_batch_all_between_two_good_records_is_unreadable():
    rows = [raw_record(1), raw_record(3, headers=[(None, None)]), raw_record(6)]

    assert read(raw_batch(rows, last_delta=9)) == ([1, 6], [(2, 5)], [(0, 0), (7, 9)])


def test_only_what_was_acquired_is_told_of():
    rows = records(10)
    rows[2] = rows[7] = raw_record(2, headers=[(None, None)])

    assert read(raw_batch(rows), 3, 8) == ([3, 4, 5, 6, 8], [(7, 7)], [])


def test_records_that_are_read_later_are_refused_whole_for_a_closer_look():
    rows = records(10)
    rows[2] = raw_record(2, headers=[(None, None)])
    lazy = lazy_records(raw_batch(rows), [AcquiredRange(0, 9, 1)])

    with pytest.raises(DecodeError):
        lazy.read()
    assert lazy.first == 0


def test_something_stands_at_each_offset_of_what_cannot_be_read():
    rows = records(4)
    rows[2] = raw_record(2, headers=[(None, None)])
    found = decode_raw(raw_batch(rows), [AcquiredRange(0, 3, 1)])

    stands = with_unreadable(found.records, [Unreadable(*one) for one in found.corrupt])

    assert [record.offset for record in stands] == [0, 1, 2, 3]
    assert isinstance(stands[2], UnreadableRecord)
    assert (stands[2].key, stands[2].value, stands[2].reason) == (None, None, "a header of a record has no name")
    assert Unreadable(0, UNREADABLE_MAX, "a lie").records == []


def test_each_offset_of_a_full_batch_is_a_record_or_told_of_whatever_its_bytes_are():
    random_source, good = random.Random(drawn()), raw_batch(records(20))
    for _ in range(50):
        batch = bytearray(good)
        for _ in range(random_source.randint(1, 4)):
            batch[random_source.randrange(61, len(batch))] = random_source.randrange(256)
        view = memoryview(bytes(batch))
        found = list(each_record(view, next(frames(bytes(batch)))))
        covered = []
        for one in found:
            covered += range(one.first, one.last + 1) if isinstance(one, Unreadable) else [one.offset]
        assert covered == list(range(20))
