"""The partitions that one member of a cooperative group has to do with: what is begun of them, what waits for them to
change, and what fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flowshare.client.cooperative.assigning import Place
from flowshare.client.cooperative.dispatch import Found
from flowshare.client.cooperative.scan import KeyScan
from flowshare.protocol.decoding import LastBatch, RawRecord
from flowshare.protocol.messages.cooperative import stable_metadata

if TYPE_CHECKING:
    import uuid

    from flowshare.clock import Clock

Record = Found[RawRecord]

logger = logging.getLogger(__name__)


class Partition:
    """One partition. lease_end_s: nothing is begun from then on, in the clock's monotonic seconds."""

    def __init__(self, place: Place, topic_id: uuid.UUID, scan: KeyScan[RawRecord]) -> None:
        self.place = place
        self.topic_id = topic_id
        self.scan = scan
        self.lease_end_s = 0.0
        self.begun = False
        """True once the server has answered for the partition. Before that, the server is told the ordinary committed
        offset."""
        self.shown = False
        """True once this member has written the partition's ordinary offset; then the server is told once more."""
        self.mirrored = -1
        """The stable offset when it was looked at last whether tools see it."""
        self.stands: tuple[int, int] = (-1, 0)
        """The stable offset, and how often in a row it was there when it was looked whether it stands still."""
        self.blocked: tuple[str, ...] = ()
        """Who holds what it waits for."""
        self.trouble: str | None = None
        self.last_batch = LastBatch()

    @property
    def key(self) -> tuple[uuid.UUID, int]:
        """As servers name it."""
        return self.topic_id, self.place[1]

    @property
    def stable_metadata(self) -> str:
        """Of its stable offset, where that is committed the ordinary way."""
        return stable_metadata(self.scan.progress.reset_epoch, self.topic_id)

    @property
    def text(self) -> str:
        """`topic-partition`."""
        return f"{self.place[0]}-{self.place[1]}"


class Partitions:
    """All of them, by name; what happens to them is told by events, and what works on them knows of each other by these
    only."""

    def __init__(self, clock: Clock, group_id: str) -> None:
        self._clock = clock
        self._group_id = group_id
        self._by_place: dict[Place, Partition] = {}
        self.to_hold = asyncio.Event()
        """Something is to be asked for or given back."""
        self.to_read = asyncio.Event()
        self.to_commit = asyncio.Event()
        self.to_tell = asyncio.Event()
        """Starts are to be told."""
        self.on_ready: Callable[[], object] = lambda: None
        """Called when records may be begun, or something that was waited for has happened."""
        self.on_lost: Callable[[Partition, list[Record]], object] = lambda partition, lost: None
        """Told of records in flight that are not the member's any more."""
        self.on_unanswered: Callable[[Partition, list[int]], object] = lambda partition, offsets: None
        """Told of finished records whose commit nobody will answer: it is not known whether it counts."""
        self.on_damaged: Callable[[Partition, int, int, str], object] = lambda partition, first, last, why: None
        """Told of stored bytes (first, last, why) that are no records, by the one member that commits them as void."""
        self._settled: set[asyncio.Future[None]] = set()
        self._changes: set[asyncio.Future[None]] = set()
        self._troubles: dict[str, str] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_place.values())

    def get(self, place: Place) -> Partition | None:
        """The partition of this name, if the member has to do with it."""
        return self._by_place.get(place)

    def of(self, topic_id: uuid.UUID, partition: int) -> Partition | None:
        """The same by id."""
        return next((one for one in self if one.key == (topic_id, partition)), None)

    def add(self, partition: Partition) -> None:
        """The member has to do with one more."""
        self._by_place[partition.place] = partition

    def forget(self, partition: Partition) -> None:
        """Nothing of it is held, in flight or wanted."""
        self._by_place.pop(partition.place, None)

    def lost(self, partition: Partition, lost: list[Record]) -> None:
        """Tell of records that are lost, and wake whoever waits."""
        if lost:
            self.on_lost(partition, lost)
        self.changed()

    async def next_change(self) -> None:
        """Wait until something is held, lost, read or committed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.add(future)
        try:
            await future
        finally:
            self._changes.discard(future)

    def uncommitted(self) -> list[tuple[Place, int]]:
        """Places and offsets of what is finished and not known as committed."""
        return [(one.place, offset) for one in self for offset in one.scan.uncommitted_offsets()]

    async def flush(self) -> None:
        """Wait until all that is finished is committed, or lost: of that `on_unanswered` is told."""
        while any(one.scan.uncommitted for one in self):
            future = asyncio.get_running_loop().create_future()
            self._settled.add(future)
            self.to_commit.set()
            await future

    def changed(self) -> None:
        """Something was held, lost, read or committed: see what can go on."""
        for one in self:
            if one.scan.unanswered:
                offsets, one.scan.unanswered = one.scan.unanswered, []
                self.on_unanswered(one, offsets)
        self.to_read.set()
        self.on_ready()
        for future in self._changes:
            if not future.done():
                future.set_result(None)
        if all(one.scan.uncommitted == 0 for one in self):
            settled, self._settled = self._settled, set()
            for future in settled:
                if not future.done():
                    future.set_result(None)

    def live(self, partition: Partition) -> bool:
        """Tell if the partition's lease is still valid."""
        return self._clock.monotonic() < partition.lease_end_s

    # --- what is begun ------------------------------------------------------------------------------------------

    def next_s(self) -> float | None:
        """When the next record may be begun, 0: at once; None: none is there."""
        if self._apart():
            busy = any(one.scan.dispatcher.at_work or one.scan.starts.telling for one in self)
            return None if busy else 0.0
        due = (one.scan.dispatcher.next_s() for one in self if self.live(one))
        return min((one for one in due if one is not None), default=None)

    def take(
        self, count: int, *, keys: int = 0, chain: int = 1, in_order: bool = False
    ) -> list[tuple[Partition, list[Record]]]:
        """Begin up to `count` records, in the order of each key: `Dispatcher.take`. Those that were begun and not
        finished keep their keys. in_order: as of `KeyScan.take`."""
        taken = [] if self._apart() else self._take_more(count, keys, chain, in_order=in_order)
        taken = taken or self._take_suspect()
        if any(one.scan.starts.tells for one in self):
            self.to_tell.set()
        return taken

    def _apart(self) -> bool:
        """Tell if a suspect is in flight, or is begun next."""
        return any(one.scan.starts.suspect_in_flight or one.scan.starts.suspects_wait for one in self)

    def _take_suspect(self) -> list[tuple[Partition, list[Record]]]:
        """Begin a suspect if nothing is in flight."""
        if any(one.scan.dispatcher.at_work for one in self):
            return []
        for partition in list(self):
            if partition.scan.starts.suspects_wait:
                found = partition.scan.take(1, self._clock.monotonic(), alone=True)
                if found:
                    return [(partition, found)]
        return []

    def _take_more(self, count: int, keys: int, chain: int, *, in_order: bool) -> list[tuple[Partition, list[Record]]]:
        taken: list[tuple[Partition, list[Record]]] = []
        now_s = self._clock.monotonic()
        for partition in list(self):
            if count <= 0 or not self.live(partition):
                continue
            found = partition.scan.take(count, now_s, keys=keys, chain=chain, in_order=in_order)
            if not found:
                continue
            taken.append((partition, found))
            count -= len(found)
            self._to_the_end(partition)
            if partition.scan.position() is not None:
                self.to_read.set()
            if keys:
                keys -= len({one.hash for one in found})
                if keys <= 0:
                    break
        return taken

    def _to_the_end(self, partition: Partition) -> None:
        """It was its turn: the others come first now."""
        if self._by_place.pop(partition.place, None) is not None:
            self._by_place[partition.place] = partition

    # --- what fails ---------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> str | None:
        """The first current failure, in words; None: nothing fails."""
        told = [*self._troubles.values(), *(one.trouble for one in self if one.trouble)]
        return told[0] if told else None

    def fails(self, what: str, error: Exception) -> None:
        """Something does not go on; the log has it once."""
        text = f"{what} fails: {error}"
        if self._troubles.get(what) != text:
            logger.warning("group=%s: %s", self._group_id, text)
        self._troubles[what] = text

    def lacks(self, what: str, text: str) -> None:
        """Something cannot go on, for a reason in words."""
        self._troubles[what] = text

    def works(self, what: str) -> None:
        """It goes on."""
        self._troubles.pop(what, None)
