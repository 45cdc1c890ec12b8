"""What a harness saw: the outcome of every delivery, per agent, and the records in topics and dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowshare.agents.runtime import Settled


@dataclass(slots=True)
class AgentReport:
    """One agent's deliveries since the harness started, in the order they were settled."""

    settled: list[Settled] = field(default_factory=list)

    def count(self, *outcomes: str) -> int:
        """Deliveries with one of these outcomes (see `runtime.Settled.outcome`)."""
        return sum(one.outcome in outcomes for one in self.settled)

    @property
    def accepted(self) -> int:
        """Records whose accept was confirmed."""
        return self.count("accepted")

    @property
    def retried(self) -> int:
        """Deliveries that failed and were released for another attempt."""
        return self.count("retried")

    @property
    def released(self) -> int:
        """Deliveries given back by `fs.Release`."""
        return self.count("released")

    @property
    def rejected(self) -> int:
        """Records that ended without success: dead letters, and rejects of agents without a dead letter topic."""
        return self.count("dead_lettered", "rejected")

    @property
    def dead_lettered(self) -> int:
        """Records that ended as dead letters."""
        return self.count("dead_lettered")

    @property
    def attempts(self) -> list[int]:
        """The number of each delivery, in the order they were settled: one record that failed twice is [1, 2, 3]."""
        return [one.attempt for one in self.settled]

    @property
    def delays(self) -> list[float]:
        """Seconds each released delivery was put off, in order."""
        return [one.delay_s for one in self.settled if one.outcome in {"retried", "released"}]

    @property
    def reasons(self) -> list[str]:
        """Why each unsuccessful delivery was so, in order."""
        return [one.reason for one in self.settled if one.outcome != "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRecord:
    """A record as it lies in a topic. `key` and `value` have the topic's types, else they are bytes, or JSON."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: dict[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter(SentRecord):
    """A dead letter with what its headers say of its origin."""

    def header(self, name: str) -> str:
        """A `flowshare.dlq.…` header as text, empty when it is not there."""
        return (self.headers.get(f"flowshare.dlq.{name}") or b"").decode()

    @property
    def reason(self) -> str:
        """Why the record ended here."""
        return self.header("reason")

    @property
    def attempts(self) -> int:
        """How often the record was tried."""
        return int(self.header("attempts") or 0)

    @property
    def origin(self) -> tuple[str, int, int]:
        """Topic, partition and offset that the record came from."""
        return self.header("topic"), int(self.header("partition")), int(self.header("offset"))
