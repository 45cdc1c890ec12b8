"""Limits of a group on this server, over all its share-partitions: most records in flight (`share.max.in.flight`), and
records that may be handed out at present (`share.max.rate`, its breaker).

A share-partition counts in its group's limits while it is loaded. When only a limit keeps fetches from records of a
share-partition, those fetches are held up: they look again when a record of the group became free on any
share-partition, or when more may be handed out. The core (`share.allotment`) decides which member then comes first.

The limit in flight is the `max_in_flight` of the group's config as it acts here. In a fleet the group's coordinator
leases it to this server as a part of the whole, 0 included, and may change it at any time. Permits to hand out come in
small numbers (`Quotas.add`), from the coordinator of the fleet, or on a server by itself from
`share.rates_and_breakers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.share.allotment import Allotment
from flowshare.share.rate import Permits

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowshare.clock import Clock
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.waiters import Waiters
    from flowshare.share.breaker import Gate

WAKES: Final = 16
"""Least share-partitions that look again, even if fewer records became free: the first may find nothing by then."""


class Quota:
    """The limits of one group. permits: None: no limit on handing out."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.allotment = Allotment()
        self.permits: Permits | None = None
        self.breaks = False
        """True if the group has a breaker."""
        self._owners: set[PartitionOwner] = set()
        self._held_up: dict[Waiters, None] = {}
        self._waited_s = 0.0
        self._waits_since_s: float | None = None

    @property
    def rate_limited_s(self) -> float:
        """Seconds that fetches have waited for available records while the rate left none, since it was set."""
        since_s = self._waits_since_s
        return self._waited_s + (0.0 if since_s is None else self._clock.monotonic() - since_s)

    @property
    def in_flight(self) -> int:
        """Records acquired by members."""
        return self.allotment.tally.total

    @property
    def wanting(self) -> bool:
        """True if records wait only for the group's limit or rate: this server then needs its part of the limit."""
        paced = self.permits is not None and self.permits.used_up
        return bool(self._held_up) and (self.allotment.used_up or paced)

    def hold_up(self, waiting: Waiters) -> None:
        """Note fetches that wait for a limit."""
        self._held_up.setdefault(waiting)
        self.ask_again()
        if self._waits_since_s is None and self.permits is not None and self.permits.free == 0:
            self._waits_since_s = self._clock.monotonic()

    def let_through(self, count: int) -> None:
        """Allow `count` more records to be handed out by the rate, if the group has one."""
        if self.permits is not None and self.permits.free is not None:
            self.permits.free += count
            self._wait_ends()
            self.pass_on()

    def _wait_ends(self) -> None:
        self._waited_s, self._waits_since_s = self.rate_limited_s, None

    def ask_again(self) -> None:
        """Tell the permits that some are lacked, if fetches wait for them; called many times a second."""
        if self._held_up and self.permits is not None and self.permits.used_up:
            self.permits.lack()
        if self._waits_since_s is not None and not any(len(waiting.queue) for waiting in self._held_up):
            self._wait_ends()  # a fetch that was turned away waits for nothing

    def pass_on(self) -> None:
        """Let held-up fetches look again, if there is room."""
        if not self._held_up or self.allotment.used_up or (self.permits is not None and self.permits.used_up):
            return
        limit = self.allotment.limit
        count = len(self._held_up) if limit is None else max(WAKES, limit - self.in_flight)
        if self.permits is not None and self.permits.free is not None:
            count = min(count, max(WAKES, self.permits.free))
        for waiting in tuple(self._held_up)[:count]:
            del self._held_up[waiting]
            waiting.look()

    def join(self, owner: PartitionOwner) -> None:
        """Count a share-partition's records in flight in these limits from now on."""
        self._owners.add(owner)
        owner.waiting.quota = self
        owner.partition.allowance.quota = self.allotment
        owner.partition.allowance.permits = self.permits

    def pace(self, *, paced: bool, broken: bool) -> None:
        """Hand out from now on by a rate, a breaker, or both; or without limit."""
        before = self.permits
        if paced or broken:
            permits = before or Permits()
            permits.free = (permits.free or 0) if paced else None
            permits.gate = (0 if before is None or not self.breaks else permits.gate) if broken else None
            self.permits = permits
        else:
            self.permits = None
        if not paced:
            self._waited_s, self._waits_since_s = 0.0, None
        self.breaks = broken
        if self.permits is not before:
            for owner in self._owners:
                owner.partition.allowance.permits = self.permits

    def part(self, owner: PartitionOwner) -> bool:
        """Stop counting a share-partition; return True if it was the last one."""
        self._owners.discard(owner)
        self._held_up.pop(owner.waiting, None)
        if not self._held_up:
            self._wait_ends()
        owner.waiting.quota = None
        owner.partition.allowance.quota = owner.partition.allowance.permits = None
        return not self._owners


class Quotas:
    """The limits of all groups that have one. paced: called for each group that has a rate or a breaker here."""

    def __init__(self, clock: Clock, paced: Callable[[], object] = lambda: None) -> None:
        self._clock = clock
        self._paced = paced
        self._by_group: dict[str, Quota] = {}

    def of(self, group_id: str) -> Quota | None:
        """Return a group's limits; None: it has none, or no share-partition is loaded."""
        return self._by_group.get(group_id)

    @property
    def paced(self) -> dict[str, Permits]:
        """The permits to hand out records here, by group, for the groups that have a rate or a breaker."""
        return {group: quota.permits for group, quota in self._by_group.items() if quota.permits is not None}

    @property
    def rate_limited_s(self) -> dict[str, float]:
        """`Quota.rate_limited_s` of each group with a rate."""
        return {
            group: quota.rate_limited_s
            for group, quota in self._by_group.items()
            if quota.permits is not None and quota.permits.free is not None
        }

    def ask_again(self) -> None:
        """Tell all permits that some are lacked, where fetches wait for them."""
        for quota in self._by_group.values():
            quota.ask_again()

    def add(self, group_id: str, count: int) -> None:
        """Allow `count` more records of a group."""
        quota = self._by_group.get(group_id)
        if count > 0 and quota is not None:
            quota.let_through(count)

    def open_gate(self, group_id: str, gate: Gate) -> None:
        """Let a group's breaker decide by `gate`."""
        quota = self._by_group.get(group_id)
        if quota is not None and quota.permits is not None and quota.breaks:
            quota.permits.open_gate(gate)
            quota.pass_on()

    def follow(self, owner: PartitionOwner) -> None:
        """Apply a group's present limits to a loaded share-partition."""
        group_id, config = owner.key.group_id, owner.config
        if config.max_in_flight is None and config.max_rate is None and config.breaker is None:
            self.leave(owner)
            return
        quota = self._by_group.setdefault(group_id, Quota(self._clock))
        quota.allotment.limit = config.max_in_flight
        quota.pace(paced=config.max_rate is not None, broken=config.breaker is not None)
        if owner.waiting.quota is not quota:
            quota.join(owner)
        if quota.permits is not None:
            self._paced()

    def leave(self, owner: PartitionOwner) -> None:
        """Remove a share-partition that is not loaded any more, or whose group has no limit any more."""
        quota = owner.waiting.quota
        if quota is None:
            return
        if quota.part(owner):
            self._by_group.pop(owner.key.group_id, None)
        else:
            quota.pass_on()
