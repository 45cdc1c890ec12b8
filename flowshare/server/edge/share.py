"""The APIs of share-group members: ShareGroupHeartbeat, ShareFetch, ShareAcknowledge (KIP-932, KIP-1206, KIP-1222).

Rights: READ on the group for all three; DESCRIBE on each subscribed topic for a heartbeat; READ on each topic for
records and acknowledgements, told partition by partition (share-groups.md F26, V06, V07). A fetch that was parked needs
them again for what it is given (`server.share_fetch`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from flowshare.protocol.share_answers import encode_fetched
from flowshare.protocol.share_codec import decode_acknowledge, decode_fetch
from flowshare.server.edge.base import Api, Call, Operation, Peer
from flowshare.server.edge.forms import NO_TIME, Form, by_topic, duration, form, may_group, may_topic

GROUP_REFUSED: Final = "reading in group {} is not allowed"


class ShareApis:
    """Answers members of share groups."""

    def apis(self) -> Sequence[Api]:
        """The three APIs."""
        return (
            Api(key=ApiKey.SHARE_GROUP_HEARTBEAT, lowest=1, highest=1, answer=self.heartbeat),
            Api(
                key=ApiKey.SHARE_FETCH,
                lowest=1,
                highest=2,
                answer=self.fetch,
                decode=decode_fetch,
                encode=encode_fetched,
            ),
            Api(
                key=ApiKey.SHARE_ACKNOWLEDGE,
                lowest=1,
                highest=2,
                answer=self.acknowledge,
                decode=decode_acknowledge,
            ),
        )

    async def heartbeat(self, call: Call) -> Any:
        """Join, go on or leave."""
        peer, asked = call.peer, call.request
        named = asked.subscribed_topic_names
        topics = None if named is None else tuple(dict.fromkeys(named))
        denied = [name for name in topics or () if not may_topic(peer, Operation.DESCRIBE, name)]
        if not may_group(peer, Operation.READ, asked.group_id):
            answer = ShareGroupHeartbeatResponse(
                error=ErrorCode.GROUP_AUTHORIZATION_FAILED, message=GROUP_REFUSED.format(asked.group_id)
            )
        elif denied:
            answer = ShareGroupHeartbeatResponse(
                error=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                message=f"describing these topics is not allowed: {', '.join(denied)}",
            )
        else:
            answer = await peer.connection.send(
                ShareGroupHeartbeatRequest(
                    group_id=asked.group_id,
                    member_id=asked.member_id,
                    member_epoch=asked.member_epoch,
                    rack_id=asked.rack_id,
                    subscribed_topics=topics,
                )
            )
        return _heartbeat(form("share_group_heartbeat", call.version), answer)

    async def fetch(self, call: Call) -> ShareFetchResponse:
        """Acknowledge and fetch. Request and answer are plain: `protocol.share_codec` reads and writes them."""
        request: ShareFetchRequest = call.request
        if _may_not_read(call.peer, request.group_id):
            return ShareFetchResponse(
                error=ErrorCode.GROUP_AUTHORIZATION_FAILED, message=GROUP_REFUSED.format(request.group_id)
            )
        return await call.peer.connection.send(request)

    async def acknowledge(self, call: Call) -> Any:
        """Acknowledge alone."""
        request: ShareAcknowledgeRequest = call.request
        if _may_not_read(call.peer, request.group_id):
            answer = ShareAcknowledgeResponse(
                error=ErrorCode.GROUP_AUTHORIZATION_FAILED, message=GROUP_REFUSED.format(request.group_id)
            )
        else:
            answer = await call.peer.connection.send(request)
        return _acknowledged(form("share_acknowledge", call.version), answer)


def _may_not_read(peer: Peer, group_id: str | None) -> bool:
    """Whether the group is closed to the peer; a missing group id is refused for that. Topics are asked for later."""
    return bool(group_id) and not may_group(peer, Operation.READ, group_id or "")


def _heartbeat(make: Form, answer: ShareGroupHeartbeatResponse) -> Any:
    assignment = None
    if answer.assignment is not None:
        topics = by_topic((at.topic_id, at.partition) for at in answer.assignment)
        assignment = make(
            "Assignment",
            topic_partitions=tuple(
                make("TopicPartitions", topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )
    return make(
        "ShareGroupHeartbeatResponse",
        throttle_time=NO_TIME,
        error_code=answer.error,
        error_message=answer.message,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval=duration(answer.heartbeat_interval_ms),
        assignment=assignment,
    )


def _acknowledged(make: Form, answer: ShareAcknowledgeResponse) -> Any:
    parts = (
        (
            part.topic_id,
            make(
                "PartitionData",
                partition_index=part.partition,
                error_code=part.error,
                error_message=part.message,
                current_leader=_leader(make, part.current_leader),
            ),
        )
        for part in answer.partitions
    )
    return make(
        "ShareAcknowledgeResponse",
        throttle_time=NO_TIME,
        error_code=answer.error,
        error_message=answer.message,
        acquisition_lock_timeout=duration(answer.lock_timeout_ms),
        responses=tuple(
            make("ShareAcknowledgeTopicResponse", topic_id=topic_id, partitions=tuple(partitions))
            for topic_id, partitions in by_topic(parts).items()
        ),
        node_endpoints=_endpoints(make, answer.node_endpoints),
    )


def _leader(make: Form, leader: tuple[int, int]) -> Any:
    return make("LeaderIdAndEpoch", leader_id=leader[0], leader_epoch=leader[1])


def _endpoints(make: Form, endpoints: Mapping[int, tuple[str, int]]) -> tuple[Any, ...]:
    return tuple(
        make("NodeEndpoint", node_id=node_id, host=host, port=port, rack=None)
        for node_id, (host, port) in endpoints.items()
    )
