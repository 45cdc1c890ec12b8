"""Which record of one partition a member begins next: of each key one after the other, in the order of the log.

A record that was found waits in the queue of its key. Invariant: the first of a queue may be begun only while nothing
of its key is in flight, or has ended and is not settled, so the handlers of one key run one at a time and in order;
what is given back stands where it stood.

    found ──▶ waiting ──take──▶ in flight ──finish──▶ out of here
                 ▲                  │ │
                 │                  │ └──end──▶ ended ──settled──▶ out of here
                 └──── give_back ───┘    not before a time, if it is to be tried again later
    waiting, in flight or ended ──drop──▶ out of here: its key is another member's now

Between `end` and `settled` nobody knows whether the record comes again. A record that was begun behind it in that time
would have been begun before it, should it come; so a key waits, but within a chain, whose records were taken in a row.

Keys are known by their hashes: two keys with one hash wait for each other, which costs time and nothing else. No I/O
and no clock: times are seconds that the caller gives.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final, Generic, TypeVar

R = TypeVar("R")
SUSPECT_AT: Final = 2
"""As `share.quarantine.SUSPECT_AT`: what was begun so often by members that are gone may be what ended them."""
_by_offset = attrgetter("offset")


class Found(Generic[R]):
    """One record that is this member's. epoch: of the claim under which it was begun last. attempt: how
    often it was begun, by members before this one, too. told: of how many of these starts the server knows. suspect:
    members died so often while it may have been in their hands that it is begun alone. doubted: an answer to a settle
    of it was lost."""

    __slots__ = ("attempt", "doubted", "epoch", "hash", "not_before_s", "offset", "record", "suspect", "told")

    def __init__(self, offset: int, hash_: int, record: R, begun: int = 0) -> None:
        self.offset = offset
        self.hash = hash_
        self.record = record
        self.epoch = 0
        self.attempt = self.told = begun
        self.suspect = begun >= SUSPECT_AT
        self.not_before_s = 0.0
        self.doubted = False

    @property
    def owed(self) -> bool:
        """True if the server does not know the newest count of this record's starts."""
        return self.attempt != self.told

    def __repr__(self) -> str:
        return f"<{self.offset} of key {self.hash}, attempt {self.attempt}>"


class Turns:
    """Offsets of what waits, for a member that begins records in the order of the log."""

    def __init__(self, offsets: Iterable[int]) -> None:
        self._offsets = deque(sorted(offsets))

    def comes(self, offset: int) -> bool:
        """Tell if `offset` is the next one in turn; if so, move on to the one after it."""
        if not self._offsets or self._offsets[0] != offset:
            return False
        self._offsets.popleft()
        return True


class Dispatcher(Generic[R]):
    """The records of one partition that wait here or are with handlers."""

    def __init__(self) -> None:
        self._queues: dict[int, list[Found[R]]] = {}
        self._flights: dict[int, Found[R]] = {}
        self._handled: set[int] = set()
        """Offsets of those whose handlers have ended, and that wait for others before they can be finished."""
        self._ended: dict[int, int] = {}
        """Hashes by offset of what has ended and is not settled."""
        self._busy: Counter[int] = Counter()
        """How many of each hash are in flight, or have ended and are not settled."""
        self._heads: list[tuple[int, int]] = []
        """(offset, hash) of records that may be begun; those that may not any more are passed over."""
        self._later: list[tuple[float, int, int]] = []
        """The same of those that are put off, with the time."""
        self.buffered = 0
        """Records that wait."""

    @property
    def in_flight(self) -> int:
        """Records that were taken and are not finished."""
        return len(self._flights)

    @property
    def at_work(self) -> int:
        """Those of them whose handlers may be at work."""
        return len(self._flights) - len(self._handled)

    def handled(self, found: Found[R]) -> None:
        """The handler of a record has ended; the record waits to be settled in the order of the partition."""
        if self.holds(found):
            self._handled.add(found.offset)

    def may_be_at_work(self, found: Found[R]) -> bool:
        """Tell if the record's handler may still be running."""
        return self.holds(found) and found.offset not in self._handled

    @property
    def startable(self) -> int:
        """At most so many keys have a record to be begun, those that are put off included."""
        return len(self._heads) + len(self._later)

    def holds(self, found: Found[R]) -> bool:
        """Tell if this very delivery is still in flight."""
        return self._flights.get(found.offset) is found

    def flights(self) -> Iterator[Found[R]]:
        """Iterate over the records in flight."""
        return iter(self._flights.values())

    def pending_hashes(self) -> set[int]:
        """Hashes that have a record in flight, or one that waits to be tried again."""
        retried = {queue[0].hash for queue in self._queues.values() if queue[0].not_before_s or queue[0].owed}
        return retried | set(self._busy)

    def waiting(self) -> Iterator[Found[R]]:
        """Iterate over the waiting records, in no order."""
        return (found for queue in self._queues.values() for found in queue)

    def add(self, found: Found[R]) -> None:
        """A record of this member's; it goes behind those of its key, unless it stands before them in the log."""
        queue = self._queues.get(found.hash)
        self.buffered += 1
        if queue is None:
            self._queues[found.hash] = [found]
        elif queue[-1].offset < found.offset:
            queue.append(found)
            return
        else:
            insort(queue, found, key=_by_offset)
            if queue[0] is not found:
                return
        self._offer(found)

    def next_s(self) -> float | None:
        """When the next record may be begun, 0: at once; None: none is there."""
        while self._heads and not self._is_head(*self._heads[0]):
            heappop(self._heads)
        while self._later and not self._is_head(*self._later[0][1:]):
            heappop(self._later)
        if self._heads:
            return 0.0
        return self._later[0][0] if self._later else None

    def _is_head(self, offset: int, hash_: int) -> bool:
        queue = self._queues.get(hash_)
        return queue is not None and queue[0].offset == offset and hash_ not in self._busy

    def take(
        self, count: int, now_s: float, *, keys: int = 0, chain: int = 1, allows: Callable[[Found[R]], bool]
    ) -> list[Found[R]]:
        """Begin up to `count` records of up to `keys` keys (0: any number), up to `chain` of one key in a row.

        allows: asked of each before it is begun; a key whose first record is not allowed is passed over until `offer`.
        """
        taken: list[Found[R]] = []
        begun = 0
        while self._later and self._later[0][0] <= now_s:
            heappush(self._heads, heappop(self._later)[1:])
        while self._heads and len(taken) < count and (not keys or begun < keys):
            head = heappop(self._heads)
            if not self._is_head(*head):
                continue
            hash_ = head[1]
            queue = self._queues[hash_]
            size = 0
            while size < min(len(queue), chain, count - len(taken)) and allows(queue[size]):
                if size and queue[size].not_before_s > now_s:
                    break
                size += 1
            self._begin(hash_, queue, size, taken)
            begun += size > 0
        return taken

    def _begin(self, hash_: int, queue: list[Found[R]], size: int, taken: list[Found[R]]) -> None:
        for found in queue[:size]:
            found.attempt += 1
            found.not_before_s = 0.0
            self._flights[found.offset] = found
            taken.append(found)
        if size:
            self._busy[hash_] += size
            del queue[:size]
            self.buffered -= size
            if not queue:
                del self._queues[hash_]

    def finish(self, found: Found[R]) -> bool:
        """The record is finished; False: it is not this member's any more, or was finished before."""
        if not self.holds(found):
            return False
        self._land(found)
        return True

    def end(self, found: Found[R]) -> bool:
        """As `finish`, but that the record keeps its key until it is settled."""
        if not self.holds(found):
            return False
        del self._flights[found.offset]
        self._handled.discard(found.offset)
        self._ended[found.offset] = found.hash
        return True

    def settled(self, offset: int) -> None:
        """A record that has ended comes again no more, or is another member's to begin."""
        hash_ = self._ended.pop(offset, None)
        if hash_ is not None:
            self._leave(hash_)

    def give_back(self, found: Found[R], *, not_before_s: float = 0.0, unrun: bool = False) -> bool:
        """The record is to be begun again, not before a time; unrun: it was not begun at all. False: as `finish`."""
        if not self.holds(found):
            return False
        found.attempt -= unrun
        found.not_before_s = not_before_s
        self._queues.setdefault(found.hash, [])
        insort(self._queues[found.hash], found, key=_by_offset)
        self.buffered += 1
        self._land(found)
        return True

    def offer(self, allows: Callable[[Found[R]], bool]) -> None:
        """Other keys may be begun than before: look at all that wait."""
        self._heads.clear()
        self._later.clear()
        for queue in self._queues.values():
            if allows(queue[0]):
                self._offer(queue[0])

    def drop(self, keeps: Callable[[Found[R]], bool]) -> list[Found[R]]:
        """Let go of all that `keeps` does not say yes to; what of it was in flight."""
        for hash_, queue in list(self._queues.items()):
            kept = [found for found in queue if keeps(found)]
            self.buffered -= len(queue) - len(kept)
            if not kept:
                del self._queues[hash_]
            elif len(kept) < len(queue):
                self._queues[hash_] = kept
        lost = [found for found in self._flights.values() if not keeps(found)]
        for found in lost:
            self._land(found)
        return lost

    def _land(self, found: Found[R]) -> None:
        del self._flights[found.offset]
        self._handled.discard(found.offset)
        self._leave(found.hash)

    def _leave(self, hash_: int) -> None:
        """One fewer keeps its key."""
        self._busy[hash_] -= 1
        if not self._busy[hash_]:
            del self._busy[hash_]
            queue = self._queues.get(hash_)
            if queue is not None:
                self._offer(queue[0])

    def _offer(self, found: Found[R]) -> None:
        if found.hash in self._busy:
            return
        if found.not_before_s:
            heappush(self._later, (found.not_before_s, found.offset, found.hash))
        else:
            heappush(self._heads, (found.offset, found.hash))
