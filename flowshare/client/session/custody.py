"""What one member holds, counted once, and where each of its partitions is at home: `client.session.core` asks here.

Flowshare's servers write down what a member acquires, so the next leader of a partition still knows it as the member's.
The member says to that leader what it holds (ShareResume) before anything else, and hears what of it is still its own.
Kafka's brokers do not (`Custody.keeps`): what is held of a partition that is cut off or moves is lost at once, and the
partition at home again where it is led. With one server, the next one is at home where the last one was.

Invariants, for each partition that the member fetches from or holds something of:
1. What is held is acknowledged at the leader of now: at home, or, adrift, as soon as it is home again.
2. Nothing but ShareResume is sent about a partition to a node where it is not at home.
3. `holds` stays true while the leader of now may know it as the member's, for the lock time at most while there is
   none. Once false for a number it is never true again for that number.
4. What an earlier home brings late is taken until the next leader was told what is held, and left from then on: that
   leader gives to others what it was not told of.

    state         event                                               next
    -             assigned; a leader is known                         home there: nothing can be held yet
    -             assigned; no leader is known                        adrift, bound for nobody
    home          its node's connection ended                         adrift, bound for the same node
    home          another node leads it                               adrift, bound for that one
    home          its node says that it does not lead it              adrift, bound for nobody
    home          an earlier process of the member held some of it    adrift, bound for the same node
    -, adrift     the same                                            adrift; something may be held
    -             assigned; what was lost was not told to any leader  adrift, bound for its leader
    -             assigned for the first time since that              adrift, bound for its leader
    adrift        a leader is found                                   adrift, bound for it (never held: home there)
    adrift        the node it is bound for does not lead it           adrift, bound for nobody
    adrift        the node it is bound for says what is the member's  home there; lost, when nothing of it is left
    adrift        the lock time since it went adrift is over          adrift, lost; its next leader hears of it
    home, adrift  the group gave the member up                        as it was, lost; its next leader hears of it
    home          not assigned any more, and nothing is held          -
    adrift        the same, never held or the lock time is over       -

Lost: a new number begins, and what was acquired of the partition under an older one is in other hands.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from flowshare.client.net.topology import NOBODY
from flowshare.client.session.ranges import cut
from flowshare.protocol.messages import HeldRanges, TopicPartition
from flowshare.share.ranges import merged, minus
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from flowshare.protocol.messages import AckBatch
    from flowshare.share.types import AcquiredRange

    HeldBy = Mapping[TopicPartition, tuple[tuple[int, int], ...]]

RENEW: Final = int(AcknowledgeType.RENEW)
STAYS: Final = frozenset({int(AcknowledgeType.RELEASE), RENEW})
"""What does not end a record: somebody may hold it afterwards."""
AGAIN_MAX: Final = 1_000
NUMBERS_MAX: Final = 1_000
"""Numbers that are remembered; what was acquired under older ones counts as lost."""
LOOK_S_MAX: Final = 5.0
"""Longest pause between two looks for the leader of a partition that has none; in a fleet the next line."""
LOOK_IN_FLEET_S_MAX: Final = 1.0


RANGES_MAX: Final = 10_000
"""Ranges kept of a partition; beyond that the lowest are forgotten: locks that lapsed are never heard of again."""


class Ranges:
    """Offsets as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Hold `first`..`last`, both inclusive."""
        firsts, lasts = self._firsts, self._lasts
        if not lasts or first > lasts[-1] + 1:
            firsts.append(first)
            lasts.append(last)
        else:
            low = bisect_left(lasts, first - 1)
            high = bisect_right(firsts, last + 1)
            if low < high:
                first, last = min(first, firsts[low]), max(last, lasts[high - 1])
            firsts[low:high] = [first]
            lasts[low:high] = [last]
        if len(firsts) > RANGES_MAX:
            del firsts[0], lasts[0]

    def remove(self, first: int, last: int) -> None:
        """Hold `first`..`last` no more, as far as it is held."""
        firsts, lasts = self._firsts, self._lasts
        low = bisect_left(lasts, first)
        high = bisect_right(firsts, last)
        if low >= high:
            return
        kept: list[tuple[int, int]] = []
        if firsts[low] < first:
            kept.append((firsts[low], first - 1))
        if lasts[high - 1] > last:
            kept.append((last + 1, lasts[high - 1]))
        firsts[low:high] = [one for one, _ in kept]
        lasts[low:high] = [one for _, one in kept]

    def keep(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Hold no more what is in none of `ranges`."""
        held = self.all()
        kept = minus(held, minus(held, merged(ranges)))
        self._firsts, self._lasts = [first for first, _ in kept], [last for _, last in kept]

    def all(self) -> tuple[tuple[int, int], ...]:
        """All ranges, ascending."""
        return tuple(zip(self._firsts, self._lasts, strict=True))


class Holding:
    """What a member holds by its own account, by partition: what it was given and has not heard the end of."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Ranges] = {}

    def acquired(self, tp: TopicPartition, first: int, last: int) -> None:
        """It came into hand."""
        held = self._partitions.get(tp)
        if held is None:
            held = self._partitions[tp] = Ranges()
        held.add(first, last)

    def ended(self, tp: TopicPartition, first: int, last: int) -> None:
        """The server said what became of it."""
        held = self._partitions.get(tp)
        if held is not None:
            held.remove(first, last)
            if not held:
                del self._partitions[tp]

    def keep(self, tp: TopicPartition, ranges: Iterable[tuple[int, int]]) -> None:
        """The leader says that no more than this is still in hand."""
        held = self._partitions.get(tp)
        if held is not None:
            held.keep(ranges)
            if not held:
                del self._partitions[tp]

    def drop(self, tp: TopicPartition) -> None:
        """All of a partition's is given to others."""
        self._partitions.pop(tp, None)

    def has(self, tp: TopicPartition) -> bool:
        """Whether anything of a partition is in hand."""
        return tp in self._partitions

    def any_of(self, tps: AbstractSet[TopicPartition]) -> bool:
        """Whether anything of these partitions is in hand."""
        return bool(self._partitions) and not tps.isdisjoint(self._partitions)

    def of(self, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        """What is in hand of one partition."""
        held = self._partitions.get(tp)
        return () if held is None else held.all()


class Generations:
    """Numbers under which records are acquired: each is given out once, so that it says what was lost meanwhile."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count()

    def next(self) -> int:
        """A new one."""
        return next(self._numbers)


class Drift:
    """A partition on its way. `home`: where it was last. `bound`: who is thought to lead it. `sure`: whether that was
    found out lately. `shunned`: who said since the last look that it does not lead it. `told`: whether some leader
    has been told what is held. `fresh`: it was never home, so nothing can be held. `over`: nor can anything since the
    lock's time is over."""

    __slots__ = ("bound", "fresh", "home", "over", "shunned", "since_s", "sure", "told")

    def __init__(self, since_s: float, home: int, bound: int, *, sure: bool) -> None:
        self.since_s = since_s
        self.home = home
        self.bound = bound
        self.shunned = NOBODY
        self.sure = sure
        self.told = False
        self.fresh = home == NOBODY
        self.over = False


class Custody:
    """Where each partition of one member is at home, and what is held of it."""

    def __init__(self, generations: Generations) -> None:
        self.keeps = True
        """Whether the next leader knows what the member holds. Kafka's brokers do not: what is cut off or led elsewhere
        is lost at once, and at home again where it is led."""
        self.homes: dict[TopicPartition, int] = {}
        self.adrift: dict[TopicPartition, Drift] = {}
        self.holding = Holding()
        self.kept: dict[TopicPartition, tuple[tuple[int, int], ...]] = {}
        """What of each partition was the member's when it last came home."""
        self._lapsed = Holding()
        """What was lost because there was no leader for the lock's time, until one is told: it may have been run."""
        self.losses = 0
        """How often something was lost."""
        self.taken = 0
        """How often something was acquired."""
        self._highest: dict[TopicPartition, int] = {}
        """Of each partition that something was acquired of, whether it is assigned or not: what is acknowledged without
        a number may be about any time before."""
        self._again: deque[tuple[int, TopicPartition, int, int, int]] = deque(maxlen=AGAIN_MAX)
        """What was acquired that may have been acquired before: (`taken` then, partition, first, last, attempt)."""
        self._generations = generations
        self.generation = generations.next()
        """Number under which records are acquired now."""
        self._numbers: OrderedDict[int, None] = OrderedDict({self.generation: None})
        self._lost_before: dict[TopicPartition, int] = {}
        self._inherits = False
        """Whether there was an earlier process, which may have held something of any partition."""
        self._inherited: set[TopicPartition] = set()
        """Of these a leader has said since what is held."""
        self._moved: set[TopicPartition] = set()
        """What was last lost because another node leads it."""

    # --- what is known ------------------------------------------------------------------------------------------

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether what was acquired under a number can still be the member's."""
        return generation in self._numbers and generation >= self._lost_before.get(tp, 0)

    def gave(self, generation: int) -> bool:
        """Whether a number is one of this member's."""
        return generation in self._numbers

    def moved_away(self, tp: TopicPartition) -> bool:
        """Whether what was held of it was lost because another node leads it, and not with a connection."""
        return tp in self._moved

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """All that is home or adrift."""
        return self.homes.keys() | self.adrift.keys()

    def bound_for(self, node_id: int) -> list[TopicPartition]:
        """What waits for this node's word."""
        return [tp for tp, drift in self.adrift.items() if drift.bound == node_id]

    def unwritten(self, tp: TopicPartition, batches: Iterable[AckBatch], since: int) -> bool:
        """Whether an acknowledgement that an earlier home did not answer is known not to have been written.

        Of one partition's either all or nothing is written. A record that would have ended and is the member's still at
        the last homecoming says that it was not, and nobody else can write it any more. One that is released or renewed
        may be the member's afterwards, too: given to it again since the acknowledgement was sent (`taken` then), or in
        an answer that was lost. So all of it has to be the member's, or the leader would refuse all of it.
        """
        kept = self.kept.get(tp, ())
        again = [(first, last) for taken, at, first, last, _ in self._again if at == tp and taken >= since]
        if _meet(batches, again):
            return False
        if _meet((batch for batch in batches if STAYS.isdisjoint(batch.types)), kept):
            return True
        return not minus(merged((batch.first, batch.last) for batch in batches), kept)

    # --- who leads ----------------------------------------------------------------------------------------------

    def found(self, tp: TopicPartition, node_id: int, now_s: float) -> None:
        """This node leads it by what is known now; NOBODY: that is not known."""
        home, drift = self.homes.get(tp, NOBODY), self.adrift.get(tp)
        if drift is None:
            if home == NOBODY and self._owes_word(tp):
                drift = self.adrift[tp] = Drift(now_s, NOBODY, node_id, sure=node_id != NOBODY)
                drift.fresh = False
            elif home == NOBODY and node_id == NOBODY:
                self.adrift[tp] = Drift(now_s, NOBODY, NOBODY, sure=False)
            elif home == NOBODY:
                self.homes[tp] = node_id
            elif node_id not in (NOBODY, home):
                self._cast_off(tp, node_id, now_s, sure=True)
            return
        if node_id == drift.shunned:
            return
        drift.bound, drift.sure = node_id, True
        if drift.fresh and node_id != NOBODY:
            del self.adrift[tp]
            self.homes[tp] = node_id

    def _owes_word(self, tp: TopicPartition) -> bool:
        """Whether a leader may know something as the member's that it is not to hand out before it was told more."""
        return self._lapsed.has(tp) or (self._inherits and tp not in self._inherited)

    def looked(self, leaders: Mapping[TopicPartition, int], now_s: float) -> None:
        """The leaders were looked up: a node that said it does not lead something may do so by now."""
        for tp, node_id in leaders.items():
            drift = self.adrift.get(tp)
            if drift is not None:
                drift.shunned = NOBODY
            self.found(tp, node_id, now_s)

    def refused(self, tp: TopicPartition, node_id: int, now_s: float) -> None:
        """This node says that it does not lead it."""
        if self.homes.get(tp) == node_id:
            self._cast_off(tp, NOBODY, now_s, sure=False)
        drift = self.adrift.get(tp)
        if drift is not None and drift.bound in (node_id, NOBODY):
            drift.bound, drift.shunned, drift.sure = NOBODY, node_id, False

    def cut_off(self, node_id: int, now_s: float) -> None:
        """The connection to this node ended."""
        for tp in [tp for tp, home in self.homes.items() if home == node_id]:
            self._cast_off(tp, node_id, now_s, sure=False)

    def adopt(self, held: Mapping[TopicPartition, Iterable[tuple[int, int]]], now_s: float) -> None:
        """The member's process takes an earlier one's place, which held this, and maybe more that nobody knows of."""
        self._inherits = True
        for tp in self.partitions | held.keys():
            if tp in self.homes:
                self._cast_off(tp, self.homes[tp], now_s, sure=True)
            elif tp not in self.adrift:
                self.adrift[tp] = Drift(now_s, NOBODY, NOBODY, sure=False)
            self.adrift[tp].fresh = False
            for first, last in held.get(tp, ()):
                self.holding.acquired(tp, first, last)
                self._highest[tp] = max(last, self._highest.get(tp, -1))

    def doubt(self) -> None:
        """What was found out of those adrift is not lately found out any more."""
        for drift in self.adrift.values():
            drift.sure = False

    def forget(self, assigned: AbstractSet[TopicPartition]) -> None:
        """What is not assigned, and of which nothing is held, is nobody's business here.

        Unless it was cut off: what an answer that was lost would have brought is the member's at the next leader, which
        gives it to others when it is told of nothing.
        """
        strays = {tp for tp, drift in self.adrift.items() if not (drift.fresh or drift.over)}
        for tp in [tp for tp in self.partitions - strays if tp not in assigned and not self.holding.has(tp)]:
            self.homes.pop(tp, None)
            self.adrift.pop(tp, None)
            self.kept.pop(tp, None)

    # --- resuming -----------------------------------------------------------------------------------------------

    def tell(self, node_id: int) -> tuple[HeldRanges, ...]:
        """What this node is to be told that is held."""
        bound = sorted(self.bound_for(node_id))
        for tp in bound:
            self.adrift[tp].told = True
        return tuple(HeldRanges(*tp, self.holding.of(tp), self._lapsed.of(tp)) for tp in bound)

    def resumed(
        self, node_id: int, told: Sequence[HeldRanges], kept: HeldBy, elsewhere: AbstractSet[TopicPartition]
    ) -> list[TopicPartition]:
        """The node said what of `told` is still the member's, and what it does not lead; what came home by that."""
        came: list[TopicPartition] = []
        for at in (TopicPartition(part.topic_id, part.partition) for part in told):
            drift = self.adrift.get(at)
            if drift is None or drift.bound != node_id:
                continue  # another leader was found meanwhile
            if at in elsewhere:
                drift.bound, drift.shunned, drift.sure = NOBODY, node_id, False
                continue
            held = self.holding.has(at)
            self.kept[at] = kept.get(at, ())
            self.holding.keep(at, self.kept[at])
            self._lapsed.drop(at)
            self._inherited.add(at)
            del self.adrift[at]
            self.homes[at] = node_id
            came.append(at)
            if held and not self.holding.has(at):
                self._lose(at)
        return came

    def overdue(self, now_s: float, lock_s: float) -> list[TopicPartition]:
        """What has been adrift for the lock time: it is lost."""
        late = [tp for tp, drift in self.adrift.items() if now_s - drift.since_s >= lock_s]
        for tp in late:
            self.adrift[tp].over = True
            if self.holding.has(tp):
                self._lapse(tp)
                self._lose(tp)
        return late

    def given_up(self) -> None:
        """The member's group gave it up: all that it holds is in other hands."""
        held = [tp for tp in self.partitions if self.holding.has(tp)]
        for tp in held:
            self._lapse(tp)
        if held:
            self._lose(*held)

    # --- what is held -------------------------------------------------------------------------------------------

    def took(self, node_id: int, tp: TopicPartition, ranges: Iterable[AcquiredRange]) -> int | None:
        """A node's answer brought these, ascending: the number they are held under; None: they are others' by now."""
        if self.homes.get(tp) != node_id:
            drift = self.adrift.get(tp)
            if drift is None or drift.told or drift.home != node_id:
                return None
        highest = self._highest.get(tp, -1)
        for first, last, count in ranges:
            self.holding.acquired(tp, first, last)
            if first <= highest:
                self._again.append((self.taken, tp, first, last, count))
            highest = max(highest, last)
        self._highest[tp] = highest
        self.taken += 1
        return self.generation

    def ended(
        self,
        tp: TopicPartition,
        batches: Iterable[AckBatch],
        since: int,
        *,
        renewed: bool,
        refused: Sequence[tuple[int, int]] = (),
    ) -> None:
        """The leader said what became of these, said when `taken` was `since`; with `renewed` what only begins anew is
        held on. So is what was acquired again since: answers may come in another order than the server made them. And
        of what was refused (these ranges), a later attempt than was meant."""
        again = self._acquired_since(tp, since)
        for batch in batches:
            if refused and batch.attempt:
                later = self._later(tp, batch, since, again)
                for first, last, is_refused in cut(batch.first, batch.last, refused):
                    if is_refused:
                        self._ended(tp, first, last, later)
                    elif not renewed or RENEW not in batch.types:
                        self._ended(tp, first, last, again)
            elif not renewed or RENEW not in batch.types:
                self._ended(tp, batch.first, batch.last, again)
            elif len(batch.types) > 1:
                for offset, kind in enumerate(batch.types, batch.first):
                    if kind != RENEW:
                        self._ended(tp, offset, offset, again)

    def not_held(
        self, tp: TopicPartition, batches: Iterable[AckBatch], since: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """The leader said that nothing was done about these, because what of them is in `ranges` (ascending, disjoint)
        is not the member's. The rest is held on; since: as of `ended`."""
        again = self._acquired_since(tp, since)
        for batch in batches:
            later = self._later(tp, batch, since, again) if batch.attempt else again
            for first, last, is_out in cut(batch.first, batch.last, ranges):
                if is_out:
                    self._ended(tp, first, last, later)

    def _later(
        self, tp: TopicPartition, batch: AckBatch, since: int, again: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """What is held on of a batch that is refused: what was acquired since, or for a later attempt."""
        return merged((*again, *self._of_later_attempts(tp, batch, since)))

    def _acquired_since(self, tp: TopicPartition, since: int) -> list[tuple[int, int]]:
        """What was acquired that may have been acquired before, when `taken` was `since` or later."""
        found: list[tuple[int, int]] = []
        for taken, at, first, last, _ in reversed(self._again):
            if taken < since:
                break
            if at == tp:
                found.append((first, last))
        return merged(found)

    def _of_later_attempts(self, tp: TopicPartition, batch: AckBatch, since: int) -> Iterator[tuple[int, int]]:
        """What was acquired before that for a later attempt than a batch means."""
        for taken, at, first, last, count in self._again:
            if taken < since and at == tp and count > batch.attempt and first <= batch.last and batch.first <= last:
                yield first, last

    def _ended(self, tp: TopicPartition, first: int, last: int, again: Sequence[tuple[int, int]]) -> None:
        """What of `first`..`last` is in `again` (ascending and disjoint) is held on, if it was."""
        at = bisect_right(again, first, key=_last_of) if again else 0
        if at and again[at - 1][1] >= first:
            at -= 1
        kept: list[tuple[int, int]] = []
        if at < len(again) and again[at][0] <= last:
            held = self.holding.of(tp)
            while at < len(again) and again[at][0] <= last:
                low, high = max(first, again[at][0]), min(last, again[at][1])
                kept += [(max(low, one), min(high, other)) for one, other in held if one <= high and low <= other]
                at += 1
        self.holding.ended(tp, first, last)
        for low, high in kept:
            self.holding.acquired(tp, low, high)

    # --- helpers ------------------------------------------------------------------------------------------------

    def _cast_off(self, tp: TopicPartition, bound: int, now_s: float, *, sure: bool) -> None:
        home = self.homes.pop(tp)
        self.kept.pop(tp, None)
        if self.keeps:
            self.adrift[tp] = Drift(now_s, home, bound, sure=sure)
            return
        if self.holding.has(tp):
            self.holding.drop(tp)
            self._lose(tp)
            (self._moved.discard if bound == home else self._moved.add)(tp)
        self.homes[tp] = bound

    def _lapse(self, tp: TopicPartition) -> None:
        """What was held may have been run: the next leader is to count it."""
        for first, last in self.holding.of(tp) if self.keeps else ():
            self._lapsed.acquired(tp, first, last)
        self.holding.drop(tp)

    def _lose(self, *lost: TopicPartition) -> None:
        self.losses += 1
        self.generation = self._generations.next()
        self._numbers[self.generation] = None
        self._lost_before.update(dict.fromkeys(lost, self.generation))
        if len(self._numbers) > NUMBERS_MAX:
            self._numbers.popitem(last=False)
            oldest = next(iter(self._numbers))
            self._lost_before = {tp: number for tp, number in self._lost_before.items() if number > oldest}


def _last_of(ends: tuple[int, int]) -> int:
    return ends[1]


def _meet(batches: Iterable[AckBatch], ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= batch.last and batch.first <= last for batch in batches for first, last in ranges)


class LeaderSearch:
    """Which partitions' leaders a member has looked up, and when: at once for what went adrift since the last look or
    is `stale`, else after a pause that grows. One look at a time."""

    def __init__(self, custody: Custody, pause_least_s: float) -> None:
        self._custody = custody
        self._pause_least_s = self._pause_s = pause_least_s
        self._looked_s = -1.0
        self.stale: set[TopicPartition] = set()
        """At home where they may not be led any more."""
        self.looking = False
        self.due_s: float | None = None

    @property
    def urgent(self) -> bool:
        """Whether not to wait for `due_s`."""
        return bool(self.stale) or self._newly_adrift or self.due_s is None

    @property
    def _newly_adrift(self) -> bool:
        return any(not drift.sure and drift.since_s >= self._looked_s for drift in self._custody.adrift.values())

    def next(self, now_s: float, known: AbstractSet[TopicPartition]) -> tuple[TopicPartition, ...]:
        """What to look up now. known: what is anybody's business."""
        custody = self._custody
        if self.looking:
            return ()
        self.stale &= known
        if not custody.adrift and not self.stale:
            self.due_s, self._pause_s = None, self._pause_least_s
            return ()
        if self._newly_adrift:
            self._pause_s = self._pause_least_s
        elif self.due_s is not None and now_s >= self.due_s:
            self._pause_s = min(2 * self._pause_s, LOOK_IN_FLEET_S_MAX if custody.keeps else LOOK_S_MAX)
            custody.doubt()
        self.due_s = now_s + self._pause_s
        asked = self.stale.union(tp for tp, drift in custody.adrift.items() if not drift.sure)
        self.stale.clear()
        return tuple(sorted(asked))

    def begin(self) -> None:
        """A look is under way."""
        self.looking, self.due_s = True, None

    def looked(self, now_s: float) -> None:
        """It is over."""
        self.looking, self._looked_s, self.due_s = False, now_s, None
