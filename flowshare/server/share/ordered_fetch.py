"""A fetch of one share-partition whose group has an order by key: keys are learnt, free ones picked, records read.

    place   batches of the log are opened until enough keys are free, or the window is full
    pick    free keys, each with the records that may follow its first; from here on they are the member's
    read    the picked records, thinned out of their batches; records without room in the answer are put back
    judge   the records of parked keys (`ParkedKeys`)
    hand    the rest; durable before it leaves, with the records that were finished before it

Each step after a wait looks anew at state that may have changed. A fetch of a member that holds records leaves a key
for each waiting member that holds none.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.core_errors import InvalidRequest
from flowshare.log.base import LogError, OffsetOutOfRange
from flowshare.server.share.waiters import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowshare.clock import Clock
    from flowshare.server.runtime.state import ShareKey, Write
    from flowshare.server.share.opened_log import OpenedLog
    from flowshare.server.share.parked_keys import ParkedKeys
    from flowshare.server.share.partition_log import LogGuard
    from flowshare.server.share.waiters import Taken, Waiters, Want
    from flowshare.share.acquire import Acquisition
    from flowshare.share.acquire_by_key import Picked
    from flowshare.share.partition import SharePartition
    from flowshare.share.types import AcquiredRange, BlockedKey, PartitionUpdate

logger = logging.getLogger(__name__)

PICK_TRIES: Final = 8
"""Times that a fetch picks again because all picked records were gone."""
PLACE_ROUNDS: Final = 8
"""Rounds in which a fetch reads on for more keys while it has some to hand out already; the next fetch goes on."""
PLACE_ROUNDS_MAX: Final = 10_000
"""Rounds at most: more than any window has batches."""
PLACE_FOR: Final = 1_000
"""Most waiting members for whose keys a fetch reads on."""
STUCK_KEYS: Final = 5
"""Keys named of those that hold up most records."""
STUCK_FOR_S: Final = 2.0
"""Seconds that the found keys are reported again: finding them is a scan of the window."""
WINDOW_WARN: Final = 0.8
"""Used part of the window above which the log names the keys that hold it open."""
WARN_AGAIN_S: Final = 60.0


class Served(Protocol):
    """The owner of a share-partition, as an ordered fetch needs it."""

    @property
    def parks(self) -> bool:
        """True if rejected records may park their keys, or belong to parked keys."""
        ...

    def check_open(self) -> None:
        """Check that the share-partition is served here. Raises: UnknownTopicOrPartition, NotLed."""
        ...

    def out_of_range(self) -> bool:
        """Handle an offset that the log does not have: follow the log's start and return True, or find the reason and
        return False."""
        ...

    def queue(self, update: PartitionUpdate | None) -> None:
        """Queue the write of an update that holds already, if there is one, or note a new deadline."""
        ...

    def handed(
        self,
        acquisition: Acquisition,
        records: bytes,
        now_ms: int,
        *,
        beside: Sequence[Write] = (),
        durable: bool = False,
    ) -> Taken:
        """Count acquired records, and queue the write where one is needed or `durable` asks for it."""
        ...


class OrderedFetch:
    """All ordered fetches of one share-partition."""

    def __init__(
        self,
        owner: Served,
        key: ShareKey,
        *,
        partition: SharePartition,
        opened: OpenedLog,
        parked: ParkedKeys,
        guard: LogGuard,
        waiting: Waiters,
        clock: Clock,
        generation: int,
        where: str,
    ) -> None:
        """generation: number of this load, see `Taken.fence`."""
        self._owner = owner
        self._key = key
        self._partition = partition
        self._opened = opened
        self._parked = parked
        self._guard = guard
        self._waiting = waiting
        self._clock = clock
        self._generation = generation
        self._where = where
        self._serial = 0
        """Serial number of the next acquired record; never used again within the generation."""
        self._placing = asyncio.Lock()
        self._stuck: tuple[float, tuple[BlockedKey, ...]] = (-STUCK_FOR_S, ())
        self._warn_at_s = 0.0

    def forget(self) -> None:
        """Forget the opened batches: the log may have changed."""
        self._opened.forget()

    def close(self) -> None:
        """Drop all read batches."""
        self._opened.close()

    def stuck(self) -> tuple[BlockedKey, ...]:
        """Return the keys that hold up most records, as they were up to STUCK_FOR_S ago."""
        now_s = self._clock.monotonic()
        if now_s - self._stuck[0] >= STUCK_FOR_S or not self._partition.blocked_count:
            self._stuck = now_s, self._partition.most_blocked(STUCK_KEYS)
        return self._stuck[1]

    async def take(self, want: Want) -> Taken:
        """Acquire as `PartitionOwner.take`."""
        if not want.with_records:
            raise InvalidRequest(
                f"group {self._key.group_id} delivers in the order of keys (share.key.order): ranges of offsets "
                "without their records are not to be had of it; give what reads it a group of its own"
            )
        taken = NOTHING
        want.waiter.at = self._waiting.queue
        try:
            for _ in range(PICK_TRIES):
                found = await self._take_heads(want)
                if found is None:
                    break
                taken = found
                if taken.ranges:
                    break  # else all picked records were gone, or settled by a replay: there may be others
        finally:
            want.waiter.at = None
        return taken

    async def _take_heads(self, want: Want) -> Taken | None:
        """Hand out heads, once; None: there are none. Raises: as `take`."""
        heads = min(want.heads or want.records_max, want.records_max)
        self._drop_gone()
        try:
            await self._place_enough(want, heads + self._waiting_for_a_key(want, PLACE_FOR))
        except OffsetOutOfRange:
            self._owner.out_of_range()
            return None
        except LogError:
            if not self._partition.available_count:
                raise  # else the free records can be handed out
        if not self._waiting.has_work() or want.waiter.abandoned:
            return None
        now_ms = self._clock.steady_ms()
        heads = self._keys_for(want, heads, now_ms)
        if not heads:
            if not self._waiting.queue.called:
                self._waiting.look()  # all free keys are for waiting members, so those are woken
            return None
        picked = self._partition.pick(
            want.member_id,
            records_max=want.records_max,
            heads_max=heads,
            chain=want.chain,
            now_ms=now_ms,
            singles=want.heads > 0,
        )
        self._owner.queue(None)  # a new deadline
        if not picked.ranges:
            self._waiting.turned_away()
            return None
        return await self._read_picked(want, picked, now_ms)

    # --- place: learn the next keys of the log ------------------------------------------------------------------

    def _drop_gone(self) -> None:
        """Archive records that retention deleted while a member held them, once released: their keys wait for nothing
        else."""
        log_start = self._opened.log_start
        if self._partition.start_offset < log_start and self._partition.has_free_below(log_start):
            update = self._partition.move_log_start(log_start)
            if update is not None:
                self._owner.queue(update)

    async def _place_enough(self, want: Want, enough: int) -> None:
        """Learn keys until `enough` are free. Raises: as `take`, OffsetOutOfRange."""
        for rounds in range(PLACE_ROUNDS_MAX):
            free = self._partition.available_count
            if free >= enough or (rounds >= PLACE_ROUNDS and free) or not self._waiting.has_work():
                return
            if not await self._place_more(want):
                return
            await asyncio.sleep(0)  # a backlog of one key is placed to its end: other tasks are to have a turn

    async def learn(self) -> None:
        """Learn the keys of the window's records, as far as that is possible now: after a reload no fetch may have
        learnt any. Raises: as `take`."""
        for _ in range(PLACE_ROUNDS_MAX):
            if self._partition.keys_known:
                return
            try:
                if not await self._place_more(None):
                    return
            except OffsetOutOfRange:
                if not self._owner.out_of_range():
                    return
            await asyncio.sleep(0)

    async def _place_more(self, want: Want | None) -> bool:
        """Learn the next keys of the log; return True if going on is useful. Raises: as `take`, OffsetOutOfRange."""
        owner, partition = self._owner, self._partition
        offset = partition.next_place_offset(self._opened.end())
        if offset < 0:
            return False
        async with self._placing:
            if offset != partition.next_place_offset(self._opened.end()):
                return True  # another fetch did meanwhile
            batches, epoch = await self._opened.keys(offset)
            owner.check_open()
            if (want is not None and want.waiter.abandoned) or not self._guard.trusts(epoch):
                return False
            if offset != partition.next_place_offset(self._opened.end()):
                return True
            update = partition.place(batches, log_epoch=epoch)
        if update is not None:
            owner.queue(update)
        if partition.window_used >= WINDOW_WARN:
            self._warn_of_window()
        return offset != partition.next_place_offset(self._opened.end())

    def _warn_of_window(self) -> None:
        """Log the keys that hold the window open, before it is full and all keys stand still (SG-18.9)."""
        now_s = self._clock.monotonic()
        if now_s < self._warn_at_s or not any(one.state != "AVAILABLE" for one in self.stuck()):
            return  # logged a while ago, or a backlog that is only beginning
        self._warn_at_s = now_s + WARN_AGAIN_S
        start = self._partition.start_offset
        keys = ", ".join(f"{one.offset} ({one.blocked} behind it, {one.state.lower()})" for one in self.stuck())
        logger.warning(
            "%.0f %% of the window is used: offset %d is not finished, and %d records wait for another one of their "
            "key; when it is full, no key goes on. Most wait for the offsets %s %s",
            100 * self._partition.window_used,
            start,
            self._partition.blocked_count,
            keys,
            self._where,
        )

    # --- pick: how many keys ------------------------------------------------------------------------------------

    def _keys_for(self, want: Want, heads: int, now_ms: int) -> int:
        """Return how many of `heads` keys a fetch may take: one each is left for waiting members that hold nothing.

        A member that holds nothing itself gets one in any case: reasons not seen here may keep the others. A limit that
        decides which member is served first is followed instead, and so is the quarantine while a suspect's member is
        looked for.
        """
        partition = self._partition
        if partition.choosy or partition.first_served(now_ms) is not None:
            return heads
        free = partition.available_count
        left = free - self._waiting_for_a_key(want, free)
        return min(heads, max(left, 0 if want.member_id in partition.holders else 1))

    def _waiting_for_a_key(self, want: Want, most: int) -> int:
        """Return how many other members wait or are called, hold nothing and take the records of this fetch; at most
        `most`."""
        singles = want.heads > 0 if self._parked else None
        return self._waiting.queue.poor(self._partition.holders, want.member_id, most, singles=singles)

    # --- read, judge, hand out ----------------------------------------------------------------------------------

    async def _read_picked(self, want: Want, picked: Picked, now_ms: int) -> Taken | None:
        """Read picked records and hand them out; records without room in the answer go back. None: all went back.

        Raises: as `take`.
        """
        owner, partition, parked = self._owner, self._partition, self._parked
        try:
            read = await self._opened.records(picked.ranges, bytes_max=want.bytes_max)
            kept = picked if read.end < 0 else picked.split(read.end)[0]
            seen = await parked.look(kept, read.marked)
            owner.check_open()
        except OffsetOutOfRange:
            partition.put_back(picked)
            owner.out_of_range()
            return None
        except BaseException:
            partition.put_back(picked)
            raise
        if want.waiter.abandoned:
            partition.put_back(picked)
            self._waiting.nudge()
            return None
        if read.end == picked.ranges[0].first or not self._guard.trusts(read.epoch):
            partition.put_back(picked)  # the records cannot be read now, or may have changed by now
            return None
        if read.end >= 0:
            picked, rest = picked.split(read.end)
            partition.put_back(rest)
        judged = parked.judge(seen)
        missing = sorted((*read.missing, *judged.settled)) if judged.settled else read.missing
        acquisition = partition.confirm(want.member_id, picked, missing=missing)
        ranges = acquisition.ranges
        if owner.parks:
            parked.handed_out(ranges, read, judged.following)
        else:
            parked.forget_held()
        given = {at for first, last, _ in ranges for at in range(first, last + 1)} if judged.changes else ()
        changes = [change for change in judged.changes if change[1] is not None and change[1].flying in given]
        beside = parked.apply(changes) if changes else ()
        taken = owner.handed(acquisition, read.records, now_ms, beside=beside, durable=True)
        return taken._replace(fence=self._fence(ranges), following=judged.following)

    def _fence(self, ranges: Sequence[AcquiredRange]) -> tuple[int, int] | None:
        """Return a fence (`Taken.fence`, SG-18.10); serial numbers are used for the ranges and the gaps between
        them."""
        if not ranges:
            return None
        serial = self._serial
        self._serial += ranges[-1].last - ranges[0].first + 1
        return self._generation, serial
