"""The cluster's layout: Metadata, DescribeCluster, DescribeTopicPartitions, ListPartitionReassignments,
DescribeLogDirs.

There is one node, which leads every partition. Rights: DESCRIBE on topics; unnamed ones are left out without it. A
topic asked for by a name that does not exist is made if the client wants it, the server is set to it
(auto.create.topics.enable) and the client may create it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.log.base import InvalidTopic, LogError, UnknownTopic
from flowshare.log.topics import RESERVED_PREFIX, check_name
from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import CreateTopicRequest, MetadataRequest, TopicMetadata
from flowshare.protocol.messages.base import NOT_ASKED
from flowshare.protocol.messages.topics import METADATA
from flowshare.protocol.rights import CLUSTER_NAME, Operation, ResourceType
from flowshare.server.edge.base import (
    LEADER_EPOCH,
    Endpoint,
    Peer,
    SocketCall,
    authorized_operations,
    may_cluster,
    may_topic,
)
from flowshare.server.edge.entities import Form, form
from flowshare.server.runtime import answers
from flowshare.server.runtime.failures import failure

if TYPE_CHECKING:
    from flowshare.server.runtime.failures import Refused

PARTITIONS_MAX: Final = 2_000
"""Most partitions in one answer of DescribeTopicPartitions (max.request.partition.size.limit)."""
WITH_IDS: Final = 12
"""Version of Metadata from which on topics can be asked for by id (KIP-516)."""
CREATION_ASKED: Final = 4
"""Version of Metadata from which on the client says if topics are to be made."""
LOG_DIR: Final = "flowshare"
BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster."""


async def metadata(call: SocketCall) -> Any:
    """Describe brokers and topics."""
    make, peer, asked = form("metadata", call.version), call.peer, call.request
    topics = asked.topics
    if topics is None or (call.version == 0 and not topics):
        found = await _all(peer)
    else:
        found = await _asked(call, topics)
    nodes, controller = await _nodes(peer)
    cluster_operations = NOT_ASKED
    if 8 <= call.version <= 10 and asked.include_cluster_authorized_operations:
        cluster_operations = _cluster_operations(peer)
    return make(
        "MetadataResponse",
        brokers=tuple(make("MetadataResponseBroker", **node) for node in nodes),
        cluster_id=peer.node.cluster_id,
        controller_id=controller,
        topics=await _topics(make, call, found),
        cluster_authorized_operations=cluster_operations,
        error_code=ErrorCode.NONE,
    )


async def _topics(make: Form, call: SocketCall, topics: Iterable[TopicMetadata]) -> tuple[Any, ...]:
    fitting, version = answers.space().fitting, call.version
    return tuple(
        [await fitting(partial(_told, make, call, topic), partial(_no_topic, make, topic, version)) for topic in topics]
    )


async def _told(make: Form, call: SocketCall, topic: TopicMetadata) -> Any:
    peer, operations = call.peer, NOT_ASKED
    if call.version >= 8 and call.request.include_topic_authorized_operations and topic.error is ErrorCode.NONE:
        operations = authorized_operations(peer, ResourceType.TOPIC, topic.name)
    partitions = await peer.turns.each(partial(_partition, make, peer, topic), range(topic.partitions))
    return _topic(make, topic, call.version, partitions, operations)


async def _asked(call: SocketCall, topics: Iterable[Any]) -> list[TopicMetadata]:
    by_name = call.version < WITH_IDS
    # By its id: librdkafka leaves the name out then, Java sends an empty one.
    ids = dict.fromkeys(one.topic_id for one in topics if not by_name and (one.name is None or _by_id(one)))
    names = dict.fromkeys(one.name for one in topics if one.name is not None and (by_name or not _by_id(one)))
    found = await _named(call, names)
    asked = tuple(topic_id for topic_id in ids if topic_id is not None)
    if asked:
        answer = await call.peer.connection.send(MetadataRequest(topic_ids=asked))
        found += [_visible(call.peer, topic) for topic in answer.topics]
    return found


def _by_id(topic: Any) -> bool:
    """Return True if the request names the topic by its id; versions before 10 have no ids."""
    return not topic.name and topic.topic_id is not None


async def _named(call: SocketCall, names: Iterable[str]) -> list[TopicMetadata]:
    peer = call.peer
    wanted = peer.server.config.auto_create_topics
    if call.version >= CREATION_ASKED:
        wanted = wanted and call.request.allow_auto_topic_creation
    answer = await peer.connection.send(MetadataRequest(topics=tuple(await _describable(peer, names))))
    known = {topic.name: topic for topic in answer.topics}
    found: list[TopicMetadata] = []
    for name in names:
        await peer.turns.take()
        topic = known.get(name)
        if topic is None:
            topic = TopicMetadata(name=name, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        elif topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            topic = await _missing(peer, topic, create=wanted)
        found.append(topic)
    return found


async def _missing(peer: Peer, topic: TopicMetadata, *, create: bool) -> TopicMetadata:
    """Answer for a topic that does not exist; create it if the request wants that and the peer may do it."""
    try:
        check_name(topic.name, internal=True)
    except InvalidTopic:
        return TopicMetadata(name=topic.name, error=ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not create or topic.name.startswith(RESERVED_PREFIX):  # such a name is none to make, and no wrong one to ask for
        return topic
    if not (may_cluster(peer, Operation.CREATE) or may_topic(peer, Operation.CREATE, topic.name)):
        return TopicMetadata(name=topic.name, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    made = await peer.connection.send(
        CreateTopicRequest(name=topic.name, partitions=peer.server.config.partitions_default)
    )
    if made.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        # Clients ask again for a topic whose leader is not there yet; they do not expect a quota here.
        return TopicMetadata(name=topic.name, error=ErrorCode.LEADER_NOT_AVAILABLE)
    if made.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        return TopicMetadata(name=topic.name, error=made.error)
    answer = await peer.connection.send(MetadataRequest(topics=(topic.name,)))
    return answer.topics[0]


async def cluster(call: SocketCall) -> Any:
    """Describe brokers."""
    make, peer, asked = form("describe_cluster", call.version), call.peer, call.request
    kind = asked.endpoint_type if call.version >= 1 else BROKERS
    if kind != BROKERS:
        error = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if kind == CONTROLLERS:
            error = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        return make(
            "DescribeClusterResponse",
            error_code=error,
            error_message=f"this is a broker's address; endpoints of type {kind} are not known here",
            cluster_id="",
            brokers=(),
        )
    operations = _cluster_operations(peer) if asked.include_cluster_authorized_operations else NOT_ASKED
    nodes, controller = await _nodes(peer)
    return make(
        "DescribeClusterResponse",
        error_code=ErrorCode.NONE,
        error_message=None,
        endpoint_type=kind,
        cluster_id=peer.node.cluster_id,
        controller_id=controller,
        brokers=tuple(make("DescribeClusterBroker", **node) for node in nodes),
        cluster_authorized_operations=operations,
    )


async def partitions(call: SocketCall) -> Any:
    """Describe topics with their partitions, in pages (KIP-966)."""
    make, peer, asked = form("describe_topic_partitions", call.version), call.peer, call.request
    if asked.topics:
        names = dict.fromkeys(topic.name for topic in asked.topics)
        allowed = await _describable(peer, names)
        answer = await peer.connection.send(MetadataRequest(topics=tuple(allowed)))
        denied = [
            TopicMetadata(name=name, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for name in names
            if name not in allowed
        ]
        found = [*answer.topics, *denied]
    else:
        found = await _all(peer)
    limit = min(max(asked.response_partition_limit, 1), PARTITIONS_MAX)
    return await _page(make, peer, sorted(found, key=lambda topic: topic.name), asked.cursor, limit)


async def reassignments(call: SocketCall) -> Any:
    """List partitions that move to other brokers: none."""
    make = form("list_partition_reassignments", call.version)
    error = ErrorCode.NONE
    if not may_cluster(call.peer, Operation.DESCRIBE):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return make(
        "ListPartitionReassignmentsResponse",
        error_code=error,
        error_message=None,
        topics=(),
    )


async def log_dirs(call: SocketCall) -> Any:
    """Describe the one directory of logs, with the sizes of the named partitions, or of all.

    The directory has a name in place of its path, which is nothing to clients.
    """
    make, peer = form("describe_log_dirs", call.version), call.peer
    if not may_cluster(peer, Operation.DESCRIBE):
        return make("DescribeLogDirsResponse", results=(), error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted: dict[str, set[int] | None]
    if call.request.topics is None:
        wanted = {topic.name: None for topic in (await peer.connection.send(MetadataRequest())).topics}
    else:
        asked: dict[str, set[int]] = {}
        for one in call.request.topics:
            await peer.turns.take(1 + len(one.partitions))
            asked.setdefault(one.topic, set()).update(one.partitions)
        wanted = {**asked}
    error, topics = ErrorCode.NONE, list[Any]()
    try:
        topics = [await _log_dir_topic(make, peer, name, numbers) for name, numbers in wanted.items()]
    except LogError as problem:
        error, _ = failure(problem)
    result = make(
        "DescribeLogDirsResult",
        error_code=error,
        log_dir=LOG_DIR,
        topics=tuple(topic for topic in topics if topic is not None),
    )
    return make("DescribeLogDirsResponse", results=(result,), error_code=ErrorCode.NONE)


async def _log_dir_topic(make: Form, peer: Peer, name: str, numbers: set[int] | None) -> Any:
    """Describe one topic; None: it does not exist (any more). Raises: LogError."""
    topic = peer.server.topics.by_name(name)
    if topic is None:
        return None
    found: list[Any] = []
    for number in range(topic.partitions):
        if numbers is not None and number not in numbers:
            continue
        await peer.turns.take()
        try:
            size = await peer.server.size(name, number)
        except UnknownTopic:
            return None
        found.append(
            make(
                "DescribeLogDirsPartition",
                partition_index=number,
                partition_size=size,
                offset_lag=0,
                is_future_key=False,
            )
        )
    return make("DescribeLogDirsTopic", name=name, partitions=tuple(found))


async def _all(peer: Peer) -> list[TopicMetadata]:
    answer = await peer.connection.send(MetadataRequest())
    allowed = await _describable(peer, (topic.name for topic in answer.topics))
    return [topic for topic in answer.topics if topic.name in allowed]


async def _describable(peer: Peer, names: Iterable[str]) -> dict[str, None]:
    """Return the names that the peer may describe."""
    allowed = await peer.turns.each(lambda name: name if may_topic(peer, Operation.DESCRIBE, name) else None, names)
    return dict.fromkeys(name for name in allowed if name is not None)


def _visible(peer: Peer, topic: TopicMetadata) -> TopicMetadata:
    """Return a topic asked for by its id, without its name if the peer may not describe it."""
    if topic.error is not ErrorCode.NONE or may_topic(peer, Operation.DESCRIBE, topic.name):
        return topic
    return TopicMetadata(name="", topic_id=topic.topic_id, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)


async def _nodes(peer: Peer) -> tuple[list[dict[str, Any]], int]:
    """Return all nodes that clients are told of, and the controller among them."""
    told = await peer.connection.send(MetadataRequest(topics=()))
    if not told.nodes:
        node = peer.node
        return [_node(node.node_id, node.host, node.port)], node.node_id
    return [_node(node_id, *address) for node_id, address in told.nodes.items()], told.controller


def _node(node_id: int, host: str, port: int) -> dict[str, Any]:
    return {"node_id": node_id, "broker_id": node_id, "host": host, "port": port, "rack": None, "is_fenced": False}


def _cluster_operations(peer: Peer) -> int:
    if not may_cluster(peer, Operation.DESCRIBE):
        return 0
    return authorized_operations(peer, ResourceType.CLUSTER, CLUSTER_NAME)


def _topic(
    make: Form, topic: TopicMetadata, version: int, partitions: tuple[Any, ...] = (), operations: int = NOT_ASKED
) -> Any:
    return make(
        f"{make.whole}Topic",
        error_code=topic.error,
        name=topic.name or (None if version >= WITH_IDS else ""),
        topic_id=topic.topic_id,
        is_internal=topic.name.startswith(RESERVED_PREFIX),
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def _no_topic(make: Form, topic: TopicMetadata, version: int, error: Refused) -> Any:
    return _topic(make, TopicMetadata(name=topic.name, topic_id=topic.topic_id, error=error.code), version)


def _partition(make: Form, peer: Peer, topic: TopicMetadata, number: int) -> Any:
    """Return a partition with its leader: this node, unless the topic names another."""
    leader = topic.leaders[number] if topic.leaders else peer.node.node_id
    nodes = () if leader < 0 else (leader,)
    return make(
        f"{make.whole}Partition",
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader < 0 else ErrorCode.NONE,
        partition_index=number,
        leader_id=leader,
        leader_epoch=topic.leader_epochs[number] if topic.leader_epochs else LEADER_EPOCH,
        replica_nodes=nodes,
        isr_nodes=nodes,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )


async def _page(make: Form, peer: Peer, topics: Iterable[TopicMetadata], cursor: Any, limit: int) -> Any:
    """Return topics from the cursor on until `limit` partitions are listed, and the next page's cursor."""
    start = ("", 0) if cursor is None else (cursor.topic_name, max(cursor.partition_index, 0))
    listed: list[Any] = []
    left, following = limit, None
    for topic in topics:
        await peer.turns.take()
        if topic.name < start[0]:
            continue
        if left <= 0:
            following = make("Cursor", topic_name=topic.name, partition_index=0)
            break
        first = start[1] if topic.name == start[0] else 0
        numbers = range(first, min(topic.partitions, first + left))
        operations = NOT_ASKED
        if topic.error is ErrorCode.NONE:
            operations = authorized_operations(peer, ResourceType.TOPIC, topic.name)
        told = tuple(_partition(make, peer, topic, number) for number in numbers)
        listed.append(_topic(make, topic, 0, told, operations))
        left -= len(numbers)
        if numbers.stop < topic.partitions:
            following = make("Cursor", topic_name=topic.name, partition_index=numbers.stop)
            break
    return make("DescribeTopicPartitionsResponse", topics=tuple(listed), next_cursor=following)


ENDPOINTS: Final = (
    Endpoint(METADATA, metadata),
    Endpoint(Api(ApiKey.DESCRIBE_CLUSTER, server=(0, 2)), cluster),
    Endpoint(Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, server=(0, 0)), partitions),
    Endpoint(Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, server=(0, 0)), reassignments),
    Endpoint(Api(ApiKey.DESCRIBE_LOG_DIRS, server=(1, 4)), log_dirs),
)
