"""The offsets APIs: describe, alter, delete."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DeleteTopicRequest,
    DescribeShareGroupOffsetsRequest,
    ListGroupsRequest,
    TopicPartition,
)
from flowshare.server.runtime.failures import Refused
from flowshare.server.share.leaders import LocalLeaders
from tests.server.world import accept, batch, ranges, release, world

pytestmark = pytest.mark.asyncio


async def described(w, group_id: str = "g", topics=None):
    return (await w.admin.send(DescribeShareGroupOffsetsRequest(group_id=group_id, topics=topics))).partitions


async def alter(w, offsets, group_id: str = "g"):
    return await w.admin.send(AlterShareGroupOffsetsRequest(group_id=group_id, offsets=offsets))


async def test_lag_counts_everything_that_is_not_finished() -> None:
    async with world() as w:
        at = await w.log(batch(20, timestamp_ms=5_000))
        m = w.member("m1")
        await m.heartbeat("t")
        await m.fetch(at, max_records=10, acquire_mode=1)
        await m.acknowledge({at: [accept(0, 1), accept(4), release(5, delay_ms=60_000)]})

        (found,) = await described(w)

        assert (found.topic, found.topic_id, found.partition) == ("t", at.topic_id, 0)
        assert (found.start_offset, found.lag, found.in_flight, found.delayed) == (2, 17, 6, 1)
        assert (found.redeliveries, found.oldest_ms, found.error) == (0, 5_000, ErrorCode.NONE)


async def test_redeliveries_are_counted() -> None:
    async with world() as w:
        at, m = await w.held(2, joined=True)
        await m.acknowledge({at: [release(0, 1)]})
        await m.fetch()

        assert [found.redeliveries for found in await described(w)] == [2]


async def test_what_was_never_initialised_has_no_offsets() -> None:
    async with world() as w:
        await w.topic(partitions=2)
        await w.topic("other")
        await w.member("m1").heartbeat("t")

        unknown = await described(w, topics={"other": (0,), "none": (0,)})
        group = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="none"))

        assert [(p.topic, p.start_offset, p.lag, p.error) for p in unknown] == [
            ("none", -1, -1, ErrorCode.NONE),
            ("other", -1, -1, ErrorCode.NONE),
        ]
        assert group.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert [(p.partition, p.start_offset, p.lag) for p in await described(w)] == [(0, 0, 0), (1, 0, 0)]


async def test_an_empty_group_starts_at_altered_offsets() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        for _ in range(21):
            await w.produce(5)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.fetch(at)
        await m.acknowledge({at: [accept(0, 104)]})

        busy = await alter(w, {("t", 0): 40})
        await m.heartbeat(epoch=-1)
        done = await alter(w, {("t", 0): 40, ("none", 0): 1, ("t", 9): 1})

        assert busy.error is ErrorCode.NON_EMPTY_GROUP
        assert [(p.topic, p.error) for p in done.partitions] == [
            ("t", ErrorCode.NONE),
            ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        assert [(p.start_offset, p.lag) for p in await described(w)] == [(40, 65)]
        assert ranges(await w.member("m2").fetch(at))[0][0] == 40


async def test_altering_the_offsets_of_no_group_makes_one() -> None:
    async with world() as w:
        at = await w.log(10)

        await alter(w, {("t", 0): 4}, "new")
        await w.restart()

        assert [(p.start_offset, p.lag) for p in await described(w, "new")] == [(4, 6)]
        m = w.member("m1", "new")
        assert (await m.heartbeat("t")).assignment == (at,)
        assert ranges(await m.fetch(at)) == [(4, 9, 1)]


async def test_an_alter_that_cannot_be_written_leaves_the_partition_to_its_first_member() -> None:
    async with world(configs={"share.auto.offset.reset": "latest"}) as w:
        at = await w.log(10)

        async def full() -> None:
            raise StorageError("no space left on device")

        w.storage.before_write = full
        assert (await alter(w, {("t", 0): 4})).error is not ErrorCode.NONE
        w.storage.before_write = None
        await w.member("m1").heartbeat("t")
        await w.restart()

        assert [(p.start_offset, p.lag) for p in await described(w)] == [(10, 0)], "by its policy, from then on"
        await w.produce(5)
        assert ranges(await w.member("m1").fetch(at)) == [(10, 14, 1)]


async def test_altered_offsets_are_held_to_the_log() -> None:
    async with world() as w:
        await w.topic()
        await w.produce(10)

        await alter(w, {("t", 0): 99})
        assert [p.start_offset for p in await described(w)] == [10]
        await alter(w, {("t", 0): -5})
        assert [p.start_offset for p in await described(w)] == [0]


async def test_an_alter_fences_what_was_acquired_before() -> None:
    async with world() as w:
        at = await w.log(10)
        m = w.member("never-joined")
        await m.fetch(at)
        await alter(w, {("t", 0): 0})

        late = await m.acknowledge({at: [accept(0, 9)]})
        again = await m.fetch()

        assert [p.error for p in late.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert ranges(again) == [(0, 9, 1)]


async def test_a_topic_that_is_deleted_while_an_alter_runs_is_refused_and_no_part_of_the_group(monkeypatch) -> None:
    async with world() as w:
        await w.log(10)
        await w.topic("other")
        replacing = LocalLeaders.replacing

        def after_delete(leaders, states):
            @asynccontextmanager
            async def both():
                assert (await w.admin.send(DeleteTopicRequest(name="t"))).error is ErrorCode.NONE
                async with replacing(leaders, states) as writes:
                    yield writes

            monkeypatch.undo()
            return both()

        monkeypatch.setattr(LocalLeaders, "replacing", after_delete)
        done = await alter(w, {("t", 0): 4, ("other", 0): 0})

        assert [(p.topic, p.error) for p in done.partitions] == [
            ("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("other", ErrorCode.NONE),
        ]
        coordinator = w.server.share.coordinator
        other = await w.admin.send(DescribeShareGroupOffsetsRequest(group_id="g"))
        assert [p.topic for p in other.partitions] == ["other"]
        assert len(coordinator.find("g").initialized) == 1
        assert len(coordinator._leaders.topic_ids()) == 1


async def test_deleted_offsets_let_the_group_begin_anew() -> None:
    async with world() as w:
        at = TopicPartition(await w.topic(), 0)
        await w.topic("other")
        await w.produce(5)
        m = w.member("m1")
        await m.heartbeat("t")
        await m.fetch(at)
        await m.acknowledge({at: [accept(0, 4)]})
        busy = await w.admin.send(DeleteShareGroupOffsetsRequest(group_id="g", topics=("t",)))
        await m.heartbeat(epoch=-1)

        done = await w.admin.send(DeleteShareGroupOffsetsRequest(group_id="g", topics=("t", "other", "none")))
        missing = await w.admin.send(DeleteShareGroupOffsetsRequest(group_id="none", topics=("t",)))

        assert busy.error is ErrorCode.NON_EMPTY_GROUP
        assert missing.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert [result.error for result in done.topics] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        again = w.member("m2")
        assert (await again.heartbeat("t")).assignment == (at,)
        assert ranges(await again.fetch(at)) == [(0, 4, 1)]


async def test_a_refused_alter_leaves_no_group_behind() -> None:
    async with world() as w:
        answer = await w.admin.send(AlterShareGroupOffsetsRequest(group_id="new", offsets={("nowhere", 0): 0}))
        assert [part.error for part in answer.partitions] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        listed = await w.admin.send(ListGroupsRequest())
        assert listed.groups == ()


async def test_whoever_asks_the_wrong_worker_is_told_that_it_is_the_wrong_one(monkeypatch) -> None:
    def elsewhere(group_id: str) -> None:
        raise Refused(ErrorCode.NOT_COORDINATOR, f"{group_id} is coordinated by another worker")

    async with world() as w:
        monkeypatch.setattr(w.server.share.duties, "check_coordinator", elsewhere)
        for request in (
            DescribeShareGroupOffsetsRequest(group_id="g", topics=None),
            AlterShareGroupOffsetsRequest(group_id="g", offsets={}),
            DeleteShareGroupOffsetsRequest(group_id="g", topics=("t",)),
        ):
            assert (await w.admin.send(request)).error is ErrorCode.NOT_COORDINATOR
