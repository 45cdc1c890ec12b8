"""Storages on disk in the state a killed process leaves, and ways to damage them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from flowshare.clock import LoopClock
from flowshare.log.base import StorageError
from flowshare.log.embedded import EmbeddedStorage
from tests.log.contract import batch
from tests.waiting import until


def opened(path: Path, body, **options):
    """Run `body(storage)` on the storage at `path`."""

    async def run():
        storage = await EmbeddedStorage.open(path, clock=LoopClock(), **options)
        try:
            return await body(storage)
        finally:
            await storage.close()

    return asyncio.run(run())


async def fill(storage: EmbeddedStorage, first: int, last: int) -> None:
    """Records and state numbered `first` to `last`, one commit each."""
    for number in range(first, last + 1):
        await storage.append("t", 0, batch(1, value=b"%d" % number * 20))
        await storage.write([(b"s%06d" % number, b"%d" % number * 20)])


async def until_writable(storage: EmbeddedStorage) -> None:
    """Write until it works."""

    async def writable() -> bool:
        try:
            await storage.write([(b"probe", b"1")])
        except StorageError:
            return False
        return True

    await until(writable)


async def content(storage: EmbeddedStorage) -> tuple[int, int]:
    """Records in the log, all of them read, and entries of state."""
    end, offset, count = storage.offsets("t", 0).high_watermark, 0, 0
    while offset < end:
        result = await storage.read("t", 0, offset, max_bytes=1 << 20)
        count += sum(b.last - b.first + 1 for b in result.batches)
        offset = result.batches[-1].last + 1
    return count, len(await storage.scan(b"s"))


def killed(path: Path, *, sorted_part: int = 200, logged_part: int = 300, large: bool = False, **options) -> Path:
    """A storage as after kill -9: part of it in sorted files, part in the write-ahead log only.

    A copy of the files of a living storage is just that: what was written to the page cache is there.
    """
    live = path.with_name(path.name + "-live")

    async def body(storage: EmbeddedStorage) -> None:
        await storage.create_topic("t")
        await fill(storage, 1, sorted_part)
        if large:
            await storage.append("t", 0, batch(1, value=bytes(range(256)) * 400))
        storage._store._db.flush(True)
        await fill(storage, sorted_part + 1, sorted_part + logged_part)
        shutil.copytree(live, path)

    opened(live, body, **options)
    shutil.rmtree(live)
    (path / "owner.json").unlink()
    return path


def files(path: Path) -> dict[str, bytes]:
    """All stored bytes. The lock files and RocksDB's own diary are no data."""
    skipped = {"lock", "owner.json", "LOCK", "LOG"}
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in skipped and not file.name.startswith("LOG.old")
    }


def only(path: Path, pattern: str) -> Path:
    """The one stored file of this pattern that holds data."""
    (found,) = [file for file in (path / "store").glob(pattern) if file.stat().st_size]
    return found


def flip(file: Path, position: int, mask: int = 1) -> None:
    """Flip a bit."""
    changed = bytearray(file.read_bytes())
    changed[position] ^= mask
    file.write_bytes(changed)


def wal_records(file: Path) -> list[tuple[int, int]]:
    """Position and length of the records in a write-ahead log."""
    log, position, found = file.read_bytes(), 0, []
    while len(log) - position >= 7:
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length = int.from_bytes(log[position + 4 : position + 6], "little")
        found.append((position, length))
        position += 7 + length
    return found
