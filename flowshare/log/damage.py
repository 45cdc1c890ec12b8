"""Two checks of a store that RocksDB does not make: of the marker of confirmed writes, and of the write-ahead log.

The marker: a small file with the number of confirmed commits, so that a shorter store is noticed.

RocksDB takes a write-ahead log that ends early for an honest crash, and a flipped length near the end looks the same
(measured: 27 confirmed writes gone without a word). Each commit therefore carries its number, and the number of the
last confirmed one is written here afterwards. Two slots are written in turn, so that a torn one leaves the other.

A crash of the machine may take more than a killed process: the page cache survives the latter. `confirmed` counts as
long as the machine has not been restarted (same boot id), `synced` for ever.

RocksDB's own check of its log leaves two holes (measured with 10.x): an unknown record type sends its recovery into an
endless loop, and a log that ends early in an older file is skipped over while a newer file is still applied.
`check_wal` reads the log as it is written (32 KiB blocks; records of crc, length, type) and checks types, checksums and
that sequence numbers follow each other from file to file. An incomplete last record is left by a crash; it is allowed.

Format: RocksDB wiki, "Write Ahead Log File Format".
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flowshare.log.base import StorageDamaged
from flowshare.log.folder import open_private
from flowshare.protocol.headers import crc32c

MAGIC: Final = b"flowshare marker"
SLOT_BYTES: Final = 512
SLOTS: Final = 2
_slot = struct.Struct(">16sQQQ36sI")
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The confirmed commits, by number, and the boot during which `confirmed` was written."""

    confirmed: int = 0
    synced: int = 0
    boot_id: bytes = b""


class Marker:
    """The open marker file. `write` is called by one thread."""

    def __init__(self, path: Path) -> None:
        self._file = open_private(path, os.O_RDWR | os.O_CREAT)
        self._turn = 0
        self.mark = Confirmed()

    @classmethod
    def create(cls, path: Path) -> Marker:
        """Make a marker that says zero, whole or missing after a crash. Raises: OSError."""
        draft = path.with_name(path.name + ".new")
        draft.unlink(missing_ok=True)
        marker = cls(draft)
        marker.write(0, synced=0)
        marker.sync()
        draft.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return marker

    @classmethod
    def load(cls, path: Path) -> Marker:
        """Load the marker as it was left; the file is not changed. Raises: StorageDamaged, OSError."""
        marker = cls(path)
        slots = [slot for turn in range(SLOTS) if (slot := marker._read(turn)) is not None]
        if not slots:
            marker.close()
            raise StorageDamaged(
                f"{path}: the marker of confirmed writes cannot be read. Nothing was changed; restore a backup"
            )
        marker._turn, marker.mark = max(slots, key=lambda slot: slot[0])
        return marker

    def write(self, confirmed: int, *, synced: int) -> None:
        """Note that commits up to `confirmed` are confirmed. Raises: OSError."""
        self._turn += 1
        self.mark = Confirmed(confirmed=confirmed, synced=synced, boot_id=boot_id())
        fields = (MAGIC, self._turn, confirmed, synced, self.mark.boot_id)
        slot = _slot.pack(*fields, 0)[:-4]
        os.pwrite(self._file, slot + zlib.crc32(slot).to_bytes(4, "big"), (self._turn % SLOTS) * SLOT_BYTES)

    def sync(self) -> None:
        """Bring the file to the disk. Raises: OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, turn: int) -> tuple[int, Confirmed] | None:
        slot = os.pread(self._file, _slot.size, turn * SLOT_BYTES)
        if len(slot) < _slot.size or zlib.crc32(slot[:-4]) != int.from_bytes(slot[-4:], "big"):
            return None
        magic, number, confirmed, synced, boot, _ = _slot.unpack(slot)
        if magic != MAGIC:
            return None
        return number, Confirmed(confirmed=confirmed, synced=synced, boot_id=boot.rstrip(b"\0"))


_boot: list[bytes] = []


def boot_id() -> bytes:
    """Return the id of this run of the machine; empty where the system tells none."""
    if not _boot:
        try:
            _boot.append(BOOT_ID.read_bytes().strip()[:36])
        except OSError:
            _boot.append(b"")
    return _boot[0]


def check_reached(mark: Confirmed, commit: int) -> None:
    """Check that a store which ends with `commit` holds every confirmed commit. Raises: StorageDamaged."""
    same_boot = mark.boot_id != b"" and mark.boot_id == boot_id()
    wanted = mark.confirmed if same_boot else mark.synced
    if commit < wanted:
        raise StorageDamaged(
            f"the store ends with commit {commit}, but {wanted} were confirmed: "
            "the write-ahead log is cut short, damaged or was replaced. Nothing was changed; restore a backup"
        )


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
    """Yield first sequence number and number of entries of each write."""
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
    """Mask a checksum as stored beside its data: turned and shifted."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: Path, position: int, what: str) -> StorageDamaged:
    return StorageDamaged(f"{path}: the write-ahead log is damaged at byte {position}: {what}. Nothing was changed")
