"""The state of share-partitions as Kafka's brokers keep it: read by who moves a group elsewhere."""

from __future__ import annotations

from typing import Any, Final

from flowshare.client.wire.base import Codec, by_kio, code, text
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import ReadShareGroupStateRequest, ShareGroupStateResponse
from flowshare.share.types import PartitionState, RecordState, StateRun


def _read(request: ReadShareGroupStateRequest, version: int) -> Any:
    m = module("read_share_group_state", version, "request")
    part = m.PartitionData(partition=request.partition, leader_epoch=request.leader_epoch)
    return m.ReadShareGroupStateRequest(
        group_id=request.group_id, topics=(m.ReadStateData(topic_id=request.topic_id, partitions=(part,)),)
    )


def _read_answer(answer: Any, _: ReadShareGroupStateRequest) -> ShareGroupStateResponse:
    found = next((part for topic in answer.results for part in topic.partitions), None)
    if found is None:
        return ShareGroupStateResponse(
            error=ErrorCode.UNKNOWN_SERVER_ERROR, message="the answer leaves out what was asked for"
        )
    if found.error_code:
        return ShareGroupStateResponse(error=code(found.error_code), message=text(found.error_message))
    runs = tuple(
        StateRun(
            int(run.first_offset), int(run.last_offset), RecordState(int(run.delivery_state)), int(run.delivery_count)
        )
        for run in found.state_batches
    )
    state = PartitionState(state_epoch=int(found.state_epoch), start_offset=int(found.start_offset), runs=runs)
    return ShareGroupStateResponse(state=state)


CODECS: Final[dict[type[Any], Codec]] = {
    ReadShareGroupStateRequest: Codec(
        key=ApiKey.READ_SHARE_GROUP_STATE,
        name="read_share_group_state",
        lowest=0,
        highest=0,
        write=by_kio(_read),
        decode=_read_answer,
    ),
}
