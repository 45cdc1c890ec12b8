"""Commits with outputs at a server on a path: both or neither, and the outputs of an offset once.

The numbers are those of the reference's scenarios (queue-systems, §5.6)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from flowshare.cooperative.pending import WAITING_MAX
from flowshare.log.base import OutputRefused, RecordsTooLarge, StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DeleteTopicRequest
from flowshare.protocol.messages.cooperative import CommitEntry
from flowshare.protocol.messages.share import SETTLE_WAIT_MS
from flowshare.testing.clock import settle
from tests.server.cooperative.test_storage import FAILED, killed, refuse
from tests.server.cooperative.world import LEASE_MS, LOWER, NONE, UPPER, WHOLE, cooperative
from tests.server.test_settle import output, there

pytestmark = pytest.mark.asyncio
NOT_HELD = ErrorCode.INVALID_RECORD_STATE


@asynccontextmanager
async def settling(**fields):
    """A server, the id of topic `out`, and members that hold the lower and the upper keys."""
    async with cooperative(**fields) as w:
        out = await w.topic("out")
        a, b = w.member("a"), w.member("b")
        await a.hold(LOWER)
        await b.hold(UPPER)
        yield w, out, a, b


def told(answer):
    return answer.error, [tuple(one) for one in answer.fenced], [tuple(one) for one in answer.committed]


async def test_43_outputs_are_there_when_their_offsets_are_committed_and_in_the_same_write():
    async with settling() as (w, out, a, _):
        writes = []
        write = w.storage.settle

        async def counted(outputs, state):
            writes.append((len(outputs), {name[:2] for name, _ in state}))
            await write(outputs, state)

        w.storage.settle = counted
        answer = await a.settle((0, 3), (5, 6), output=output(out, "a", "b"))

        assert told(answer) == (NONE, [], [])
        assert (answer.stable, answer.count, answer.furthest) == (3, 1, 6)
        assert await there(w) == ["a", "b"]
        assert await w.state() == (3, [(5, 6)])
        assert (await w.offset())[0] == 3
        [(count, prefixes)] = writes
        assert (count, len(prefixes)) == (1, 2)  # state and the group's ordinary offset


async def test_43_a_settle_that_cannot_be_written_leaves_neither_and_can_be_made_again():
    async with settling() as (w, out, a, _):
        w.storage.before_write = refuse
        failed = await a.settle((0, 3), output=output(out, "a"))
        w.storage.before_write = None

        assert failed.error is FAILED
        assert (await there(w), await w.state()) == ([], (0, []))
        assert (await a.settle((0, 3), output=output(out, "a"))).error is NONE
        assert await there(w) == ["a"]


async def test_the_same_settle_again_writes_nothing_and_says_what_is_committed():
    async with settling() as (w, out, a, _):
        await a.settle((0, 3), (5, 6), output=output(out, "a"))

        assert told(await a.settle((0, 3), (5, 6), output=output(out, "a"))) == (NOT_HELD, [], [(0, 3), (5, 6)])
        assert told(await a.settle((5, 7), output=output(out, "b"))) == (NOT_HELD, [], [(5, 6)])
        assert await there(w) == ["a"]
        assert await w.state() == (3, [(5, 6)])


async def test_the_same_settle_again_while_the_first_is_being_written_is_answered_behind_it():
    for fails in (False, True):
        async with settling() as (w, out, a, _):
            gate = asyncio.Event()

            async def held(gate=gate, fails=fails):
                if not gate.is_set():
                    await gate.wait()
                    if fails:
                        raise StorageError("the disk is full")

            w.storage.before_write = held
            first = asyncio.ensure_future(a.settle((0, 3), output=output(out, "a")))
            await settle()
            second = asyncio.ensure_future(a.settle((0, 3), output=output(out, "a")))
            await settle()
            assert not second.done()
            gate.set()

            if fails:
                assert [(await first).error, (await second).error] == [FAILED] * 2
                assert await there(w) == []
            else:
                assert told(await first) == (NONE, [], [])
                assert told(await second) == (NOT_HELD, [], [(0, 3)])
                assert await there(w) == ["a"]


async def test_a_plain_commit_that_was_first_keeps_a_settle_from_writing():
    async with settling() as (w, out, a, _):
        await a.commit((0, 2))

        assert told(await a.settle((1, 3), output=output(out, "a"))) == (NOT_HELD, [], [(1, 2)])
        assert await there(w) == []
        assert await w.state() == (2, [])


async def test_47_a_member_whose_keys_are_anothers_writes_nothing():
    async with settling() as (w, out, a, b):
        zombie = a.entry((0, 3))
        await w.clock.advance(LEASE_MS / 1000 + 1)
        b.sequence = 10
        await b.hold(WHOLE)

        assert told(await a.settles([zombie], output(out, "a"))) == (NOT_HELD, [(0, 3)], [])
        await b.settle((0, 3), output=output(out, "b"))
        assert told(await a.settles([zombie], output(out, "a"))) == (NOT_HELD, [(0, 3)], [(0, 3)])
        assert await there(w) == ["b"]


async def test_one_entry_that_is_fenced_refuses_all():
    async with settling() as (w, out, a, b):
        own = a.entry((0, 3))
        others = CommitEntry(b.entry((5, 6)).keys, own.epoch, [(5, 6)])

        assert told(await a.settles([own, others], output(out, "a"))) == (NOT_HELD, [(5, 6)], [])
        assert (await there(w), await w.state()) == ([], (0, []))


async def test_after_a_reset_or_a_deletion_nothing_of_before_is_settled():
    async with settling() as (w, out, a, b):
        entry = a.entry((0, 3))
        await a.leaves()
        await b.leaves()
        assert (await w.reset(50)).error is NONE

        assert (await a.settles([entry], output(out, "a"))).error is ErrorCode.FENCED_STATE_EPOCH
        assert await there(w) == []


async def test_an_output_that_cannot_be_is_named_and_nothing_is_written():
    async with settling() as (w, out, a, _):
        answer = await a.settles([a.entry((0, 3))], output(out, "a"), output(out, "b", topic="gone"))

        assert answer.error is ErrorCode.INVALID_REQUEST
        assert [(one.place, one.error) for one in answer.outputs] == [(1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert (await there(w), await w.state()) == ([], (0, []))


async def test_an_output_that_the_write_refuses_takes_what_was_decided_on_it_along_and_nothing_else():
    async with cooperative(partitions=2) as w:
        out, bad = await w.topic("out"), await w.topic("bad")
        m = w.member("m")
        await m.asks({0: WHOLE, 1: WHOLE})
        gate, write = asyncio.Event(), w.storage.settle

        async def refusing(outputs, state):
            for index, one in enumerate(outputs):
                if one.topic == "bad":
                    raise OutputRefused({index: RecordsTooLarge("too large")})
            await write(outputs, state)

        w.storage.settle, w.storage.before_write = refusing, gate.wait
        first = asyncio.ensure_future(m.commit((50, 51), at=1))
        await settle()
        asked = [
            asyncio.ensure_future(one)
            for one in (
                m.settle((0, 1), output=output(out, "before")),
                m.settle((1, 2), output=output(bad, "x", topic="bad")),
                m.settle((2, 3), output=output(out, "behind")),
                m.settle((0, 1), at=1, output=output(out, "beside")),
            )
        ]
        await settle()
        gate.set()
        await first
        before, refused, behind, beside = [await one for one in asked]

        assert [before.error, refused.error, behind.error, beside.error] == [
            NONE,
            ErrorCode.INVALID_REQUEST,
            FAILED,
            NONE,
        ]
        assert [(one.place, one.error) for one in refused.outputs] == [(0, ErrorCode.MESSAGE_TOO_LARGE)]
        assert await there(w) == ["before", "beside"]
        assert [await w.state(0), await w.state(1)] == [(1, []), (1, [(50, 51)])]
        assert (await m.settle((2, 3), output=output(out, "behind"))).error is NONE


async def test_a_topic_that_is_deleted_between_check_and_write_is_told():
    async with settling() as (w, out, a, _):
        checked = w.server._cooperative_groups.checked

        async def slow(outputs, *, source):
            found = await checked(outputs, source=source)
            await w.admin.send(DeleteTopicRequest(name="out"))
            return found

        w.server._cooperative_groups.checked = slow
        answer = await a.settle((0, 3), output=output(out, "a"))

        assert answer.error is ErrorCode.INVALID_REQUEST
        assert [one.error for one in answer.outputs] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await w.state() == (0, [])


async def test_a_settle_without_records_or_with_too_many_outputs_is_refused():
    async with settling() as (_, out, a, _b):
        for entries, outputs in (([], ()), ([a.entry((0, 1))], (output(out, "a"),) * 5_001)):
            assert (await a.settles(entries, *outputs)).error is ErrorCode.INVALID_REQUEST


# --- in the partition's order ---------------------------------------------------------------------------------------


async def test_44_an_ordered_settle_waits_until_all_before_it_is_committed():
    async with settling() as (w, out, a, b):
        late = asyncio.ensure_future(b.settle((1, 2), output=output(out, "1"), ordered=True))
        later = asyncio.ensure_future(a.settle((3, 5), output=output(out, "3"), ordered=True))
        await settle()
        assert not late.done()
        await a.settle((2, 3), output=output(out, "2 in no order"))
        await a.settle((0, 1), output=output(out, "0"), ordered=True)

        assert [(await late).error, (await later).error] == [NONE, NONE]
        assert await there(w) == ["2 in no order", "0", "1", "3"]
        assert await w.state() == (5, [])


async def test_44_many_waiters_are_released_in_the_order_of_their_offsets_by_commits_of_any_kind():
    async with settling() as (w, out, a, b):
        asked = [
            asyncio.ensure_future((a, b)[at % 2].settle((at, at + 1), output=output(out, str(at)), ordered=True))
            for at in (7, 3, 9, 5, 4, 8)
        ]
        await settle()
        await a.commit((0, 3))
        await settle()
        assert await there(w) == ["3", "4", "5"]
        await b.commit((6, 7))

        assert [(await one).error for one in asked] == [NONE] * 6
        assert await there(w) == ["3", "4", "5", "7", "8", "9"]


async def test_45_what_waits_behind_one_that_failed_stays_parked_and_both_complete_when_it_comes_again():
    async with settling() as (w, out, a, b):
        second = asyncio.ensure_future(b.settle((1, 2), output=output(out, "1"), ordered=True))
        await settle()
        w.storage.before_write = refuse
        assert (await a.settle((0, 1), output=output(out, "0"), ordered=True)).error is FAILED
        w.storage.before_write = None
        assert (await second).error is FAILED  # it was decided on top of it, and is asked again
        second = asyncio.ensure_future(b.settle((1, 2), output=output(out, "1"), ordered=True))
        await settle()
        assert not second.done()
        assert (await a.settle((0, 1), output=output(out, "0"), ordered=True)).error is NONE

        assert (await second).error is NONE
        assert await there(w) == ["0", "1"]


async def test_49_a_rebalance_the_time_limit_and_a_lost_claim_fail_whoever_waits_and_nothing_is_written():
    async with settling() as (w, out, a, b):
        waits = asyncio.ensure_future(b.settle((5, 6), output=output(out, "5"), ordered=True))
        await settle()
        a.generation = 2
        await a.hold(LOWER)
        assert (await waits).error is ErrorCode.REBALANCE_IN_PROGRESS

        waits = asyncio.ensure_future(b.settle((5, 6), output=output(out, "5"), ordered=True))
        await settle()
        await w.clock.advance(SETTLE_WAIT_MS / 1000)
        assert (await waits).error is ErrorCode.REQUEST_TIMED_OUT

        waits = asyncio.ensure_future(b.settle((5, 6), output=output(out, "5"), ordered=True))
        await settle()
        await b.leaves()
        assert told(await waits) == (NOT_HELD, [(5, 6)], [])
        assert (await there(w), await w.state()) == ([], (0, []))


async def test_49_at_the_bound_the_next_ones_are_told_to_wait_and_whose_turn_it_is_goes_all_the_same():
    async with settling(records=2 * WAITING_MAX) as (w, out, a, b):
        waits = [asyncio.ensure_future(b.settle((at, at + 1), ordered=True)) for at in range(1, WAITING_MAX + 1)]
        await settle()
        late = await b.settle((WAITING_MAX + 1, WAITING_MAX + 2), ordered=True)
        assert late.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED

        assert (await a.settle((0, 1), output=output(out, "0"), ordered=True)).error is NONE
        assert {(await one).error for one in waits} == {NONE}
        assert await w.state() == (WAITING_MAX + 1, [])


async def test_an_ordered_settle_is_of_one_run():
    async with settling() as (_, out, a, _b):
        assert (
            await a.settle((0, 1), (2, 3), output=output(out, "a"), ordered=True)
        ).error is ErrorCode.INVALID_REQUEST


async def test_50_a_range_that_was_committed_plainly_stays_when_a_settle_of_it_fails():
    async with settling() as (w, out, a, _):
        await a.commit((0, 2))
        w.storage.before_write = refuse
        assert told(await a.settle((0, 2), output=output(out, "a"))) == (NOT_HELD, [], [(0, 2)])
        w.storage.before_write = None

        assert (await there(w), await w.state()) == ([], (2, []))


# --- crashes --------------------------------------------------------------------------------------------------------


class History:
    """Settles of two members, some in order, some plain commits between; what was answered, and what was tried."""

    def __init__(self, w, out) -> None:
        self.w, self.out = w, out
        self.a, self.b = w.member("a"), w.member("b")
        self.done: set[int] = set()
        self.tried: set[int] = set()

    async def one(self, member, first, end, *, ordered=False) -> None:
        if not member.held.get(0):
            return
        self.tried |= set(range(first, end))
        made = output(self.out, *(str(offset) for offset in range(first, end)))
        answer = await member.settle((first, end), output=made, ordered=ordered)
        if answer.error is NONE:
            self.done |= set(range(first, end))

    async def run(self) -> None:
        a, b = self.a, self.b
        await a.asks({0: LOWER})
        await b.asks({0: UPPER})
        await self.one(a, 3, 5)
        ordered = [asyncio.ensure_future(self.one(b, first, first + 1, ordered=True)) for first in (5, 6)]
        await settle()
        await asyncio.gather(self.one(a, 0, 3, ordered=True), self.one(b, 20, 23))
        await self.w.clock.advance(SETTLE_WAIT_MS / 1000)
        await asyncio.gather(*ordered)
        await asyncio.gather(self.one(a, 30, 31), self.one(a, 30, 31), self.one(b, 40, 42))
        await self.one(a, 30, 31)
        await self.one(b, 7, 20)


@pytest.mark.parametrize("whole", [False, True], ids=["before it is written", "after it is written"])
@pytest.mark.parametrize("number", range(9))
async def test_a_server_that_ends_at_any_write_has_outputs_exactly_of_what_is_committed(number, whole):
    """number: at which write of the history."""
    async with cooperative() as w:
        history = History(w, await w.topic("out"))
        writes = {"settle": w.storage.settle, "write": w.storage.write}
        left, ended = [number], list[bool]()

        def ending(name):
            async def end(*args):
                if not ended and left[0]:
                    left[0] -= 1
                    await writes[name](*args)
                    return
                if not ended and whole:
                    await writes[name](*args)
                ended.append(True)
                raise StorageError("the process is gone")

            return end

        w.storage.settle, w.storage.write = ending("settle"), ending("write")
        await history.run()
        w.storage.settle, w.storage.write = writes["settle"], writes["write"]
        await killed(w, history.a, history.b)

        state = await w.told()
        found = set[int]()
        if state is not None:
            found = set(range(state.stable)).union(*(range(*one) for one in state.ranges.pairs()))
            assert (await w.offset())[0] == state.stable
        assert sorted(await there(w), key=int) == [str(offset) for offset in sorted(found)]
        assert history.done <= found <= history.tried
