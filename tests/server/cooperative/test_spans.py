"""Free mode: members take what comes next, record by record."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.cooperative.types import OffsetRange
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import CooperativeOffsetsRequest, SpanStartEntry, stable_metadata
from flowshare.server.cooperative.owner import PartitionOwner
from flowshare.testing.clock import settle
from tests.server.cooperative.world import LEASE_MS, NONE, WHOLE, cooperative
from tests.server.world import parked

pytestmark = pytest.mark.asyncio


async def test_members_take_what_comes_next():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")

        first, second = await a.took(10), await b.took(10)

        assert (first[:2], second[:2]) == ((0, 10), (10, 20))


async def test_what_is_committed_is_not_taken_again_and_shows_as_the_groups_offset():
    async with cooperative(100) as w:
        a = w.member("a")
        span = await a.took(10)
        told = await a.commit_span(span.epoch, (0, 4), (6, 10))
        await a.spans(give_back=[span.epoch])

        assert (told.stable, told.count, told.furthest) == (4, 1, 10)
        assert await w.offset() == (4, stable_metadata(a.epochs[0], a.topic_id))
        (part,) = (await a.take(5)).partitions
        assert [one[:2] for one in part.spans] == [(4, 6), (10, 13)]


async def test_what_is_given_back_is_taken_by_others_first():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        span = await a.took(10)

        assert await a.spans(give_back=[span.epoch]) == []
        assert (await b.took(10))[:2] == (0, 10)


async def test_a_lease_that_ends_frees_the_span_and_fences_its_commits():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        span = await a.took(10)
        await w.clock.advance(LEASE_MS / 1000)
        taken = await b.took(10)

        told = await a.commit_span(span.epoch, (0, 10))

        assert taken[:2] == (0, 10)
        assert told.fenced == (0,)
        assert (await b.commit_span(taken.epoch, (0, 10))).stable == 10


async def test_leases_are_renewed_and_who_comes_too_late_is_told():
    async with cooperative(100) as w:
        a = w.member("a")
        kept, lost = await a.took(10), await a.took(10)
        await w.clock.advance(LEASE_MS / 2_000)
        assert await a.spans(renew=[kept.epoch]) == []
        await w.clock.advance(LEASE_MS / 2_000)

        assert await a.spans(renew=[kept.epoch, lost.epoch], give_back=[lost.epoch]) == [lost.epoch, lost.epoch]
        assert (await a.commit_span(kept.epoch, (0, 10))).fenced == ()


async def test_who_takes_where_nothing_is_waits_for_records():
    async with cooperative(0) as w:
        waiting = await parked(w.member("a").take(10, max_wait_ms=5_000))
        await w.produce(3)

        (part,) = (await waiting).partitions
        assert [one[:2] for one in part.spans] == [(0, 3)]


async def test_who_takes_where_nothing_is_waits_for_what_others_give_back():
    async with cooperative(10) as w:
        a, b = w.member("a"), w.member("b")
        span = await a.took(10)
        waiting = await parked(b.take(10, max_wait_ms=5_000))
        await a.spans(give_back=[span.epoch])

        (part,) = (await waiting).partitions
        assert [one[:2] for one in part.spans] == [(0, 10)]


async def test_who_takes_where_nothing_is_gets_what_a_dead_member_had():
    async with cooperative(10) as w:
        await w.member("a").took(10, lease_ms=2_000)
        waiting = await parked(w.member("b").take(10, max_wait_ms=5_000))
        await w.clock.advance(2.1)

        (part,) = (await waiting).partitions
        assert [one[:2] for one in part.spans] == [(0, 10)]


async def test_waiting_ends():
    async with cooperative(0) as w:
        waiting = await parked(w.member("a").take(10, max_wait_ms=60_000))
        await w.clock.advance(5.0)

        assert (await waiting).partitions == ()


async def test_who_waits_and_loses_the_connection_takes_nothing():
    async with cooperative(0) as w:
        a = w.member("a")
        waiting = await parked(a.take(10, max_wait_ms=5_000))
        await a.connection.close()
        await w.produce(3)
        with pytest.raises(ConnectionError):
            await waiting
        await settle()

        assert (await w.member("b").took(10))[:2] == (0, 3)


async def test_the_first_partition_that_has_something_is_taken_of():
    async with cooperative(0, partitions=3) as w:
        await w.produce(5, partition=1)
        await w.produce(5, partition=2)

        (part,) = (await w.member("a").take(10, at=(0, 1, 2))).partitions

        assert (part.partition, [one[:2] for one in part.spans]) == (1, [(0, 5)])


async def test_a_partition_is_shared_in_one_way_at_a_time():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        await a.hold(WHOLE)
        (refused,) = (await b.take(10)).partitions
        await a.leaves()
        await b.took(10)
        (other,) = (await a.asks({0: WHOLE})).partitions

        assert refused.error is other.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_member_that_leaves_gives_back_its_spans():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        await a.took(10)
        await a.asks()

        assert (await b.took(10))[:2] == (0, 10)


async def test_spans_outlive_a_restart():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        span = await a.took(10)
        await w.restart()
        w.again(a), w.again(b)

        assert (await b.took(10))[:2] == (10, 20)
        assert (await a.commit_span(span.epoch, (0, 10))).error is NONE
        assert (await w.told()).stable == 10


async def test_many_members_that_take_at_once_have_each_record_once():
    async with cooperative(100) as w:
        members = [w.member(f"m{number}") for number in range(20)]

        taken = await asyncio.gather(*(member.took(5) for member in members))

        assert sorted(offset for span in taken for offset in range(*span[:2])) == list(range(100))


async def test_who_takes_what_a_dead_member_had_is_told_how_often_it_was_begun():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        span = await a.took(10)
        assert (await a.commits(SpanStartEntry(span.epoch, [(4, 2)]))).fenced == ()
        await w.restart()
        w.again(b)
        assert (await b.took(10))[:2] == (10, 20)
        await w.clock.advance(LEASE_MS / 1000)

        (part,) = (await b.take(10)).partitions
        assert (part.starts, part.abandoned) == (((4, 2),), (OffsetRange(0, 10),))
        (looked,) = (await b.send(CooperativeOffsetsRequest(group_id="g", ranges_from=0))).partitions
        assert (looked.starts, looked.abandoned) == (((4, 2),), (OffsetRange(0, 20),))


async def test_of_a_dead_member_with_exact_starts_only_what_it_told_counts():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        span = await a.took(10, exact_starts=True)
        await a.commits(SpanStartEntry(span.epoch, [(4, 1)]))
        await w.clock.advance(LEASE_MS / 1000)

        (part,) = (await b.take(20)).partitions
        assert (part.starts, part.abandoned) == (((4, 1),), ())
        assert (await a.commits(SpanStartEntry(span.epoch, [(4, 2)]))).fenced == (0,)


async def test_members_that_share_by_keys_are_told_of_the_dead_that_took():
    async with cooperative(100) as w:
        a, b = w.member("a"), w.member("b")
        await a.took(10)
        await w.clock.advance(LEASE_MS / 1000)

        assert (await b.hold(WHOLE)).abandoned == (OffsetRange(0, 10),)


async def test_an_append_wakes_whom_it_can_serve_and_not_all_that_wait(monkeypatch):
    taken = list[str]()
    real = PartitionOwner.take

    async def take(owner, member, *args, **kwargs):
        taken.append(member)
        return await real(owner, member, *args, **kwargs)

    monkeypatch.setattr(PartitionOwner, "take", take)
    async with cooperative(0) as w:
        waiting = [await parked(w.member(f"m{at}").take(10, max_wait_ms=5_000)) for at in range(40)]
        taken.clear()
        for at in range(5):
            await w.produce(1)
            await settle()
            assert [one.done() for one in waiting].count(True) == at + 1
        assert len(taken) <= 5 * 3, "one that takes it, and one that sees, twice, that there is no more"
        await w.produce(25)
        await settle()
        assert [one.done() for one in waiting].count(True) == 8, "25 records are three takes of ten"
        await w.clock.advance(5.0)
        assert all(one.done() for one in waiting)


async def test_who_goes_when_it_is_its_turn_leaves_it_to_the_next_one():
    async with cooperative(0) as w:
        first, second = w.member("a"), w.member("b")
        waiting = await parked(first.take(10, max_wait_ms=5_000))
        other = await parked(second.take(10, max_wait_ms=5_000))
        await w.produce(3)
        waiting.cancel()
        await settle()

        (part,) = (await other).partitions
        assert [one[:2] for one in part.spans] == [(0, 3)]
