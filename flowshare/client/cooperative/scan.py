"""One member's view of one partition that members share by ranges of keys: what it scanned, what it begins and commits.

The member reads the whole partition and keeps the records whose hashes lie in what it holds. What it holds is cut into
*pieces*: neighbouring hashes of one epoch, with the offset (`next`) up to which the log was scanned for them, and
whether the member is still meant to have them (`wanted`: its target, the newest assignment).

Invariant: of each piece every record before `next` is committed, or waits here, or is in flight, or is finished and not
committed yet; nothing is begun outside of the pieces, nor, outside of wanted ones, what was not begun before.

    it happens                      piece                              its records
    a range is granted              new, `next` is S                   none; what is committed (R) is skipped
    the target takes it in          wanted                             may be begun
    the target leaves it out        not wanted: its slots drain,       what was begun goes on, with its retries;
                                    `next` stands still                the rest waits: it may come back (39)
    S passes `next`                 `next` is S                        all before S is committed
    a hold without it is asked for  gone at once, whatever is said     none was begun; what waits is dropped
    an answer says it is not held   gone                               in flight: lost, their ends do not count (38)
    the member's lease is over      all gone                           all lost
    the log was reset or cut (E)    all as granted anew                all lost

A *slot* is 2^15 neighbouring hashes. It drains until none of its records is in flight, waits for a retry, or is
finished and not committed: so a range is given back after its commits were answered, and slot by slot, so that a slow
record keeps its own slot only (36). Draining slots and the target together are what the member asks to hold (`asked`).

A hole between two records, seen by a scan of everything, is void: a control batch, an aborted one, or what compaction
took. Whoever holds hash 0 commits it, at once and not with the record before it, which may be another member's. What
compaction takes behind its scan, and before the scan of the record's own member, nobody sees: so where S stands still
at nothing of its own, it looks once more for holes (`look_back`).

Intake stops at the bounds (SPAN_MAX offsets behind S, RANGES_MAX ranges) and goes on below M: what fills gaps always
goes. No I/O and no clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from typing import Final, Generic, NamedTuple, TypeVar

from flowshare.client.cooperative.dispatch import Dispatcher, Found, Turns
from flowshare.client.cooperative.starts import StartPart, Starts, Telling
from flowshare.cooperative.offsets import RANGES_MAX, SPAN_MAX, CommittedOffsets
from flowshare.cooperative.ranges import KEY_RANGES_MAX, Pair, holes, merged, minus, overlaps, total
from flowshare.cooperative.types import HASHES, WHOLE, KeyRange, KeyRanges
from flowshare.protocol.messages.records import KeyFilter

R = TypeVar("R")
SLOT_BITS: Final = 15
SLOT: Final = 1 << SLOT_BITS
BUFFER_MAX: Final = 2_000
"""Records that wait; with so many before a position nothing more is read there."""
COMMIT_MAX: Final = 2_000
"""Offsets of one commit."""
NO_BOUND: Final = 1 << 62


class Piece(NamedTuple):
    """Hashes that are held under one epoch; next: they were scanned up to there, without it."""

    first: int
    end: int
    epoch: int
    next: int
    wanted: bool


class Progress(NamedTuple):
    """The partition's progress, sent by the server with each answer: S (`stable`), E (`reset_epoch`), the number of
    ranges behind S, and M (`furthest`)."""

    stable: int
    reset_epoch: int
    range_count: int
    furthest: int


class CommitPart(NamedTuple):
    """Offsets of records whose hashes lie in `keys`, of a claim of this epoch."""

    keys: KeyRange
    epoch: int
    ranges: list[tuple[int, int]]


class Batch(NamedTuple):
    """One commit. offsets, by their hashes, and voids are what it is of."""

    reset_epoch: int
    parts: tuple[CommitPart, ...]
    offsets: dict[int, int]
    voids: tuple[tuple[int, int], ...]
    lives: int
    """`KeyScan.lives` when it was made."""


class KeyScan(Generic[R]):
    """See the head of the module. S of a partition of which nothing is known is 0."""

    def __init__(self, *, buffer_max: int = BUFFER_MAX, exact_starts: bool = False) -> None:
        self._buffer_max = buffer_max
        self._pieces: list[Piece] = []
        self._target: KeyRanges = ()
        self._dispatcher: Dispatcher[R] = Dispatcher()
        self.starts: Starts[R] = Starts(self._dispatcher, exact=exact_starts)
        self._committed = _unbounded(0, (), -1)
        self._done: dict[int, int] = {}
        """Hashes by offset of what is finished and not sent."""
        self._sent: dict[int, int] = {}
        self._voids: list[tuple[int, int]] = []
        self._sent_voids: tuple[tuple[int, int], ...] = ()
        self.progress = Progress(0, -1, 0, 0)
        self.lives = 0
        """How often all that was held was lost."""
        self.lost_records = 0
        """A counter: records in flight whose keys were lost."""
        self.unanswered: list[int] = []
        """Offsets of finished records that were lost before their commit was answered: nobody here knows whether it
        counts. Whoever tells of them empties it."""

    # -- what is known

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces that the member holds, ascending."""
        return tuple(self._pieces)

    @property
    def target(self) -> KeyRanges:
        """The key ranges that the member is assigned."""
        return self._target

    @property
    def dispatcher(self) -> Dispatcher[R]:
        """The waiting records and those in flight, for reading only."""
        return self._dispatcher

    @property
    def idle(self) -> bool:
        """True if no record is in flight and no finished record or hole waits for its commit."""
        return not (self._dispatcher.in_flight or self._done or self._sent or self._voids or self._sent_voids)

    @property
    def uncommitted(self) -> int:
        """Records that are finished and not known as committed."""
        return len(self._done) + len(self._sent)

    def uncommitted_offsets(self) -> list[int]:
        """Their offsets, in no order."""
        return [*self._sent, *self._done]

    def is_settled(self, offset: int) -> bool:
        """Tell if a finished record is committed, or is not this member's any more."""
        return offset not in self._done and offset not in self._sent

    @property
    def has_voids(self) -> bool:
        """True if holes were found that must be committed."""
        return bool(self._voids)

    @property
    def at_bound(self) -> bool:
        """True if the scan waits for S to advance, or for gaps to be filled."""
        position = self._position()
        return position is not None and position >= self._limit()

    @property
    def missing(self) -> bool:
        """True if some of the target is not held."""
        return bool(minus(self._target, [piece[:2] for piece in self._pieces]))

    # -- what is held

    def set_target(self, target: Sequence[Pair]) -> None:
        """The newest assignment. What of it is not held is to be asked for, and what is beyond it drains."""
        self._target = tuple(KeyRange(*pair) for pair in merged(target))
        self._cut([piece._replace(wanted=False) for piece in self._pieces])

    def asked(self) -> KeyRanges:
        """Return the key ranges for the next hold: the target, and the held ranges beyond it that drain."""
        draining = self._draining()
        asked = merged([*self._target, *draining])
        if len(asked) > KEY_RANGES_MAX:  # who has more keeps what lies between, too
            asked = merged([*self._target, *(piece[:2] for piece in self._pieces)])
        return tuple(KeyRange(*pair) for pair in asked)

    def ask(self) -> KeyRanges:
        """As `asked`, for a hold that is sent now: what is held and not in it is nobody's from here on."""
        asked = self.asked()
        kept = [
            self._pieces[right]._replace(first=first, end=end)
            for first, end, _, right in overlaps(asked, [piece[:2] for piece in self._pieces])
        ]
        if len(kept) != len(self._pieces) or kept != self._pieces:
            self._keep(kept)
        return asked

    @property
    def releases(self) -> bool:
        """True if the next hold gives back some of the held ranges."""
        return bool(minus([piece[:2] for piece in self._pieces], self.asked()))

    def lacks_ranges(self, claims: Iterable[tuple[int, int, int]], reset_epoch: int) -> bool:
        """Tell if R must be read before an answer without R is taken in: some of the claims are new here. Then the
        answer that granted them was lost, or had no room for R."""
        if reset_epoch != self._committed.reset_epoch:
            return True
        known: dict[int, list[Pair]] = {}
        for piece in self._pieces:
            known.setdefault(piece.epoch, []).append(piece[:2])
        return any(minus([(first, end)], known.get(epoch, ())) for first, end, epoch in claims)

    def held(
        self, claims: Iterable[tuple[int, int, int]], progress: Progress, ranges: Iterable[Pair] | None
    ) -> list[Found[R]]:
        """The answer to a hold: all that is held (first, end, epoch); ranges: R, None: nothing is new (`lacks_ranges`).
        What of the records in flight is lost."""
        lost: list[Found[R]] = []
        if progress.reset_epoch != self._committed.reset_epoch:
            lost = self.lose()
            self._committed = _unbounded(progress.stable, ranges or (), progress.reset_epoch)
        elif ranges is not None:
            self._committed = _unbounded(progress.stable, ranges, progress.reset_epoch)
        self.follow(progress)
        old, now = self._pieces, list[Piece]()
        for first, end, epoch in claims:
            same = [piece for piece in old if piece.epoch == epoch]
            for low, high, _, right in overlaps([(first, end)], [piece[:2] for piece in same]):
                now.append(same[right]._replace(first=low, end=high))
            for low, high in minus([(first, end)], [piece[:2] for piece in same]):
                now.append(Piece(low, high, epoch, progress.stable, wanted=False))
        return lost + self._keep(sorted(now))

    def lose(self) -> list[Found[R]]:
        """The lease is over, or the partition is gone: nothing is held; what was in flight."""
        self.lives += 1
        self._forget((*self._sent, *self._done))
        self._sent, self._sent_voids, self._done, self._voids = {}, (), {}, []
        self.starts.lose()
        return self._keep([])

    def follow(self, progress: Progress) -> None:
        """S, R's size and M, as the newest answer says."""
        if progress.reset_epoch == self._committed.reset_epoch and progress.stable >= self.progress.stable:
            self._committed.sequential(progress.stable)
            self._pass_over(progress.stable)
        if progress.reset_epoch != self.progress.reset_epoch or progress.stable >= self.progress.stable:
            self.progress = progress

    def _pass_over(self, stable: int) -> None:
        """Read nothing before S: all of that is committed."""
        if any(piece.next < stable for piece in self._pieces):
            self._pieces = [piece._replace(next=max(piece.next, stable)) for piece in self._pieces]
            self._merge()

    # -- scanning

    def position(self) -> int | None:
        """Where to read on; None: nothing is to be read now."""
        position = self._position()
        return None if position is None or self._is_full(position) or position >= self._limit() else position

    def _is_full(self, position: int) -> bool:
        """Tell if as much waits before this position as may. What waits behind it does not count: who begins records in
        the order of the log begins none of that before it has read on from here."""
        if self._dispatcher.buffered < self._buffer_max:
            return False
        if all(piece.next <= position for piece in self._pieces):
            return True
        return sum(found.offset < position for found in self._dispatcher.waiting()) >= self._buffer_max

    def look_back(self) -> bool:
        """Have what lies between S and the scan be looked at once more, for holes. False: S waits for a record of this
        member's, or it is not this member that commits holes."""
        stable = self.progress.stable
        zero = self._pieces[0] if self._pieces else None
        if zero is None or zero.first or not zero.wanted or zero.next <= stable:
            return False
        own = {found.offset: found.hash for found in (*self._dispatcher.waiting(), *self._dispatcher.flights())}
        own.update(self._done)
        own.update(self._sent)
        if stable in own or 0 in own.values():
            return False
        rest = [zero._replace(first=1)] if zero.end > 1 else []
        self._pieces[:1] = [zero._replace(end=1, next=stable), *rest]
        return True

    @property
    def only(self) -> KeyFilter | None:
        """The records that are wanted; None: all, or they cannot be told in so few ranges as servers take."""
        keys = merged(piece[:2] for piece in self._pieces if piece.wanted)
        told = 0 < len(keys) <= KEY_RANGES_MAX and keys != list(WHOLE)
        return KeyFilter(tuple(keys), self._limit()) if told else None

    def commits_as_void(self, position: int, first: int, end: int) -> int:
        """How many offsets this member commits as void, if a scan from `position` finds no record in this range."""
        zero = next(
            (piece for piece in self._pieces if piece.wanted and piece.next >= position and not piece.first), None
        )
        first, end = (end, end) if zero is None else (max(first, zero.next), min(end, self._limit()))
        return total(self._committed.uncommitted(first, end)) if first < end else 0

    def scanned(
        self,
        first: int,
        end: int,
        records: Sequence[tuple[int, int, R]],
        *,
        keys: Sequence[Pair] | None = None,
        voids: Iterable[Pair] = (),
    ) -> int:
        """All that there is from `first` up to, without, `end`: (offset, hash, record), ascending; how many are this
        member's. keys: it is all of these keys only, beside `voids`, where nothing is of any key."""
        end = min(end, self._limit())
        covered = self._covered(first, keys)
        starts = [piece.first for piece in self._pieces]
        taken = 0
        for offset, hash_, record in records:
            if offset >= end:
                break
            at = bisect_right(starts, hash_) - 1
            if at < 0 or not covered[at] or not self._pieces[at].next <= offset or hash_ >= self._pieces[at].end:
                continue
            if not self._committed.is_committed(offset):
                self._dispatcher.add(Found(offset, hash_, record, self.starts.before(offset, hash_)))
                taken += 1
        if covered and covered[0] and not self._pieces[0].first:
            since = max(first, self._pieces[0].next)
            inside = [offset for offset, _, _ in records if since <= offset < end] if keys is None else ()
            for low, high in voids if keys is not None else holes(since, max(since, end), inside):
                self._void(max(low, since), min(high, end))
        self._pieces = [
            piece._replace(next=max(piece.next, end)) if there else piece
            for piece, there in zip(self._pieces, covered, strict=True)
        ]
        self._merge()
        return taken

    def _covered(self, first: int, keys: Sequence[Pair] | None) -> list[bool]:
        """Of which pieces a scan of these keys from `first` on has all that is new; others are to be scanned again."""
        inside = [KeyRange(0, HASHES)] if keys is None else keys
        starts = [low for low, _ in inside]
        found: list[bool] = []
        for piece in self._pieces:
            at = bisect_right(starts, piece.first) - 1
            found.append(piece.wanted and piece.next >= first and at >= 0 and piece.end <= inside[at][1])
        return found

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
        """Begin records: `Dispatcher.take`. alone: a suspect, where nothing is in flight, and nothing else. in_order:
        none before all of this member's that stand before it in the log are begun."""
        turns = Turns(self._unbegun()) if in_order else None

        def allows(found: Found[R]) -> bool:
            mine = self._allows(found) and self.starts.allows(found, alone=alone)
            return mine and (turns is None or turns.comes(found.offset))

        self.starts.look(count)
        if alone or in_order:
            self._dispatcher.offer(self._allows)
        taken = self._dispatcher.take(count, now_s, keys=keys, chain=chain, allows=allows)
        if alone or in_order:
            self._dispatcher.offer(self._allows)
        for found in taken:
            found.epoch = self._pieces[self._place(found.hash)].epoch
            self.starts.took(found)
        return taken

    def _unbegun(self) -> list[int]:
        """Offsets of records that this member may begin, and up to where it has read for all its keys."""
        end = self._position()
        offsets = [found.offset for found in self._dispatcher.waiting() if self._allows(found)]
        return offsets if end is None else [*offsets, end]

    def begins_before(self, offset: int) -> bool:
        """Tell if this member has, or may have, a record to begin that comes before `offset` in the log."""
        return min(self._unbegun(), default=offset) < offset

    def finish(self, found: Found[R]) -> bool:
        """The record is finished and to be committed; its key waits for that. False: it is another member's now."""
        if not self._dispatcher.end(found):
            return False
        self._done[found.offset] = found.hash
        return True

    def accept(self, found: Found[R]) -> bool:
        """The record is committed before it runs; it keeps its key until `land`. False: as `finish`."""
        if not self._dispatcher.holds(found):
            return False
        self._done[found.offset] = found.hash
        return True

    def land(self, found: Found[R]) -> None:
        """An accepted record has run: the next one of its key may be begun."""
        self._dispatcher.finish(found)

    def give_back(self, found: Found[R], *, not_before_s: float = 0.0, unrun: bool = False) -> bool:
        """The record is to be begun again: `Dispatcher.give_back`."""
        return self._dispatcher.give_back(found, not_before_s=not_before_s, unrun=unrun)

    # -- telling of starts

    def telling(self, *, owed: bool = False) -> Telling | None:
        """Make the next message about starts for the server; None: nothing to tell. owed: tell how often records that
        are given back were begun (`Starts.tell`)."""
        if not self._pieces or not (self.starts.counted if owed else self.starts.tells):
            return None
        parts = self.starts.tell(self._held_keys, owed=owed)
        if not parts:
            if owed:
                return None
            first = self._pieces[0]
            parts = (StartPart(KeyRange(*first[:2]), first.epoch, [], self.starts.horizon),)
        self.starts.telling = True
        return Telling(self._committed.reset_epoch, parts, self.lives)

    def told(self, telling: Telling, refused: Collection[int]) -> None:
        """The answer. refused: places of parts that are not durable; what they are of is told again if need be."""
        if telling.lives != self.lives:
            return
        self.starts.telling = False
        self.starts.told(part for at, part in enumerate(telling.parts) if at not in refused)
        self._dispatcher.offer(self._allows)

    def _held_keys(self, hash_: int) -> tuple[KeyRange, int] | None:
        if not self._holds(hash_):
            return None
        piece = self._pieces[self._place(hash_)]
        return KeyRange(piece.first, piece.end), piece.epoch

    # -- settling

    def parts_of(self, records: Iterable[Found[R]]) -> tuple[CommitPart, ...]:
        """Build the parts of a request that commits records in flight with outputs. They name only the keys of these
        records, so that other keys may be given back at the same time."""
        by_key: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for found in records:
            by_key.setdefault((found.hash, found.epoch), []).append((found.offset, found.offset + 1))
        return tuple(
            CommitPart(KeyRange(hash_, hash_ + 1), epoch, merged(ranges))
            for (hash_, epoch), ranges in sorted(by_key.items())
        )

    def waits(self, records: Iterable[Found[R]]) -> bool:
        """Tell if records of the same keys are finished and not committed. They must be committed first: if the member
        died in between, they could come again behind these records."""
        if not (self._done or self._sent):
            return False
        return not {found.hash for found in records}.isdisjoint([*self._done.values(), *self._sent.values()])

    def settled(self, records: Iterable[Found[R]], progress: Progress) -> None:
        """These are committed: the next ones of their keys may be begun."""
        offsets = [(found.offset, found.offset + 1) for found in records if self._dispatcher.finish(found)]
        if offsets:
            self._committed.commit(offsets)
        self.follow(progress)

    # -- committing

    def commit(self, count: int = COMMIT_MAX) -> Batch | None:
        """Make the next commit, of up to `count` offsets; None: nothing to commit, or a commit is under way."""
        if self._sent or self._sent_voids or not (self._done or self._voids):
            return None
        if len(self._done) <= count:
            self._sent, self._done = self._done, {}
        else:
            offsets = sorted(self._done)[:count]
            self._sent = {offset: self._done.pop(offset) for offset in offsets}
        self._sent_voids, self._voids = tuple(merged(self._voids)[:count]), merged(self._voids)[count:]
        by_piece: dict[int, list[tuple[int, int]]] = {}
        for offset, hash_ in self._sent.items():
            by_piece.setdefault(self._place(hash_), []).append((offset, offset + 1))
        if self._sent_voids:
            by_piece.setdefault(self._place(0), []).extend(self._sent_voids)
        parts = [
            CommitPart(KeyRange(*self._pieces[at][:2]), self._pieces[at].epoch, merged(ranges))
            for at, ranges in sorted(by_piece.items())
        ]
        return Batch(self._committed.reset_epoch, tuple(parts), self._sent, self._sent_voids, self.lives)

    def committed(self, batch: Batch, progress: Progress, fenced: Iterable[int] = ()) -> bool:
        """The answer to a commit. fenced: places of parts that were refused: an answer to the next hold says whether
        their keys are gone; if not, they are committed again. Whether nothing was refused."""
        if batch.lives != self.lives:
            return False
        again = {batch.parts[place].keys for place in fenced}
        for part in batch.parts:
            if part.keys not in again:
                self._committed.commit(part.ranges)
        self._settle(batch, again)
        self.follow(progress)
        return not again

    def failed(self, batch: Batch) -> None:
        """Nobody knows whether the commit counts: it is sent again."""
        if batch.lives == self.lives:
            self._settle(batch, [KeyRange(0, HASHES)])

    def _settle(self, batch: Batch, again: Collection[KeyRange]) -> None:
        """The commit is not under way any more; what of it lies in `again` and is held is to be committed again."""
        for offset, hash_ in batch.offsets.items():
            if not again or not any(first <= hash_ < end for first, end in again):
                self._dispatcher.settled(offset)
            elif self._holds(hash_):
                self._done[offset] = hash_
            else:
                self._forget([offset])
        if any(not first for first, _ in again) and self._holds(0):
            self._voids = merged([*self._voids, *batch.voids])
        self._sent, self._sent_voids = {}, ()

    # -- inside

    def _position(self) -> int | None:
        return min((piece.next for piece in self._pieces if piece.wanted), default=None)

    def _limit(self) -> int:
        stable, _, count, furthest = self.progress
        return furthest if count >= RANGES_MAX else stable + SPAN_MAX

    def _place(self, hash_: int) -> int:
        """The piece of a hash that is held."""
        return bisect_right(self._pieces, hash_, key=itemgetter(0)) - 1

    def _holds(self, hash_: int) -> bool:
        at = self._place(hash_)
        return at >= 0 and hash_ < self._pieces[at].end

    def _allows(self, found: Found[R]) -> bool:
        """Tell if a record may be begun: its key is wanted, or the record was begun before and waits for its retry."""
        at = self._place(found.hash)
        if at < 0 or found.hash >= self._pieces[at].end:
            return False
        return self._pieces[at].wanted or found.not_before_s > 0 or found.owed

    def _void(self, first: int, end: int) -> None:
        if first < end:
            self._voids += self._committed.uncommitted(first, end)

    def _draining(self) -> list[tuple[int, int]]:
        """Return the held key ranges beyond the target that still have unfinished work."""
        beyond = [piece[:2] for piece in self._pieces if not piece.wanted]
        if not beyond:
            return []
        hashes = self._dispatcher.pending_hashes() | set(self._done.values()) | set(self._sent.values())
        if self._voids or self._sent_voids:
            hashes.add(0)
        slots = {hash_ >> SLOT_BITS for hash_ in hashes}
        return [
            (first, end)
            for first, end, _, _ in overlaps(beyond, [(one * SLOT, (one + 1) * SLOT) for one in sorted(slots)])
        ]

    def _keep(self, pieces: list[Piece]) -> list[Found[R]]:
        """These are held now, and nothing else; what of the records in flight is lost."""
        if pieces == self._pieces:
            return []
        before, self._pieces = self._pieces, pieces

        def keeps(found: Found[R]) -> bool:
            at = self._place(found.hash)
            if at < 0 or found.hash >= self._pieces[at].end:
                return False
            old = bisect_right(before, found.hash, key=itemgetter(0)) - 1
            return old >= 0 and found.hash < before[old].end and before[old].epoch == self._pieces[at].epoch

        lost = self._dispatcher.drop(keeps)
        self.starts.keep(keeps)
        self.lost_records += len(lost)
        self._forget([offset for offset, hash_ in self._done.items() if not self._holds(hash_)])
        self._done = {offset: hash_ for offset, hash_ in self._done.items() if self._holds(hash_)}
        if not self._holds(0):
            self._voids = []
        self._cut([piece._replace(wanted=False) for piece in self._pieces])
        return lost

    def _forget(self, offsets: Collection[int]) -> None:
        """These were finished, nobody knows whether they are committed, and their keys are lost."""
        self.unanswered += offsets
        for offset in offsets:
            self._dispatcher.settled(offset)

    def _cut(self, pieces: list[Piece]) -> None:
        """Cut pieces where the target begins and ends, and see what may be begun."""
        pairs = [piece[:2] for piece in pieces]
        inside = [
            pieces[right]._replace(first=first, end=end, wanted=True)
            for first, end, _, right in overlaps(self._target, pairs)
        ]
        rest = minus(pairs, self._target)
        outside = [pieces[right]._replace(first=first, end=end) for first, end, _, right in overlaps(rest, pairs)]
        self._pieces = sorted([*inside, *outside])
        self._merge()
        self.starts.keep(self._allows)
        self._dispatcher.offer(self._allows)

    def _merge(self) -> None:
        """Join neighbours that differ in nothing."""
        joined: list[Piece] = []
        for piece in self._pieces:
            if joined and joined[-1].end == piece.first and joined[-1][2:] == piece[2:]:
                joined[-1] = joined[-1]._replace(end=piece.end)
            else:
                joined.append(piece)
        self._pieces = joined


def _unbounded(stable: int, ranges: Iterable[Pair], reset_epoch: int) -> CommittedOffsets:
    return CommittedOffsets(stable, ranges, reset_epoch, ranges_max=NO_BOUND, span_max=NO_BOUND)
