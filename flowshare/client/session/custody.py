"""What one member of a fleet holds, whoever leads it. No I/O: the shell is `client.fleet`.

A fleet's workers write down what a member acquires, so the next leader of a partition still knows it as the member's.
The member says to that leader what it holds (ShareResume) before anything else, and hears what of it is still its own.

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
    adrift        the same                                            adrift; something may be held
    adrift        a leader is found                                   adrift, bound for it (never held: home there)
    adrift        the node it is bound for does not lead it           adrift, bound for nobody
    adrift        the node it is bound for says what is the member's  home there; lost, when nothing of it is left
    adrift        the lock time since it went adrift is over          adrift, lost; its next leader hears of it
    home, adrift  the group gave the member up                        as it was, lost; its next leader hears of it
    home, adrift  not assigned any more, and nothing is held          -

Lost: a new number begins, and what was acquired of the partition under an older one is in other hands.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from flowshare.client.holding import Holding
from flowshare.client.topology import NOBODY
from flowshare.protocol.messages import HeldRanges, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from flowshare.client.node import Generations
    from flowshare.protocol.messages import AckBatch
    from flowshare.share.types import AcquiredRange

    HeldBy = Mapping[TopicPartition, tuple[tuple[int, int], ...]]

AGAIN_MAX: Final = 1_000
NUMBERS_MAX: Final = 1_000
"""Numbers that are remembered; what was acquired under older ones counts as lost."""


class Drift:
    """A partition on its way. `home`: where it was last. `bound`: who is thought to lead it. `sure`: whether that was
    found out lately. `shunned`: who said since the last look that it does not lead it. `told`: whether some leader
    has been told what is held. `fresh`: it was never home, so nothing can be held."""

    __slots__ = ("bound", "fresh", "home", "shunned", "since_s", "sure", "told")

    def __init__(self, since_s: float, home: int, bound: int, *, sure: bool) -> None:
        self.since_s = since_s
        self.home = home
        self.bound = bound
        self.shunned = NOBODY
        self.sure = sure
        self.told = False
        self.fresh = home == NOBODY


class Custody:
    """Where each partition of one member is at home, and what is held of it."""

    def __init__(self, generations: Generations) -> None:
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
        self._again: deque[tuple[int, TopicPartition, int, int]] = deque(maxlen=AGAIN_MAX)
        """What was acquired that may have been acquired before: (`taken` then, partition, first, last)."""
        self._generations = generations
        self.generation = generations.next()
        """Number under which records are acquired now."""
        self._numbers: OrderedDict[int, None] = OrderedDict({self.generation: None})
        self._lost_before: dict[TopicPartition, int] = {}

    # --- what is known ------------------------------------------------------------------------------------------

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Whether what was acquired under a number can still be the member's."""
        return generation in self._numbers and generation >= self._lost_before.get(tp, 0)

    def gave(self, generation: int) -> bool:
        """Whether a number is one of this member's."""
        return generation in self._numbers

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """All that is home or adrift."""
        return self.homes.keys() | self.adrift.keys()

    def bound_for(self, node_id: int) -> list[TopicPartition]:
        """What waits for this node's word."""
        return [tp for tp, drift in self.adrift.items() if drift.bound == node_id]

    def unwritten(self, tp: TopicPartition, batches: Iterable[AckBatch], since: int) -> bool:
        """Whether an acknowledgement that an earlier home did not answer is known not to have been written.

        Of one partition's either all or nothing is written; what was the member's still at the last homecoming was
        not, and nobody else can write it any more. Unless it was given to the member again since the acknowledgement
        was sent (`taken` then): a release that was written.
        """
        kept = self.kept.get(tp, ())
        again = [(first, last) for taken, at, first, last in self._again if at == tp and taken >= since]
        return _meet(batches, kept) and not _meet(batches, again)

    # --- who leads ----------------------------------------------------------------------------------------------

    def found(self, tp: TopicPartition, node_id: int, now_s: float) -> None:
        """This node leads it by what is known now; NOBODY: that is not known."""
        home, drift = self.homes.get(tp, NOBODY), self.adrift.get(tp)
        if drift is None:
            if home == NOBODY and node_id == NOBODY:
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
        for tp in list(self.partitions):
            if tp in self.homes:
                self._cast_off(tp, self.homes[tp], now_s, sure=True)
            self.adrift[tp].fresh = False
            for first, last in held.get(tp, ()):
                self.holding.acquired(tp, first, last)

    def doubt(self) -> None:
        """What was found out of those adrift is not lately found out any more."""
        for drift in self.adrift.values():
            drift.sure = False

    def forget(self, assigned: AbstractSet[TopicPartition]) -> None:
        """What is not assigned, and of which nothing is held, is nobody's business here."""
        for tp in [tp for tp in self.partitions if tp not in assigned and not self.holding.has(tp)]:
            self.homes.pop(tp, None)
            self.adrift.pop(tp, None)
            self.kept.pop(tp, None)
            self._highest.pop(tp, None)
            self._lapsed.drop(tp)

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
        for first, last, _ in ranges:
            self.holding.acquired(tp, first, last)
            if first <= highest:
                self._again.append((self.taken, tp, first, last))
            highest = max(highest, last)
        self._highest[tp] = highest
        self.taken += 1
        return self.generation

    # --- helpers ------------------------------------------------------------------------------------------------

    def _cast_off(self, tp: TopicPartition, bound: int, now_s: float, *, sure: bool) -> None:
        self.adrift[tp] = Drift(now_s, self.homes.pop(tp), bound, sure=sure)
        self.kept.pop(tp, None)

    def _lapse(self, tp: TopicPartition) -> None:
        """What was held may have been run: the next leader is to count it."""
        for first, last in self.holding.of(tp):
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


def _meet(batches: Iterable[AckBatch], ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= batch.last and batch.first <= last for batch in batches for first, last in ranges)
