"""What a query's share group needs before its first fetch: its settings, and topics that are there.

Where flowshare leads the group its records never run out of deliveries, so that a query that dies again and again
between an acquire and the write-ahead log loses nothing; Kafka's brokers allow ten at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.limits import DELIVERIES, DELIVERIES_MAX, LOCKS, LOCKS_MAX, broker_limits
from flowshare.agents.handler.errors import OptionError
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.share.config import KEY_ORDER
from flowshare.share.types import UNLIMITED_DELIVERIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.spark.source.options import SourceOptions

LOCKS_LEAST: Final = 2_000
LOCKS_MOST: Final = 1_000_000
NATIVE_DELIVERIES: Final = 10
"""The most that Kafka's brokers allow unless their own limit was raised."""
WINDOW: Final = 200_000
ISOLATION: Final = "share.isolation.level"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """What the group's records may expect. deliveries: how many before one is archived. locks: how many of a
    partition may be held at once. committed: whether records of aborted transactions are left out."""

    deliveries: int
    locks: int
    committed: bool

    @property
    def endless(self) -> bool:
        """Whether nothing is ever archived for having been delivered too often."""
        return self.deliveries >= UNLIMITED_DELIVERIES


async def prepare_group(options: SourceOptions, admin: ShareAdmin, capabilities: Capabilities) -> DeliveryLimits:
    """Set the group's settings within what its server allows. Raises: OptionError, ServerError."""
    kind = await admin.group_kind(options.group)
    if kind not in (None, "share"):
        raise OptionError(f"{options.group!r} is a {kind} group on the brokers; give the source another group")
    refuse_order(options.group, {entry.name: entry.value for entry in await admin.group_configs(options.group)})
    settings: dict[str, str | None] = {"share.auto.offset.reset": options.start}
    if capabilities.own_limits:
        deliveries = options.delivery_limit or UNLIMITED_DELIVERIES
        # Twice: a batch is acquired while the accept of the last one is on its way.
        locks = min(LOCKS_MOST, max(LOCKS_LEAST, 2 * options.records_per_trigger))
        settings["share.partition.max.window"] = str(max(WINDOW, locks))
        adjustable = True
    else:
        broker = await broker_limits(admin)
        adjustable = DELIVERIES_MAX in broker
        most = broker[DELIVERIES_MAX if adjustable else DELIVERIES]
        deliveries = min(options.delivery_limit or NATIVE_DELIVERIES, most)
        locks = broker.get(LOCKS_MAX, broker[LOCKS])
        if options.delivery_limit > most:
            raise OptionError(f"delivery_limit={options.delivery_limit} is above what the brokers allow ({most})")
    if adjustable:
        settings["share.delivery.count.limit"] = str(deliveries)
        settings["share.partition.max.record.locks"] = str(locks)
    if options.lock_duration:
        settings["share.record.lock.duration.ms"] = str(round(options.lock_duration * 1000))
    try:
        await admin.alter_group_configs(options.group, settings)
    except ServerError as error:
        raise OptionError(f"the settings of group {options.group} are refused: {error}") from error
    configs = {entry.name: entry.value for entry in await admin.group_configs(options.group)}
    return DeliveryLimits(deliveries=deliveries, locks=locks, committed=configs.get(ISOLATION) == "read_committed")


def refuse_order(group: str, configs: Mapping[str, str]) -> None:
    """A query reads ranges of offsets, which have no heads of keys. Raises: OptionError when the group has an order."""
    if order := configs.get(KEY_ORDER, ""):
        raise OptionError(
            f"group {group} delivers in the order of keys ({KEY_ORDER}={order}), and Spark reads ranges of offsets, "
            "which have no such order: give the source another group, or take the order from this one while it has "
            f"no members (flowshare groups config {group} {KEY_ORDER}=)"
        )


async def topics_of(options: SourceOptions, admin: ShareAdmin) -> list[str]:
    """The topics to read. Raises: OptionError for a named one that does not exist."""
    if options.topics_pattern:
        return [topic.name for topic in await admin.list_topics() if options.wants(topic.name)]
    for name in options.topics:
        try:
            await admin.describe_topic(name)
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            raise OptionError(
                f"there is no topic {name!r} here: create it with `flowshare topics create {name}`, or "
                "check its name (`flowshare topics ls`)"
            ) from error
    return list(options.topics)
