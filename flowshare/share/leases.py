"""The sharing of a group's limit between the leaders of its share-partitions, at the group's coordinator.

A leader reports its records in flight, and if it could hand out more; it gets a lease: the records that it may have in
flight until its next report. A lease that is not renewed in time is void at the leader first (`LEASE_MS`), here later.

Invariant: the leases that count, each at least its leader's records in flight, are together at most the limit; they are
more only by records that were in flight already: after the limit was lowered, or when another leader took
share-partitions over together with their acquired records.

    leader wants, alone among those who do     the whole limit less the others' leases
    leader wants, others do too                an equal part, as soon as the others' next reports have given it back;
                                               the remainder goes to those served longest ago
    leader wants nothing more                  its records in flight
    a coordinator that has just begun          nothing new until all leases of its predecessor are void, but the
                                               lease that a leader reports
"""

from __future__ import annotations

from typing import Final, NamedTuple

LEASE_MS: Final = 2_000
"""Age, in ms, from which a leader's lease is void at the leader, which then hands out nothing more."""
FORGET_MS: Final = 3_000
"""Time, in ms, for which a lease counts here: longer than the leader uses it, by more than an answer may take."""


class Report(NamedTuple):
    """A leader's report. leased: the lease that it still uses, 0 without one. wanting: it could hand out more. used: it
    handed out records since its last report, finished by now or not."""

    in_flight: int
    wanting: bool
    leased: int
    used: bool = False


class _Lease(NamedTuple):
    granted: int
    in_flight: int
    wanting: bool
    since_ms: int
    served_ms: int

    @property
    def counts(self) -> int:
        return max(self.granted, self.in_flight)


class Leases:
    """The leases of one group. begun_ms: the time at which this coordinator began to give leases."""

    def __init__(self, begun_ms: int) -> None:
        self._begun_ms = begun_ms
        self._leases: dict[int, _Lease] = {}

    def grant(self, leader: int, report: Report, limit: int, now_ms: int) -> int:
        """Return the leader's lease from now on, in records."""
        self._forget(now_ms)
        before = self._leases.get(leader)
        served_ms = now_ms if report.in_flight or report.used else (-1 if before is None else before.served_ms)
        others = [lease for node, lease in self._leases.items() if node != leader]
        free = max(0, limit - sum(lease.counts for lease in others))
        if now_ms < self._begun_ms + FORGET_MS and leader not in self._leases:
            granted = min(free, report.leased)  # the former coordinator's leases of leaders that have not reported yet
        elif report.wanting:
            granted = min(free, max(report.in_flight, _part(others, limit, served_ms)))
        else:
            granted = min(free, report.in_flight)
        if now_ms >= self._begun_ms + FORGET_MS or report.leased or leader in self._leases:
            self._leases[leader] = _Lease(granted, report.in_flight, report.wanting, now_ms, served_ms)
        return granted

    @property
    def leased(self) -> int:
        """The sum of the leases that count."""
        return sum(lease.counts for lease in self._leases.values())

    def _forget(self, now_ms: int) -> None:
        old = [node for node, lease in self._leases.items() if lease.since_ms + FORGET_MS <= now_ms]
        for node in old:
            del self._leases[node]


def _part(others: list[_Lease], limit: int, served_ms: int) -> int:
    """Return the part of the limit for a leader that wants more, beside the others."""
    wanting = [lease for lease in others if lease.wanting]
    divided = max(0, limit - sum(lease.counts for lease in others if not lease.wanting))
    part, rest = divmod(divided, 1 + len(wanting))
    return part + (sum(lease.served_ms < served_ms for lease in wanting) < rest)
