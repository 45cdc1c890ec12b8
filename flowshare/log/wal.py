"""A look at RocksDB's write-ahead log before RocksDB sees it.

RocksDB's own check leaves two holes (measured with 10.x): an unknown record type sends its recovery into an endless
loop, and a log that ends early in an older file is skipped over while a newer file is still applied. This reads the
log as it is written (32 KiB blocks; records of crc, length, type) and checks types, checksums and that sequence
numbers follow each other from file to file. An incomplete last record is what a crash leaves; it is allowed.

Format: RocksDB wiki, "Write Ahead Log File Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flowshare.log.base import StorageDamaged
from flowshare.protocol.headers import crc32c

BLOCK_BYTES: Final = 32 * 1024
HEADER_BYTES: Final = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
SEQUENCE_BYTES: Final = 12
_header = struct.Struct("<IHB")
_sequence = struct.Struct("<QI")


def check_wal(directory: Path) -> None:
    """Check all log files of a store, oldest first. Raises: StorageDamaged, OSError."""
    expected: int | None = None
    for path in sorted(directory.glob("*.log"), key=lambda file: int(file.stem)):
        for sequence, count in _batches(path):
            if expected is not None and sequence != expected:
                raise StorageDamaged(
                    f"{path}: the write-ahead log lacks writes {expected} to {sequence - 1}. Nothing was changed"
                )
            expected = sequence + count


def _batches(path: Path) -> Iterator[tuple[int, int]]:
    """First sequence number and number of entries of each write."""
    head = b""
    for kind, payload in _records(path):
        if kind in (FULL, FIRST):
            head = b""
        if len(head) < SEQUENCE_BYTES:
            head += payload[:SEQUENCE_BYTES]
        if kind in (FULL, LAST):
            if len(head) < SEQUENCE_BYTES:
                raise StorageDamaged(f"{path}: a write in the write-ahead log is too short. Nothing was changed")
            yield _sequence.unpack(head[:SEQUENCE_BYTES])


def _records(path: Path) -> Iterator[tuple[int, memoryview]]:
    log = memoryview(path.read_bytes())
    position, open_record = 0, False
    while len(log) - position >= HEADER_BYTES:
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < HEADER_BYTES:
            position += left
            continue
        crc, length, kind = _header.unpack_from(log, position)
        if kind == 0 and not any(log[position:]):
            return
        if not FULL <= kind <= LAST or open_record != (kind in (MIDDLE, LAST)) or HEADER_BYTES + length > left:
            raise _damaged(path, position, "a record's header makes no sense")
        body = log[position + HEADER_BYTES - 1 : position + HEADER_BYTES + length]
        if len(body) <= length:
            return
        if _mask(crc32c(body)) != crc:
            raise _damaged(path, position, "a record's checksum does not match")
        yield kind, body[1:]
        open_record = kind in (FIRST, MIDDLE)
        position += HEADER_BYTES + length


def _mask(crc: int) -> int:
    """Checksums that lie beside the data they cover are stored turned and shifted."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: Path, position: int, what: str) -> StorageDamaged:
    return StorageDamaged(f"{path}: the write-ahead log is damaged at byte {position}: {what}. Nothing was changed")
