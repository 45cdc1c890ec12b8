"""Calls of cooperative groups at the socket (`protocol.cooperative_codec`).

Rights are Kafka's for consumers: READ on the group for members and to reset, DESCRIBE to look, DELETE to delete; of
topics, which members name by id, the server asks itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.cooperative_codec import CALLS, Call, Malformed
from flowshare.protocol.cooperative_settle import decode_settle, encode_settled
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import (
    COOPERATIVE_SETTLE,
    CooperativeDeleteRequest,
    CooperativeOffsetsRequest,
    CooperativeOffsetsResponse,
    CooperativeResetRequest,
    CooperativeSettleResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import Endpoint, may_topic
from flowshare.server.edge.share import closed_outputs
from flowshare.server.runtime.failures import Refused, refusal

if TYPE_CHECKING:
    from flowshare.server.edge.base import SocketCall

Body = dict[str, Any]
_NEEDS: Final[Mapping[type[Any], Operation]] = {
    CooperativeOffsetsRequest: Operation.DESCRIBE,
    CooperativeDeleteRequest: Operation.DELETE,
}


async def _answer(name: str, how: Call, call: SocketCall) -> Body:
    """Do the call and return its answer. Raises: Refused."""
    try:
        request = how.read_request(call.request)
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name}: {error}") from None
    call.peer.need(_NEEDS.get(request.__class__, Operation.READ), ResourceType.GROUP, request.group_id)
    if isinstance(request, CooperativeResetRequest):
        call.peer.need(Operation.READ, ResourceType.TOPIC, request.topic)
    answer = await call.peer.connection.send(request)
    if answer.error is not ErrorCode.NONE:
        raise Refused(answer.error, answer.message or "")
    if isinstance(answer, CooperativeOffsetsResponse):
        seen = [part for part in answer.partitions if may_topic(call.peer, Operation.DESCRIBE, part.topic)]
        answer = replace(answer, partitions=tuple(seen))
    return how.answer(answer)


async def settle(call: SocketCall) -> CooperativeSettleResponse:
    """Commit records and write outputs in one step. Plain: `protocol.cooperative_settle` reads and writes it."""
    peer, request = call.peer, call.request
    place: Body = {"topic_id": request.topic_id, "partition": request.partition}
    try:
        peer.need(Operation.READ, ResourceType.GROUP, request.group_id)
    except Refused as denied:
        return refusal(CooperativeSettleResponse, denied, **place)
    closed = await closed_outputs(call)
    if closed:
        return CooperativeSettleResponse(
            **place,
            error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            message=f"{len(closed)} of {len(request.outputs)} outputs are to topics that may not be written to",
            outputs=closed,
        )
    return await peer.connection.send(request)


ENDPOINTS: Final = (Endpoint(COOPERATIVE_SETTLE, settle, decode=decode_settle, encode=encode_settled),)
COOPERATIVE: Final[Mapping[str, Callable[[SocketCall], Awaitable[Body]]]] = {
    name: partial(_answer, name, how) for name, how in CALLS.items()
}
"""The calls by name."""
