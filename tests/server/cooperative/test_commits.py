"""Commits one by one and their gaps, as a server shows them. The numbers are those of the scenarios."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from flowshare.cooperative.types import HASHES
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DeleteRecordsRequest
from flowshare.protocol.messages.cooperative import stable_metadata
from tests.server.cooperative.world import LOWER, NONE, UPPER, WHOLE, cooperative

pytestmark = pytest.mark.asyncio


async def holder(w, stable: int = 0, *ranges):
    """A member that holds all of partition 0, of which all before `stable` and these ranges are committed."""
    member = w.member("m")
    await member.hold(WHOLE)
    if stable or ranges:
        await member.commit(*([(0, stable)] if stable else []), *ranges)
    return member


async def test_what_is_committed_behind_a_gap_waits_as_ranges():  # 1
    async with cooperative() as w:
        m = await holder(w, 43)

        assert await m.commit((45, 48), (50, 51)) == (43, 2, 51)
        assert await w.state() == (43, [(45, 48), (50, 51)])


async def test_a_commit_that_joins_two_ranges_makes_one_of_them():  # 2
    async with cooperative() as w:
        m = await holder(w, 43, (45, 48), (50, 51))

        assert await m.commit((48, 50)) == (43, 1, 51)
        assert await w.state() == (43, [(45, 51)])


async def test_a_commit_at_the_stable_offset_moves_it_over_the_ranges_behind():  # 3
    async with cooperative() as w:
        m = await holder(w, 43, (45, 48))

        assert await m.commit((43, 45)) == (48, 0, 48)
        assert await w.offset() == (48, stable_metadata(m.epochs[0], m.topic_id))


async def test_one_request_fills_several_gaps():  # 4
    async with cooperative() as w:
        m = await holder(w, 43, (45, 48), (50, 51))

        assert await m.commit((43, 45), (48, 50)) == (51, 0, 51)


async def test_an_overlap_is_a_union():  # 5
    async with cooperative() as w:
        m = await holder(w, 10, (12, 15), (20, 25))

        await m.commit((13, 23))

        assert await w.state() == (10, [(12, 25)])


async def test_a_commit_below_the_stable_offset_writes_nothing_and_one_across_it_counts_behind():  # 6
    async with cooperative() as w:
        m = await holder(w, 10, (12, 15))
        before = w.server.stats()["cooperative"]["writes"]

        assert await m.commit((2, 9)) == (10, 1, 15)
        assert w.server.stats()["cooperative"]["writes"] == before
        assert await m.commit((8, 12)) == (15, 0, 15)


async def test_the_same_request_again_changes_and_writes_nothing():  # 7
    async with cooperative() as w:
        m = await holder(w, 10)
        first = await m.commit((12, 15), (20, 25))
        before = w.server.stats()["cooperative"]["writes"]

        assert await m.commit((12, 15), (20, 25)) == first
        assert w.server.stats()["cooperative"]["writes"] == before


async def test_the_order_of_commits_does_not_matter():  # 8
    pieces = [(0, 10), (10, 20), (20, 30), (30, 40), (40, 50), (50, 60)]
    orders = list(itertools.permutations(pieces))[::97]
    async with cooperative(partitions=len(orders)) as w:
        m = w.member("m")
        await m.asks(dict.fromkeys(range(len(orders)), WHOLE))
        for at, order in enumerate(orders):
            for piece in order:
                told = await m.commit(piece, at=at)
            assert told == (60, 0, 60)


async def test_two_sharers_commit_adjacent_ranges_at_once_and_nothing_is_lost():  # 9
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(LOWER)
        await b.hold(UPPER)

        await asyncio.gather(a.commit((20, 25)), b.commit((25, 30)))

        assert await w.state() == (0, [(20, 30)])


async def test_after_a_restart_the_committed_set_is_the_same():  # 21
    async with cooperative() as w:
        m = await holder(w, 43, (45, 51))
        await w.restart()
        w.again(m)

        assert await w.state() == (43, [(45, 51)])
        part = await m.hold(WHOLE)
        assert (part.stable, part.count) == (43, 1)


async def test_deleted_records_are_passed_over_and_a_range_that_they_reach_into_is_cut():  # 17
    async with cooperative() as w:
        m = await holder(w, 10, (30, 40))

        await w.admin.send(DeleteRecordsRequest(topic="t", partition=0, before=35))
        part = await m.hold(WHOLE)

        assert (part.stable, part.count, part.log_start) == (40, 0, 35)
        assert w.server.stats()["cooperative"]["lost"] == 20
        assert (await w.offset())[0] == 40


async def test_what_is_not_in_the_log_yet_cannot_be_committed():  # 18
    async with cooperative(100) as w:
        m = await holder(w, 10)

        told = await m.commits(m.entry((90, 101)))

        assert told.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert await w.state() == (10, [])


async def test_what_lay_behind_an_end_that_the_log_lost_is_taken_back():  # 18
    async with cooperative(100) as w:
        m = await holder(w, 60, (70, 80), (90, 95))
        entry, epoch = m.entry((60, 65)), m.epochs[0]

        w.server._cooperative_groups.cut("t", 0, 75)
        late = await m.commits(entry)

        assert late.error is ErrorCode.FENCED_STATE_EPOCH
        assert await w.state() == (60, [(70, 75)])
        assert await w.offset() == (60, stable_metadata((await m.hold(WHOLE)).reset_epoch, m.topic_id))
        assert m.epochs[0] > epoch


async def test_one_stuck_record_and_thousands_done_are_one_range():  # 20
    async with cooperative(2_000) as w:
        m = await holder(w)
        for first in range(1, 2_000, 100):
            await m.commit((first, min(first + 100, 2_000)))

        assert await w.state() == (0, [(1, 2_000)])
        assert len(await w.stored()) == 4  # S, a range, claims, how far their member may go


async def test_a_reset_refuses_commits_of_before_it():  # 23
    async with cooperative() as w:
        m = await holder(w, 10, (20, 30))
        old_epoch, entry = m.epochs[0], m.entry((12, 14))
        await m.leaves()
        assert (await w.reset(3)).error is NONE

        part = await m.hold(WHOLE)
        late = await m.commits(entry, reset_epoch=old_epoch)

        assert (part.stable, part.count, part.reset_epoch > old_epoch) == (3, 0, True)
        assert late.error is ErrorCode.FENCED_STATE_EPOCH
        assert await w.state() == (3, [])
        assert await w.offset() == (3, stable_metadata(part.reset_epoch, part.topic_id))


async def test_a_reset_is_refused_while_somebody_holds_something():
    async with cooperative() as w:
        await holder(w, 10)

        assert (await w.reset(3)).error is ErrorCode.NON_EMPTY_GROUP
        assert await w.state() == (10, [])


async def test_a_partition_can_only_be_reset_into_its_log():
    async with cooperative(100) as w:
        assert (await w.reset(101)).error is ErrorCode.INVALID_REQUEST
        assert (await w.reset(100)).error is NONE


async def test_a_commit_of_a_claim_counts_in_the_partition_of_the_claim_alone():
    async with cooperative(partitions=2) as w:
        m = w.member("m")
        await m.asks({0: WHOLE})
        m.epochs[1] = m.epochs[0]
        m.held[1] = m.held[0]

        assert (await m.commits(m.entry((0, 5), at=1), at=1)).error is ErrorCode.FENCED_STATE_EPOCH


async def test_several_entries_stand_for_themselves():
    async with cooperative() as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(LOWER)
        await b.hold(UPPER)
        mine = a.entry((0, 5))
        foreign = a.entry((5, 9), keys=(HASHES // 2, HASHES))

        told = await a.commits(mine, foreign)

        assert (told.error, told.fenced, told.stable) == (NONE, (1,), 5)
