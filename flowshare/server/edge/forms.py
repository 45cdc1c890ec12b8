"""Answers in kio's form: one call with all the fields there are makes the entity of any version.

A version of a message lacks the fields that later ones added (and has those they dropped); what it lacks is left out.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import module
from flowshare.protocol.rights import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from flowshare.protocol.translation import NO_TIME, kafka_error
from flowshare.server.runtime import answers
from flowshare.server.runtime.failures import Refused

if TYPE_CHECKING:
    from flowshare.server.edge.base import Peer
    from flowshare.server.runtime.turns import Turns

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

ENTITY_BYTES: Final = 256
"""What a part of an answer takes in memory, about, beside its texts."""
LEADER_EPOCH: Final = 0
"""Epoch of every partition's leader: a log has one server at a time, and its store says which."""


class Form:
    """The parts of one version's response."""

    __slots__ = ("_module", "_parts", "whole")

    def __init__(self, name: str, version: int) -> None:
        self._module: ModuleType = module(name, version, "response")
        self._parts: dict[str, tuple[Any, frozenset[str]]] = {}
        self.whole = "".join(word.capitalize() for word in name.split("_")) + "Response"
        """The name of all parts together, with which that of a part may begin."""

    def __call__(self, part: str, **values: Any) -> Any:
        """The entity `part` with those of `values` that this version has; `error_code` may be ours. Nobody is throttled
        unless `values` say so.

        Raises: AnswerTooLarge.
        """
        entity, known = self._parts.get(part) or self._learn(part)
        if "throttle_time" in known:
            values.setdefault("throttle_time", NO_TIME)
        error = values.get("error_code")
        if error is not None:
            values["error_code"] = kafka_error(error)
        return counted(entity, {name: value for name, value in values.items() if name in known})

    def has(self, part: str) -> bool:
        """Whether this version has the entity."""
        return hasattr(self._module, part)

    def _learn(self, part: str) -> tuple[Any, frozenset[str]]:
        entity = getattr(self._module, part)
        self._parts[part] = found = (entity, frozenset(one.name for one in fields(entity)))
        return found


def counted(schema: Any, values: dict[str, Any]) -> Any:
    """An entity, what it takes in its answer's space. Raises: AnswerTooLarge."""
    if schema.__type__.name != "response":  # that is the whole, whose parts were counted
        answers.space().add(_size(values))
    return schema(**values)


def _size(values: dict[str, Any]) -> int:
    """About what an entity takes, and its bytes on the wire; records count where they are read."""
    size = ENTITY_BYTES
    for name, value in values.items():
        kind = value.__class__
        if kind is str or (kind is bytes and name != "records"):
            size += len(value)
        elif kind is tuple and value:
            size += answers.text_bytes(value) if value[0].__class__ is str else 16 * len(value)
    return size


@functools.cache
def form(name: str, version: int) -> Form:
    """The form of kio's response `name` in a version."""
    return Form(name, version)


async def topics_of(turns: Turns, pairs: Iterable[tuple[K, V]], make: Callable[[K, tuple[V, ...]], R]) -> tuple[R, ...]:
    """What `make` makes of each topic and its values, topics in the order in which they first come.

    pairs: of topic and value; an iterator makes them in turns, too.
    """
    found: dict[K, list[V]] = {}
    async for some in turns.few(pairs):
        for topic, value in some:
            found.setdefault(topic, []).append(value)
    return await turns.each(lambda one: make(one[0], tuple(one[1])), tuple(found.items()))


async def once(
    turns: Turns,
    topics: Iterable[Any],
    topic: str,
    partition: str,
    *,
    parts: str = "partitions",
    twice: set[tuple[Any, int]] | None = None,
) -> dict[Any, dict[int, Any]]:
    """What a request says of each partition: topic -> number -> part, in the order in which they first come.

    The last part counts where a partition stands there twice, as in Kafka. topic, parts, partition: what the fields are
    called that have a topic's name or id, its parts, a part's number. twice: takes what stands there more than once.
    While this gives way no later request of the connection is taken up.
    """
    found: dict[Any, dict[int, Any]] = {}
    for one in topics:
        at = getattr(one, topic)
        named = found.setdefault(at, {})
        async for some in turns.few(getattr(one, parts)):
            for part in some:
                number = getattr(part, partition)
                if twice is not None and number in named:
                    twice.add((at, number))
                named[number] = part
    return found


def duplicates(values: Iterable[V]) -> set[V]:
    """What stands there more than once."""
    return {value for value, count in Counter(values).items() if count > 1}


def denied(things: Iterable[V], may: Iterable[bool]) -> list[V]:
    """What `compress` leaves out."""
    return [thing for thing, one in zip(things, may, strict=True) if not one]


def may_topic(peer: Peer, operation: Operation, topic: str) -> bool:
    """Whether the peer may do `operation` on a topic."""
    return peer.may(operation, ResourceType.TOPIC, topic)


def may_group(peer: Peer, operation: Operation, group_id: str) -> bool:
    """Whether the peer may do `operation` on a group."""
    return peer.may(operation, ResourceType.GROUP, group_id)


def may_cluster(peer: Peer, operation: Operation) -> bool:
    """Whether the peer may do `operation` on the cluster."""
    return peer.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)


def authorized_operations(peer: Peer, resource: ResourceType, name: str) -> int:
    """What the peer may do with a thing, as bits (KIP-430)."""
    return sum(1 << operation for operation in OPERATIONS[resource] if peer.may(operation, resource, name))


def check_epoch(epoch: int) -> None:
    """Whether the leader epoch that a client knows is this one; −1: it knows none. Raises: Refused."""
    if epoch > LEADER_EPOCH:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"leader epoch {epoch} has not come; it is {LEADER_EPOCH}")
