"""`Backlog`: what a consumer fetched and did not hand out yet, records and the errors between them, in order."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from flowshare.client.errors import CorruptRecords, RecordError
from flowshare.client.inflight import ShareRecord
from flowshare.client.unpacking import Decoder, Item, Unpacked, unpack
from flowshare.share.types import AcknowledgeType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from flowshare.client.commits import Commits
    from flowshare.client.ranges import Fetched
    from flowshare.protocol.messages import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class Backlog(Generic[K, V]):
    """Records of one consumer that wait to be handed out; what is handed out is in hand, as its `Commits` know."""

    def __init__(
        self, commits: Commits[K, V], key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None
    ) -> None:
        self._commits = commits
        self._key_decoder = key_decoder
        self._value_decoder = value_decoder
        self._items: deque[tuple[Unpacked[K, V], Item[K, V]]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def receive(self, fetched: Fetched) -> None:
        """Take in what a fetch brought."""
        unpacked: Unpacked[K, V] = unpack(fetched, self._key_decoder, self._value_decoder)
        self._items.extend((unpacked, item) for item in unpacked.items)
        if unpacked.acks:
            self._commits.send_own(unpacked.source, unpacked.generation, unpacked.acks)

    def hand_out(self) -> list[ShareRecord[K, V]]:
        """What is there up to the first error; an error that comes first is raised."""
        items = self._items
        if not items:
            return []
        records = [self.hand_out_first()]
        source: Unpacked[K, V] | None = None
        held: dict[int, ShareRecord[K, V] | None] = {}
        while items:
            unpacked, item = items[0]
            if not isinstance(item, ShareRecord):
                break
            if unpacked is not source:
                source, held = unpacked, self._commits.hold(unpacked.source, unpacked.generation).held
            held[item.offset] = item
            records.append(item)
            items.popleft()
        return records

    def hand_out_first(self) -> ShareRecord[K, V]:
        """The first item: a record, or an error that is raised. Raises: CorruptRecords, RecordError."""
        unpacked, item = self._items.popleft()
        if isinstance(item, CorruptRecords):
            raise item
        held = self._commits.hold(unpacked.source, unpacked.generation)
        if isinstance(item, RecordError):
            held.held[item.offset] = None
            held.types[item.offset] = AcknowledgeType.RELEASE
            raise item
        held.held[item.offset] = item
        return item

    def unrun(self, holds: Callable[[TopicPartition, int], bool]) -> dict[TopicPartition, list[tuple[int, int]]]:
        """Ranges that were never handed out, of partitions and generations that `holds` still has."""
        offsets: dict[TopicPartition, list[int]] = {}
        for unpacked, item in self._items:
            if holds(unpacked.source.tp, unpacked.generation) and not isinstance(item, CorruptRecords):
                offsets.setdefault(unpacked.source.tp, []).append(item.offset)
        return {tp: list(_runs(found)) for tp, found in offsets.items()}


def _runs(offsets: Iterable[int]) -> Iterable[tuple[int, int]]:
    for _, run in itertools.groupby(enumerate(sorted(offsets)), key=lambda pair: pair[1] - pair[0]):
        found = [offset for _, offset in run]
        yield found[0], found[-1]
