"""Short names for the settings that scenarios use, and the server settings that all of them run with."""

from __future__ import annotations

from typing import Final

from flowshare.share.config import ServerConfig

GROUP_NAMES: Final = {
    "delivery": "share.delivery.count.limit",
    "locks": "share.partition.max.record.locks",
    "lock": "share.record.lock.duration.ms",
    "renew": "share.renew.acknowledge.enable",
    "reset": "share.auto.offset.reset",
    "isolation": "share.isolation.level",
    "window": "share.partition.max.window",
    "dead_letters": "errors.deadletterqueue.topic.name",
    "copy": "errors.deadletterqueue.copy.record.enable",
    "order": "share.key.order",
    "in_flight": "share.max.in.flight",
    "paused": "share.paused",
    "priority": "share.delivery.priority",
}
SERVER_NAMES: Final = {
    "max_size": "group.share.max.size",
    "return_grace": "group.share.return.grace.ms",
    "max_sessions": "group.share.max.share.sessions",
    "auto_dead_letters": "errors.deadletterqueue.auto.create.topics.enable",
}
TOPIC_NAMES: Final = {"max_bytes": "max.message.bytes"}


def server_config(text: str) -> ServerConfig:
    """Settings of a scenario's server. The window is Kafka's: it follows the lock limit."""
    values = {"group.share.partition.max.window": "locks", "group.share.return.grace.ms": "0"}
    for word in text.split():
        name, _, value = word.partition("=")
        values[SERVER_NAMES[name]] = value
    if "group.share.max.share.sessions" in values:
        values.setdefault("group.share.max.size", values["group.share.max.share.sessions"])
    return ServerConfig.embedded(values)
