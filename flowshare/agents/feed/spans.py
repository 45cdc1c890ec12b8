"""Spans of an agent's acknowledgements, made with `agents.telemetry`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from flowshare.agents.feed.acknowledgements import ACCEPT, RELEASE, AckRanges
from flowshare.agents.telemetry import conventions as names
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AckRange

if TYPE_CHECKING:
    from flowshare.agents.feed.settle_units import Unit
    from flowshare.agents.telemetry.settling import SettleSpans, Settling
    from flowshare.client.session.ranges import AckResult
    from flowshare.protocol.messages import TopicPartition

SAID: Final = {ACCEPT: names.ACCEPTED, RELEASE: names.RELEASED}
"""Types -> attributes that count them; all other types count as rejected."""
UNSENT: Final = "unsent"
"""`error.type` of a request that could not be sent."""
Told = dict["TopicPartition", "Settling"]
"""Spans of one request."""


class AckSpans:
    """Spans of requests; on the service loop."""

    def __init__(self, spans: SettleSpans) -> None:
        self._spans = spans

    def begin(self, acks: AckRanges) -> Told:
        """Begin the spans of a request that is about to leave."""
        return {tp: self._begin(tp, ranges) for tp, ranges in acks.items()}

    def _begin(self, tp: TopicPartition, ranges: list[AckRange]) -> Settling:
        offsets = chain.from_iterable(range(ack.first, ack.last + 1) for ack in ranges)
        return self._spans.begin(tp, self._spans.noted(tp, offsets), said_of(ranges))

    def begin_settle(self, tp: TopicPartition, units: Iterable[Unit], acks: list[AckRange], outputs: int) -> Settling:
        """Begin the span of a settle with outputs that is about to leave."""
        records = [one for unit in units for one in unit.records]
        topic = records[0][0].topic
        return self._spans.begin(tp, self._spans.handled(records), said_of(acks), topic=topic, outputs=outputs)

    def answered(self, told: Told, result: AckResult) -> None:
        """End the span of a partition's part of a request at its answer."""
        settling = told.pop(result.tp, None)
        if settling is not None:
            self.settled(settling, result)

    def settled(self, settling: Settling, result: AckResult) -> None:
        """End the span of a settle at its answer."""
        found = result.refusal if result.refused and result.error is ErrorCode.NONE else result.error
        self._spans.end(settling, "" if found is ErrorCode.NONE else found.name, result.message or "")

    def failed(self, told: Told) -> None:
        """End the spans of a request without an answer."""
        for settling in told.values():
            self._spans.end(settling, UNSENT)
        told.clear()

    def over(self, ack: AckRange, result: AckResult) -> None:
        """Forget the spans of these records: the outcome of their acknowledgement is known."""
        self._spans.forget(result.tp, ack.first, ack.last)


def said_of(ranges: Iterable[AckRange]) -> dict[str, int]:
    """Count accepted, released and rejected records, by the attributes that count them."""
    counts: dict[str, int] = {}
    for ack in ranges:
        name = SAID.get(ack.types, names.REJECTED)
        counts[name] = counts.get(name, 0) + ack.size
    return counts
