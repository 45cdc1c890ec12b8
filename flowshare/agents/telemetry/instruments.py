"""The metrics of one process: four instruments of the conventions, with few attributes each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from flowshare.agents.telemetry import conventions as names

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

KINDS_MAX: Final = 64
"""Kinds of errors that are told apart; those behind them are `OTHER`."""
TOPICS_MAX: Final = 1_000
"""The same of topics that are written to."""
OTHER: Final = "_OTHER"
Attributes = Mapping[str, str | int | bool]


class Few:
    """Names that become attributes of metrics, so many at most: each one is a series that nobody ends, and applications
    can make classes of exceptions, and topics, without end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """The name itself, or `OTHER`."""
        if name in self._known:
            return name
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(name)
        return name


class Instruments:
    """Made once a process."""

    def __init__(self, meter: Meter) -> None:
        self.errors = Few(KINDS_MAX)
        self.topics = Few(TOPICS_MAX)
        self.process = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=list(names.BOUNDS_S),
        )
        self.operation = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=list(names.BOUNDS_S),
        )
        self.consumed = meter.create_counter(
            names.CONSUMED_MESSAGES, "{message}", "Number of messages that were delivered to the application."
        )
        self.sent = meter.create_counter(
            names.SENT_MESSAGES, "{message}", "Number of messages producer attempted to send to the broker."
        )
