"""Counters of an agent, and the durations of its handlers.

Plain numbers; each is changed on one thread only, and read from any thread.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from flowshare.agents.handler.texts import said, sole

BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the buckets, inclusive; the last bucket has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLook:
    """Counters of one agent in one process.

    busy_s: seconds that handlers worked, running ones included. settled: deliveries that ended. again: those of settled
    that come again. running: handlers at work.
    """

    at_s: float
    busy_s: float
    settled: float
    again: float
    running: int


@dataclass(slots=True)
class AgentStats:
    """Counters of one agent in one process since its start.

    received: deliveries taken from the group. accepted: confirmed accepts. released: `Release` outcomes. retried:
    exceptions and timeouts that were released for another attempt. dead_lettered: rejected after the dead letter was
    confirmed. rejected: rejected without dead letter (`dead_letter=None`). gaps: acquired offsets without a record.
    lost: accepted before they ran (`at_most_once`), and their handlers failed or were ended. deferred: records that
    wait on in the retry topic, written anew. undecodable: values that did not fit the annotation. timed_out: handlers
    past `timeout`. cancelled: handlers that ended with CancelledError or another BaseException. lock_lost: outcomes
    discarded because the acquisition lock was gone. ack_unknown: acknowledgements whose result is unknown.
    renewed: locks renewed. unrun: records released before a handler began. redelivered: deliveries after the first.
    sent: records produced by sinks and `Send`. send_failed, dead_letter_failed: records that could not be produced.
    handler_errors: exceptions of handlers.
    fetches, acknowledgements: requests made.
    """

    received: int = 0
    accepted: int = 0
    released: int = 0
    retried: int = 0
    dead_lettered: int = 0
    rejected: int = 0
    deferred: int = 0
    gaps: int = 0
    lost: int = 0
    undecodable: int = 0
    timed_out: int = 0
    cancelled: int = 0
    lock_lost: int = 0
    ack_unknown: int = 0
    renewed: int = 0
    unrun: int = 0
    redelivered: int = 0
    sent: int = 0
    send_failed: int = 0
    dead_letter_failed: int = 0
    handler_errors: int = 0
    fetches: int = 0
    acknowledgements: int = 0

    @property
    def again(self) -> int:
        """Number of handled deliveries whose records come again."""
        return self.released + self.retried + self.cancelled + self.lock_lost + self.ack_unknown

    @property
    def settled(self) -> int:
        """Number of handled deliveries, with any outcome."""
        return self.accepted + self.rejected + self.dead_lettered + self.deferred + self.again

    def counters(self) -> dict[str, float]:
        """Return all counters by name."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


EXCEPTIONS_MAX: Final = 32
"""Most types of exceptions that an agent counts apart; others are counted together."""
OTHERS: Final = "others"
TEXT_MAX: Final = 200
"""Characters kept of the last exception's text."""


class Raised(NamedTuple):
    """An exception of a handler, as text: it holds no frames, and so no records. at_s: by the monotonic clock."""

    kind: str
    text: str
    at_s: float


class ExceptionCounts:
    """Number of exceptions of handlers, by type. Written on the handler loop, read from any thread."""

    __slots__ = ("_counts", "last")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.last: Raised | None = None
        """The last exception."""

    def add(self, error: BaseException, now_s: float) -> None:
        """Count an exception; a group with one error in it counts as that error."""
        error = sole(error)
        self.last = Raised(type(error).__name__, said(error, TEXT_MAX), now_s)
        name = type(error).__qualname__
        if name not in self._counts and len(self._counts) >= EXCEPTIONS_MAX:
            name = OTHERS
        self._counts[name] = self._counts.get(name, 0) + 1

    def copy(self) -> dict[str, int]:
        """Counts by type."""
        return dict(self._counts)


class HandlerTimes:
    """Histogram of the durations of handlers: filled once per call, or once per run of short ones.

    Written by one thread, read from any thread.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        """Seconds of all calls."""

    def add(self, seconds: float, records: int = 1) -> None:
        """Add `records` handler calls, one after another, which took `seconds` together."""
        if records == 1:  # every call of a handler that waits
            self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        elif records > 0:
            self._counts[bisect_left(BOUNDS_S, seconds / records)] += records
        else:
            return
        self.sum_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """Return Prometheus buckets: upper bound as text, number of calls up to it."""
        total = 0
        found: list[tuple[str, float]] = []
        for bound, count in zip((*BOUNDS_S, float("inf")), list(self._counts), strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found
