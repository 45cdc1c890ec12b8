"""Tests of the disk cache of a process's slots, and of the cases in which it is not used."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid

import pytest
import pytest_asyncio

from flowshare.clock import LoopClock
from flowshare.fleet.state.cache import SlotCache
from flowshare.log import folder
from flowshare.log.base import StorageHeld
from flowshare.protocol import messages as m
from flowshare.slots.pruning import PruneLimits
from flowshare.slots.records import Claim, Part, checksum_of, encode, encode_entries
from flowshare.slots.replay import SlotReader
from tests.fleet.slots import TOPIC, content, fleet, quick
from tests.slots.world import everything

pytestmark = pytest.mark.asyncio
TOPIC_ID = uuid.UUID(int=5)


@pytest_asyncio.fixture
async def make(tmp_path):
    opened = []

    async def open_cache(topic_id=TOPIC_ID):
        cache = SlotCache(tmp_path / "state", clock=LoopClock(), topic_id=topic_id)
        await cache.open()
        opened.append(cache)
        return cache

    yield open_cache
    for cache in opened:
        await cache.close()


def feed(reader, *records):
    for record in records:
        reader.feed(reader.position, record, checksum_of(encode(record)[1]))


def claim(epoch=1):
    return Claim(epoch=epoch, node_id=7, owner="us", host="h", port=1, time_ms=0)


def part(serial, *entries, last=True):
    return Part(epoch=1, serial=serial, body=encode_entries(entries), last=last)


async def test_a_slot_comes_back_as_it_was_when_it_was_detached(make):
    cache, reader = await make(), SlotReader()
    cache.attach(3, reader)
    feed(reader, claim(), part(1, (b"g/a", b"1"), (b"g/b", b"")), part(2, (b"g/a", b"2"), (b"g/c", b"3")))
    feed(reader, part(3, (b"g/c", None)))
    await cache.detach(3)

    loaded = await cache.load(3)

    assert loaded.summary == reader.summary()
    assert everything(loaded.table) == everything(reader.table)
    assert await cache.load(2) is None


async def test_a_slot_in_the_middle_of_a_write_comes_back_as_before_it(make):
    cache, reader = await make(), SlotReader()
    cache.attach(0, reader)
    feed(reader, claim(), part(1, (b"g/a", b"1")), part(2, (b"g/a", b"2"), last=False))
    await cache.detach(0)

    loaded = await cache.load(0)

    assert loaded.summary.position == 2
    again = SlotReader.resume(loaded.summary, loaded.table)
    feed(again, part(2, (b"g/a", b"2"), last=False), part(3, (b"g/b", b"2")))
    assert [one[:2] for one in everything(again.table)] == [(b"g/a", b"2"), (b"g/b", b"2")]


async def test_a_slot_that_is_loaded_again_is_written_by_its_earlier_reader_no_more(make):
    cache, reader = await make(), SlotReader()
    cache.attach(0, reader)
    feed(reader, claim(), part(1, (b"g/a", b"1")))
    await cache._flush(0, cache._attached[0])
    feed(reader, part(2, (b"g/lost", b"1")))  # the log is cut before this record

    loaded = await cache.load(0)
    await cache.close()

    again = await (await make()).load(0)
    assert again.summary == loaded.summary
    assert [one.key for one in everything(again.table)] == [b"g/a"]


async def test_what_was_dropped_is_gone(make):
    cache, reader = await make(), SlotReader()
    cache.attach(0, reader)
    cache.attach(1, other := SlotReader())
    feed(reader, claim(), part(1, (b"g/a", b"1")))
    feed(other, claim(), part(1, (b"g/a", b"1")))
    await cache.detach(0)
    await cache.detach(1)

    await cache.drop(0)

    assert await cache.load(0) is None
    assert await cache.load(1) is not None


async def test_what_is_kept_of_another_topic_is_not_loaded(make):
    cache, reader = await make(), SlotReader()
    cache.attach(0, reader)
    feed(reader, claim())
    await cache.close()

    assert await (await make(uuid.UUID(int=6))).load(0) is None


async def test_the_directory_has_one_owner_and_a_name_that_stays(make):
    cache = await make()
    with pytest.raises(StorageHeld):
        await make()
    name = cache.identity
    await cache.close()

    again = await make()

    assert again.identity == name
    assert uuid.UUID(name)


async def test_a_damaged_store_is_thrown_away(make, tmp_path, caplog):
    cache, reader = await make(), SlotReader()
    cache.attach(0, reader)
    feed(reader, claim())
    await cache.close()
    for file in (tmp_path / "state" / "store").glob("MANIFEST*"):
        file.write_bytes(b"garbage")

    again = await make()

    assert await again.load(0) is None
    assert "thrown away" in caplog.text
    again.attach(0, reader)
    await again.detach(0)
    assert await again.load(0) is not None


async def test_a_store_that_turns_out_damaged_leaves_no_partial_state_of_the_slots_that_are_kept_on(make, tmp_path):
    cache, reader, other = await make(), SlotReader(), SlotReader()
    cache.attach(0, reader)
    cache.attach(1, other)
    feed(reader, claim(), part(1, (b"g/a", b"1")))
    feed(other, claim(), part(1, (b"g/b", bytes(50_000))))  # what follows is in another block
    await cache.close()
    damage(tmp_path / "state" / "store")
    cache = await make()
    loaded = await cache.load(0)
    cache.attach(0, reader := SlotReader.resume(loaded.summary, loaded.table))

    assert await cache.load(1) is None
    feed(reader, part(2, (b"g/c", b"2")))
    await cache.close()

    assert await (await make()).load(0) is None


async def test_a_worker_starts_with_a_store_that_turns_out_damaged_and_fills_a_new_one(make, tmp_path, caplog):
    cache, reader = await make(), SlotReader()
    cache.attach(0, reader)
    feed(reader, claim(), part(1, (b"g/a", b"1")))
    await cache.close()
    damage(tmp_path / "state" / "store")
    cache = await make()

    assert await cache.kept(4) == ()
    assert "thrown away" in caplog.text
    cache.attach(0, reader)
    await cache.close()

    assert await (await make()).kept(4) == (0,)


def damage(store):
    """Turn a bit in the summary that was written last, which its checksum finds out when it is read."""
    tables = sorted(store.glob("*.sst"))
    content = bytearray(tables[-1].read_bytes())
    content[content.rindex(TOPIC_ID.bytes)] ^= 0xFF
    tables[-1].write_bytes(content)


# --- with slots ---------------------------------------------------------------------------------------------------


async def run_with(make, first, second, *, topic_id=TOPIC_ID, **options):
    """One process writes with the cache and ends; another one opens the same directory."""
    async with fleet(LoopClock()) as world:
        cache = await make(topic_id)
        process = world.process("a")
        slot = await process.slot(cache=cache, **options)
        await first(world, slot)
        expected = content(slot)
        await process.close()
        world.processes.clear()
        await cache.close()
        world.kafka.asked.clear()
        cache = await make(topic_id)
        await second(world, cache, expected)


async def write_some(world, slot, count=50):
    for n in range(count):
        await slot.write([(b"g/%d" % (n % 10), bytes(100))])


async def test_a_restart_reads_only_the_end_of_the_log(make):
    async def second(world, cache, expected):
        other = await world.process("b").slot()
        await other.write([(b"g/new", b"1")])
        world.kafka.asked.clear()
        slot = await world.process("c").slot(cache=cache, lead=False)

        assert content(slot) == {**expected, b"g/new": b"1"}
        assert world.kafka.asked[m.ListOffsetsRequest] == 0  # where the log begins was of no interest

    await run_with(make, write_some, second)


async def test_a_log_that_is_not_the_one_that_was_kept_is_read_from_its_start(make, caplog):
    caplog.set_level("INFO")

    async def second(world, cache, expected):
        await world.kafka.storage.delete_topic(TOPIC)
        await world.kafka.storage.create_topic(TOPIC, partitions=2, internal=True)
        other = await world.process("b").slot()
        for n in range(60):
            await other.write([(b"g/other", b"%d" % n)])
        slot = await world.process("c").slot(cache=cache, lead=False)

        assert content(slot) == {b"g/other": b"59"}
        assert "all is read" in caplog.text
        await slot.close()
        assert [one.key for one in everything((await cache.load(0)).table)] == [b"g/other"]

    await run_with(make, write_some, second)


async def test_a_log_that_was_pruned_beyond_what_was_kept_is_read_from_its_start(make):
    async def second(world, cache, expected):
        other = await world.process("b").slot(settings=quick(prune=PruneLimits(log_bytes=2_000, growth=1)))
        while world.kafka.storage.offsets(TOPIC, 0).log_start < 55:
            await other.write([(b"g/other", bytes(100))])
            await asyncio.sleep(0)
            other._maintenance.begin()
        slot = await world.process("c").slot(cache=cache, lead=False)

        assert content(slot) == content(other) == {**expected, b"g/other": bytes(100)}

    await run_with(make, write_some, second)


async def test_a_slot_that_is_led_is_kept_while_it_is_led(make):
    async def first(world, slot):
        await write_some(world, slot, 5)
        cache = slot.cache
        await cache._flush(0, cache._attached[0])
        assert cache._attached[0].position == 6
        await write_some(world, slot, 5)

    async def second(world, cache, expected):
        slot = await world.process("b").slot(cache=cache)
        assert content(slot) == expected
        assert slot.epoch == 2
        assert world.kafka.asked[m.ListOffsetsRequest] == 0

    await run_with(make, first, second)


async def test_a_full_disk_keeps_nobody_from_leading(make, tmp_path, monkeypatch, caplog):
    """State is in the slots' logs; what a directory without room cannot keep is read from there."""
    write_all = folder._write_all

    def refused(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_store(_):
        raise Exception("IO error: No space left on device")

    monkeypatch.setattr(folder, "_write_all", refused)
    monkeypatch.setattr(SlotCache, "_open_db", no_store)
    cache = await make()
    assert uuid.UUID(cache.identity)
    assert await cache.kept(8) == ()
    assert await cache.load(0) is None
    assert "has no room: the next start of this worker is another worker to its fleet" in caplog.text
    await cache.close()
    assert not (tmp_path / "state" / "identity").exists()

    monkeypatch.setattr(folder, "_write_all", write_all)
    (tmp_path / "state" / "identity").touch()  # what a full disk leaves of a file that is written
    cache = await make()
    assert uuid.UUID(cache.identity)
    await cache.close()
    assert (await make()).identity == cache.identity
