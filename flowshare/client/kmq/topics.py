"""Checks the topics of a queue: that they fit each other, and that the topic for undelivered messages exists."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from flowshare.client.admin.sizes import MESSAGE_BYTES_MAX, make, message_bytes, widen
from flowshare.client.errors import ClientError, ServerError
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin
    from flowshare.kmq.redelivery import QueueRules

TIMESTAMP_TYPE: Final = "message.timestamp.type"
APPEND_TIME: Final = "LogAppendTime"
"""The timestamp type that a topic of markers needs: its timestamps rise, and the tracker's clock follows them."""

logger = logging.getLogger(__name__)


class PartitionMismatch(ClientError):
    """A queue and its markers have different numbers of partitions."""


async def partitions_of(admin: ShareAdmin, rules: QueueRules) -> int:
    """Return the number of partitions of the queue, which is also that of its markers.

    Raises: PartitionMismatch, ServerError (UNKNOWN_TOPIC_OR_PARTITION: one is missing), OSError, ClientError.
    """
    queue = (await admin.describe_topic(rules.queue)).partitions
    markers = (await admin.describe_topic(rules.markers)).partitions
    if queue != markers:
        less, most = (rules.queue, markers) if queue < markers else (rules.markers, queue)
        raise PartitionMismatch(
            f"topic {rules.queue} has {queue} partitions and {rules.markers}, which has its markers, {markers}: each "
            f"partition of the one needs its own of the other. Give {less} {most} partitions, too "
            f"(kafka-topics.sh --alter --topic {less} --partitions {most})"
        )
    return queue


async def need_undelivered(admin: ShareAdmin, rules: QueueRules, partitions: int, *, widens: bool = True) -> None:
    """Create the topic for undelivered messages if it is missing, and check that it takes the queue's largest messages.

    widens: raise the limit of an existing topic if it is too small; else log a warning.
    Raises: ServerError, OSError, ClientError.
    """
    name, size = rules.undelivered_topic, await message_bytes(admin, rules.queue)
    try:
        await admin.describe_topic(name)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        await make(admin, name, partitions=partitions, size=size)
        logger.info("topic %s was missing and is made, partitions=%d", name, partitions)
    if size is not None:
        await _widen(admin, name, size, widens=widens)


async def _widen(admin: ShareAdmin, name: str, size: int, *, widens: bool) -> None:
    small = await widen(admin, name, size, left=None if widens else "the app is not to change topics")
    if small is not None:
        logger.warning(
            "topic %s takes %d bytes at once, and the queue up to %d: what is larger cannot go there, and is tried "
            "again and again. Raise its %s to that (kafka-configs.sh --alter --entity-type topics); it is left as it "
            "is: %s",
            name,
            small.takes,
            size,
            MESSAGE_BYTES_MAX,
            small.why,
        )


async def warn_of_times(admin: ShareAdmin, rules: QueueRules) -> None:
    """Warn if the markers' timestamps are set by their senders: then a sender's wrong clock moves the tracker's."""
    try:
        entries = await admin.topic_configs(rules.markers)
    except ServerError as error:
        logger.debug("the settings of topic %s cannot be seen: %s", rules.markers, error)
        return
    if any(one.name == TIMESTAMP_TYPE and one.value != APPEND_TIME for one in entries):
        logger.warning(
            "topic %s has the timestamps of whoever sends a marker, and a clock that is wrong there redelivers too "
            "early or too late: set %s=%s for it (kafka-configs.sh --alter --entity-type topics)",
            rules.markers,
            TIMESTAMP_TYPE,
            APPEND_TIME,
        )
