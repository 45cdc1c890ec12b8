"""A member against a scripted server: sessions, errors, lost connections, closing in order."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import Closed, IllegalState, NotConnected, ServerError
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
from tests.client.fakes import ORDERS, FakeServer
from tests.client.worlds import within

pytestmark = pytest.mark.asyncio
TP = m.TopicPartition(ORDERS, 0)
ACCEPT = b"\x01"


def batch(base=0, count=3):
    builder = BatchBuilder()
    for index in range(count):
        builder.add(None, b"v%d" % index, timestamp_ms=1)
    return place(builder.build(), base)


def ack(first=0, last=2, types=ACCEPT):
    return {TP: [AckRange(first, last, types)]}


async def started(server, clock, **kwargs):
    member = ShareMember(server.connect, group_id="g", topics=["orders"], clock=clock, member_id="m1", **kwargs)
    await member.start()
    return member


async def holding(server, clock):
    """A member that holds records 0 to 2, and the fetch that brought them."""
    member = await started(server, clock)
    server.offer(batch())
    (held,) = await member.fetch(records_max=10)
    return member, held


async def test_a_member_joins_with_its_topics_and_knows_its_partitions_by_name(clock):
    server = FakeServer(partitions=2)

    member = await started(server, clock)

    assert {(a.topic, a.partition) for a in member.assignment} == {("orders", 0), ("orders", 1)}
    join = server.seen(m.ShareGroupHeartbeatRequest)[0]
    assert (join.member_epoch, join.member_id, join.subscribed_topics) == (0, "m1", ("orders",))
    await member.close()


async def test_heartbeats_follow_the_interval_of_the_answer_and_repeat_nothing(clock):
    server = FakeServer()
    server.heartbeat_interval_ms = 2000
    member = await started(server, clock)

    await clock.advance(6.5)

    beats = server.seen(m.ShareGroupHeartbeatRequest)
    assert [beat.member_epoch for beat in beats] == [0, 1, 1, 1]
    assert beats[1].subscribed_topics is None
    await member.close()


async def test_a_fetch_brings_ranges_and_bytes_and_the_deadline_of_their_locks(clock):
    server = FakeServer()
    member = await started(server, clock)
    server.offer(batch())

    (fetched,) = await member.fetch(records_max=10)

    assert (fetched.topic, fetched.partition, fetched.tp) == ("orders", 0, TP)
    assert fetched.acquired == ((0, 2, 1),)
    assert fetched.lock_deadline == clock.monotonic() + 30
    assert member.lock_timeout_ms == 30_000
    await member.close()


async def test_fetches_and_acknowledgements_share_one_counter_that_starts_with_zero(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)

    await member.acknowledge(ack())
    server.offer(batch(3))
    await member.fetch(records_max=10)

    epochs = [r.session_epoch for r in server.requests if hasattr(r, "session_epoch")]
    assert epochs == [0, 1, 2]
    fetches = server.seen(m.ShareFetchRequest)
    assert [len(fetch.partitions) for fetch in fetches] == [1, 0]
    await member.close()


async def test_an_acknowledgement_does_not_wait_for_a_parked_fetch(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    parked = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()

    (result,) = await member.acknowledge(ack())

    assert (result.error, result.acks) == (ErrorCode.NONE, (AckRange(0, 2, ACCEPT),))
    assert not parked.done()
    assert server.seen(m.ShareAcknowledgeRequest)[0].session_epoch == 2
    member.wakeup()
    assert await parked == []
    await member.close()


async def test_a_wakeup_returns_at_once_and_loses_nothing(clock):
    server = FakeServer()
    member = await started(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()

    member.wakeup()
    assert await waiting == []
    server.offer(batch())

    (fetched,) = await member.fetch(records_max=10)
    assert fetched.acquired == ((0, 2, 1),)
    assert len(server.seen(m.ShareFetchRequest)) == 1
    await member.close()


async def test_a_wakeup_before_the_fetch_ends_the_next_one(clock):
    server = FakeServer()
    member = await started(server, clock)
    server.offer(batch())

    member.wakeup()

    assert await member.fetch(records_max=10) == []
    assert len(await member.fetch(records_max=10)) == 1
    await member.close()


async def test_a_cancelled_fetch_hands_its_records_to_the_next_one(clock):
    server = FakeServer()
    member = await started(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    server.offer(batch())

    assert len(await member.fetch(records_max=10)) == 1
    await member.close()


async def test_two_fetches_at_once_are_refused(clock):
    server = FakeServer()
    member = await started(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()

    with pytest.raises(IllegalState, match="one fetch"):
        await member.fetch(records_max=10)

    member.wakeup()
    await waiting
    await member.close()


async def test_what_is_on_its_way_to_a_member_that_closes_goes_back_unrun(clock):
    server = FakeServer()
    member = await started(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    member.wakeup()
    assert await waiting == []
    server.offer(batch())

    await member.close()

    closing = server.seen(m.ShareAcknowledgeRequest)[-1]
    assert closing.session_epoch == -1
    assert [(ack.first, ack.last, ack.unrun) for part in closing.partitions for ack in part.acks] == [(0, 2, True)]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ],
)
async def test_a_lost_session_is_opened_again_with_epoch_zero_and_all_partitions(clock, code):
    server = FakeServer()
    member = await started(server, clock)
    server.then(m.ShareFetchRequest, m.ShareFetchResponse(error=code))
    first = asyncio.ensure_future(member.fetch(records_max=10))
    await clock.advance(1)
    assert await first == []
    server.offer(batch())

    assert len(await member.fetch(records_max=10)) == 1

    again = server.seen(m.ShareFetchRequest)[1]
    assert (again.session_epoch, len(again.partitions)) == (0, 1)
    await member.close()


async def test_a_late_error_about_an_old_session_leaves_the_new_one_alone(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    late = asyncio.get_running_loop().create_future()
    server.then(m.ShareAcknowledgeRequest, late)
    acknowledging = asyncio.ensure_future(member.acknowledge(ack()))
    await settle()
    server.then(m.ShareFetchRequest, m.ShareFetchResponse(error=ErrorCode.SHARE_SESSION_NOT_FOUND))
    fetching = asyncio.ensure_future(member.fetch(records_max=10))
    await clock.advance(1)
    await fetching
    server.offer(batch(3))
    await member.fetch(records_max=10)

    late.set_result(m.ShareAcknowledgeResponse(error=ErrorCode.SHARE_SESSION_NOT_FOUND))
    (result,) = await acknowledging
    server.offer(batch(6))
    await member.fetch(records_max=10)

    assert result.error is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert [f.session_epoch for f in server.seen(m.ShareFetchRequest)] == [0, 2, 0, 1]
    await member.close()


async def test_a_lost_connection_is_replaced_and_what_was_held_fails_without_being_sent(clock):
    server = FakeServer()
    member, held = await holding(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()

    server.connections[0].break_off()
    await settle()
    assert await waiting == []
    server.offer(batch())
    fetching = asyncio.ensure_future(member.fetch(records_max=10))
    await clock.advance(0.1)
    (fetched,) = await fetching
    (result,) = await member.acknowledge(ack(), generation=held.generation)

    assert fetched.generation == held.generation + 1
    assert result.error is ErrorCode.NETWORK_EXCEPTION
    assert server.seen(m.ShareAcknowledgeRequest) == []
    assert server.seen(m.ShareFetchRequest)[-1].session_epoch == 0
    await member.close()


async def test_an_acknowledgement_whose_answer_is_lost_is_an_error_and_never_sent_again(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    server.then(m.ShareAcknowledgeRequest, asyncio.get_running_loop().create_future())
    acknowledging = asyncio.ensure_future(member.acknowledge(ack()))
    await settle()

    server.connections[0].break_off()
    await clock.advance(10)
    (result,) = await acknowledging

    assert result.error is ErrorCode.NETWORK_EXCEPTION
    assert "outcome unknown" in result.message
    assert len(server.seen(m.ShareAcknowledgeRequest)) == 1
    await member.close()


async def test_what_is_held_stays_with_the_member_when_another_process_takes_over(clock):
    server = FakeServer()
    server.keeps = True
    member, held = await holding(server, clock)
    seen = member.generation

    server.connections[0].break_off()
    fetching = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(), generation=held.generation))
    await clock.advance(1)
    (result,) = await acknowledging

    assert result.error is ErrorCode.NONE
    assert member.generation == seen
    (resumed,) = server.seen(m.ShareResumeRequest)
    assert resumed.partitions == (m.HeldRanges(ORDERS, 0, ((0, 2),)),)
    assert server.seen(m.ShareGroupHeartbeatRequest)[-1].member_epoch == server.member_epoch
    member.wakeup()
    await fetching
    await member.close()


@pytest.mark.parametrize(
    ("second", "outcome"),
    [(ErrorCode.NONE, ErrorCode.NONE), (ErrorCode.INVALID_RECORD_STATE, ErrorCode.NETWORK_EXCEPTION)],
    ids=["not written before", "written before"],
)
async def test_an_acknowledgement_that_a_dead_leader_did_not_answer_is_sent_to_its_successor(clock, second, outcome):
    server = FakeServer()
    server.keeps = True
    member, held = await holding(server, clock)
    refused = m.AcknowledgedPartition(topic_id=ORDERS, partition=0, error=second)
    server.then(
        m.ShareAcknowledgeRequest,
        asyncio.get_running_loop().create_future(),
        m.ShareAcknowledgeResponse(partitions=(refused,)),
    )
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(), generation=held.generation))
    await settle()

    server.connections[0].break_off()
    await clock.advance(1)
    (result,) = await acknowledging

    assert result.error is outcome
    assert len(server.seen(m.ShareAcknowledgeRequest)) == 2
    await member.close()


async def test_an_acknowledgement_outlives_two_leaders_that_end_one_after_the_other(clock):
    server = FakeServer()
    server.keeps = True
    member, held = await holding(server, clock)
    never = [asyncio.get_running_loop().create_future() for _ in range(2)]
    done = m.AcknowledgedPartition(topic_id=ORDERS, partition=0)
    server.then(m.ShareAcknowledgeRequest, *never, m.ShareAcknowledgeResponse(partitions=(done,)))
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(), generation=held.generation))
    await settle()

    for _ in range(2):
        server.connections[-1].break_off()
        await clock.advance(1)
    (result,) = await acknowledging

    assert result.error is ErrorCode.NONE
    assert len(server.seen(m.ShareAcknowledgeRequest)) == 3
    await member.close()


async def test_an_acknowledgement_gives_up_on_leaders_that_end_for_ever(clock):
    server = FakeServer()
    server.keeps = True
    member, held = await holding(server, clock)
    server.then(m.ShareAcknowledgeRequest, *[asyncio.get_running_loop().create_future() for _ in range(50)])
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(), generation=held.generation))
    await settle()

    while not acknowledging.done():
        server.connections[-1].break_off()
        await clock.advance(10)
    (result,) = await acknowledging

    assert result.error is ErrorCode.NETWORK_EXCEPTION
    assert len(server.seen(m.ShareAcknowledgeRequest)) == 6
    await member.close()


async def test_without_a_successor_an_acknowledgement_fails_in_time(clock):
    server = FakeServer()
    member, held = await holding(server, clock)

    server.refuse_connects = 1_000_000
    server.connections[0].break_off()
    fetching = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(), generation=held.generation))
    await clock.advance(20)
    (result,) = await acknowledging

    assert result.error is ErrorCode.NETWORK_EXCEPTION
    await fetching
    await member.close()


async def test_connecting_is_tried_with_growing_pauses(clock):
    server = FakeServer()
    server.refuse_connects = 4
    starting = asyncio.ensure_future(started(server, clock))

    await clock.advance(0.3)
    assert not starting.done()
    await clock.advance(1)

    member = await starting
    assert server.refuse_connects == 0
    await member.close()


async def test_a_server_that_is_never_there_is_an_error_in_time(clock):
    server = FakeServer()
    server.refuse_connects = 1_000_000
    settings = MemberSettings(link=LinkSettings(connect_timeout=5))
    starting = asyncio.ensure_future(started(server, clock, settings=settings))

    await clock.advance(11)

    with pytest.raises(NotConnected, match="nobody listens"):
        await starting


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
async def test_a_member_that_is_given_up_or_has_lost_its_group_joins_again_with_epoch_zero_and_the_same_id(clock, code):
    server = FakeServer()
    member = await started(server, clock)
    server.then(m.ShareGroupHeartbeatRequest, m.ShareGroupHeartbeatResponse(error=code))

    await clock.advance(6)

    beats = server.seen(m.ShareGroupHeartbeatRequest)
    assert [(beat.member_epoch, beat.member_id) for beat in beats[:3]] == [(0, "m1"), (1, "m1"), (0, "m1")]
    assert beats[2].subscribed_topics == ("orders",)
    await member.close()


@pytest.mark.parametrize("code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID])
async def test_a_member_that_is_given_up_for_another_process_does_not_take_its_id_back(clock, code):
    server = FakeServer()
    asked = 0

    async def joins_again():
        nonlocal asked
        asked += 1
        return False

    member = await started(server, clock, joins_again=joins_again)
    server.then(m.ShareGroupHeartbeatRequest, m.ShareGroupHeartbeatResponse(error=code))

    await clock.advance(20)

    assert [beat.member_epoch for beat in server.seen(m.ShareGroupHeartbeatRequest)] == [0, 1]
    assert asked == 1
    assert not member.assignment
    await member.close()


async def test_a_member_that_stops_leaves_its_partitions_to_others_and_acknowledges_what_it_holds(clock):
    server = FakeServer()
    member, held = await holding(server, clock)
    server.then(
        m.ShareGroupHeartbeatRequest,
        m.ShareGroupHeartbeatResponse(member_id="m1", member_epoch=2, heartbeat_interval_ms=500, assignment=()),
    )

    member.unsubscribe()
    await settle()

    assert server.seen(m.ShareGroupHeartbeatRequest)[-1].subscribed_topics == ()
    assert member.assignment == frozenset()
    [result] = await member.acknowledge(ack(), generation=held.generation)
    assert result.error is ErrorCode.NONE
    await clock.advance(1.7)
    assert len(server.seen(m.ShareGroupHeartbeatRequest)) == 3, "it is not in a hurry to be assigned something"
    await member.close()


async def test_a_member_that_is_given_up_while_it_stops_does_not_join_again(clock):
    server = FakeServer()
    member = await started(server, clock)
    server.then(m.ShareGroupHeartbeatRequest, m.ShareGroupHeartbeatResponse(error=ErrorCode.UNKNOWN_MEMBER_ID))

    member.unsubscribe()
    await clock.advance(20)

    assert [one.member_epoch for one in server.seen(m.ShareGroupHeartbeatRequest)] == [0, 1]
    with pytest.raises(Closed):
        await member.confirm()
    await member.close()


async def test_a_member_is_confirmed_by_a_heartbeat_that_was_sent_after_it_was_asked(clock):
    server = FakeServer()
    member = await started(server, clock)
    slow = asyncio.get_running_loop().create_future()
    server.then(m.ShareGroupHeartbeatRequest, slow)
    await clock.advance(5)
    confirming = asyncio.ensure_future(member.confirm())

    await settle()
    assert not confirming.done()
    slow.set_result(None)
    await confirming

    assert len(server.seen(m.ShareGroupHeartbeatRequest)) == 3, "one that was under way, and one more at once"
    await member.close()


async def test_a_member_whose_heartbeats_fail_is_confirmed_by_the_first_good_one(clock):
    server = FakeServer()
    member = await started(server, clock)
    loading = m.ShareGroupHeartbeatResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    server.then(m.ShareGroupHeartbeatRequest, loading, loading)

    confirming = asyncio.ensure_future(member.confirm())
    await settle()
    assert not confirming.done()
    await clock.advance(2)

    await confirming
    await member.close()


async def test_a_member_that_has_left_cannot_be_confirmed(clock):
    member = await started(FakeServer(), clock)
    await member.leave()

    with pytest.raises(Closed, match="left"):
        await member.confirm()
    await member.close()


async def test_a_coordinator_that_loads_is_asked_again_and_the_trouble_is_told(clock):
    server = FakeServer()
    member = await started(server, clock)
    loading = m.ShareGroupHeartbeatResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    server.then(m.ShareGroupHeartbeatRequest, loading, loading)

    await clock.advance(5.01)
    assert "COORDINATOR_LOAD_IN_PROGRESS" in member.trouble
    await clock.advance(1)

    assert member.trouble is None
    await member.close()


async def test_a_quota_that_holds_fetches_back_is_told_with_what_it_costs_once_a_minute(clock, caplog):
    server = FakeServer()
    member = await started(server, clock)
    held_back = m.ShareFetchResponse(throttle_ms=7_000)
    server.then(m.ShareFetchRequest, held_back, held_back)

    for _ in range(2):
        fetching = asyncio.ensure_future(member.fetch(records_max=10, max_wait_s=0.1))
        await clock.advance(1)
        assert await fetching == []
        assert "consumer_byte_rate" in member.trouble
    server.offer(batch())
    assert await member.fetch(records_max=10)

    assert member.trouble is None
    assert sum("counts as a delivery" in one.getMessage() for one in caplog.records) == 1
    await member.close()


async def test_a_group_that_refuses_the_member_says_what_to_do(clock):
    server = FakeServer()
    server.then(m.ShareGroupHeartbeatRequest, m.ShareGroupHeartbeatResponse(error=ErrorCode.GROUP_MAX_SIZE_REACHED))

    with pytest.raises(ServerError, match=r"group\.share\.max\.size"):
        await started(server, clock)


async def test_a_refusal_while_running_is_raised_by_the_next_fetch(clock):
    server = FakeServer()
    member = await started(server, clock)
    refusal = m.ShareGroupHeartbeatResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    server.then(m.ShareGroupHeartbeatRequest, refusal)

    await clock.advance(5.1)

    with pytest.raises(ServerError, match="GROUP_AUTHORIZATION_FAILED"):
        await member.fetch(records_max=1)
    await member.close()


async def test_partitions_that_are_no_longer_assigned_are_forgotten_and_new_ones_added(clock):
    server = FakeServer(partitions=2)
    server.assignment = (m.TopicPartition(ORDERS, 0),)
    member, _ = await holding(server, clock)
    moved = m.ShareGroupHeartbeatResponse(member_epoch=2, assignment=(m.TopicPartition(ORDERS, 1),))
    server.then(m.ShareGroupHeartbeatRequest, moved)
    await clock.advance(5)

    server.offer(batch(), partition=1)
    await member.fetch(records_max=10)

    fetch = server.seen(m.ShareFetchRequest)[1]
    assert fetch.forgotten == (m.TopicPartition(ORDERS, 0),)
    assert fetch.partitions == (m.SharePartitionRequest(ORDERS, 1),)
    await member.close()


async def test_an_error_of_one_partition_pauses_the_fetching_and_is_told(clock):
    server = FakeServer()
    member = await started(server, clock)
    part = m.FetchedPartition(topic_id=ORDERS, partition=0, error=ErrorCode.OFFSET_NOT_AVAILABLE)
    server.then(m.ShareFetchRequest, m.ShareFetchResponse(partitions=(part,)))
    fetching = asyncio.ensure_future(member.fetch(records_max=1))
    await settle()

    assert not fetching.done()
    await clock.advance(0.5)

    assert await fetching == []
    assert "OFFSET_NOT_AVAILABLE" in member.trouble
    await member.close()


async def test_a_fetch_that_is_refused_raises_once_records_of_other_partitions_were_returned(clock):
    server = FakeServer(partitions=2)
    member = await started(server, clock)
    refused = m.FetchedPartition(topic_id=ORDERS, partition=1, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    server.offer(batch())
    server.then(m.ShareFetchRequest, m.ShareFetchResponse(partitions=(server.ready.pop(), refused)))

    assert len(await member.fetch(records_max=10)) == 1
    with pytest.raises(ServerError, match="TOPIC_AUTHORIZATION_FAILED"):
        await member.fetch(records_max=10)
    await member.close()


async def test_a_renewal_marks_its_request_and_tells_the_new_deadline(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    await clock.advance(3)

    (result,) = await member.acknowledge({TP: [AckRange(0, 2, b"\x04")]})

    request = server.seen(m.ShareAcknowledgeRequest)[0]
    assert request.is_renew_ack
    assert request.partitions[0].acks == (AckRange(0, 2, b"\x04"),)
    assert result.lock_deadline == clock.monotonic() + 30
    await member.close()


async def test_a_partition_that_the_answer_leaves_out_counts_as_failed(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    server.then(m.ShareAcknowledgeRequest, m.ShareAcknowledgeResponse())

    (result,) = await member.acknowledge(ack())

    assert result.error is ErrorCode.INVALID_RECORD_STATE
    await member.close()


async def test_close_waits_for_acknowledgements_gives_back_leaves_and_disconnects_in_order(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    held = asyncio.get_running_loop().create_future()
    server.then(m.ShareAcknowledgeRequest, held)
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(0, 0)))
    await settle()

    closing = asyncio.ensure_future(member.close(unrun={TP: [(1, 2)]}))
    await settle()
    assert len(server.seen(m.ShareAcknowledgeRequest)) == 1
    held.set_result(m.ShareAcknowledgeResponse(partitions=(m.AcknowledgedPartition(topic_id=ORDERS, partition=0),)))
    await closing

    assert (await acknowledging)[0].error is ErrorCode.NONE
    last, leave = server.requests[-2:]
    assert (last.session_epoch, last.partitions[0].acks) == (-1, (AckRange(1, 2, b"\x02", 0, True),))
    assert leave.member_epoch == -1
    assert server.connections[0].gone.done()
    with pytest.raises(Closed):
        await member.fetch(records_max=1)


async def test_records_that_nobody_took_go_back_without_an_attempt_at_close(clock):
    server = FakeServer()
    member = await started(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    member.wakeup()
    await waiting
    server.offer(batch())
    await settle()

    await member.close()

    last = server.seen(m.ShareAcknowledgeRequest)[-1]
    assert last.partitions[0].acks == (AckRange(0, 2, b"\x02", 0, True),)


async def test_a_member_that_leaves_its_locks_gives_back_the_runs_of_interleaved_chunks_in_offset_order(clock):
    """A server refuses all acknowledgements of a partition when one of them is out of order."""
    server = FakeServer()
    member = await started(server, clock)
    server.offer(batch(count=11))
    await member.fetch(records_max=20)

    await member.leave_to_locks(unrun={TP: [(1, 1), (10, 10), (5, 6), (7, 7)]})

    (back,) = server.seen(m.ShareAcknowledgeRequest)
    assert [(ack.first, ack.last) for ack in back.partitions[0].acks] == [(1, 1), (5, 7), (10, 10)]
    assert all(ack.types == b"\x02" and ack.unrun for ack in back.partitions[0].acks)


async def test_a_member_that_leaves_its_locks_gives_back_nothing_that_a_lost_connection_took(clock):
    """One record that is not held would refuse all of its partition."""
    server = FakeServer()
    member = await started(server, clock)
    for base in (0, 3):
        member.ask(Plan(10, 10, 30.0, 1024, AcquireMode.BATCH_OPTIMIZED))
        server.offer(batch(base))
        await settle()
        if base == 0:
            server.connections[0].break_off()
            await clock.advance(6)

    await within(clock, 20, member.leave_to_locks(unrun={}))

    (back,) = server.seen(m.ShareAcknowledgeRequest)
    assert [(ack.first, ack.last) for ack in back.partitions[0].acks] == [(3, 5)]


async def test_close_ends_in_time_when_the_server_hangs(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    server.then(m.ShareAcknowledgeRequest, asyncio.get_running_loop().create_future())
    closing = asyncio.ensure_future(member.close(timeout_s=2))
    await settle()
    assert not closing.done()

    await clock.advance(2)

    await closing
    assert server.connections[0].gone.done()


async def test_a_member_whose_place_was_taken_ends_without_a_word(clock):
    server = FakeServer()
    member, _ = await holding(server, clock)
    said = len(server.requests)

    await member.abandon()

    assert len(server.requests) == said
    assert server.connections[0].gone.done()


async def test_who_acknowledges_once_the_member_is_closed_is_told_at_once_and_nothing_is_sent(clock):
    server = FakeServer()
    member, held = await holding(server, clock)
    await member.close()
    sent = len(server.requests)

    acknowledging = asyncio.ensure_future(member.acknowledge(ack(), generation=held.generation))
    await settle()

    assert [result.error for result in acknowledging.result()] == [ErrorCode.NETWORK_EXCEPTION]
    assert len(server.requests) == sent


async def test_what_a_whole_refusal_of_the_last_request_costs_is_told(clock, caplog):
    server = FakeServer()
    member, _ = await holding(server, clock)
    server.then(m.ShareAcknowledgeRequest, m.ShareAcknowledgeResponse(error=ErrorCode.INVALID_SHARE_SESSION_EPOCH))

    await member.close(unrun={TP: [(0, 2)]})

    assert "unrun records of group=g topic=orders partition=0 cost an attempt" in caplog.text


async def test_a_listener_of_late_outcomes_that_fails_holds_up_nothing(clock):
    server = FakeServer(partitions=2)
    server.keeps = True
    member = await started(server, clock)
    server.offer(batch())
    server.offer(batch(), partition=1)
    fetched = await member.fetch(records_max=10)
    server.then(m.ShareAcknowledgeRequest, asyncio.get_running_loop().create_future())
    late = []

    def listener(result):
        late.append(result.error)
        raise RuntimeError("the listener failed")

    acks = {one.tp: [AckRange(0, 2, ACCEPT)] for one in fetched}
    acknowledging = asyncio.ensure_future(member.acknowledge(acks, generation=fetched[0].generation, on_late=listener))
    await settle()
    server.connections[0].break_off()
    await clock.advance(1)

    assert await acknowledging == []
    assert late == [ErrorCode.NONE, ErrorCode.NONE]
    await member.close()


async def test_a_single_server_that_does_not_lead_a_partition_is_not_asked_again_and_again(clock):
    server = FakeServer()
    server.keeps = True
    member, held = await holding(server, clock)
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    refused = m.AcknowledgedPartition(topic_id=ORDERS, partition=0, error=code)
    server.then(m.ShareAcknowledgeRequest, *[m.ShareAcknowledgeResponse(partitions=(refused,))] * 9)

    (result,) = await member.acknowledge(ack(), generation=held.generation)

    assert result.error is code
    assert len(server.seen(m.ShareAcknowledgeRequest)) == 1
    server.script.clear()
    await member.close()


async def test_what_an_earlier_process_held_of_a_partition_that_is_not_assigned_any_more_is_adopted(clock):
    server = FakeServer()
    server.keeps = True
    member = await started(server, clock)
    old = m.TopicPartition(ORDERS, 5)

    await member.adopt({TP: [(0, 2)], old: [(7, 8)]})
    (result,) = await member.acknowledge({old: [AckRange(7, 8, ACCEPT)]})

    assert result.error is ErrorCode.NONE
    assert server.seen(m.ShareResumeRequest)[0].partitions == (
        m.HeldRanges(ORDERS, 0, ((0, 2),)),
        m.HeldRanges(ORDERS, 5, ((7, 8),)),
    )
    await member.close()


async def test_a_member_can_leave_and_join_again(clock):
    server = FakeServer()
    member = await started(server, clock)

    await member.leave()
    assert member.assignment == frozenset()
    await member.start()

    assert [b.member_epoch for b in server.seen(m.ShareGroupHeartbeatRequest)] == [0, -1, 0]
    assert member.assignment
    await member.close()


async def test_records_that_arrive_while_closing_are_given_back_and_not_handed_out(clock):
    server = FakeServer()
    member = await started(server, clock)
    waiting = asyncio.ensure_future(member.fetch(records_max=10))
    await settle()
    held = asyncio.get_running_loop().create_future()
    server.then(m.ShareAcknowledgeRequest, held)
    acknowledging = asyncio.ensure_future(member.acknowledge(ack(9, 9)))
    await settle()

    server.offer(batch())
    closing = asyncio.ensure_future(member.close())
    await settle()
    held.set_result(m.ShareAcknowledgeResponse())
    await closing
    await acknowledging

    assert await waiting == []
    last = server.seen(m.ShareAcknowledgeRequest)[-1]
    assert last.partitions[0].acks == (AckRange(0, 2, b"\x02", 0, True),)


async def test_a_server_that_drops_every_connection_is_not_stormed(clock):
    server = FakeServer()
    member = await started(server, clock)
    server.then(m.ShareFetchRequest, *[ConnectionResetError("dropped")] * 1000)
    server.then(m.ShareGroupHeartbeatRequest, *[ConnectionResetError("dropped")] * 1000)

    for _ in range(20):
        fetching = asyncio.ensure_future(member.fetch(records_max=1))
        await clock.advance(0.5)
        assert await fetching == []

    assert 5 < len(server.connections) < 15
    assert "dropped" in member.trouble
    await member.close()


async def test_a_member_that_ends_before_it_hears_that_it_has_joined_leaves(clock):
    server = FakeServer()
    member = ShareMember(server.connect, group_id="g", topics=["orders"], clock=clock, member_id="m1")
    server.then(m.ShareGroupHeartbeatRequest, asyncio.get_running_loop().create_future())
    starting = asyncio.ensure_future(member.start())
    await settle()
    starting.cancel()
    await settle()

    await within(clock, 30, member.close())

    assert [one.member_epoch for one in server.seen(m.ShareGroupHeartbeatRequest)] == [0, -1]


async def test_a_member_that_was_refused_does_not_leave(clock):
    server = FakeServer()
    member = ShareMember(server.connect, group_id="g", topics=["orders"], clock=clock, member_id="m1")
    refused = m.ShareGroupHeartbeatResponse(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    server.then(m.ShareGroupHeartbeatRequest, refused)
    with pytest.raises(ServerError, match="GROUP_AUTHORIZATION_FAILED"):
        await member.start()

    await within(clock, 30, member.close())

    assert [one.member_epoch for one in server.seen(m.ShareGroupHeartbeatRequest)] == [0]


async def test_a_member_that_never_reached_its_coordinator_ends_soon(clock):
    cluster = FakeCluster(clock, [2, 2], coordinator=1)
    cluster.cluster.set_bootstrap(["broker:2"])
    cluster.brokers[1].down = True
    member = ShareMember(cluster.connect, group_id="g", topics=["orders"], clock=clock, member_id="m1")
    starting = asyncio.ensure_future(member.start())
    await clock.advance(5)
    starting.cancel()
    await settle()
    began_s = clock.monotonic()

    await within(clock, 60, member.close())

    assert clock.monotonic() - began_s < 2
