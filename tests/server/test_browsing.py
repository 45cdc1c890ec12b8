"""Looking at a share-partition without taking anything, and acting on what others hold."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    ShareBrowseRequest,
    ShareInterveneRequest,
    SharePlacesRequest,
)
from flowshare.protocol.messages.browse import RUNS_MAX
from flowshare.server.runtime.state import ShareKey, delete_state, initial_writes, stored_in
from flowshare.server.share import browsing
from flowshare.share.types import PartitionState, RecordState, StateRun
from flowshare.testing.clock import settle
from tests.server.world import EARLIEST, accept, ranges, release, world

pytestmark = pytest.mark.asyncio
ORDERED = {**EARLIEST, "share.key.order": "key"}
DEAD = {**EARLIEST, "errors.deadletterqueue.topic.name": "dead", "share.dead.letter.on": "limit"}


async def browse(w, **asked):
    return await w.admin.send(ShareBrowseRequest(**{"group_id": "g", "topic": "t", "partition": 0, **asked}))


async def intervene(w, act, *offsets, **more):
    request = ShareInterveneRequest(group_id="g", topic="t", partition=0, act=act, ranges=offsets, **more)
    return await w.admin.send(request)


def runs(answer):
    assert answer.error is ErrorCode.NONE, answer.message
    return [(one.first, one.last, one.state, one.delivery_count, one.member_id) for one in answer.runs]


def counts(answer):
    """done, not held, gone, busy, blocked of each range."""
    assert answer.error is ErrorCode.NONE, answer.message
    return [tuple(one[2:]) for one in answer.found]


async def stored(w, at):
    return await w.storage.scan(ShareKey("g", *at).prefix)


async def test_each_state_is_told_with_who_holds_it_and_until_when():
    async with world() as w:
        at = await w.log(20)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.fetch(at, max_records=10, acquire_mode=1)
        await m.acknowledge({at: [accept(0, 1), accept(4), release(5, delay_ms=60_000)]})

        answer = await browse(w)

        assert runs(answer) == [
            (2, 3, "acquired", 1, "m1"),
            (4, 4, "acknowledged", 1, ""),
            (5, 5, "delayed", 1, ""),
            (6, 9, "acquired", 1, "m1"),
            (10, 19, "available", 0, ""),
        ]
        now_ms = w.clock.now_ms()
        assert [one.due_ms - now_ms for one in answer.runs] == [30_000, -now_ms, 60_000, 30_000, -now_ms]
        assert (answer.loaded, answer.taken_ms, answer.next, answer.holes) == (True, now_ms, -1, ())
        assert (answer.start_offset, answer.end_offset) == (2, 20)
        assert (answer.log_start, answer.log_end, answer.last_stable) == (0, 20, 20)


async def test_what_is_not_loaded_is_read_as_it_is_stored_and_stays_so():
    async with world() as w:
        at, m = await w.held(10, joined=True)
        await m.acknowledge({at: [accept(3), release(5, delay_ms=60_000)]})
        await w.die()
        before = await stored(w, at)

        answer = await browse(w)

        assert runs(answer) == [
            (0, 2, "acquired", 1, "m1"),
            (3, 3, "acknowledged", 1, ""),
            (4, 4, "acquired", 1, "m1"),
            (5, 5, "delayed", 1, ""),
            (6, 9, "acquired", 1, "m1"),
        ]
        assert (answer.loaded, answer.start_offset, answer.end_offset, answer.log_end) == (False, 0, 10, 10)
        assert w.server.share.partitions.owners() == []
        assert await stored(w, at) == before


async def test_a_hundred_looks_change_no_stored_byte_loaded_or_not():
    async with world() as w:
        at, m = await w.held(10, joined=True)
        await m.acknowledge({at: [accept(3)]})
        before = await stored(w, at)
        for _ in range(50):
            assert (await browse(w)).loaded
        await settle()
        assert await stored(w, at) == before
        await w.die()
        before = await stored(w, at)
        for _ in range(50):
            assert not (await browse(w)).loaded

        assert await stored(w, at) == before


async def test_what_was_never_begun_is_said_to_be_so():
    async with world() as w:
        await w.topic()
        await w.topic("other")
        await w.produce(5)
        await w.member("m1").heartbeat("other")
        answer = await browse(w)

        assert (answer.start_offset, answer.loaded, answer.runs, answer.log_end) == (-1, False, (), 5)


async def test_pages_go_on_where_the_last_one_ended_and_tell_all_of_it_once():
    async with world() as w:
        at, m = await w.held(30, joined=True)
        await m.acknowledge({at: [accept(offset) for offset in range(1, 30, 2)]})
        found, offset = [], -1
        while True:
            answer = await browse(w, offset=offset, limit=4)
            assert len(answer.runs) <= 4
            found += answer.runs
            if answer.next < 0:
                break
            offset = answer.next

        assert [(one.first, one.last) for one in found] == [(at, at) for at in range(30)]


async def test_only_the_states_that_are_asked_for_are_told():
    async with world() as w:
        at, m = await w.held(10, joined=True)
        await m.acknowledge({at: [accept(3)]})

        assert runs(await browse(w, states=("acknowledged",))) == [(3, 3, "acknowledged", 1, "")]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"limit": 0}, ErrorCode.INVALID_REQUEST),
        ({"limit": RUNS_MAX + 1}, ErrorCode.INVALID_REQUEST),
        ({"states": ("lost",)}, ErrorCode.INVALID_REQUEST),
        ({"topic": "none"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"group_id": "none"}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
async def test_what_is_not_there_or_makes_no_sense_is_refused(asked, code):
    async with world() as w:
        await w.held(1, joined=True)

        assert (await browse(w, **asked)).error is code


async def test_what_retention_took_is_a_hole():
    async with world() as w:
        await w.held(10, joined=True)
        await w.die()
        await w.storage.delete_records("t", 0, 4)

        answer = await browse(w)

        assert [tuple(one) for one in answer.holes] == [(0, 3, "retention")]
        assert (answer.start_offset, answer.log_start) == (0, 4)


async def test_a_record_that_waits_for_its_key_names_the_one_before_it():
    async with world(configs=ORDERED) as w:
        await w.held(3, joined=True)

        assert [(one.first, one.last, one.state, one.head) for one in (await browse(w)).runs] == [
            (0, 0, "acquired", -1),
            (1, 2, "blocked", 0),
        ]
        assert (await browse(w)).order == "key"


async def test_a_topic_that_is_deleted_meanwhile_is_said_to_be_gone():
    async with world() as w:
        await w.held(3, joined=True)
        await w.admin.send(DeleteTopicRequest(name="t"))

        assert (await browse(w)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_released_record_goes_to_the_next_member_and_its_former_one_is_refused():
    async with world() as w:
        at, m1 = await w.held(3, joined=True)
        m2 = w.member("m2")

        assert counts(await intervene(w, "release", (1, 1))) == [(1, 0, 0, 0, 0)]

        assert ranges(await m2.fetch(at)) == [(1, 1, 2)]
        refused = await m1.acknowledge({at: [accept(1)]})
        assert refused.partitions[0].error is ErrorCode.INVALID_RECORD_STATE
        accepted = await m1.acknowledge({at: [accept(0)]})
        assert accepted.partitions[0].error is ErrorCode.NONE


async def test_what_was_rejected_is_so_after_a_crash():
    async with world() as w:
        await w.held(3, joined=True)
        await intervene(w, "reject", (0, 0), (2, 2))
        await w.die()

        answer = await browse(w)
        assert runs(answer) == [(1, 1, "acquired", 1, "m1"), (2, 2, "archived", 1, "")]
        assert answer.start_offset == 1


async def test_a_delayed_record_comes_now():
    async with world() as w:
        at, m = await w.held(2, joined=True)
        await m.acknowledge({at: [release(0, delay_ms=60_000)]})

        assert counts(await intervene(w, "now", (0, 1))) == [(1, 1, 0, 0, 0)]
        assert ranges(await m.fetch()) == [(0, 0, 2)]


async def test_a_dead_letter_names_the_operator_and_outlives_a_crash_before_it_is_written():
    async with world(configs=DEAD) as w:
        at, _ = await w.held(3, joined=True)
        writing = w.server.share._dead_letters
        writing.start = lambda owner: None
        w.server.share.partitions.get(ShareKey("g", *at))._on_archiving = lambda owner: None

        assert counts(await intervene(w, "dead_letter", (1, 1))) == [(1, 0, 0, 0, 0)]
        await w.die()
        await w.member("m2").fetch(at)
        await settle()

        fetched = await w.admin.send(FetchRequest(partitions=(FetchPartition("dead", 0, 0),)))
        assert b"Given up by an operator" in fetched.partitions[0].records
        assert (1, 1, "archived", 1, "") in runs(await browse(w))


async def test_without_a_topic_for_dead_letters_nothing_becomes_one():
    async with world() as w:
        await w.held(3, joined=True)
        answer = await intervene(w, "dead_letter", (1, 1))

        assert answer.error is ErrorCode.INVALID_REQUEST
        assert "errors.deadletterqueue.topic.name" in answer.message
        assert runs(await browse(w)) == [(0, 2, "acquired", 1, "m1")]


async def test_a_dry_run_says_what_would_be_done_and_does_nothing():
    async with world() as w:
        at, _ = await w.held(3, joined=True)
        before = await stored(w, at)

        assert counts(await intervene(w, "reject", (0, 9), dry_run=True)) == [(3, 7, 0, 0, 0)]
        assert await stored(w, at) == before


async def test_what_could_not_be_written_is_said_and_written_later():
    async with world() as w:
        await w.held(3, joined=True)

        async def full():
            raise StorageError("the disk is full")

        w.storage.before_write = full
        answer = await intervene(w, "reject", (0, 0))

        assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        w.storage.before_write = None
        await w.clock.advance(2)
        await settle()
        await w.die()
        assert (await browse(w)).start_offset == 1


@pytest.mark.parametrize(
    ("act", "offsets"),
    [
        ("burn", ((0, 0),)),
        ("release", ()),
        ("release", ((1, 0),)),
        ("release", ((3, 4), (1, 2))),
        ("release", ((0, 2), (2, 4))),
        ("release", ((0, 10_000),)),
        ("release", tuple((at, at) for at in range(0, 2_002, 2))),
    ],
    ids=["act", "none", "backwards", "unsorted", "overlap", "records", "ranges"],
)
async def test_what_nobody_can_mean_is_refused(act, offsets):
    async with world() as w:
        await w.held(3, joined=True)

        assert (await intervene(w, act, *offsets)).error is ErrorCode.INVALID_REQUEST


async def test_after_a_restart_the_keys_of_what_is_held_are_read_before_it_is_taken_away():
    async with world(configs=ORDERED) as w:
        await w.held(3, joined=True)
        await w.die()

        assert counts(await intervene(w, "release", (0, 2))) == [(1, 0, 0, 0, 2)]
        assert runs(await browse(w)) == [(0, 0, "available", 1, ""), (1, 2, "blocked", 0, "")]


def stored_state(offsets: int):
    """Every second offset is finished."""
    states = (RecordState.AVAILABLE, RecordState.ACKNOWLEDGED)
    runs = tuple(StateRun(at, at, states[at % 2], 1) for at in range(offsets))
    return PartitionState(start_offset=0, runs=runs)


async def put(w, key, offsets):
    """Have that stored, and nothing else."""
    writes = {**dict(await delete_state(w.storage, [key])), **dict(initial_writes(key, stored_state(offsets)))}
    await w.storage.write(list(writes.items()))


async def test_a_large_state_that_nobody_has_loaded_is_decoded_once_for_its_pages(monkeypatch):
    decoded = []

    def counted(entries, key):
        decoded.append(key)
        return stored_in(entries, key)

    monkeypatch.setattr(browsing, "stored_in", counted)
    monkeypatch.setattr(browsing, "INLINE_BYTES", 1_000)
    async with world() as w:
        at, _ = await w.held(1, joined=True)
        await w.die()
        key = ShareKey("g", *at)
        await put(w, key, 5_000)
        pages = [await browse(w, offset=offset, limit=1_000) for offset in range(0, 5_000, 1_000)]

        assert [(page.runs[0].first, page.next) for page in pages] == [
            (0, 1_000),
            (1_000, 2_000),
            (2_000, 3_000),
            (3_000, 4_000),
            (4_000, -1),
        ]
        assert len(decoded) == 1
        await put(w, key, 4_000)
        assert (await browse(w)).end_offset == 4_000
        assert len(decoded) == 2
        await w.clock.advance(browsing.KEPT_S + 1)
        assert (await browse(w)).end_offset == 4_000
        assert len(decoded) == 3


async def test_a_long_answer_gives_way_to_others():
    async with world() as w:
        at, _ = await w.held(20_000, joined=True)
        await w.server.share.partitions.drop([ShareKey("g", *at)])
        await put(w, ShareKey("g", *at), 20_000)
        await w.member("m2").fetch(at, max_records=1, acquire_mode=1)
        turns = 0
        looking = asyncio.ensure_future(browse(w))
        while not looking.done():
            await asyncio.sleep(0)
            turns += 1

        assert len((await looking).runs) == RUNS_MAX
        assert turns > 3


async def test_a_group_among_ten_thousand_is_browsed_without_a_look_at_the_others():
    async with world() as w:
        at, _ = await w.held(3, joined=True)
        for number in range(10_000):
            w.server.share.partitions.know(ShareKey(f"other-{number}", *at))

        assert runs(await browse(w)) == [(0, 2, "acquired", 1, "m1")]
        assert (await w.admin.send(SharePlacesRequest(group_id="g"))).places == (("t", 0),)
