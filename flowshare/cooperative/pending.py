"""Commits in transactions: what is pending, and who waits for the stable offset.

Pending offsets of a producer are those that its open transaction will commit. They are neither committed nor given to
anybody, and their keys are granted to nobody else, so that no record overtakes one that may come again.

    no transaction   reserve                  pending
    pending          reserve, same epoch      these, too
    pending          reserve, higher epoch    the old ones are dropped: the producer was fenced; the new ones pending
    pending          reserve, lower epoch     InvalidProducerEpoch; as before
    pending          complete, committed      to be committed, as any commit: a union
    pending          complete, aborted        dropped: they come again, but for what was committed besides
    pending, or no   complete, lower epoch    as before

Nothing here ends by a clock: only the transaction's coordinator knows whether a transaction that took too long was
aborted or committed, so a producer that died keeps its offsets until the coordinator, at its time-out, says so.

`StableWait` is for what may be seen only in the order of the partition: it is parked before anything of it is written,
until all offsets before its own are committed, and released in the order of these. It fails when it waits too long, or
a rebalance or an abort comes: then nothing of it is there, and it may be asked for again. It lives in memory, and is
bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from flowshare.cooperative.claims import Reserved
from flowshare.cooperative.ranges import Pair, merged, minus
from flowshare.cooperative.types import KeyRange, OffsetRange, PendingOffsets
from flowshare.core_errors import BoundReached, InvalidProducerEpoch

PENDING_RANGES_MAX: Final = 10_000
"""Ranges of one transaction in one partition."""
PRODUCERS_MAX: Final = 1_000
"""Open transactions of one partition."""
WAITING_MAX: Final = 1_000
WAIT_MS_MAX: Final = 60_000

Ticket = TypeVar("Ticket")


def is_stored(producer_id: int) -> bool:
    """True if the offsets pending under this id are stored. An id below 0 is that of a settle, which stands in the
    leader's log."""
    return producer_id >= 0


class Pending:
    """The pending offsets of one partition, by producer id. `state` is replaced, never changed in place."""

    __slots__ = ("state",)

    def __init__(self, state: Mapping[int, PendingOffsets] = MappingProxyType({})) -> None:
        self.state = state

    def __bool__(self) -> bool:
        return bool(self.state)

    @property
    def unstable(self) -> bool:
        """True if an open transaction may still add to the committed set. A reader that wants a stable set waits."""
        return bool(self.state)

    def ranges(self) -> list[Pair]:
        """The offsets of all open transactions, ascending and disjoint."""
        return merged(pair for pending in self.state.values() for pair in pending.ranges) if self.state else []

    def reserved(self) -> list[Reserved]:
        """The keys of all open transactions, ascending and disjoint."""
        found: list[Reserved] = []
        for producer_id, pending in self.state.items():
            new = minus(pending.keys, [one.keys for one in found])
            reason = f"transaction of producer {producer_id}"
            found = sorted([*found, *(Reserved(KeyRange(first, end), reason) for first, end in new)])
        return found

    def reserve(
        self, producer_id: int, producer_epoch: int, ranges: Iterable[Pair], keys: Iterable[Pair] = ()
    ) -> PendingOffsets:
        """Add to what the producer's transaction will commit. Raises: InvalidProducerEpoch, BoundReached."""
        before = self.state.get(producer_id)
        _check(producer_id, producer_epoch, before)
        if before is None or before.producer_epoch < producer_epoch:
            before = PendingOffsets(producer_epoch, ())
        offsets = tuple(OffsetRange(first, end) for first, end in merged([*before.ranges, *ranges]))
        if len(offsets) > PENDING_RANGES_MAX:
            raise BoundReached(f"a transaction commits at most {PENDING_RANGES_MAX} ranges of a partition: commit it")
        if producer_id not in self.state and len(self.state) >= PRODUCERS_MAX:
            raise BoundReached(f"{PRODUCERS_MAX} transactions with offsets of one partition are open")
        both = tuple(KeyRange(first, end) for first, end in merged([*before.keys, *keys]))
        pending = PendingOffsets(producer_epoch, offsets, both)
        self.state = {**self.state, producer_id: pending}
        return pending

    def complete(self, producer_id: int, producer_epoch: int) -> Sequence[OffsetRange] | None:
        """The producer's transaction has ended: what it had pending, which is so no more; None: nothing.

        Raises: InvalidProducerEpoch for an epoch that is older than what is pending.
        """
        pending = self.state.get(producer_id)
        if pending is None:
            return None
        _check(producer_id, producer_epoch, pending)
        self.state = {number: one for number, one in self.state.items() if number != producer_id}
        return pending.ranges

    def cut(self, end: int) -> tuple[int, ...]:
        """The log was cut at `end`: nothing behind it is pending any more; whose transactions changed."""
        changed: dict[int, PendingOffsets] = {}
        for producer_id, pending in self.state.items():
            ranges = tuple(OffsetRange(first, min(stop, end)) for first, stop in pending.ranges if first < end)
            if ranges != pending.ranges:
                changed[producer_id] = pending._replace(ranges=ranges)
        self.state = {**self.state, **changed}
        return tuple(changed)


def _check(producer_id: int, producer_epoch: int, pending: PendingOffsets | None) -> None:
    if pending is not None and producer_epoch < pending.producer_epoch:
        raise InvalidProducerEpoch(
            f"producer {producer_id} is at epoch {pending.producer_epoch}, not {producer_epoch}: another process took "
            "over its transactional.id"
        )


class Parked(NamedTuple, Generic[Ticket]):
    """An entry that waits until the stable offset is at `first`. ticket: the caller's."""

    first: int
    order: int
    ticket: Ticket
    generation: int
    deadline_ms: int


class StableWait(Generic[Ticket]):
    """The entries of one partition that wait for the stable offset: at most `waiting_max`, each for at most `wait_ms`.

    Invariant: no entry is released while another one that begins before it is parked.
    """

    def __init__(self, *, waiting_max: int = WAITING_MAX, wait_ms: int = WAIT_MS_MAX) -> None:
        self._waiting_max, self._wait_ms = waiting_max, wait_ms
        self._parked: list[Parked[Ticket]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._parked)

    def park(self, ticket: Ticket, ranges: Sequence[Pair], generation: int, now_ms: int) -> None:
        """Wait until all offsets before the first of these are committed; call `release` next, it may be so already.

        Raises: BoundReached when as many wait as may.
        """
        if len(self._parked) >= self._waiting_max:
            raise BoundReached(
                f"{self._waiting_max} settles wait for records before theirs: settle lower offsets first"
            )
        self._order += 1
        first = min(first for first, _ in ranges)
        heappush(self._parked, Parked(first, self._order, ticket, generation, now_ms + self._wait_ms))

    def release(self, stable: int) -> list[Ticket]:
        """Who waits no more at this stable offset, in the order of the offsets."""
        released: list[Ticket] = []
        while self._parked and self._parked[0].first <= stable:
            released.append(heappop(self._parked).ticket)
        return released

    def expire(self, now_ms: int) -> list[Ticket]:
        """Who has waited too long."""
        return self._fail([one for one in self._parked if one.deadline_ms <= now_ms])

    def fail_older(self, generation: int) -> list[Ticket]:
        """The group is in this generation: who waits since an older one is to look again who owns what."""
        return self._fail([one for one in self._parked if one.generation < generation])

    def abort(self, ticket: Ticket) -> bool:
        """This one waits no more; whether it did."""
        return bool(self._fail([one for one in self._parked if one.ticket == ticket]))

    def next_deadline_ms(self) -> int | None:
        """When the first one has waited too long; None: nobody waits."""
        return min((one.deadline_ms for one in self._parked), default=None)

    def _fail(self, failed: list[Parked[Ticket]]) -> list[Ticket]:
        if failed:
            orders = {one.order for one in failed}
            self._parked = [one for one in self._parked if one.order not in orders]
            heapify(self._parked)
        return [one.ticket for one in sorted(failed, key=lambda one: one[:2])]
