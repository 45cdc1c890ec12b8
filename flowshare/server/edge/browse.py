"""Browsing a share-partition, and acting on records that others hold, at the socket (`protocol.browse_codec`).

Browsing needs DESCRIBE on the group and on the topic, as its offsets do: the answers are numbers, and names of members.
Partitions of topics that may not be described are not named. Acting needs READ on both, as moving the group's offsets
does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.browse_codec import CALLS
from flowshare.protocol.cooperative_codec import Call, Malformed
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.browse import (
    ShareChangesRequest,
    ShareChangesResponse,
    ShareInterveneRequest,
    SharePlacesRequest,
    SharePlacesResponse,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import may_topic
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from flowshare.server.edge.base import SocketCall

Body = dict[str, Any]


async def _answer(name: str, how: Call, call: SocketCall) -> Body:
    """Do the call and return its answer. Raises: Refused."""
    try:
        request = how.read_request(call.request)
    except Malformed as error:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name}: {error}") from None
    if isinstance(request, ShareChangesRequest):
        return how.answer(_seen_by(call, await call.peer.connection.send(request)))
    right = Operation.READ if isinstance(request, ShareInterveneRequest) else Operation.DESCRIBE
    call.peer.need(right, ResourceType.GROUP, request.group_id)
    if not isinstance(request, SharePlacesRequest):
        call.peer.need(right, ResourceType.TOPIC, request.topic)
    answer = await call.peer.connection.send(request)
    if answer.error is not ErrorCode.NONE:
        raise Refused(answer.error, answer.message or "")
    if isinstance(answer, SharePlacesResponse):
        seen = (one for one in answer.places if may_topic(call.peer, Operation.DESCRIBE, one[0]))
        answer = replace(answer, places=tuple(seen))
    return how.answer(answer)


def _seen_by(call: SocketCall, answer: ShareChangesResponse) -> ShareChangesResponse:
    """Leave out rows that the peer may not know of: it needs DESCRIBE on group and topic; each is checked once."""
    may: dict[tuple[ResourceType, str], bool] = {}

    def known(group_id: str, topic: str) -> bool:
        for one in ((ResourceType.GROUP, group_id), (ResourceType.TOPIC, topic)):
            if one not in may:
                may[one] = call.peer.may(Operation.DESCRIBE, *one)
            if not may[one]:
                return False
        return True

    return replace(
        answer,
        rows=tuple(row for row in answer.rows if known(row.group_id, row.topic)),
        gone=tuple(one for one in answer.gone if known(one[0], one[1])),
    )


BROWSE: Final[Mapping[str, Callable[[SocketCall], Awaitable[Body]]]] = {
    name: partial(_answer, name, how) for name, how in CALLS.items()
}
"""The calls by name."""
