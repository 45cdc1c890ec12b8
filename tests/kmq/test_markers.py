"""The bytes of KMQ, as its own 0.2 and its newest source write them (dumped from a broker)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowshare.kmq.markers import (
    END,
    Marker,
    OddMarker,
    decode,
    decode_count,
    encode_count,
    encode_key,
    encode_start,
)

KEY = bytes.fromhex("000000010000000000000003")
DUMPED = [
    (KEY, "010000000000000bb8", Marker(1, 3, 3_000)),
    (KEY, "0100000000000007d0", Marker(1, 3, 2_000)),
    (KEY, "00", Marker(1, 3, None)),
]


@pytest.mark.parametrize(("key", "value", "marker"), DUMPED)
def test_a_dumped_marker_is_read(key, value, marker):
    assert decode(key, bytes.fromhex(value)) == marker


@pytest.mark.parametrize(("key", "value", "marker"), DUMPED)
def test_a_marker_is_written_as_it_was_dumped(key, value, marker):
    assert encode_key(marker.partition, marker.offset) == key
    assert (END if marker.after_ms is None else encode_start(marker.after_ms)).hex() == value


@pytest.mark.parametrize("value", [b"\x02", b"\xff and more"])
def test_any_first_byte_but_one_ends_as_in_kmqs_own_decoder(value):
    assert decode(KEY, value) == Marker(1, 3, None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, END),
        (b"", END),
        (KEY[:-1], END),
        (KEY + b"\0", END),
        (KEY, None),
        (KEY, b""),
        (KEY, b"\x01"),
        (KEY, b"\x01" + bytes(9)),
        (KEY, b"\x01" + b"\xff" * 8),
        (b"\xff" * 4 + bytes(8), END),
        (bytes(4) + b"\xff" * 8, END),
    ],
)
def test_what_kmqs_tracker_dies_of_is_an_odd_marker(key, value):
    with pytest.raises(OddMarker):
        decode(key, value)


@given(st.one_of(st.none(), st.binary(max_size=20)), st.one_of(st.none(), st.binary(max_size=12)))
def test_any_bytes_are_a_marker_or_an_odd_one(key, value):
    try:
        marker = decode(key, value)
    except OddMarker:
        return
    assert encode_key(marker.partition, marker.offset) == key


@pytest.mark.parametrize(
    ("count", "value"), [(1, "01"), (3, "03"), (127, "7f"), (128, "00000080"), (1_000_000, "000f4240")]
)
def test_the_count_is_a_byte_where_it_fits_else_four(count, value):
    assert encode_count(count).hex() == value
    assert decode_count(bytes.fromhex(value)) == count


@pytest.mark.parametrize("value", [None, b"", b"12", b"12345", b"\xff"])
def test_a_count_of_no_use_is_none(value):
    assert decode_count(value) == 0
