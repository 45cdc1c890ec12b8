"""Members of classic groups: what they are assigned, where they begin, what becomes of commits; on a real server."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flowshare.client.errors import NotConnected
from flowshare.client.groups.assignors import Subscriber, range_assignor
from flowshare.client.groups.consumer import GroupConsumer, begun_with, size_in
from flowshare.client.groups.member import GroupMember
from flowshare.client.groups.membership import (
    Generation,
    GenerationOver,
    GroupRefused,
    GroupSettings,
    Membership,
    Verdict,
)
from flowshare.client.groups.reading import read_log
from flowshare.client.net.topology import NOBODY
from flowshare.client.producer.producer import Producer
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.protocol.errors import ErrorCode
from flowshare.slots.consumer_protocol import Assignment, Subscription
from tests.batches import place
from tests.client.brokers import FakeCluster
from tests.client.worlds import within, world_on

PLACE = ("orders", 0)


def subscriber(member_id, *topics, instance_id=None):
    return Subscriber(member_id, instance_id, Subscription(topics or ("a",), b""))


def shares(members, **topics):
    return {member: dict(given.partitions) for member, given in range_assignor(members, topics).items()}


def test_each_member_gets_neighbours_and_the_first_ones_get_one_more():
    members = [subscriber("m3"), subscriber("m1"), subscriber("m2")]

    assert shares(members, a=8) == {"m1": {"a": (0, 1, 2)}, "m2": {"a": (3, 4, 5)}, "m3": {"a": (6, 7)}}


def test_members_beyond_the_partitions_get_nothing_and_topics_are_dealt_one_by_one():
    members = [subscriber("m1", "a", "b"), subscriber("m2", "a")]

    assert shares(members, a=1, b=2) == {"m1": {"a": (0,), "b": (0, 1)}, "m2": {}}


def test_static_members_come_first_by_their_lasting_names():
    members = [subscriber("x"), subscriber("z", instance_id="1"), subscriber("y", instance_id="2")]

    assert shares(members, a=3) == {"z": {"a": (0,)}, "y": {"a": (1,)}, "x": {"a": (2,)}}


def test_topics_that_nobody_reads_and_members_of_no_topic_are_left_out():
    assert range_assignor([subscriber("m1", "c")], {"a": 3}) == {"m1": Assignment({}, b"")}


def test_a_refusal_says_what_to_mend_and_a_passing_error_that_it_may_pass():
    member = Membership("g", protocol="range", settings=GroupSettings())

    with pytest.raises(GroupRefused, match="READ"):
        member.verdict(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(NotConnected):
        member.verdict(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert member.verdict(ErrorCode.ILLEGAL_GENERATION) is Verdict.JOIN_AGAIN


def test_a_member_is_sure_for_its_session_from_when_its_heartbeat_left():
    member = Membership("g", protocol="range", settings=GroupSettings(session_timeout=10.0))
    member.joined(m.JoinGroupResponse(member_id="me", generation=3))
    member.synced(m.SyncGroupResponse(), sent_s=5.0)

    assert member.sure(14.9)
    assert not member.sure(15.0)
    member.proved(8.0)
    member.proved(6.0)
    assert member.sure(17.9)
    member.verdict(ErrorCode.UNKNOWN_MEMBER_ID)
    assert not member.sure(9.0)


def test_damaged_batches_are_told_and_passed_over():
    first, second = BatchBuilder(), BatchBuilder()
    for builder in (first, second):
        builder.add(None, b"v", timestamp_ms=1)
        builder.add(None, b"w", timestamp_ms=1)
    broken = bytearray(place(first.build(), 0))
    broken[-1] ^= 1
    read = read_log(bytes(broken) + place(second.build(), 2), 0)

    assert [record.offset for record in read.records] == [2, 3]
    assert read.next == 4
    [(low, high, _)] = read.damaged
    assert (low, high) == (0, 1)


def test_reading_begins_inside_a_batch():
    builder = BatchBuilder()
    for _ in range(5):
        builder.add(None, b"v", timestamp_ms=1)

    assert [record.offset for record in read_log(place(builder.build(), 10), 13).records] == [13, 14]


async def _world(clock, work, partitions=2):
    async with world_on(clock, partitions) as world:
        await within(clock, 120.0, work(world))


def consumer(world, **options):
    options.setdefault("settings", GroupSettings(session_timeout=10.0, rebalance_timeout=6.0))
    return GroupConsumer(world.connect, group_id="cg", topics=("orders",), clock=world.clock, **options)


async def values(one):
    generation = await one.ready()
    found = []
    for log in await one.fetch(wait_ms=0):
        read = read_log(log.records, one.positions[log.topic, log.partition])
        one.move(generation, (log.topic, log.partition), read.next)
        found += [record.value for record in read.records]
    return found


@pytest.mark.asyncio
async def test_a_consumer_reads_all_and_its_successor_goes_on_behind_the_commit(clock):
    async def work(world):
        await world.send(b"1", b"2")
        first = consumer(world)
        first.start()
        assert await values(first) == [b"1", b"2"]
        await first.commit(first.generation, {PLACE: 1})
        await first.close()

        second = consumer(world)
        second.start()
        assert await values(second) == [b"2"]
        await second.close()

    await _world(clock, work)


@pytest.mark.asyncio
async def test_two_consumers_share_the_partitions_and_the_one_that_stays_has_all_again(clock):
    async def work(world):
        revoked = []
        first = consumer(world, on_revoked=lambda generation: _note(revoked, generation))
        second = consumer(world)
        first.start()
        await first.ready()
        assert set(first.positions) == {("orders", 0), ("orders", 1)}
        second.start()
        await second.ready()
        while first.generation is None or len(first.positions) != 1:
            await world.clock.sleep(0.1)
        assert {*first.positions, *second.positions} == {("orders", 0), ("orders", 1)}
        assert len(revoked) == 1
        await second.close()
        while len(first.positions) != 2:
            await world.clock.sleep(0.1)
        await first.close()

    await _world(clock, work)


async def _note(notes, generation):
    notes.append(generation)


@pytest.mark.asyncio
async def test_what_was_read_by_a_generation_that_is_over_is_not_committed(clock):
    async def work(world):
        first, second = consumer(world), consumer(world)
        first.start()
        old = await first.ready()
        second.start()
        await second.ready()
        while first.generation in (None, old):
            await world.clock.sleep(0.1)

        with pytest.raises(GenerationOver):
            await first.commit(old, {PLACE: 1})
        assert await first.fetch([("orders", 7)], wait_ms=0) == []
        await first.close()
        await second.close()

    await _world(clock, work)


@pytest.mark.asyncio
async def test_a_group_without_commits_begins_where_it_is_told(clock):
    async def work(world):
        await world.send(b"1")
        await world.clock.sleep(5)
        moment = world.clock.now_ms()
        await world.send(b"2")
        for group, reset, position in (
            ("e", "earliest", 0),
            ("l", "latest", 2),
            ("t", moment, 1),
            ("n", moment + 1, 2),
        ):
            one = GroupConsumer(world.connect, group_id=group, topics=("orders",), clock=clock, reset=reset)
            one.start()
            await one.ready()
            assert one.positions[PLACE] == position
            await one.close()

    await _world(clock, work, partitions=1)


@pytest.mark.asyncio
async def test_a_group_that_begins_at_latest_reads_an_added_partition_from_its_first_record(clock):
    async def work(world):
        await world.send(b"before")
        one = consumer(world, reset="latest")
        one.start()
        await one.ready()
        await world.admin.create_partitions("orders", 2)
        producer = Producer(world.connect, clock=clock, linger=0)
        await producer.send("orders", b"at once", partition=1)
        await producer.close()
        while len(one.positions) != 2:
            await world.clock.sleep(0.1)
        assert one.positions == {PLACE: 1, ("orders", 1): 0}
        await one.close()

        other = consumer(world, reset="latest")  # before anything was read, or committed for it
        other.start()
        await other.ready()
        assert other.positions == {PLACE: 1, ("orders", 1): 0}
        await other.close()

    await _world(clock, work, partitions=1)


@pytest.mark.asyncio
async def test_a_group_at_latest_whose_members_are_new_reads_an_added_partition_from_its_first_record(clock):
    async def work(world):
        await world.send(b"before")
        one = consumer(world, reset="latest")
        one.start()
        await one.ready()
        await world.send(b"after")
        assert await values(one) == [b"after"]
        await one.commit(one.generation, one.positions)
        await one.close()
        await world.admin.create_partitions("orders", 2)
        producer = Producer(world.connect, clock=clock, linger=0)
        await producer.send("orders", b"while nobody was there", partition=1)
        await producer.close()

        other = consumer(world, reset="latest")
        other.start()
        await other.ready()
        assert other.positions == {PLACE: 2, ("orders", 1): 0}
        await other.close()

    await _world(clock, work, partitions=1)


@pytest.mark.asyncio
async def test_members_that_begin_a_group_at_latest_one_after_another_all_begin_at_the_end(clock):
    async def work(world):
        producer = Producer(world.connect, clock=clock, linger=0)
        for partition in (0, 1):
            await producer.send("orders", b"before", partition=partition)
        await producer.close()
        one = consumer(world, reset="latest")
        metadata = m.OffsetToCommit(*PLACE, 1, metadata="flowshare: begun with 2 partitions")
        await (await world.connect()).send(m.OffsetCommitRequest(group_id="cg", offsets=(metadata,)))
        one.start()
        await one.ready()
        assert one.positions == {PLACE: 1, ("orders", 1): 1}
        await one.close()

    await _world(clock, work, partitions=2)


@pytest.mark.asyncio
async def test_an_offset_that_is_gone_is_moved_to_the_logs_start(clock):
    async def work(world):
        await world.send(b"1", b"2", b"3")
        one = consumer(world)
        one.start()
        await one.ready()
        await world.admin.delete_records("orders", 0, 2)
        assert await values(one) == []
        assert await values(one) == [b"3"]
        await one.close()

    await _world(clock, work, partitions=1)


@pytest.mark.asyncio
async def test_a_topic_that_is_gone_is_asked_for_with_pauses_and_said(clock):
    async def work(world):
        one = consumer(world)
        await _begun(one)
        await world.admin.delete_topic("orders")
        assert await one.fetch(wait_ms=0) == []
        with pytest.raises(NotConnected, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await one.fetch(wait_ms=0)
        await world.admin.create_topic("orders", partitions=2)
        await world.send(b"1")
        while not (found := await _or_nothing(one)):
            await clock.sleep(0.1)
        assert found == [b"1"]
        await one.close()

    await _world(clock, work)


async def _or_nothing(one):
    try:
        return await values(one)
    except NotConnected:
        return []


@pytest.mark.parametrize("how", ["is refused", "has no leader"])
@pytest.mark.asyncio
async def test_a_partition_that_cannot_be_read_holds_up_no_other(clock, how, monkeypatch):
    """The cluster's connection looks for a leader for ten seconds, and answers nothing else meanwhile."""

    async def work(world):
        one = consumer(world)
        await _begun(one)
        sending, broken = one._link.send, True

        async def send(request, **options):
            mine = getattr(request, "partitions", ())
            if broken and isinstance(request, m.FetchRequest) and ("orders", 1) in {part[:2] for part in mine}:
                await clock.sleep(10)
                if how == "has no leader":
                    raise NotConnected("leader of orders-1: nobody is")
                answer = await sending(request, **options)
                wrong = [
                    replace(log, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, records=b"") if log.partition == 1 else log
                    for log in answer.partitions
                ]
                return replace(answer, partitions=tuple(wrong))
            return await sending(request, **options)

        monkeypatch.setattr(one._link, "send", send)
        await _or_nothing(one)
        while not one.positions.keys() - one._probes.keys():
            await clock.sleep(0.1)
        await world.send(b"0", partition=0)
        began_s = clock.monotonic()
        assert await values(one) == [b"0"]
        assert clock.monotonic() - began_s < 1
        broken = False
        await world.send(b"1", partition=1)
        while not (found := await values(one)):
            await clock.sleep(0.1)
        assert found == [b"1"]
        await one.close()

    await _world(clock, work)


@pytest.mark.asyncio
async def test_a_consumer_whose_close_is_cancelled_leaves_nothing_at_work(clock):
    async def work(world):
        letting_go = asyncio.Event()

        async def revoked(generation):
            letting_go.set()
            await asyncio.Event().wait()

        before = asyncio.all_tasks()
        one = consumer(world, on_revoked=revoked)
        await _begun(one)
        closing = asyncio.ensure_future(one.close())
        await letting_go.wait()
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        assert one._link.current is None
        assert one.member._link.current is None
        assert not [task for task in asyncio.all_tasks() - before if task.get_name().startswith("cg")]

    await _world(clock, work)


def _committed(*offsets, error=ErrorCode.NONE):
    parts = [m.FetchedOffset("orders", n, one) for n, one in enumerate(offsets)]
    parts[-1] = parts[-1]._replace(error=error)
    return m.OffsetFetchResponse(partitions=tuple(parts))


@pytest.mark.asyncio
async def test_a_partition_without_a_leader_holds_up_no_other_of_a_cluster(clock):
    fake, told = FakeCluster(clock, [1, 2]), []
    fake.leaders = [1, NOBODY]
    fake.brokers[1].then(m.OffsetFetchRequest, _committed(5, 6))
    one = GroupConsumer(
        fake.connect, group_id="g", topics=["orders"], clock=clock, on_assigned=lambda _, bounds: told.append([*bounds])
    )
    generation = Generation(1, "m", {"orders": (0, 1)})
    one.member._state.generation = generation

    async def fetched():
        begun_s = clock.monotonic()
        logs = await one.fetch(wait_ms=0)
        assert clock.monotonic() - begun_s < 1
        return {log.partition: log.records for log in logs}

    async def work():
        one._assigned(generation)
        assert await one.ready() is generation
        assert clock.monotonic() < begun_s + 1
        assert told == [[("orders", 0)]]
        assert await fetched() == {0: b"1"}

        fake.leaders = [1, 2]
        while ("orders", 1) not in one.positions:
            await clock.sleep(0.1)
        assert told == [[("orders", 0)], [("orders", 1)]]
        assert one.positions == {("orders", 0): 5, ("orders", 1): 6}
        assert await fetched() == {0: b"1", 1: b"2"}

        fake.leaders = [1, NOBODY]
        for _ in range(20):
            assert await fetched() == {0: b"1"}
        fake.leaders = [1, 2]
        while one._probes:
            await clock.sleep(0.1)
        assert await fetched() == {0: b"1", 1: b"2"}

    begun_s = clock.monotonic()
    await within(clock, 60, work())
    await within(clock, 5, one._let_go(generation))
    one.member._state.generation = None
    await one.close()


@pytest.mark.asyncio
async def test_a_partition_whose_commit_is_not_told_yet_holds_up_no_other(clock):
    """A transaction with its offset is open (UNSTABLE_OFFSET_COMMIT)."""
    fake = FakeCluster(clock, [1, 1])
    unstable = _committed(5, -1, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    only = replace(unstable, partitions=unstable.partitions[1:])
    fake.brokers[1].then(
        m.OffsetFetchRequest, unstable, *[only] * 10, replace(only, partitions=_committed(5, 6).partitions[1:])
    )
    one = GroupConsumer(fake.connect, group_id="g", topics=["orders"], clock=clock)
    generation = Generation(1, "m", {"orders": (0, 1)})
    one.member._state.generation = generation

    async def work():
        one._assigned(generation)
        await one.ready()
        assert one.positions == {("orders", 0): 5}
        while len(one.positions) < 2:
            await clock.sleep(0.1)
        assert one.positions == {("orders", 0): 5, ("orders", 1): 6}

    await within(clock, 60, work())
    one.member._state.generation = None
    await one.close()


@pytest.mark.asyncio
async def test_a_generation_that_was_given_up_is_not_read_by_the_partitions_found_later(clock):
    fake = FakeCluster(clock, [1, 2])
    fake.leaders = [1, NOBODY]
    fake.brokers[1].then(m.OffsetFetchRequest, _committed(5, 6))
    one = GroupConsumer(fake.connect, group_id="g", topics=["orders"], clock=clock)
    generation = Generation(1, "m", {"orders": (0, 1)})
    one.member._state.generation = generation

    async def work():
        one._assigned(generation)
        one.give_up(await one.ready())
        fake.leaders = [1, 2]
        await one._finding

    await within(clock, 60, work())
    assert (one.generation, one.positions) == (None, {})
    one.member._state.generation = None
    await one.close()


async def _begun(one):
    one.start()
    return await one.ready()


@pytest.mark.asyncio
async def test_more_partitions_are_dealt_out_when_the_leader_sees_them(clock):
    async def work(world):
        one = consumer(world)
        one.start()
        await one.ready()
        await world.admin.create_partitions("orders", 3)
        while len(one.positions) != 3:
            await world.clock.sleep(0.5)
        await one.close()

    await _world(clock, work, partitions=1)


@pytest.mark.asyncio
async def test_protocol_assignor_and_user_data_are_the_callers(clock):
    async def work(world):
        seen, told = [], []

        def all_to_me(members, topics):
            seen.extend(one.subscription.user_data for one in members)
            return {one.member_id: Assignment({"orders": (1,)}, b"for you") for one in members}

        member = GroupMember(
            world.connect,
            group_id="cg",
            topics=("orders",),
            clock=clock,
            protocol="mine",
            assignor=all_to_me,
            user_data=lambda: b"from me",
            on_assigned=told.append,
        )
        member.start()
        while not told:
            await clock.sleep(0.1)
        assert (seen, told[0].user_data, told[0].places) == ([b"from me"], b"for you", [("orders", 1)])
        other = consumer(world)
        other.start()
        while other.member.trouble is None:
            await clock.sleep(0.1)
        assert "INCONSISTENT_GROUP_PROTOCOL" in other.member.trouble
        await other.close()
        await member.close()

    await _world(clock, work)


def test_the_size_that_a_group_began_with_is_read_from_what_was_written_and_nothing_else():
    assert size_in(begun_with(12)) == 12
    assert begun_with(None) is None
    for other in ("", "12", "flowshare: begun with 012 partitions", "flowshare: begun with \u0661 partitions", "x"):
        assert size_in(other) is None
