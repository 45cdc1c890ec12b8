"""Flowshare's own API (`protocol.private`) at the socket: reads a declared call, checks its rights, and answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    CreatePartitionsRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    TopicResult,
)
from flowshare.protocol.messages.base import Response
from flowshare.protocol.messages.browse import BROWSE_CALLS
from flowshare.protocol.messages.cooperative import COOPERATIVE_CALLS
from flowshare.protocol.messages.share import SHARE_BREAKER, SHARE_RESUME
from flowshare.protocol.messages.state import SHARE_OFFSETS, SHARE_PARKED, SHARE_PLACE
from flowshare.protocol.messages.topics import TOPIC_GROW
from flowshare.protocol.private import VERSION, OwnCall, decode_call, encode_answer, read
from flowshare.server.edge.base import Endpoint, SocketCall
from flowshare.server.edge.share import describe_offsets
from flowshare.server.runtime import answers
from flowshare.server.runtime.failures import Refused

Handler = Callable[[SocketCall], Awaitable[Any]]
Way = Callable[[SocketCall, Any], Awaitable[Any]]
"""(call, its request, read and allowed) -> the answer."""
ROW_BYTES: Final = 400
"""Bytes that a share-partition takes in an answer, in memory and on the wire, about."""


async def tell_offsets(
    call: SocketCall, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Describe start offsets and lag of a group; the share-partitions that are named count before they are looked
    up."""
    named = None if request.topics is None else sum(len(set(numbers)) for numbers in request.topics.values())
    if named is not None:
        answers.space().add(ROW_BYTES * named)
    answer = await describe_offsets(call, request)
    if named is None:
        answers.space().add(ROW_BYTES * len(answer.partitions))
    return answer


async def ask_server(call: SocketCall, request: Any) -> Any:
    """Send the request to the server behind the socket."""
    return await call.peer.connection.send(request)


async def grow_topic(call: SocketCall, request: CreatePartitionsRequest) -> TopicResult:
    """Raise a topic's partition count, even if the topic is read in the order of keys."""
    known = call.peer.server.topics.by_name(request.name)
    most = call.peer.server.config.request_partitions_max
    if known is not None and request.total - known.partitions > most:
        text = f"one request makes {most} partitions at most (max.request.new.partitions)"
        raise Refused(ErrorCode.POLICY_VIOLATION, text)
    answer: TopicResult = await call.peer.connection.send(request)
    return answer


WAYS: Final[Mapping[OwnCall, Way]] = {
    SHARE_OFFSETS: tell_offsets,
    **dict.fromkeys(
        (SHARE_RESUME, SHARE_PLACE, SHARE_PARKED, SHARE_BREAKER, *BROWSE_CALLS, *COOPERATIVE_CALLS), ask_server
    ),
}
"""Calls of every server."""
ON_TOPICS: Final[Mapping[OwnCall, Way]] = {TOPIC_GROW: grow_topic}
"""Calls of a server with topics of its own."""


def endpoint(ways: Mapping[OwnCall, Way] | None = None) -> Endpoint:
    """Return the one API's endpoint. ways: further calls."""
    handlers = {own.name: partial(_do, own, way) for own, way in {**WAYS, **(ways or {})}.items()}
    api = Api(ApiKey.FLOWSHARE, server=(VERSION, VERSION))
    return Endpoint(api, partial(_answer, handlers), decode=decode_call, encode=encode_answer)


async def _answer(handlers: Mapping[str, Handler], call: SocketCall) -> Any:
    """Do the call and return its answer, or the reason for refusing it."""
    name = call.request.name
    handler = handlers.get(name)
    if handler is None:
        message = f"this server has no call {name!r} (it has: {', '.join(handlers)}); upgrade it"
        return Response(error=ErrorCode.UNSUPPORTED_VERSION, message=message)
    try:
        return await handler(call)
    except Refused as error:
        return Response(error=error.code, message=str(error))
    except DecodeError as error:
        return Response(error=ErrorCode.INVALID_REQUEST, message=f"{name}: {error}")


async def _do(own: OwnCall, way: Way, call: SocketCall) -> Any:
    request = read(own.request, call.request.text)
    for right in own.rights(request):
        call.peer.need(*right)
    answer = await way(call, request)
    return answer if answer.error is not ErrorCode.NONE else own.shown(answer, call.peer.may)
