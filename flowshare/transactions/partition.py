"""All producers of one partition: immediate decisions, confirmed state, and the limit for readers.

A batch gets its offset before it is durable, so there are two views. The newest one, with everything placed, decides
about the next batch; readers see the confirmed one: open transactions hold back the last stable offset, and aborted
ones are shown, only once they are durable. `place` and `mark` return a `ProducerChange` that is to be written with the
batch; `confirm` takes it into the confirmed view, in the order of the calls; `roll_back` undoes placed changes whose
write failed.

Invariant: after every `confirm` and `roll_back` without changes under way both views are equal.

Bounds: at most `producers_max` producers, the longest idle one without an open transaction goes first; a producer that
was idle for `expiry_ms` is forgotten (producer.id.expiration.ms).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from flowshare.core_errors import TransactionLimit
from flowshare.transactions.aborted import Aborted, AbortedIndex
from flowshare.transactions.producers import (
    NOT_OPEN,
    ProducerBatch,
    ProducerState,
    Written,
    check,
    check_marker,
    duplicate,
    end,
    follow,
)

PRODUCERS_MAX: Final = 10_000
EXPIRY_MS: Final = 86_400_000
"""producer.id.expiration.ms: a day."""
FORGOTTEN_AT_ONCE: Final = 16
"""The most expired producers that one batch forgets, so that no batch pays for many."""


class ProducerStep(NamedTuple):
    """The change of one producer: its state before and after. None: the producer is not known."""

    producer_id: int
    before: ProducerState | None
    after: ProducerState | None


class ProducerChange(NamedTuple):
    """The changes of a batch or marker, to be written with it. `aborted`: an entry of the index, for abort markers."""

    steps: tuple[ProducerStep, ...]
    aborted: Aborted | None = None


class PartitionProducers:
    """The producers of one partition."""

    __slots__ = ("_newest", "_open", "_open_confirmed", "_producers_max", "_under_way", "aborted")

    def __init__(
        self,
        producers: Iterable[tuple[int, ProducerState]] = (),
        aborted: Iterable[Aborted] = (),
        *,
        producers_max: int = PRODUCERS_MAX,
    ) -> None:
        """Start from stored producers and aborted transactions; producers in any order."""
        known = sorted(producers, key=lambda entry: entry[1].touched_ms)
        self._newest = OrderedDict(known)
        opened = sorted((producer.open_since, number) for number, producer in known if producer.open_since != NOT_OPEN)
        self._open_confirmed = OrderedDict((number, since) for since, number in opened)
        self._open = self._open_confirmed.copy()
        self._under_way: deque[ProducerChange] = deque()
        self._producers_max = producers_max
        self.aborted = AbortedIndex()
        for entry in aborted:
            self.aborted.add(entry)

    @property
    def view(self) -> Mapping[int, ProducerState]:
        """All producers by id, changes under way included."""
        return self._newest

    def last_stable(self, log_start: int, high_watermark: int) -> int:
        """Return the end for readers of committed records: the first offset of the oldest open transaction."""
        if not self._open_confirmed:
            return high_watermark
        return max(log_start, next(iter(self._open_confirmed.values())))

    def duplicate(self, batch: ProducerBatch) -> Written | None:
        """Return the batch's place in the log, confirmed or not, if it is there already."""
        return duplicate(self._newest.get(batch.producer_id), batch)

    def place(
        self, batch: ProducerBatch, base_offset: int, now_ms: int, *, expiry_ms: int = EXPIRY_MS
    ) -> ProducerChange:
        """Take a batch in at this offset.

        Raises: InvalidProducerEpoch, OutOfOrderSequence, InvalidTxnState, TransactionLimit; nothing is changed then.
        """
        known = self._newest.get(batch.producer_id)
        idle_since_ms = now_ms - expiry_ms
        before = None if known is not None and _idle(known, idle_since_ms) else known
        check(before, batch)
        forgotten = self._to_forget(batch.producer_id, idle_since_ms)
        after = follow(before, batch, base_offset, now_ms)
        return self._begin(ProducerChange((*forgotten, ProducerStep(batch.producer_id, known, after))))

    def mark(self, producer_id: int, epoch: int, offset: int, now_ms: int, *, committed: bool) -> ProducerChange:
        """Take a marker in at this offset. Raises: InvalidProducerEpoch; nothing is changed then."""
        before = self._newest.get(producer_id)
        check_marker(before, producer_id, epoch)
        aborted = None
        if before is not None and before.open_since != NOT_OPEN and not committed:
            others = (since for number, since in self._open.items() if number != producer_id)
            aborted = Aborted(producer_id, before.open_since, offset, next(others, offset + 1))
        return self._begin(ProducerChange((ProducerStep(producer_id, before, end(before, epoch, now_ms)),), aborted))

    def confirm(self, change: ProducerChange) -> None:
        """Take a durable change into the confirmed view, which readers see."""
        placed = self._under_way.popleft()
        assert placed is change, "changes are confirmed in the order in which they were placed"
        for step in change.steps:
            _follow_open(self._open_confirmed, step)
        if change.aborted is not None:
            self.aborted.add(change.aborted)

    def roll_back(self) -> None:
        """Undo all changes placed and not confirmed."""
        while self._under_way:
            for producer_id, before, _ in reversed(self._under_way.pop().steps):
                if before is None:
                    del self._newest[producer_id]
                else:
                    self._newest[producer_id] = before
        self._open = self._open_confirmed.copy()

    def _begin(self, change: ProducerChange) -> ProducerChange:
        for step in change.steps:
            if step.after is None:
                del self._newest[step.producer_id]
            else:
                self._newest[step.producer_id] = step.after
                self._newest.move_to_end(step.producer_id)
            _follow_open(self._open, step)
        self._under_way.append(change)
        return change

    def _to_forget(self, producer_id: int, idle_since_ms: int) -> list[ProducerStep]:
        """Return some expired producers to forget, and one more if the new one needs room. Raises TransactionLimit."""
        forgotten = list[ProducerStep]()
        room = self._producers_max - len(self._newest) - (producer_id not in self._newest)
        for other, producer in self._newest.items():
            if producer.open_since != NOT_OPEN or other == producer_id:
                continue
            if room >= 0 and not _idle(producer, idle_since_ms):
                break
            forgotten.append(ProducerStep(other, producer, None))
            room += 1
            if len(forgotten) == FORGOTTEN_AT_ONCE:
                break
        if room < 0:
            raise TransactionLimit(
                f"{self._producers_max} producers have open transactions on the partition; end some of them first"
            )
        return forgotten


def _idle(producer: ProducerState, since_ms: int) -> bool:
    return producer.open_since == NOT_OPEN and producer.touched_ms <= since_ms


def _follow_open(opened: OrderedDict[int, int], step: ProducerStep) -> None:
    since = step.after.open_since if step.after is not None else NOT_OPEN
    if since == NOT_OPEN:
        opened.pop(step.producer_id, None)
    else:
        opened.setdefault(step.producer_id, since)
