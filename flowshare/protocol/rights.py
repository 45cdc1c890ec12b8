"""Kafka's words for what may be done to what: kinds of things, operations, and which go together."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple


class ResourceType(enum.IntEnum):
    """Kinds of things that rights are given on (Kafka's ResourceType codes)."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(enum.IntEnum):
    """What a principal may be allowed to do (Kafka's AclOperation codes)."""

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
"""What can be done to each kind of thing, beside ALL (KIP-430)."""


CLUSTER_NAME: Final = "kafka-cluster"
"""The one name that CLUSTER resources have."""


class NeededRight(NamedTuple):
    """The right that a request needs. field: the request's, with the thing's name; None: a right on the cluster."""

    operation: Operation
    resource: ResourceType
    field: str | None = None
