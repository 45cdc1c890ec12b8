"""CreateTopics, DeleteTopics, CreatePartitions.

Rights: CREATE on the cluster or the topic; DELETE, ALTER on the topic. Everything has one replica, on the one node.
Topics of a request are made side by side; those not ready in the time that the client gives are answered with
REQUEST_TIMED_OUT, and made all the same.

What is beyond a party's quota (`server.mutations`) is refused in all versions alike. Kafka accepts it in those before
KIP-599 and reads no more from the connection for a while, which another connection gets around.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.log.topics import PARTITIONS_MAX as TOPIC_PARTITIONS_MAX
from flowshare.log.topics import TOPIC_CONFIGS
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import CreatePartitionsRequest, CreateTopicRequest, DeleteTopicRequest, TopicResult
from flowshare.server.edge.base import Api, Call, Operation, Peer
from flowshare.server.edge.configs import Source
from flowshare.server.edge.forms import Form, duplicates, duration, form, may_cluster, may_topic, milliseconds
from flowshare.server.failures import Refused

if TYPE_CHECKING:
    import datetime
    import uuid
    from collections.abc import Hashable

    from flowshare.clock import Clock
    from flowshare.protocol.messages import Request
    from flowshare.server.topic_index import TopicIndex
    from flowshare.share.config import ServerConfig

CHANGE_COST: Final = 20
"""What a topic's change counts in its connection's turn: its first step alone takes as long as so many small things."""
REPLICAS: Final = 1
UNSET: Final = -1
WITH_IDS: Final = 6
"""Version of DeleteTopics from which on topics can be named by id (KIP-516)."""


class TopicsEdge:
    """Answers what makes and removes topics."""

    def __init__(self, *, topics: TopicIndex, config: ServerConfig, clock: Clock) -> None:
        self._topics = topics
        self._config = config
        self._clock = clock

    def apis(self) -> Sequence[Api]:
        """The three APIs."""
        return (
            Api(key=ApiKey.CREATE_TOPICS, lowest=2, highest=7, answer=self.create),
            Api(key=ApiKey.DELETE_TOPICS, lowest=1, highest=6, answer=self.delete),
            Api(key=ApiKey.CREATE_PARTITIONS, lowest=0, highest=3, answer=self.add_partitions),
        )

    # --- create ---------------------------------------------------------------------------------------------------

    async def create(self, call: Call) -> Any:
        """Make topics, or only see whether they could be made."""
        make, peer, asked = form("create_topics", call.version), call.peer, call.request
        twice = duplicates(topic.name for topic in asked.topics)
        requests: dict[str, CreateTopicRequest] = {}
        results: dict[str, TopicResult] = {}
        left = self._config.request_partitions_max
        for topic in asked.topics:
            await call.peer.turns.take()
            try:
                if topic.name in twice:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"topic {topic.name} stands in the request twice")
                request = self._to_create(peer, topic, validate_only=asked.validate_only)
                left = self._left(left, request.partitions)
                requests[topic.name] = request
            except Refused as error:
                results[topic.name] = _refusal(topic.name, error)
        results |= await self._send(call, requests, dict(zip(requests, requests, strict=True)))
        names = dict.fromkeys(topic.name for topic in asked.topics)
        return make(
            "CreateTopicsResponse",
            throttle_time=_throttle_time(results.values()),
            topics=await peer.turns.each(lambda name: _created(make, peer, results[name], requests.get(name)), names),
        )

    def _left(self, left: int, count: int) -> int:
        """Partitions that the request may still make after so many more. Raises: Refused."""
        if left < count <= TOPIC_PARTITIONS_MAX:  # what is more than a topic may have is refused as that
            raise Refused(
                ErrorCode.POLICY_VIOLATION,
                f"one request makes at most {self._config.request_partitions_max} partitions "
                "(max.request.new.partitions); ask for the rest in another one",
            )
        return left - max(count, 0) if count <= left else left

    def _to_create(self, peer: Peer, topic: Any, *, validate_only: bool) -> CreateTopicRequest:
        """Raises: Refused."""
        if not (may_cluster(peer, Operation.CREATE) or may_topic(peer, Operation.CREATE, topic.name)):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"creating topic {topic.name} is not allowed")
        partitions = topic.num_partitions
        if topic.assignments:
            partitions = _assigned(peer, topic)
        elif topic.replication_factor not in (REPLICAS, UNSET):
            raise Refused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {topic.replication_factor}: there is one broker, so that only 1 is possible",
            )
        elif partitions == UNSET:
            partitions = self._config.partitions_default
        configs: dict[str, str] = {}
        for config in topic.configs:
            if config.value is None or config.name in configs:
                raise Refused(ErrorCode.INVALID_CONFIG, f"topic setting {config.name} needs one value")
            configs[config.name] = config.value
        return CreateTopicRequest(name=topic.name, partitions=partitions, configs=configs, validate_only=validate_only)

    # --- delete ---------------------------------------------------------------------------------------------------

    async def delete(self, call: Call) -> Any:
        """Remove topics by name or by id."""
        make, asked = form("delete_topics", call.version), call.request
        if call.version >= WITH_IDS:
            named = [(topic.name, topic.topic_id) for topic in asked.topics]
        else:
            named = [(name, None) for name in asked.topic_names]
        twice = duplicates(named)
        requests: dict[Hashable, DeleteTopicRequest] = {}
        results: dict[Hashable, TopicResult] = {}
        for at in dict.fromkeys(named):
            await call.peer.turns.take()
            try:
                if at in twice:
                    raise Refused(ErrorCode.INVALID_REQUEST, "the topic stands in the request twice")
                requests[at] = DeleteTopicRequest(name=self._to_delete(call.peer, *at))
            except Refused as error:
                results[at] = TopicResult(topic=at[0] or "", topic_id=at[1], error=error.code, message=str(error))
        results |= await self._send(call, requests, {at: request.name for at, request in requests.items()})
        return make(
            "DeleteTopicsResponse",
            throttle_time=_throttle_time(results.values()),
            responses=await call.peer.turns.each(
                lambda at: make(
                    "DeletableTopicResult",
                    name=results[at].topic or (None if call.version >= WITH_IDS else ""),
                    topic_id=results[at].topic_id,
                    error_code=results[at].error,
                    error_message=results[at].message,
                ),
                dict.fromkeys(named),
            ),
        )

    def _to_delete(self, peer: Peer, name: str | None, topic_id: uuid.UUID | None) -> str:
        """The name of a topic that may be deleted. Raises: Refused."""
        if (name is None) == (topic_id is None):
            raise Refused(ErrorCode.INVALID_REQUEST, "name a topic by its name or by its id")
        if topic_id is not None:
            topic = self._topics.by_id(topic_id)
            if topic is None:
                raise Refused(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {topic_id}")
            if not may_topic(peer, Operation.DESCRIBE, topic.name):
                raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"describing topic {topic_id} is not allowed")
            name = topic.name
        assert name is not None
        if not may_topic(peer, Operation.DELETE, name):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"deleting topic {name} is not allowed")
        return name

    # --- partitions -----------------------------------------------------------------------------------------------

    async def add_partitions(self, call: Call) -> Any:
        """Raise topics' partition counts."""
        make, asked = form("create_partitions", call.version), call.request
        twice = duplicates(topic.name for topic in asked.topics)
        requests: dict[str, CreatePartitionsRequest] = {}
        results: dict[str, TopicResult] = {}
        left = self._config.request_partitions_max
        for topic in asked.topics:
            await call.peer.turns.take()
            try:
                if topic.name in twice:
                    raise Refused(ErrorCode.INVALID_REQUEST, f"topic {topic.name} stands in the request twice")
                self._check_growth(call.peer, topic)
                known = self._topics.by_name(topic.name)
                left = self._left(left, topic.count - (0 if known is None else known.partitions))
            except Refused as error:
                results[topic.name] = _refusal(topic.name, error)
            else:
                requests[topic.name] = CreatePartitionsRequest(
                    name=topic.name, total=topic.count, validate_only=asked.validate_only
                )
        results |= await self._send(call, requests, dict(zip(requests, requests, strict=True)))
        return make(
            "CreatePartitionsResponse",
            throttle_time=_throttle_time(results.values()),
            results=await call.peer.turns.each(
                lambda name: make(
                    "CreatePartitionsTopicResult",
                    name=name,
                    error_code=results[name].error,
                    error_message=results[name].message,
                ),
                dict.fromkeys(topic.name for topic in asked.topics),
            ),
        )

    def _check_growth(self, peer: Peer, topic: Any) -> None:
        """Raises: Refused."""
        if not may_topic(peer, Operation.ALTER, topic.name):
            raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"altering topic {topic.name} is not allowed")
        known = self._topics.by_name(topic.name)
        if topic.assignments is None or known is None or topic.count <= known.partitions:
            return
        if len(topic.assignments) != topic.count - known.partitions:
            added = topic.count - known.partitions
            text = f"{added} partitions are added and {len(topic.assignments)} are assigned"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
        if any(assignment.broker_ids != (peer.node.node_id,) for assignment in topic.assignments):
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, _only_broker(peer))

    async def _send(
        self, call: Call, requests: Mapping[Any, Request[TopicResult]], names: Mapping[Any, str]
    ) -> dict[Any, TopicResult]:
        """Results by key, REQUEST_TIMED_OUT for what is not done in the client's time; it goes on."""
        if not requests:
            return {}
        connection = call.peer.connection
        timeout_s = max(milliseconds(call.request.timeout), 0) / 1000
        tasks: dict[Any, asyncio.Future[TopicResult]] = {}
        for key, request in requests.items():
            await call.peer.turns.take(CHANGE_COST)
            tasks[key] = asyncio.ensure_future(connection.send(request))
        everything = asyncio.gather(*tasks.values(), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            # Shielded: what the client does not wait for is done all the same.
            await self._clock.wait_for(asyncio.shield(everything), timeout_s)
        late = "it is not done yet and goes on; see later whether it was"
        return {
            key: task.result()
            if task.done()
            else TopicResult(topic=names[key], error=ErrorCode.REQUEST_TIMED_OUT, message=late)
            for key, task in tasks.items()
        }


def _assigned(peer: Peer, topic: Any) -> int:
    """Number of partitions of a topic whose replicas are given by hand. Raises: Refused."""
    if topic.num_partitions != UNSET or topic.replication_factor != UNSET:
        text = "with replicas assigned, partition count and replication factor must be -1"
        raise Refused(ErrorCode.INVALID_REQUEST, text)
    numbers = sorted(assignment.partition_index for assignment in topic.assignments)
    if numbers != list(range(len(numbers))):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 on without a hole")
    if any(assignment.broker_ids != (peer.node.node_id,) for assignment in topic.assignments):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, _only_broker(peer))
    return len(numbers)


def _throttle_time(results: Iterable[TopicResult]) -> datetime.timedelta:
    """When a client is to ask again; versions that do not know the error are refused all the same."""
    return duration(max((one.throttle_ms for one in results), default=0))


def _only_broker(peer: Peer) -> str:
    return f"every partition has one replica, on broker {peer.node.node_id}"


def _refusal(name: str, error: Refused) -> TopicResult:
    return TopicResult(topic=name, error=error.code, message=str(error))


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
                        config_source=int(Source.TOPIC if name in request.configs else Source.DEFAULT),
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
