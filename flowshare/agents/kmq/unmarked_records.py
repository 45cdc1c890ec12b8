"""Records that a KMQ agent has read and not marked yet; handed out in order, the partitions taking turns."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from flowshare.client.groups.consumer import Place
from flowshare.protocol.decoding import RawRecord


class Taken(NamedTuple):
    """Records of one partition to be marked, and the offset to commit after that."""

    place: Place
    records: list[RawRecord]
    attempts: list[int] | None
    """Number of deliveries of each record, this one included; None: all for the first time."""
    next: int


class _Stretch:
    """Records of one fetch. at: number of those handed out."""

    __slots__ = ("at", "attempts", "next", "records")

    def __init__(self, records: list[RawRecord], attempts: list[int] | None, next_offset: int) -> None:
        self.records = records
        self.attempts = attempts
        self.next = next_offset
        self.at = 0


class Ahead:
    """Records by partition, one stretch each: a partition is read again only when its records are used up."""

    def __init__(self) -> None:
        self._stretches: dict[Place, _Stretch] = {}
        self._turns: deque[Place] = deque()
        self._passed: dict[Place, int] = {}

    def __len__(self) -> int:
        return sum(len(one.records) - one.at for one in self._stretches.values())

    @property
    def places(self) -> frozenset[Place]:
        """Partitions with records here."""
        return frozenset(self._stretches)

    def clear(self) -> None:
        """Forget all records: the partitions may be another member's."""
        self._stretches.clear()
        self._turns.clear()
        self._passed.clear()

    def add(self, place: Place, records: list[RawRecord], attempts: list[int] | None, next_offset: int) -> None:
        """Add the records read from a partition, up to an offset."""
        if records:
            self._stretches[place] = _Stretch(records, attempts, next_offset)
            self._turns.append(place)
        else:
            self._passed[place] = next_offset

    def take(self, limit: int) -> list[Taken]:
        """Take at most `limit` records, fairly from all partitions; the caller owns them."""
        found: list[Taken] = []
        while limit > 0 and self._turns:
            place = self._turns.popleft()
            one = self._stretches[place]
            share = max(1, limit // (len(self._turns) + 1))
            end = min(len(one.records), one.at + share)
            records = one.records[one.at : end]
            attempts = None if one.attempts is None else one.attempts[one.at : end]
            if end == len(one.records):
                del self._stretches[place]
                following = one.next
            else:
                one.at = end
                following = records[-1].offset + 1
                self._turns.append(place)
            limit -= len(records)
            found.append(Taken(place, records, attempts, following))
            self._passed.pop(place, None)
            if len(found) > len(self._turns) + len(self._stretches):
                break
        return found

    def put_back(self, taken: list[Taken]) -> None:
        """Put back records that could not be marked; they are taken first next time."""
        for one in reversed(taken):
            known = self._stretches.get(one.place)
            if known is None:
                self._stretches[one.place] = _Stretch(one.records, one.attempts, one.next)
                self._turns.appendleft(one.place)
                continue
            rest = known.records[known.at :]
            attempts = None
            if one.attempts is not None or known.attempts is not None:
                attempts = [
                    *(one.attempts or [1] * len(one.records)),
                    *(known.attempts or [1] * len(known.records))[known.at :],
                ]
            self._stretches[one.place] = _Stretch([*one.records, *rest], attempts, known.next)

    def passed(self) -> dict[Place, int]:
        """Return offsets to commit of partitions that had no records up to there; each is returned once."""
        found, self._passed = self._passed, {}
        return found
