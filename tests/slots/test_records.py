"""Tests that written records can be read again, and that nothing else passes."""

from __future__ import annotations

import random
import zlib

import pytest

from flowshare.slots.errors import ForeignRecord, NewerFormat, SlotCorrupt
from flowshare.slots.records import (
    CHUNK_BYTES,
    KEY_BYTES_MAX,
    VERSION,
    Claim,
    HandOver,
    Part,
    RecordKind,
    Tick,
    checksum_of,
    decode,
    decode_entries,
    encode,
    encode_entries,
    parts,
)

RECORDS = (
    Claim(epoch=1, node_id=0, owner="", host="", port=0, time_ms=0),
    Claim(epoch=2**63 - 1, node_id=2**31 - 1, owner="ö" * 300, host="h" * 255, port=65535, time_ms=2**63 - 1),
    HandOver(epoch=3, serial=2**63 - 1, to="größe"),
    Tick(epoch=4, serial=1),
    Part(epoch=5, serial=9, body=b"", last=False),
    Part(epoch=5, serial=9, body=bytes(CHUNK_BYTES)),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record):
    key, value = encode(record)

    assert decode(key, value) == record
    assert checksum_of(value) == int.from_bytes(value[:4], "big")


def test_entries_come_back_as_they_were():
    entries = [(b"", b""), (b"k", None), (b"x" * KEY_BYTES_MAX, b"v" * 70_000), (b"k", b"\0"), (b"", None)]

    assert decode_entries(encode_entries(entries)) == entries
    assert decode_entries(encode_entries(entries[:2]) + encode_entries(entries[2:])) == entries


def test_a_key_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="65535 bytes"):
        encode_entries([(bytes(KEY_BYTES_MAX + 1), b"")])


def test_a_write_of_five_megabytes_is_cut_into_parts_below_what_a_broker_takes():
    entries = [(n.to_bytes(4, "big"), bytes(1000)) for n in range(5000)]
    body = encode_entries(entries)

    cut = parts(7, 40, body)

    assert [part.serial for part in cut] == list(range(40, 40 + len(cut)))
    assert [part.last for part in cut] == [False] * (len(cut) - 1) + [True]
    assert max(len(encode(part)[1]) for part in cut) < 600_000
    assert decode_entries(b"".join(part.body for part in cut)) == entries


def test_a_newer_format_is_refused_with_what_to_do():
    with pytest.raises(NewerFormat, match="start this worker with the release of the others"):
        decode(*sealed(RecordKind.CLAIM, b"", VERSION + 1))


def test_a_newer_format_without_its_checksum_is_somebody_elses():
    key, value = encode(RECORDS[0])

    with pytest.raises(ForeignRecord, match="checksum"):
        decode(bytes((key[0], VERSION + 1)), value)


def test_no_single_changed_byte_passes():
    source = random.Random(5)
    for record in RECORDS[:5]:
        key, value = encode(record)
        for at in range(len(key) + len(value)):
            damaged = bytearray(key + value)
            damaged[at] ^= source.randrange(1, 256)
            with pytest.raises(ForeignRecord):
                decode(bytes(damaged[: len(key)]), bytes(damaged[len(key) :]))


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"\5\1", None), (b"", bytes(30)), (b"\5\1\0", bytes(30)), (b"\5\1", b"x")]
)
def test_what_has_another_form_is_somebody_elses(key, value):
    with pytest.raises(ForeignRecord):
        decode(key, value)


def test_garbage_as_entries_gives_entries_or_is_refused():
    source = random.Random(6)
    for _ in range(300):
        body = source.randbytes(source.randrange(40))
        try:
            entries = decode_entries(body)
        except SlotCorrupt:
            continue
        assert encode_entries(entries) == body


def sealed(kind, body, version=VERSION):
    """A record of this kind with a right checksum."""
    key = bytes((kind, version))
    rest = encode(Tick(epoch=1, serial=1))[1][4:] + body
    return key, zlib.crc32(rest, zlib.crc32(key)).to_bytes(4, "big") + rest


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        (9, b"", "kind 9 is unknown"),
        (RecordKind.CLAIM, b"short", "a claim is cut short"),
        (RecordKind.HAND_OVER, b"\0", "cannot be read"),
        (RecordKind.HAND_OVER, b"\0\5ab", "a text is cut short"),
        (RecordKind.HAND_OVER, b"\0\1\xff", "cannot be read"),
        (RecordKind.HAND_OVER, b"\0\1a?", "bytes left over"),
    ],
)
def test_a_body_of_another_form_under_a_right_checksum_is_somebody_elses(kind, body, says):
    with pytest.raises(ForeignRecord, match=says):
        decode(*sealed(kind, body))


def test_a_small_write_is_one_part():
    assert parts(7, 40, b"small") == [Part(epoch=7, serial=40, body=b"small")]
