"""How fast the embedded log and its state are on this machine.

    python benchmarks/log.py [directory]

Figures: appends of batches of 860 records of 100 bytes, reads of the same from memory and from the store, state
writes one at a time and many at once, each without and with fsync; decoding beside it.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from flowshare.clock import LoopClock
from flowshare.log.embedded import EmbeddedStorage
from flowshare.protocol.batches import BatchBuilder, decode
from flowshare.share.types import AcquiredRange

RECORDS = 860
BATCHES = 1200


def batch() -> bytes:
    """One batch of 860 × 100 bytes."""
    builder = BatchBuilder(size_max=1_000_000)
    for number in range(RECORDS):
        builder.add(None, b"x" * 100, timestamp_ms=1_700_000_000_000 + number)
    return builder.build()


def show(name: str, seconds: float, count: int, unit: str, size: int = 0) -> None:
    """One line of figures."""
    rate = f"{size / seconds / 1e6:8.0f} MB/s" if size else " " * 13
    print(f"{name:44s} {count / seconds:12,.0f} {unit:10s} {rate}", flush=True)


async def appends(storage: EmbeddedStorage, topic: str, count: int, window: int) -> float:
    """Seconds for `count` appends, `window` at a time."""
    records = batch()
    await storage.create_topic(topic)
    begin = time.perf_counter()
    for _ in range(count // window):
        await asyncio.gather(*(storage.append(topic, 0, records) for _ in range(window)))
    return time.perf_counter() - begin


async def reads(storage: EmbeddedStorage, topic: str, size: int) -> tuple[float, int]:
    """Seconds and bytes for reading a topic from its start."""
    offset, total, end = 0, 0, storage.offsets(topic, 0).high_watermark
    begin = time.perf_counter()
    while offset < end:
        result = await storage.read(topic, 0, offset, max_bytes=size)
        total += len(result.records)
        offset = result.batches[-1].last + 1
    return time.perf_counter() - begin, total


async def state(storage: EmbeddedStorage, count: int, window: int) -> float:
    """Seconds for `count` state writes of 100 bytes, `window` at a time."""
    begin = time.perf_counter()
    for step in range(count // window):
        await asyncio.gather(
            *(storage.write([(b"s/%d" % (step % 50 * window + n), b"v" * 100)]) for n in range(window))
        )
    return time.perf_counter() - begin


async def run(directory: Path, fsync: bool) -> None:
    """All figures of one mode."""
    print(f"fsync={fsync}")
    size = len(batch())
    storage = await EmbeddedStorage.open(directory, clock=LoopClock(), fsync=fsync)
    count = BATCHES if not fsync else 400
    for window in (1, 16):
        seconds = await appends(storage, f"t{window}", count, window)
        show(f"append, {window} at a time", seconds, count * RECORDS, "records/s", count * size)
    seconds, total = await reads(storage, "t16", 1 << 20)
    show("read, newest 32 MiB from memory", seconds, total // size * RECORDS, "records/s", total)
    await storage.close()
    begin = time.perf_counter()
    storage = await EmbeddedStorage.open(directory, clock=LoopClock(), fsync=fsync)
    print(f"{'open again':44s} {time.perf_counter() - begin:12.3f} s")
    seconds, total = await reads(storage, "t16", 1 << 20)
    show("read, all from the store", seconds, total // size * RECORDS, "records/s", total)
    for window, writes in ((1, 1_000), (64, 20_000)):
        show(f"state writes, {window} at a time", await state(storage, writes, window), writes, "writes/s")
    await storage.close()


def decoding() -> None:
    """Decoding beside it."""
    records = batch() * 1
    begin = time.perf_counter()
    for _ in range(500):
        decode(records, (AcquiredRange(0, RECORDS - 1, 1),))
    show("decode", time.perf_counter() - begin, 500 * RECORDS, "records/s", 500 * len(records))


def main() -> None:
    """Both modes in a throw-away directory."""
    directory = Path(tempfile.mkdtemp(dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        for fsync in (False, True):
            asyncio.run(run(directory / str(fsync), fsync))
        decoding()
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
