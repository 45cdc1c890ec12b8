"""Kafka's error codes that flowshare uses, and the one table from core errors to them.

The numbers are Kafka's. kio has them too, but importing kio costs 0.6 s and the in-process path needs no kio at all.
"""

from __future__ import annotations

import enum
from typing import Final

from flowshare.share import errors as core


class ErrorCode(enum.IntEnum):
    """Error numbers as they stand on the wire."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    UNKNOWN_MEMBER_ID = 25
    OFFSET_NOT_AVAILABLE = 78
    GROUP_MAX_SIZE_REACHED = 81
    INVALID_RECORD = 87
    UNSUPPORTED_COMPRESSION_TYPE = 76
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    FENCED_LEADER_EPOCH = 74
    SHARE_SESSION_LIMIT_REACHED = 133


WIRE: Final[dict[type[core.ShareError], ErrorCode]] = {
    core.InvalidRequest: ErrorCode.INVALID_REQUEST,
    core.InvalidRecordState: ErrorCode.INVALID_RECORD_STATE,
    core.FencedStateEpoch: ErrorCode.FENCED_STATE_EPOCH,
    core.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    core.GroupIdNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    core.NonEmptyGroup: ErrorCode.NON_EMPTY_GROUP,
    core.GroupMaxSizeReached: ErrorCode.GROUP_MAX_SIZE_REACHED,
    core.UnknownMemberId: ErrorCode.UNKNOWN_MEMBER_ID,
    core.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    core.ShareSessionNotFound: ErrorCode.SHARE_SESSION_NOT_FOUND,
    core.InvalidShareSessionEpoch: ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    core.ShareSessionLimitReached: ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    core.InvalidConfig: ErrorCode.INVALID_CONFIG,
    core.UnknownTopicOrPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    core.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    core.StateCorrupt: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def error_code(error: core.ShareError) -> ErrorCode:
    """The wire number of a core error."""
    return WIRE[type(error)]
