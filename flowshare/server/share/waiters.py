"""Fetches at one share-partition: what each wants and gets, whether there is something for it, which one is woken."""

from __future__ import annotations

import contextlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.core_errors import CoreError
from flowshare.log.base import LogError
from flowshare.server.runtime.waiting import WaitQueue

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from flowshare.clock import Clock
    from flowshare.server.runtime.waiting import Alarm, Waiter
    from flowshare.server.share.parked_keys import ParkedKeys
    from flowshare.server.share.partition_log import LogGuard, PartitionLog
    from flowshare.server.share.quotas import Quota
    from flowshare.server.share.writing import StateWriter
    from flowshare.share.partition import SharePartition
    from flowshare.share.types import AcquiredRange, AcquireMode

READ_TRIES: Final = 8
"""How often a fetch reads again because another fetch moved on the cursor while it read."""
CHOOSY_WAKES: Final = 16
"""Fetches woken at once while it depends on the member what it may take: the first in line may be one that may not."""


class Want(NamedTuple):
    """What a fetch wants of one share-partition. `waiter.ended` stops it from acquiring any more."""

    member_id: str
    mode: AcquireMode
    records_max: int
    batch_size: int
    bytes_max: int
    with_records: bool
    waiter: Waiter
    heads: int = 0
    """Where there is an order: so many keys may be begun (0: as many as records), and so long is a chain."""
    chain: int = 1


class Taken(NamedTuple):
    """What a fetch got. `durable`: to be awaited before the records leave; raises StorageError.

    fence: where there is an order: the load's generation, and the serial number of the first record; one that is n
    offsets behind it has one that is n higher. following: of parked keys, which are to become dead letters unrun:
    offset -> the record that the key was parked for.
    """

    ranges: tuple[AcquiredRange, ...] = ()
    records: bytes = b""
    durable: asyncio.Future[None] | None = None
    fence: tuple[int, int] | None = None
    following: Mapping[int, int] = MappingProxyType({})
    locked_ms: int = 0
    """When the locks began, on the steady clock."""


NOTHING: Final = Taken()


class Waiters:
    """The fetches that wait at one loaded share-partition."""

    def __init__(
        self,
        partition: SharePartition,
        *,
        log: PartitionLog,
        guard: LogGuard,
        parked: ParkedKeys | None,
        writer: StateWriter,
        clock: Clock,
        alarm: Alarm,
    ) -> None:
        """parked: where there is an order. alarm: rung when there is a new time to look again."""
        self._partition = partition
        self._log = log
        self._guard = guard
        self._parked = parked
        self._writer = writer
        self._clock = clock
        self._alarm = alarm
        self._closed = False
        self.queue = WaitQueue()
        self.quota: Quota | None = None

    def has_work(self) -> bool:
        """Whether a fetch would find something to acquire now, as far as can be told without reading."""
        may = self._guard.sure and not self._writer.full
        return may and self._partition.can_acquire() and self._has_records()

    def ready(self, member_id: str, records_max: int) -> bool:
        """`has_work`; a member that only limits keep from `records_max` records has its turn from now on."""
        if self.has_work():
            return True
        if self._has_records():
            self._partition.may_acquire(member_id, records_max, self._clock.steady_ms())
            self.turned_away()
        else:
            self._partition.allowance.dry(member_id)
        return False

    def park(self, waiter: Waiter, member_id: str, *, singles: bool = False) -> None:
        """Wake a member's `waiter` when there may be something for it; singles: records of parked keys, too."""
        self.queue.park(waiter, member_id, singles=singles)

    def step_aside(self, waiter: Waiter) -> None:
        """Wake it no more, but the next one if there is something; its fetch goes on."""
        with contextlib.suppress(CoreError, LogError):  # who looks next meets the error
            if self.quota is not None and not self.has_work() and self._has_records():
                self.quota.hold_up(self)  # it would take more than the limit gives
        self.queue.leave(waiter)
        self.look()

    def leave(self, waiter: Waiter, member_id: str) -> None:
        """Wake it no more."""
        self.queue.leave(waiter)
        self._partition.allowance.leave(member_id, self._clock.steady_ms())

    def nudge(self) -> None:
        """Something may have become free: wake the fetch that is to be served first if there is something for it."""
        self.look()
        if self.quota is not None:
            self.quota.pass_on()

    def look(self) -> None:
        """`nudge`, for this share-partition alone."""
        if len(self.queue) == 0:
            return
        try:
            work = self.has_work()
            records = work or self._has_records()
        except (CoreError, LogError):
            work = records = True  # the fetch will meet the error and answer with it
        if not records:
            self._partition.allowance.dry()
        elif not work and self.quota is not None:
            self.quota.hold_up(self)
        if not work:
            return
        place = self._partition.first_served(self._clock.steady_ms())
        if self._partition.choosy:
            self.queue.wake_some(CHOOSY_WAKES)
        elif place is not None:
            self.queue.wake_by(place)
        elif self._parked is not None:
            self.queue.wake_poor(self._partition.holders, self._partition.available_count, apart=bool(self._parked))
        else:
            self.queue.wake_some(1)

    def turned_away(self) -> None:
        """Limits leave nothing for a member now: look again when the group, or who is before it, may have left some."""
        if self.quota is not None:
            self.quota.hold_up(self)
        if self._partition.allowance.again_ms is not None:
            self._alarm.ring()

    def close(self) -> None:
        """There is nothing any more; those who wait look elsewhere."""
        self._closed = True
        self.queue.wake_all()

    def _has_records(self) -> bool:
        if self._closed:
            return False
        return self._partition.has_records(self._log.end())
