"""Groups that park a key after a dead letter, at a server: what follows, what a replay settles, what is stored."""

from __future__ import annotations

import asyncio
from unittest.mock import patch
from uuid import UUID

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    DescribeShareGroupOffsetsRequest,
    FetchPartition,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ParkedKeysRequest,
    ReadShareGroupStateRequest,
    ShareInterveneRequest,
)
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.server.runtime.connection import IN_PROCESS
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share import parked_keys
from flowshare.server.share.opened_log import OpenedBatches, OpenedLog
from flowshare.share import parking, window
from flowshare.share.parking import Mark
from flowshare.testing.clock import settle
from tests.scenarios.records import compact
from tests.scenarios.words import Batch, Place
from tests.server.test_key_order import BY_KEY, keyed, values
from tests.server.world import accept, parked, ranges, reject, release, world

pytestmark = pytest.mark.asyncio

PARKS = {**BY_KEY, "share.key.after.dead.letter": "park"}


async def ask(w, act="list", *, key=b"", partition=0):
    """Send a request about parked keys, and return the answer."""
    return await w.admin.send(ParkedKeysRequest(group_id="g", act=act, topic="t", partition=partition, key=key))


def following(answer):
    return [pair for part in answer.partitions for pair in part.following]


def replay(begun, *records: tuple[str, int, int]) -> bytes:
    """A batch with replayed records: key, original, up to."""
    builder = BatchBuilder()
    for key, original, up_to in records:
        # as sent before them: all up to the one before
        mark = Mark(begun.parked.version, original, up_to, original - 1).encode("g", begun.topic_id, begun.partition)
        builder.add(key.encode(), f"again {original}".encode(), [(REPLAY_HEADER, mark)], timestamp_ms=1_000)
    return builder.build()


async def held_world(w, keys: str, *batches: str):
    """A member holds what may be begun of records with these keys, and of further batches; where, and the member."""
    at = await w.log(keyed(keys))
    for more in batches:
        await w.produce(keyed(more))
    m = w.member("m")
    await m.heartbeat("t", epoch=0)
    await m.fetch(at, heads=500)
    return at, m


async def parked_world(w, keys: str = "aab"):
    """Record 0 of key a is rejected, so that it is parked; where, and the member."""
    at, m = await held_world(w, keys)
    await m.acknowledge({at: [reject(0)]})
    await settle()
    return at, m


async def test_a_rejected_record_parks_its_key_and_the_next_one_comes_to_be_a_dead_letter() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w)
        answer = await m.fetch(at, heads=500)
        told = await ask(w)

    assert ranges(answer) == [(1, 1, 1)]
    assert following(answer) == [(1, 0)]
    assert [(one.topic, one.partition, one.key) for one in told.keys] == [("t", 0, b"a")]
    assert (told.order, told.keys[0].parked.first, told.keys[0].parked.last) == ("key", 0, 0)


async def test_each_that_follows_is_settled_and_counted_as_a_letter() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aaab")
        for offset in (1, 2):
            assert following(await m.fetch(at, heads=500)) == [(offset, 0)]
            await m.acknowledge({at: [reject(offset)]})
            await settle()
        (told,) = (await ask(w)).keys
        (offsets,) = (await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))).partitions

    assert (told.parked.done, told.parked.last) == (-1, 2)
    assert offsets.start_offset == 3


async def test_the_records_of_a_parked_key_come_one_at_a_time() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aaabbb")
        await m.acknowledge({at: [accept(3)]})
        await settle()
        answer = await m.fetch(at, heads=500, chain=16)

    assert ranges(answer) == [(1, 1, 1), (4, 5, 1)]


async def test_who_knows_nothing_of_parked_keys_is_given_none_of_their_records() -> None:
    async with world(configs=PARKS) as w:
        at, _ = await parked_world(w, "aabb")
        foreign = w.member("foreign")
        await w.produce(keyed("c"))
        answer = await foreign.fetch(at)

    assert ranges(answer) == [(4, 4, 1)]


async def test_a_replay_is_run_and_lets_the_key_go_on() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aa")
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [reject(1)]})
        await settle()
        await w.produce(keyed("a"))
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0), ("a", 1, 1)))
        seen = []
        for _ in range(4):
            answer = await m.fetch(at, heads=500)
            seen += zip(values(answer), [bool(following(answer))], strict=True)
            (range_,) = ranges(answer)
            await m.acknowledge({at: [(reject if following(answer) else accept)(range_[0])]})
            await settle()
            if range_[0] == 4:
                break
        (still,) = (await ask(w)).keys
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 2, 2)))
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [accept(5)]})
        await settle()
        free = await ask(w)
        await w.produce(keyed("a"))
        last = await m.fetch(at, heads=500)

    assert seen == [("0", True), ("again 0", False), ("again 1", False)]
    assert (still.parked.done, still.parked.last) == (1, 2)
    assert free.keys == ()
    assert (ranges(last), following(last)) == ([(6, 6, 1)], [])


async def test_a_replay_that_fails_has_the_rest_follow_again() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aa")
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [reject(1)]})
        await settle()
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0), ("a", 1, 1)))
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [reject(2)]})
        await settle()
        behind = await m.fetch(at, heads=500)

    assert (ranges(behind), following(behind)) == ([(3, 3, 1)], [(3, 0)])


@pytest.mark.parametrize("how", ["restart", "die"])
async def test_parked_keys_and_what_was_replayed_outlive_a_restart(how: str) -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "a")
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0)))
        await m.fetch(at, heads=500)
        await getattr(w, how)()
        again = w.member("m")
        await again.heartbeat("t", epoch=0)
        await again.fetch(at, heads=500)
        await w.clock.advance(31)
        answer = await again.fetch(at, heads=500)
        kept = await ask(w)
        await again.acknowledge({at: [accept(1)]})
        await settle()
        gone = await ask(w)

    assert (ranges(answer), following(answer)) == ([(1, 1, 2)], [])
    assert [one.key for one in kept.keys] == [b"a"]
    assert gone.keys == ()


async def test_what_a_replay_has_settled_is_stored_with_the_accept() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aa")
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [reject(1)]})
        await settle()
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0), ("a", 1, 1)))
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [accept(2)]})
        await w.die()
        (told,) = (await ask(w)).keys

    assert (told.parked.done, told.parked.last) == (0, 1)


async def test_a_key_that_is_unparked_goes_on_and_a_replay_of_it_is_passed_over() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aa")
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0)))
        await ask(w, "unpark", key=b"a")
        answer = await m.fetch(at, heads=500)
        await m.acknowledge({at: [accept(1)]})
        await w.produce(keyed("a"))
        await settle()
        last = await m.fetch(at, heads=500)

    assert (ranges(answer), following(answer)) == ([(1, 1, 1)], [])
    assert ranges(last) == [(3, 3, 1)]


async def test_a_replayed_record_that_was_copied_from_another_topic_is_a_record_like_any_other() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "ab")
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        elsewhere = begun._replace(topic_id=UUID(int=9))
        await w.produce(replay(elsewhere, ("a", 0, 0), ("b", 0, 0), ("c", 0, 0)))
        answer = await m.fetch(at, heads=500)
        (told,) = (await ask(w)).keys

    assert (ranges(answer), following(answer)) == ([(2, 2, 1), (4, 4, 1)], [(2, 0)])
    assert told.parked.flying == begun.parked.flying


async def test_an_act_that_nobody_knows_and_a_key_that_is_not_parked_are_told_apart() -> None:
    async with world(configs=PARKS) as w:
        await parked_world(w, "a")
        unknown = await ask(w, "dance")
        absent = await ask(w, "replay", key=b"z")

    assert unknown.error is ErrorCode.INVALID_REQUEST
    assert (absent.error, absent.keys) == (ErrorCode.NONE, ())


async def test_a_group_that_goes_on_after_dead_letters_parks_nothing() -> None:
    async with world(configs=BY_KEY) as w:
        at, m = await parked_world(w, "aa")
        answer = await m.fetch(at, heads=500)
        told = await ask(w)

    assert (ranges(answer), following(answer), told.keys) == ([(1, 1, 1)], [], ())


async def test_a_record_that_used_up_its_deliveries_parks_its_key_too() -> None:
    async with world(configs={**PARKS, "share.delivery.count.limit": "2"}) as w:
        at = await w.log(keyed("aa"))
        m = w.member("m")
        await m.heartbeat("t", epoch=0)
        for _ in range(2):
            await m.fetch(at, heads=500)
            await m.acknowledge({at: [release(0)]})
        await settle()
        answer = await m.fetch(at, heads=500)

    assert following(answer) == [(1, 0)]


async def test_a_key_that_cannot_be_parked_stands_still_until_one_can(monkeypatch, caplog) -> None:
    monkeypatch.setattr(parking, "KEYS_MAX", 1)
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "abb")
        await m.acknowledge({at: [reject(1)]})
        await settle()
        nothing = await m.fetch(at, heads=500)
        await ask(w, "unpark", key=b"a")
        await w.clock.advance(6)
        await settle()
        told = await ask(w)
        answer = await m.fetch(at, heads=500)

    assert nothing.partitions == ()
    assert [one.key for one in told.keys] == [b"b"]
    assert following(answer) == [(2, 1)]
    assert sum("no more can be" in record.message for record in caplog.records) == 1


async def test_a_reset_of_the_offsets_parks_nothing_any_more() -> None:
    from flowshare.protocol.messages import AlterShareGroupOffsetsRequest

    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aa")
        await m.acknowledge({}, epoch=-1)
        await m.heartbeat(epoch=-1)
        answer = await w.admin.send(AlterShareGroupOffsetsRequest(group_id="g", offsets={("t", 0): 0}))
        told = await ask(w)
        first = await w.member("n").fetch(at, heads=500)

    assert answer.error is ErrorCode.NONE
    assert told.keys == ()
    assert (ranges(first), following(first)) == ([(0, 0, 1)], [])


async def test_a_group_with_parked_keys_keeps_its_order() -> None:
    """Records that wait behind a dead letter of their key would run beside its replay."""

    async def alter(**configs: str | None):
        changes = {name.replace("_", "."): value for name, value in configs.items()}
        return await w.admin.send(IncrementalAlterConfigsRequest(resource_type="group", resource="g", configs=changes))

    async with world(configs=PARKS) as w:
        _, m = await parked_world(w, "a")
        await m.acknowledge({}, epoch=-1)
        await m.heartbeat(epoch=-1)
        none = {"share.key.order": None, "share.key.after.dead.letter": None}
        refused = [await alter(**changed) for changed in (none, {**none, "share.key.order": "header:h"})]
        alone = await alter(**{"share.key.order": None})
        await ask(w, "unpark", key=b"a")
        taken = await alter(**none)

    assert [answer.error for answer in refused] == [ErrorCode.POLICY_VIOLATION] * 2
    assert "parked keys (1)" in refused[0].message
    assert "flowshare dlq parked g" in refused[0].message
    assert alone.error is not ErrorCode.NONE
    assert taken.error is ErrorCode.NONE


# --- beside parked keys -------------------------------------------------------------------------------------------


async def test_a_key_whose_unparking_cannot_be_written_stays_parked() -> None:
    async def refuse(*_: object) -> None:
        raise StorageError("no space left")

    async with world(configs=PARKS) as w:
        at, m = await parked_world(w)
        w.storage.before_write = refuse
        told = await ask(w, "unpark", key=b"a")
        w.storage.before_write = None
        answer = await m.fetch(at, heads=500)

    assert told.error is not ErrorCode.NONE
    assert (ranges(answer), following(answer)) == ([(1, 1, 1)], [(1, 0)])


async def test_a_key_that_cannot_be_read_for_a_moment_is_parked_then(monkeypatch) -> None:
    real, failed = OpenedLog.record, []

    async def record(self, offset, **more):
        if not failed:
            failed.append(offset)
            raise StorageError("a moment")
        return await real(self, offset, **more)

    async with world(configs=PARKS) as w:
        at = await w.log(keyed("aa"))
        m = w.member("m")
        await m.heartbeat("t", epoch=0)
        await m.fetch(at, heads=500)
        await w.die()  # who handed it out knows its key
        m.reconnect()
        await m.fetch(at, heads=500)
        monkeypatch.setattr(OpenedLog, "record", record)
        await m.acknowledge({at: [reject(0)]})
        await settle()
        await w.clock.advance(10)
        told = await ask(w)

    assert failed == [0]
    assert [one.key for one in told.keys] == [b"a"]


async def test_a_parked_key_takes_no_turn_from_members_that_hold_nothing() -> None:
    async with world(configs=PARKS) as w:
        at, first = await parked_world(w, "zabab")
        await first.acknowledge({at: [release(1, unrun=True), release(2, unrun=True)]})
        m, n, o = (w.member(name) for name in ("mm", "n", "o"))
        await m.fetch(at, max_records=1, heads=1)
        await n.fetch(at, max_records=1, heads=1)
        ahead = await parked(m.fetch(max_wait_ms=60_000, heads=1))
        waiting = await parked(o.fetch(at, max_wait_ms=60_000, heads=1))
        await n.acknowledge({at: [accept(2)]})
        await settle()

        assert waiting.done()
        assert not ahead.done()


async def test_a_record_of_a_parked_key_wakes_one_that_may_take_it_behind_many_that_may_not() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "z")
        for number in range(17):
            await parked(w.member(f"f{number}").fetch(at, max_wait_ms=60_000))
        own = await parked(m.fetch(at, max_wait_ms=60_000, heads=1))
        await w.produce(keyed("z"))
        await settle()

        assert own.done()


async def died_with(w, at, last: int, name: str) -> None:
    """A member of the server's own process holds `last` and nothing else, and dies with it."""
    m = w.member(name)
    m.connection = w.server.connect(client_id="inside")
    await m.heartbeat("t", epoch=0)
    answer = await m.fetch(at, heads=5_000, max_records=5_000, max_bytes=1 << 26)
    assert any(first <= last <= until for first, until, _ in ranges(answer))
    back = [release(first, min(until, last - 1), unrun=True) for first, until, _ in ranges(answer) if first < last]
    if back:
        await m.acknowledge({at: back})
    await settle()
    await w.die()


async def test_a_suspect_of_a_parked_key_goes_to_none_that_knows_nothing_of_parked_keys() -> None:
    async with world(configs=PARKS) as w:
        at, _ = await parked_world(w, "aa")
        for name in ("in-1", "in-2"):
            await died_with(w, at, 1, name)

        assert ranges(await w.member("foreign").fetch(at)) == []


async def test_a_suspect_is_handed_out_when_its_key_is_known_again_and_not_before() -> None:
    async with world(configs={**PARKS, "share.partition.max.record.locks": "10000"}) as w:
        at = await w.log(keyed("a"))
        m = w.member("m")
        await m.heartbeat("t", epoch=0)
        await m.fetch(at, heads=1)
        await m.acknowledge({at: [reject(0)]})
        await settle()
        for first in range(0, 1_200, 50):
            builder = BatchBuilder()
            for number in range(first, first + 50):
                builder.add(b"k%d" % number, b"x" * 2_000, [], timestamp_ms=1_000)
            await w.produce(builder.build())
        await w.produce(keyed("a"))
        for name in ("in-1", "in-2"):
            await died_with(w, at, 1_201, name)
        answer = await w.member("n").fetch(at, heads=5, max_records=5)

    assert ranges(answer) == [(1, 5, 1)]


@pytest.mark.parametrize("first", ["accept", "unpark"])
async def test_a_key_that_is_parked_no_more_is_not_stored_as_parked_by_a_replay_that_was_asked_for_meanwhile(
    first: str,
) -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "a")
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0)))
        await m.fetch(at, heads=500)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        ends = m.acknowledge({at: [accept(1)]}) if first == "accept" else ask(w, "unpark", key=b"a")
        under_way = [await parked(ends), await parked(ask(w, "replay", key=b"a"))]
        w.storage.before_write = None
        gate.set()
        await asyncio.gather(*under_way)
        await settle()
        await w.restart()
        told = await ask(w)

    assert told.keys == ()


async def test_a_group_that_parks_no_more_lets_go_on_what_was_not_parked() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "abb")
        await w.configure({"share.key.after.dead.letter": None})
        await m.acknowledge({at: [reject(1)]})
        await settle()
        answer = await m.fetch(at, heads=500)
        told = await ask(w)

    assert [one.key for one in told.keys] == [b"a"]
    assert (ranges(answer), following(answer)) == ([(2, 2, 1)], [])


async def test_a_key_that_was_let_go_on_is_not_parked_by_the_record_that_was_following() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aaa")
        assert following(await m.fetch(at, heads=500)) == [(1, 0)]
        await ask(w, "unpark", key=b"a")
        await m.acknowledge({at: [reject(1)]})
        await settle()
        told = await ask(w)
        answer = await m.fetch(at, heads=500)

    assert told.keys == ()
    assert (ranges(answer), following(answer)) == ([(2, 2, 1)], [])


async def test_a_record_that_was_given_back_unrun_and_fails_after_its_key_was_let_go_on_parks_it_again() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aaa")
        assert following(await m.fetch(at, heads=500)) == [(1, 0)]
        await m.acknowledge({at: [release(1)]})
        await ask(w, "unpark", key=b"a")
        answer = await m.fetch(at, heads=500)
        await m.acknowledge({at: [reject(1)]})
        await settle()
        (told,) = (await ask(w)).keys

    assert (ranges(answer), following(answer)) == ([(1, 1, 2)], [])
    assert (told.parked.first, told.parked.last) == (1, 1)


async def test_a_leader_that_did_not_hand_it_out_is_told_that_a_record_only_followed() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aaa")
        assert following(await m.fetch(at, heads=500)) == [(1, 0)]
        await w.die()
        m.reconnect()
        await m.fetch(at, heads=500)
        await ask(w, "unpark", key=b"a")
        await m.acknowledge({at: [reject(1)._replace(unrun=True)]})
        await settle()
        told = await ask(w)

    assert told.keys == ()


GONE = ["retention", "compaction"]


async def lose(w, how: str) -> None:
    """Record 0 is in the log no more, nor in the leader's memory."""
    if how == "retention":
        await w.storage.delete_records("t", 0, 1)
    else:
        compact(w.storage, Place("t", 0), Batch(0, 0))
    for owner in w.server.share.partitions._owners.values():
        owner._ordered._opened.forget()


@pytest.mark.parametrize("how", GONE)
async def test_a_record_that_left_the_log_before_it_was_rejected_parks_its_key(how: str) -> None:
    async with world(configs=PARKS) as w:
        at, m = await held_world(w, "a", "ab")
        await lose(w, how)
        await m.acknowledge({at: [reject(0)]})
        await settle()
        told = await ask(w)
        answer = await m.fetch(at, heads=500)

    assert [(one.key, one.parked.first, one.parked.last) for one in told.keys] == [(b"a", 0, 0)]
    assert following(answer) == [(1, 0)]


@pytest.mark.parametrize("how", GONE)
async def test_a_key_goes_on_whose_rejected_record_left_the_log_unseen_by_its_leader(caplog, how: str) -> None:
    """Nobody can tell its key any more: it is said once, and nothing stands still."""
    async with world(configs=PARKS) as w:
        at, m = await held_world(w, "a", "ab")
        await w.die()
        m.reconnect()
        await m.fetch(at, heads=500)
        await lose(w, how)
        await m.acknowledge({at: [reject(0)]})
        await settle()
        told = await ask(w)
        answer = await m.fetch(at, heads=500)

    assert told.keys == ()
    assert (ranges(answer), following(answer)) == ([(1, 1, 1)], [])
    assert sum("is not in the log any more" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("first", ["held", "settled"])
async def test_what_was_handed_out_is_remembered_until_it_is_settled_and_no_longer(monkeypatch, first: str) -> None:
    monkeypatch.setattr(parked_keys, "HELD_MIN", 4)
    monkeypatch.setattr(window, "_COMPACT", 1)  # so that what is settled is out of the window's reach
    async with world(configs=PARKS) as w:
        at = await w.log(keyed("abcdefghijkl"))
        m = w.member("m")
        await m.heartbeat("t", epoch=0)
        kept = []
        for offset in range(12):
            await m.fetch(at, heads=500, max_records=1)
            if offset or first == "settled":
                await m.acknowledge({at: [accept(offset)]})
                await settle()
            (owner,) = w.server.share.partitions._owners.values()
            kept.append(len(owner.parked._held))
        if first == "held":
            await m.acknowledge({at: [reject(0)]})
            await settle()
        told = await ask(w)
        await w.configure({"share.key.after.dead.letter": None})
        await ask(w, "unpark", key=b"a")
        await w.produce(keyed("m"))
        await m.fetch(at, heads=500)

    assert max(kept) <= 6
    assert [one.key for one in told.keys] == [b"a"] * (first == "held")
    assert owner.parked._held == {}


async def test_a_replayed_record_that_fails_after_its_key_was_let_go_on_parks_it_for_its_original() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aaa")
        for offset in (1, 2):
            await m.fetch(at, heads=500)
            await m.acknowledge({at: [reject(offset)]})
            await settle()
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0), ("a", 1, 1), ("a", 2, 2)))
        await m.fetch(at, heads=500)
        await ask(w, "unpark", key=b"a")
        await m.acknowledge({at: [reject(3)]})
        await settle()
        (told,) = (await ask(w)).keys

    assert (told.parked.first, told.parked.done, told.parked.last) == (0, -1, 0)


async def test_replays_are_told_from_other_records_whatever_else_was_read() -> None:
    """Batches opened for a fetch may not all be kept; a small cache shows that at once."""
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "a")
        owner = w.server.share.partitions.owners("g")[0]
        owner._ordered._opened._batches = OpenedBatches(1)
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await ask(w, "unpark", key=b"a")
        await w.produce(replay(begun, ("a", 0, 0)))
        await w.produce(keyed("b"))
        answer = await m.fetch(at, heads=500)

    assert ranges(answer) == [(2, 2, 1)]


@pytest.mark.parametrize("setting", ["continue", "park"])
async def test_a_replayed_record_at_its_limit_ends_its_replay_whoever_loads_it(setting: str) -> None:
    async with world(configs={**PARKS, "share.delivery.count.limit": "2"}) as w:
        at, m = await parked_world(w, "aa")
        await m.fetch(at, heads=500)
        await m.acknowledge({at: [reject(1)]})
        await settle()
        await w.configure({"share.key.after.dead.letter": setting})
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0), ("a", 1, 1)))
        n = w.member("n")
        n.connection = w.server.connect(client_id="n", host=IN_PROCESS)
        await n.heartbeat("t", epoch=0)
        await n.fetch(at, heads=500)
        await n.acknowledge({at: [release(2)]})
        assert ranges(await n.fetch(at, heads=500)) == [(2, 2, 2)]
        await w.die()
        o = w.member("o")
        await o.heartbeat("t", epoch=0)
        answer = await o.fetch(at, heads=500)
        await settle()
        answer = answer if answer.partitions and ranges(answer) else await o.fetch(at, heads=500)
        (told,) = (await ask(w)).keys

    assert following(answer) == [(3, 0)]
    assert told.parked.done == -1


@pytest.mark.parametrize("how", ["unparked", "configured"])
async def test_what_waits_for_its_key_to_be_parked_is_finished_when_no_more_keys_are(how: str) -> None:
    async with world(configs=PARKS) as w:
        if how == "unparked":
            at, m = await parked_world(w, "abbb")
            await w.configure({"share.key.after.dead.letter": "continue"})
            await asyncio.gather(m.acknowledge({at: [reject(1)]}), ask(w, "unpark", key=b"a"))
            next_of_b = 2
        else:
            at, m = await w.log(keyed("bbb")), w.member("m")
            await m.heartbeat("t", epoch=0)
            await m.fetch(at, heads=500)
            rejecting = asyncio.ensure_future(m.acknowledge({at: [reject(0)]}))
            await asyncio.sleep(0)
            await w.configure({"share.key.after.dead.letter": "continue"})
            await rejecting
            next_of_b = 1
        await settle()
        answer = await m.fetch(at, heads=500)
        owner = w.server.share.partitions.owners("g")[0]

    assert ranges(answer) == [(next_of_b, next_of_b, 1)]
    assert not owner.partition.has_archiving


async def test_a_state_that_another_leader_reads_keeps_parked_keys_and_generation() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "aab")
        request = ReadShareGroupStateRequest(group_id="g", topic_id=at.topic_id, partition=0, leader_epoch=7)
        before = w.server.share.partitions.owners("g")[0]._ordered._generation
        assert (await w.admin.send(request)).error is ErrorCode.NONE
        answer = await m.fetch(at, heads=500)
        told = await ask(w)
        after = w.server.share.partitions.owners("g")[0]._ordered._generation

    assert [one.key for one in told.keys] == [b"a"]
    assert following(answer) == [(1, 0)]
    assert after > before


async def act(w, what, *ranges_):
    """Do an operator's act, and return its result for each range."""
    request = ShareInterveneRequest(group_id="g", topic="t", partition=0, act=what, ranges=ranges_)
    answer = await w.admin.send(request)
    assert answer.error is ErrorCode.NONE, answer.message
    return [one.done for one in answer.found]


LETTERS = {**PARKS, "errors.deadletterqueue.topic.name": "dead", "share.dead.letter.on": "limit"}


@pytest.mark.parametrize("dies", [False, True])
async def test_what_an_operator_gives_up_parks_its_key_and_has_its_letter(dies: bool) -> None:
    async with world(configs=LETTERS) as w:
        at, m = await held_world(w, "aab")
        if dies:
            w.server.share.partitions.get(ShareKey("g", *at))._on_archiving = lambda _: None
        assert await act(w, "dead_letter", (0, 0)) == [1]
        if dies:
            await w.die()
            m = w.member("m")
        await settle()
        answer = await m.fetch(at, heads=500)
        letters = await w.admin.send(FetchRequest(partitions=(FetchPartition("dead", 0, 0),)))

    assert following(answer) == [(1, 0)]
    assert b"Given up by an operator" in letters.partitions[0].records


async def test_what_an_operator_rejects_parks_nothing_and_the_next_of_its_key_is_run() -> None:
    async with world(configs=LETTERS) as w:
        _, m = await held_world(w, "aab")
        assert await act(w, "reject", (0, 0)) == [1]
        await settle()
        answer = await m.fetch(heads=500)

        assert ranges(answer) == [(1, 1, 1)]
        assert following(answer) == []
        assert (await ask(w)).keys == ()


@pytest.mark.parametrize("first", [False, True], ids=["behind another record", "at the start offset"])
async def test_a_replayed_record_that_an_operator_rejects_counts_as_settled(first: bool) -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "ab")
        if first:
            await m.acknowledge({at: [accept(1)]})
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0)))
        assert ranges(await m.fetch(at, heads=500)) == [(2, 2, 1)]
        assert await act(w, "reject", (2, 2)) == [1]

        assert (await ask(w)).keys == ()
        await w.die()
        assert (await ask(w)).keys == ()


async def test_what_an_operator_rejects_lets_its_key_go_on_though_the_first_write_failed() -> None:
    async with world(configs=PARKS) as w:
        at, m = await parked_world(w, "ab")
        (begun,) = (await ask(w, "replay", key=b"a")).keys
        await w.produce(replay(begun, ("a", 0, 0)))
        await m.fetch(at, heads=500)
        with patch.object(w.storage, "write", side_effect=StorageError("the disk is full")):
            request = ShareInterveneRequest(group_id="g", topic="t", partition=0, act="reject", ranges=((2, 2),))
            assert (await w.admin.send(request)).error is ErrorCode.KAFKA_STORAGE_ERROR

        await w.clock.advance(60)
        await w.die()

        assert (await ask(w)).keys == ()
