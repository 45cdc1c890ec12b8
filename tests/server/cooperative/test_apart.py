"""Commits with outputs where these lie elsewhere than the state, and the state's writes fail at the wrong moment."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from flowshare.log.base import SettlesApart, StorageError, Undecided
from flowshare.log.memory import MemoryStorage
from flowshare.protocol.errors import ErrorCode
from flowshare.server.cooperative.apart import following_writes
from flowshare.share.config import ServerConfig
from flowshare.testing.clock import ManualClock, settle
from tests.server.cooperative.test_storage import FAILED, refuse
from tests.server.cooperative.world import NONE, SWEEP, WHOLE, CooperativeWorld
from tests.server.test_settle import output

pytestmark = pytest.mark.asyncio


class Apart(MemoryStorage, SettlesApart):
    """Ends settles when and how a test says."""

    def __init__(self, clock) -> None:
        super().__init__(clock)
        self.under_way: list[asyncio.Future[None]] = []
        self.updates: list[bytes] = []

    async def settle_apart(self, share, update, beside, outputs):
        self.updates.append(update)
        future = asyncio.get_running_loop().create_future()
        self.under_way.append(future)
        await future
        return [(share + b"\x11row", None)]

    async def decided(self, share):
        return None


@asynccontextmanager
async def apart():
    """A server, its storage, a topic of outputs, and a member that holds all."""
    clock = ManualClock()
    storage = Apart(clock)
    w = CooperativeWorld(storage, clock, ServerConfig.embedded(), SWEEP)
    await w.start()
    w.topic_id = await w.topic()
    await w.produce(100)
    out = await w.topic("out")
    m = w.member("m")
    await m.hold(WHOLE)
    try:
        yield w, m, output(out, "x")
    finally:
        await w.close()


async def begun(w, m, made, *ranges):
    """A settle whose outputs are on their way."""
    asked = asyncio.ensure_future(m.settle(*ranges, output=made))
    await settle()
    assert len(w.storage.under_way) == 1
    return asked, w.storage.under_way.pop()


async def test_a_settle_that_is_not_written_frees_its_offsets_though_a_write_before_it_fails():
    async with apart() as (w, m, made):
        first, end = await begun(w, m, made, (0, 3))
        gate = asyncio.Event()

        async def fails():
            await gate.wait()
            raise StorageError("the disk is full")

        w.storage.before_write = fails
        commit = asyncio.ensure_future(m.commits(m.entry((5, 6))))
        await settle()
        end.set_exception(StorageError("no lane"))
        await settle()
        gate.set()
        assert (await commit).error is FAILED
        w.storage.before_write = None
        await w.clock.advance(1)
        assert (await first).error is ErrorCode.KAFKA_STORAGE_ERROR

        again, end = await begun(w, m, made, (0, 3))
        end.set_result(None)
        assert (await again).error is NONE
        assert await w.state() == (3, [])


async def test_a_settle_whose_outputs_are_written_comes_into_the_state_however_often_that_fails():
    async with apart() as (w, m, made):
        asked, end = await begun(w, m, made, (0, 3))
        w.storage.before_write = refuse
        end.set_result(None)
        await settle()
        assert (await m.commits(m.entry((5, 6)))).error is FAILED
        assert not asked.done()
        assert (await m.settle((0, 3), output=made)).error is ErrorCode.CONCURRENT_TRANSACTIONS
        await w.clock.advance(3)
        w.storage.before_write = None
        await w.clock.advance(10)

        assert (await asked).error is NONE
        assert await w.state() == (3, [])


async def test_what_is_not_decided_here_stays_reserved():
    async with apart() as (w, m, made):
        asked, end = await begun(w, m, made, (0, 3))
        end.set_exception(Undecided("led elsewhere"))
        assert (await asked).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await m.settle((0, 3), output=made)).error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (await w.told()).unstable


async def test_an_update_is_followed_once_and_one_of_another_epoch_not_at_all():
    async with apart() as (w, m, made):
        await m.commit((5, 6))
        asked, end = await begun(w, m, made, (0, 3))
        (update,) = w.storage.updates
        entries = await w.storage.scan(b"k/")
        await w.storage.write(following_writes(entries, [update, update]))
        twice = following_writes(await w.storage.scan(b"k/"), [update])
        other = following_writes(entries, [update.replace(str(m.epochs[0]).encode(), b"7")])
        end.set_result(None)

        assert (twice, other) == ([], [])
        assert following_writes([], [update]) == []
        assert (await asked).error is NONE
        assert await w.state() == (3, [(5, 6)])


async def test_a_server_that_ends_waits_for_no_end_of_a_transaction():
    async with apart() as (w, m, made):
        asked, _ = await begun(w, m, made, (0, 3))
        await w.server.close()
        with pytest.raises(ConnectionError):
            await asked


async def test_a_server_that_ends_does_not_wait_for_a_disk_that_takes_nothing():
    async with apart() as (w, m, made):
        asked, end = await begun(w, m, made, (0, 3))
        w.storage.before_write = refuse
        end.set_result(None)
        await settle()
        closing = asyncio.ensure_future(w.server.close())
        await settle()
        await w.clock.advance(10)
        await closing
        with pytest.raises(ConnectionError):
            await asked


async def test_a_group_that_is_deleted_meanwhile_leaves_nothing():
    async with apart() as (w, m, made):
        asked, _ = await begun(w, m, made, (0, 3))
        w.server._cooperative_groups.forget("g", None)
        assert (await asked).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
