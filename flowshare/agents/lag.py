"""Backlog of a share-partition as `/lag`, `flowshare lag` and `flowshare groups describe` show it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flowshare.client.errors import ServerError

if TYPE_CHECKING:
    from flowshare.client.admin import ShareAdmin
    from flowshare.protocol.messages import SharePartitionOffsets

logger = logging.getLogger("flowshare.host")


async def rows(admin: ShareAdmin, groups: Iterable[str], now_ms: int) -> list[dict[str, Any]]:
    """One JSON-ready row a share-partition of the groups.

    in_flight, delayed, redeliveries: None when unknown (Kafka's brokers do not tell).
    backlog: records that are not finished, −1 when unknown; finished: records that are, since the topic began, None
    when unknown (its growth is the rate); oldest_age_s: age of the first unfinished record, None when there is none.
    """
    found: list[dict[str, Any]] = []
    for group in groups:
        try:
            for part in await admin.group_offsets(group):
                ends = await admin.offsets(part.topic, part.partition)
                found.append(row(group, part, now_ms, log_end=ends.high_watermark))
        except ServerError as error:  # not there yet, or its topic is being deleted
            logger.debug("no backlog of group %s: %s", group, error)
    return found


def row(group: str, part: SharePartitionOffsets, now_ms: int, *, log_end: int | None = None) -> dict[str, Any]:
    """One share-partition."""
    pending = part.lag > 0 and part.oldest_ms >= 0
    return {
        "group": group,
        "topic": part.topic,
        "partition": part.partition,
        "start_offset": part.start_offset,
        "backlog": part.lag,
        "in_flight": _known(part.in_flight),
        "delayed": _known(part.delayed),
        "redeliveries": _known(part.redeliveries),
        "oldest_age_s": max(0.0, (now_ms - part.oldest_ms) / 1000) if pending else None,
        "finished": log_end - part.lag if log_end is not None and part.lag >= 0 else None,
    }


def _known(count: int) -> int | None:
    return count if count >= 0 else None
