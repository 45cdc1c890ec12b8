"""A member of a fleet keeps what it holds while the leaders of its partitions come and go."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio

from flowshare.client.session.member import ShareMember
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
from flowshare.testing.clock import settle
from tests.client.fakes import ORDERS
from tests.client.workers import FakeFleet
from tests.client.worlds import within

pytestmark = pytest.mark.asyncio
P0, P1 = m.TopicPartition(ORDERS, 0), m.TopicPartition(ORDERS, 1)
ACCEPT, RELEASE, RENEW = b"\x01", b"\x02", b"\x04"


def ack(first, last, types=ACCEPT):
    return AckRange(first, last, types)


class World:
    """A member, and a task that goes on fetching for it."""

    def __init__(self, fake, member):
        self.fake = fake
        self.clock = fake.clock
        self.member = member
        self.came = []
        self._fetching = asyncio.ensure_future(self._fetch())

    async def _fetch(self):
        while True:
            self.came += await self.member.fetch(records_max=100)

    async def hold(self, tp, number):
        """Acquire so many records more."""
        self.fake.append(tp.partition, number)
        await self.clock.advance(0.6)
        return next(one for one in reversed(self.came) if one.tp == tp)

    async def acknowledge(self, fetched, *batches):
        (result,) = await self.member.acknowledge({fetched.tp: list(batches)}, generation=fetched.generation)
        return result

    def acknowledging(self, fetched, *batches):
        return asyncio.ensure_future(self.acknowledge(fetched, *batches))

    def holds(self, fetched):
        return self.member.holds(fetched.tp, fetched.generation)

    async def stop_fetching(self):
        self._fetching.cancel()
        await asyncio.gather(self._fetching, return_exceptions=True)

    async def close(self, **kwargs):
        await self.stop_fetching()
        await within(self.clock, 20, self.member.close(**kwargs))


@pytest_asyncio.fixture
async def begin(clock):
    worlds = []

    async def joined(leaders, **kwargs):
        fake = FakeFleet(clock, leaders, **kwargs)
        member = ShareMember(fake.connect, group_id="g", topics=["orders"], clock=clock, member_id="m1")
        await member.start()
        worlds.append(World(fake, member))
        return worlds[-1]

    yield joined
    for world in worlds:
        await world.close()
        await world.fake.cluster.close()


def resumes(fake, node_id):
    return [
        {part.partition: part.ranges for part in one.partitions}
        for one in fake.workers[node_id].seen(m.ShareResumeRequest)
    ]


async def test_what_a_dead_leader_had_given_is_acknowledged_at_the_next_one(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    losses = world.member.generation

    world.fake.die(2)
    await clock.advance(5)
    assert world.holds(held)
    assert world.member.generation == losses
    accepting = world.acknowledging(held, ack(0, 1))
    await clock.advance(1)
    assert not accepting.done()
    world.fake.lead(0, 3)
    await clock.advance(2)

    assert (await accepting).error is ErrorCode.NONE
    assert (await world.acknowledge(held, ack(2, 2))).error is ErrorCode.NONE
    assert resumes(world.fake, 3) == [{0: ((0, 2),)}]
    assert world.fake.paths[0].given == [0, 1, 2], "nothing was given twice"


async def test_what_comes_after_the_move_is_fetched_from_the_new_leader(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.die(2)
    world.fake.lead(0, 3)
    await clock.advance(2)

    more = await world.hold(P0, 2)

    assert (more.acquired[0].first, more.acquired[0].last) == (3, 4)
    assert more.generation == held.generation, "one request acknowledges both"


async def test_a_leader_that_hands_over_sends_the_member_to_the_next_one_at_once(begin, clock):
    world = await begin([2, 2])
    held = await world.hold(P0, 3)
    looked = len(world.fake.seen(m.MetadataRequest))

    world.fake.lead(0, 3)
    await settle()

    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NONE
    assert resumes(world.fake, 3) == [{0: ((0, 2),)}]
    assert len(world.fake.seen(m.MetadataRequest)) == looked, "the old leader named the new one"


async def test_between_hand_over_and_claim_nothing_is_lost(begin, clock):
    world = await begin([2])
    world.fake.hints = False
    held = await world.hold(P0, 3)
    world.fake.lead(0, -1)
    world.fake.old_maps = {node: [(2, 1)] for node in world.fake.workers}  # nobody has heard of it

    accepting = world.acknowledging(held, ack(0, 2))
    await clock.advance(3)
    assert world.holds(held)
    asked = len(world.fake.seen(m.MetadataRequest))
    await clock.advance(5)
    assert 3 <= len(world.fake.seen(m.MetadataRequest)) - asked <= 7
    world.fake.lead(0, 3)
    world.fake.old_maps.clear()
    await clock.advance(1.5)

    assert (await accepting).error is ErrorCode.NONE


async def test_a_worker_with_an_old_map_does_not_send_the_member_back(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.old_maps = {1: [(2, 1)]}

    world.fake.lead(0, 3)
    await clock.advance(0.6)
    await world.fake.cluster.look(("orders",))
    await clock.advance(0.6)

    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NONE
    assert resumes(world.fake, 2) == []


async def test_a_new_leader_that_knows_nothing_of_it_has_given_it_to_others(begin, clock):
    world = await begin([2, 2])
    held = await world.hold(P0, 3)
    losses = world.member.generation

    world.fake.paths[0].held.clear()
    world.fake.die(2)
    world.fake.lead(0, 3)
    world.fake.lead(1, 3)
    await clock.advance(2)

    assert not world.holds(held)
    assert world.member.generation > losses
    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NETWORK_EXCEPTION
    again = world.came[-1]
    assert (again.acquired[0].first, again.acquired[0].last) == (0, 2)
    assert world.holds(again)
    assert not world.holds(held), "what came again is held under another number"
    assert (await world.acknowledge(again, ack(0, 2))).error is ErrorCode.NONE
    other = await world.hold(P1, 1)
    assert world.holds(other)


async def test_of_what_is_held_in_part_the_part_can_be_acknowledged(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 6)
    world.fake.paths[0].held = {offset: "m1" if offset > 2 else "m2" for offset in range(6)}

    world.fake.die(2)
    world.fake.lead(0, 3)
    await clock.advance(2)

    assert world.holds(held)
    assert (await world.acknowledge(held, ack(0, 5))).error is ErrorCode.INVALID_RECORD_STATE
    assert (await world.acknowledge(held, ack(3, 5))).error is ErrorCode.NONE


@pytest.mark.parametrize("carried_out", [False, True], ids=["not written", "written"])
async def test_an_acknowledgement_that_a_dead_leader_did_not_answer(begin, clock, carried_out):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.workers[2].swallow(m.ShareAcknowledgeRequest, carried_out=carried_out)
    accepting = world.acknowledging(held, ack(0, 2))
    await settle()

    world.fake.die(2)
    world.fake.lead(0, 3)
    await clock.advance(2)

    result = await accepting
    assert world.fake.paths[0].done == {0: 1, 1: 1, 2: 1}
    assert world.fake.paths[0].given == [0, 1, 2]
    if carried_out:
        assert result.error is ErrorCode.NETWORK_EXCEPTION
        assert "outcome unknown" in result.message
        assert world.fake.workers[3].seen(m.ShareAcknowledgeRequest) == []
    else:
        assert result.error is ErrorCode.NONE


async def test_without_a_leader_for_the_lock_time_what_was_held_is_lost(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.die(2)
    accepting = world.acknowledging(held, ack(0, 2))

    await clock.advance(29)
    assert world.holds(held)
    assert not accepting.done()
    await clock.advance(2.5)

    assert not world.holds(held)
    assert (await accepting).error is ErrorCode.NETWORK_EXCEPTION
    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NETWORK_EXCEPTION
    world.fake.lead(0, 3)
    await clock.advance(2)
    assert resumes(world.fake, 3) == [{0: ()}]
    again = world.came[-1]
    assert world.holds(again)
    assert world.fake.paths[0].given == [0, 1, 2, 0, 1, 2]


async def test_two_leaders_that_die_one_after_the_other_lose_nothing(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    for node in (2, 3):
        world.fake.workers[node].swallow(m.ShareAcknowledgeRequest, carried_out=False)
    accepting = world.acknowledging(held, ack(0, 2))
    await settle()

    world.fake.die(2)
    await clock.advance(9)
    world.fake.lead(0, 3)
    await clock.advance(2)
    assert world.fake.workers[3].seen(m.ShareAcknowledgeRequest)
    world.fake.die(3)
    await clock.advance(9)
    world.fake.lead(0, 1)
    await clock.advance(2)

    assert (await accepting).error is ErrorCode.NONE
    assert world.fake.paths[0].given == [0, 1, 2]


async def test_a_leader_that_is_found_and_dies_before_it_is_reached_is_passed_over(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.die(2)
    world.fake.lead(0, 3)
    world.fake.workers[3].down = True

    await clock.advance(3)
    world.fake.lead(0, 1)
    await clock.advance(2)

    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NONE


async def test_an_acknowledgement_gives_up_on_leaders_that_end_for_ever(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    for worker in world.fake.workers.values():
        for _ in range(20):
            worker.swallow(m.ShareAcknowledgeRequest, carried_out=False)
    accepting = world.acknowledging(held, ack(0, 2))
    await settle()

    while not accepting.done():
        world.fake.workers[2].connections[-1].break_off()
        await clock.advance(3)

    assert (await accepting).error is ErrorCode.NETWORK_EXCEPTION
    assert len(world.fake.seen(m.ShareAcknowledgeRequest)) == 6
    assert world.holds(held), "the next one may have more luck"


async def test_a_frozen_leader_is_left_as_soon_as_another_one_leads(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.workers[2].frozen = True
    accepting = world.acknowledging(held, ack(0, 2))
    await clock.advance(4)
    assert not accepting.done()
    assert world.holds(held)

    world.fake.lead(0, 3)
    await clock.advance(3)

    assert (await accepting).error is ErrorCode.NONE
    assert world.fake.workers[2].connections[-1].gone.done(), "it leads nothing any more and does not answer"
    assert (await world.hold(P0, 1)).acquired[0].first == 3


async def test_a_frozen_worker_that_all_are_asked_about_is_not_asked_again(begin, clock):
    world = await begin([2], coordinator=3)
    held = await world.hold(P0, 3)
    world.fake.workers[3].frozen = True
    world.fake.coordinator = 1
    world.fake.lead(0, 1)
    world.fake.hints = False

    accepting = world.acknowledging(held, ack(0, 2))
    await clock.advance(6)

    assert (await accepting).error is ErrorCode.NONE


async def test_a_leader_that_takes_its_time_to_say_what_is_held_is_waited_for(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    loaded = asyncio.get_running_loop().create_future()
    world.fake.workers[3].before[m.ShareResumeRequest] = loaded
    world.fake.die(2)
    world.fake.lead(0, 3)

    await clock.advance(5)
    loaded.set_result(None)
    await clock.advance(0.5)

    assert len(world.fake.workers[3].seen(m.ShareResumeRequest)) == 1
    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NONE


async def test_a_member_that_its_group_gave_up_holds_nothing_and_begins_anew_with_each_worker(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.paths[0].held.clear()
    worker = world.fake.workers[world.fake.coordinator]
    worker.refuse_heartbeat = ErrorCode.UNKNOWN_MEMBER_ID

    await clock.advance(0.5)
    assert not world.holds(held)
    await clock.advance(2)
    again = await world.hold(P0, 1)

    assert resumes(world.fake, 2) == [{0: ()}]
    [told] = world.fake.workers[2].seen(m.ShareResumeRequest)
    assert [part.lapsed for part in told.partitions] == [((0, 2),)], "it may have been run, and counts"
    assert world.holds(again)
    assert not world.holds(held)
    assert (await world.acknowledge(held, ack(0, 2))).error is not ErrorCode.NONE
    assert world.fake.paths[0].given.count(0) == 2, "it was given once more, to be begun under its new number"


async def test_a_partition_without_leader_holds_up_no_other(begin, clock):
    world = await begin([2, 3])
    first, second = await world.hold(P0, 3), await world.hold(P1, 3)
    world.fake.die(2)
    await clock.advance(1)
    late = []

    results = await world.member.acknowledge(
        {P0: [ack(0, 2)], P1: [ack(0, 2)]}, generation=first.generation, on_late=late.append
    )

    assert first.generation == second.generation
    assert [(one.tp, one.error) for one in results] == [(P1, ErrorCode.NONE)]
    assert (await world.hold(P1, 1)).acquired[0].first == 3
    world.fake.lead(0, 3)
    await clock.advance(2)
    assert [(one.tp, one.error) for one in late] == [(P0, ErrorCode.NONE)]


async def test_a_worker_that_stands_still_holds_up_no_outcome_of_another_one(begin, clock):
    world = await begin([2, 3])
    first = await world.hold(P0, 3)
    await world.hold(P1, 3)
    answered = asyncio.get_running_loop().create_future()
    world.fake.workers[2].before[m.ShareAcknowledgeRequest] = answered
    late = []

    results = await world.member.acknowledge(
        {P0: [ack(0, 2)], P1: [ack(0, 2)]}, generation=first.generation, on_late=late.append
    )

    assert [(one.tp, one.error) for one in results] == [(P1, ErrorCode.NONE)]
    assert late == []
    answered.set_result(None)
    await settle()
    assert [(one.tp, one.error) for one in late] == [(P0, ErrorCode.NONE)]


async def test_renewals_do_not_wait_for_a_leader(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.die(2)
    await clock.advance(1)

    assert (await world.acknowledge(held, ack(0, 2, RENEW))).error is ErrorCode.LEADER_NOT_AVAILABLE
    world.fake.lead(0, 3)
    await clock.advance(2)

    assert (await world.acknowledge(held, ack(0, 2, RENEW))).error is ErrorCode.NONE


async def test_what_the_old_leader_still_brings_when_the_new_one_was_told_is_left(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    slow = asyncio.get_running_loop().create_future()
    world.fake.workers[2].before[m.ShareFetchRequest] = slow
    world.fake.append(0, 2)
    await settle()  # 3 and 4 are on their way
    world.fake.lead(0, 3)
    assert (await world.acknowledge(held, ack(0, 0))).error is ErrorCode.NONE
    assert resumes(world.fake, 3) == [{0: ((0, 2),)}]

    slow.set_result(None)
    await clock.advance(1)

    assert [(one.acquired[0].first, one.acquired[0].last) for one in world.came] == [(0, 2), (3, 4)]
    assert world.fake.paths[0].given == [0, 1, 2, 3, 4, 3, 4], "given back unrun, and given again"
    assert (await world.acknowledge(held, ack(1, 4))).error is ErrorCode.NONE


async def test_an_answer_that_died_with_its_leader_goes_back_at_once(begin, clock):
    world = await begin([2])
    await world.hold(P0, 3)
    world.fake.workers[2].swallow(m.ShareFetchRequest, carried_out=True)
    await clock.advance(0.6)
    world.fake.append(0, 2)
    await clock.advance(0.6)

    world.fake.die(2)
    world.fake.lead(0, 3)
    await clock.advance(2)

    assert resumes(world.fake, 3) == [{0: ((0, 2),)}]
    assert [(one.acquired[0].first, one.acquired[0].last) for one in world.came] == [(0, 2), (3, 4)]


async def test_a_partition_that_is_assigned_to_another_member_keeps_what_was_given_of_it(begin, clock):
    world = await begin([2, 3])
    held = await world.hold(P0, 3)
    await world.hold(P1, 1)
    world.fake.assignment = (P1,)
    await clock.advance(1)

    world.fake.die(2)
    world.fake.lead(0, 1)
    await clock.advance(2)

    assert world.holds(held)
    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NONE
    world.fake.append(0, 1)
    await clock.advance(1)
    assert world.fake.paths[0].given == [0, 1, 2], "it is not fetched any more"


async def test_a_connection_that_breaks_is_resumed_at_the_same_worker(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)

    world.fake.workers[2].connections[-1].break_off()
    await clock.advance(1)

    assert (await world.acknowledge(held, ack(0, 2))).error is ErrorCode.NONE
    assert resumes(world.fake, 2) == [{0: ((0, 2),)}]
    assert (await world.hold(P0, 1)).acquired[0].first == 3


async def test_a_member_that_closes_during_a_move_gives_back_at_the_new_leader(begin, clock):
    world = await begin([2])
    held = await world.hold(P0, 3)
    world.fake.die(2)
    accepting = world.acknowledging(held, ack(0, 0))
    await settle()
    await world.stop_fetching()

    closing = asyncio.ensure_future(world.member.close(unrun={P0: [(1, 2)]}))
    await clock.advance(1)
    assert not closing.done()
    world.fake.lead(0, 3)
    await within(clock, 5, closing)

    assert (await accepting).error is ErrorCode.NONE
    assert (world.fake.paths[0].held, world.fake.paths[0].done) == ({}, {0: 1})
    last = world.fake.workers[3].seen(m.ShareAcknowledgeRequest)[-1]
    assert [(batch.first, batch.last, batch.unrun) for batch in last.partitions[0].acks] == [(1, 2, True)]


async def test_a_member_that_closes_without_leaders_ends_in_time(begin, clock):
    world = await begin([2, 2])
    held = await world.hold(P0, 3)
    world.fake.die(2)
    accepting = world.acknowledging(held, ack(0, 0))
    await settle()
    await world.stop_fetching()

    await within(clock, 12, world.member.close(unrun={P0: [(1, 2)]}))

    result = await accepting
    assert result.error is ErrorCode.NETWORK_EXCEPTION
    assert not [task for task in asyncio.all_tasks() if "m1" in task.get_name()]


async def test_workers_that_are_gone_for_good_are_forgotten(begin, clock):
    world = await begin([2])
    await world.hold(P0, 3)
    for node in (3, 4, 5, 6):
        world.fake.workers[node] = type(world.fake.workers[1])(world.fake, node)
        world.fake.die(world.fake.paths[0].leader)
        world.fake.lead(0, node)
        await clock.advance(3)

    assert set(world.member._shell.core.nodes) == {6}
    assert world.member.trouble is None


async def test_a_member_whose_partition_has_no_leader_says_so(begin, clock):
    world = await begin([-1])

    await clock.advance(1)
    assert "wait for their next leader" in world.member.trouble
    world.fake.lead(0, 2)
    await clock.advance(2)

    assert (await world.hold(P0, 1)).acquired[0].first == 0
    assert world.member.trouble is None
