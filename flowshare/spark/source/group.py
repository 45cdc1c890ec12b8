"""Prepares a query's share group before the first fetch: its settings, the topics that it reads, and the topic of its
dead letters.

Where flowshare leads the group, its records never run out of deliveries. So a query that dies again and again between
an acquire and the write-ahead log loses nothing. Kafka's brokers allow ten deliveries at most.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.backend_limits import (
    DELIVERIES,
    DELIVERIES_MAX,
    LOCKS,
    LOCKS_MAX,
    broker_limits,
    lock_refusal,
)
from flowshare.agents.feed.setup import DEAD_LETTER_ON
from flowshare.agents.handler.errors import OptionError
from flowshare.client.admin.sizes import MESSAGE_BYTES_MAX, letter_bytes, make, widen
from flowshare.client.errors import ServerError
from flowshare.protocol.errors import ErrorCode
from flowshare.share.config import ISOLATION, KEY_ORDER
from flowshare.share.types import UNLIMITED_DELIVERIES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.backend.base import Capabilities
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.spark.source.options import SourceOptions

LOCKS_LEAST: Final = 2_000
LOCKS_MOST: Final = 1_000_000
NATIVE_DELIVERIES: Final = 10
"""The most deliveries that Kafka's brokers allow by default."""
WINDOW: Final = 200_000
START: Final = "share.auto.offset.reset"
EARLIEST: Final = "earliest"

logger = logging.getLogger("flowshare.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryLimits:
    """Limits of the group's records. deliveries: number after which a record is archived. locks: most records of a
    partition that may be held at once. committed: True: records of aborted transactions are left out."""

    deliveries: int
    locks: int
    committed: bool

    @property
    def endless(self) -> bool:
        """True if no record is ever archived for too many deliveries."""
        return self.deliveries >= UNLIMITED_DELIVERIES


async def prepare_group(options: SourceOptions, admin: ShareAdmin, capabilities: Capabilities) -> DeliveryLimits:
    """Set the group's settings within what its server allows. Raises: OptionError, ServerError."""
    await refuse_other_kinds(options.group, admin)
    settings: dict[str, str | None] = {START: await start_setting(options, admin), ISOLATION: options.isolation}
    if capabilities.own_limits:
        deliveries = options.delivery_limit or UNLIMITED_DELIVERIES
        # Twice: a batch is acquired while the accept of the last one is on its way.
        locks = min(LOCKS_MOST, max(LOCKS_LEAST, 2 * options.records_per_trigger))
        settings["share.partition.max.window"] = str(max(WINDOW, locks))
        adjustable = True
        # The source's letter is the only one of a reject, whoever named a topic for the server's.
        if options.dead_letter_topic is not None:
            settings[DEAD_LETTER_ON] = "limit"
    else:
        broker = await broker_limits(admin)
        if refused := lock_refusal(options.lock_duration or None, broker):
            raise OptionError(f"{refused} (locks are renewed while a batch runs)")
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


async def refuse_other_kinds(group: str, admin: ShareAdmin) -> None:
    """Check that a query can be a member of the group. Raises: OptionError, ServerError."""
    kind = await admin.group_kind(group)
    if kind not in (None, "share"):
        raise OptionError(f"{group!r} is a {kind} group on the brokers; give the source another group")
    refuse_order(group, {entry.name: entry.value for entry in await admin.group_configs(group)})


def refuse_order(group: str, configs: Mapping[str, str]) -> None:
    """Refuse a group with a key order: a query reads ranges of offsets, which have no heads of keys. Raises:
    OptionError."""
    if order := configs.get(KEY_ORDER, ""):
        raise OptionError(
            f"group {group} delivers in the order of keys ({KEY_ORDER}={order}), and Spark reads ranges of offsets, "
            "which have no such order: give the source another group, or take the order from this one while it has "
            f"no members (flowshare groups config {group} {KEY_ORDER}=)"
        )


async def start_setting(options: SourceOptions, admin: ShareAdmin) -> str:
    """Return the present start of share-partitions: `start` while a topic is new to the group, later the beginning.

    Later partitions of a topic and later topics of a pattern have no records from before the group: a start at the
    latest record would lose those written before the members heard of them.
    """
    if options.start == EARLIEST:
        return EARLIEST
    try:
        begun = {part.topic for part in await admin.group_offsets(options.group) if part.start_offset >= 0}
    except ServerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        begun = set()
    return EARLIEST if begun.issuperset(await topics_of(options, admin)) else options.start


async def all_begun(options: SourceOptions, admin: ShareAdmin, topics: Sequence[str]) -> bool:
    """Return True if each partition of these topics has begun; then make later ones begin at their beginning."""
    begun = {(one.topic, one.partition) for one in await admin.group_offsets(options.group) if one.start_offset >= 0}
    wanted = {
        (topic.name, number) for topic in await admin.describe_topics(topics) for number in range(topic.partitions)
    }
    if not begun >= wanted:
        return False
    await admin.alter_group_configs(options.group, {START: EARLIEST})
    return True


async def topics_of(options: SourceOptions, admin: ShareAdmin) -> list[str]:
    """Return the topics to read. Raises: OptionError for a named topic that does not exist."""
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


async def need_dead_letter_topic(options: SourceOptions, admin: ShareAdmin, topics: Sequence[str]) -> None:
    """Make the topic for dead letters if it is missing, and let it take the largest record of `topics` with headers.

    A refusal is logged, and the query runs: letters that the topic does not take go there without their records.
    """
    name = options.dead_letter_topic
    if name is None:
        return
    try:
        size = await letter_bytes(admin, [topic for topic in topics if topic != name])
        try:
            await admin.describe_topic(name)
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await make(admin, name, size=size)
            logger.info("topic %s was missing and is made, for dead letters of group %s", name, options.group)
        small = await widen(admin, name, size)
    except ServerError as error:
        logger.warning("group %s: its topic for dead letters is not ready: %s", options.group, error)
        return
    if small is not None:
        logger.warning(
            "group %s: topic %s takes %d bytes at once, and dead letters may have %d: larger ones go there without "
            "their records. Raise its %s to that (kafka-configs.sh --alter --entity-type topics); it is left as it is: "
            "%s",
            options.group,
            name,
            small.takes,
            size,
            MESSAGE_BYTES_MAX,
            small.why,
        )
