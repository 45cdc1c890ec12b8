"""Tests that a settle is stored whole or not at all, whatever happens, and that its caller hears the true outcome."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path

import pytest

from flowshare.backoff import Backoff
from flowshare.clock import LoopClock
from flowshare.log import commits
from flowshare.log.base import InDoubt, Output, OutputRefused, StorageError, UnknownTopic
from flowshare.log.commits import QUEUE_BYTES_MAX
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.memory import MemoryStorage
from flowshare.log.storage import BrokerStorage
from flowshare.log.store import RocksStore
from tests.killing import said_until_killed
from tests.log.contract import batch
from tests.log.places import opened, until_writable
from tests.log.settle_contract import to, values
from tests.log.settle_crasher import main
from tests.waiting import LIMIT_S, until

NEVER_S = 10 * LIMIT_S


class Fault:
    """Makes the next commits fail, one for each entry of `fails`: in the store all the same, or not; None: it works.

    Commits wait for `go_on`, opening the store again for `open_again`.
    """

    def __init__(self, monkeypatch) -> None:
        self.fails: list[bool | None] = []
        self.begun = 0
        self.go_on, self.open_again = threading.Event(), threading.Event()
        self.go_on.set()
        self.open_again.set()
        original, reopen = RocksStore.commit, RocksStore.reopen

        def commit(store, steps) -> None:
            self.begun += 1
            assert self.go_on.wait(LIMIT_S)
            stored = self.fails.pop(0) if self.fails else None
            if stored is not False:
                original(store, steps)
            if stored is not None:
                store.commits -= stored
                raise StorageError("injected")

        def reopening(store) -> None:
            assert self.open_again.wait(LIMIT_S)
            reopen(store)

        monkeypatch.setattr(RocksStore, "commit", commit)
        monkeypatch.setattr(RocksStore, "reopen", reopening)
        monkeypatch.setattr(commits, "USUAL", Backoff(0.005, 5.0))
        self._monkeypatch = monkeypatch

    def stays(self) -> None:
        """The store is not opened again by itself."""
        self._monkeypatch.setattr(commits, "USUAL", Backoff(NEVER_S, NEVER_S))


@pytest.fixture
def fault(monkeypatch):
    return Fault(monkeypatch)


async def two_topics(storage: BrokerStorage) -> None:
    """One record and one entry of state in them."""
    for name in ("t", "u"):
        await storage.create_topic(name)
    await storage.append("t", 0, batch(1, value=b"before"))
    await storage.write([(b"s", b"before")])


def outputs(storage: BrokerStorage, value: bytes) -> list[Output]:
    """Two records for one topic and one for the other."""
    return [to(storage, name, 0, batch(1, value=value)) for name in ("t", "u", "t")]


async def settle(storage: BrokerStorage, value: bytes) -> None:
    """Outputs and state of this value."""
    await storage.settle(outputs(storage, value), [(b"s", value), (value, b"")])


async def content(storage: BrokerStorage) -> tuple[bytes, bytes, list[bytes]]:
    """Values of the topics in order, and of the state; keys that settles have put."""
    state = dict(await storage.scan(b""))
    keys = sorted(state.keys() - {b"s", b"probe"})
    return b" ".join([*await values(storage, "t"), b"/", *await values(storage, "u")]), state[b"s"], keys


async def behind_a_commit(storage: EmbeddedStorage, fault: Fault, *calls) -> list[asyncio.Task]:
    """Start the first call, and queue the others when its commit has begun; it waits for `fault.go_on`."""
    begun = fault.begun
    fault.go_on.clear()
    tasks = [asyncio.create_task(calls[0])]
    await until(lambda: fault.begun == begun + 1)
    tasks += [asyncio.create_task(call) for call in calls[1:]]
    await asyncio.sleep(0)
    assert len(storage._writing._writer._queue) == len(calls) - 1
    return tasks


async def doubtful(storage: EmbeddedStorage, fault: Fault, *, stored: bool) -> asyncio.Task[None]:
    """A settle that is in doubt."""
    fault.fails = [stored]
    settling = asyncio.create_task(settle(storage, b"a"))
    await until(lambda: len(storage._writing._doubts) == 1)
    return settling


def on_two_topics(path: Path, body) -> None:
    """Run `body(storage)` on a new storage at `path`, in which there are `two_topics`."""

    async def whole(storage: EmbeddedStorage) -> None:
        await two_topics(storage)
        await body(storage)

    opened(path, whole)


NOTHING = (b"before /", b"before", [])
SETTLED = (b"before a a / a", b"a", [b"a"])
"""The content when a settle of `a` was not stored, and when it was."""


def test_what_was_settled_lasts(tmp_path):
    async def first(storage: EmbeddedStorage) -> None:
        await two_topics(storage)
        await settle(storage, b"a")
        await settle(storage, b"b")

    opened(tmp_path, first)
    assert opened(tmp_path, content) == (b"before a a b b / a b", b"b", [b"a", b"b"])


def test_a_failed_settle_that_is_stored_all_the_same_is_a_success_and_is_there_once(tmp_path, fault):
    async def body(storage: EmbeddedStorage) -> None:
        heard = []
        storage.on_append(lambda topic, _: heard.append((topic, storage.offsets(topic, 0).high_watermark)))
        fault.fails = [True]
        await settle(storage, b"a")

        assert heard == [("t", 3), ("u", 1)]
        assert await content(storage) == SETTLED
        await settle(storage, b"b")

    on_two_topics(tmp_path, body)
    assert opened(tmp_path, content) == (b"before a a b b / a b", b"b", [b"a", b"b"])


def test_a_failed_settle_that_is_not_stored_raises_changes_nothing_and_uses_no_offset(tmp_path, fault):
    async def body(storage: EmbeddedStorage) -> None:
        heard = []
        storage.on_append(lambda *place: heard.append(place))
        fault.fails = [False]
        with pytest.raises(StorageError, match="injected") as caught:
            await settle(storage, b"a")

        assert type(caught.value) is StorageError
        assert heard == []
        assert await content(storage) == NOTHING
        assert (await storage.append("t", 0, batch(1, value=b"b"))).base_offset == 1
        await settle(storage, b"c")

    on_two_topics(tmp_path, body)
    assert opened(tmp_path, content) == (b"before b c c / c", b"c", [b"c"])


@pytest.mark.parametrize("stored", [True, False])
def test_the_truth_is_told_only_once_the_store_could_be_opened_again(tmp_path, fault, monkeypatch, stored):
    reopen, tries = RocksStore.reopen, []
    monkeypatch.setattr(commits, "USUAL", Backoff(0.005, 0.005))

    def failing(store) -> None:
        tries.append(settling.done())
        if len(tries) < 4:
            raise StorageError("injected: still full")
        reopen(store)

    async def body(storage: EmbeddedStorage) -> None:
        nonlocal settling
        # The commit that tries the store, too: once in vain, and then it is not that one that is looked for.
        fault.fails = [stored, False]
        settling = asyncio.create_task(settle(storage, b"a"))
        await asyncio.wait([settling])

        assert tries == [False] * 5
        assert (settling.exception() is None) == stored
        assert await content(storage) == (SETTLED if stored else NOTHING)

    settling: asyncio.Task[None]
    monkeypatch.setattr(RocksStore, "reopen", failing)
    on_two_topics(tmp_path, body)


def test_what_was_queued_behind_a_failed_commit_is_known_not_to_be_stored_and_fails_at_once(tmp_path, fault):
    fault.stays()

    async def body(storage: EmbeddedStorage) -> None:
        fault.fails = [False]
        calls = settle(storage, b"a"), settle(storage, b"b"), storage.append("t", 0, batch(1))
        first, *behind = await behind_a_commit(storage, fault, *calls)
        fault.go_on.set()

        for task in behind:
            with pytest.raises(StorageError, match=r"^injected$"):
                await task
        assert not first.done()
        with pytest.raises(StorageError, match=r"^injected$"):
            await settle(storage, b"c")
        first.cancel()

    on_two_topics(tmp_path, body)
    assert opened(tmp_path, content) == NOTHING


def test_an_append_of_a_failed_commit_fails_at_once_and_a_settle_beside_it_waits_for_the_truth(tmp_path, fault):
    async def body(storage: EmbeddedStorage) -> None:
        fault.fails = [None, True]
        fault.open_again.clear()
        calls = storage.write([(b"x", b"")]), settle(storage, b"a"), storage.append("t", 0, batch(1))
        before, settling, appending = await behind_a_commit(storage, fault, *calls)
        fault.go_on.set()

        await before
        with pytest.raises(StorageError, match="injected"):
            await appending
        assert not settling.done()
        fault.open_again.set()
        await settling
        assert await content(storage) == (b"before a a v / a", b"a", [b"a", b"x"])

    on_two_topics(tmp_path, body)


@pytest.mark.parametrize("stored", [True, False])
def test_closing_ends_a_doubt_and_opening_again_shows_what_is_true(tmp_path, fault, stored):
    fault.stays()
    tasks = []

    async def body(storage: EmbeddedStorage) -> None:
        tasks.append(await doubtful(storage, fault, stored=stored))
        assert not tasks[0].done()

    on_two_topics(tmp_path, body)
    assert isinstance(tasks[0].exception(), InDoubt)
    assert "injected; whether it was stored is known when the storage is opened again" in str(tasks[0].exception())
    assert opened(tmp_path, content) == (SETTLED if stored else NOTHING)


@pytest.mark.parametrize("stored", [True, False])
def test_a_settle_whose_commit_fails_while_the_storage_is_closed_is_in_doubt(tmp_path, fault, stored):
    async def body(storage: EmbeddedStorage) -> None:
        fault.fails = [stored]
        first, behind = await behind_a_commit(storage, fault, settle(storage, b"a"), settle(storage, b"b"))
        closing = asyncio.create_task(storage.close())
        await until(lambda: storage._writing._closed)
        fault.go_on.set()
        await closing

        assert type(first.exception()) is InDoubt
        assert type(behind.exception()) is StorageError

    on_two_topics(tmp_path, body)
    assert opened(tmp_path, content) == (SETTLED if stored else NOTHING)


def test_a_path_that_is_lost_ends_a_doubt_and_what_was_queued_was_never_written(tmp_path, fault):
    fault.stays()

    async def body(storage: EmbeddedStorage) -> None:
        fault.fails = [True]
        first, behind = await behind_a_commit(storage, fault, settle(storage, b"a"), settle(storage, b"b"))
        storage._writing.refuse(StorageError("taken by another one"))
        with pytest.raises(StorageError, match=r"^taken by another one$"):
            await behind
        assert not first.done()
        fault.go_on.set()
        with pytest.raises(InDoubt):
            await first

    on_two_topics(tmp_path, body)


def test_a_path_that_is_lost_while_something_is_in_doubt_ends_the_doubt(tmp_path, fault):
    fault.stays()

    async def body(storage: EmbeddedStorage) -> None:
        task = await doubtful(storage, fault, stored=True)
        storage._writing.refuse(StorageError("taken by another one"))
        with pytest.raises(InDoubt):
            await task

    on_two_topics(tmp_path, body)


@pytest.mark.parametrize("stored", [True, False])
def test_one_who_gave_up_while_it_was_in_doubt_keeps_nobody_from_going_on(tmp_path, fault, stored):
    async def body(storage: EmbeddedStorage) -> None:
        fault.open_again.clear()
        settling = await doubtful(storage, fault, stored=stored)
        settling.cancel()
        await asyncio.wait([settling])
        assert settling.cancelled()
        fault.open_again.set()
        await until_writable(storage)
        await settle(storage, b"c")

    on_two_topics(tmp_path, body)
    expected = (b"before a a c c / a c", b"c", [b"a", b"c"]) if stored else (b"before c c / c", b"c", [b"c"])
    assert opened(tmp_path, content) == expected


def test_a_topic_that_goes_while_a_settle_waits_for_room_is_named_and_the_room_is_given_back(tmp_path):
    async def body(storage: EmbeddedStorage) -> None:
        gate = storage._writing.gate
        await gate.enter(QUEUE_BYTES_MAX)
        settling = asyncio.create_task(settle(storage, b"a"))
        await asyncio.sleep(0)
        deleting = asyncio.create_task(storage.delete_topic("u"))
        await until(lambda: "u" not in storage._partitions)
        gate.leave(1, QUEUE_BYTES_MAX)

        with pytest.raises(OutputRefused) as caught:
            await settling
        await deleting
        assert {index: type(error) for index, error in caught.value.places.items()} == {1: UnknownTopic}
        assert storage._partition("t", 0).next_offset == storage.offsets("t", 0).high_watermark == 1
        assert (gate._requests, gate._bytes) == (0, 0)
        await storage.create_topic("u")
        assert await content(storage) == NOTHING

    on_two_topics(tmp_path, body)


def test_in_memory_a_topic_that_goes_while_a_settle_is_held_is_named_and_others_go_on():
    async def body() -> None:
        storage = MemoryStorage(LoopClock())
        await two_topics(storage)
        gate = asyncio.Event()

        async def hold() -> None:
            await gate.wait()

        storage.before_write = hold
        settling = asyncio.create_task(settle(storage, b"a"))
        await asyncio.sleep(0)
        deleting = asyncio.create_task(storage.delete_topic("u"))
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(OutputRefused) as caught:
            await settling
        await deleting
        assert list(caught.value.places) == [1]
        await storage.create_topic("u")
        assert await content(storage) == NOTHING
        await settle(storage, b"b")
        assert await content(storage) == (b"before b b / b", b"b", [b"b"])

    asyncio.run(body())


def test_in_memory_a_settle_that_is_made_to_fail_leaves_nothing():
    async def body() -> None:
        storage = MemoryStorage(LoopClock())
        await two_topics(storage)

        async def fail() -> None:
            raise StorageError("injected")

        storage.before_write = fail
        with pytest.raises(StorageError, match="injected"):
            await settle(storage, b"a")
        storage.before_write = None
        assert await content(storage) == NOTHING
        await settle(storage, b"b")
        assert await content(storage) == (b"before b b / b", b"b", [b"b"])

    asyncio.run(body())


def check(path: Path, confirmed: set[int]) -> int:
    """All of each settle is there or nothing, and all that were confirmed; returns the number behind the last one."""

    async def body(storage: EmbeddedStorage) -> int:
        pairs, ones = [[int(value.rstrip(b".")) for value in await values(storage, "t", n)] for n in (0, 1)]
        state = {int(value) for _, value in await storage.scan(b"s")}
        assert pairs[::2] == pairs[1::2] == ones
        assert len(ones) == len(state)
        assert set(ones) == state
        assert confirmed <= state
        return max(state, default=-1) + 1

    return opened(path, body)


def crash_repeatedly(path: Path, seed: int, kills: int, *, fsync: bool = False) -> None:
    chance = random.Random(seed)
    confirmed, following = set[int](), 0
    for kill in range(kills):
        said = said_until_killed(main, path, seed + kill, following, fsync, lines=chance.randint(1, 400))
        confirmed |= set(map(int, said))
        following = check(path, confirmed)


def test_a_kill_leaves_all_of_a_settle_or_nothing(tmp_path):
    crash_repeatedly(tmp_path / "storage", seed=1, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("seed", [100, 200])
def test_many_kills_leave_all_of_each_settle_or_nothing(tmp_path, seed, fsync):
    crash_repeatedly(tmp_path / "storage", seed=seed, kills=8, fsync=fsync)
