"""Rights that Kafka's brokers have to give a fleet's workers, as ACLs, and which of them the brokers refuse.

For itself a fleet has its state topic, the slot group of the same name, and one transactional id per slot: the same
name with a dot and a number. Besides, its workers read the topics that the agents read, for all members, and write
sinks and dead letters. For exactly-once outcomes the leaders write the agents' outputs. They use transactional ids
whose names begin as the others, and count these transactions in groups of their own (`slots.prepared`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ServerError
from flowshare.fleet.state.topic import slot_group, state_topic
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import CreateTopicRequest, FindCoordinatorRequest, HeartbeatRequest, MetadataRequest
from flowshare.protocol.rights import Operation, ResourceType

if TYPE_CHECKING:
    from flowshare.client.net.routing import ClusterConnection

READ, WRITE, CREATE, DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
OPTIONS: Final = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}
REFUSED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
NO_MEMBER: Final = "flowshare-check"


@dataclass(frozen=True, slots=True)
class Permission:
    """Operations on one resource, or with `prefixed` on all whose names begin so. why: the purpose, in words."""

    resource: ResourceType
    name: str
    operations: tuple[Operation, ...]
    why: str
    prefixed: bool = False

    def __str__(self) -> str:
        names = ", ".join(map(_word, self.operations))
        kind = self.resource.name.lower().replace("_", " ")
        return f"{names} on {kind} {self.name}{'*' if self.prefixed else ''} ({self.why})"

    def command(self, bootstrap: str, principal: str) -> str:
        """Return the command of Kafka's own tool that grants the right. The tool's login: --command-config."""
        words = ["kafka-acls.sh", "--bootstrap-server", bootstrap, "--add", "--allow-principal", principal]
        for operation in self.operations:
            words += ["--operation", _word(operation)]
        words += [OPTIONS[self.resource], self.name]
        if self.prefixed:
            words += ["--resource-pattern-type", "prefixed"]
        return shlex.join(words)


def needed(
    fleet: str, *, reads: Iterable[str], writes: Iterable[str], makes: Iterable[str], settles: bool = False
) -> list[Permission]:
    """Return the rights that a fleet needs to read and write these topics and to make some of them.

    settles: agents ask for exactly-once outcomes; the topics that they write to are among `writes`.

    The right to alter the state topic's settings is used once, when a topic with three replicas or more was made.
    Raises: ClientError (a fleet cannot have this name).
    """
    topic, made = state_topic(fleet), set(makes)
    own = (READ, WRITE, CREATE, DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    rights = [
        Permission(ResourceType.TOPIC, topic, own, "the fleet's state"),
        Permission(ResourceType.GROUP, slot_group(fleet), (READ,), "its workers share the slots out"),
        Permission(ResourceType.TRANSACTIONAL_ID, f"{topic}.", (WRITE,), "each slot has one writer", prefixed=True),
    ]
    if settles:
        rights.append(
            Permission(ResourceType.GROUP, f"{topic}.ledger.", (READ,), "settles are counted there", prefixed=True)
        )
    read, written = set(reads), set(writes)
    for name in sorted(read | written):
        operations = tuple(
            operation
            for operation, wanted in ((READ, name in read), (WRITE, name in written), (CREATE, name in made))
            if wanted
        )
        words = [word for word, wanted in (("read by agents", name in read), ("written", name in written)) if wanted]
        rights.append(Permission(ResourceType.TOPIC, name, operations, " and ".join(words)))
    return rights


async def absent(kafka: ClusterConnection, names: Iterable[str]) -> list[str]:
    """Return the topics that are known to be missing. Raises ServerError, OSError."""
    answer = await kafka.send(MetadataRequest(topics=tuple(names)))
    return [topic.name for topic in answer.topics if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def missing(kafka: ClusterConnection, right: Permission) -> Sequence[Operation]:
    """Return the operations of a right that the brokers refuse the user of this connection. Operations that cannot be
    checked count as allowed.

    The check changes nothing. A topic's rights come with its metadata. The right to make a topic is checked by a
    creation that is only validated. A group is sent the heartbeat of a member that it does not have. For a
    transactional id the coordinator is looked up, for which any right on the id is enough. Raises: ServerError,
    OSError.
    """
    try:
        match right.resource:
            case ResourceType.TOPIC:
                return await _missing_on_topic(kafka, right)
            case ResourceType.GROUP:
                name = f"{right.name}0" if right.prefixed else right.name
                beat = HeartbeatRequest(group_id=name, generation=0, member_id=NO_MEMBER)
                error = (await kafka.send(beat)).error
            case _:
                request = FindCoordinatorRequest(key=f"{right.name}0", kind="transaction")
                error = (await kafka.send(request)).error
    except ServerError as refused:
        if refused.code not in REFUSED:
            raise
        error = refused.code
    return right.operations if error in REFUSED else ()


async def _missing_on_topic(kafka: ClusterConnection, right: Permission) -> Sequence[Operation]:
    (topic,) = (await kafka.send(MetadataRequest(topics=(right.name,), authorized=True))).topics
    if topic.error in REFUSED:
        return right.operations
    if topic.error is ErrorCode.NONE:
        if topic.authorized is None:
            return ()
        return [one for one in right.operations if one is not CREATE and not topic.authorized & 1 << one]
    if CREATE not in right.operations:
        return ()
    made = await kafka.send(CreateTopicRequest(name=right.name, validate_only=True))
    return (CREATE,) if made.error in REFUSED else ()


def _word(operation: Operation) -> str:
    """Return an operation as Kafka's tools write it."""
    return operation.name.title().replace("_", "")
