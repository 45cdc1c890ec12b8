"""`share.max.in.flight`: how many records of a group may be in flight on this server, over all its share-partitions.

A share-partition counts in its group's limit while it is loaded. When only the limit keeps fetches from records of a
share-partition, those are held up: they look again when something of the group became free on any share-partition.
Which member comes first then is the core's business (`share.allotment`).

The number is the `max_in_flight` of the group's config as it acts here. In a fleet that is what the group's coordinator
leases this server of the whole, 0 included, and it may change at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.share.allotment import Allotment

if TYPE_CHECKING:
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.waiters import Waiters

WAKES: Final = 16
"""Share-partitions that look again at once, even if fewer records became free: the first may find nothing by then."""


class Quota:
    """The limit of one group."""

    def __init__(self) -> None:
        self.allotment = Allotment()
        self._owners: set[PartitionOwner] = set()
        self._held_up: dict[Waiters, None] = {}

    @property
    def in_flight(self) -> int:
        """Records that members hold."""
        return self.allotment.tally.total

    @property
    def wanting(self) -> bool:
        """Whether more could be handed out if the limit was higher."""
        return self.allotment.used_up and bool(self._held_up)

    def hold_up(self, waiting: Waiters) -> None:
        """These wait for the limit."""
        self._held_up.setdefault(waiting)

    def pass_on(self) -> None:
        """Let those look again that are held up, if there is room."""
        if not self._held_up or self.allotment.used_up:
            return
        limit = self.allotment.limit
        count = len(self._held_up) if limit is None else max(WAKES, limit - self.in_flight)
        for waiting in tuple(self._held_up)[:count]:
            del self._held_up[waiting]
            waiting.look()

    def join(self, owner: PartitionOwner) -> None:
        """What is in flight there counts from now on."""
        self._owners.add(owner)
        owner.waiting.quota = self
        owner.partition.allowance.quota = self.allotment

    def part(self, owner: PartitionOwner) -> bool:
        """It counts no more; whether that was the last one."""
        self._owners.discard(owner)
        self._held_up.pop(owner.waiting, None)
        owner.waiting.quota = None
        owner.partition.allowance.quota = None
        return not self._owners


class Quotas:
    """The limits of all groups that have one."""

    def __init__(self) -> None:
        self._by_group: dict[str, Quota] = {}

    def of(self, group_id: str) -> Quota | None:
        """That of a group; None: it has no limit, or no share-partition is loaded."""
        return self._by_group.get(group_id)

    def follow(self, owner: PartitionOwner) -> None:
        """Keep a loaded share-partition to its group's limit as it is now configured."""
        group_id, limit = owner.key.group_id, owner.config.max_in_flight
        if limit is None:
            self.leave(owner)
            return
        quota = self._by_group.setdefault(group_id, Quota())
        quota.allotment.limit = limit
        if owner.waiting.quota is not quota:
            quota.join(owner)

    def leave(self, owner: PartitionOwner) -> None:
        """A share-partition is loaded no more, or its group has no limit any more."""
        quota = owner.waiting.quota
        if quota is None:
            return
        if quota.part(owner):
            self._by_group.pop(owner.key.group_id, None)
        else:
            quota.pass_on()
