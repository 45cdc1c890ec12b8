"""Records whose reading is put off: only where the headers leave nothing to find out, and then as if read at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import decode_raw
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.lazy_records import lazy_records
from flowshare.share.types import AcquiredRange
from tests.batches import place


def batch(first: int, count: int) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.add(b"k", b"%d" % (first + number), (("h", b"1"),), timestamp_ms=1)
    return place(builder.build(), first)


def batches(first: int, sizes: list[int]) -> bytes:
    made = []
    for size in sizes:
        made.append(batch(first, size))
        first += size
    return b"".join(made)


@given(
    first=st.integers(0, 2**40),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    cuts=st.sets(st.integers(1, 19)),
    count=st.integers(1, 5),
)
def test_what_is_read_later_is_what_would_have_been_read_at_once(first, sizes, cuts, count):
    records, last = batches(first, sizes), first + sum(sizes) - 1
    starts = [first, *sorted(first + cut for cut in cuts if first + cut <= last)]
    acquired = [AcquiredRange(a, b - 1, count) for a, b in zip(starts, [*starts[1:], last + 1], strict=True)]

    lazy = lazy_records(records, acquired)

    assert lazy is not None
    assert (lazy.first, lazy.last, lazy.delivery_count) == (first, last, count)
    assert lazy.batch_records == max(sizes)
    now = decode_raw(records, acquired)
    fields = [(raw.offset, raw.timestamp, raw.key, raw.value, list(raw.headers)) for raw in lazy.read()]
    assert fields == [(raw.offset, raw.timestamp, raw.key, raw.value, list(raw.headers)) for raw in now.records]
    assert (now.gaps, now.corrupt, now.missing) == ([], [], [])


@pytest.mark.parametrize(
    ("records", "acquired"),
    [
        (batches(0, [5]), [(0, 3, 1)]),
        (batches(0, [5]), [(1, 4, 1)]),
        (batches(0, [5]), [(0, 1, 1), (3, 4, 1)]),
        (batches(0, [5]), [(0, 1, 1), (2, 4, 2)]),
        (batches(0, [5]), [(0, 6, 1)]),
        (batch(0, 2) + batch(3, 2), [(0, 4, 1)]),
        (batches(0, [5, 5])[:-1], [(0, 9, 1)]),
        (b"", [(0, 9, 1)]),
        (batches(0, [5]), []),
    ],
    ids=["a part", "not from the first", "a hole", "two counts", "more", "a gap", "torn", "nothing sent", "nothing"],
)
def test_where_something_is_to_be_found_out_nothing_is_put_off(records, acquired):
    assert lazy_records(records, [AcquiredRange(*run) for run in acquired]) is None


def test_damage_is_found_when_the_records_are_read():
    damaged = bytearray(batches(0, [3]))
    damaged[-1] ^= 1

    lazy = lazy_records(bytes(damaged), [AcquiredRange(0, 2, 1)])

    assert lazy is not None
    with pytest.raises(DecodeError, match="checksum"):
        lazy.read()


def test_what_is_no_batch_at_all_is_refused_at_once():
    with pytest.raises(DecodeError):
        lazy_records(b"\0" * 200, [AcquiredRange(0, 2, 1)])
