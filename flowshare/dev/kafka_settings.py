"""The settings of a throw-away Kafka: what one node, or a few on one machine, need beside Kafka's own defaults.

Without these a single node cannot make the internal topics of groups, transactions and share groups, which want three
brokers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flowshare.dev.jars import numbers

COMMON: Final[Mapping[str, str]] = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
}
SHARE: Final[Mapping[str, str]] = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # Kafka's own lower bound is 15 s: too long to see a lapsed lock in a test.
    "group.share.min.record.lock.duration.ms": "1000",
}


def share_groups(version: str) -> bool:
    """True if share groups are on by default in this version."""
    return numbers(version) >= (4, 2, 0)


def kraft(version: str) -> bool:
    """True if this version runs without ZooKeeper (3.3 is the first where that is not a preview)."""
    return numbers(version) >= (3, 3, 0)


def common(version: str, extra: Mapping[str, str]) -> dict[str, str]:
    """The settings that do not depend on the node; `extra` wins."""
    return {**COMMON, **(SHARE if share_groups(version) else {}), **extra}


def kraft_node(node: int, address: str, advertised: str, controllers: Sequence[str], data: str) -> dict[str, str]:
    """Where a node listens, what it is and where its data is. Node 1 is the controller too.

    address: host:port to listen on; advertised: host:port to tell clients; controllers: host:port of node 1's
    controller, as it listens and as the nodes reach it.
    """
    listen, reach = controllers
    first = node == 1
    return {
        "process.roles": "broker,controller" if first else "broker",
        "node.id": str(node),
        "controller.quorum.voters": f"1@{reach}",
        "listeners": f"PLAINTEXT://{address}" + (f",CONTROLLER://{listen}" if first else ""),
        "advertised.listeners": f"PLAINTEXT://{advertised}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
    }


def zookeeper_node(node: int, address: str, zookeeper: str, data: str) -> dict[str, str]:
    """The same for a Kafka that needs ZooKeeper."""
    return {
        "broker.id": str(node),
        "listeners": f"PLAINTEXT://{address}",
        "zookeeper.connect": zookeeper,
        "log.dirs": data,
    }


def zookeeper(port: int, host: str, data: str) -> dict[str, str]:
    """ZooKeeper's own settings."""
    return {"dataDir": data, "clientPort": str(port), "clientPortAddress": host, "admin.enableServer": "false"}


def properties(settings: Mapping[str, str]) -> str:
    """The text of a properties file."""
    escaped = str.maketrans({"\\": r"\\", "\n": r"\n"})
    return "".join(f"{key}={value.translate(escaped)}\n" for key, value in settings.items())


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings as the apache/kafka image takes them: `a.b_c-d` is the variable KAFKA_A_B__C___D."""
    return {
        "KAFKA_" + key.replace("_", "__").replace("-", "___").replace(".", "_").upper(): value
        for key, value in settings.items()
    }
