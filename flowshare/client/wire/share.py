"""Heartbeats, fetches and acknowledgements of a share group's members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from flowshare.client.wire.base import Codec, alone, by_kio, code, endpoints, text, whole_ms
from flowshare.protocol.kafka import ApiKey, module
from flowshare.protocol.messages import (
    AcknowledgedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TopicPartition,
)
from flowshare.protocol.messages.share import NO_LEADER
from flowshare.protocol.share_answers import MOVED, decode_fetched
from flowshare.protocol.share_codec import encode_acknowledge, encode_fetch
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flowshare.protocol.messages import SharePartitionRequest

V2: Final = 2


def _heartbeat(request: ShareGroupHeartbeatRequest, version: int) -> Any:
    m = module("share_group_heartbeat", version, "request")
    return m.ShareGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topic_names=request.subscribed_topics,
    )


def _heartbeat_answer(answer: Any, _: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
    assignment = None
    if answer.assignment is not None:
        assignment = tuple(
            TopicPartition(topic.topic_id, int(partition))
            for topic in answer.assignment.topic_partitions
            for partition in topic.partitions
        )
    return ShareGroupHeartbeatResponse(
        error=code(answer.error_code),
        message=text(answer.error_message),
        member_id=answer.member_id,
        member_epoch=int(answer.member_epoch),
        heartbeat_interval_ms=whole_ms(answer.heartbeat_interval),
        assignment=assignment,
    )


def _leader(part: Any) -> tuple[int, int]:
    """Who leads instead; only some errors give it a meaning."""
    if code(part.error_code) not in MOVED:
        return NO_LEADER
    return int(part.current_leader.leader_id), int(part.current_leader.leader_epoch)


def _acknowledge_answer(answer: Any, _: ShareAcknowledgeRequest) -> ShareAcknowledgeResponse:
    lock_timeout = getattr(answer, "acquisition_lock_timeout", None)
    return ShareAcknowledgeResponse(
        error=code(answer.error_code),
        message=text(answer.error_message),
        lock_timeout_ms=0 if lock_timeout is None else whole_ms(lock_timeout),
        partitions=tuple(
            AcknowledgedPartition(
                topic_id=topic.topic_id,
                partition=int(part.partition_index),
                error=code(part.error_code),
                message=text(part.error_message),
                current_leader=_leader(part),
            )
            for topic in answer.responses
            for part in topic.partitions
        ),
        node_endpoints=endpoints(answer.node_endpoints),
    )


def _fetch_needs(request: ShareFetchRequest) -> int:
    newer = request.acquire_mode != 0 or request.is_renew_ack or _renews(request.partitions)
    return V2 if newer else 1


def _acknowledge_needs(request: ShareAcknowledgeRequest) -> int:
    return V2 if request.is_renew_ack or _renews(request.partitions) else 1


def _renews(parts: Iterable[SharePartitionRequest]) -> bool:
    return any(AcknowledgeType.RENEW in ack.types for part in parts for ack in part.acks)


CODECS: Final[dict[type[Any], Codec]] = {
    ShareGroupHeartbeatRequest: Codec(
        key=ApiKey.SHARE_GROUP_HEARTBEAT,
        name="share_group_heartbeat",
        lowest=1,
        highest=1,
        write=by_kio(_heartbeat),
        decode=_heartbeat_answer,
    ),
    ShareFetchRequest: Codec(
        key=ApiKey.SHARE_FETCH,
        name="share_fetch",
        lowest=1,
        highest=2,
        write=encode_fetch,
        read=alone(decode_fetched),
        needs=_fetch_needs,
        wait_ms=lambda request: request.max_wait_ms,
    ),
    ShareAcknowledgeRequest: Codec(
        key=ApiKey.SHARE_ACKNOWLEDGE,
        name="share_acknowledge",
        lowest=1,
        highest=2,
        write=encode_acknowledge,
        decode=_acknowledge_answer,
        needs=_acknowledge_needs,
    ),
}
