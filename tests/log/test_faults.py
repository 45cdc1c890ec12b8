"""Write errors: who asked gets an error, reading goes on, nothing confirmed is lost, and writes come back."""

from __future__ import annotations

import asyncio
import os

import pytest

from flowshare.backoff import Backoff
from flowshare.clock import LoopClock
from flowshare.log import commits
from flowshare.log.base import StorageError, UnknownTopic
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.store import RocksStore
from flowshare.protocol.batches import decode_all
from tests.disks import resize, small_disk
from tests.log.contract import batch
from tests.log.places import content, opened, until_writable
from tests.log.producer_contract import in_transaction


class Fault:
    """Makes commits fail: before anything is written, or (`late`) after it was."""

    def __init__(self, monkeypatch) -> None:
        self.on = False
        self.late = False
        original = RocksStore.commit

        def commit(store, steps) -> None:
            if self.on and self.late:
                original(store, steps)
                store.commits -= 1
            if self.on:
                raise StorageError("injected: no space left on device")
            original(store, steps)

        monkeypatch.setattr(RocksStore, "commit", commit)
        monkeypatch.setattr(commits, "USUAL", Backoff(0.01, 5.0))


@pytest.fixture
def fault(monkeypatch):
    return Fault(monkeypatch)


async def open_with_topic(path, **options) -> EmbeddedStorage:
    storage = await EmbeddedStorage.open(path, clock=LoopClock(), **options)
    if "t" not in storage.topics():
        await storage.create_topic("t")
    return storage


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
def test_a_failed_write_fails_everything_queued_behind_it_and_uses_no_offset(tmp_path, fault, tail_bytes):
    async def body() -> None:
        storage = await open_with_topic(tmp_path, tail_bytes=tail_bytes)
        await storage.append("t", 0, batch(3, value=b"kept"))
        fault.on = True
        results = await asyncio.gather(
            *(storage.append("t", 0, batch(2, value=b"lost")) for _ in range(20)),
            storage.write([(b"s1", b"lost")]),
            storage.create_topic("never"),
            return_exceptions=True,
        )
        assert all(isinstance(result, StorageError) for result in results)
        assert storage.offsets("t", 0).high_watermark == 3
        assert len((await storage.read("t", 0, 0, max_bytes=1)).batches) == 1
        with pytest.raises(UnknownTopic):
            storage.offsets("never", 0)

        fault.on = False
        await until_writable(storage)
        appended = await storage.append("t", 0, batch(2, value=b"later"))

        assert (appended.base_offset, appended.last_offset) == (3, 4)
        result = await storage.read("t", 0, 0, max_bytes=1 << 20)
        assert [record.value for record in decode_all(result.records)] == [b"kept"] * 3 + [b"later"] * 2
        assert await storage.scan(b"s") == []
        await storage.close()

    asyncio.run(body())
    assert opened(tmp_path, content) == (5, 0)


def test_a_failed_write_that_is_there_all_the_same_is_taken_as_it_is(tmp_path, fault):
    async def body() -> None:
        storage = await open_with_topic(tmp_path)
        fault.on = fault.late = True
        with pytest.raises(StorageError):
            await storage.append("t", 0, batch(2))
        fault.on = False
        await until_writable(storage)

        assert storage.offsets("t", 0).high_watermark == 2
        assert (await storage.append("t", 0, batch(1))).base_offset == 2
        await storage.close()

    asyncio.run(body())
    assert opened(tmp_path, content) == (3, 0)


def test_coming_back_is_tried_again_until_it_works(tmp_path, fault, monkeypatch):
    monkeypatch.setattr(commits, "USUAL", Backoff(0.02, 0.02))
    original, tries = RocksStore.reopen, []

    def reopen(store) -> None:
        tries.append(1)
        if len(tries) < 4:
            raise StorageError("injected: still full")
        original(store)

    monkeypatch.setattr(RocksStore, "reopen", reopen)

    async def body() -> None:
        storage = await open_with_topic(tmp_path)
        fault.on = fault.late = True
        with pytest.raises(StorageError):
            await storage.append("t", 0, batch(2))
        fault.on = False
        await until_writable(storage)

        assert len(tries) == 4
        assert (await storage.append("t", 0, batch(1))).base_offset == 2
        await storage.close()

    asyncio.run(body())


def test_while_writes_fail_they_fail_at_once_and_the_storage_closes_in_order(tmp_path, fault):
    async def body() -> None:
        storage = await open_with_topic(tmp_path)
        await storage.append("t", 0, batch(4))
        fault.on = True
        for _ in range(5):
            with pytest.raises(StorageError, match="no space"):
                await storage.append("t", 0, batch())
        await storage.close()
        with pytest.raises(StorageError, match=r"closed|no space"):
            await storage.append("t", 0, batch())
        await storage.close()

    asyncio.run(body())
    fault.on = False
    assert opened(tmp_path, content) == (4, 0)


def test_listeners_hear_nothing_of_failed_appends(tmp_path, fault):
    async def body() -> None:
        storage = await open_with_topic(tmp_path)
        heard = []
        storage.on_append(lambda topic, n: heard.append((topic, n)))
        fault.on = True
        with pytest.raises(StorageError):
            await storage.append("t", 0, batch())
        assert heard == []
        await storage.close()

    asyncio.run(body())


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_with_space_again_writes_work_without_a_restart(tmp_path):
    async def body(disk) -> None:
        storage = await open_with_topic(disk / "storage")
        confirmed, refused = 0, 0
        while refused < 3:
            try:
                await storage.append("t", 0, batch(10, value=os.urandom(50_000)))
                await storage.write([(b"s%06d" % confirmed, b"x")])
            except StorageError:
                refused += 1
            else:
                confirmed += 1
        assert confirmed > 10
        assert (await content(storage))[1] == confirmed

        await asyncio.to_thread(resize, disk, "400m")
        await until_writable(storage)
        await storage.append("t", 0, batch(10))
        records, entries = await content(storage)
        # The append before a refused state write was confirmed as well.
        assert records in (10 * confirmed + 10, 10 * confirmed + 20)
        assert entries == confirmed
        await storage.close()

    with small_disk(tmp_path / "disk", "40m") as disk:
        asyncio.run(body(disk))


def test_a_failed_write_takes_back_what_it_assumed_of_a_producer(tmp_path, fault):
    async def body() -> None:
        storage = await open_with_topic(tmp_path / "storage")
        await storage.append("t", 0, in_transaction(0))
        fault.on = True
        failed = await asyncio.gather(
            storage.append("t", 0, in_transaction(1)),
            storage.append("t", 0, in_transaction(1)),
            storage.append_control("t", 0, 1, 0, committed=False),
            return_exceptions=True,
        )
        fault.on = False
        await until_writable(storage)

        assert [type(error) for error in failed] == [StorageError] * 3
        assert storage.offsets("t", 0).last_stable == 0
        assert (await storage.append("t", 0, in_transaction(1))).base_offset == 1
        await storage.append_control("t", 0, 1, 0, committed=True)
        assert storage.offsets("t", 0).last_stable == 3
        await storage.close()

    asyncio.run(body())


def test_a_failed_write_that_is_stored_all_the_same_is_known_when_it_comes_again(tmp_path, fault):
    async def body() -> None:
        storage = await open_with_topic(tmp_path / "storage")
        fault.on = fault.late = True
        with pytest.raises(StorageError):
            await storage.append("t", 0, in_transaction(0, 2))
        fault.on = False
        await until_writable(storage)

        assert (await storage.append("t", 0, in_transaction(0, 2))).last_offset == 1
        assert storage.offsets("t", 0).high_watermark == 2
        assert storage.offsets("t", 0).last_stable == 0
        await storage.close()

    asyncio.run(body())
