"""The tracker of a KMQ queue on a real server whose clock stands still: what is sent again, when, and what never is."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.errors import DeliveryTimeout, NotConnected, ServerError
from flowshare.client.groups.consumer import GroupConsumer
from flowshare.client.groups.membership import GroupSettings
from flowshare.client.kmq import moving
from flowshare.client.kmq.moving import carry_queue, plan_queue
from flowshare.client.kmq.topics import PartitionMismatch
from flowshare.client.kmq.tracker import QueueTracker
from flowshare.kmq.markers import END, encode_key, encode_start
from flowshare.kmq.redelivery import QueueRules
from flowshare.kmq.tracker import PartitionTracker
from flowshare.protocol.errors import ErrorCode
from tests.client.worlds import within, world_on

pytestmark = pytest.mark.asyncio
RULES = QueueRules("q", "m")
APP = ("app", b"x")


class Queue:
    """A queue with its markers on a server, and what lies there."""

    def __init__(self, world):
        self.world = world
        self.clock, self.admin, self.producer = world.clock, world.admin, world.producer

    async def put(self, value, **options):
        """A message; its offset."""
        options.setdefault("partition", 0)
        return (await self.producer.send("q", value, **options)).offset

    async def start(self, *offsets, after=3_000, partition=0):
        for offset in offsets:
            await self.mark(encode_key(partition, offset), encode_start(after), partition)

    async def end(self, *offsets, partition=0):
        for offset in offsets:
            await self.mark(encode_key(partition, offset), END, partition)

    async def mark(self, key, value, partition=0):
        await self.producer.send("m", value, key=key, partition=partition)

    async def records(self, topic="q", partition=0, offset=0):
        return [record async for record in self._records(topic, partition, offset)]

    async def _records(self, topic, partition, offset):
        for record in await self.admin.read(topic, partition, offset):
            yield record

    async def values(self, topic="q", partition=0):
        return [record.value for record in await self.records(topic, partition)]

    @asynccontextmanager
    async def tracked(self, rules=RULES, **options):
        options.setdefault("settings", GroupSettings())
        one = QueueTracker(
            self.world.connect,
            rules,
            group_id="trackers",
            clock=self.clock,
            admin=self.admin,
            producer=self.producer,
            **options,
        )
        await one.start()
        try:
            yield one
        finally:
            await one.close()

    async def until(self, look, limit_s=60.0):
        end_s = self.clock.monotonic() + limit_s
        while not look():
            assert self.clock.monotonic() < end_s
            await self.clock.sleep(0.05)


async def on(clock, work, partitions=1, limit_s=400.0):
    async with world_on(clock) as world:
        await world.admin.create_topic("q", partitions=partitions)
        await world.admin.create_topic("m", partitions=partitions, configs={"message.timestamp.type": "LogAppendTime"})
        await within(clock, limit_s, work(Queue(world)))


async def test_a_message_comes_again_to_its_partition_with_its_headers_its_time_and_the_count(clock):
    async def work(queue):
        await queue.put(b"a", key=b"k", headers=[APP], timestamp=1_000.5, partition=1)
        await queue.start(0, partition=1)
        began = queue.clock.now_ms()
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered)
            assert 3_000 <= queue.clock.now_ms() - began <= 3_300
        copy = (await queue.records(partition=1))[1]
        assert (copy.key, copy.value, copy.timestamp_ms) == (b"k", b"a", 1_000_500)
        assert copy.headers == (APP, ("kmq-redelivery-count", b"\x01"))
        marker = (await queue.records("m", 1))[-1]
        assert (marker.key.hex(), marker.value.hex()) == ("000000010000000000000000", "00")

    await on(clock, work, partitions=2)


async def test_messages_that_fall_due_while_the_partitions_are_let_go_of_come_again_once(clock):
    async def work(queue):
        offsets = [await queue.put(b"%d" % number) for number in range(30)]
        for number, offset in enumerate(offsets):
            await queue.start(offset, after=1_500 + 100 * number)
        sending = queue.producer.send_nowait

        def send(*record, **options):
            sent = sending(*record, **options)

            async def confirmed():
                found = await asyncio.shield(sent)
                await queue.clock.sleep(0.8)  # a producer that is slow to confirm
                return found

            return asyncio.ensure_future(confirmed())

        queue.producer.send_nowait = send
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered > 4)
            tracker._consumer.member.rejoin()
            await queue.until(lambda: tracker.caught_up and not tracker.open)
        assert Counter(await queue.values()) == {b"%d" % number: 2 for number in range(30)}

    await on(clock, work)


async def test_a_tracker_whose_close_is_cancelled_leaves_nothing_at_work(clock):
    async def work(queue):
        await queue.put(b"a")
        await queue.start(0)
        copying = asyncio.Event()

        def send(*record, **options):
            copying.set()
            return asyncio.get_running_loop().create_future()  # never confirmed

        sending, queue.producer.send_nowait = queue.producer.send_nowait, send
        async with queue.tracked() as tracker:
            await copying.wait()
            closing = asyncio.ensure_future(tracker.close())
            await queue.clock.sleep(0.5)
            closing.cancel()
            await asyncio.wait({closing})
            assert closing.cancelled()
            assert tracker._consumer._link.current is None
            assert tracker._originals.current is None
        queue.producer.send_nowait = sending

    await on(clock, work)


async def test_messages_of_a_partition_come_again_while_another_one_has_no_leader(clock, monkeypatch):
    offset_of, led = GroupConsumer._offset, False

    async def offset(self, place, *more, **options):
        if place[1] == 1 and not led:
            raise NotConnected("leader of m-1: nobody is")
        return await offset_of(self, place, *more, **options)

    async def work(queue):
        nonlocal led
        for number in range(2):
            await queue.put(b"a", partition=number)
            await queue.start(0, partition=number)
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered == 1)
            assert tracker.partitions == (0,)
            await queue.start(1)
            await queue.until(lambda: tracker.open)
            led = True
            await queue.until(lambda: tracker.counts.redelivered == 3)
            await queue.clock.sleep(20)
            assert (tracker.counts.redelivered, tracker.open) == (3, 0)
        assert [len(await queue.values(partition=number)) for number in range(2)] == [3, 2]

    monkeypatch.setattr(GroupConsumer, "_offset", offset)
    await on(clock, work, partitions=2)


async def test_a_message_that_is_ended_does_not_come_again(clock):
    async def work(queue):
        await queue.put(b"a")
        await queue.start(0)
        async with queue.tracked() as tracker:
            await queue.clock.sleep(2)
            await queue.end(0)
            await queue.clock.sleep(20)
            assert (tracker.counts.redelivered, tracker.open) == (0, 0)
        assert await queue.values() == [b"a"]

    await on(clock, work)


async def test_a_message_is_delivered_four_times_and_undelivered_then(clock):
    async def work(queue):
        offset = await queue.put(b"poison", key=b"k", headers=[APP])
        async with queue.tracked() as tracker:
            for _ in range(4):  # a consumer that never ends what it begins
                await queue.start(offset)
                done = tracker.counts.redelivered + tracker.counts.undelivered
                await queue.until(lambda done=done: tracker.counts.redelivered + tracker.counts.undelivered > done)
                offset += 1
            assert (tracker.counts.redelivered, tracker.counts.undelivered) == (3, 1)
        assert await queue.values() == [b"poison"] * 4
        [letter] = await queue.records("q__undelivered")
        assert (letter.key, letter.value) == (b"k", b"poison")
        assert letter.headers == (APP, ("kmq-redelivery-count", b"\x03"))

    await on(clock, work)


async def test_a_message_that_the_queue_takes_no_more_for_its_age_comes_again_with_the_time_of_now(clock):
    async def work(queue):
        await queue.put(b"old", timestamp=1_000.0)
        await queue.admin.alter_topic_configs("q", {"message.timestamp.before.max.ms": "3600000"})
        await queue.start(0)
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered)
        copy = (await queue.records())[1]
        assert copy.value == b"old"
        assert queue.clock.now_ms() - copy.timestamp_ms < 60_000

    await on(clock, work)


async def test_an_undelivered_message_is_kept_as_long_as_others_however_old_it_is(clock):
    async def work(queue):
        hour = {"retention.ms": "3600000", "message.timestamp.before.max.ms": "3600000"}
        await queue.admin.create_topic("q__undelivered", partitions=1, configs=hour)
        await queue.put(b"old", timestamp=1_000.0)
        await queue.start(0)
        async with queue.tracked(QueueRules("q", "m", redeliveries=0)) as tracker:
            await queue.until(lambda: tracker.counts.undelivered)
        [letter] = await queue.records("q__undelivered")
        assert letter.value == b"old"
        assert queue.clock.now_ms() - letter.timestamp_ms < 60_000

    await on(clock, work)


async def test_nothing_is_sent_instead_of_an_original_that_retention_deleted(clock):
    async def work(queue):
        for value in (b"a", b"b", b"c"):
            await queue.put(value)
        await queue.start(0, 1, 2)
        await queue.end(2)
        await queue.admin.delete_records("q", 0, 1)
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.lost and tracker.counts.redelivered)
            assert (tracker.counts.lost, tracker.counts.redelivered, tracker.open) == (1, 1, 0)
        assert await queue.values() == [b"b", b"c", b"b"]
        assert (await queue.records("m"))[-1].value == END

    await on(clock, work)


async def test_a_marker_of_an_offset_behind_the_logs_end_is_given_up_after_some_tries_as_lost(clock):
    async def work(queue):
        await queue.put(b"a")
        await queue.start(0, 99)
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered)
            assert tracker.counts.lost == 0
            await queue.until(lambda: tracker.counts.lost)
            assert (tracker.counts.redelivered, tracker.open) == (1, 0)
        assert await queue.values() == [b"a", b"a"]

    await on(clock, work)


async def test_odd_and_foreign_markers_are_counted_and_hold_up_nothing(clock):
    async def work(queue):
        await queue.put(b"a")
        await queue.mark(encode_key(0, 0), None)
        await queue.mark(encode_key(0, 0), b"")
        await queue.mark(b"?", END)
        await queue.mark(None, END)
        await queue.mark(encode_key(1, 0), encode_start(1))
        await queue.start(0)
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered)
            assert (tracker.counts.odd, tracker.counts.foreign) == (4, 1)
            await queue.until(lambda: tracker.open == 0)
            await queue.clock.sleep(2)
        [committed] = await queue.admin.committed_offsets("trackers")
        assert committed.offset == await queue.admin.log_end("m", 0)

    await on(clock, work)


async def test_a_successor_reads_from_the_oldest_open_message_on_and_no_more(clock):
    async def work(queue):
        for index in range(20):
            await queue.put(b"%d" % index)
        await queue.start(*range(10), after=60_000)
        await queue.end(*range(8))
        async with queue.tracked() as first:
            await queue.until(lambda: first.caught_up)
        [committed] = await queue.admin.committed_offsets("trackers")
        assert committed.offset == 8
        async with queue.tracked() as second:
            await queue.until(lambda: second.caught_up)
            assert (second.counts.starts, second.counts.ends, second.open) == (2, 8, 2)
            await queue.until(lambda: second.counts.redelivered == 2, limit_s=70)
        assert (await queue.values())[20:] == [b"8", b"9"]

    await on(clock, work)


async def test_two_trackers_share_the_partitions(clock):
    async def work(queue):
        for partition in (0, 1):
            await queue.put(b"%d" % partition, partition=partition)
        async with queue.tracked() as first, queue.tracked() as second:
            await queue.until(lambda: len(first.partitions) == len(second.partitions) == 1)
            await queue.start(0, partition=0)
            await queue.start(0, partition=1)
            await queue.until(lambda: first.counts.redelivered == second.counts.redelivered == 1)
        assert [await queue.values(partition=one) for one in (0, 1)] == [[b"0"] * 2, [b"1"] * 2]

    await on(clock, work, partitions=2)


async def test_a_message_whose_copy_cannot_be_sent_holds_up_no_other(clock, monkeypatch):
    async def work(queue):
        stuck = await queue.put(b"stuck", headers=[("kmq-redelivery-count", b"\x03")])
        others = [await queue.put(b"%d" % index) for index in range(5)]
        sending = queue.producer.send_nowait

        def send(topic, *given, **options):
            if topic == "q__undelivered" and broken:
                raise DeliveryTimeout("the topic has no leader")
            return sending(topic, *given, **options)

        broken = True
        monkeypatch.setattr(queue.producer, "send_nowait", send)
        await queue.start(stuck, *others)
        async with queue.tracked() as tracker:
            await queue.until(lambda: tracker.counts.redelivered == 5)
            await queue.until(lambda: tracker.counts.failed >= 3)
            assert tracker.open == 1
            broken = False
            await queue.until(lambda: tracker.counts.undelivered == 1)
            await queue.until(lambda: tracker.open == 0)
        assert await queue.values("q__undelivered") == [b"stuck"]

    await on(clock, work)


async def test_an_end_marker_that_fails_is_written_again_and_the_copy_is_not(clock, monkeypatch):
    async def work(queue):
        await queue.put(b"a")
        await queue.start(0)
        sending, failed = queue.producer.send_nowait, []

        def send(topic, *given, **options):
            if topic == "m" and len(failed) < 3:
                failed.append(topic)
                raise DeliveryTimeout("not now")
            return sending(topic, *given, **options)

        monkeypatch.setattr(queue.producer, "send_nowait", send)
        async with queue.tracked() as tracker:
            await queue.until(lambda: len(failed) == 3 and tracker.open == 0)
        assert await queue.values() == [b"a", b"a"]

    await on(clock, work)


async def test_a_tracker_that_dies_between_copy_and_end_marker_leaves_a_duplicate(clock, monkeypatch):
    """The successor cannot know of the copy, as the documentation says."""

    async def work(queue):
        await queue.put(b"a")
        await queue.start(0)
        sending = queue.producer.send_nowait

        def send(topic, *given, **options):
            if topic == "m":
                raise DeliveryTimeout("it died")
            return sending(topic, *given, **options)

        monkeypatch.setattr(queue.producer, "send_nowait", send)
        async with queue.tracked() as dies:
            await queue.until(lambda: dies.counts.redelivered)
        monkeypatch.setattr(queue.producer, "send_nowait", sending)
        async with queue.tracked() as successor:
            await queue.until(lambda: successor.counts.redelivered)
        assert await queue.values() == [b"a"] * 3

    await on(clock, work)


async def test_a_queue_whose_markers_have_other_partitions_is_refused_with_what_to_do(clock):
    async def work(queue):
        await queue.admin.create_topic("few", partitions=1)
        with pytest.raises(PartitionMismatch, match=r"Give few 2 partitions.*--partitions 2"):
            async with queue.tracked(QueueRules("q", "few")):
                pass
        with pytest.raises(ServerError, match="none"):
            async with queue.tracked(QueueRules("q", "none")):
                pass

    await on(clock, work, partitions=2)


async def test_a_share_group_goes_on_where_the_consumers_stopped_without_what_is_done(clock):
    async def work(queue):
        for index in range(10):
            await queue.put(b"%d" % index)
        await queue.start(*range(8))
        await queue.end(0, 1, 3, 4, 6, 7)
        await queue.admin.commit_offsets("consumers", [_offset("q", 0, 8)])
        [move] = await plan_queue(queue.admin, RULES, "consumers")
        assert (move.committed, move.open, move.start) == (8, 2, 2)
        assert move.finished == ((3, 4), (6, 7))

        await carry_queue(queue.admin, "share", [move])
        [part] = await queue.admin.group_offsets("share")
        assert (part.start_offset, part.lag) == (2, 4)

    await on(clock, work)


async def test_of_more_open_messages_than_a_tracker_keeps_none_is_finished_by_a_move(clock, monkeypatch):
    async def work(queue):
        for number in range(10):
            await queue.put(b"%d" % number)
        await queue.start(*range(10))
        await queue.end(0, 9)
        await queue.admin.commit_offsets("consumers", [_offset("q", 0, 10)])
        [move] = await plan_queue(queue.admin, RULES, "consumers")
        assert (move.open, move.start, move.finished) == (8, 1, ((9, 9),))

    monkeypatch.setattr(moving, "PartitionTracker", partial(PartitionTracker, open_max=4))
    await on(clock, work)


async def test_a_queue_with_nothing_open_goes_on_at_what_is_committed(clock):
    async def work(queue):
        for index in range(4):
            await queue.put(b"%d" % index)
        await queue.start(0, 1)
        await queue.end(0, 1)
        await queue.admin.commit_offsets("consumers", [_offset("q", 0, 2)])
        [move] = await plan_queue(queue.admin, RULES, "consumers")
        assert (move.open, move.start, move.finished) == (0, 2, ())

    await on(clock, work)


def _offset(topic, partition, offset):
    from flowshare.protocol.messages import OffsetToCommit

    return OffsetToCommit(topic, partition, offset)


LIMIT = "max.message.bytes"
LARGE = b"x" * 5_000_000


async def limit_of(queue, topic):
    return next(one.value for one in await queue.admin.topic_configs(topic) if one.name == LIMIT)


async def test_the_largest_message_comes_again_and_is_undelivered_whole(clock):
    async def work(queue):
        await queue.admin.alter_topic_configs("q", {LIMIT: "5001000"})
        queue.producer.allow(6_000_000)
        await queue.put(LARGE)
        queue.producer._settings = replace(queue.producer._settings, max_request_size=1 << 20)
        rules = RULES._replace(redeliveries=1)
        async with queue.tracked(rules) as tracker:
            assert await limit_of(queue, "q__undelivered") == "5001000"
            await queue.start(0)
            await queue.until(lambda: tracker.counts.redelivered)
            await queue.start(1)
            await queue.until(lambda: tracker.counts.undelivered)
        assert [one.value for one in await queue.records("q__undelivered")] == [LARGE]

    await on(clock, work)


@pytest.mark.parametrize("widens", [True, False])
async def test_a_topic_of_undelivered_messages_that_takes_less_is_widened_where_that_may_be(clock, widens, caplog):
    async def work(queue):
        await queue.admin.create_topic("q__undelivered", configs={LIMIT: "1000"})
        async with queue.tracked(widens=widens):
            assert await limit_of(queue, "q__undelivered") == ("1048588" if widens else "1000")

    await on(clock, work)
    assert ("q__undelivered takes 1000 bytes at once" in caplog.text) is not widens


async def test_brokers_that_refuse_the_limit_make_the_topic_with_their_own(clock, monkeypatch, caplog):
    real = ShareAdmin.create_topic

    async def strict(self, name, **given):
        if given.get("configs"):
            raise ServerError(ErrorCode.POLICY_VIOLATION, about="creating a topic")
        await real(self, name, **given)

    async def refused(self, name, configs, **_):
        raise ServerError(ErrorCode.POLICY_VIOLATION, about="altering a topic")

    async def work(queue):
        await queue.admin.alter_topic_configs("q", {LIMIT: "5000000"})
        monkeypatch.setattr(ShareAdmin, "create_topic", strict)
        monkeypatch.setattr(ShareAdmin, "alter_topic_configs", refused)
        async with queue.tracked():
            assert await limit_of(queue, "q__undelivered") == "1048588"

    await on(clock, work)
    assert "the queue up to 5000000" in caplog.text
