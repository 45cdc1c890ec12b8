"""How large a record a topic takes, and a topic of dead letters has to take."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ServerError

if TYPE_CHECKING:
    from flowshare.client.admin.admin import ShareAdmin

MESSAGE_BYTES_MAX: Final = "max.message.bytes"
MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of it."""
HEADERS_BYTES: Final = 64 << 10
"""Room for the headers of a dead letter or of a record that waits for its retry."""

logger = logging.getLogger(__name__)


async def message_bytes(admin: ShareAdmin, topic: str) -> int | None:
    """The largest batch that a topic takes; None where that may not be seen. Raises: ServerError (retriable)."""
    try:
        entries = await admin.topic_configs(topic)
    except ServerError as error:
        if error.retriable:
            raise
        logger.debug("the settings of topic %s cannot be seen: %s", topic, error)
        return None
    return next((int(entry.value) for entry in entries if entry.name == MESSAGE_BYTES_MAX and entry.value), None)


async def letter_bytes(admin: ShareAdmin, topics: Iterable[str]) -> int:
    """The largest dead letter of these topics' records, its headers included. Raises: ServerError (retriable)."""
    largest = max([await message_bytes(admin, topic) or MESSAGE_BYTES for topic in topics])
    return min(largest + HEADERS_BYTES, 2**31 - 1)
