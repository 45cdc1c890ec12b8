"""Settings of slots. Durations are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from flowshare.slots.pruning import PruneLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """How a slot's log is written and read.

    deadline_s: how long a record is sent again, and a broker asked again, before the slot is given up.
    backoff_min_s, backoff_max_s: pause before a new try, doubled each time.
    flying_max: batches without an answer; a broker recognises that many when they come twice.
    eager_max, eager_bytes: with so many under way a new batch waits for so many bytes, so that small writes gather.
    queue_bytes: writes that wait for their confirmation; more are refused.
    renew_s, idle_s: age of a claim, and idleness, after which the next thing written is a new one.
    fetch_bytes: what is read at once; it is decoded in one go, while nothing else runs.
    """

    deadline_s: float = 30.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0
    flying_max: int = 5
    eager_max: int = 2
    eager_bytes: int = 32 << 10
    queue_bytes: int = 64 << 20
    renew_s: float = 12 * 3600.0
    idle_s: float = 600.0
    fetch_bytes: int = 256 << 10
    prune: PruneLimits = field(default_factory=PruneLimits)
