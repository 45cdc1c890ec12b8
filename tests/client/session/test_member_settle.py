"""A member that settles, against a scripted server."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange
from flowshare.testing.clock import settle
from tests.client.fakes import FakeServer
from tests.client.session.test_member import TP, holding

pytestmark = pytest.mark.asyncio
ACKS = (AckRange(0, 2, b"\1\3\1", attempt=1),)
OUTPUTS = [m.SettleOutput("out", uuid.UUID(int=9), 0, b"batch")]


async def test_a_settle_is_told_once_beside_a_fetch_that_is_parked(clock):
    server = FakeServer()
    member, held = await holding(server, clock)
    fetching = asyncio.ensure_future(member.fetch(records_max=10, max_wait_s=60))
    await settle()
    told = []

    member.begin_settle(TP, ACKS, OUTPUTS, told.append, generation=held.generation)
    await settle()

    ((result,),) = told
    assert (result.topic, result.tp, result.acks, result.error) == ("orders", TP, ACKS, ErrorCode.NONE)
    (request,) = server.seen(m.ShareSettleRequest)
    assert (request.member_id, request.acks, request.outputs) == ("m1", ACKS, tuple(OUTPUTS))
    assert not fetching.done()
    await member.close()
    await fetching


async def test_a_member_that_closes_waits_for_what_it_settles(clock):
    server = FakeServer()
    member, held = await holding(server, clock)
    answer, told = asyncio.get_running_loop().create_future(), []
    server.then(m.ShareSettleRequest, answer)
    member.begin_settle(TP, ACKS, [], told.append, generation=held.generation)
    closing = asyncio.ensure_future(member.close())
    await settle()
    assert not [one for one in server.seen(m.ShareAcknowledgeRequest) if one.session_epoch == -1]

    answer.set_result(m.ShareSettleResponse(error=ErrorCode.INVALID_RECORD_STATE, refused=((1, 1),)))
    await closing

    ((result,),) = told
    assert (result.error, result.refused) == (ErrorCode.INVALID_RECORD_STATE, ((1, 1),))
    assert [one for one in server.seen(m.ShareAcknowledgeRequest) if one.session_epoch == -1]


async def test_what_is_settled_over_a_connection_that_ended_is_not_sent(clock):
    server = FakeServer()
    member, held = await holding(server, clock)
    server.connections[0].break_off()
    await settle()
    fetching = asyncio.ensure_future(member.fetch(records_max=10))
    await clock.advance(0.1)
    told = []

    member.begin_settle(TP, ACKS, OUTPUTS, told.append, generation=held.generation)

    ((result,),) = told
    assert result.error is ErrorCode.NETWORK_EXCEPTION
    assert server.seen(m.ShareSettleRequest) == []
    await member.close()
    await fetching


@pytest.mark.parametrize(
    ("acks", "outputs"),
    [
        ((), OUTPUTS),
        ((AckRange(0, 2, b"\2"),), ()),
        ((AckRange(3, 4, b"\1"), AckRange(0, 2, b"\1")), ()),
        (ACKS, [OUTPUTS[0]._replace(topic="not a name")]),
        (ACKS, [OUTPUTS[0]._replace(records=b"")]),
    ],
    ids=["nothing", "released", "unordered", "name", "no records"],
)
async def test_what_no_server_takes_is_refused_before_it_is_sent(clock, acks, outputs):
    server = FakeServer()
    member, _ = await holding(server, clock)

    with pytest.raises(ValueError, match="this cannot be settled"):
        member.begin_settle(TP, acks, outputs, pytest.fail)

    assert server.seen(m.ShareSettleRequest) == []
    await member.close()
