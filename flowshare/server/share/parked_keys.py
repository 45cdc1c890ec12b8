"""The parked keys of one share-partition, as its owner sees them: judged by the records themselves, and stored."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.log.base import OffsetOutOfRange
from flowshare.protocol.key_hash import key_name, name_hash
from flowshare.protocol.private import REPLAY_HEADER
from flowshare.server.runtime.state import parked_write
from flowshare.share.parking import Mark, ParkedKey, Parking, Place, TooManyParked
from flowshare.share.ranges import merged, minus
from flowshare.share.types import AcknowledgeType, RecordState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.protocol.decoding import DecodedRecord, RawRecord
    from flowshare.server.runtime.state import ShareKey, Write
    from flowshare.server.share.opened_log import OpenedLog, Thinned
    from flowshare.server.share.writing import StateWriter
    from flowshare.share.acquire_by_key import Picked
    from flowshare.share.parking import Change
    from flowshare.share.partition import Decision, SharePartition
    from flowshare.share.types import AckRange, AcquiredRange

logger = logging.getLogger(__name__)

TOLD_AGAIN_S: Final = 60.0
HELD_MIN: Final = 2_000
"""Remembered records above which the settled ones are dropped."""
NOT_WRITTEN: Final = object()
_REJECT: Final = int(AcknowledgeType.REJECT)


class Seen(NamedTuple):
    """A picked record whose key may be parked. key: its name (`key_name`), as everywhere here."""

    offset: int
    key: bytes
    mark: Mark | None


class Held(NamedTuple):
    """A record that was handed out, as far as it is known. key: its name; None: to be read from the log. follows: no
    handler ran the record: it was handed out to become a dead letter unrun, or came back as one."""

    key: bytes | None = None
    mark: Mark | None = None
    follows: bool = False


NOT_KNOWN: Final = Held()


class Judged(NamedTuple):
    """The picked records that are not simply to be run. settled: archived unseen. following: offset -> offset of the
    record that its key was parked for. changes: changes of parked keys by the replayed records among them."""

    settled: Sequence[int] = ()
    following: Mapping[int, int] = {}
    changes: Sequence[Change] = ()


class ParkedKeys:
    """Parked keys of one owner; see `share.parking`."""

    def __init__(
        self,
        key: ShareKey,
        partition: SharePartition,
        opened: OpenedLog,
        clock: Clock,
        parked: Mapping[bytes, ParkedKey],
        generation: int,
        where: str,
        *,
        writer: StateWriter,
        changed: Callable[[], object],
    ) -> None:
        """changed: called when keys were parked, or let go on."""
        self._key = key
        self._partition = partition
        self._opened = opened
        self._clock = clock
        self._where = where
        self._writer = writer
        self._changed = changed
        self._tell_full_s = self._tell_parked_s = self._tell_gone_s = 0.0
        self._held: dict[int, Held] = {}
        """The records that were handed out, by offset: a record may have left the log when it is rejected."""
        self._held_max = HELD_MIN
        self.parking = Parking(name_hash, parked, generation=generation)
        partition.single(self.parking.hashes)
        self._tell_parked()

    def __len__(self) -> int:
        return len(self.parking)

    def __contains__(self, key: bytes) -> bool:
        return self.parking.get(key) is not None

    def name(self, key: bytes) -> bytes:
        """Return the name of a key; a name is returned as it is."""
        return key if key in self else key_name(key)

    def _name_of(self, record: RawRecord | None) -> bytes | None:
        key = None if record is None else self._opened.order.key_of(record)
        return None if key is None else key_name(key)

    def mark_of(self, record: RawRecord | DecodedRecord) -> Mark | None:
        """Return the mark of a replayed record of this group, or None."""
        for name, value in reversed(record.headers):
            if name == REPLAY_HEADER:
                return Mark.of(value, *self._key)
        return None

    async def look(self, picked: Picked, marked: Sequence[int]) -> list[Seen]:
        """Return the picked records whose key may be parked; marked: offsets of records that may be replayed ones.
        Raises: as `OpenedLog.record`."""
        hashes, opened, partition = self.parking.hashes, self._opened, self._partition
        found: list[Seen] = []
        if not hashes and not marked:
            return found
        replayed = frozenset(marked)
        for first, last, _ in picked.ranges:
            for offset in range(first, last + 1):
                if offset in replayed or (hashes and partition.hash_at(offset) in hashes):
                    record = await opened.record(offset)
                    key = self._name_of(record)
                    if record is not None and key is not None:
                        found.append(Seen(offset, key, self.mark_of(record)))
        return found

    def judge(self, seen: Sequence[Seen]) -> Judged:
        """Judge the seen records by the keys that are parked now."""
        settled: list[int] = []
        following: dict[int, int] = {}
        changes: list[Change] = []
        for offset, key, mark in seen:
            match self.parking.judge(key, mark):
                case Place.SETTLED:
                    settled.append(offset)
                case Place.FOLLOWS:
                    parked = self.parking.get(key)
                    following[offset] = offset if parked is None else parked.first
                case Place.REPLAYED if mark is not None:
                    changes.append(self.parking.taken(key, offset, mark))
                case _:
                    pass
        if settled:
            logger.info(
                "%d replays are passed over, the first at offset %d: of what is settled or replayed anew, of keys not "
                "parked, or behind one that never came, where the key stays parked (flowshare dlq replay) %s",
                len(settled),
                settled[0],
                self._where,
            )
        return Judged(settled, following, changes)

    def handed_out(self, ranges: Sequence[AcquiredRange], read: Thinned, following: Mapping[int, int]) -> None:
        """Remember the keys of records handed out, until they are settled: retention and compaction do not wait for
        that."""
        if len(self._held) > self._held_max:
            start, hash_at = self._partition.start_offset, self._partition.hash_at
            self._held = {at: one for at, one in self._held.items() if at >= start and hash_at(at)}
            self._held_max = max(HELD_MIN, 2 * len(self._held))
        held, key_of = self._held, self._opened.order.key_of
        for record, is_marked in read.within([(one.first, one.last) for one in ranges]):
            key, offset = key_of(record), record.offset
            if key is not None:
                mark = self.mark_of(record) if is_marked else None
                held[offset] = Held(key_name(key), mark, offset in following)

    def forget_held(self, end: int = 0) -> None:
        """Forget records handed out from an offset on: the log was cut there, or no key is to be parked."""
        self._held = {at: one for at, one in self._held.items() if at < end}

    def came_back_unrun(self, batches: Sequence[AckRange], decision: Decision) -> None:
        """Note rejected records that no handler ran, as the rejecting member says: another leader may have handed them
        out."""
        unrun = merged((batch.first, batch.last) for batch in batches if batch.unrun and _REJECT in batch.types)
        if not unrun:
            return
        rejected = merged((run.first, run.last) for run in decision.changes if run.state is RecordState.ARCHIVING)
        for first, last in minus(unrun, minus(unrun, rejected)):
            for offset in range(first, last + 1):
                self._held[offset] = self._held.get(offset, NOT_KNOWN)._replace(follows=True)

    def apply(self, changes: Sequence[Change]) -> list[Write]:
        """Apply changes now; return the writes that make them durable."""
        before = len(self.parking)
        self.parking.apply(changes)
        if len(self.parking) > before:
            self._tell_parked()
        return self.writes(changes)

    def _tell_parked(self) -> None:
        """Log that keys are parked, for an operator to act: nothing else shows that their records are not handled any
        more."""
        now_s = self._clock.monotonic()
        if self.parking and now_s >= self._tell_parked_s:
            self._tell_parked_s = now_s + TOLD_AGAIN_S
            logger.warning(
                "%d keys are parked: their records become dead letters, unrun, until they are replayed or let go on "
                "(flowshare dlq parked, replay, unpark) %s",
                len(self.parking),
                self._where,
            )

    def writes(self, changes: Iterable[Change]) -> list[Write]:
        """Return the writes that make changes durable."""
        return [parked_write(self._key, change) for change in changes]

    def settled_by(self, decision: Decision) -> list[Change]:
        """Return the changes of parked keys by a decision's settled replayed records, for when it is durable."""
        runs = [run for run in decision.changes if run.state.terminal]
        return [change for run in runs for change in self.parking.settled(run.first, run.last)]

    def change(self, key: bytes, changed: ParkedKey | None) -> asyncio.Future[None]:
        """Queue a change; it is applied when durable, and dropped if it cannot be written."""
        return self._writer.add(None, beside=self.writes([(key, changed)]), done=partial(self._written, key, changed))

    def _written(self, key: bytes, changed: ParkedKey | None) -> None:
        """Apply a durable change; the key may have changed meanwhile."""
        now = self.parking.get(key)
        if now is not None:
            self.apply([(key, changed and now._replace(version=changed.version))])
            self._changed()
        self._store({key: changed})

    def follow(self, decision: Decision, written: Sequence[Change]) -> None:
        """Apply a durable decision over replayed records; a key may have changed since the decision."""
        changes = self.settled_by(decision)
        self.apply(changes)
        self._store({**dict.fromkeys((key for key, _ in changes), NOT_WRITTEN), **dict(written)})
        self._changed()

    def _store(self, stored: Mapping[bytes, object]) -> None:
        """Queue the present state of these keys, where it differs from the written one."""
        known = self.parking.get
        changes = [(key, known(key)) for key, was in stored.items() if known(key) != was]
        if changes:
            self._writer.keep(None, self.writes(changes))

    async def rejected(self, offset: int, *, parks: bool) -> list[Change] | None:
        """Return the changes by a record whose dead letter is written; None: no more keys can be parked, the record has
        to wait.

        parks: True if a key that is not parked yet is parked. A record that only followed a key let go on meanwhile
        parks none: no handler ran it. Raises: as `OpenedLog.record`.
        """
        key, mark, follows = self._held.get(offset, NOT_KNOWN)
        if key is None:
            record = await self._rejected_record(offset)
            key, mark = self._name_of(record), None if record is None else self.mark_of(record)
        if key is None or (key not in self and (follows or not parks)):
            return []
        try:
            return self.parking.rejected(key, offset, mark)
        except TooManyParked:
            now_s = self._clock.monotonic()
            if now_s >= self._tell_full_s:
                self._tell_full_s = now_s + TOLD_AGAIN_S
                logger.error(  # noqa: TRY400 - no trace is of use
                    "%d keys are parked, no more can be: the key of offset %d stands still until some are replayed or "
                    "given up (flowshare dlq parked, replay, unpark) %s",
                    len(self.parking),
                    offset,
                    self._where,
                )
            return None

    async def _rejected_record(self, offset: int) -> RawRecord | None:
        """Read a rejected record from the log; None: the log does not have it any more. Raises: as
        `OpenedLog.record`."""
        try:
            record = await self._opened.record(offset)
        except OffsetOutOfRange:
            if offset >= self._opened.log_start:
                raise
            record = None
        now_s = self._clock.monotonic()
        if record is None and now_s >= self._tell_gone_s:
            self._tell_gone_s = now_s + TOLD_AGAIN_S
            logger.warning(
                "the record at offset %d was rejected and is not in the log any more, or cannot be opened: if it had a "
                "key, that is not parked, and its later records are run %s",
                offset,
                self._where,
            )
        return record
