"""Counters of the server, under the meanings of Kafka's share-group metrics (SG-17.7).

Plain integers, and histograms of them, that only the service loop writes; `Server.stats()` adds the gauges and hands
out a copy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from flowshare.server.runtime.latencies import Latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.share.types import AckRange

ACK_NAMES: Final = ("gap", "accept", "release", "reject", "renew")


@dataclass(slots=True)
class Stats:
    """Counters since the server was started.

    acks: acknowledged records by type; acks_refused: partitions of requests with a refused acknowledgement, mostly
    because the lock had lapsed; lock_timeouts: acquisition locks that lapsed; fetches, failed_fetches, acknowledges,
    failed_acknowledges, settles, failed_settles: requests; records_acquired, redeliveries: records handed out, and
    those among them that had been handed out before; parked_timeouts: fetches that ended at their wait limit; loads,
    failed_loads: share-partitions read from the store; state_writes, failed_state_writes: writes to the store;
    dead_letters, failed_dead_letters: records copied to a dead-letter topic, or given up; log_cuts: times that a log
    was found to have lost acquired records with a leader of Kafka's; records_lost: offsets of those records; load_s,
    write_s: durations of loads and writes in seconds.
    """

    acks: Counter[str] = field(default_factory=Counter[str])
    acks_refused: int = 0
    lock_timeouts: int = 0
    fetches: int = 0
    failed_fetches: int = 0
    acknowledges: int = 0
    failed_acknowledges: int = 0
    settles: int = 0
    failed_settles: int = 0
    records_acquired: int = 0
    redeliveries: int = 0
    parked_timeouts: int = 0
    loads: int = 0
    failed_loads: int = 0
    state_writes: int = 0
    failed_state_writes: int = 0
    dead_letters: int = 0
    failed_dead_letters: int = 0
    log_cuts: int = 0
    records_lost: int = 0
    load_s: Latencies = field(default_factory=Latencies)
    write_s: Latencies = field(default_factory=Latencies)

    def count_acks(self, batches: Sequence[AckRange]) -> None:
        """Count accepted batches by type."""
        acks = self.acks
        for batch in batches:
            types = batch.types
            if len(types) == 1:
                acks[ACK_NAMES[types[0]]] += batch.last - batch.first + 1
                continue
            for number, name in enumerate(ACK_NAMES):
                if (count := types.count(number)) > 0:
                    acks[name] += count

    def copy(self) -> dict[str, Any]:
        """Return all counters by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        acks = {name: self.acks[name] for name in ACK_NAMES}
        return {**values, "acks": acks, "load_s": self.load_s.copy(), "write_s": self.write_s.copy()}
