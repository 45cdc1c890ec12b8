"""The plain form of every operation: what the in-process client and server exchange.

Field for field these are Kafka's messages (KIP-932 for the share APIs) with ranges and bytes as they are; kio's
generated messages are translated to and from them at the socket only. Flowshare's own additions are marked; other
clients never set them. Every request class names its response class by its type parameter.

A family of messages is loaded when one of its names is first used (PEP 562): making its classes takes up to 10 ms, and
who runs share agents never speaks of classic groups, transactions or stored state.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.messages.base import Connection as Connection
from flowshare.protocol.messages.base import Request as Request
from flowshare.protocol.messages.base import TopicPartition as TopicPartition

if TYPE_CHECKING:
    from flowshare.protocol.messages.classic import DescribeGroupRequest as DescribeGroupRequest
    from flowshare.protocol.messages.classic import DescribeGroupResponse as DescribeGroupResponse
    from flowshare.protocol.messages.classic import FetchedOffset as FetchedOffset
    from flowshare.protocol.messages.classic import HeartbeatRequest as HeartbeatRequest
    from flowshare.protocol.messages.classic import HeartbeatResponse as HeartbeatResponse
    from flowshare.protocol.messages.classic import JoinGroupRequest as JoinGroupRequest
    from flowshare.protocol.messages.classic import JoinGroupResponse as JoinGroupResponse
    from flowshare.protocol.messages.classic import LeaveGroupRequest as LeaveGroupRequest
    from flowshare.protocol.messages.classic import LeaveGroupResponse as LeaveGroupResponse
    from flowshare.protocol.messages.classic import LeavingMember as LeavingMember
    from flowshare.protocol.messages.classic import LeftMember as LeftMember
    from flowshare.protocol.messages.classic import OffsetCommitRequest as OffsetCommitRequest
    from flowshare.protocol.messages.classic import OffsetCommitResponse as OffsetCommitResponse
    from flowshare.protocol.messages.classic import OffsetDeleteRequest as OffsetDeleteRequest
    from flowshare.protocol.messages.classic import OffsetDeleteResponse as OffsetDeleteResponse
    from flowshare.protocol.messages.classic import OffsetFetchRequest as OffsetFetchRequest
    from flowshare.protocol.messages.classic import OffsetFetchResponse as OffsetFetchResponse
    from flowshare.protocol.messages.classic import OffsetResult as OffsetResult
    from flowshare.protocol.messages.classic import OffsetToCommit as OffsetToCommit
    from flowshare.protocol.messages.classic import SyncGroupRequest as SyncGroupRequest
    from flowshare.protocol.messages.classic import SyncGroupResponse as SyncGroupResponse
    from flowshare.protocol.messages.classic import TxnOffsetCommitRequest as TxnOffsetCommitRequest
    from flowshare.protocol.messages.groups import ConfigEntry as ConfigEntry
    from flowshare.protocol.messages.groups import ConfiguredGroupsRequest as ConfiguredGroupsRequest
    from flowshare.protocol.messages.groups import ConfiguredGroupsResponse as ConfiguredGroupsResponse
    from flowshare.protocol.messages.groups import DeleteGroupsRequest as DeleteGroupsRequest
    from flowshare.protocol.messages.groups import DeleteGroupsResponse as DeleteGroupsResponse
    from flowshare.protocol.messages.groups import DescribeConfigsRequest as DescribeConfigsRequest
    from flowshare.protocol.messages.groups import DescribeConfigsResponse as DescribeConfigsResponse
    from flowshare.protocol.messages.groups import FindCoordinatorRequest as FindCoordinatorRequest
    from flowshare.protocol.messages.groups import FindCoordinatorResponse as FindCoordinatorResponse
    from flowshare.protocol.messages.groups import GroupResult as GroupResult
    from flowshare.protocol.messages.groups import IncrementalAlterConfigsRequest as IncrementalAlterConfigsRequest
    from flowshare.protocol.messages.groups import IncrementalAlterConfigsResponse as IncrementalAlterConfigsResponse
    from flowshare.protocol.messages.groups import ListedGroup as ListedGroup
    from flowshare.protocol.messages.groups import ListGroupsRequest as ListGroupsRequest
    from flowshare.protocol.messages.groups import ListGroupsResponse as ListGroupsResponse
    from flowshare.protocol.messages.offsets import AlterShareGroupOffsetsRequest as AlterShareGroupOffsetsRequest
    from flowshare.protocol.messages.offsets import AlterShareGroupOffsetsResponse as AlterShareGroupOffsetsResponse
    from flowshare.protocol.messages.offsets import DeleteShareGroupOffsetsRequest as DeleteShareGroupOffsetsRequest
    from flowshare.protocol.messages.offsets import DeleteShareGroupOffsetsResponse as DeleteShareGroupOffsetsResponse
    from flowshare.protocol.messages.offsets import DescribeShareGroupOffsetsRequest as DescribeShareGroupOffsetsRequest
    from flowshare.protocol.messages.offsets import (
        DescribeShareGroupOffsetsResponse as DescribeShareGroupOffsetsResponse,
    )
    from flowshare.protocol.messages.offsets import PartitionResult as PartitionResult
    from flowshare.protocol.messages.offsets import SharePartitionOffsets as SharePartitionOffsets
    from flowshare.protocol.messages.records import EARLIEST as EARLIEST
    from flowshare.protocol.messages.records import LATEST as LATEST
    from flowshare.protocol.messages.records import MAX_TIMESTAMP as MAX_TIMESTAMP
    from flowshare.protocol.messages.records import AbortedTransaction as AbortedTransaction
    from flowshare.protocol.messages.records import DeleteRecordsRequest as DeleteRecordsRequest
    from flowshare.protocol.messages.records import DeleteRecordsResponse as DeleteRecordsResponse
    from flowshare.protocol.messages.records import FetchedLog as FetchedLog
    from flowshare.protocol.messages.records import FetchPartition as FetchPartition
    from flowshare.protocol.messages.records import FetchRequest as FetchRequest
    from flowshare.protocol.messages.records import FetchResponse as FetchResponse
    from flowshare.protocol.messages.records import ListOffsetsRequest as ListOffsetsRequest
    from flowshare.protocol.messages.records import ListOffsetsResponse as ListOffsetsResponse
    from flowshare.protocol.messages.records import ManyOffsetsRequest as ManyOffsetsRequest
    from flowshare.protocol.messages.records import ManyOffsetsResponse as ManyOffsetsResponse
    from flowshare.protocol.messages.records import OffsetForLeaderEpochRequest as OffsetForLeaderEpochRequest
    from flowshare.protocol.messages.records import OffsetForLeaderEpochResponse as OffsetForLeaderEpochResponse
    from flowshare.protocol.messages.records import ProduceRequest as ProduceRequest
    from flowshare.protocol.messages.records import ProduceResponse as ProduceResponse
    from flowshare.protocol.messages.share import AckBatch as AckBatch
    from flowshare.protocol.messages.share import AcknowledgedPartition as AcknowledgedPartition
    from flowshare.protocol.messages.share import FetchedPartition as FetchedPartition
    from flowshare.protocol.messages.share import GroupDescription as GroupDescription
    from flowshare.protocol.messages.share import HeldRanges as HeldRanges
    from flowshare.protocol.messages.share import MemberDescription as MemberDescription
    from flowshare.protocol.messages.share import ShareAcknowledgeRequest as ShareAcknowledgeRequest
    from flowshare.protocol.messages.share import ShareAcknowledgeResponse as ShareAcknowledgeResponse
    from flowshare.protocol.messages.share import ShareFetchRequest as ShareFetchRequest
    from flowshare.protocol.messages.share import ShareFetchResponse as ShareFetchResponse
    from flowshare.protocol.messages.share import ShareGroupDescribeRequest as ShareGroupDescribeRequest
    from flowshare.protocol.messages.share import ShareGroupDescribeResponse as ShareGroupDescribeResponse
    from flowshare.protocol.messages.share import ShareGroupHeartbeatRequest as ShareGroupHeartbeatRequest
    from flowshare.protocol.messages.share import ShareGroupHeartbeatResponse as ShareGroupHeartbeatResponse
    from flowshare.protocol.messages.share import SharePartitionRequest as SharePartitionRequest
    from flowshare.protocol.messages.share import ShareResumeRequest as ShareResumeRequest
    from flowshare.protocol.messages.share import ShareResumeResponse as ShareResumeResponse
    from flowshare.protocol.messages.state import DeleteShareGroupStateRequest as DeleteShareGroupStateRequest
    from flowshare.protocol.messages.state import InitializeShareGroupStateRequest as InitializeShareGroupStateRequest
    from flowshare.protocol.messages.state import ReadShareGroupStateRequest as ReadShareGroupStateRequest
    from flowshare.protocol.messages.state import ReadShareGroupStateSummaryRequest as ReadShareGroupStateSummaryRequest
    from flowshare.protocol.messages.state import ShareGroupStateResponse as ShareGroupStateResponse
    from flowshare.protocol.messages.state import WriteShareGroupStateRequest as WriteShareGroupStateRequest
    from flowshare.protocol.messages.topics import CreatePartitionsRequest as CreatePartitionsRequest
    from flowshare.protocol.messages.topics import CreateTopicRequest as CreateTopicRequest
    from flowshare.protocol.messages.topics import DeleteTopicRequest as DeleteTopicRequest
    from flowshare.protocol.messages.topics import MetadataRequest as MetadataRequest
    from flowshare.protocol.messages.topics import MetadataResponse as MetadataResponse
    from flowshare.protocol.messages.topics import TopicMetadata as TopicMetadata
    from flowshare.protocol.messages.topics import TopicResult as TopicResult
    from flowshare.protocol.messages.transactions import ActiveProducer as ActiveProducer
    from flowshare.protocol.messages.transactions import AddOffsetsToTxnRequest as AddOffsetsToTxnRequest
    from flowshare.protocol.messages.transactions import AddPartitionsToTxnRequest as AddPartitionsToTxnRequest
    from flowshare.protocol.messages.transactions import DescribeProducersRequest as DescribeProducersRequest
    from flowshare.protocol.messages.transactions import DescribeProducersResponse as DescribeProducersResponse
    from flowshare.protocol.messages.transactions import DescribeTransactionRequest as DescribeTransactionRequest
    from flowshare.protocol.messages.transactions import DescribeTransactionResponse as DescribeTransactionResponse
    from flowshare.protocol.messages.transactions import EndTxnRequest as EndTxnRequest
    from flowshare.protocol.messages.transactions import InitProducerIdRequest as InitProducerIdRequest
    from flowshare.protocol.messages.transactions import InitProducerIdResponse as InitProducerIdResponse
    from flowshare.protocol.messages.transactions import ListedTransaction as ListedTransaction
    from flowshare.protocol.messages.transactions import ListTransactionsRequest as ListTransactionsRequest
    from flowshare.protocol.messages.transactions import ListTransactionsResponse as ListTransactionsResponse
    from flowshare.protocol.messages.transactions import ProducerIdentity as ProducerIdentity
    from flowshare.protocol.messages.transactions import TransactionResponse as TransactionResponse

FAMILIES: Final = {
    "classic": (
        "DescribeGroupRequest",
        "DescribeGroupResponse",
        "FetchedOffset",
        "HeartbeatRequest",
        "HeartbeatResponse",
        "JoinGroupRequest",
        "JoinGroupResponse",
        "LeaveGroupRequest",
        "LeaveGroupResponse",
        "LeavingMember",
        "LeftMember",
        "OffsetCommitRequest",
        "OffsetCommitResponse",
        "OffsetDeleteRequest",
        "OffsetDeleteResponse",
        "OffsetFetchRequest",
        "OffsetFetchResponse",
        "OffsetResult",
        "OffsetToCommit",
        "SyncGroupRequest",
        "SyncGroupResponse",
        "TxnOffsetCommitRequest",
    ),
    "groups": (
        "ConfigEntry",
        "ConfiguredGroupsRequest",
        "ConfiguredGroupsResponse",
        "DeleteGroupsRequest",
        "DeleteGroupsResponse",
        "DescribeConfigsRequest",
        "DescribeConfigsResponse",
        "FindCoordinatorRequest",
        "FindCoordinatorResponse",
        "GroupResult",
        "IncrementalAlterConfigsRequest",
        "IncrementalAlterConfigsResponse",
        "ListedGroup",
        "ListGroupsRequest",
        "ListGroupsResponse",
    ),
    "offsets": (
        "AlterShareGroupOffsetsRequest",
        "AlterShareGroupOffsetsResponse",
        "DeleteShareGroupOffsetsRequest",
        "DeleteShareGroupOffsetsResponse",
        "DescribeShareGroupOffsetsRequest",
        "DescribeShareGroupOffsetsResponse",
        "PartitionResult",
        "SharePartitionOffsets",
    ),
    "records": (
        "EARLIEST",
        "LATEST",
        "MAX_TIMESTAMP",
        "AbortedTransaction",
        "DeleteRecordsRequest",
        "DeleteRecordsResponse",
        "FetchedLog",
        "FetchPartition",
        "FetchRequest",
        "FetchResponse",
        "ListOffsetsRequest",
        "ListOffsetsResponse",
        "ManyOffsetsRequest",
        "ManyOffsetsResponse",
        "OffsetForLeaderEpochRequest",
        "OffsetForLeaderEpochResponse",
        "ProduceRequest",
        "ProduceResponse",
    ),
    "share": (
        "AckBatch",
        "AcknowledgedPartition",
        "FetchedPartition",
        "GroupDescription",
        "HeldRanges",
        "MemberDescription",
        "ShareAcknowledgeRequest",
        "ShareAcknowledgeResponse",
        "ShareFetchRequest",
        "ShareFetchResponse",
        "ShareGroupDescribeRequest",
        "ShareGroupDescribeResponse",
        "ShareGroupHeartbeatRequest",
        "ShareGroupHeartbeatResponse",
        "SharePartitionRequest",
        "ShareResumeRequest",
        "ShareResumeResponse",
    ),
    "state": (
        "DeleteShareGroupStateRequest",
        "InitializeShareGroupStateRequest",
        "ReadShareGroupStateRequest",
        "ReadShareGroupStateSummaryRequest",
        "ShareGroupStateResponse",
        "WriteShareGroupStateRequest",
    ),
    "topics": (
        "CreatePartitionsRequest",
        "CreateTopicRequest",
        "DeleteTopicRequest",
        "MetadataRequest",
        "MetadataResponse",
        "TopicMetadata",
        "TopicResult",
    ),
    "transactions": (
        "ActiveProducer",
        "AddOffsetsToTxnRequest",
        "AddPartitionsToTxnRequest",
        "DescribeProducersRequest",
        "DescribeProducersResponse",
        "DescribeTransactionRequest",
        "DescribeTransactionResponse",
        "EndTxnRequest",
        "InitProducerIdRequest",
        "InitProducerIdResponse",
        "ListedTransaction",
        "ListTransactionsRequest",
        "ListTransactionsResponse",
        "ProducerIdentity",
        "TransactionResponse",
    ),
}
"""Module of a family -> its names."""
_FAMILY_OF: Final = {name: family for family, names in FAMILIES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a message at its first use, and its family with it."""
    family = _FAMILY_OF.get(name)
    if family is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{family}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_FAMILY_OF})
