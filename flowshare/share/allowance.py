"""The number of records that a member may acquire of a share-partition now, by its record locks and the group's limits.

Limits of records in flight are an `Allotment` each, the group's over all share-partitions of one leader; `Permits` are
the records that the group may be handed at all now, first come, first served. A group that counts as Kafka's brokers do
(`window_max` None) limits the span of its window, not the records in flight: nothing is divided then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flowshare.share.allotment import Allotment, Grant, Tally
from flowshare.share.rate import Permits


class AskedRecords(NamedTuple):
    """A member's request for records, and how many of them the limits grant: `records`, 0 when others come first."""

    member_id: str
    wanted: int
    grants: list[Grant]
    records: int


class Allowance:
    """The limits of one share-partition, asked before each acquire and told after it.

    tally: the records of the share-partition that each member holds.
    """

    __slots__ = ("_locks", "_quota", "_tally", "again_ms", "permits")

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._locks = Allotment(None, tally)
        self._quota: Allotment | None = None
        self.again_ms: int | None = None
        """The time at which a member that waits for others is worth another look."""
        self.permits: Permits | None = None
        """The records of the group that may be handed out now; None: any number. Set it at any time."""

    def limit(self, records_max: int | None) -> None:
        """Set the share-partition's own limit; None: no limit."""
        self._locks.limit = records_max

    @property
    def quota(self) -> Allotment | None:
        """The group's limit; set it at any time: records held then count in it from then on."""
        return self._quota

    @quota.setter
    def quota(self, quota: Allotment | None) -> None:
        if self._quota is not None:
            self._quota.dry(self)
        self._tally.join(None if quota is None else quota.tally)
        self._quota = quota

    @property
    def used_up(self) -> bool:
        """True if the group's limits leave no record to any member."""
        if self.permits is not None and self.permits.used_up:
            return True
        return self._quota is not None and self._quota.used_up

    @property
    def exact(self) -> bool:
        """True if limits are kept to the record, and not to the log's batches."""
        return self._quota is not None or self.permits is not None

    def plenty(self, wanted: int) -> bool:
        """True if a member can have this many records without asking: no member waits, and the group has no limit."""
        return self._quota is None and self.permits is None and self._locks.plenty(wanted)

    def ask(self, member_id: str, wanted: int, now_ms: int) -> AskedRecords:
        """Return how many of `wanted` available records a member may acquire now; call `settle` with the result."""
        grants = [part.grant(member_id, wanted, now_ms) for part in self._parts()]
        records = min(grant.records for grant in grants)
        if self.permits is not None:
            records = self.permits.grant(records)
        return AskedRecords(member_id, wanted, grants, records)

    def settle(self, asked: AskedRecords, got: int, now_ms: int) -> None:
        """Tell the limits how many of the asked records the member got."""
        if self.permits is not None:
            self.permits.take(got)
        for part, grant in zip(self._parts(), asked.grants, strict=True):
            if got:
                part.served(asked.member_id)
            if grant.records < asked.wanted and got >= grant.records:
                part.cut(asked.member_id, self, now_ms)
                if grant.again_ms is not None and (self.again_ms is None or grant.again_ms < self.again_ms):
                    self.again_ms = grant.again_ms
            else:
                part.satisfied(asked.member_id)

    def put_back(self, count: int) -> None:
        """Take back `count` records that a member got but that were not handed out."""
        if self.permits is not None:
            self.permits.put_back(count)

    def leave(self, member_id: str, now_ms: int) -> None:
        """Note that a member stopped waiting here."""
        for part in self._parts():
            part.leave(member_id, self, now_ms)

    def dry(self, member_id: str | None = None) -> None:
        """Note that this share-partition has no records for any member. member_id: the member that came to look."""
        for part in self._parts():
            part.dry(self, member_id)

    def contended(self, now_ms: int) -> bool:
        """True if members wait for one of the limits."""
        return any(part.contended(now_ms) for part in self._parts())

    def places(self) -> Callable[[str], tuple[int, int]]:
        """Return a sort key for members: those to be served first come first."""
        return self._parts()[-1].places()

    def forget(self, member_id: str) -> None:
        """Drop all state of a member that is gone."""
        for part in self._parts():
            part.forget(member_id)

    def _parts(self) -> tuple[Allotment, ...]:
        return (self._locks,) if self._quota is None else (self._locks, self._quota)
