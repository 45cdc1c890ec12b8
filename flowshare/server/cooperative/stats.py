"""Counters of the cooperative groups of one server, since it began."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from flowshare.server.runtime.latencies import Latencies


@dataclass(slots=True)
class Stats:
    """holds, commits: requests of members. loads: of partitions. writes: of state; failed_writes: those that could not
    be made, whose requests were refused.

    settles: commits with outputs; failed_settles: those that were refused. parked: how often one waited for the offsets
    before its own.

    blocked: ranges that a hold asked for and another member held. overlaps: ranges that were taken from a member that
    did not give them back in time (mode `available`), whose handlers may have run beside those of the next one. lapsed:
    claims whose lease ended. fenced: entries of commits that were refused because the member held their keys
    no more. lost: records that were deleted, or passed over, before anybody had finished them. resets: partitions that
    began anew where somebody had set the group's offset. load_s, write_s: how long loads and writes took.
    """

    holds: int = 0
    commits: int = 0
    settles: int = 0
    failed_settles: int = 0
    parked: int = 0
    writes: int = 0
    failed_writes: int = 0
    loads: int = 0
    blocked: int = 0
    overlaps: int = 0
    lapsed: int = 0
    fenced: int = 0
    lost: int = 0
    resets: int = 0
    load_s: Latencies = field(default_factory=Latencies)
    write_s: Latencies = field(default_factory=Latencies)

    def copy(self) -> dict[str, Any]:
        """As they are now."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**found, "load_s": self.load_s.copy(), "write_s": self.write_s.copy()}
