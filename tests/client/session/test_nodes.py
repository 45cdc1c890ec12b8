"""A member whose partitions several brokers lead: sessions, moved partitions, lost brokers, one request at a time."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ServerError
from flowshare.client.net.topology import NOBODY
from flowshare.client.session.member import ShareMember
from flowshare.client.session.share_session import Plan
from flowshare.client.settings import LinkSettings, MemberSettings
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange, AcquireMode
from flowshare.testing.clock import settle
from tests.batches import place
from tests.client.brokers import FakeCluster
from tests.client.fakes import ORDERS
from tests.client.worlds import within

pytestmark = pytest.mark.asyncio
P0, P1 = m.TopicPartition(ORDERS, 0), m.TopicPartition(ORDERS, 1)
ACCEPT, RENEW = b"\x01", b"\x04"


def batch(count=3):
    builder = BatchBuilder()
    for index in range(count):
        builder.add(None, b"v%d" % index, timestamp_ms=1)
    return place(builder.build(), 0)


async def joined(fake, clock, settings=None):
    member = ShareMember(fake.connect, group_id="g", topics=["orders"], clock=clock, member_id="m1", settings=settings)
    await member.start()
    return member


async def fetched_from_both(fake, clock, member):
    for node, broker in fake.brokers.items():
        broker.offer(batch(), partition=node - 1)
    found = await member.fetch(records_max=10)
    if len(found) < 2:
        found += await member.fetch(records_max=10)
    return {one.partition: one for one in found}


async def next_fetched(clock, member):
    """Fetch until records come, and return them; empty fetches do not count."""
    for _ in range(20):
        found = await within(clock, 1, member.fetch(records_max=10, max_wait_s=0.1))
        if found:
            return found
    return []


def acks(fetched, types=ACCEPT):
    return {fetched.tp: [AckRange(0, 2, types)]}


async def test_each_broker_is_fetched_from_for_what_it_leads_in_a_session_of_its_own(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)

    found = await fetched_from_both(fake, clock, member)

    assert set(found) == {0, 1}
    first = dict(reversed(fake.seen(m.ShareFetchRequest)))
    assert {node: [part.partition for part in one.partitions] for node, one in first.items()} == {1: [0], 2: [1]}
    assert {one.session_epoch for one in first.values()} == {0}
    await within(clock, 2, member.close())


async def asked_with_acknowledgements(fake, clock, *, linger_s, spoil=lambda member: None):
    """A member that is to acknowledge what it got with the fetch that it asks for next: what came of that, and why the
    fetch was not asked for."""
    member = await joined(fake, clock, MemberSettings(link=LinkSettings(acknowledge_linger=linger_s)))
    fake.brokers[1].offer(batch())
    (found,) = await next_fetched(clock, member)
    fake.brokers[1].requests.clear()
    told, refused = [], None
    member.begin_acknowledge(acks(found), told.extend, generation=found.generation, rides=True)
    assert not fake.brokers[1].requests
    spoil(member)
    try:
        member.ask(Plan(10, 10, 0.01, 1 << 20, AcquireMode.BATCH_OPTIMIZED))
    except ServerError as error:
        refused = error
    await settle()
    outcomes = [result.error for result in told]
    await within(clock, 2, member.close())
    return outcomes, refused


async def test_acknowledgements_ride_on_the_fetch_that_is_asked_for_next(clock):
    fake = FakeCluster(clock, [1])

    assert await asked_with_acknowledgements(fake, clock, linger_s=0.002) == ([ErrorCode.NONE], None)
    assert fake.brokers[1].seen(m.ShareFetchRequest)[0].partitions[0].acks
    assert len(fake.brokers[1].seen(m.ShareAcknowledgeRequest)) == 1, "that of the session's end"


@pytest.mark.parametrize("where", ["group", "fetch"])
async def test_acknowledgements_go_by_themselves_when_the_fetch_that_they_are_to_ride_on_is_refused(where, clock):
    fake, refusal = FakeCluster(clock, [1]), ServerError(ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def spoil(member):
        if where == "group":
            member._membership.failed = refusal
        else:
            member._shell.core.refusal = refusal

    assert await asked_with_acknowledgements(fake, clock, linger_s=0.0, spoil=spoil) == ([ErrorCode.NONE], refusal)
    assert len(fake.brokers[1].seen(m.ShareAcknowledgeRequest)) == 2


async def test_acknowledgements_go_to_the_brokers_that_the_records_came_from(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    found = await fetched_from_both(fake, clock, member)

    results = await within(clock, 2, member.acknowledge({**acks(found[1]), **acks(found[0])}))

    assert [(result.tp, result.error) for result in results] == [(P1, ErrorCode.NONE), (P0, ErrorCode.NONE)]
    sent = {node: [part.partition for part in one.partitions] for node, one in fake.seen(m.ShareAcknowledgeRequest)}
    assert sent == {1: [0], 2: [1]}
    await within(clock, 2, member.close())


async def test_losing_one_broker_keeps_what_came_from_the_other(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    found = await fetched_from_both(fake, clock, member)
    changes = member.generation
    parked = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()

    fake.session_connection(2).break_off()
    await settle()

    assert member.generation > changes
    assert member.holds(P0, found[0].generation)
    assert not member.holds(P1, found[1].generation)
    (lost,) = await member.acknowledge(acks(found[1]), generation=found[1].generation)
    assert lost.error is ErrorCode.NETWORK_EXCEPTION
    (kept,) = await within(clock, 2, member.acknowledge(acks(found[0]), generation=found[0].generation))
    assert kept.error is ErrorCode.NONE
    member.wakeup()
    await parked
    await within(clock, 2, member.close())


async def test_a_moved_partition_is_fetched_where_the_hint_says_and_its_records_are_given_up(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    found = await fetched_from_both(fake, clock, member)
    fake.leaders[0] = 2
    moved = m.FetchedPartition(
        topic_id=ORDERS, partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(2, 7)
    )
    fake.brokers[1].ready.append(moved)
    fake.brokers[1].more.set()

    await within(clock, 1, member.fetch(records_max=10))
    fake.brokers[2].offer(batch(), partition=0)
    again = await next_fetched(clock, member)

    assert [one.partition for one in again] == [0]
    assert not member.holds(P0, found[0].generation)
    (failed,) = await member.acknowledge(acks(found[0]), generation=found[0].generation)
    assert failed.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not fake.seen(m.ShareAcknowledgeRequest), "neither forwarded to the new leader nor sent to the old one"
    await within(clock, 2, member.close())


async def test_a_moved_partition_without_hint_is_looked_up(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    await fetched_from_both(fake, clock, member)
    fake.leaders[0] = 2
    fake.brokers[1].ready.append(m.FetchedPartition(topic_id=ORDERS, partition=0, error=ErrorCode.FENCED_LEADER_EPOCH))
    fake.brokers[1].more.set()

    await within(clock, 2, member.fetch(records_max=10))
    fake.brokers[2].offer(batch(), partition=0)
    again = await next_fetched(clock, member)

    assert [one.partition for one in again] == [0]
    await within(clock, 2, member.close())


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ],
)
async def test_a_session_that_is_gone_is_opened_anew_at_that_broker_only(clock, code):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    await fetched_from_both(fake, clock, member)
    fake.brokers[1].then(m.ShareFetchRequest, m.ShareFetchResponse(error=code))

    for _ in range(4):
        await within(clock, 1, member.fetch(records_max=10, max_wait_s=0.1))
    epochs = {node: [] for node in fake.brokers}
    for node, one in fake.seen(m.ShareFetchRequest):
        epochs[node].append(one.session_epoch)

    assert epochs[1].count(0) == 2
    assert epochs[2].count(0) == 1
    await within(clock, 2, member.close())


async def test_another_error_of_a_fetch_keeps_the_session_and_fails_what_rode_on_it(clock):
    fake = FakeCluster(clock, [1])
    member = await joined(fake, clock)
    fake.brokers[1].offer(batch())
    (found,) = await member.fetch(records_max=10)
    fake.brokers[1].then(m.ShareFetchRequest, m.ShareFetchResponse(error=ErrorCode.UNKNOWN_SERVER_ERROR))
    acknowledging = asyncio.ensure_future(member.acknowledge(acks(found)))
    await asyncio.sleep(0)

    await within(clock, 1, member.fetch(records_max=10))
    await within(clock, 1, member.fetch(records_max=10, max_wait_s=0.1))

    (failed,) = await acknowledging
    assert failed.error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert [one.session_epoch for _, one in fake.seen(m.ShareFetchRequest)] == [0, 1, 2]
    await within(clock, 2, member.close())


async def test_acknowledgements_ride_on_the_next_fetch_which_is_not_parked_long(clock):
    fake = FakeCluster(clock, [1])
    member = await joined(fake, clock)
    fake.brokers[1].offer(batch())
    (found,) = await member.fetch(records_max=10)
    acknowledging = asyncio.ensure_future(member.acknowledge(acks(found)))
    await asyncio.sleep(0)

    await within(clock, 1, member.fetch(records_max=10))

    (result,) = await acknowledging
    assert result.error is ErrorCode.NONE
    assert not fake.seen(m.ShareAcknowledgeRequest)
    (_, carrier) = fake.seen(m.ShareFetchRequest)[-1]
    assert carrier.partitions[0].acks == (AckRange(0, 2, ACCEPT),)
    assert carrier.max_wait_ms <= 80
    await within(clock, 2, member.close())


async def test_a_fetch_with_nothing_in_hand_is_parked_as_long_as_asked(clock):
    fake = FakeCluster(clock, [1])
    member = await joined(fake, clock)

    await within(clock, 2, member.fetch(records_max=10, max_wait_s=0.5))
    fake.brokers[1].offer(batch())
    await within(clock, 2, member.fetch(records_max=10, max_wait_s=0.5))
    await within(clock, 2, member.fetch(records_max=10, max_wait_s=0.5))

    waits = [one.max_wait_ms for _, one in fake.seen(m.ShareFetchRequest)]
    assert waits[:2] == [500, 500]
    assert waits[2] < 100
    await within(clock, 2, member.close())


async def test_renewals_go_alone_and_before_the_next_fetch(clock):
    fake = FakeCluster(clock, [1])
    member = await joined(fake, clock)
    fake.brokers[1].offer(batch())
    (found,) = await member.fetch(records_max=10)
    parked = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    renewing = asyncio.ensure_future(member.acknowledge({found.tp: [AckRange(0, 2, RENEW)]}))
    accepting = asyncio.ensure_future(member.acknowledge(acks(found)))

    await within(clock, 1, parked)
    await within(clock, 1, member.fetch(records_max=10, max_wait_s=0.1))

    assert [(await one)[0].error for one in (renewing, accepting)] == [ErrorCode.NONE] * 2
    order = [type(one).__name__ for one in fake.brokers[1].requests if hasattr(one, "session_epoch")]
    assert order[2] == "ShareAcknowledgeRequest"
    (_, renewal) = fake.seen(m.ShareAcknowledgeRequest)[0]
    assert renewal.is_renew_ack
    assert renewal.partitions[0].acks == (AckRange(0, 2, RENEW),)
    await within(clock, 2, member.close())


async def test_acknowledgements_of_one_partition_by_two_callers_are_not_judged_together(clock):
    fake = FakeCluster(clock, [1])
    member = await joined(fake, clock)
    fake.brokers[1].offer(batch())
    (found,) = await member.fetch(records_max=10)
    first = asyncio.ensure_future(member.acknowledge({found.tp: [AckRange(0, 0, ACCEPT)]}))
    second = asyncio.ensure_future(member.acknowledge({found.tp: [AckRange(1, 2, ACCEPT)]}))

    await within(clock, 1, asyncio.gather(first, second))

    sent = [one.partitions[0].acks for _, one in fake.seen(m.ShareAcknowledgeRequest)]
    assert sent == [(AckRange(0, 0, ACCEPT),), (AckRange(1, 2, ACCEPT),)]
    await within(clock, 2, member.close())


async def test_flowshares_own_servers_get_acknowledgements_beside_a_parked_fetch(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].is_flowshare = True
    member = await joined(fake, clock)
    fake.brokers[1].offer(batch())
    (found,) = await member.fetch(records_max=10)
    parked = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()

    (result,) = await member.acknowledge(acks(found))

    assert result.error is ErrorCode.NONE
    assert not parked.done()
    member.wakeup()
    await parked
    await within(clock, 2, member.close())


async def test_heartbeats_follow_quickly_until_partitions_are_assigned(clock):
    fake = FakeCluster(clock, [1])
    broker = fake.brokers[1]
    assigned, broker.assignment = broker.assignment, ()
    member = await joined(fake, clock)
    late = m.ShareGroupHeartbeatResponse(member_id="m1", member_epoch=2, assignment=assigned)
    nothing = m.ShareGroupHeartbeatResponse(member_id="m1", member_epoch=1)
    broker.then(m.ShareGroupHeartbeatRequest, nothing, nothing, late)
    broker.offer(batch())

    found = await within(clock, 2, member.fetch(records_max=10, max_wait_s=1.0))

    assert [one.partition for one in found] == [0]
    beats = len(fake.seen(m.ShareGroupHeartbeatRequest))
    await clock.advance(3)
    assert len(fake.seen(m.ShareGroupHeartbeatRequest)) == beats, "then they follow the broker's interval"
    await within(clock, 2, member.close())


async def test_a_member_without_partitions_does_not_beat_quickly_for_ever(clock):
    fake = FakeCluster(clock, [1])
    fake.brokers[1].assignment = ()
    member = await joined(fake, clock)
    await clock.advance(12)
    beats = len(fake.seen(m.ShareGroupHeartbeatRequest))

    await clock.advance(4)

    assert len(fake.seen(m.ShareGroupHeartbeatRequest)) <= beats + 1
    await within(clock, 2, member.close())


async def test_each_broker_gives_back_what_it_handed_out_when_the_member_closes(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    await fetched_from_both(fake, clock, member)

    await within(clock, 2, member.close(unrun={P0: [(1, 2)], P1: [(0, 0)]}))

    closing = {node: one for node, one in fake.seen(m.ShareAcknowledgeRequest) if one.session_epoch == -1}
    assert {node: one.partitions[0].acks[0][:2] for node, one in closing.items()} == {1: (1, 2), 2: (0, 0)}


async def test_who_waits_for_an_acknowledgement_when_the_member_closes_is_told_that_there_is_no_outcome(clock):
    fake = FakeCluster(clock, [1])
    member = await joined(fake, clock)
    fake.brokers[1].offer(batch())
    (fetched,) = await member.fetch(records_max=10)
    never = asyncio.get_running_loop().create_future()
    fake.brokers[1].then(m.ShareAcknowledgeRequest, never, never)
    sent = asyncio.ensure_future(member.acknowledge(acks(fetched)))
    await clock.advance(1)
    waits = asyncio.ensure_future(member.acknowledge(acks(fetched, RENEW)))
    await settle()

    await within(clock, 5, member.close(timeout_s=2))

    for outcome in (await within(clock, 5, sent), await within(clock, 5, waits)):
        assert [one.error for one in outcome] == [ErrorCode.NETWORK_EXCEPTION]


async def test_a_lost_brokers_partitions_are_looked_up_until_another_broker_leads_them(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    await fetched_from_both(fake, clock, member)
    fake.brokers[2].down = True

    fake.session_connection(2).break_off()
    assert await next_fetched(clock, member) == []  # right after its death the others still name it
    fake.leaders[1] = 1
    assert await next_fetched(clock, member) == []

    asked = {part.partition for one in fake.brokers[1].seen(m.ShareFetchRequest) for part in one.partitions}
    assert asked == {0, 1}
    await within(clock, 2, member.close())


async def test_a_broker_that_answers_between_two_losses_is_reached_again_as_soon_as_after_the_first(clock):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    for _ in range(8):
        fake.brokers[2].offer(batch(), partition=1)
        assert [one.partition for one in await next_fetched(clock, member)] == [1]
        fake.session_connection(2).break_off()

        await clock.advance(0.2)  # once the pause was 0.1 s

    await within(clock, 2, member.close())


async def test_a_broker_that_leads_nothing_any_more_is_not_tried_for_ever(clock, caplog):
    fake = FakeCluster(clock, [1, 2])
    member = await joined(fake, clock)
    await fetched_from_both(fake, clock, member)
    fake.brokers[2].down = True
    fake.session_connection(2).break_off()
    await next_fetched(clock, member)
    fake.leaders[1] = 1
    await next_fetched(clock, member)
    caplog.clear()

    await clock.advance(60)
    assert [one.message for one in caplog.records] == []
    fake.brokers[2].down = False
    fake.leaders[1] = 2
    fake.brokers[1].ready.append(
        m.FetchedPartition(topic_id=ORDERS, partition=1, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=(2, 9))
    )
    fake.brokers[1].more.set()
    fake.brokers[2].offer(batch(), partition=1)

    assert [one.partition for one in await next_fetched(clock, member)] == [1]
    await within(clock, 2, member.close())


@pytest.mark.parametrize("leader", [NOBODY, 3], ids=["nobody leads it", "a broker that was not needed leads it"])
async def test_a_member_that_ends_does_not_look_for_the_leaders_of_a_broker_that_is_not_reached(clock, leader):
    fake = FakeCluster(clock, [1, 2], coordinator=3)
    member = await joined(fake, clock)
    await fetched_from_both(fake, clock, member)
    fake.brokers[2].down = True
    fake.session_connection(2).break_off()
    await next_fetched(clock, member)
    never, closed = (asyncio.get_running_loop().create_future() for _ in range(2))
    fake.brokers[3].then(m.ShareGroupHeartbeatRequest, never)
    fake.session_connection(1).close = lambda: closed
    closing = asyncio.ensure_future(member.close(timeout_s=1))
    await clock.advance(1)  # too late to leave: its partitions are still assigned

    fake.leaders[1] = leader
    await clock.advance(10)
    closed.set_result(None)
    await closing
    asked = len(fake.seen(m.MetadataRequest))
    await clock.advance(10)

    assert len(fake.seen(m.MetadataRequest)) == asked
    assert not [task for task in asyncio.all_tasks() if task.get_name().endswith("leaders")]
