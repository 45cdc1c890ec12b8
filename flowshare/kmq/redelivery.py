"""What becomes of a message that is due: it is sent again to its own partition, or it is undelivered.

KMQ sends the copy without the record's headers and timestamp; here both stay, and only the count is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowshare.kmq.markers import COUNT_HEADER, MAX_REDELIVERIES, UNDELIVERED, decode_count, encode_count

Headers = Sequence[tuple[str, bytes | None]]


class QueueRules(NamedTuple):
    """Of one queue: names as in KMQ's configuration.

    queue: its topic. redeliveries: how often a message is sent again (maxRedeliveryCount); it is delivered once more
    than that. undelivered: where it goes then (deadLetterTopic). count_header: redeliveryCountHeader.
    """

    queue: str
    markers: str
    redeliveries: int = MAX_REDELIVERIES
    undelivered: str = ""
    count_header: str = COUNT_HEADER

    @property
    def undelivered_topic(self) -> str:
        """Where messages go that were redelivered often enough."""
        return self.undelivered or self.queue + UNDELIVERED


class Copy(NamedTuple):
    """What is sent. topic: and to the same partition as the original if it is the queue's (`again`)."""

    topic: str
    again: bool
    headers: tuple[tuple[str, bytes | None], ...]


def redelivered(headers: Headers, name: str) -> int:
    """How often a message was redelivered: what its last header of that name says."""
    return next((decode_count(value) for key, value in reversed(headers) if key == name), 0)


def copy_of(headers: Headers, rules: QueueRules) -> Copy:
    """Where a message with these headers goes, and with which."""
    count = redelivered(headers, rules.count_header)
    if count >= rules.redeliveries:
        return Copy(rules.undelivered_topic, False, tuple(headers))
    kept = [pair for pair in headers if pair[0] != rules.count_header]
    return Copy(rules.queue, True, (*kept, (rules.count_header, encode_count(count + 1))))
