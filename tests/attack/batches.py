"""Record batches that are not what they say, or become much more than they are."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace as Part
from typing import Any

from flowshare.clock import LoopClock
from flowshare.protocol.batches import BatchBuilder
from tests.attack.answers import MIB, TOPIC, WITHIN_S, Line
from tests.protocol.test_batches import patch

COUNT_AT, LAST_AT = 57, 23
CLOCK = LoopClock()
BOMB_BYTES = 63 * MIB


def lying(count: int = 2**31 - 1) -> bytes:
    """A batch of 70 bytes that says it has so many records."""
    return patch(patch(record(b""), COUNT_AT, ">i", count), LAST_AT, ">i", count - 1)


def record(value: bytes, *, codec: str = "none", timestamp_ms: int | None = None) -> bytes:
    """One record of now, or of another time."""
    builder = BatchBuilder(size_max=1 << 30, compression=codec)
    builder.add(b"k", value, timestamp_ms=CLOCK.now_ms() if timestamp_ms is None else timestamp_ms)
    return builder.build()


def bomb() -> bytes:
    """A batch of some 2 kB that becomes 63 MB."""
    return record(bytes(BOMB_BYTES), codec="zstd")


def crowd() -> bytes:
    """A batch of a million records without anything in them, compressed."""
    builder = BatchBuilder(size_max=1 << 30, compression="zstd")
    builder.add_values([b""] * 1_000_000, 0, timestamp_ms=CLOCK.now_ms())
    return builder.build()


async def produce(line: Line, records: bytes, *, partition: int = 0) -> Any:
    """Produce to the attacked topic; the partition's answer."""
    data = Part(name=TOPIC, partition_data=[Part(index=partition, records=records)])
    told = await line.ask("produce", 7, transactional_id=None, acks=-1, timeout=timedelta(seconds=5), topic_data=[data])
    return told.responses[0].partition_responses[0]


async def lying_batches(host: str, port: int, *, count: int = 200) -> int:
    """Batches that lie about their number of records or about the time; how many were taken."""
    line, taken = await Line.to(host, port), 0
    lies = [lying(), lying(100_000), record(b"x", timestamp_ms=10**10 * 365 * 86_400_000 // 1_000)]
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            for number in range(count):
                taken += int((await produce(line, lies[number % len(lies)])).error_code) == 0
    line.close()
    return taken


async def bombs(host: str, port: int, *, count: int = 50, lines: int = 4) -> int:
    """Batches that become 63 MB, or a million records, over several connections; how many were answered."""
    kinds = (bomb(), crowd())

    async def throw(number: int) -> int:
        line, answered = await Line.to(host, port), 0
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                for one in range(count // lines):
                    await produce(line, kinds[(one + number) % 2])
                    answered += 1
        line.close()
        return answered

    return sum(await asyncio.gather(*(throw(number) for number in range(lines))))


async def looks_for_times(host: str, port: int, *, count: int = 64) -> int:
    """ListOffsets by time over what is in the log, one behind the other; how many were answered."""
    line, answered = await Line.to(host, port), 0
    for number in range(count):
        part = Part(partition_index=0, current_leader_epoch=-1, timestamp=timedelta(milliseconds=number + 1))
        with suppress(struct.error, TypeError):
            line.tell("list_offsets", 4, replica_id=-1, isolation_level=0, topics=[Part(name=TOPIC, partitions=[part])])
    with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            while answered < line.sent:
                await line.frame()
                answered += 1
    line.close()
    return answered
