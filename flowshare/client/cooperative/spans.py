"""One member's view of one partition in free mode: the spans of offsets that it took, and what it begins of them.

    it happens                       span                                  its records
    it is taken                      open, nothing of it is read           none
    a scan goes over it              read up to `next`                     may be begun, in any order
    all of it is read and committed  gone, as it is at the server          –
    the server says that it is lost  gone                                  in flight: lost
    the member's lease is over       all gone                              all lost

What of a span others may have begun is told with it (`starts`); nothing is begun outside of spans.

Each record has a key of its own here (its offset), so none waits for another one. Holes within a span are void and its
member's to commit. The surface is that of `KeyScan`. No I/O and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, TypeVar

from flowshare.client.cooperative.dispatch import Dispatcher, Found, Turns
from flowshare.client.cooperative.scan import COMMIT_MAX, Progress
from flowshare.client.cooperative.starts import Starts, Telling
from flowshare.cooperative.attempts import Begun
from flowshare.cooperative.ranges import merged
from flowshare.cooperative.types import KeyRange

R = TypeVar("R")


class Open(NamedTuple):
    """A span: offsets, its epoch, and up to where it was read."""

    first: int
    end: int
    epoch: int
    next: int


class SpanPart(NamedTuple):
    """Offsets out of the span of this epoch."""

    epoch: int
    ranges: list[tuple[int, int]]


class SpanBatch(NamedTuple):
    """One commit; see `scan.Batch`."""

    reset_epoch: int
    parts: tuple[SpanPart, ...]
    offsets: dict[int, int]
    voids: tuple[tuple[int, int], ...]
    lives: int


class SpanScan(Generic[R]):
    """See the head of the module."""

    def __init__(self, *, exact_starts: bool = False) -> None:
        self._spans: list[Open] = []
        self._dispatcher: Dispatcher[R] = Dispatcher()
        self.starts: Starts[R] = Starts(self._dispatcher, exact=exact_starts)
        self._done: dict[int, int] = {}
        """Epochs by offset of what is finished and not sent."""
        self._sent: dict[int, int] = {}
        self._voids: list[tuple[int, int, int]] = []
        """(first, end, epoch)"""
        self._sent_voids: list[tuple[int, int, int]] = []
        self.progress = Progress(0, -1, 0, 0)
        self.lives = 0
        self.lost_records = 0
        self.unanswered: list[int] = []
        """As `KeyScan.unanswered`."""

    # -- what is known

    @property
    def pieces(self) -> tuple[Open, ...]:
        """The spans, ascending."""
        return tuple(self._spans)

    @property
    def dispatcher(self) -> Dispatcher[R]:
        """The waiting records and those in flight, for reading only."""
        return self._dispatcher

    @property
    def epochs(self) -> tuple[int, ...]:
        """Of the spans, to be renewed."""
        return tuple(span.epoch for span in self._spans)

    @property
    def ahead(self) -> int:
        """Offsets that wait to be read or begun."""
        return self._dispatcher.buffered + sum(span.end - span.next for span in self._spans)

    @property
    def uncommitted(self) -> int:
        """Records that are finished and not known as committed."""
        return len(self._done) + len(self._sent)

    def uncommitted_offsets(self) -> list[int]:
        """Their offsets, in no order."""
        return [*self._sent, *self._done]

    @property
    def has_voids(self) -> bool:
        """True if holes were found that must be committed."""
        return bool(self._voids)

    @property
    def releases(self) -> bool:
        """As `KeyScan.releases`: what is given back is found by `unbegun`."""
        return False

    def is_settled(self, offset: int) -> bool:
        """Tell if a finished record is committed, or is not this member's any more."""
        return offset not in self._done and offset not in self._sent

    # -- what is held

    def taken(
        self, spans: Iterable[tuple[int, int, int]], progress: Progress, begun: Begun | None = None
    ) -> list[Found[R]]:
        """More spans: (first, end, epoch), and what others may have begun of them. What of the records in flight is
        lost, as the partition was reset."""
        lost = self.lose() if self._spans and progress.reset_epoch != self.progress.reset_epoch else []
        self.follow(progress)
        new = [Open(first, end, epoch, first) for first, end, epoch in spans]
        self.starts.take_over(begun or Begun(), [span[:2] for span in self._spans])
        self._spans = sorted([*self._spans, *new])
        return lost

    def lose_spans(self, epochs: Iterable[int]) -> list[Found[R]]:
        """These are not the member's any more; what of them was in flight."""
        gone = set(epochs)
        self._spans = [span for span in self._spans if span.epoch not in gone]
        self.unanswered += [offset for offset, epoch in self._done.items() if epoch in gone]
        self._done = {offset: epoch for offset, epoch in self._done.items() if epoch not in gone}
        self._voids = [one for one in self._voids if one[2] not in gone]
        lost = self._dispatcher.drop(self._keeps)
        self.starts.keep(self._keeps)
        self.lost_records += len(lost)
        return lost

    def lose(self) -> list[Found[R]]:
        """The lease is over: nothing is held; what was in flight."""
        self.lives += 1
        self.starts.lose()
        self.unanswered += self._sent
        self._sent, self._sent_voids = {}, []
        return self.lose_spans(self.epochs)

    def unbegun(self) -> list[int]:
        """Let go of spans of which nothing was begun or finished, and nothing is owed a word of how often it was: their
        epochs, to be given back."""
        busy = {found.epoch for found in self._dispatcher.flights()} | set(self._done.values())
        owed = (self._at(found.offset) for found in self._dispatcher.waiting() if found.owed)
        busy |= {span.epoch for span in owed if span is not None}
        busy |= set(self._sent.values()) | {epoch for *_, epoch in (*self._voids, *self._sent_voids)}
        epochs = [epoch for epoch in self.epochs if epoch not in busy]
        self.lose_spans(epochs)
        return epochs

    def follow(self, progress: Progress) -> None:
        """S and M, as the newest answer says."""
        self.progress = progress

    # -- scanning

    def position(self) -> int | None:
        """Where to read on; None: nothing is to be read."""
        return next((span.next for span in self._spans if span.next < span.end), None)

    @property
    def until(self) -> int:
        """Where reading may end: nothing from there on is this member's."""
        return max((span.end for span in self._spans if span.next < span.end), default=0)

    @property
    def only(self) -> None:
        """Records of any key are wanted."""
        return None

    def commits_as_void(self, position: int, first: int, end: int) -> int:
        """As `KeyScan.commits_as_void`."""
        spans = [span for span in self._spans if position <= span.next]
        return sum(max(0, min(end, span.end) - max(first, span.next)) for span in spans)

    def scanned(self, first: int, end: int, records: Iterable[tuple[int, int, R]]) -> int:
        """All that there is from `first` up to `end`: (offset, hash, record), ascending; how many are this member's."""
        found = {offset: (hash_, record) for offset, hash_, record in records}
        taken = 0
        for at, span in enumerate(self._spans):
            if not first <= span.next < min(end, span.end):
                continue
            last = span.next
            for offset in (one for one in found if span.next <= one < span.end):
                if last < offset:
                    self._voids.append((last, offset, span.epoch))
                hash_, record = found[offset]
                self._dispatcher.add(Found(offset, offset, record, self.starts.before(offset, hash_)))
                taken += 1
                last = offset + 1
            until = min(end, span.end)
            if last < until:
                self._voids.append((last, until, span.epoch))
            self._spans[at] = span._replace(next=until)
        return taken

    # -- beginning and ending

    def take(
        self,
        count: int,
        now_s: float,
        *,
        keys: int = 0,
        chain: int = 1,
        alone: bool = False,
        in_order: bool = False,
    ) -> list[Found[R]]:
        """Begin records: `Dispatcher.take`. alone, in_order: as of `KeyScan.take`."""
        turns = Turns(self._waiting()) if in_order else None

        def allows(found: Found[R]) -> bool:
            return self.starts.allows(found, alone=alone) and (turns is None or turns.comes(found.offset))

        self.starts.look(count)
        if alone or in_order:
            self._dispatcher.offer(_any)
        taken = self._dispatcher.take(count, now_s, keys=keys, chain=chain, allows=allows)
        if alone or in_order:
            self._dispatcher.offer(_any)
        for found in taken:
            span = self._at(found.offset)
            assert span is not None, "what waits lies in a span"
            found.epoch = span.epoch
            self.starts.took(found)
        return taken

    def _waiting(self) -> list[int]:
        """Offsets of records that are to be begun, and where reading goes on."""
        unread = [span.next for span in self._spans if span.next < span.end]
        return [*self._dispatcher.waiting_offsets(), *unread]

    def begins_before(self, offset: int) -> bool:
        """As `KeyScan.begins_before`."""
        return min(self._waiting(), default=offset) < offset

    def finish(self, found: Found[R]) -> bool:
        """The record is finished and to be committed; False: it is not this member's any more."""
        if not self._dispatcher.finish(found):
            return False
        self._done[found.offset] = found.epoch
        return True

    def give_back(self, found: Found[R], *, not_before_s: float = 0.0, unrun: bool = False) -> bool:
        """The record is to be begun again, here: `Dispatcher.give_back`."""
        return self._dispatcher.give_back(found, not_before_s=not_before_s, unrun=unrun)

    # -- telling of starts

    def telling(self, *, owed: bool = False) -> Telling | None:
        """As `KeyScan.telling`."""
        if not self._spans or not (self.starts.counted if owed else self.starts.tells):
            return None
        parts = tuple(part._replace(keys=None) for part in self.starts.tell(self._held, owed=owed))
        if not parts:
            return None
        self.starts.telling = True
        return Telling(self.progress.reset_epoch, parts, self.lives)

    def told(self, telling: Telling, refused: Collection[int]) -> None:
        """As `KeyScan.told`."""
        if telling.lives != self.lives:
            return
        self.starts.telling = False
        self.starts.told(part for at, part in enumerate(telling.parts) if at not in refused)
        self._dispatcher.offer(_any)

    def _held(self, offset: int) -> tuple[KeyRange, int] | None:
        """The span of a record, which has a key of its own: its offset."""
        span = self._at(offset)
        return None if span is None else (KeyRange(span.first, span.end), span.epoch)

    # -- settling

    def parts_of(self, records: Iterable[Found[R]]) -> tuple[SpanPart, ...]:
        """Build the parts of a request that commits records in flight with outputs."""
        by_epoch: dict[int, list[tuple[int, int]]] = {}
        for found in records:
            by_epoch.setdefault(found.epoch, []).append((found.offset, found.offset + 1))
        return tuple(SpanPart(epoch, merged(ranges)) for epoch, ranges in sorted(by_epoch.items()))

    def waits(self, records: Iterable[Found[R]]) -> bool:
        """Return False: no record waits for others of its key, because keys are not known here."""
        return False

    def settled(self, records: Iterable[Found[R]], progress: Progress) -> None:
        """These are committed."""
        for found in records:
            self._dispatcher.finish(found)
        self.follow(progress)
        self._close()

    # -- committing

    def commit(self, count: int = COMMIT_MAX) -> SpanBatch | None:
        """Make the next commit; None: there is nothing to commit, or a commit is under way."""
        if self._sent or self._sent_voids or not (self._done or self._voids):
            return None
        offsets = sorted(self._done)[:count]
        self._sent = {offset: self._done.pop(offset) for offset in offsets}
        self._sent_voids, self._voids = self._voids[:count], self._voids[count:]
        by_epoch: dict[int, list[tuple[int, int]]] = {}
        for offset, epoch in self._sent.items():
            by_epoch.setdefault(epoch, []).append((offset, offset + 1))
        for first, end, epoch in self._sent_voids:
            by_epoch.setdefault(epoch, []).append((first, end))
        parts = tuple(SpanPart(epoch, merged(ranges)) for epoch, ranges in sorted(by_epoch.items()))
        voids = tuple((first, end) for first, end, _ in self._sent_voids)
        return SpanBatch(self.progress.reset_epoch, parts, self._sent, voids, self.lives)

    def committed(self, batch: SpanBatch, progress: Progress, fenced: Sequence[int] = ()) -> bool:
        """The answer to a commit. fenced: places of parts whose spans are lost. Whether nothing was refused."""
        if batch.lives != self.lives:
            return False
        refused = {batch.parts[place].epoch for place in fenced}
        self.unanswered += [offset for offset, epoch in self._sent.items() if epoch in refused]
        self._sent, self._sent_voids = {}, []
        self.lose_spans(refused)
        self.follow(progress)
        self._close()
        return not fenced

    def failed(self, batch: SpanBatch) -> None:
        """Nobody knows whether the commit counts: it is sent again."""
        if batch.lives != self.lives:
            return
        self._done.update(self._sent)
        self._voids += self._sent_voids
        self._sent, self._sent_voids = {}, []

    # -- inside

    def _close(self) -> None:
        """Forget spans of which nothing is left."""
        alive = {found.epoch for found in self._dispatcher.flights()} | set(self._done.values())
        alive |= {epoch for *_, epoch in self._voids}
        waiting = self._dispatcher.waiting_offsets()
        alive |= {span.epoch for offset in waiting if (span := self._at(offset)) is not None}
        self._spans = [span for span in self._spans if span.next < span.end or span.epoch in alive]

    def _keeps(self, found: Found[R]) -> bool:
        return self._at(found.offset) is not None

    def _at(self, offset: int) -> Open | None:
        at = bisect_right(self._spans, offset, key=itemgetter(0)) - 1
        return self._spans[at] if at >= 0 and offset < self._spans[at].end else None


def _any(_: object) -> bool:
    """Any record may be begun, as soon as its start is known."""
    return True
