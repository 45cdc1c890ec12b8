"""Flowshare's own API (`protocol.private`): calls that only flowshare's client makes."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    AlterShareGroupOffsetsRequest,
    CreatePartitionsRequest,
    DescribeShareGroupOffsetsRequest,
    HeldRanges,
    ParkedKeysRequest,
    ShareBreakerRequest,
    ShareResumeRequest,
    TopicResult,
)
from flowshare.protocol.messages.base import Response
from flowshare.protocol.private import (
    SHARE_BREAKER,
    SHARE_OFFSETS,
    SHARE_PARKED,
    SHARE_PLACE,
    SHARE_RESUME,
    TOPIC_GROW,
    VERSION,
    decode_call,
    encode_answer,
)
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import Endpoint, SocketCall, may_topic
from flowshare.server.edge.browse import BROWSE
from flowshare.server.edge.cooperative import COOPERATIVE
from flowshare.server.runtime.failures import Refused
from flowshare.share.breaker import COUNT_MAX, BreakerState

Body = dict[str, Any]
Handler = Callable[[SocketCall], Awaitable[Body]]
TOPICS_MAX: Final = 10_000
"""Most topics, and partitions of a topic, that one call may name."""


def endpoint(more: Mapping[str, Handler] | None = None) -> Endpoint:
    """Return the one API's endpoint. more: further calls by name."""
    calls = {
        SHARE_OFFSETS: share_offsets,
        SHARE_RESUME: share_resume,
        SHARE_PLACE: share_place,
        SHARE_PARKED: share_parked,
        SHARE_BREAKER: share_breaker,
        **BROWSE,
        **COOPERATIVE,
        **(more or {}),
    }
    api = Api(ApiKey.FLOWSHARE, server=(VERSION, VERSION))
    return Endpoint(api, partial(_answer, calls), decode=decode_call, encode=encode_answer)


async def _answer(calls: Mapping[str, Handler], call: SocketCall) -> Body:
    """Do the call and return its answer, or the reason for refusing it."""
    name = call.request.get("call")
    handler = calls.get(name) if isinstance(name, str) else None
    if handler is None:
        message = f"this server has no call {name!r} (it has: {', '.join(calls)}); upgrade it"
        return refusal(ErrorCode.UNSUPPORTED_VERSION, message)
    try:
        return await handler(call)
    except Refused as error:
        return refusal(error.code, str(error))


async def share_offsets(call: SocketCall) -> Body:
    """Return flowshare's figures of a group's share-partitions, beyond Kafka's. Needs DESCRIBE, as Kafka's does."""
    group_id, topics = call.request.get("group_id"), _topics(call.request.get("topics"))
    if not isinstance(group_id, str) or topics is INVALID:
        return refusal(ErrorCode.INVALID_REQUEST, "share_offsets needs a group_id, and topics or null")
    call.peer.need(Operation.DESCRIBE, ResourceType.GROUP, group_id)
    answer = await call.peer.connection.send(DescribeShareGroupOffsetsRequest(group_id=group_id, topics=topics))
    _check(answer)
    return {
        "partitions": [
            [
                part.topic,
                part.partition,
                part.in_flight,
                part.delayed,
                part.redeliveries,
                part.oldest_ms,
                part.blocked,
                [list(one) for one in part.stuck],
                *((part.parked,) if part.parked else ()),  # an older release knows no such field
            ]
            for part in answer.partitions
            if part.error is ErrorCode.NONE and may_topic(call.peer, Operation.DESCRIBE, part.topic)
        ]
    }


async def share_resume(call: SocketCall) -> Body:
    """Return the records that a member still holds. Needs READ on group and topics, as acknowledging does.

    Partitions of topics that the member may not read are left out.
    """
    group_id, member_id = call.request.get("group_id"), call.request.get("member_id")
    partitions = _held(call.request.get("partitions"))
    if not isinstance(group_id, str) or not isinstance(member_id, str) or partitions is None:
        return refusal(ErrorCode.INVALID_REQUEST, "share_resume needs a group_id, a member_id and partitions")
    call.peer.need(Operation.READ, ResourceType.GROUP, group_id)
    request = ShareResumeRequest(group_id=group_id, member_id=member_id, partitions=partitions)
    answer = await call.peer.connection.send(request)
    _check(answer)
    return {
        "partitions": [[part.topic_id.hex, part.partition, part.ranges] for part in answer.partitions],
        "elsewhere": [[tp.topic_id.hex, tp.partition] for tp in answer.elsewhere],
    }


async def share_place(call: SocketCall) -> Body:
    """Let an empty group begin at offsets with gaps behind them. Needs READ on group and topics, as altering does.

    All or nothing: a topic that may not be read refuses the call.
    """
    group_id, placed = call.request.get("group_id"), _placed(call.request.get("partitions"))
    if not isinstance(group_id, str) or placed is None:
        return refusal(ErrorCode.INVALID_REQUEST, "share_place needs a group_id and partitions")
    call.peer.need(Operation.READ, ResourceType.GROUP, group_id)
    for topic in {topic for topic, _ in placed}:
        call.peer.need(Operation.READ, ResourceType.TOPIC, topic)
    request = AlterShareGroupOffsetsRequest(
        group_id=group_id,
        offsets={at: offset for at, (offset, _) in placed.items()},
        finished={at: ranges for at, (_, ranges) in placed.items()},
    )
    answer = await call.peer.connection.send(request)
    _check(answer)
    return {"partitions": [[part.topic, part.partition, int(part.error), part.message] for part in answer.partitions]}


async def share_parked(call: SocketCall) -> Body:
    """Return parked keys of a group, or change one. Needs READ on group and topics: keys are a part of records.

    Keys of topics that may not be read are left out.
    """
    group_id, act = call.request.get("group_id"), call.request.get("act")
    topic, partition = call.request.get("topic", ""), call.request.get("partition", -1)
    try:
        key = bytes.fromhex(call.request.get("key", ""))
    except (TypeError, ValueError):
        key = None
    texts = isinstance(group_id, str) and isinstance(act, str) and isinstance(topic, str)
    if not texts or type(partition) is not int or key is None:
        return refusal(ErrorCode.INVALID_REQUEST, "share_parked needs a group_id, an act, and of which key")
    call.peer.need(Operation.READ, ResourceType.GROUP, cast("str", group_id))
    if topic:
        call.peer.need(Operation.READ, ResourceType.TOPIC, topic)
    answer = await call.peer.connection.send(
        ParkedKeysRequest(
            group_id=cast("str", group_id), act=cast("str", act), topic=topic, partition=partition, key=key
        )
    )
    _check(answer)
    return {
        "order": answer.order,
        "keys": [
            [one.topic, one.topic_id.hex, one.partition, one.key.hex(), *one.parked]
            for one in answer.keys
            if may_topic(call.peer, Operation.READ, one.topic)
        ],
    }


async def share_breaker(call: SocketCall) -> Body:
    """Report, read or close a group's breaker. Needs READ on the group for members, DESCRIBE to read, ALTER_CONFIGS to
    close."""
    asked = call.request
    group_id, act, member_id = asked.get("group_id"), asked.get("act"), asked.get("member_id", "")
    outcomes, known = _counts(asked.get("outcomes", [0, 0, 0, 0])), _known(asked.get("known", ["closed", 0, 0]))
    texts = isinstance(group_id, str) and isinstance(act, str) and isinstance(member_id, str)
    if not texts or act not in _OF_BREAKER or outcomes is None or known is None:
        return refusal(
            ErrorCode.INVALID_REQUEST,
            "share_breaker needs a group_id, an act, and in a report four counts and a state with two times",
        )
    call.peer.need(_OF_BREAKER[act], ResourceType.GROUP, cast("str", group_id))
    answer = await call.peer.connection.send(
        ShareBreakerRequest(
            group_id=cast("str", group_id),
            act=act,
            member_id=cast("str", member_id),
            outcomes=outcomes,
            known=known,
        )
    )
    _check(answer)
    return {"state": answer.state, "why": answer.why, "left_ms": answer.left_ms, "open_ms": answer.open_ms}


def _counts(value: Any) -> tuple[int, int, int, int] | None:
    """Return four counts; None for anything else."""
    try:
        succeeded, failed, tried_succeeded, tried_failed = value
    except (TypeError, ValueError):
        return None
    counts = (succeeded, failed, tried_succeeded, tried_failed)
    return counts if all(type(one) is int and 0 <= one <= COUNT_MAX for one in counts) else None


def _known(value: Any) -> tuple[str, int, int] | None:
    """Return a breaker's state and two times; None for anything else."""
    try:
        state, left_ms, open_ms = value
    except (TypeError, ValueError):
        return None
    times = all(type(one) is int and 0 <= one <= COUNT_MAX for one in (left_ms, open_ms))
    return (state, left_ms, open_ms) if times and isinstance(state, str) and state in _STATES else None


_STATES: Final = frozenset(BreakerState)
_OF_BREAKER: Final[Mapping[str, Operation]] = {
    "tell": Operation.DESCRIBE,
    "report": Operation.READ,
    "close": Operation.ALTER_CONFIGS,
}


async def topic_grow(call: SocketCall) -> Body:
    """Raise a topic's partition count, even if the topic is read in the order of keys. Needs ALTER, as
    CreatePartitions."""
    topic, total = call.request.get("topic"), call.request.get("total")
    if not isinstance(topic, str) or not isinstance(total, int) or isinstance(total, bool):
        return refusal(ErrorCode.INVALID_REQUEST, "topic_grow needs a topic and a total")
    call.peer.need(Operation.ALTER, ResourceType.TOPIC, topic)
    known = call.peer.server.topics.by_name(topic)
    most = call.peer.server.config.request_partitions_max
    if known is not None and total - known.partitions > most:
        return refusal(
            ErrorCode.POLICY_VIOLATION, f"one request makes {most} partitions at most (max.request.new.partitions)"
        )
    _check(await call.peer.connection.send(CreatePartitionsRequest(name=topic, total=total, breaks_order=True)))
    return {}


ON_TOPICS: Final[Mapping[str, Handler]] = {TOPIC_GROW: topic_grow}
"""Calls of a server with topics of its own."""


def _check(answer: Response | TopicResult) -> None:
    """Check. Raises: Refused."""
    if answer.error is not ErrorCode.NONE:
        raise Refused(answer.error, answer.message or "")


INVALID: Final[dict[str, tuple[int, ...]]] = {}
"""Stands for malformed topics; compared by identity."""


def refusal(code: ErrorCode, message: str | None) -> Body:
    """Return a refusing answer."""
    return {"error": int(code), "message": message}


def _topics(asked: object) -> dict[str, tuple[int, ...]] | None:
    """Return partitions by topic name; None: all; `INVALID`."""
    if asked is None:
        return None
    if not isinstance(asked, dict) or len(cast("Body", asked)) > TOPICS_MAX:
        return INVALID
    found: dict[str, tuple[int, ...]] = {}
    for name, partitions in cast("dict[str, object]", asked).items():
        if not isinstance(partitions, list):
            return INVALID
        listed = cast("list[object]", partitions)
        numbers = [number for number in listed if type(number) is int]
        if len(numbers) != len(listed) or len(numbers) > TOPICS_MAX:
            return INVALID
        found[name] = tuple(dict.fromkeys(numbers))
    return found


def _held(told: Any) -> tuple[HeldRanges, ...] | None:
    """Read the ranges that a member claims to hold; None if they are malformed. Ranges must be ascending and disjoint,
    and each partition named once."""
    if not isinstance(told, list):
        return None
    found: list[HeldRanges] = []
    for part in cast("Sequence[Any]", told):
        try:
            topic_id, partition, *two = part
            ranges, lapsed = (tuple((first, last) for first, last in one) for one in two)
            held = HeldRanges(uuid.UUID(topic_id), partition, ranges, lapsed)
        except (TypeError, ValueError, AttributeError):
            return None
        if type(partition) is not int or not (_in_order(ranges) and _in_order(lapsed)):
            return None
        found.append(held)
    if len({(held.topic_id, held.partition) for held in found}) < len(found):
        return None
    return tuple(found)


Placed = Mapping[tuple[str, int], tuple[int, tuple[tuple[int, int], ...]]]


def _placed(told: Any) -> Placed | None:
    """Return offset and finished ranges behind it by topic and partition; None if they are malformed."""
    if not isinstance(told, list):
        return None
    parts = cast("Sequence[Any]", told)
    if len(parts) > TOPICS_MAX:
        return None
    found: dict[tuple[str, int], tuple[int, tuple[tuple[int, int], ...]]] = {}
    for part in parts:
        try:
            topic, partition, offset, ranges = part
            finished = tuple((first, last) for first, last in ranges)
        except (TypeError, ValueError):
            return None
        if type(topic) is not str or type(partition) is not int or type(offset) is not int or not _in_order(finished):
            return None
        found[topic, partition] = offset, finished
    return found


def _in_order(ranges: Sequence[tuple[Any, Any]]) -> bool:
    """Return True if the ranges are of whole numbers, ascending and disjoint."""
    edges = [edge for one in ranges for edge in one]
    if any(type(edge) is not int for edge in edges):
        return False
    return all(first <= last for first, last in ranges) and edges == sorted(edges)
