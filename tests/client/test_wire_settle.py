"""A member settles over a socket, at flowshare's own server."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.net.tcp import open_tcp
from flowshare.client.session.member import ShareMember
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol import messages as m
from flowshare.protocol.batches import decode_all
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.types import AckRange
from tests.server.edge.kit import batch, edge

pytestmark = pytest.mark.asyncio


async def member_of(e, clock):
    """A member that holds the four records of topic `t`, and the fetch that brought them."""
    await e.configure("g", share_auto_offset_reset="earliest")
    await e.topic("t")
    await e.admin.send(m.ProduceRequest(topic="t", partition=0, records=batch(b"a", b"b", b"c", b"d")))

    async def connect():
        connection = await open_tcp(e.host, e.port, client_id="c", clock=clock, settings=LinkSettings())
        connection.on_closed(lambda reason: None)
        return connection

    member = ShareMember(connect, group_id="g", topics=["t"], clock=clock)
    await member.start()
    held = []
    async with asyncio.timeout(30):
        while not held:
            held = await member.fetch(records_max=10)
    return member, held[0]


async def settled(member, fetched, acks, outputs):
    """Settle, and return the result."""
    told = asyncio.get_running_loop().create_future()
    member.begin_settle(
        fetched.tp, acks, outputs, lambda results: told.set_result(*results), generation=fetched.generation
    )
    async with asyncio.timeout(30):
        return await told


async def test_records_are_settled_with_their_outputs_and_once() -> None:
    async with edge() as e:
        member, fetched = await member_of(e, LoopClock())
        output = m.SettleOutput("out", await e.topic("out", 2), 1, batch(b"x", b"y"))
        acks = (AckRange(0, 1, b"\1\3", attempt=1),)

        done = await settled(member, fetched, acks, [output])
        again = await settled(member, fetched, (AckRange(1, 2, b"\1", attempt=1),), [output])
        rest = await settled(member, fetched, (AckRange(2, 3, b"\1", attempt=1),), [])

        assert (done.error, done.acks) == (ErrorCode.NONE, acks)
        assert (again.error, again.refused) == (ErrorCode.INVALID_RECORD_STATE, ((1, 1),))
        assert rest.error is ErrorCode.NONE
        read = await e.storage.read("out", 1, 0, max_bytes=1 << 20, committed=True)
        assert [record.value for record in decode_all(read.records)] == [b"x", b"y"]
        await member.close()


async def test_an_output_that_may_not_be_written_or_has_no_topic_settles_nothing() -> None:
    async with edge((Operation.WRITE, ResourceType.TOPIC, "shut")) as e:
        member, fetched = await member_of(e, LoopClock())
        topic_id = await e.topic("out")
        good = m.SettleOutput("out", topic_id, 0, batch(b"x"))
        acks = (AckRange(0, 3, b"\1", attempt=1),)

        shut = await settled(member, fetched, acks, [good, good._replace(topic="shut")])
        missing = await settled(member, fetched, acks, [good._replace(partition=7), good])
        done = await settled(member, fetched, acks, [good])

        assert (shut.error, [one.place for one in shut.outputs]) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [1])
        assert [(one.place, one.error) for one in missing.outputs] == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert done.error is ErrorCode.NONE
        await member.close()
