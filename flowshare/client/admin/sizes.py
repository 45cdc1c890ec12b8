"""Size limits of topics: the largest record that a topic takes, and the limit that a topic of copies of records
needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ServerError

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin

MESSAGE_BYTES_MAX: Final = "max.message.bytes"
MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of `max.message.bytes`, in bytes."""
HEADERS_BYTES: Final = 64 << 10
"""Room, in bytes, for the headers of a dead letter or of a record that waits for its retry."""

ASKED_AT_ONCE: Final = 50
"""Most topics whose limits are asked for together."""

logger = logging.getLogger(__name__)


async def message_bytes(admin: ShareAdmin, topic: str) -> int | None:
    """Return the largest batch that a topic takes, in bytes; None: the setting may not be seen. Raises: ServerError
    (retriable)."""
    try:
        entries = await admin.topic_configs(topic)
    except ServerError as error:
        if error.retriable:
            raise
        logger.debug("the settings of topic %s cannot be seen: %s", topic, error)
        return None
    return next((int(entry.value) for entry in entries if entry.name == MESSAGE_BYTES_MAX and entry.value), None)


async def letter_bytes(admin: ShareAdmin, topics: Iterable[str]) -> int:
    """Return the size, in bytes, of the largest dead letter of these topics' records, headers included. Raises:
    ServerError (retriable)."""
    names, largest = list(topics), 0
    for first in range(0, len(names), ASKED_AT_ONCE):
        some = names[first : first + ASKED_AT_ONCE]
        sizes = await asyncio.gather(*(message_bytes(admin, topic) for topic in some))
        largest = max(largest, *(size or MESSAGE_BYTES for size in sizes))
    return min((largest or MESSAGE_BYTES) + HEADERS_BYTES, 2**31 - 1)


async def make(admin: ShareAdmin, topic: str, *, partitions: int = 1, size: int | None = None) -> None:
    """Make a topic that takes records of `size` bytes (None: the brokers' own limit); with the brokers' own limit if a
    policy refuses this one alone. An existing topic is no error. Raises: ServerError."""
    configs = {} if size is None else {MESSAGE_BYTES_MAX: str(size)}
    try:
        await admin.create_topic(topic, partitions=partitions, configs=configs, exist_ok=True)
    except ServerError as error:
        if error.retriable or not configs:
            raise
        await admin.create_topic(topic, partitions=partitions, exist_ok=True)


class TooSmall(NamedTuple):
    """A topic's limit of `takes` bytes is too small and was not changed. why: the reason."""

    takes: int
    why: str


async def widen(admin: ShareAdmin, topic: str, size: int, *, left: str | None = None) -> TooSmall | None:
    """Raise the limit of an existing topic if the topic does not take records of `size` bytes.

    left: a reason not to change the limit. Returns None where the limit is large enough (now or before) or may not be
    seen. Raises: ServerError (retriable).
    """
    takes = await message_bytes(admin, topic)
    if takes is None or takes >= size:
        return None
    if left is not None:
        return TooSmall(takes, left)
    try:
        await admin.alter_topic_configs(topic, {MESSAGE_BYTES_MAX: str(size)})
    except ServerError as error:
        if error.retriable:
            raise
        return TooSmall(takes, str(error))
    logger.info("topic %s: %s is raised to %d", topic, MESSAGE_BYTES_MAX, size)
    return None
