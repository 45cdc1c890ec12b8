"""The config APIs: DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources; for topics, groups and
the server.

Rights: DESCRIBE_CONFIGS and ALTER_CONFIGS on the topic or group, for the server's own settings on the cluster. A peer
that sets a group's dead-letter topic needs WRITE on that topic, too, and READ on the topics of the group's members: the
server copies records there. The peer stays answerable for later copies, see `server.share.dead_letters`.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from flowshare.protocol.declaration import Api
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    ConfigEntry,
    ConfiguredGroupsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
    ShareGroupDescribeRequest,
)
from flowshare.protocol.messages.groups import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from flowshare.protocol.rights import Operation, ResourceType
from flowshare.server.edge.base import Endpoint, Peer, SocketCall, duplicates, may_cluster, may_topic
from flowshare.server.edge.entities import Form, form
from flowshare.server.runtime import answers
from flowshare.server.runtime.failures import Refused
from flowshare.share.config import DEAD_LETTER_CONFIGS, DEAD_LETTER_TOPIC

TELEMETRY_ONLY: Final = 0
"""The version of ListConfigResources that knows only subscriptions of client metrics, which this server has none of."""


class ConfigType(enum.IntEnum):
    """Kinds of resources that have settings (Kafka's ConfigResource types)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Origin of a value (Kafka's ConfigSource)."""

    TOPIC = 1
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigOperation(enum.IntEnum):
    """Operations on a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


KINDS: Final = {ConfigType.TOPIC: "topic", ConfigType.BROKER: "broker", ConfigType.GROUP: "group"}
"""Names of the kinds in plain requests."""
SET_BY: Final = {
    ConfigType.TOPIC: ConfigSource.TOPIC,
    ConfigType.BROKER: ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ConfigType.GROUP: ConfigSource.GROUP,
}
SETTINGS: Final = 20
"""Settings of a resource, about."""
Change = Callable[[Peer, Any, bool], Awaitable[tuple[ErrorCode, str | None]]]
"""A function that changes one resource's settings and returns the outcome. The flag: only check the change."""
BOOLEAN, STRING, LONG = 1, 2, 5
"""Types of values (KIP-569)."""


async def describe(call: SocketCall) -> Any:
    """Describe settings as they act; a resource named twice is answered once."""
    make = form("describe_configs", call.version)
    resources = _wanted(call.request.resources)
    with_docs = call.version >= 3 and call.request.include_documentation
    return make(
        "DescribeConfigsResponse",
        results=tuple(
            [
                await _describe(make, call.peer, *at, wanted, call.request.include_synonyms, with_docs)
                for at, wanted in resources.items()
            ]
        ),
    )


async def _describe(
    make: Form,
    peer: Peer,
    resource_type: int,
    name: str,
    wanted: Container[str] | None,
    with_synonyms: bool,
    with_docs: bool,
) -> Any:
    await peer.turns.take(SETTINGS)
    entries: Iterable[ConfigEntry] = ()
    error, message = ErrorCode.NONE, None
    try:
        kind = _checked(peer, resource_type, name, Operation.DESCRIBE_CONFIGS)
        answer = await peer.connection.send(DescribeConfigsRequest(resource_type=KINDS[kind], resource=name))
        entries, error, message = answer.entries, answer.error, answer.message
    except Refused as refusal:
        error, message = refusal.code, str(refusal)
    told = partial(make, "DescribeConfigsResult", resource_type=resource_type, resource_name=name)

    async def whole() -> Any:
        asked = (entry for entry in entries if wanted is None or entry.name in wanted)
        configs = tuple(_entry(make, entry, resource_type, with_synonyms, with_docs) for entry in asked)
        return told(error_code=error, error_message=message, configs=configs)

    return await answers.space().fitting(
        whole, lambda refusal: told(error_code=refusal.code, error_message=str(refusal), configs=())
    )


async def alter(call: SocketCall) -> Any:
    """Set and unset settings; all of a resource's or none."""
    return await _alter_all(call, "incremental_alter_configs", "IncrementalAlterConfigsResponse", _alter)


async def replace(call: SocketCall) -> Any:
    """Set settings, and unset all others of the resource: the request of older clients (AlterConfigs)."""
    return await _alter_all(call, "alter_configs", "AlterConfigsResponse", _replace)


async def _alter_all(call: SocketCall, api: str, answer: str, change: Change) -> Any:
    make, asked = form(api, call.version), call.request
    twice = duplicates([(resource.resource_type, resource.resource_name) for resource in asked.resources])
    done: dict[tuple[int, str], tuple[ErrorCode, str | None]] = {}
    for resource in asked.resources:
        await call.peer.turns.take(SETTINGS)
        at = (resource.resource_type, resource.resource_name)
        if at in twice:
            done[at] = (ErrorCode.INVALID_REQUEST, "a resource may stand in a request only once")
        else:
            done[at] = await change(call.peer, resource, asked.validate_only)
    return make(
        answer,
        responses=tuple(
            make(
                "AlterConfigsResourceResponse",
                error_code=error,
                error_message=message,
                resource_type=kind,
                resource_name=name,
            )
            for (kind, name), (error, message) in done.items()
        ),
    )


async def _alter(peer: Peer, resource: Any, validate_only: bool) -> tuple[ErrorCode, str | None]:
    return await _change(peer, resource, validate_only, lambda _: _incremental(resource))


async def _replace(peer: Peer, resource: Any, validate_only: bool) -> tuple[ErrorCode, str | None]:
    return await _change(peer, resource, validate_only, lambda kind: _replaced(peer, kind, resource))


async def _incremental(resource: Any) -> dict[str, str | None]:
    return _changes(resource.configs)


async def _replaced(peer: Peer, kind: ConfigType, resource: Any) -> dict[str, str | None]:
    """Return the settings that the resource is to have; None for other settings that it has now. Raises: Refused."""
    wanted = _settings(resource.configs)
    has = await _present(peer, kind, resource.resource_name)
    others = [one.name for one in has if not (one.is_default or one.read_only or one.name in wanted)]
    return {**dict.fromkeys(others), **wanted}


async def _present(peer: Peer, kind: ConfigType, name: str) -> tuple[ConfigEntry, ...]:
    """Return the settings of a resource as they act. Raises: Refused."""
    answer = await peer.connection.send(DescribeConfigsRequest(resource_type=KINDS[kind], resource=name))
    if answer.error is not ErrorCode.NONE:
        raise Refused(answer.error, answer.message or f"the settings of {KINDS[kind]} {name} cannot be read")
    return answer.entries


async def _change(
    peer: Peer, resource: Any, validate_only: bool, changes_of: Callable[[ConfigType], Awaitable[dict[str, str | None]]]
) -> tuple[ErrorCode, str | None]:
    try:
        kind = _checked(peer, resource.resource_type, resource.resource_name, Operation.ALTER_CONFIGS)
        changes = await changes_of(kind)
        if kind is ConfigType.GROUP:
            await _check_dead_letters(peer, resource.resource_name, changes)
    except Refused as refusal:
        return refusal.code, str(refusal)
    answer = await peer.connection.send(
        IncrementalAlterConfigsRequest(
            resource_type=KINDS[kind],
            resource=resource.resource_name,
            configs=changes,
            validate_only=validate_only,
            by=None if peer.principal is None else (peer.principal, peer.host),
        )
    )
    return answer.error, answer.message


async def resources(call: SocketCall) -> Any:
    """List the resources that have settings which can be described (KIP-1142)."""
    make, peer = form("list_config_resources", call.version), call.peer
    error, found = ErrorCode.NONE, list[tuple[ConfigType, str]]()
    wanted = {ConfigType.CLIENT_METRICS}
    if call.version > TELEMETRY_ONLY:
        wanted = set(call.request.resource_types) or set(ConfigType)
    if not may_cluster(peer, Operation.DESCRIBE_CONFIGS):
        error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif not wanted <= set(ConfigType):
        error = ErrorCode.UNSUPPORTED_VERSION
    else:
        found = [(kind, name) for kind, name in await _resources(peer) if kind in wanted]
    return make(
        "ListConfigResourcesResponse",
        error_code=error,
        config_resources=await peer.turns.each(
            lambda one: make("ConfigResource", resource_name=one[1], resource_type=int(one[0])), found
        ),
    )


async def _resources(peer: Peer) -> list[tuple[ConfigType, str]]:
    topics = await peer.connection.send(MetadataRequest())
    groups = await peer.connection.send(ConfiguredGroupsRequest())
    return [
        *((ConfigType.TOPIC, topic.name) for topic in topics.topics),
        *((ConfigType.GROUP, group_id) for group_id in groups.group_ids),
        (ConfigType.BROKER, str(peer.node.node_id)),
    ]


def _wanted(resources: Iterable[Any]) -> dict[tuple[int, str], set[str] | None]:
    """Return the wanted settings of each resource, None for all; of one that is named twice the union."""
    found: dict[tuple[int, str], set[str] | None] = {}
    for one in resources:
        at = (one.resource_type, one.resource_name)
        earlier = found.setdefault(at, set())
        if not one.configuration_keys:
            found[at] = None
        elif earlier is not None:
            earlier.update(one.configuration_keys)
    return found


def _checked(peer: Peer, kind: int, name: str, operation: Operation) -> ConfigType:
    """Return the kind of a resource that the peer may do `operation` on. Raises: Refused."""
    match kind:
        case ConfigType.TOPIC:
            peer.need(operation, ResourceType.TOPIC, name)
        case ConfigType.GROUP:
            peer.need(operation, ResourceType.GROUP, name)
        case ConfigType.BROKER:
            peer.need(operation, ResourceType.CLUSTER)
            if name not in ("", str(peer.node.node_id)):
                text = f"there is no broker {name!r}; this is {peer.node.node_id}"
                raise Refused(ErrorCode.INVALID_REQUEST, text)
        case _:
            text = f"resource type {kind} has no settings here; topics (2), the broker (4) and groups (32) have"
            raise Refused(ErrorCode.INVALID_REQUEST, text)
    return ConfigType(kind)


async def _check_dead_letters(peer: Peer, group_id: str, changes: Mapping[str, str | None]) -> None:
    """Check that the peer may choose where the group's dead letters go, and what they carry. Raises: Refused."""
    if DEAD_LETTER_CONFIGS.isdisjoint(changes):
        return
    topic = changes.get(DEAD_LETTER_TOPIC)
    if DEAD_LETTER_TOPIC not in changes:
        acting = await _present(peer, ConfigType.GROUP, group_id)
        topic = next((entry.value for entry in acting if entry.name == DEAD_LETTER_TOPIC), "")
    if not topic:
        return
    if not may_topic(peer, Operation.WRITE, topic):
        text = f"dead letters would go to topic {topic}, and writing to it is not allowed"
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)
    described = await peer.connection.send(ShareGroupDescribeRequest(group_id=group_id))
    subscribed = {name for one in described.members for name in one.subscribed_topics}
    closed = sorted(name for name in subscribed if not may_topic(peer, Operation.READ, name))
    if closed:
        named = [name for name in closed if may_topic(peer, Operation.DESCRIBE, name)]
        which = f"topics that the group reads ({', '.join(named)})" if named else "topics that the group reads"
        text = f"dead letters would tell topic {topic} of {which}, and reading those is not allowed"
        raise Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, text)


def _check_once(configs: Sequence[Any]) -> None:
    """Check. Raises: Refused."""
    twice = duplicates([config.name for config in configs])
    if twice:
        raise Refused(ErrorCode.INVALID_REQUEST, f"these settings stand there twice: {', '.join(sorted(twice))}")


def _settings(configs: Sequence[Any]) -> dict[str, str | None]:
    """Return setting -> value. Raises: Refused."""
    _check_once(configs)
    for config in configs:
        if config.value is None:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{config.name} has no value")
    return {config.name: config.value for config in configs}


def _changes(configs: Sequence[Any]) -> dict[str, str | None]:
    """Return setting -> new value, None to unset it. Raises: Refused."""
    _check_once(configs)
    changes: dict[str, str | None] = {}
    for config in configs:
        match config.config_operation:
            case ConfigOperation.DELETE:
                changes[config.name] = None
            case ConfigOperation.SET if config.value is not None:
                changes[config.name] = config.value
            case ConfigOperation.SET:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{config.name} has no value")
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                raise Refused(ErrorCode.INVALID_CONFIG, f"{config.name} is no list; set it as a whole")
            case other:
                raise Refused(ErrorCode.INVALID_REQUEST, f"operation {other} on {config.name} is unknown")
    return changes


def _entry(make: Form, entry: ConfigEntry, kind: int, with_synonyms: bool, with_docs: bool) -> Any:
    set_by = ConfigSource.STATIC_BROKER if entry.read_only else SET_BY[ConfigType(kind)]
    source = int(ConfigSource.DEFAULT if entry.is_default else set_by)
    synonyms: tuple[Any, ...] = ()
    if with_synonyms:
        synonyms = (make("DescribeConfigsSynonym", name=entry.name, value=entry.value, source=source),)
    return make(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=source,
        is_sensitive=False,
        synonyms=synonyms,
        config_type=_type_of(entry.value),
        documentation=entry.documentation if with_docs else None,
    )


def _type_of(value: str) -> int:
    if value in ("true", "false"):
        return BOOLEAN
    return LONG if value.lstrip("-").isdigit() else STRING


ENDPOINTS: Final = (
    Endpoint(DESCRIBE_CONFIGS, describe),
    Endpoint(INCREMENTAL_ALTER_CONFIGS, alter),
    Endpoint(Api(ApiKey.ALTER_CONFIGS, server=(0, 2)), replace),
    Endpoint(Api(ApiKey.LIST_CONFIG_RESOURCES, server=(0, 1)), resources),
)
