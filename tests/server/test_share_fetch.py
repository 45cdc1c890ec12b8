"""ShareFetch: what it gives, in which order, and what it waits for."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import contextmanager

import pytest

from flowshare.log.base import NotLed, StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import DeleteRecordsRequest, DeleteTopicRequest, TopicPartition
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.fetch import LOAD_PATIENCE_S
from flowshare.testing.clock import settle
from tests.server.world import accept, batch, parked, ranges, release, world

pytestmark = pytest.mark.asyncio


def offsets_of(answer, number: int) -> list[tuple[int, int]]:
    """Acquired offsets of one of an answer's partitions."""
    return [(one.first, one.last) for part in answer.partitions if part.partition == number for one in part.acquired]


async def test_produced_records_are_acquired_and_accepted() -> None:
    async with world() as w:
        at = await w.log(10)
        m = w.member("m1")

        assert ranges(await m.fetch(at)) == [(0, 9, 1)]
        answer = await m.acknowledge({at: [accept(0, 9)]})

        assert answer.error is ErrorCode.NONE
        assert [p.error for p in answer.partitions] == [ErrorCode.NONE]
        assert (await m.fetch()).partitions == ()


async def test_the_answer_carries_the_lock_duration_and_whole_batches() -> None:
    async with world(configs={"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "7000"}) as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(3):
            await w.produce(4)
        m = w.member("m1")

        answer = await m.fetch(at, max_records=6, acquire_mode=1)

        assert answer.lock_timeout_ms == 7000
        (partition,) = answer.partitions
        assert [tuple(part) for part in partition.acquired] == [(0, 5, 1)]
        assert len(partition.records) == 2 * len(batch(4))


async def test_only_batches_with_acquired_records_are_sent() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(3):
            await w.produce(2)
        m = w.member("m1")
        await m.fetch(at)
        await m.acknowledge({at: [release(0, 1), accept(2, 3), release(4, 5)]})

        (partition,) = (await m.fetch()).partitions

        assert [tuple(part) for part in partition.acquired] == [(0, 1, 2), (4, 5, 2)]
        assert len(partition.records) == 2 * len(batch(2))


async def test_no_bytes_are_sent_for_a_fetch_of_ranges_only() -> None:
    async with world() as w:
        at = await w.log(5)

        (partition,) = (await w.member("m1").fetch(at, max_bytes=0)).partitions

        assert partition.records == b""
        assert [tuple(part) for part in partition.acquired] == [(0, 4, 1)]


async def test_max_records_holds_over_all_partitions_and_the_order_rotates() -> None:
    async with world() as w:
        topic = await w.topic(partitions=3)
        at = [TopicPartition(topic, number) for number in range(3)]
        for number in range(3):
            for _ in range(4):
                await w.produce(1, partition=number)
        m = w.member("m1")

        first = await m.fetch(*at, max_records=2)
        second = await m.fetch(max_records=2)
        third = await m.fetch(max_records=2)

        assert [p.partition for p in first.partitions if p.acquired] == [0]
        assert [p.partition for p in second.partitions if p.acquired] == [1]
        assert [p.partition for p in third.partitions if p.acquired] == [2]


async def test_max_bytes_is_split_between_partitions_that_have_records() -> None:
    async with world() as w:
        topic = await w.topic(partitions=3)
        size = len(batch(1, size=1000))
        for number in (0, 2):
            for _ in range(10):
                await w.produce(batch(1, size=1000), partition=number)
        m = w.member("m1")

        answer = await m.fetch(*(TopicPartition(topic, number) for number in range(3)), max_bytes=size * 6)

        assert {p.partition: len(p.records) for p in answer.partitions} == {0: size * 3, 1: 0, 2: size * 3}


@pytest.mark.parametrize("members", [1, 3])
async def test_an_append_wakes_parked_fetches_until_all_records_are_taken(members: int) -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        waiting = [
            await parked(w.member(f"m{number}").fetch(at, max_wait_ms=1000, max_records=2, acquire_mode=1))
            for number in range(3)
        ]

        await w.produce(2 * members)
        await settle()

        assert [task.done() for task in waiting] == [number < members for number in range(3)]
        assert [ranges(task.result()) for task in waiting[:members]] == [
            [(2 * n, 2 * n + 1, 1)] for n in range(members)
        ]
        await w.clock.advance(1)
        assert all(task.done() for task in waiting)


async def test_a_parked_fetch_ends_empty_at_its_wait_limit() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        await m.fetch(at)
        task = await parked(m.fetch(max_wait_ms=500))

        await w.clock.advance(0.499)
        assert not task.done()
        await w.clock.advance(0.001)

        assert (await task).partitions == ()
        assert w.server.stats()["parked_timeouts"] == 1


async def test_of_two_parked_fetches_of_one_session_the_first_takes_what_comes_and_the_second_what_comes_next() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        await m.fetch(at, max_wait_ms=0)
        first = await parked(m.fetch(max_wait_ms=1000))
        second = await parked(m.fetch(max_wait_ms=1000))

        await w.produce(1)
        (got,) = (await first).partitions
        assert [tuple(part) for part in got.acquired] == [(0, 0, 1)]
        assert not second.done()

        await w.produce(1)
        (got,) = (await second).partitions
        assert [tuple(part) for part in got.acquired] == [(1, 1, 1)]


async def test_a_third_fetch_of_a_session_ends_the_first_and_one_without_records_ends_all() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        await m.fetch(at, max_wait_ms=0)
        first, second, third = [await parked(m.fetch(max_wait_ms=1000)) for _ in range(3)]
        await settle()
        assert [one.done() for one in (first, second, third)] == [True, False, False]

        await m.fetch(max_records=0)

        assert [(await one).partitions for one in (first, second, third)] == [()] * 3


async def test_a_release_wakes_a_parked_fetch_of_another_member() -> None:
    async with world() as w:
        at, m1 = await w.held(3)
        m2 = w.member("m2")
        task = await parked(m2.fetch(at, max_wait_ms=1000))

        await m1.acknowledge({at: [release(0, 2)]})

        assert ranges(await task) == [(0, 2, 2)]


async def test_a_delayed_release_is_served_when_its_time_comes() -> None:
    async with world() as w:
        at, m = await w.held(1)
        await m.acknowledge({at: [release(0, delay_ms=5000)]})
        task = await parked(m.fetch(max_wait_ms=10_000))

        await w.clock.advance(4.9)
        assert not task.done()
        await w.clock.advance(0.1)

        assert ranges(await task) == [(0, 0, 2)]


async def test_an_unrun_release_costs_no_attempt() -> None:
    async with world() as w:
        at, m = await w.held(1)

        await m.acknowledge({at: [release(0, unrun=True)]})

        assert ranges(await m.fetch()) == [(0, 0, 1)]


async def test_a_lapsed_lock_wakes_a_parked_fetch() -> None:
    async with world() as w:
        at = await w.log(1)
        await w.member("m1").fetch(at)
        task = await parked(w.member("m2").fetch(at, max_wait_ms=60_000))

        await w.clock.advance(29)
        assert not task.done()
        await w.clock.advance(1.5)

        assert ranges(await task) == [(0, 0, 2)]
        assert w.server.stats()["lock_timeouts"] == 1


async def test_an_accept_at_capacity_wakes_a_parked_fetch() -> None:
    configs = {"share.auto.offset.reset": "earliest", "share.partition.max.record.locks": "100"}
    async with world(configs=configs) as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(15):
            await w.produce(10)
        m1 = w.member("m1")
        await m1.fetch(at)
        task = await parked(w.member("m2").fetch(at, max_wait_ms=1000))

        await m1.acknowledge({at: [accept(0, 9)]})

        assert ranges(await task) == [(100, 109, 1)]


async def test_a_closed_connection_ends_its_parked_fetch_and_frees_its_records() -> None:
    async with world() as w:
        at, m1 = await w.held(2)
        m2 = w.member("m2")
        own = await parked(m1.fetch(max_wait_ms=10_000))
        other = await parked(m2.fetch(at, max_wait_ms=10_000))

        await m1.connection.close()

        with pytest.raises(ConnectionError):
            await own
        assert ranges(await other) == [(0, 1, 2)]
        with pytest.raises(ConnectionError):
            await m1.fetch()


async def test_a_cancelled_fetch_leaves_no_trace() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        task = await parked(w.member("m1").fetch(at, max_wait_ms=10_000))

        task.cancel()
        await settle()
        await w.produce(1)

        assert w.server.stats()["parked"] == 0
        assert ranges(await w.member("m2").fetch(at)) == [(0, 0, 1)]


async def test_a_fetch_cancelled_while_its_acquire_is_written_gives_the_records_back() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m1, m2 = w.member("m1"), w.member("m2")
        await m1.fetch(at)
        await m2.fetch(at)
        await w.produce(1)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        task = await parked(m1.fetch())

        task.cancel()
        await settle()
        gate.set()
        await settle()

        assert ranges(await m2.fetch()) == [(0, 0, 1)]


async def test_a_right_that_was_taken_away_reaches_a_fetch_that_waits_when_it_is_woken() -> None:
    async with world() as w:
        at, other = TopicPartition(await w.topic(), 0), TopicPartition(await w.topic("u"), 0)
        m, readable = w.member("m1"), {"t", "u"}
        m.connection.may_read = readable.__contains__
        waiting = await parked(m.fetch(at, other, max_wait_ms=5_000))

        readable.remove("t")
        await w.produce(2)

        told = {part.topic_id: (part.error, part.acquired) for part in (await waiting).partitions}
        assert told[at.topic_id] == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ())
        assert told.get(other.topic_id, (ErrorCode.NONE, ())) == (ErrorCode.NONE, ())
        assert ranges(await w.member("m2").fetch(at)) == [(0, 1, 1)]


async def test_a_right_that_was_taken_away_while_an_acquire_was_written_gives_the_records_back() -> None:
    async with world() as w:
        at = await w.log(2)
        await w.member("m0").fetch(at, max_records=0)
        m, readable = w.member("m1"), {"t"}
        m.connection.may_read = readable.__contains__

        async def forbid() -> None:
            readable.clear()

        w.storage.before_write = forbid
        (told,) = (await m.fetch(at)).partitions
        w.storage.before_write = None
        await settle()

        assert (told.error, told.acquired, told.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, (), b"")
        assert ranges(await w.member("m2").fetch(at)) == [(0, 1, 1)]


async def test_the_right_to_a_group_is_asked_for_again_when_a_fetch_is_woken() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m, groups = w.member("m1"), {"g"}
        m.connection.may_share = groups.__contains__
        waiting = await parked(m.fetch(at, max_wait_ms=5_000))

        groups.clear()
        await w.produce(2)

        answer = await waiting
        assert (answer.error, answer.partitions) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, ())
        assert ranges(await w.member("m2").fetch(at)) == [(0, 1, 1)]


async def test_min_bytes_are_waited_for() -> None:
    async with world() as w:
        at = await w.log(batch(1, size=1000))
        task = await parked(w.member("m1").fetch(at, max_wait_ms=1000, min_bytes=2000))

        await w.produce(batch(1, size=1000))

        assert ranges(await task) == [(0, 1, 1)]


async def test_who_waits_for_more_bytes_keeps_what_is_there_from_nobody_behind() -> None:
    async with world() as w:
        at = await w.log(1)
        await w.member("m0").fetch(at)
        large = [await parked(w.member(f"l{n}").fetch(at, max_wait_ms=1000, min_bytes=2000)) for n in range(3)]
        small = await parked(w.member("m1").fetch(at, max_wait_ms=1000))
        behind = await parked(w.member("m2").fetch(at, max_wait_ms=1000))

        await w.produce(1)
        assert ranges(await small) == [(1, 1, 1)]
        await w.produce(batch(1, size=500))
        assert ranges(await behind) == [(2, 2, 1)]

        await w.produce(batch(1, size=500))
        await settle()
        assert not any(one.done() for one in large)
        await w.produce(batch(1, size=1500))
        await settle()
        assert [one.done() for one in large].count(True) == 1
        await w.clock.advance(1)
        answers = await asyncio.gather(*large)
        assert [one for answer in answers for one in offsets_of(answer, 0)] == [(3, 4)]


async def test_min_bytes_are_not_waited_for_beyond_the_wait_limit() -> None:
    async with world() as w:
        at = await w.log(batch(1, size=1000))
        task = await parked(w.member("m1").fetch(at, max_wait_ms=1000, min_bytes=2000))

        await w.clock.advance(1)

        assert ranges(await task) == [(0, 0, 1)]


async def test_acknowledgements_that_ride_on_a_fetch_come_first_and_do_not_wait() -> None:
    async with world() as w:
        at, m = await w.held(2)

        answer = await m.fetch(acks={at: [accept(0), release(1)]}, max_wait_ms=10_000)
        assert ranges(answer) == [(1, 1, 2)]
        answer = await m.fetch(acks={at: [accept(1)]}, max_wait_ms=10_000)

        (partition,) = answer.partitions
        assert (partition.ack_error, partition.acquired) == (ErrorCode.NONE, ())


async def test_a_partition_with_a_failed_acknowledgement_is_listed_with_the_error() -> None:
    async with world() as w:
        at, _ = await w.held(2)

        answer = await w.member("m1").fetch(epoch=1, acks={at: [accept(5)]})

        (partition,) = answer.partitions
        assert (partition.error, partition.ack_error) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
        assert w.server.stats()["acks_refused"] == 1


async def test_unknown_topics_and_partitions_are_errors_of_the_partition() -> None:
    async with world() as w:
        at = await w.log(1)
        unknown = TopicPartition(uuid.uuid4(), 0)
        answer = await w.member("m1").fetch(at, unknown, TopicPartition(at.topic_id, 7))

        assert [p.error for p in answer.partitions] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]


async def test_a_fetch_from_a_deleted_topic_ends_with_an_error() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m = w.member("m1")
        task = await parked(m.fetch(at, max_wait_ms=10_000))

        await w.admin.send(DeleteTopicRequest(name="t"))

        assert [p.error for p in (await task).partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_a_topic_made_anew_is_another_topic() -> None:
    async with world() as w:
        old = TopicPartition(await w.topic(), 0)
        await w.produce(3)
        m = w.member("m1")
        await m.fetch(old)
        await w.admin.send(DeleteTopicRequest(name="t"))
        new = TopicPartition(await w.topic(), 0)
        await w.produce(2)

        answer = await m.fetch(new)

        assert {p.topic_id: p.error for p in answer.partitions} == {
            old.topic_id: ErrorCode.UNKNOWN_TOPIC_ID,
            new.topic_id: ErrorCode.NONE,
        }
        assert [tuple(part) for p in answer.partitions for part in p.acquired] == [(0, 1, 1)]


async def test_records_below_a_moved_log_start_are_not_delivered() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(4):
            await w.produce(5)
        m = w.member("m1")
        await m.fetch(at, max_records=5, batch_size=5)
        await m.acknowledge({at: [release(0, 4)]})

        await w.admin.send(DeleteRecordsRequest(topic="t", partition=0, before=12))

        assert ranges(await m.fetch())[0] == (12, 19, 1)


async def test_latest_starts_at_the_end_and_by_duration_at_its_age() -> None:
    async with world(configs={}) as w:
        at = TopicPartition(await w.topic(), 0)
        now_ms = w.clock.now_ms()
        await w.produce(batch(1, timestamp_ms=now_ms - 7_200_000))
        await w.produce(batch(1, timestamp_ms=now_ms - 1_800_000))
        await w.configure({"share.auto.offset.reset": "by_duration:PT1H"}, "aged")

        assert ranges(await w.member("m1", "g").fetch(at)) == []
        assert ranges(await w.member("m1", "aged").fetch(at)) == [(1, 1, 1)]
        await w.produce(1)
        assert ranges(await w.member("m2", "g").fetch(at)) == [(2, 2, 1)]


async def test_by_duration_starts_at_the_end_when_no_record_is_that_young() -> None:
    async with world(configs={"share.auto.offset.reset": "by_duration:PT1H"}) as w:
        at = await w.log(batch(1, timestamp_ms=w.clock.now_ms() - 7_200_000))
        m = w.member("m1")

        assert ranges(await m.fetch(at)) == []
        await w.produce(1)
        assert ranges(await m.fetch()) == [(1, 1, 1)]


async def test_two_groups_read_one_partition_independently() -> None:
    async with world() as w:
        await w.configure({"share.auto.offset.reset": "earliest"}, "other")
        at = await w.log(3)

        assert ranges(await w.member("m1", "g").fetch(at)) == [(0, 2, 1)]
        assert ranges(await w.member("m1", "other").fetch(at)) == [(0, 2, 1)]


async def test_a_renewing_fetch_fetches_nothing_and_must_ask_for_nothing() -> None:
    async with world() as w:
        at, m = await w.held(2)
        nothing = {"max_bytes": 0, "max_records": 0, "min_bytes": 0}
        renew = [accept(0)._replace(types=b"\x04")]

        refused = await m.fetch(epoch=1, acks={at: renew}, is_renew_ack=True)
        answer = await m.fetch(acks={at: renew}, is_renew_ack=True, **nothing)

        assert refused.error is ErrorCode.INVALID_REQUEST
        assert [p.ack_error for p in answer.partitions] == [ErrorCode.NONE]


async def test_records_whose_acquire_was_written_for_longer_than_their_lock_leave_with_time_to_renew_it() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        m1, m2 = w.member("m1"), w.member("m2")
        for member in (m1, m2):
            await member.fetch(at)
        await w.produce(2)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        first = await parked(m1.fetch(max_wait_ms=60_000))
        await w.clock.advance(40)
        w.storage.before_write = None
        gate.set()
        assert ranges(await first) == [(0, 1, 1)]
        await w.clock.advance(1)

        assert (await m2.fetch()).partitions == ()


@contextmanager
def slow_to_load(w, number: int, error: Exception | None = None):
    """Loads of a partition's share-partitions wait for the event that is yielded; then they fail with the error."""
    loader, gate = w.server.share.local._loader, asyncio.Event()
    load = loader.load

    async def late(key, *args, **fields):
        if key.partition == number:
            await gate.wait()
            if error is not None:
                raise error
        return await load(key, *args, **fields)

    loader.load = late
    try:
        yield gate
    finally:
        gate.set()


NO_LEADER = StorageError("its log has no leader")


async def test_a_share_partition_that_cannot_be_loaded_keeps_nobody_from_the_others() -> None:
    async with world() as w:
        good, bad = await w.logs(1, 1)
        m = w.member("m1")
        with slow_to_load(w, 1, NO_LEADER):
            first = await parked(m.fetch(good, bad, max_wait_ms=500))
            await w.clock.advance(2 * LOAD_PATIENCE_S)
            assert offsets_of(await first, 0) == [(0, 0)]
            await w.produce(1)
            assert offsets_of(await m.fetch(max_wait_ms=500), 0) == [(1, 1)]

            waiting = await parked(m.fetch(max_wait_ms=500))
            await w.produce(1)
            assert offsets_of(await waiting, 0) == [(2, 2)]


async def test_a_share_partition_whose_load_does_not_end_is_laid_down_at_once() -> None:
    async with world() as w:
        at = await w.log(1)
        m = w.member("m1")
        partitions = w.server.share.partitions
        faults = list[object]()
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        with slow_to_load(w, 0):
            first = await parked(m.fetch(at, max_wait_ms=60_000))
            laid_down = asyncio.ensure_future(partitions.lay_down(lambda _: True))
            await settle()
            assert laid_down.done()
            (told,) = (await first).partitions
            assert not partitions.served(ShareKey("g", *at))

        assert faults == []
        assert told.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert ranges(await m.fetch(max_wait_ms=500)) == [(0, 0, 1)]


@pytest.mark.parametrize("led", [True, False], ids=["cannot be loaded", "is led elsewhere"])
async def test_each_fetch_is_told_of_a_share_partition_that_cannot_be_read(led: bool) -> None:
    """A client looks for another leader only when it is told to."""
    async with world() as w:
        good, bad = await w.logs(1, 1)
        if led:
            w.server.share.local._loader.load = refusing_load(w.server.share.local._loader.load, bad[1])
            expected = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            w.server.share.duties.check_leader = not_led(bad[1])
            expected = ErrorCode.NOT_LEADER_OR_FOLLOWER
        m = w.member("m1")
        answers = [await m.fetch(good, bad)]
        for _ in range(2):  # long polls that find nothing
            polling = await parked(m.fetch(max_wait_ms=500))
            await w.clock.advance(0.6)
            answers.append(await polling)
        polling = await parked(m.fetch(max_wait_ms=500))
        await w.produce(1)
        answers.append(await polling)
        first = await parked(w.member("m2").fetch(good, bad, max_wait_ms=500))
        await w.clock.advance(0.6)
        answers.append(await first)

        told = [{part.partition: part.error for part in answer.partitions}.get(bad[1]) for answer in answers]
        assert told == [expected] * 5


def refusing_load(load, partition):
    """A loader's `load` that fails for this partition."""

    async def refuse(key, *args, **given):
        if key.partition == partition:
            raise StorageError("its log has no leader")
        return await load(key, *args, **given)

    return refuse


def not_led(partition):
    """A `check_leader` that refuses this partition."""

    def check(key):
        if key.partition == partition:
            raise NotLed("it is led elsewhere")

    return check


async def test_an_append_is_read_once_by_fetches_that_wait_for_as_many_bytes() -> None:
    async with world() as w:
        at = await w.log(1)
        await w.member("m").fetch(at)
        waiting = [await parked(w.member(f"m{n}").fetch(at, max_wait_ms=5_000, min_bytes=100_000)) for n in range(10)]
        read, reads = w.storage.read, 0

        async def counted(*args, **given):
            nonlocal reads
            reads += 1
            return await read(*args, **given)

        w.storage.read = counted
        for _ in range(5):
            await w.produce(1)
            await settle()

        assert reads == 5
        await w.clock.advance(6)
        await asyncio.gather(*waiting)


async def test_a_fetch_that_has_enough_bytes_with_those_of_another_share_partition_is_not_passed_over() -> None:
    async with world() as w:
        both = await w.logs(1, 1)
        await w.member("m").fetch(*both)
        least = int(1.5 * len(batch(1)))
        of_one = await parked(w.member("m1").fetch(both[0], max_wait_ms=10_000, min_bytes=least))
        of_both = await parked(w.member("m2").fetch(*both, max_wait_ms=10_000, min_bytes=least))
        await w.produce(1, partition=1)
        await settle()
        assert not of_both.done()
        await w.produce(1, partition=0)
        await settle()

        assert of_both.done()
        await w.clock.advance(11)
        found = [[part.partition for part in (await one).partitions if part.acquired] for one in (of_both, of_one)]
        assert [sorted(parts) for parts in found] == [[0, 1], []]


async def test_a_fetch_waits_for_a_load_up_to_its_wait_limit_and_is_told_how_it_ended() -> None:
    async with world() as w:
        at = await w.log(1)
        m = w.member("m1")
        with slow_to_load(w, 0, NO_LEADER) as gate:
            first = await parked(m.fetch(at, max_wait_ms=500))
            await w.clock.advance(0.5)
            assert first.done()
            second = await parked(m.fetch(max_wait_ms=500))
            gate.set()

            (answered,) = (await second).partitions

        assert answered.error is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_fetch_that_waits_for_a_load_has_its_records_when_it_ends() -> None:
    async with world() as w:
        at = await w.log(1)
        with slow_to_load(w, 0) as gate:
            waiting = await parked(w.member("m1").fetch(at, max_wait_ms=500))
            await w.clock.advance(0.4)
            assert not waiting.done()
            gate.set()

            assert offsets_of(await waiting, 0) == [(0, 0)]
