"""Metrics of one process: four instruments of the conventions and two of breakers, with few attributes each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Observation

from flowshare.agents.telemetry import conventions as names
from flowshare.share.breaker import BreakerState

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter

KINDS_MAX: Final = 64
"""Most kinds of errors that are told apart; further ones are `OTHER`."""
TOPICS_MAX: Final = 1_000
"""Most topics written to that are told apart."""
OTHER: Final = "_OTHER"
Attributes = Mapping[str, str | int | bool]


class Few:
    """A limited set of names that become attributes of metrics: each is a series that nobody ends, and applications can
    make classes of exceptions, and topics, without end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        """Return the name itself, or `OTHER`."""
        if name in self._known:
            return name
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(name)
        return name


class Instruments:
    """Instruments of one process."""

    def __init__(self, meter: Meter) -> None:
        self.breakers: dict[str, tuple[Attributes, BreakerState]] = {}
        """Attributes of each agent with a breaker, by its name, and the last state it heard."""
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
        self.openings = meter.create_counter(
            names.BREAKER_OPENINGS, "{opening}", "How often circuit breakers of groups opened."
        )
        meter.create_observable_gauge(
            names.BREAKER_STATUS, [self._status], "1", "State that the circuit breaker of an agent's group is in."
        )

    def _status(self, _: CallbackOptions) -> Iterable[Observation]:
        """Report the breakers, on the exporter's thread."""
        for common, state in list(self.breakers.values()):
            for one in BreakerState:
                yield Observation(int(one is state), {**common, names.BREAKER_STATE: str(one)})
