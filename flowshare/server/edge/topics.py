"""CreateTopics, DeleteTopics, CreatePartitions.

Rights: CREATE on the cluster or the topic; DELETE, ALTER on the topic. Everything has one replica, on the one node.
Topics of a request are made concurrently; those not ready in the time that the client gives are answered with
REQUEST_TIMED_OUT, and made all the same.

Changes beyond a party's quota (`server.records.mutations`) are refused in all versions alike. Kafka accepts them in
versions before KIP-599 and reads no more from the connection for a while, which another connection gets around.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.log.topics import PARTITIONS_MAX as TOPIC_PARTITIONS_MAX
from flowshare.log.topics import TOPIC_CONFIGS
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CreatePartitionsRequest, CreateTopicRequest, DeleteTopicRequest, TopicResult
from flowshare.protocol.messages.topics import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.protocol.translation import duration, milliseconds
from flowshare.server.edge.base import Endpoint, Peer, SocketCall, duplicates, may_cluster, may_topic
from flowshare.server.edge.configs import ConfigSource
from flowshare.server.edge.entities import Form, form
from flowshare.server.runtime.failures import Refused, refusal

if TYPE_CHECKING:
    import datetime
    import uuid

    from flowshare.share.config import ServerConfig

T = TypeVar("T")
Q = TypeVar("Q", CreateTopicRequest, DeleteTopicRequest, CreatePartitionsRequest)

CHANGE_COST: Final = 20
"""Cost of a topic's change in its connection's turn: its first step takes as long as this many small things."""
REPLICAS: Final = 1
UNSET: Final = -1
WITH_IDS: Final = 6
"""Version of DeleteTopics from which on topics can be named by id (KIP-516)."""
Key = tuple[str | None, "uuid.UUID | None"]
"""Name or id of a topic, as in a request."""


class _Allowance:
    """Partitions that one request may still make."""

    def __init__(self, config: ServerConfig) -> None:
        self._max = self._left = config.request_partitions_max

    def take(self, count: int) -> None:
        """Use `count` of them. Raises: Refused."""
        if self._left < count <= TOPIC_PARTITIONS_MAX:  # more than a topic may have is refused as that
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"one request makes at most {self._max} partitions (max.request.new.partitions); ask for the rest in "
                "another one",
            )
        if count <= self._left:
            self._left -= max(count, 0)


async def create(call: SocketCall) -> Any:
    """Make topics, or only check that they could be made."""
    make, peer, asked = form("create_topics", call.version), call.peer, call.request
    allowance = _Allowance(peer.server.config)

    def ask(topic: Any) -> CreateTopicRequest:
        request = _to_create(peer, topic, validate_only=asked.validate_only)
        allowance.take(request.partitions)
        return request

    requests, results = await _carry_out(call, [((topic.name, None), topic) for topic in asked.topics], ask)
    return make(
        "CreateTopicsResponse",
        throttle_time=_throttle_time(results.values()),
        topics=await peer.turns.each(lambda at: _created(make, peer, results[at], requests.get(at)), results),
    )


async def delete(call: SocketCall) -> Any:
    """Remove topics by name or by id."""
    make, peer, asked = form("delete_topics", call.version), call.peer, call.request
    if call.version >= WITH_IDS:
        named: list[Key] = [(topic.name, topic.topic_id) for topic in asked.topics]
    else:
        named = [(name, None) for name in asked.topic_names]
    _, results = await _carry_out(
        call, [(at, at) for at in named], lambda at: DeleteTopicRequest(name=_to_delete(peer, *at))
    )
    return make(
        "DeleteTopicsResponse",
        throttle_time=_throttle_time(results.values()),
        responses=await peer.turns.each(
            lambda one: make(
                "DeletableTopicResult",
                name=one.topic or (None if call.version >= WITH_IDS else ""),
                topic_id=one.topic_id,
                error_code=one.error,
                error_message=one.message,
            ),
            results.values(),
        ),
    )


async def add_partitions(call: SocketCall) -> Any:
    """Raise topics' partition counts."""
    make, peer, asked = form("create_partitions", call.version), call.peer, call.request
    allowance = _Allowance(peer.server.config)

    def ask(topic: Any) -> CreatePartitionsRequest:
        known = peer.server.topics.by_name(topic.name)
        there = 0 if known is None else known.partitions
        _check_growth(peer, topic, there)
        allowance.take(topic.count - there)
        return CreatePartitionsRequest(name=topic.name, total=topic.count, validate_only=asked.validate_only)

    _, results = await _carry_out(call, [((topic.name, None), topic) for topic in asked.topics], ask)
    return make(
        "CreatePartitionsResponse",
        throttle_time=_throttle_time(results.values()),
        results=await peer.turns.each(
            lambda one: make(
                "CreatePartitionsTopicResult", name=one.topic, error_code=one.error, error_message=one.message
            ),
            results.values(),
        ),
    )


async def _carry_out(
    call: SocketCall, named: Sequence[tuple[Key, T]], ask: Callable[[T], Q]
) -> tuple[dict[Key, Q], dict[Key, TopicResult]]:
    """Make `ask`'s requests of the named topics, and carry them out; return requests and results. `ask` raises Refused.

    REQUEST_TIMED_OUT is the result of a change not done in the client's time: it goes on.
    """
    turns, connection = call.peer.turns, call.peer.connection
    twice = duplicates(key for key, _ in named)
    requests: dict[Key, Q] = {}
    results: dict[Key, TopicResult] = {}
    for key, one in dict(named).items():
        await turns.take()
        try:
            if key in twice:
                raise Refused(ErrorCode.INVALID_REQUEST, "the topic stands in the request twice")
            requests[key] = ask(one)
        except Refused as error:
            results[key] = refusal(TopicResult, error, topic=key[0] or "", topic_id=key[1])
    tasks: dict[Key, asyncio.Future[TopicResult]] = {}
    for key, request in requests.items():
        await turns.take(CHANGE_COST)
        tasks[key] = asyncio.ensure_future(connection.send(request))
    everything = asyncio.gather(*tasks.values(), return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        # Shielded: a change goes on when the client stops waiting for it.
        await call.peer.server.clock.wait_for(
            asyncio.shield(everything), max(milliseconds(call.request.timeout), 0) / 1000
        )
    late = "it is not done yet and goes on; see later whether it was"
    for key, task in tasks.items():
        late_result = TopicResult(topic=requests[key].name, error=ErrorCode.REQUEST_TIMED_OUT, message=late)
        results[key] = task.result() if task.done() else late_result
    return requests, {key: results[key] for key, _ in named}


def _to_create(peer: Peer, topic: Any, *, validate_only: bool) -> CreateTopicRequest:
    """Convert. Raises: Refused."""
    if not may_cluster(peer, Operation.CREATE):
        peer.need(Operation.CREATE, ResourceType.TOPIC, topic.name)
    partitions = topic.num_partitions
    if topic.assignments:
        partitions = _assigned(peer, topic)
    elif topic.replication_factor not in (REPLICAS, UNSET):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor}: there is one broker, so that only 1 is possible",
        )
    elif partitions == UNSET:
        partitions = peer.server.config.partitions_default
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None or config.name in configs:
            raise Refused(ErrorCode.INVALID_CONFIG, f"topic setting {config.name} needs one value")
        configs[config.name] = config.value
    return CreateTopicRequest(name=topic.name, partitions=partitions, configs=configs, validate_only=validate_only)


def _to_delete(peer: Peer, name: str | None, topic_id: uuid.UUID | None) -> str:
    """Return the name of a topic that may be deleted. Raises: Refused."""
    if (name is None) == (topic_id is None):
        raise Refused(ErrorCode.INVALID_REQUEST, "name a topic by its name or by its id")
    if topic_id is not None:
        topic = peer.server.topics.by_id(topic_id)
        if topic is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
        if not may_topic(peer, Operation.DESCRIBE, topic.name):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"describing topic {topic_id} is not allowed")
        name = topic.name
    assert name is not None
    peer.need(Operation.DELETE, ResourceType.TOPIC, name)
    return name


def _check_growth(peer: Peer, topic: Any, there: int) -> None:
    """Check more partitions. there: partitions now, 0: not known. Raises: Refused."""
    peer.need(Operation.ALTER, ResourceType.TOPIC, topic.name)
    added = topic.count - there
    if topic.assignments is None or not there or added <= 0:
        return
    if len(topic.assignments) != added:
        text = f"{added} partitions are added and {len(topic.assignments)} are assigned"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    _check_brokers(peer, topic.assignments)


def _assigned(peer: Peer, topic: Any) -> int:
    """Return the number of partitions of a topic with assigned replicas. Raises: Refused."""
    if topic.num_partitions != UNSET or topic.replication_factor != UNSET:
        text = "with replicas assigned, partition count and replication factor must be -1"
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    numbers = sorted(assignment.partition_index for assignment in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 on without a hole")
    _check_brokers(peer, topic.assignments)
    return len(numbers)


def _throttle_time(results: Iterable[TopicResult]) -> datetime.timedelta:
    """Return the time after which a client is to ask again; versions that do not know the error are refused all the
    same."""
    return duration(max((one.throttle_ms for one in results), default=0))


def _check_brokers(peer: Peer, assignments: Iterable[Any]) -> None:
    """Check. Raises: Refused."""
    node_id = peer.node.node_id
    if any(assignment.broker_ids != (node_id,) for assignment in assignments):
        text = f"every partition has one replica, on broker {node_id}"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)


def _created(make: Form, peer: Peer, result: TopicResult, request: CreateTopicRequest | None) -> Any:
    fields: dict[str, Any] = {"configs": ()}
    if request is not None and result.error is ErrorCode.NONE:
        if may_topic(peer, Operation.DESCRIBE_CONFIGS, result.topic):
            fields = {
                "num_partitions": request.partitions,
                "replication_factor": REPLICAS,
                "configs": tuple(
                    make(
                        "CreatableTopicConfigs",
                        name=name,
                        value=request.configs.get(name, setting.default),
                        read_only=False,
                        config_source=int(ConfigSource.TOPIC if name in request.configs else ConfigSource.DEFAULT),
                        is_sensitive=False,
                    )
                    for name, setting in sorted(TOPIC_CONFIGS.items())
                )
                if make.has("CreatableTopicConfigs")
                else (),
            }
        else:
            fields = {"configs": None, "topic_config_error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)}
    return make(
        "CreatableTopicResult",
        name=result.topic,
        topic_id=result.topic_id,
        error_code=result.error,
        error_message=result.message,
        **fields,
    )


ENDPOINTS: Final = (
    Endpoint(CREATE_TOPICS, create),
    Endpoint(DELETE_TOPICS, delete),
    Endpoint(CREATE_PARTITIONS, add_partitions),
)
