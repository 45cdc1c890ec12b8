"""Pausing a group, its limit of records in flight, fairness among its members, and new records before redeliveries."""

from __future__ import annotations

import asyncio
import random

import pytest

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.testing.clock import settle
from tests.server.world import EARLIEST, Client, World, accept, parked, ranges, release, world

pytestmark = pytest.mark.asyncio

PAUSE, RESUME = {"share.paused": "true"}, {"share.paused": None}


async def limited(w: World, limit: int | None) -> None:
    """Set the limit of records in flight of group `g`."""
    answer = await w.configure({"share.max.in.flight": None if limit is None else str(limit)})
    assert answer.error is ErrorCode.NONE, answer.message


def taken(answer) -> list[tuple[int, int, int]]:
    """Acquired ranges of all partitions of an answer."""
    return [tuple(part) for partition in answer.partitions for part in partition.acquired]


# --- pausing ---------------------------------------------------------------------------------------------------------


async def test_a_paused_group_hands_out_nothing_and_a_parked_fetch_wakes_when_it_is_resumed() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.configure(PAUSE)
        await w.produce(3)
        m1, m2 = w.member("m1"), w.member("m2")
        assert taken(await m1.fetch(at)) == []
        waiting = [
            await parked(m1.fetch(max_wait_ms=60_000, max_records=1, acquire_mode=1)),
            await parked(m2.fetch(at, max_wait_ms=60_000, acquire_mode=1)),
        ]

        await w.configure(RESUME)

        assert [ranges(await task) for task in waiting] == [[(0, 0, 1)], [(1, 2, 1)]]


async def test_what_is_in_flight_when_a_group_is_paused_can_be_settled_and_lapses() -> None:
    async with world() as w:
        at, m = await w.held(4)
        await w.configure(PAUSE)

        renewed = await m.fetch(acks={at: [accept(0), release(1)]})
        assert renewed.partitions[0].ack_error is ErrorCode.NONE
        assert taken(renewed) == []
        await w.clock.advance(31)
        assert taken(await m.fetch()) == []
        await w.configure(RESUME)

        assert ranges(await m.fetch()) == [(1, 3, 2)]


async def test_a_group_is_still_paused_after_a_restart() -> None:
    async with world() as w:
        at = await w.log(1)
        await w.configure(PAUSE)

        await w.restart()
        m = w.member("m1")
        assert taken(await m.fetch(at)) == []
        await w.configure(RESUME)

        assert ranges(await m.fetch()) == [(0, 0, 1)]


async def test_other_groups_go_on_while_one_is_paused() -> None:
    async with world() as w:
        at = await w.log(1)
        await w.configure(EARLIEST, "other")
        await w.configure(PAUSE)

        assert ranges(await w.member("m1", "other").fetch(at)) == [(0, 0, 1)]


# --- a limit of records in flight ------------------------------------------------------------------------------------


async def test_the_limit_counts_over_all_share_partitions_of_a_group() -> None:
    async with world() as w:
        ats = await w.logs(4, 4, 4)
        await limited(w, 5)
        m = w.member("m1")

        answer = await m.fetch(*ats)

        assert sum(last - first + 1 for first, last, _ in taken(answer)) == 5
        quota = w.server.share.partitions.quota("g")
        assert quota is not None
        assert (quota.in_flight, quota.wanting) == (5, True)
        assert taken(await w.member("m2").fetch(*ats)) == []


async def test_a_record_that_is_settled_on_one_partition_wakes_a_fetch_that_waits_at_another() -> None:
    async with world() as w:
        one, two = await w.logs(2, 2)
        await limited(w, 2)
        m1, m2 = w.member("m1"), w.member("m2")
        await m1.fetch(one)
        waiting = await parked(m2.fetch(two, max_wait_ms=60_000))

        await m1.acknowledge({one: [accept(0)]})

        assert ranges(await waiting) == [(0, 0, 1)]


@pytest.mark.parametrize("limit", [3, None])
async def test_a_limit_that_is_raised_or_taken_away_wakes_waiting_fetches(limit: int | None) -> None:
    async with world() as w:
        ats = await w.logs(1, 1, 1)
        await limited(w, 1)
        await w.member("m0").fetch(ats[0])
        waiting = [await parked(w.member(f"m{n}").fetch(ats[n], max_wait_ms=60_000)) for n in (1, 2)]

        await limited(w, limit)

        assert [ranges(await task) for task in waiting] == [[(0, 0, 1)]] * 2


async def test_the_limit_is_kept_within_a_batch_and_lowered_without_taking_anything_back() -> None:
    async with world() as w:
        at = await w.log(20)
        await limited(w, 4)
        m = w.member("m1")
        assert ranges(await m.fetch(at)) == [(0, 3, 1)]

        await limited(w, 2)
        assert taken(await m.fetch(acks={at: [accept(0, 1)]})) == []
        await m.acknowledge({at: [accept(2)]})

        assert ranges(await m.fetch()) == [(4, 4, 1)]


async def test_what_living_members_hold_counts_after_a_restart() -> None:
    async with world() as w:
        at = await w.log(5)
        await limited(w, 3)
        m1 = w.member("m1", own=True)
        await m1.heartbeat("t")
        await m1.fetch(at)
        await w.die()

        m2 = w.member("m2")
        assert taken(await m2.fetch(at)) == []
        await w.clock.advance(60)

        assert ranges(await m2.fetch()) == [(0, 2, 2)]


async def test_records_of_a_member_that_leaves_are_in_flight_no_more() -> None:
    async with world() as w:
        one, two = await w.logs(2, 2)
        await limited(w, 2)
        m1 = w.member("m1")
        await m1.fetch(one)
        waiting = await parked(w.member("m2").fetch(two, max_wait_ms=60_000))

        await m1.connection.close()

        assert ranges(await waiting) == [(0, 1, 1)]


async def test_a_limit_of_one_is_shared_by_turns() -> None:
    async with world() as w:
        at = await w.log(8)
        await limited(w, 1)
        one, two = w.member("m1"), w.member("m2")
        await one.fetch(at)
        served, waiting = [], await parked(two.fetch(at, max_wait_ms=60_000))
        for offset in range(6):
            answered = await one.acknowledge({at: [accept(offset)]})
            assert answered.error is ErrorCode.NONE
            assert ranges(await waiting) == [(offset + 1, offset + 1, 1)]
            served.append(two.member_id)
            waiting = await parked(one.fetch(max_wait_ms=60_000))
            one, two = two, one

        assert served == ["m2", "m1"] * 3


# --- fairness --------------------------------------------------------------------------------------------------------


async def test_locks_that_a_slow_member_frees_go_to_the_member_that_waits() -> None:
    async with world(configs={**EARLIEST, "share.partition.max.record.locks": "4"}) as w:
        at = await w.log(10)
        slow, quick = w.member("slow"), w.member("quick")
        assert ranges(await slow.fetch(at, acquire_mode=1)) == [(0, 3, 1)]
        assert taken(await quick.fetch(at, acquire_mode=1)) == []

        more = await slow.fetch(acks={at: [accept(0)]}, acquire_mode=1)

        assert taken(more) == []
        assert ranges(await quick.fetch(acquire_mode=1)) == [(4, 4, 1)]


async def test_a_member_that_was_kept_waiting_goes_on_when_the_other_does_not_come_back() -> None:
    async with world(configs={**EARLIEST, "share.partition.max.record.locks": "4"}) as w:
        at = await w.log(10)
        slow, quick = w.member("slow"), w.member("quick")
        await slow.fetch(at, acquire_mode=1)
        await quick.fetch(at, acquire_mode=1)
        await slow.acknowledge({at: [accept(0)]})
        waiting = await parked(slow.fetch(acquire_mode=1, max_wait_ms=60_000))

        await w.clock.advance(0.249)
        assert not waiting.done()
        await w.clock.advance(0.001)

        assert ranges(await waiting) == [(4, 4, 1)]


@pytest.mark.parametrize("limits", [{"share.partition.max.record.locks": "1"}, {"share.max.in.flight": "1"}])
async def test_a_member_that_waits_long_is_served_before_one_that_comes_back_at_once(limits: dict[str, str]) -> None:
    async with world(configs={**EARLIEST, **limits}) as w:
        at = await w.log(10)
        slow, quick = w.member("slow"), w.member("quick")
        await slow.fetch(at, acquire_mode=1)
        waiting = await parked(quick.fetch(at, acquire_mode=1, max_wait_ms=60_000))
        await w.clock.advance(9)

        answers = [slow.fetch(acks={at: [accept(0)]}, acquire_mode=1), waiting]
        slows, quicks = await asyncio.gather(*answers)

        assert taken(slows) == []
        assert taken(quicks) == [(1, 1, 1)]


async def test_nothing_is_kept_for_a_member_whose_partitions_have_no_records_any_more() -> None:
    async with world() as w:
        one, two = await w.logs(2, 1)
        await limited(w, 1)
        a, b, c = w.member("a"), w.member("b"), w.member("c")
        await a.fetch(one)
        waiting = [await parked(member.fetch(two, max_wait_ms=60_000)) for member in (b, c)]
        await a.acknowledge({one: [accept(0)]})
        await settle()
        [served] = [task for task in waiting if task.done()]
        await b.acknowledge({two: [accept(0)]})

        assert ranges(await served) == [(0, 0, 1)]
        assert ranges(await a.fetch()) == [(1, 1, 1)]


async def test_among_waiting_fetches_that_of_the_member_that_holds_least_is_served_first() -> None:
    async with world(configs={**EARLIEST, "share.partition.max.record.locks": "4"}) as w:
        at = await w.log(10)
        a, b, c = w.member("a"), w.member("b"), w.member("c")
        await a.fetch(at, acquire_mode=1, max_records=3)
        await b.fetch(at, acquire_mode=1, max_records=1)
        waiting = [
            await parked(m.fetch(*(() if m.epoch else (at,)), max_wait_ms=60_000, acquire_mode=1)) for m in (a, b, c)
        ]

        await b.connection.close()
        await settle()

        assert [task.done() for task in waiting] == [False, True, True]
        assert ranges(await waiting[2]) == [(3, 3, 2)]


# --- new records before redeliveries ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "offsets"), [("redeliveries", [0, 1, 2, 3]), ("new", [2, 3, 0, 1]), ("mixed", [2, 0, 3, 1])]
)
async def test_the_order_of_new_records_and_redeliveries(priority: str, offsets: list[int]) -> None:
    async with world(configs={**EARLIEST, "share.delivery.priority": priority}) as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(2):
            await w.produce(1)
        m = w.member("m1")
        await m.fetch(at)
        await m.acknowledge({at: [release(0, 1)]})
        for _ in range(2):
            await w.produce(1)

        got = [ranges(await m.fetch(max_records=1, acquire_mode=1)) for _ in range(4)]

        assert [first for [(first, _, _)] in got] == offsets


async def test_redeliveries_wake_a_parked_fetch_when_nothing_is_new() -> None:
    async with world(configs={**EARLIEST, "share.delivery.priority": "new"}) as w:
        at, m1 = await w.held(2)
        m2 = w.member("m2")
        waiting = await parked(m2.fetch(at, max_wait_ms=60_000))

        await m1.acknowledge({at: [release(0, 1)]})

        assert ranges(await waiting) == [(0, 1, 2)]


# --- nobody waits for nothing ----------------------------------------------------------------------------------------


class Worker:
    """A member that settles what it gets from its partitions after a random while, and fetches again."""

    def __init__(self, member: Client, mine: list[TopicPartition], rng: random.Random) -> None:
        self.member = member
        self.mine = mine
        self.rng = rng
        self.seen = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            added = () if self.member.epoch else self.mine
            answer = await self.member.fetch(*added, max_wait_ms=600_000, acquire_mode=1)
            for _ in range(self.rng.randint(0, 3)):
                await asyncio.sleep(0)
            for partition in answer.partitions:
                at = TopicPartition(partition.topic_id, partition.partition)
                for first, last, _ in partition.acquired:
                    settled = await self.member.acknowledge({at: [accept(first, last)]})
                    assert settled.partitions[0].error is ErrorCode.NONE
                    self.seen += last - first + 1


@pytest.mark.parametrize("limit", [1, 2, 7])
@pytest.mark.parametrize("seed", range(4))
async def test_no_fetch_waits_while_there_is_room_and_records_are_left(seed: int, limit: int) -> None:
    """The clock stands still: whoever is woken must be able to take something, or wake the next one."""
    rng = random.Random(seed)
    async with world() as w:
        topic = await w.topic(partitions=4)
        ats = [TopicPartition(topic, number) for number in range(4)]
        await limited(w, limit)
        shares = [ats, *(rng.sample(ats, rng.randint(1, 4)) for _ in range(4))]
        workers = [Worker(w.member(f"m{number}"), mine, rng) for number, mine in enumerate(shares)]
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        produced = 0
        for _ in range(6):
            for number in range(4):
                count = rng.randint(1, 9)
                produced += count
                await w.produce(count, partition=number)
            await settle()
            seen = sum(worker.seen for worker in workers)
            assert seen == produced, f"seed {seed}: {produced - seen} records are left lying"
        assert not any(task.done() for task in tasks), f"seed {seed}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
