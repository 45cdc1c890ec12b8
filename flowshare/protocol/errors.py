"""Kafka's error codes, and the table from the cores' errors to them.

The numbers are Kafka's. kio has them too, but importing kio costs 0.6 s and the in-process path needs no kio at all.
"""

from __future__ import annotations

import enum
from typing import Final

from flowshare import core_errors


class ErrorCode(enum.IntEnum):
    """Error numbers on the wire."""

    @classmethod
    def known(cls, number: int) -> ErrorCode:
        """Return the error of a number; an unknown number becomes UNKNOWN_SERVER_ERROR."""
        return _KNOWN.get(number, cls.UNKNOWN_SERVER_ERROR)

    @classmethod
    def _missing_(cls, value: object) -> ErrorCode | None:
        """Return UNKNOWN_SERVER_ERROR for a number that this release does not know, as in an answer of a newer one."""
        return cls.UNKNOWN_SERVER_ERROR if isinstance(value, int) else None

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


_KNOWN: Final = {int(code): code for code in ErrorCode}

CORE_ERRORS: Final[dict[type[core_errors.CoreError], ErrorCode]] = {
    core_errors.InvalidRequest: ErrorCode.INVALID_REQUEST,
    core_errors.StateCorrupt: ErrorCode.UNKNOWN_SERVER_ERROR,
    core_errors.GroupIdNotFound: ErrorCode.GROUP_ID_NOT_FOUND,
    core_errors.NonEmptyGroup: ErrorCode.NON_EMPTY_GROUP,
    core_errors.GroupMaxSizeReached: ErrorCode.GROUP_MAX_SIZE_REACHED,
    core_errors.UnknownMemberId: ErrorCode.UNKNOWN_MEMBER_ID,
    core_errors.InvalidRecordState: ErrorCode.INVALID_RECORD_STATE,
    core_errors.FencedStateEpoch: ErrorCode.FENCED_STATE_EPOCH,
    core_errors.FencedLeaderEpoch: ErrorCode.FENCED_LEADER_EPOCH,
    core_errors.FencedMemberEpoch: ErrorCode.FENCED_MEMBER_EPOCH,
    core_errors.ShareSessionNotFound: ErrorCode.SHARE_SESSION_NOT_FOUND,
    core_errors.InvalidShareSessionEpoch: ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    core_errors.ShareSessionLimitReached: ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    core_errors.InvalidConfig: ErrorCode.INVALID_CONFIG,
    core_errors.UnknownTopicOrPartition: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    core_errors.UnknownTopicId: ErrorCode.UNKNOWN_TOPIC_ID,
    core_errors.InvalidGroupId: ErrorCode.INVALID_GROUP_ID,
    core_errors.InvalidSessionTimeout: ErrorCode.INVALID_SESSION_TIMEOUT,
    core_errors.InconsistentGroupProtocol: ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
    core_errors.MemberIdRequired: ErrorCode.MEMBER_ID_REQUIRED,
    core_errors.FencedInstanceId: ErrorCode.FENCED_INSTANCE_ID,
    core_errors.IllegalGeneration: ErrorCode.ILLEGAL_GENERATION,
    core_errors.RebalanceInProgress: ErrorCode.REBALANCE_IN_PROGRESS,
    core_errors.StaleMemberEpoch: ErrorCode.STALE_MEMBER_EPOCH,
    core_errors.UnreleasedInstanceId: ErrorCode.UNRELEASED_INSTANCE_ID,
    core_errors.UnsupportedAssignor: ErrorCode.UNSUPPORTED_ASSIGNOR,
    core_errors.InvalidRegularExpression: ErrorCode.INVALID_REGULAR_EXPRESSION,
    core_errors.UnsupportedVersion: ErrorCode.UNSUPPORTED_VERSION,
    core_errors.CoordinatorNotAvailable: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    core_errors.GroupSubscribedToTopic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
    core_errors.OffsetMetadataTooLarge: ErrorCode.OFFSET_METADATA_TOO_LARGE,
    core_errors.OffsetOutOfRange: ErrorCode.OFFSET_OUT_OF_RANGE,
    core_errors.BoundReached: ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    core_errors.OutOfOrderSequence: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    core_errors.InvalidProducerEpoch: ErrorCode.INVALID_PRODUCER_EPOCH,
    core_errors.ProducerFenced: ErrorCode.PRODUCER_FENCED,
    core_errors.InvalidProducerIdMapping: ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    core_errors.InvalidTxnState: ErrorCode.INVALID_TXN_STATE,
    core_errors.ConcurrentTransactions: ErrorCode.CONCURRENT_TRANSACTIONS,
    core_errors.InvalidTransactionTimeout: ErrorCode.INVALID_TRANSACTION_TIMEOUT,
    core_errors.TransactionalIdNotFound: ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    core_errors.TransactionLimit: ErrorCode.POLICY_VIOLATION,
    core_errors.TransactionStateCorrupt: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


def error_code(error: core_errors.CoreError) -> ErrorCode:
    """Return the error code of a core error."""
    return CORE_ERRORS[type(error)]
