"""Kafka's rights: kinds of resources, operations, and which operations exist for which resource."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class ResourceType(enum.IntEnum):
    """Kinds of resources with rights (Kafka's ResourceType codes)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(enum.IntEnum):
    """Operations that may be allowed to a principal (Kafka's AclOperation codes)."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_SETTINGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS})
OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: _SETTINGS
    | {
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
    },
    ResourceType.GROUP: _SETTINGS | {Operation.READ, Operation.DESCRIBE, Operation.DELETE},
    ResourceType.CLUSTER: _SETTINGS
    | {
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
    },
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.DESCRIBE, Operation.WRITE}),
}
"""The operations that exist for each kind of resource, besides ALL (KIP-430)."""


CLUSTER_NAME: Final = "kafka-cluster"
"""The only name of a CLUSTER resource."""


class NeededRight(NamedTuple):
    """The right that a request needs. field: the request's field with the resource's name; None: a right on the
    cluster."""

    operation: Operation
    resource: ResourceType
    field: str | None = None
