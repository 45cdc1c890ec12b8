"""What is asked about offsets: ListOffsets, OffsetForLeaderEpoch, and DeleteRecords, which moves the first one.

Rights: DESCRIBE on topics to ask, DELETE to delete; what is not allowed is told partition by partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import EARLIEST, LATEST, DeleteRecordsRequest, ListOffsetsRequest
from flowshare.server.edge.base import Api, Call, Operation, Peer
from flowshare.server.edge.forms import (
    LEADER_EPOCH,
    NO_TIME,
    check_epoch,
    form,
    may_cluster,
    may_topic,
    once,
)
from flowshare.server.failures import Refused

SPECIAL_TIMES: Final = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Timestamps of ListOffsets with a meaning of their own, and the version from which on they have it."""
LOCAL_EARLIEST: Final = -4
REMOTE: Final = (-5, -6)
"""Times that only a tiered log knows: there is no such offset here (KIP-1005, KIP-1023)."""


class PositionsEdge:
    """Answers what is asked about offsets."""

    def apis(self) -> Sequence[Api]:
        """The three APIs."""
        return (
            Api(key=ApiKey.LIST_OFFSETS, lowest=1, highest=11, answer=self.list_offsets),
            Api(key=ApiKey.DELETE_RECORDS, lowest=0, highest=2, answer=self.delete_records),
            Api(key=ApiKey.OFFSET_FOR_LEADER_EPOCH, lowest=2, highest=4, answer=self.epoch_ends),
        )

    async def list_offsets(self, call: Call) -> Any:
        """Offsets by time."""
        make, asked = form("list_offsets", call.version), call.request
        committed = call.version >= 2 and asked.isolation_level == 1
        twice: set[tuple[str, int]] = set()
        named = await once(call.peer.turns, asked.topics, "name", "partition_index", twice=twice)
        topics: list[Any] = []
        for name, numbers in named.items():
            parts: list[Any] = []
            for number, part in numbers.items():
                await call.peer.turns.take()
                try:
                    if (name, number) in twice:
                        raise Refused(ErrorCode.INVALID_REQUEST, "the partition stands in the request twice")
                    fields = await self._offset(call, name, part, committed=committed)
                except Refused as error:
                    fields = {"error_code": error.code, "offset": -1, "timestamp": -1, "leader_epoch": -1}
                parts.append(make("ListOffsetsPartitionResponse", partition_index=number, **fields))
            topics.append(make("ListOffsetsTopicResponse", name=name, partitions=tuple(parts)))
        return make("ListOffsetsResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def _offset(self, call: Call, topic: str, part: Any, *, committed: bool) -> dict[str, Any]:
        """Raises: Refused."""
        if not may_topic(call.peer, Operation.DESCRIBE, topic):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"describing topic {topic} is not allowed")
        check_epoch(part.current_leader_epoch if call.version >= 4 else -1)
        timestamp = part.timestamp
        if timestamp < 0 and SPECIAL_TIMES.get(timestamp, call.version + 1) > call.version:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"time {timestamp} has no meaning in version {call.version}")
        answer = await call.peer.connection.send(
            ListOffsetsRequest(
                topic=topic,
                partition=part.partition_index,
                timestamp_ms=EARLIEST if timestamp == LOCAL_EARLIEST or timestamp in REMOTE else timestamp,
                committed=committed,
            )
        )
        if answer.error is not ErrorCode.NONE:
            raise Refused(answer.error, answer.message or "")
        found = answer.offset >= 0 and timestamp not in REMOTE
        return {
            "error_code": ErrorCode.NONE,
            "offset": answer.offset if found else -1,
            "timestamp": answer.timestamp_ms if found else -1,
            "leader_epoch": LEADER_EPOCH if found else -1,
        }

    async def epoch_ends(self, call: Call) -> Any:
        """Where the log of a leader's epoch ends: there is one epoch, and it goes to the log's end."""
        make = form("offset_for_leader_epoch", call.version)
        topics: list[Any] = []
        for name, numbers in (await once(call.peer.turns, call.request.topics, "topic", "partition")).items():
            parts: list[Any] = []
            for number, part in numbers.items():
                await call.peer.turns.take()
                try:
                    fields = await self._epoch_end(call.peer, name, part)
                except Refused as error:
                    fields = {"error_code": error.code, "leader_epoch": -1, "end_offset": -1}
                parts.append(make("EpochEndOffset", partition=number, **fields))
            topics.append(make("OffsetForLeaderTopicResult", topic=name, partitions=tuple(parts)))
        return make("OffsetForLeaderEpochResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def _epoch_end(self, peer: Peer, topic: str, part: Any) -> dict[str, Any]:
        """Raises: Refused."""
        if not (may_topic(peer, Operation.DESCRIBE, topic) or may_cluster(peer, Operation.CLUSTER_ACTION)):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"describing topic {topic} is not allowed")
        check_epoch(part.current_leader_epoch)
        answer = await peer.connection.send(
            ListOffsetsRequest(topic=topic, partition=part.partition, timestamp_ms=LATEST)
        )
        if answer.error is not ErrorCode.NONE:
            raise Refused(answer.error, answer.message or "")
        known = part.leader_epoch == LEADER_EPOCH
        return {
            "error_code": ErrorCode.NONE,
            "leader_epoch": LEADER_EPOCH if known else -1,
            "end_offset": answer.offset if known else -1,
        }

    async def delete_records(self, call: Call) -> Any:
        """Move log starts."""
        make = form("delete_records", call.version)
        topics: list[Any] = []
        named = await once(call.peer.turns, call.request.topics, "name", "partition_index")
        for name, numbers in named.items():
            allowed = may_topic(call.peer, Operation.DELETE, name)
            parts: list[Any] = []
            for number, part in numbers.items():
                await call.peer.turns.take()
                error, low = ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1
                if allowed:
                    error, low = await _cut(call.peer, name, part)
                parts.append(
                    make(
                        "DeleteRecordsPartitionResult",
                        partition_index=number,
                        low_watermark=low,
                        error_code=error,
                    )
                )
            topics.append(make("DeleteRecordsTopicResult", name=name, partitions=tuple(parts)))
        return make("DeleteRecordsResponse", throttle_time=NO_TIME, topics=tuple(topics))


async def _cut(peer: Peer, topic: str, part: Any) -> tuple[ErrorCode, int]:
    if part.offset < -1:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    answer = await peer.connection.send(
        DeleteRecordsRequest(topic=topic, partition=part.partition_index, before=part.offset)
    )
    return answer.error, answer.log_start
