"""The records that one member holds, counted once, and the home node of each of its partitions.

`client.session.core` asks here. Flowshare's servers store a member's acquires, so the next leader of a partition still
knows the records as the member's. Before anything else the member tells that leader which records it holds
(ShareResume), and hears which of them are still its own. Kafka's brokers do not store them (`Custody.keeps`): when a
partition is cut off or its leader changes, its held records are lost at once, and the partition is at home again at its
leader. With a single server, the next server is home to everything that was at home at the last one.

Invariants, for each partition that the member fetches from or holds records of:
1. Held records are acknowledged at the current leader: at home, or, if adrift, as soon as the partition is home again.
2. To a node where the partition is not at home, nothing is sent about it but ShareResume.
3. `holds` stays true while the current leader may know the records as the member's; without a leader, for the lock time
   at most. Once false for a number it is never true again for that number.
4. Records that an earlier home sends late are taken until the next leader was told what is held, and dropped from then
   on: that leader gives to others all records that it was not told of.

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

Lost: a new number begins; records of the partition that were acquired under an older one are not the member's any more.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from flowshare.backoff import Backoff
from flowshare.client.net.topology import NOBODY
from flowshare.client.session.ranges import cut
from flowshare.protocol.messages import HeldRanges, TopicPartition
from flowshare.share.ranges import merged, minus
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from flowshare.share.types import AckRange, AcquiredRange

    HeldBy = Mapping[TopicPartition, tuple[tuple[int, int], ...]]

RENEW: Final = int(AcknowledgeType.RENEW)
STAYS: Final = frozenset({int(AcknowledgeType.RELEASE), RENEW})
"""Acknowledge types that do not end a record: a member may hold the record afterwards."""
AGAIN_MAX: Final = 1_000
NUMBERS_MAX: Final = 1_000
"""The most numbers that are remembered; records acquired under older ones count as lost."""
LOOK_S_MAX: Final = 5.0
"""The longest pause, in seconds, between two looks for a partition's leader; in a fleet `LOOK_IN_FLEET_S_MAX`."""
LOOK_IN_FLEET_S_MAX: Final = 1.0


RANGES_MAX: Final = 10_000
"""The most ranges kept of a partition; beyond that the lowest are forgotten: no server reports a lock that lapsed."""


class Ranges:
    """Offsets as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def add(self, first: int, last: int) -> None:
        """Add `first`..`last`, both inclusive."""
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
        """Remove `first`..`last`, both inclusive, where present."""
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
        """Remove all offsets that are in none of `ranges`."""
        held = self.all()
        kept = minus(held, minus(held, merged(ranges)))
        self._firsts, self._lasts = [first for first, _ in kept], [last for _, last in kept]

    def all(self) -> tuple[tuple[int, int], ...]:
        """Return all ranges, ascending."""
        return tuple(zip(self._firsts, self._lasts, strict=True))


class Holding:
    """The records that a member holds by its own account, by partition: acquired, and their end not yet reported."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Ranges] = {}

    def acquired(self, tp: TopicPartition, first: int, last: int) -> None:
        """Add acquired records."""
        held = self._partitions.get(tp)
        if held is None:
            held = self._partitions[tp] = Ranges()
        held.add(first, last)

    def ended(self, tp: TopicPartition, first: int, last: int) -> None:
        """Remove records whose end the server has reported."""
        held = self._partitions.get(tp)
        if held is not None:
            held.remove(first, last)
            if not held:
                del self._partitions[tp]

    def keep(self, tp: TopicPartition, ranges: Iterable[tuple[int, int]]) -> None:
        """Remove the records that the leader does not name as still held."""
        held = self._partitions.get(tp)
        if held is not None:
            held.keep(ranges)
            if not held:
                del self._partitions[tp]

    def drop(self, tp: TopicPartition) -> None:
        """Remove all records of a partition: they are given to others."""
        self._partitions.pop(tp, None)

    def has(self, tp: TopicPartition) -> bool:
        """Tell if any record of a partition is held."""
        return tp in self._partitions

    def any_of(self, tps: AbstractSet[TopicPartition]) -> bool:
        """Tell if any record of these partitions is held."""
        return bool(self._partitions) and not tps.isdisjoint(self._partitions)

    def of(self, tp: TopicPartition) -> tuple[tuple[int, int], ...]:
        """Return the held ranges of one partition."""
        held = self._partitions.get(tp)
        return () if held is None else held.all()


class Generations:
    """Numbers under which records are acquired; each is given out once, so that a number tells which losses came
    later."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count()

    def next(self) -> int:
        """Return a new number."""
        return next(self._numbers)


class Drift:
    """The state of a partition without a home. home: the last home. bound: the node thought to lead the partition.
    sure: True: `bound` was found lately. shunned: the node that said since the last look that it does not lead the
    partition. told: True: a leader was told what is held. fresh: True: the partition was never home, so nothing can be
    held. over: True: the lock time is over, so nothing can be held any more."""

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
    """The home node of each partition of one member, and the records held of it."""

    def __init__(self, generations: Generations) -> None:
        self.keeps = True
        """True if the next leader knows which records the member holds. Kafka's brokers do not: when a partition is cut
        off or its leader changes, its held records are lost at once, and the partition is at home again at its leader.
        """
        self.homes: dict[TopicPartition, int] = {}
        self.adrift: dict[TopicPartition, Drift] = {}
        self.holding = Holding()
        self.kept: dict[TopicPartition, tuple[tuple[int, int], ...]] = {}
        """By partition, the ranges that were still the member's when the partition last came home."""
        self._lapsed = Holding()
        """Records lost because there was no leader for the lock time. They may have been run, so the next leader is
        told of them."""
        self.losses = 0
        """The number of losses."""
        self.taken = 0
        """The number of acquires."""
        self._highest: dict[TopicPartition, int] = {}
        """The highest offset acquired of each partition, assigned or not: an acknowledgement without a number may
        concern any earlier time."""
        self._again: deque[tuple[int, TopicPartition, int, int, int]] = deque(maxlen=AGAIN_MAX)
        """Acquires of records that may have been acquired before: (`taken` then, partition, first, last, attempt)."""
        self._generations = generations
        self.generation = generations.next()
        """The number under which records are acquired now."""
        self._numbers: OrderedDict[int, None] = OrderedDict({self.generation: None})
        self._lost_before: dict[TopicPartition, int] = {}
        self._inherits = False
        """True if there was an earlier process of the member, which may have held records of any partition."""
        self._inherited: set[TopicPartition] = set()
        """Partitions whose held records a leader has confirmed since then."""
        self._moved: set[TopicPartition] = set()
        """Partitions whose last loss came from a change of leader."""

    # --- what is known ------------------------------------------------------------------------------------------

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Tell if records acquired under a number can still be the member's."""
        return generation in self._numbers and generation >= self._lost_before.get(tp, 0)

    def gave(self, generation: int) -> bool:
        """Tell if a number is one of this member's."""
        return generation in self._numbers

    def moved_away(self, tp: TopicPartition) -> bool:
        """Tell if the partition's held records were lost because another node leads it, and not because a connection
        ended."""
        return tp in self._moved

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """All partitions that are home or adrift."""
        return self.homes.keys() | self.adrift.keys()

    def bound_for(self, node_id: int) -> list[TopicPartition]:
        """Return the partitions that wait for this node's answer."""
        return [tp for tp, drift in self.adrift.items() if drift.bound == node_id]

    def unwritten(self, tp: TopicPartition, batches: Iterable[AckRange], since: int) -> bool:
        """Tell if an acknowledgement that an earlier home did not answer is known not to have been written.

        Of one partition's acknowledgement, either all or nothing is written. If a record that it would have ended was
        still the member's at the last homecoming, it was not written, and nobody else can write it any more. A released
        or renewed record may be the member's afterwards, too: acquired again since the acknowledgement was sent
        (`taken` then), or by an answer that was lost. So all of its records must be the member's, or the leader would
        refuse all of them.
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
        """Take in the leader of a partition; NOBODY: the leader is not known."""
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
        """Tell if a leader may know records as the member's that it must not hand out before it is told more."""
        return self._lapsed.has(tp) or (self._inherits and tp not in self._inherited)

    def looked(self, leaders: Mapping[TopicPartition, int], now_s: float) -> None:
        """Take in leaders that were looked up: a node that said it does not lead a partition may lead it by now."""
        for tp, node_id in leaders.items():
            drift = self.adrift.get(tp)
            if drift is not None:
                drift.shunned = NOBODY
            self.found(tp, node_id, now_s)

    def refused(self, tp: TopicPartition, node_id: int, now_s: float) -> None:
        """Take in that a node says it does not lead a partition."""
        if self.homes.get(tp) == node_id:
            self._cast_off(tp, NOBODY, now_s, sure=False)
        drift = self.adrift.get(tp)
        if drift is not None and drift.bound in (node_id, NOBODY):
            drift.bound, drift.shunned, drift.sure = NOBODY, node_id, False

    def cut_off(self, node_id: int, now_s: float) -> None:
        """Take in that the connection to a node ended."""
        for tp in [tp for tp, home in self.homes.items() if home == node_id]:
            self._cast_off(tp, node_id, now_s, sure=False)

    def adopt(self, held: Mapping[TopicPartition, Iterable[tuple[int, int]]], now_s: float) -> None:
        """Take the place of an earlier process of the member, which held these ranges, and maybe more that are not
        known."""
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
        """Mark all leaders found for adrift partitions as not found lately."""
        for drift in self.adrift.values():
            drift.sure = False

    def forget(self, assigned: AbstractSet[TopicPartition]) -> None:
        """Forget partitions that are neither assigned nor held.

        Partitions that were cut off are kept. A lost answer may have acquired records of them: the next leader knows
        these as the member's, and gives them to others only when it is told that nothing is held.
        """
        strays = {tp for tp, drift in self.adrift.items() if not (drift.fresh or drift.over)}
        for tp in [tp for tp in self.partitions - strays if tp not in assigned and not self.holding.has(tp)]:
            self.homes.pop(tp, None)
            self.adrift.pop(tp, None)
            self.kept.pop(tp, None)

    # --- resuming -----------------------------------------------------------------------------------------------

    def tell(self, node_id: int) -> tuple[HeldRanges, ...]:
        """Return the held ranges to tell this node."""
        bound = sorted(self.bound_for(node_id))
        for tp in bound:
            self.adrift[tp].told = True
        return tuple(HeldRanges(*tp, self.holding.of(tp), self._lapsed.of(tp)) for tp in bound)

    def resumed(
        self, node_id: int, told: Sequence[HeldRanges], kept: HeldBy, elsewhere: AbstractSet[TopicPartition]
    ) -> list[TopicPartition]:
        """Take in which records of `told` a node confirms and which partitions it does not lead; return those that came
        home."""
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
        """Return the partitions that have been adrift for the lock time, and count their held records as lost."""
        late = [tp for tp, drift in self.adrift.items() if now_s - drift.since_s >= lock_s]
        for tp in late:
            self.adrift[tp].over = True
            if self.holding.has(tp):
                self._lapse(tp)
                self._lose(tp)
        return late

    def given_up(self) -> None:
        """Take in that the group gave up the member: all records that it held are given to others."""
        held = [tp for tp in self.partitions if self.holding.has(tp)]
        for tp in held:
            self._lapse(tp)
        if held:
            self._lose(*held)

    # --- what is held -------------------------------------------------------------------------------------------

    def took(self, node_id: int, tp: TopicPartition, ranges: Iterable[AcquiredRange]) -> int | None:
        """Take in ranges that a node's answer brought, ascending. Return the number they are held under; None: the
        records are given to others by now."""
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
        batches: Iterable[AckRange],
        since: int,
        *,
        renewed: bool,
        refused: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Take in the leader's outcome of acknowledgements that were made when `taken` was `since`: their records are
        not held any more.

        Still held are renewed records (`renewed`), records acquired again since (answers may come in another order than
        the server made them), and of `refused` ranges those of a later attempt than the batch's.
        """
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
        self, tp: TopicPartition, batches: Iterable[AckRange], since: int, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Take in that the leader did nothing about these batches, because their records in `ranges` (ascending,
        disjoint) are not the member's. All other records stay held. since: as of `ended`."""
        again = self._acquired_since(tp, since)
        for batch in batches:
            later = self._later(tp, batch, since, again) if batch.attempt else again
            for first, last, is_out in cut(batch.first, batch.last, ranges):
                if is_out:
                    self._ended(tp, first, last, later)

    def _later(
        self, tp: TopicPartition, batch: AckRange, since: int, again: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return the ranges of a refused batch that stay held: acquired since, or for a later attempt."""
        return merged((*again, *self._of_later_attempts(tp, batch, since)))

    def _acquired_since(self, tp: TopicPartition, since: int) -> list[tuple[int, int]]:
        """Return ranges acquired, maybe not for the first time, when `taken` was `since` or later."""
        found: list[tuple[int, int]] = []
        for taken, at, first, last, _ in reversed(self._again):
            if taken < since:
                break
            if at == tp:
                found.append((first, last))
        return merged(found)

    def _of_later_attempts(self, tp: TopicPartition, batch: AckRange, since: int) -> Iterator[tuple[int, int]]:
        """Yield ranges acquired before `since` for a later attempt than the batch's."""
        for taken, at, first, last, count in self._again:
            if taken < since and at == tp and count > batch.attempt and first <= batch.last and batch.first <= last:
                yield first, last

    def _ended(self, tp: TopicPartition, first: int, last: int, again: Sequence[tuple[int, int]]) -> None:
        """End `first`..`last`, but keep those that are held and in `again` (ascending and disjoint)."""
        at = bisect_right(again, first, key=itemgetter(1)) if again else 0
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
        """Move held records to the lapsed ones: they may have been run, and the next leader must count that."""
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


def _meet(batches: Iterable[AckRange], ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= batch.last and batch.first <= last for batch in batches for first, last in ranges)


class LeaderSearch:
    """Decides which leaders a member looks up, and when: at once for partitions that went adrift since the last look or
    are `stale`, else after a growing pause. One look runs at a time."""

    def __init__(self, custody: Custody, first_s: float) -> None:
        self._custody = custody
        self._pauses = Backoff(first_s, LOOK_S_MAX)
        self._looks = 1
        self._looked_s = -1.0
        self.stale: set[TopicPartition] = set()
        """Partitions whose home node may not lead them any more."""
        self.looking = False
        self.due_s: float | None = None

    @property
    def urgent(self) -> bool:
        """True if the next look must not wait for `due_s`."""
        return bool(self.stale) or self._newly_adrift or self.due_s is None

    @property
    def _newly_adrift(self) -> bool:
        return any(not drift.sure and drift.since_s >= self._looked_s for drift in self._custody.adrift.values())

    def next(self, now_s: float, known: AbstractSet[TopicPartition]) -> tuple[TopicPartition, ...]:
        """Return the partitions to look up now. known: the partitions that still matter to the member."""
        custody = self._custody
        if self.looking:
            return ()
        self.stale &= known
        if not custody.adrift and not self.stale:
            self.due_s, self._looks = None, 1
            return ()
        if self._newly_adrift:
            self._looks = 1
        elif self.due_s is not None and now_s >= self.due_s:
            self._looks += 1
            custody.doubt()
        self.due_s = now_s + min(self._pauses.after(self._looks), LOOK_IN_FLEET_S_MAX if custody.keeps else LOOK_S_MAX)
        asked = self.stale.union(tp for tp, drift in custody.adrift.items() if not drift.sure)
        self.stale.clear()
        return tuple(sorted(asked))

    def begin(self) -> None:
        """Record that a look is under way."""
        self.looking, self.due_s = True, None

    def looked(self, now_s: float) -> None:
        """Record that the look has ended."""
        self.looking, self._looked_s, self.due_s = False, now_s, None
