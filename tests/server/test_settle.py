"""ShareSettle at a server: outputs and accepts in one write, what is refused, what a failed write leaves (SG-19)."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.log.base import OutputRefused, RecordsTooLarge, StorageError
from flowshare.protocol.batches import BatchBuilder, decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import (
    DeleteTopicRequest,
    HeldRanges,
    IncrementalAlterConfigsRequest,
    SettleOutput,
    ShareInterveneRequest,
    ShareResumeRequest,
    ShareSettleRequest,
)
from flowshare.server.share import writing
from flowshare.share.types import AckRange
from flowshare.testing.clock import settle
from tests.server.test_key_order import BY_KEY, keyed
from tests.server.world import accept, parked, ranges, reject, release, world

pytestmark = pytest.mark.asyncio


def output(topic_id, *texts: str, topic: str = "out", partition: int = 0, **fields) -> SettleOutput:
    builder = BatchBuilder(**fields)
    for text in texts:
        builder.add(b"k", text.encode(), [("h", b"1")], timestamp_ms=5_000)
    return SettleOutput(topic, topic_id, partition, builder.build())


async def settled(m, at, acks, *outputs):
    """The answer to a settle."""
    return await m.connection.send(
        ShareSettleRequest(
            group_id=m.group_id,
            member_id=m.member_id,
            topic_id=at.topic_id,
            partition=at.partition,
            acks=tuple(acks),
            outputs=outputs,
        )
    )


async def there(w, topic: str = "out", partition: int = 0) -> list[str]:
    """Return the values in a topic."""
    end = w.storage.offsets(topic, partition).high_watermark
    if not end:
        return []
    read = await w.storage.read(topic, partition, 0, max_bytes=1 << 30, committed=True)
    return [record.value.decode() for record in decode_all(read.records)]


def state_of(w, at):
    """Return the state that the owner of group `g` knows, as (first, last, state, delivery count)."""
    [owner] = w.server.share.partitions.owners("g")
    return owner.partition.start_offset, [
        (one.first, one.last, one.state.name, one.delivery_count) for one in owner.partition.state()
    ]


async def test_outputs_are_there_when_their_records_are_accepted():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)

        answer = await settled(m1, at, [accept(0, 3), reject(4)], output(out, "a", "b"), output(out, "letter"))

        assert answer.error is ErrorCode.NONE
        assert answer.lock_timeout_ms == 30_000
        assert await there(w) == ["a", "b", "letter"]
        assert state_of(w, at) == (5, [(5, 9, "ACQUIRED", 1)])


async def test_a_server_that_dies_behind_it_has_both_and_one_that_dies_before_has_neither():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10, own=True)
        await settled(m1, at, [accept(0, 3)], output(out, "a"))
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        asking = asyncio.ensure_future(settled(m1, at, [accept(4, 5)], output(out, "b")))
        await settle()
        assert await there(w) == ["a"]

        asking.cancel()
        gate.set()
        await w.die()
        m2 = w.member("m2", own=True)
        await m2.heartbeat("t")
        await m2.fetch(at)

        finished = state_of(w, at)[0]
        assert (finished, await there(w)) in ((4, ["a"]), (6, ["a", "b"]))


async def test_the_same_settle_a_second_time_writes_nothing():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)
        await settled(m1, at, [accept(2, 3)], output(out, "a"))

        answer = await settled(m1, at, [accept(2, 3)], output(out, "a"))

        assert (answer.error, answer.refused) == (ErrorCode.INVALID_RECORD_STATE, ((2, 3),))
        assert await there(w) == ["a"]


async def test_one_lost_record_refuses_all_and_is_named():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)
        await m1.acknowledge({at: [release(1)]})

        answer = await settled(m1, at, [accept(0, 5)], output(out, "a"))

        assert (answer.error, answer.refused) == (ErrorCode.INVALID_RECORD_STATE, ((1, 1),))
        assert await there(w) == []
        assert (await settled(m1, at, [accept(0), accept(2, 5)], output(out, "a"))).error is ErrorCode.NONE


async def test_outputs_that_cannot_be_are_named_each_and_nothing_is_written():
    async with world() as w:
        out = await w.topic("out", partitions=2)
        small = await w.topic("small")
        await w.admin.send(
            IncrementalAlterConfigsRequest(
                resource_type="topic", resource="small", configs={"max.message.bytes": "200"}
            )
        )
        at, m1 = await w.held(10)
        good, gone = output(out, "a"), output(small, "a", topic="gone")
        other = output(small, "a", topic="out", partition=1)  # another topic of that name
        large = output(small, "x" * 500, topic="small")
        numbered = output(out, "a", producer=(5, 0, 0))
        garbage = SettleOutput("out", out, 0, b"nothing")

        answer = await settled(m1, at, [accept(0)], good, gone, other, large, numbered, garbage)

        assert answer.error is ErrorCode.INVALID_REQUEST
        assert [(one.place, one.error) for one in answer.outputs] == [
            (1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (3, ErrorCode.MESSAGE_TOO_LARGE),
            (4, ErrorCode.CORRUPT_MESSAGE),
            (5, ErrorCode.CORRUPT_MESSAGE),
        ]
        assert await there(w) == []
        assert state_of(w, at) == (0, [(0, 9, "ACQUIRED", 1)])


async def test_an_internal_topic_takes_no_outputs_and_the_record_can_be_settled_otherwise():
    async with world() as w:
        out = await w.topic("out")
        kept = (await w.storage.create_topic("__kept", internal=True)).topic_id
        at, m1 = await w.held(10)

        answer = await settled(m1, at, [accept(0)], output(out, "a"), output(kept, "a", topic="__kept"))

        assert [(one.place, one.error) for one in answer.outputs] == [(1, ErrorCode.INVALID_TOPIC_EXCEPTION)]
        assert "send to another topic" in (answer.outputs[0].message or "")
        assert (await there(w), await there(w, "__kept")) == ([], [])
        assert (await settled(m1, at, [accept(0)], output(out, "b"))).error is ErrorCode.NONE


async def test_a_failed_write_leaves_the_records_with_their_member_and_nothing_in_the_topic():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)

        async def fails() -> None:
            raise StorageError("no room")

        w.storage.before_write = fails
        answer = await settled(m1, at, [accept(0)], output(out, "a"))
        w.storage.before_write = None
        again = await settled(m1, at, [accept(0)], output(out, "a"))

        assert (answer.error, again.error) == (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE)
        assert await there(w) == ["a"]


async def test_an_output_that_the_write_itself_refuses_fails_its_own_settle_only(monkeypatch):
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)
        real = w.storage.settle

        async def refusing(outputs, writes):
            bad = {
                place: RecordsTooLarge("the topic takes less by now")
                for place, one in enumerate(outputs)
                if b"bad" in one.records
            }
            if bad:
                raise OutputRefused(bad)
            await real(outputs, writes)

        monkeypatch.setattr(w.storage, "settle", refusing)
        asked = [
            settled(m1, at, [accept(0)], output(out, "a")),
            settled(m1, at, [accept(1)], output(out, "fine"), output(out, "bad")),
            m1.acknowledge({at: [accept(2)]}),
            settled(m1, at, [accept(3)], output(out, "b")),
        ]
        first, bad, plain, last = await asyncio.gather(*asked)

        assert [first.error, plain.error, last.error] == [ErrorCode.NONE] * 3
        assert [(one.place, one.error) for one in bad.outputs] == [(1, ErrorCode.MESSAGE_TOO_LARGE)]
        assert await there(w) == ["a", "b"]
        assert state_of(w, at) == (1, [(1, 1, "ACQUIRED", 1), (2, 3, "ACKNOWLEDGED", 1), (4, 9, "ACQUIRED", 1)])


async def test_settles_acknowledgements_and_acquires_share_a_write():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)
        before = w.server.share.stats.state_writes
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        first = asyncio.ensure_future(settled(m1, at, [accept(0)], output(out, "a")))
        await settle()
        more = [asyncio.ensure_future(settled(m1, at, [accept(n)], output(out, str(n)))) for n in range(1, 6)]
        plain = asyncio.ensure_future(m1.acknowledge({at: [accept(6)]}))
        await settle()
        w.storage.before_write = None
        gate.set()
        await asyncio.gather(first, *more, plain)

        assert w.server.share.stats.state_writes - before == 2
        assert await there(w) == ["a", "1", "2", "3", "4", "5"]


async def test_when_too_much_waits_to_be_written_a_settle_is_refused_and_its_records_stay(monkeypatch):
    monkeypatch.setattr(writing, "QUEUE_MAX", 1)
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        waiting = [await parked(settled(m1, at, [accept(n)], output(out, str(n)))) for n in range(2)]

        asking = asyncio.ensure_future(settled(m1, at, [accept(2)], output(out, "2")))
        await settle()
        at_once = asking.done()
        w.storage.before_write = None
        gate.set()
        *first, refused = await asyncio.gather(*waiting, asking)

        assert (at_once, refused.error, refused.refused) == (True, ErrorCode.KAFKA_STORAGE_ERROR, ())
        assert [answer.error for answer in first] == [ErrorCode.NONE] * 2
        assert (await settled(m1, at, [accept(2)], output(out, "2"))).error is ErrorCode.NONE
        assert await there(w) == ["0", "1", "2"]


async def test_a_topic_that_went_and_came_again_takes_nothing_that_was_meant_for_the_first():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)
        await w.admin.send(DeleteTopicRequest(name="out"))
        await w.topic("out")

        answer = await settled(m1, at, [accept(0)], output(out, "a"))

        assert [one.error for one in answer.outputs] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await there(w) == []


@pytest.mark.parametrize(
    ("acks", "said"),
    [
        ([], "no records"),
        ([release(0)], "accepts and rejects"),
        ([AckRange(0, 0, b"\x04")], "needs a request"),
        ([accept(5), accept(0)], "begins before"),
        ([accept(0, 20_000)], "10000 records"),
    ],
)
async def test_a_settle_that_makes_no_sense_is_refused(acks, said):
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10)

        answer = await settled(m1, at, acks, output(out, "a"))

        assert answer.error is ErrorCode.INVALID_REQUEST
        assert said in answer.message
        assert await there(w) == []


async def ordered(w):
    """A topic for outputs, and a member that holds the first record of key a and that of b."""
    out = await w.topic("out")
    at = await w.log(keyed("aab"))
    m = w.member("m")
    await m.heartbeat("t", epoch=0)
    assert ranges(await m.fetch(at)) == [(0, 0, 1), (2, 2, 1)]
    return out, at, m


def meant(first: int) -> AckRange:
    return AckRange(first, first, b"\x01", attempt=1)


async def test_with_an_order_the_next_of_a_key_leaves_when_the_settle_before_it_is_durable():
    async with world(configs=BY_KEY) as w:
        out, at, m = await ordered(w)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        settling = asyncio.ensure_future(settled(m, at, [meant(0)], output(out, "a")))
        await settle()
        fetching = await parked(m.fetch())
        w.storage.before_write = None
        gate.set()

        assert (await settling).error is ErrorCode.NONE
        assert ranges(await fetching) == [(1, 1, 1)]


async def test_with_an_order_the_next_of_a_key_stays_when_the_settle_before_it_is_refused(monkeypatch):
    async with world(configs=BY_KEY) as w:
        out, at, m = await ordered(w)
        gate = asyncio.Event()

        async def refusing(outputs, writes):
            await gate.wait()
            raise OutputRefused({0: RecordsTooLarge("the topic takes less by now")})

        with monkeypatch.context() as patch:
            patch.setattr(w.storage, "settle", refusing)
            settling = asyncio.ensure_future(settled(m, at, [meant(0)], output(out, "a")))
            await settle()
            fetching = asyncio.ensure_future(m.fetch())
            await settle()
            gate.set()
            answer, fetched = await asyncio.gather(settling, fetching)

        assert [one.error for one in answer.outputs] == [ErrorCode.MESSAGE_TOO_LARGE]
        assert [part.acquired for part in fetched.partitions] in ([], [()])
        assert (await settled(m, at, [meant(0)], output(out, "b"))).error is ErrorCode.NONE
        assert ranges(await m.fetch()) == [(1, 1, 1)]
        assert await there(w) == ["b"]


@pytest.mark.parametrize("together", [True, False], ids=["in one write", "behind it"])
async def test_with_an_order_what_an_operator_rejects_stays_so_when_a_settle_before_it_is_refused(
    monkeypatch, together: bool
):
    async with world(configs=BY_KEY) as w:
        out, at, m = await ordered(w)
        written, begun = asyncio.Event(), asyncio.Event()
        under_way = list[asyncio.Future[object]]()

        async def refusing(outputs, writes):
            begun.set()
            await written.wait()
            raise OutputRefused({0: RecordsTooLarge("the topic takes less by now")})

        with monkeypatch.context() as patch:
            patch.setattr(w.storage, "settle", refusing)
            if together:
                await w.produce(keyed("c"))
                patch.setattr(w.storage, "before_write", written.wait)
                under_way.append(asyncio.ensure_future(m.fetch()))
                await settle()
            settling = asyncio.ensure_future(settled(m, at, [meant(0)], output(out, "a")))
            await settle()
            assert begun.is_set() is not together
            act = ShareInterveneRequest(group_id="g", topic="t", partition=0, act="reject", ranges=((2, 2),))
            rejecting = asyncio.ensure_future(w.admin.send(act))
            await settle()
            written.set()
            answer, rejected, *_ = await asyncio.gather(settling, rejecting, *under_way)

        assert [one.error for one in answer.outputs] == [ErrorCode.MESSAGE_TOO_LARGE]
        assert (rejected.error, rejected.found[0].done) == (ErrorCode.NONE, 1)
        await w.die()
        m = w.member("m2")
        await m.fetch(at)
        assert (2, 2, "ARCHIVED", 1) in state_of(w, at)[1]


async def test_a_member_that_comes_back_hears_what_it_holds_when_its_settle_is_decided():
    async with world() as w:
        out = await w.topic("out")
        at, m1 = await w.held(10, own=True)
        gate = asyncio.Event()
        w.storage.before_write = gate.wait
        settling = asyncio.ensure_future(settled(m1, at, [accept(0, 3)], output(out, "a")))
        await settle()
        m1.reconnect()
        told = ShareResumeRequest(group_id="g", member_id="m1", partitions=(HeldRanges(*at, ((0, 9),)),))
        resuming = await parked(m1.connection.send(told))
        w.storage.before_write = None
        gate.set()

        assert (await settling).error is ErrorCode.NONE
        assert [part.ranges for part in (await resuming).partitions] == [((4, 9),)]
