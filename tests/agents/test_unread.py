"""Chunks whose records are read by whoever takes them in: once, by one, and with a second look when that fails."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.chunk import Chunk, Unread
from flowshare.agents.host.host import Host, HostSettings
from flowshare.client.cooperative import reading
from flowshare.client.cooperative.reading import scan_log
from flowshare.client.producer.message import Message
from flowshare.client.session.member import Fetched, ShareMember
from flowshare.protocol import decoding
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.decoding import DecodedRecord, decode_raw
from flowshare.protocol.lazy_records import lazy_records
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AcquiredRange
from tests.batches import SPOILED, place, spoil
from tests.waiting import until

TP = TopicPartition(uuid.UUID(int=1), 0)


def unread(count: int, *, damaged: bool = False, failed: Callable[[Chunk, int], None] = lambda *_: None) -> Chunk:
    builder = BatchBuilder()
    for number in range(count):
        builder.add(None, b"%d" % number, timestamp_ms=1)
    records = bytearray(place(builder.build(), 0))
    records[-1] ^= damaged
    lazy = lazy_records(bytes(records), [AcquiredRange(0, count - 1, 1)])
    assert lazy is not None
    return Chunk(
        "agent", "in", TP, (), decode=None, deadline=30.0, generation=0, arrived=0.0, unread=Unread(lazy, failed)
    )


def test_a_chunk_counts_its_records_before_and_after_they_are_read():
    chunk = unread(5)
    assert (chunk.remaining, chunk.waiting, chunk.runs, chunk.attempt(3)) == (5, 5, [(0, 4)], 1)

    chunk.open()
    chunk.open()

    assert [record.offset for record in chunk.records] == [4, 3, 2, 1, 0]
    assert (chunk.remaining, chunk.waiting) == (5, 5)


def test_a_chunk_that_cannot_be_read_says_so_once_and_offers_nothing():
    told: list[tuple[Chunk, int]] = []
    chunk = unread(5, damaged=True, failed=lambda *at: told.append(at))

    chunk.open()
    chunk.open()

    assert told == [(chunk, 0)]
    assert (chunk.records, chunk.waiting, chunk.unfinished()) == ([], 0, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("threads", [False, True], ids=["one loop", "two loops"])
def test_a_damaged_batch_is_a_dead_letter_and_those_beside_it_are_handled(
    threads: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = fs.App("damaged", broker="memory://")
    seen: list[bytes] = []

    @app.share_agent(app.topic("in", value_type=bytes), start="earliest")
    async def agent(value: bytes) -> None:
        seen.append(value)

    fetched, damages = ShareMember.take_fetched, 1

    def damaging(self: ShareMember) -> list[Fetched]:
        nonlocal damages
        found = fetched(self)
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
            monkeypatch.setattr(ShareMember, "take_fetched", damaging)
            host.runtimes["agent"].resume()
            return await until(
                host.runtimes["agent"].stats, good=lambda stats: stats["accepted"] + stats["dead_lettered"] >= 3
            )
        finally:
            await host.drain(5)
            await host.stop()

    stats = asyncio.run(main())

    assert sorted(seen) == [b"fine", b"good"]
    assert (stats["accepted"], stats["dead_lettered"], stats["undecodable"]) == (2, 1, 1)
    assert "undecodable: the stored bytes cannot be read: checksum" in caplog.text


BAD_RECORD = {
    "share": {},
    "at most once": {"at_most_once": True},
    "exactly once": {"exactly_once": True},
    "batches": {"batch": fs.Batch(4, within=0.1)},
    "cooperative": {},
}


@pytest.mark.parametrize("kind", list(BAD_RECORD))
def test_a_record_that_cannot_be_read_is_a_dead_letter_and_those_in_its_batch_are_handled(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, options = fs.App("bad", broker="memory://"), BAD_RECORD[kind]
    seen: list[bytes] = []

    async def one(value: bytes) -> None:
        seen.append(value)

    async def batch(rows: fs.Records[bytes]) -> None:
        seen.extend(row.value for row in rows)

    declare = app.cooperative_agent if kind.startswith("cooperative") else app.share_agent
    start = {} if kind.startswith("cooperative") else {"start": "earliest"}
    declare(app.topic("in", value_type=bytes), name="agent", **start, **options)(batch if "batch" in options else one)
    fetched = ShareMember.take_fetched
    monkeypatch.setattr(
        ShareMember, "take_fetched", lambda self: [part._replace(records=spoil(part.records)) for part in fetched(self)]
    )
    monkeypatch.setattr(reading, "scan_log", lambda data, *rest, **more: scan_log(spoil(data), *rest, **more))

    async def main() -> list[DecodedRecord]:
        host = Host(app, settings=HostSettings(threads=False))
        await host.start()
        try:
            good = [Message(b"%d" % n, b"k", (SPOILED,) if n == 4 else ()) for n in range(10)]
            await host.producer.send_many("in", good)
            runtime = host.runtimes["agent"]
            await until(runtime.stats, good=lambda stats: stats["accepted"] + stats["dead_lettered"] >= 10)
            return await until(lambda: host.admin.read(str(runtime.agent.dead_letter_topic), 0))
        finally:
            await host.drain(5)
            await host.stop()

    [letter] = asyncio.run(main())

    assert sorted(seen) == [b"%d" % n for n in range(10) if n != 4]
    told = {name.removeprefix("flowshare.dlq."): value for name, value in letter.headers}
    assert (told["offset"], letter.key, letter.value) == (b"4", None, None)
    assert b"the stored bytes cannot be read: the header's name of a record says 60 bytes" in (told["reason"] or b"")
    assert told["left_out"]


# What would be too much in memory at once


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record batch is as much as is read at a time."""
    monkeypatch.setattr("flowshare.protocol.lazy_records.READ_BYTES", 1)
    monkeypatch.setattr("flowshare.agents.feed.feeder.ANSWER_BYTES_MAX", 1)


@pytest.mark.usefixtures("little_room")
def test_a_chunk_reads_one_large_batch_after_the_other_when_the_one_before_is_begun():
    records = b"".join(place(one_batch(2), 2 * number) for number in range(3))
    chunk = Chunk(
        "agent",
        "in",
        TP,
        (),
        decode=None,
        deadline=30.0,
        generation=0,
        arrived=0.0,
        unread=Unread(lazy_records(records, [AcquiredRange(0, 5, 1)]), lambda *_: None),
    )
    seen: list[int] = []
    while chunk.open():
        assert len(chunk.records) <= 2
        seen.append(chunk.records.pop().offset)
        assert chunk.waiting == 5 - seen[-1]
    assert seen == [0, 1, 2, 3, 4, 5]


class Meanwhile:
    """Records of which others come back while they are read: the feeder's thread is not the pool's."""

    first, last, delivery_count = 2, 3, 1

    def __init__(self) -> None:
        self.chunk: Chunk | None = None
        self.waiting = 2

    def read(self) -> list[Any]:
        assert self.chunk is not None
        self.chunk.records.extend(["1", "0"])
        self.waiting = 0
        return ["2", "3"]


def test_what_comes_back_to_a_chunk_while_its_next_records_are_read_is_handled_before_them():
    later = Meanwhile()
    chunk = later.chunk = Chunk(
        "agent",
        "in",
        TP,
        (),
        decode=None,
        deadline=30.0,
        generation=0,
        arrived=0.0,
        unread=Unread(later, lambda *_: None),
    )
    assert chunk.open()
    assert [chunk.records.pop() for _ in range(chunk.waiting)] == ["0", "1", "2", "3"]


def one_batch(count: int) -> bytes:
    builder = BatchBuilder(compression="zstd")
    for number in range(count):
        builder.add(None, b"%d" % number, timestamp_ms=1)
    return builder.build()


def test_no_batch_of_an_answer_is_begun_when_enough_was_read():
    records = b"".join(place(one_batch(2), 2 * number) for number in range(3))
    acquired = [AcquiredRange(0, 2, 1), AcquiredRange(3, 7, 2)]

    decoded = decode_raw(records, acquired, bytes_max=1)
    assert [raw.offset for raw in decoded.records] == [0, 1]
    assert decoded.later == [AcquiredRange(2, 2, 1), AcquiredRange(3, 7, 2)]

    decoded = decode_raw(records, decoded.later, bytes_max=10_000)
    assert [raw.offset for raw in decoded.records] == [2, 3, 4, 5]
    assert (decoded.later, decoded.missing) == ([], [(6, 7)])


@pytest.mark.parametrize("good", [0, 1])
def test_no_memory_is_no_damage(good: int, monkeypatch: pytest.MonkeyPatch):
    reads, real = 0, decoding.unpacked

    def unpacked(*args):
        nonlocal reads
        reads += 1
        if reads > good:
            raise MemoryError
        return real(*args)

    monkeypatch.setattr(decoding, "unpacked", unpacked)
    records = b"".join(place(one_batch(2), 2 * number) for number in range(3))
    if not good:
        with pytest.raises(MemoryError):
            decode_raw(records, [AcquiredRange(0, 5, 1)])
        return
    decoded = decode_raw(records, [AcquiredRange(0, 5, 1)])
    assert ([raw.offset for raw in decoded.records], decoded.corrupt) == ([0, 1], [])
    assert decoded.later == [AcquiredRange(2, 5, 1)]


def test_of_a_batch_with_too_many_records_only_those_that_are_wanted_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decoding, "WHOLE_RECORDS_MAX", 100)
    monkeypatch.setattr(decoding, "AT_ONCE_RECORDS", 7)
    records = place(one_batch(500), 1_000)
    decoded = decode_raw(records, [AcquiredRange(1_100, 1_149, 1), AcquiredRange(1_200, 1_200, 2)])
    assert [raw.offset for raw in decoded.records] == [*range(1_100, 1_150), 1_200]
    assert (decoded.gaps, decoded.corrupt, decoded.missing) == ([], [], [])


KINDS = ("async", "thread", "batch")


def declare(app: fs.App, kind: str, handle: Callable[[list[bytes]], None]) -> None:
    """An agent of this kind that calls `handle` with what it is given."""
    topic, options = app.topic("in", value_type=bytes), {"start": "earliest", "concurrency": 2}
    if kind == "async":

        @app.share_agent(topic, name="agent", **options)
        async def agent(value: bytes) -> None:
            handle([value])

    elif kind == "thread":

        @app.share_agent(topic, name="agent", **options)
        def agent(value: bytes) -> None:
            handle([value])

    else:

        @app.share_agent(topic, name="agent", start="earliest", batch=fs.Batch(3, within=0.01))
        async def agent(rows: fs.Records[bytes]) -> None:
            handle(rows.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", [False, True], ids=["first delivery", "delivered again"])
@pytest.mark.usefixtures("little_room")
def test_large_batches_are_handled_one_after_the_other_each_record_once(kind: str, again: bool) -> None:
    app = fs.App("large", broker="memory://")
    seen: list[bytes] = []
    failed: set[bytes] = set()

    def handle(values: list[bytes]) -> None:
        if again and not failed.issuperset(values):
            failed.update(values)
            raise fs.Retry(0.0)
        seen.extend(values)

    declare(app, kind, handle)

    async def main() -> dict[str, float]:
        host = Host(app, settings=HostSettings(threads=True))
        await host.start()
        try:
            host.runtimes["agent"].pause()
            for number in range(12):
                await app.topic("in", value_type=bytes).send(value=b"%d" % number)
            host.runtimes["agent"].resume()
            return await until(host.runtimes["agent"].stats, good=lambda stats: stats["accepted"] >= 12)
        finally:
            await host.drain(5)
            await host.stop()

    stats = asyncio.run(main())
    assert sorted(seen, key=int) == [b"%d" % number for number in range(12)]
    assert stats["rejected"] == 0


@pytest.mark.usefixtures("little_room")
def test_what_was_not_read_yet_goes_back_unrun_when_an_agent_pauses() -> None:
    app = fs.App("large", broker="memory://")
    seen: list[bytes] = []
    gate = asyncio.Event()

    @app.share_agent(app.topic("in", value_type=bytes), name="agent", start="earliest", concurrency=1)
    async def agent(value: bytes) -> None:
        seen.append(value)
        await gate.wait()

    async def main() -> None:
        host = Host(app, settings=HostSettings(threads=False))
        await host.start()
        try:
            runtime = host.runtimes["agent"]
            runtime.pause()
            for number in range(6):
                await app.topic("in", value_type=bytes).send(value=b"%d" % number)
            runtime.resume()
            await until(lambda: seen)
            runtime.pause()
            await until(lambda: runtime.stats()["outstanding"] <= 1)
            gate.set()
            runtime.resume()
            await until(lambda: runtime.stats()["accepted"] >= 6)
        finally:
            await host.drain(5)
            await host.stop()

    asyncio.run(main())
    assert sorted(seen) == [b"%d" % number for number in range(6)], "each one once"


@pytest.mark.parametrize("slow", [False, True], ids=["done at once", "still at work"])
def test_a_lone_record_is_with_its_handler_before_the_next_fetch_leaves(slow, monkeypatch):
    app = fs.App("lone", broker="memory://")
    order: list[str] = []
    asked = threading.Event()

    @app.share_agent(app.topic("in", value_type=bytes), start="earliest")
    async def agent(value: bytes) -> None:
        order.append("begun")
        if slow:
            await asyncio.to_thread(asked.wait, 10)

    ask = ShareMember.ask

    def asking(self, plan) -> None:
        if order:
            order.append("asked")
            asked.set()
        ask(self, plan)

    async def main() -> None:
        host = Host(app, settings=HostSettings(threads=True))
        await host.start()
        try:
            monkeypatch.setattr(ShareMember, "ask", asking)
            await app.topic("in", value_type=bytes).send(value=b"lone")
            await until(host.runtimes["agent"].stats, good=lambda stats: stats["accepted"] == 1 and "asked" in order)
        finally:
            await host.drain(5)
            await host.stop()

    asyncio.run(main())

    assert order[:2] == ["begun", "asked"]
