"""Where a leader's epoch ends in the log: how a reader finds out what was cut off behind it (KIP-320)."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

NO_REPLICA: Final = -1


def _ask(request: OffsetForLeaderEpochRequest, version: int) -> Any:
    m = module("offset_for_leader_epoch", version, "request")
    part = m.OffsetForLeaderPartition(
        partition=request.partition, current_leader_epoch=request.current_epoch, leader_epoch=request.leader_epoch
    )
    return m.OffsetForLeaderEpochRequest(
        replica_id=NO_REPLICA, topics=(m.OffsetForLeaderTopic(topic=request.topic, partitions=(part,)),)
    )


def _answer(answer: Any, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    for topic in answer.topics:
        for part in topic.partitions:
            if topic.topic == request.topic and part.partition == request.partition:
                return OffsetForLeaderEpochResponse(
                    error=code(part.error_code), leader_epoch=int(part.leader_epoch), end_offset=int(part.end_offset)
                )
    return OffsetForLeaderEpochResponse(
        error=ErrorCode.UNKNOWN_SERVER_ERROR, message="the answer leaves out the partition"
    )


CODECS: Final[dict[type[Any], Codec]] = {
    OffsetForLeaderEpochRequest: Codec(
        key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
        name="offset_for_leader_epoch",
        lowest=4,
        highest=4,
        write=by_kio(_ask),
        decode=_answer,
    ),
}
