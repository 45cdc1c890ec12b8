"""The settle of a cooperative group at the socket; its calls are declared (`edge.private`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.cooperative_settle import decode_settle, encode_settled
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import COOPERATIVE_SETTLE, CooperativeSettleResponse
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import Endpoint
from flowshare.server.edge.share import closed_outputs
from flowshare.server.runtime.failures import Refused, refusal

if TYPE_CHECKING:
    from flowshare.server.edge.base import SocketCall

Body = dict[str, Any]


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
