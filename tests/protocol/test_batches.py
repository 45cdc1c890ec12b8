"""Record batches: building, placing, decoding, and what damaged bytes do."""

from __future__ import annotations

import contextlib
import struct

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.protocol.batches import (
    CODECS,
    BatchBuilder,
    DecodeError,
    batch_headers,
    check,
    decode,
    decode_all,
    rebase,
    renumber,
)
from flowshare.share.types import AcquiredRange
from tests.batches import place

NOW_MS = 1_700_000_000_000


def build(values, *, compression="none", timestamp_ms=NOW_MS) -> bytes:
    builder = BatchBuilder(compression=compression)
    for number, value in enumerate(values):
        assert builder.add(b"k%d" % number, value, (("h", b"%d" % number),), timestamp_ms=timestamp_ms + number)
    return builder.build()


def values(count: int, prefix: bytes = b"v") -> list[bytes]:
    return [prefix + b"%d" % number for number in range(count)]


def patch(records: bytes, at: int, format_: str, value: int, *, position: int = 0) -> bytes:
    """Change a header field and make the checksum right again."""
    changed = bytearray(records)
    struct.pack_into(format_, changed, position + at, value)
    (length,) = struct.unpack_from(">i", changed, position + 8)
    crc = calc_crc32c(bytes(changed[position + 21 : position + 12 + length]))
    struct.pack_into(">I", changed, position + 17, crc)
    return bytes(changed)


def log(*sizes: int, compression: str = "none") -> bytes:
    """Batches of these sizes, placed one behind the other."""
    return place(b"".join(build(values(size), compression=compression) for size in sizes), 0)


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_went_in(codec):
    builder = BatchBuilder(compression=codec)
    builder.add(b"k", b"v", (("a", b"1"), ("a", None)), timestamp_ms=5)
    builder.add(None, None, timestamp_ms=7)
    builder.add(b"", b"x" * 70_000, timestamp_ms=6)

    decoded = decode(place(builder.build(), 100), [AcquiredRange(100, 102, 3)])

    assert decoded.records == [
        (100, 5, b"k", b"v", (("a", b"1"), ("a", None)), 3),
        (101, 7, None, None, (), 3),
        (102, 6, b"", b"x" * 70_000, (), 3),
    ]
    assert (decoded.gaps, decoded.corrupt, decoded.missing) == ([], [], [])


@pytest.mark.parametrize("transactional", [False, True])
def test_a_finished_batch_gets_another_producers_numbers_and_keeps_its_records(transactional):
    before = build(values(3))
    after = renumber(before, (7, 2, 40), transactional=transactional)

    (header,) = batch_headers(after)
    check(after)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 40)
    assert header.is_transactional is transactional
    assert decode_all(after) == decode_all(before)


def test_placing_sets_consecutive_offsets_and_keeps_the_checksum():
    placed = place(build(values(3)) + build(values(2)), 1000)

    headers = batch_headers(placed)
    assert [(header.base_offset, header.last_offset) for header in headers] == [(1000, 1002), (1003, 1004)]
    assert [record.offset for record in decode_all(placed)] == [1000, 1001, 1002, 1003, 1004]


def test_append_time_replaces_all_timestamps():
    placed = place(build(values(3)), 0, now_ms=42)

    assert batch_headers(placed)[0].is_append_time
    assert {record.timestamp_ms for record in decode_all(placed)} == {42}


def test_only_acquired_offsets_are_decoded_each_with_its_count():
    decoded = decode(log(5, 5), [AcquiredRange(7, 8, 2), AcquiredRange(3, 5, 1)])

    assert [(record.offset, record.delivery_count) for record in decoded.records] == [
        (3, 1),
        (4, 1),
        (5, 1),
        (7, 2),
        (8, 2),
    ]


def test_acquired_offsets_between_batches_are_gaps():
    first, second = place(build(values(3)), 10), place(build(values(3)), 20)

    decoded = decode(first + second, [AcquiredRange(8, 21, 1)])

    assert [record.offset for record in decoded.records] == [10, 11, 12, 20, 21]
    assert decoded.gaps == [(8, 9), (13, 19)]


def test_offsets_that_compaction_took_out_of_a_batch_are_gaps():
    sparse = patch(place(build(values(3)), 10), 23, ">i", 9)

    decoded = decode(sparse, [AcquiredRange(10, 19, 1)])

    assert [record.offset for record in decoded.records] == [10, 11, 12]
    assert decoded.gaps == [(13, 19)]


def test_control_batches_are_gaps():
    records = log(3, 1, 3)
    control = batch_headers(records)[1]
    records = patch(records, 21, ">h", 0x20, position=control.position)

    decoded = decode(records, [AcquiredRange(0, 6, 1)])

    assert [record.offset for record in decoded.records] == [0, 1, 2, 4, 5, 6]
    assert decoded.gaps == [(3, 3)]


def test_acquired_offsets_behind_the_last_whole_batch_are_missing():
    records = log(3, 3)

    cut = decode(records[:-1], [AcquiredRange(0, 5, 1)])
    beyond = decode(records, [AcquiredRange(4, 9, 1), AcquiredRange(12, 13, 2)])

    assert ([record.offset for record in cut.records], cut.missing) == ([0, 1, 2], [(3, 5)])
    assert ([record.offset for record in beyond.records], beyond.missing) == ([4, 5], [(6, 9), (12, 13)])
    assert decode(b"", [AcquiredRange(4, 9, 1)]).missing == [(4, 9)]


def test_a_damaged_batch_is_reported_and_the_others_are_read():
    records = bytearray(log(3, 3, 3))
    middle = batch_headers(bytes(records))[1]
    records[middle.position + 70] ^= 1

    decoded = decode(bytes(records), [AcquiredRange(1, 4, 1), AcquiredRange(5, 8, 2)])

    assert [record.offset for record in decoded.records] == [1, 2, 6, 7, 8]
    assert [(first, last) for first, last, _ in decoded.corrupt] == [(3, 4), (5, 5)]
    assert "checksum" in decoded.corrupt[0][2]


def test_a_damaged_last_offset_claims_nothing_of_the_next_batch():
    records = bytearray(log(3, 3))
    records[26] = 200

    decoded = decode(bytes(records), [AcquiredRange(0, 5, 1)])

    assert [(first, last) for first, last, _ in decoded.corrupt] == [(0, 2)]
    assert [record.offset for record in decoded.records] == [3, 4, 5]


def test_batches_out_of_order_are_refused():
    one, two = place(build(values(3)), 10), place(build(values(3)), 20)
    with pytest.raises(DecodeError, match="comes after"):
        decode(two + one, [AcquiredRange(10, 22, 1)])


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_grows_beyond_the_limit_is_corrupt(codec):
    records = place(build([b"\0" * 300_000], compression=codec), 0)

    decoded = decode(records, [AcquiredRange(0, 0, 1)], size_max=100_000)

    assert [(first, last) for first, last, _ in decoded.corrupt] == [(0, 0)]
    assert decode(records, [AcquiredRange(0, 0, 1)]).records[0].value == b"\0" * 300_000


@pytest.mark.parametrize(
    ("at", "format_", "value", "what"),
    [
        (16, ">b", 1, "magic 1"),
        (8, ">i", 10, "length"),
        (57, ">i", 4, "4 records"),
        (57, ">i", 2, "another number of offsets"),
        (21, ">h", 0x20, "control"),
        (21, ">h", 0x07, "compression 7"),
        (23, ">i", -1, "offsets"),
    ],
)
def test_produced_batches_with_contradicting_headers_are_refused(at, format_, value, what):
    records = build(values(3))
    changed = patch(records, at, format_, value) if at != 8 else records[:8] + struct.pack(">i", value) + records[12:]
    with pytest.raises(DecodeError, match=what):
        place(changed, 0)


def test_no_batch_at_all_is_refused_at_produce():
    with pytest.raises(DecodeError, match="no record batch"):
        check(b"")


def test_plain_and_xerial_snappy_are_read():
    import cramjam

    plain = place(build(values(50)), 0)
    body = bytes(cramjam.snappy.compress_raw(plain[61:]))
    records = bytearray(plain[:61] + body)
    struct.pack_into(">i", records, 8, len(records) - 12)
    records = patch(bytes(records), 21, ">h", 2)

    assert [record.value for record in decode_all(records)] == values(50)


def test_a_full_builder_takes_no_more_and_stays_usable():
    builder = BatchBuilder(size_max=300)
    added = [builder.add(None, b"x" * 100, timestamp_ms=1) for _ in range(5)]

    assert added == [True, True, False, False, False]
    assert builder.count == 2
    assert builder.size == len(builder.build())


def test_the_first_record_fits_whatever_its_size():
    builder = BatchBuilder(size_max=100)
    assert builder.add(None, b"x" * 1000, timestamp_ms=1)
    assert not builder.add(None, b"", timestamp_ms=1)


def test_an_unknown_compression_is_refused():
    with pytest.raises(ValueError, match="lzma"):
        BatchBuilder(compression="lzma")


GOLDEN = {codec: log(3, 2, compression=codec) for codec in CODECS}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), codec=st.sampled_from(CODECS))
def test_changed_bytes_never_raise_anything_else(data, codec):
    records = bytearray(GOLDEN[codec])
    for _ in range(data.draw(st.integers(1, 4))):
        records[data.draw(st.integers(0, len(records) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        (length,) = struct.unpack_from(">i", records, 8)
        if 49 <= length <= len(records) - 12:
            struct.pack_into(">I", records, 17, calc_crc32c(bytes(records[21 : 12 + length])))
    mutated = bytes(records[: data.draw(st.integers(0, len(records)))])

    survive(mutated)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=200), codec=st.integers(0, 7), count=st.integers(0, 5))
def test_any_body_under_a_right_checksum_never_raises_anything_else(body, codec, count):
    records = bytearray(build(values(3))[:61] + body)
    struct.pack_into(">i", records, 8, len(records) - 12)
    struct.pack_into(">h", records, 21, codec)
    struct.pack_into(">i", records, 23, max(count - 1, 0))

    survive(patch(bytes(records), 57, ">i", count))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_never_raise_anything_else(records):
    survive(records)


def survive(records: bytes) -> None:
    acquired = [AcquiredRange(0, 2, 1), AcquiredRange(4, 7, 2)]
    for read in (batch_headers, check, lambda r: decode_all(r, size_max=1 << 20), lambda r: place(r, 7)):
        with contextlib.suppress(DecodeError):
            read(records)
    try:
        decoded = decode(records, acquired, size_max=1 << 20)
    except DecodeError:
        return
    seen = [record.offset for record in decoded.records]
    for first, last, *_ in (*decoded.gaps, *decoded.corrupt, *decoded.missing):
        seen += range(first, last + 1)
    assert sorted(seen) == [0, 1, 2, 4, 5, 6, 7]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    holes=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    ranges=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=6),
)
@settings(max_examples=200, deadline=None)
def test_every_acquired_offset_ends_in_exactly_one_place(sizes, holes, ranges):
    records, offset, present = b"", 0, set()
    for size, hole in zip(sizes, holes, strict=False):
        offset += hole
        records += place(build(values(size)), offset)
        present |= set(range(offset, offset + size))
        offset += size
    acquired, position = [], 0
    for count, (skip, length) in enumerate(ranges):
        acquired.append(AcquiredRange(position + skip, position + skip + length - 1, count + 1))
        position += skip + length
    wanted = {o: r.delivery_count for r in acquired for o in range(r.first, r.last + 1)}

    decoded = decode(records, acquired)

    assert [(r.offset, r.delivery_count) for r in decoded.records] == [
        (o, c) for o, c in sorted(wanted.items()) if o in present
    ]
    assert {o for f, last in decoded.gaps for o in range(f, last + 1)} == {
        o for o in wanted if o not in present and o < offset
    }
    assert {o for f, last in decoded.missing for o in range(f, last + 1)} == {o for o in wanted if o >= offset}
    assert decoded.corrupt == []


# --- at the edges ---------------------------------------------------------------------------------------------------


def test_values_alone_go_in_until_the_batch_is_full():
    builder = BatchBuilder(size_max=400)
    many = [b"v%d" % number * 20 for number in range(30)]

    taken = builder.add_values(many, 0, timestamp_ms=NOW_MS)
    rest = BatchBuilder()
    left = rest.add_values(many, taken, timestamp_ms=NOW_MS)

    assert 0 < taken < 30 == taken + left
    assert builder.count == taken
    found = [*decode_all(builder.build()), *decode_all(rest.build())]
    assert [(record.key, record.value) for record in found] == [(None, value) for value in many]


def test_a_batch_without_records_is_not_built():
    with pytest.raises(ValueError, match="at least one record"):
        BatchBuilder().build()


def test_a_producers_own_newest_time_is_set_right_when_the_log_says_another():
    records = build(values(2))
    (header,) = batch_headers(records)

    placed = rebase(records, [header._replace(max_timestamp=NOW_MS + 99)], 40)

    (found,) = batch_headers(placed)
    assert (found.base_offset, found.max_timestamp) == (40, NOW_MS + 99)
    assert [record.offset for record in decode_all(placed)] == [40, 41]


def test_without_checksums_the_headers_are_looked_at_alone():
    damaged = bytearray(build(values(2)))
    damaged[-1] ^= 1

    assert len(check(bytes(damaged), checksums=False)) == 1
    with pytest.raises(DecodeError):
        check(bytes(damaged))


@pytest.mark.parametrize("tail", [b"\0\0", b"\0\0\0\0", b"\0\0\0\5ab"])
def test_a_xerial_block_that_lies_about_its_length_is_corrupt(tail):
    from flowshare.protocol.codecs import XERIAL

    plain = build(values(3))
    body = XERIAL + struct.pack(">ii", 1, 1) + tail
    records = bytearray(plain[:61] + body)
    struct.pack_into(">i", records, 8, len(records) - 12)
    struct.pack_into(">h", records, 21, 2)

    found = decode(patch(bytes(records), 57, ">i", 3), [AcquiredRange(0, 2, 1)])

    assert [(first, last) for first, last, _ in found.corrupt] == [(0, 2)]
    assert "snappy: a block" in found.corrupt[0][2]
