"""Record batch headers (Kafka's format v2): finds the batches in bytes and checks their checksums.

Only headers are parsed here, so a whole fetch costs microseconds; records are read in `decoding.py`. Bytes that cannot
be record batches raise `DecodeError`, nothing else. Source: Kafka's DefaultRecordBatch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

import google_crc32c

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LOG_OVERHEAD: Final = 12
"""Bytes of base offset and length, which the length field does not count."""
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
"""The position from which the CRC covers all bytes; base offset and leader epoch before it may change."""
OFFSET_MAX: Final = 2**63 - 1

CODEC_MASK: Final = 0x07
APPEND_TIME_MASK: Final = 0x08
TRANSACTIONAL_MASK: Final = 0x10
CONTROL_MASK: Final = 0x20
HORIZON_MASK: Final = 0x40
"""The bit of batches with a delete horizon: tombstones and markers may be removed at the time in the field of the first
timestamp (KIP-534)."""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class DecodeError(Exception):
    """The bytes are not what they should be: truncated, damaged, or of another format."""


class BatchHeader(NamedTuple):
    """The header fields of a batch. position, size: where the batch lies in the bytes, header included."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    attributes: int
    crc: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def codec(self) -> str:
        """The name of the compression. Raises: DecodeError (the number is unknown)."""
        number = self.attributes & CODEC_MASK
        if number >= len(CODECS):
            raise DecodeError(f"compression {number} of the batch at offset {self.base_offset} is unknown")
        return CODECS[number]

    @property
    def is_control(self) -> bool:
        """True if the batch holds transaction markers instead of records."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def is_transactional(self) -> bool:
        """True if the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_append_time(self) -> bool:
        """True if all records of the batch carry the time of the append (`max_timestamp`)."""
        return bool(self.attributes & APPEND_TIME_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time when tombstones and markers may be removed, in ms since 1970; None: no compaction has set it."""
        return self.first_timestamp if self.attributes & HORIZON_MASK else None


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C of the bytes, by the processor's own instruction: 40 µs a megabyte."""
    return cast("int", google_crc32c.value(data if isinstance(data, bytes) else bytes(data)))  # pyright: ignore[reportUnknownMemberType]


def frames(records: bytes, *, partial_tail: bool = False) -> Iterator[BatchHeader]:
    """Yield headers in order, checked only so far that each batch lies inside the bytes.

    partial_tail: leave out a batch that is cut off at the end (Kafka's fetch answers may end so), instead of refusing
    it.
    Raises: DecodeError
    """
    position, end = 0, len(records)
    while position < end:
        if end - position < HEADER_BYTES:
            if partial_tail:
                return
            raise DecodeError(f"{end - position} bytes at {position} are too few for a record batch")
        header = _header(records, position)
        if header.size > end - position:
            if partial_tail:
                return
            raise DecodeError(f"the batch at byte {position} says {header.size} bytes, {end - position} are left")
        yield header
        position += header.size


def _header(records: bytes, position: int) -> BatchHeader:
    base, length, _, magic, crc, attributes, delta, first_ts, max_ts, pid, pepoch, sequence, count = HEADER.unpack_from(
        records, position
    )
    if magic != 2:
        raise DecodeError(f"the bytes at {position} are not a record batch of format 2 (magic {magic})")
    if length < HEADER_BYTES - LOG_OVERHEAD:
        raise DecodeError(f"the batch at byte {position} says a length of {length}")
    return BatchHeader(
        position,
        LOG_OVERHEAD + length,
        base,
        base + delta,
        attributes,
        crc,
        first_ts,
        max_ts,
        pid,
        pepoch,
        sequence,
        count,
    )


def batch_headers(records: bytes) -> tuple[BatchHeader, ...]:
    """Return the headers of all batches; offsets and counts are checked, CRCs are not.

    Raises: DecodeError
    """
    headers = tuple(frames(records))
    for header in headers:
        check_header(header)
    return headers


def check_header(header: BatchHeader) -> None:
    """Check that offsets and count fit together. Raises: DecodeError."""
    if header.base_offset < 0 or header.last_offset < header.base_offset or header.last_offset >= OFFSET_MAX:
        raise DecodeError(f"the batch at byte {header.position} says offsets {header.base_offset}-{header.last_offset}")
    if not 0 <= header.record_count <= header.last_offset - header.base_offset + 1:
        raise DecodeError(f"the batch at offset {header.base_offset} says {header.record_count} records")


def check_crc(records: bytes, header: BatchHeader) -> None:
    """Check the checksum of one batch. Raises: DecodeError."""
    if crc32c(records[header.position + ATTRIBUTES_AT : header.position + header.size]) != header.crc:
        raise DecodeError(f"checksum of the batch at offset {header.base_offset} does not match its bytes")
