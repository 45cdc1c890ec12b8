"""Record batches as they lie in a log."""

from __future__ import annotations

from collections.abc import Sequence

from flowshare.protocol.batches import check, rebase
from flowshare.protocol.codecs import compress
from flowshare.protocol.compact import varint
from flowshare.protocol.headers import ATTRIBUTES_AT, CODECS, CRC_AT, HEADER, HEADER_BYTES, LOG_OVERHEAD, crc32c, frames


def place(records: bytes, base_offset: int, *, now_ms: int | None = None) -> bytes:
    """Produced batches with consecutive offsets from `base_offset` on, checked. `now_ms`: stamped with this time."""
    return rebase(records, check(records), base_offset, now_ms=now_ms)


def zigzag(number: int) -> bytes:
    """A number as records have it."""
    return varint(((number << 1) ^ (number >> 63)) & 0xFFFF_FFFF_FFFF_FFFF)


def raw_record(
    delta: int,
    value: bytes | None = b"v",
    *,
    key: bytes | None = None,
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
) -> bytes:
    """A record's bytes with its length, whatever the names of its headers are."""

    def field(content: bytes | None) -> bytes:
        return zigzag(-1) if content is None else zigzag(len(content)) + content

    body = b"\0" + zigzag(0) + zigzag(delta) + field(key) + field(value) + zigzag(len(headers))
    body += b"".join(field(name) + field(content) for name, content in headers)
    return zigzag(len(body)) + body


def raw_batch(
    records: Sequence[bytes],
    base_offset: int = 0,
    *,
    count: int | None = None,
    last_delta: int | None = None,
    compression: str = "none",
    timestamp_ms: int = 1_000,
) -> bytes:
    """A batch with a right checksum, whatever its records are."""
    body = b"".join(records)
    if compression != "none":
        body = bytes(compress(compression, body))
    last = len(records) - 1 if last_delta is None else last_delta
    codec, length = CODECS.index(compression), HEADER_BYTES - LOG_OVERHEAD + len(body)
    many = len(records) if count is None else count
    batch = bytearray(
        HEADER.pack(base_offset, length, 0, 2, 0, codec, last, timestamp_ms, timestamp_ms, -1, -1, -1, many) + body
    )
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return bytes(batch)


SPOILED = ("spoiled", b"")
"""A header of records that `spoil` makes unreadable."""


def spoil(records: bytes) -> bytes:
    """Batches with right checksums, in which records with the header `SPOILED` say more bytes than they have."""
    spoiled = b""
    for header in frames(records):
        batch = bytearray(records[header.position : header.position + header.size])
        batch = batch.replace(b"\x0espoiled", zigzag(60) + b"spoiled")
        batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch[ATTRIBUTES_AT:]).to_bytes(4, "big")
        spoiled += batch
    return spoiled
