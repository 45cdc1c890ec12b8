"""Fetches at one share-partition: their wants, their records, and the order of waking them."""

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
"""Reads of a fetch that are tried while other fetches move on the cursor during each."""
CHOOSY_WAKES: Final = 16
"""Fetches woken at once while limits choose among members: the first in line may be one that may not acquire."""


class Want(NamedTuple):
    """The wants of a fetch at one share-partition. `waiter.ended` stops the fetch from acquiring any more."""

    member_id: str
    mode: AcquireMode
    records_max: int
    batch_size: int
    bytes_max: int
    with_records: bool
    waiter: Waiter
    heads: int = 0
    """In an ordered group: most keys to begin (0: as many as records). `chain`: most records of a key at once."""
    chain: int = 1


class Taken(NamedTuple):
    """The records that a fetch got. durable: to be awaited before the records leave; raises StorageError.

    fence: in an ordered group: the load's generation, and the serial number of the first record; a record n offsets
    behind it has a serial number that is n higher. following: records of parked keys, which are to become dead letters
    unrun: offset -> offset of the record that the key was parked for.
    """

    ranges: tuple[AcquiredRange, ...] = ()
    records: bytes = b""
    durable: asyncio.Future[None] | None = None
    fence: tuple[int, int] | None = None
    following: Mapping[int, int] = MappingProxyType({})
    locked_ms: int = 0
    """Begin of the locks, in ms of the steady clock."""


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
        """parked: for an ordered group. alarm: rung when there is a new time to look again."""
        self._partition = partition
        self._log = log
        self._guard = guard
        self._parked = parked
        self._writer = writer
        self._clock = clock
        self._alarm = alarm
        self._closed = False
        self._passed: set[Waiter] = set()
        """Fetches that wait for more bytes than there were at a look since the last nudge."""
        self.queue = WaitQueue()
        self.quota: Quota | None = None

    def has_work(self) -> bool:
        """Return True if a fetch would find records to acquire now, as far as known without reading."""
        may = self._guard.sure and not self._writer.full
        return may and self._partition.can_acquire() and self._has_records()

    def ready(self, member_id: str, records_max: int) -> bool:
        """Return `has_work`; if only limits keep a member from `records_max` records, the member waits its turn from
        now on."""
        if self.has_work():
            return True
        if self._has_records():
            self._partition.may_acquire(member_id, records_max, self._clock.steady_ms())
            self.turned_away()
        else:
            self._partition.allowance.dry(member_id)
        return False

    def park(self, waiter: Waiter, member_id: str, *, singles: bool = False) -> None:
        """Wake a member's `waiter` when there may be records for it; singles: records of parked keys, too."""
        self.queue.park(waiter, member_id, singles=singles)

    def step_aside(self, waiter: Waiter) -> None:
        """Take a going-on fetch's waiter out of the line; wake the next one if there are records."""
        with contextlib.suppress(CoreError, LogError):  # the next fetch meets the error
            if self.quota is not None and not self.has_work() and self._has_records():
                self.quota.hold_up(self)  # the fetch would acquire more than the limit gives
        self.queue.leave(waiter)
        self.look()

    def leave(self, waiter: Waiter, member_id: str) -> None:
        """Take a waiter out of the line."""
        self.queue.leave(waiter)
        self._passed.discard(waiter)
        self._partition.allowance.leave(member_id, self._clock.steady_ms())

    def nudge(self) -> None:
        """Wake the fetch to be served first, if there are records for it; called when some may have become free."""
        self._passed.clear()
        self.look()
        if self.quota is not None:
            self.quota.pass_on()

    def pass_on(self, waiter: Waiter) -> None:
        """Wake the next fetch that may have enough bytes: this one looked, and found less than it waits for.

        Others that wait for as many bytes of no other share-partitions need not look: with many members each append
        would be read by all.
        """
        self._passed.add(waiter)
        alike = [one for one in self.queue if one.min_bytes >= waiter.min_bytes and one.keys <= waiter.keys]
        self._passed.update(alike)
        self.look()

    def look(self) -> None:
        """Do `nudge` for this share-partition alone."""
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
            self.queue.wake_some(CHOOSY_WAKES, self._passed)
        elif place is not None:
            self.queue.wake_by(place, self._passed)
        elif self._parked is not None:
            self.queue.wake_poor(self._partition.holders, self._partition.available_count, apart=bool(self._parked))
        else:
            self.queue.wake_some(1, self._passed)

    def turned_away(self) -> None:
        """Look again later, as limits leave nothing for a member now: when the group, or a member served before, leaves
        some."""
        if self.quota is not None:
            self.quota.hold_up(self)
        if self._partition.allowance.again_ms is not None:
            self._alarm.ring()

    def close(self) -> None:
        """Wake all fetches to look elsewhere."""
        self._closed = True
        self.queue.wake_all()

    def _has_records(self) -> bool:
        if self._closed:
            return False
        return self._partition.has_records(self._log.end())
