"""Records of a slot's log: their layout as key and value of Kafka records.

    key      kind (1 byte), format version (1 byte)
    value    CRC-32 of the key and all that follows; epoch of the claim (8 bytes); serial (8 bytes); the kind's own

A claim's serial is 0. The owner's records after it count from 1 on, so that a reader sees at once which records are
there twice and which are missing (`replay.py`). A write is a list of entries: key and value, or a deletion. A write
longer than `CHUNK_BYTES` is cut into parts. The last part has its own kind; without the last part no part of the write
counts.

A format newer than this release knows is refused (`NewerFormat`), because guessing would serve wrong state. In every
format a key has two bytes and a value begins with the checksum, so that records of a newer flowshare can be told from
records of other programs. A record of another program (`ForeignRecord`) is no part of a slot: it uses no serial.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from flowshare.slots.errors import ForeignRecord, NewerFormat, SlotCorrupt

VERSION: Final = 1
CHUNK_BYTES: Final = 512 * 1024
"""Longest part of a write: far below what a broker takes in one batch (message.max.bytes, 1 MiB)."""
WRITE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longest write; readers keep its parts in memory until the last one."""
KEY_BYTES_MAX: Final = 0xFFFF
_HEAD: Final = struct.Struct(">Iqq")
_CHECKSUM: Final = struct.Struct(">I")
_CLAIM: Final = struct.Struct(">iiq")
_ENTRY: Final = struct.Struct(">HI")
"""Length of an entry's key; length of its value and 1, or 0 for a deletion."""
_TEXT: Final = struct.Struct(">H")

Entry = tuple[bytes, bytes | None]
"""State key and its value; None deletes it."""


class RecordKind(IntEnum):
    """First byte of a record's key."""

    CLAIM = 1
    HAND_OVER = 2
    TICK = 3
    PART = 4
    LAST_PART = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A record that makes the slot this owner's from here on, unless its epoch is not above the claim's before.

    owner: names one life of one process. host, port: its address for clients. time_ms: its clock.
    """

    epoch: int
    node_id: int
    owner: str
    host: str
    port: int
    time_ms: int

    @property
    def serial(self) -> int:
        """Serial 0: a claim begins the count."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """A record by which the owner stops writing and gives the slot to another one."""

    epoch: int
    serial: int
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A record that only shows that the owner still owns the slot at this place of the log."""

    epoch: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a write's encoded entries; `last`: the write is whole with it."""

    epoch: int
    serial: int
    body: bytes
    last: bool = True


Record = Claim | HandOver | Tick | Part


# --- writing ------------------------------------------------------------------------------------------------------


def encode_entries(entries: Iterable[Entry]) -> bytes:
    """Return entries as the body of a write; bodies may be joined. Raises ValueError for a key that is too long."""
    pieces: list[bytes] = []
    pack = _ENTRY.pack
    for key, value in entries:
        if len(key) > KEY_BYTES_MAX:
            raise ValueError(f"a state key has at most {KEY_BYTES_MAX} bytes, this one {len(key)}")
        if value is None:
            pieces += (pack(len(key), 0), key)
        else:
            pieces += (pack(len(key), len(value) + 1), key, value)
    return b"".join(pieces)


def parts(epoch: int, serial: int, body: bytes) -> list[Part]:
    """Return the parts of a write, the first of them with this serial."""
    if len(body) <= CHUNK_BYTES:
        return [Part(epoch=epoch, serial=serial, body=body)]
    cuts = range(0, len(body), CHUNK_BYTES)
    return [
        Part(epoch=epoch, serial=serial + n, body=body[at : at + CHUNK_BYTES], last=n == len(cuts) - 1)
        for n, at in enumerate(cuts)
    ]


def encode(record: Record) -> tuple[bytes, bytes]:
    """Return key and value of the Kafka record."""
    match record:
        case Part():
            kind, body = RecordKind.LAST_PART if record.last else RecordKind.PART, record.body
        case Claim():
            kind, body = RecordKind.CLAIM, _CLAIM.pack(record.node_id, record.port, record.time_ms)
            body += _text(record.owner) + _text(record.host)
        case HandOver():
            kind, body = RecordKind.HAND_OVER, _text(record.to)
        case Tick():
            kind, body = RecordKind.TICK, b""
    key = bytes((kind, VERSION))
    head = _HEAD.pack(0, record.epoch, record.serial)[_CHECKSUM.size :]
    crc = zlib.crc32(body, zlib.crc32(head, zlib.crc32(key)))
    return key, b"".join((_CHECKSUM.pack(crc), head, body))


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _TEXT.pack(len(encoded)) + encoded


# --- reading ------------------------------------------------------------------------------------------------------


def checksum_of(value: bytes) -> int:
    """Return the checksum that a value begins with."""
    (checksum,) = _CHECKSUM.unpack_from(value)
    return int(checksum)


def decode(key: bytes | None, value: bytes | None) -> Record:
    """Return the record. Raises NewerFormat, ForeignRecord."""
    if key is None or len(key) != 2 or value is None or len(value) < _CHECKSUM.size:
        raise ForeignRecord("it has not the form of a slot's record")
    kind, version = key
    if zlib.crc32(memoryview(value)[_CHECKSUM.size :], zlib.crc32(key)) != checksum_of(value):
        raise ForeignRecord("its checksum does not match its bytes")
    if version > VERSION:
        raise NewerFormat(
            f"it has format {version}, this release reads up to {VERSION}: start this worker with the release of "
            "the others, or a newer one"
        )
    if len(value) < _HEAD.size:
        raise ForeignRecord("it is cut short")
    _, epoch, serial = _HEAD.unpack_from(value)
    body = value[_HEAD.size :]
    match kind:
        case RecordKind.LAST_PART | RecordKind.PART:
            return Part(epoch=epoch, serial=serial, body=body, last=kind == RecordKind.LAST_PART)
        case RecordKind.CLAIM:
            return _claim(epoch, body)
        case RecordKind.HAND_OVER:
            (to,) = _texts(body, 1)
            return HandOver(epoch=epoch, serial=serial, to=to)
        case RecordKind.TICK:
            return Tick(epoch=epoch, serial=serial)
        case _:
            raise ForeignRecord(f"kind {kind} is unknown")


def _claim(epoch: int, body: bytes) -> Claim:
    if len(body) < _CLAIM.size:
        raise ForeignRecord("a claim is cut short")
    node_id, port, time_ms = _CLAIM.unpack_from(body)
    owner, host = _texts(body[_CLAIM.size :], 2)
    return Claim(epoch=epoch, node_id=node_id, owner=owner, host=host, port=port, time_ms=time_ms)


def _texts(body: bytes, count: int) -> list[str]:
    found: list[str] = []
    at = 0
    try:
        for _ in range(count):
            (length,) = _TEXT.unpack_from(body, at)
            at += _TEXT.size
            text = body[at : at + length]
            if len(text) != length:
                raise ForeignRecord("a text is cut short")
            found.append(text.decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        raise ForeignRecord("a text cannot be read") from None
    if at != len(body):
        raise ForeignRecord("there are bytes left over")
    return found


def decode_entries(body: bytes) -> list[Entry]:
    """Return the entries of a whole write. Raises SlotCorrupt."""
    entries: list[Entry] = []
    at, end, unpack, size = 0, len(body), _ENTRY.unpack_from, _ENTRY.size
    try:
        while at < end:
            key_bytes, value_bytes = unpack(body, at)
            at += size
            middle = at + key_bytes
            key = body[at:middle]
            if value_bytes:
                at = middle + value_bytes - 1
                entries.append((key, body[middle:at]))
            else:
                at = middle
                entries.append((key, None))
    except struct.error:
        raise SlotCorrupt("the entries of a write are cut short") from None
    if at != end:
        raise SlotCorrupt("the entries of a write are cut short")
    return entries
