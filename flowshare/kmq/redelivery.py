"""Redelivery of a due message: choose the topic and headers of its copy. The copy goes to the queue again, to the
message's own partition, or to the undelivered topic.

KMQ sends the copy without the record's headers and timestamp. Here both stay; only the count header is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowshare.kmq.markers import COUNT_HEADER, MAX_REDELIVERIES, UNDELIVERED, decode_count, encode_count

Headers = Sequence[tuple[str, bytes | None]]


class QueueRules(NamedTuple):
    """Rules of one queue; names as in KMQ's configuration.

    queue: its topic. redeliveries: how often a message is sent again (maxRedeliveryCount); it is delivered once more
    than that. undelivered: topic of messages after their last redelivery (deadLetterTopic). count_header:
    redeliveryCountHeader.
    """

    queue: str
    markers: str
    redeliveries: int = MAX_REDELIVERIES
    undelivered: str = ""
    count_header: str = COUNT_HEADER

    @property
    def undelivered_topic(self) -> str:
        """Topic of messages that had their last redelivery."""
        return self.undelivered or self.queue + UNDELIVERED


class Copy(NamedTuple):
    """The copy of a message that is to be sent: its topic and headers. again: the topic is the queue itself, and the
    copy goes to the same partition as the original."""

    topic: str
    again: bool
    headers: tuple[tuple[str, bytes | None], ...]


def redelivered(headers: Headers, name: str) -> int:
    """Return how often a message was redelivered: the count in its last header of that name, 0 without it."""
    return next((decode_count(value) for key, value in reversed(headers) if key == name), 0)


def copy_of(headers: Headers, rules: QueueRules) -> Copy:
    """Choose the topic and the headers of the copy of a message that has these headers."""
    count = redelivered(headers, rules.count_header)
    if count >= rules.redeliveries:
        return Copy(rules.undelivered_topic, False, tuple(headers))
    kept = [pair for pair in headers if pair[0] != rules.count_header]
    return Copy(rules.queue, True, (*kept, (rules.count_header, encode_count(count + 1))))
