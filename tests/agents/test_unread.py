"""Chunks whose records are read by whoever takes them in: once, by one, and with a second look when that fails."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import pytest

import flowshare as fs
from flowshare.agents.chunk import Chunk, Unread
from flowshare.agents.host import Host, HostSettings
from flowshare.client.member import Fetched, ShareMember
from flowshare.protocol.batches import BatchBuilder, place
from flowshare.protocol.messages import TopicPartition
from flowshare.protocol.promise import promise
from flowshare.share.types import AcquiredRange

TP = TopicPartition(uuid.UUID(int=1), 0)


def unread(count: int, *, damaged: bool = False, failed: Callable[[Chunk], None] = lambda _: None) -> Chunk:
    builder = BatchBuilder()
    for number in range(count):
        builder.add(None, b"%d" % number, timestamp_ms=1)
    records = bytearray(place(builder.build(), 0))
    records[-1] ^= damaged
    promised = promise(bytes(records), [AcquiredRange(0, count - 1, 1)])
    assert promised is not None
    return Chunk(
        "agent", "in", TP, (), decode=None, deadline=30.0, generation=0, arrived=0.0, unread=Unread(promised, failed)
    )


def test_a_chunk_counts_its_records_before_and_after_they_are_read():
    chunk = unread(5)
    assert (chunk.remaining, chunk.waiting, chunk.runs, chunk.attempt(3)) == (5, 5, [(0, 4)], 1)

    chunk.open()
    chunk.open()

    assert [record.offset for record in chunk.records] == [4, 3, 2, 1, 0]
    assert (chunk.remaining, chunk.waiting) == (5, 5)


def test_a_chunk_that_cannot_be_read_says_so_once_and_offers_nothing():
    told: list[Chunk] = []
    chunk = unread(5, damaged=True, failed=told.append)

    chunk.open()
    chunk.open()

    assert told == [chunk]
    assert (chunk.records, chunk.waiting, chunk.unfinished()) == ([], 0, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("threads", [False, True], ids=["one loop", "two loops"])
def test_a_damaged_batch_is_rejected_and_those_beside_it_are_handled(
    threads: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = fs.App("damaged", broker="memory://")
    seen: list[bytes] = []

    @app.share_agent(app.topic("in", value_type=bytes), start="earliest")
    async def agent(value: bytes) -> None:
        seen.append(value)

    fetched, damages = ShareMember.fetched, 1

    async def damaging(self: ShareMember) -> list[Fetched]:
        nonlocal damages
        found = await fetched(self)
        if found and damages:
            damages -= 1
            position = found[0].records.index(b"bad") - 1
            records = bytearray(found[0].records)
            records[position] ^= 0xFF
            found[0] = found[0]._replace(records=bytes(records))
        return found

    async def main() -> dict[str, float]:
        host = Host(app, settings=HostSettings(threads=threads))
        await host.start()
        try:
            host.runtimes["agent"].pause()
            for value in (b"good", b"bad", b"fine"):
                await app.topic("in", value_type=bytes).send(value=value)
            monkeypatch.setattr(ShareMember, "fetched", damaging)
            host.runtimes["agent"].resume()
            async with asyncio.timeout(10):
                while (stats := host.runtimes["agent"].stats())["accepted"] + stats["rejected"] < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            return stats
        finally:
            await host.drain(5)
            await host.stop()

    stats = asyncio.run(main())

    assert sorted(seen) == [b"fine", b"good"]
    assert (stats["accepted"], stats["rejected"], stats["undecodable"]) == (2, 1, 1)
    assert "the stored bytes cannot be read, rejected: checksum" in caplog.text
