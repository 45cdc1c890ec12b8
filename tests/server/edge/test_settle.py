"""ShareSettle at a socket: rights, what a server without it says, and how long a request may be."""

from __future__ import annotations

import struct
import uuid
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowshare.client.errors import ClientError
from flowshare.client.net.tcp import open_tcp
from flowshare.client.settings import LinkSettings
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import RefusedOutput, SettleOutput, ShareSettleRequest, ShareSettleResponse
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.share.types import AckRange
from tests.server.edge.kit import Edge, edge
from tests.waiting import until

pytestmark = pytest.mark.asyncio

TOPIC, OUT = uuid.UUID(int=1), uuid.UUID(int=2)
CLOSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def request(*topics: str, records: bytes = b"batches") -> ShareSettleRequest:
    return ShareSettleRequest(
        group_id="g",
        member_id="m",
        topic_id=TOPIC,
        partition=0,
        acks=(AckRange(0, 1, b"\1\3", attempt=1),),
        outputs=tuple(SettleOutput(topic, OUT, 0, records) for topic in topics),
    )


class Settles:
    """Stand-in for a server that settles: keeps the requests, and has one answer."""

    def __init__(self) -> None:
        self.asked: list[ShareSettleRequest] = []
        self.answer = ShareSettleResponse(lock_timeout_ms=7)

    async def __call__(self, request: ShareSettleRequest, connection: Any) -> ShareSettleResponse:
        self.asked.append(request)
        return self.answer


@asynccontextmanager
async def settling(*denied: Any, able: bool = True):
    """A server that says yes to each settle, or cannot; what it is asked, and a client."""
    async with edge(*denied) as e:
        settles = Settles()
        e.server._handlers.pop(ShareSettleRequest, None)
        if able:
            e.server._handlers[ShareSettleRequest] = settles
        else:
            e.server._handlers._later.clear()  # type: ignore[attr-defined]
        client = await open_tcp(e.host, e.port, client_id="c", clock=LoopClock(), settings=LinkSettings())
        try:
            yield e, settles, client
        finally:
            await client.close()


async def test_a_settle_reaches_the_server_and_its_answer_the_client() -> None:
    async with settling() as (_, settles, client):
        assert client.api_versions[ApiKey.FLOWSHARE_SETTLE] == (0, 0)
        for answer in (settles.answer, ShareSettleResponse(error=ErrorCode.INVALID_RECORD_STATE, refused=((0, 0),))):
            settles.answer = answer
            assert await client.send(request("a", "b")) == answer

        assert settles.asked == [request("a", "b")] * 2


async def test_a_server_that_cannot_settle_says_so() -> None:
    async with settling(able=False) as (_, settles, client):
        answer = await client.send(request())

        assert answer.error is ErrorCode.UNSUPPORTED_VERSION
        assert settles.asked == []


async def test_who_may_not_read_in_the_group_settles_nothing() -> None:
    async with settling((Operation.READ, ResourceType.GROUP, "g")) as (_, settles, client):
        answer = await client.send(request("a"))

        assert (answer.error, answer.outputs) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, ())
        assert settles.asked == []


async def test_outputs_that_may_not_be_written_are_told_and_nothing_is_settled() -> None:
    async with settling((Operation.WRITE, ResourceType.TOPIC, "shut")) as (_, settles, client):
        answer = await client.send(request("a", "shut", "a", "shut"))

        text = "writing to topic shut is not allowed"
        assert answer.error is CLOSED
        assert answer.outputs == (RefusedOutput(1, CLOSED, text), RefusedOutput(3, CLOSED, text))
        assert settles.asked == []


async def test_whether_a_topic_exists_is_not_told_to_who_may_not_write_to_it() -> None:
    async with settling((Operation.WRITE, ResourceType.TOPIC, None)) as (e, _, client):
        await e.topic("there")

        there, missing = [await client.send(request(name)) for name in ("there", "missing")]

        (one,), (other,) = there.outputs, missing.outputs
        assert (one.error, one.message) == (other.error, (other.message or "").replace("missing", "there"))


@pytest.mark.parametrize("denied", [(), ((Operation.READ, ResourceType.TOPIC, "t"),)], ids=["may", "may not"])
async def test_the_server_can_ask_whether_the_topic_of_the_records_may_be_read(denied) -> None:
    async with settling(*denied) as (e, _, client):
        may: list[bool] = []

        async def asks(_: Any, connection: Any) -> ShareSettleResponse:
            may.append(connection.may_read("t"))
            return ShareSettleResponse()

        e.server._handlers[ShareSettleRequest] = asks
        await client.send(request())

        assert may == [not denied]


async def test_a_settle_with_megabytes_of_records_is_taken() -> None:
    async with settling() as (_, settles, client):
        large = request("a", "b", records=bytes(3 << 20))

        assert (await client.send(large)).error is ErrorCode.NONE
        assert settles.asked == [large]


async def ask(e: Edge, body: bytes) -> bytes:
    """Send a settle with this body, and return everything that comes until the connection ends."""
    socket = await e.socket()
    frame = struct.pack(">hhihB", ApiKey.FLOWSHARE_SETTLE, 0, 1, -1, 0) + body
    socket._writer.write(struct.pack(">i", len(frame)) + frame)
    return await socket._reader.read()


async def test_bytes_that_are_no_settle_cost_the_connection() -> None:
    async with settling() as (e, settles, _):
        assert await ask(e, b"\2g\2m") == b""
        assert settles.asked == []


async def test_settles_are_written_in_the_order_in_which_they_are_begun_and_told_as_soon_as_they_are_read() -> None:
    async with settling() as (_, settles, client):
        told: list[Any] = []
        for name in ("a", "b", "c"):
            client.begin(request(name), told.append)

        await until(lambda: len(told) == 3)
        assert [one.outputs[0].topic for one in settles.asked] == ["a", "b", "c"]
        assert [one.result() for one in told] == [settles.answer] * 3


async def test_what_no_server_takes_is_not_sent() -> None:
    async with settling() as (_, settles, client):
        with pytest.raises(ClientError, match="cannot be written"):
            await client.send(request("not a name"))

        assert settles.asked == []
        assert not client.closed
