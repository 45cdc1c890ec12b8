"""Marks of moves: where a group of a Kafka cluster was moved to last, readable from where it went and where it left.

They lie in one small compacted topic of the cluster, `__flowshare_moves`: key the group, value the mark. It is made by
the first `flowshare groups move`; a cluster on which nothing was moved has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

import orjson

from flowshare.client.errors import ServerError
from flowshare.client.message import Message
from flowshare.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from flowshare.client.admin import ShareAdmin
    from flowshare.client.producing import RecordProducer

TOPIC: Final = "__flowshare_moves"
CONFIGS: Final = {"cleanup.policy": "compact", "max.compaction.lag.ms": "604800000"}
MARKS_MAX: Final = 1_000_000
NOT_THERE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)
"""No marks, or none that this login may read."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a group is. fleet: that it went to, or with `native` that it left. at_ms: when, since 1970."""

    place: Literal["native", "workers"]
    fleet: str
    at_ms: int

    @property
    def when(self) -> str:
        """The moment in UTC, for people."""
        return datetime.fromtimestamp(self.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def read_marks(admin: ShareAdmin) -> Mapping[str, Mark]:
    """The last mark of each group. Raises: ClientError, OSError."""
    try:
        await admin.describe_topic(TOPIC)
        records = await admin.read(TOPIC, 0, limit=MARKS_MAX)
    except ServerError as error:
        if error.code in NOT_THERE:
            return {}
        raise
    found: dict[str, Mark] = {}
    for record in records:
        group = (record.key or b"").decode(errors="replace")
        found.pop(group, None)
        mark = None if record.value is None else _decode(record.value)
        if mark is not None:
            found[group] = mark
    return found


async def mark_move(admin: ShareAdmin, producer: RecordProducer, group: str, mark: Mark | None) -> None:
    """Write where a group is; None: it is nowhere, nothing is to be known of it. Raises: ClientError, OSError."""
    try:
        await admin.describe_topic(TOPIC)
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        await admin.create_topic(TOPIC, configs=CONFIGS, exist_ok=True)
    value = None if mark is None else orjson.dumps({"to": mark.place, "fleet": mark.fleet, "at_ms": mark.at_ms})
    await producer.send_many(TOPIC, [Message(value, key=group.encode(), partition=0)])


def _decode(value: bytes) -> Mark | None:
    """The mark; None: of a later release, or somebody else's."""
    try:
        read = orjson.loads(value)
        place = read["to"]
        return Mark(place, str(read["fleet"]), int(read["at_ms"])) if place in ("native", "workers") else None
    except (ValueError, TypeError, KeyError):
        return None
