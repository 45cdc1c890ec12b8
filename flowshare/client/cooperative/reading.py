"""`LogReader`: reads what a member of a cooperative group holds something of, and gives it to the scans.

One fetch goes on at a time, over all partitions that have room for more. One that could not be read is asked for alone,
beside it, until it answers. What a fetch brought is taken apart by `scan_log`: all records with the hashes of their
keys, and up to where.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ClientError, NotConnected, ServerError, check
from flowshare.cooperative.ranges import Pair, holes
from flowshare.protocol.aborted import AbortedBatches
from flowshare.protocol.decoding import NOTHING, PADDING, SIZE_MAX, LastBatch, RawRecord, with_unreadable
from flowshare.protocol.each_record import Unreadable
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import OFFSET_MAX, DecodeError, frames
from flowshare.protocol.key_hash import slot_hash_of
from flowshare.protocol.messages import EARLIEST, FetchPartition, FetchRequest, ListOffsetsRequest
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.client.cooperative.assigning import Place
    from flowshare.client.cooperative.partitions import Partition, Partitions
    from flowshare.client.net.link import Link
    from flowshare.client.settings import CooperativeSettings
    from flowshare.clock import Clock
    from flowshare.protocol.messages import FetchedLog
    from flowshare.protocol.messages.records import AbortedTransaction, Filtered

READ_SHORT_S: Final = 0.1
"""How long a fetch may wait while partitions are left out of it."""
LOOK_BACK_S: Final = 30.0
"""A stable offset that has not moved for so long is looked at, and again each time when that has doubled."""
WANTED: Final = (0, OFFSET_MAX)

logger = logging.getLogger(__name__)


class LogReader:
    """That of one member. Ends with its loops' tasks."""

    def __init__(
        self,
        link: Link,
        partitions: Partitions,
        group_id: str,
        *,
        settings: CooperativeSettings,
        clock: Clock,
    ) -> None:
        self._link = link
        self._partitions = partitions
        self._group_id = group_id
        self._settings = settings
        self._clock = clock
        self._alone: dict[Place, asyncio.Task[None]] = {}
        """The tasks that ask for partitions that could not be read."""

    async def read_loop(self) -> None:
        """Read whatever has room for more."""
        try:
            await self._read_on()
        finally:
            alone, self._alone = self._alone, {}
            await cancelled(*alone.values())

    async def _read_on(self) -> None:
        failures = 0
        while True:
            self._partitions.to_read.clear()
            asked = {
                one.place: self._part(one, at)
                for one in self._partitions
                if one.place not in self._alone and (at := one.scan.position()) is not None
            }
            if not asked:
                await self._partitions.to_read.wait()
                continue
            left_out = any(
                one.scan.pieces and one.place not in asked and one.place not in self._alone for one in self._partitions
            )
            try:
                refused = await self._read(asked, READ_SHORT_S if left_out else self._settings.fetch_max_wait)
            except (OSError, ClientError) as error:
                self._partitions.fails("reading", error)
                if isinstance(error, NotConnected) and self._link.current is not None:  # no leader of them is reached
                    for place in asked:
                        self._read_alone(place)
                    continue
                failures += 1
                await self._clock.sleep(self._link.pause_s(failures))
                continue
            failures = 0
            self._partitions.works("reading")
            for place, refusal in refused.items():
                self._partitions.fails(_reading(place), refusal)
                self._read_alone(place)

    def _part(self, partition: Partition, at: int) -> FetchPartition:
        return FetchPartition(*partition.place, at, self._settings.partition_fetch_bytes, only=partition.scan.only)

    def _read_alone(self, place: Place) -> None:
        """Leave a partition out until it answers: one without a leader would hold up all others."""
        partition = self._partitions.get(place)
        if partition is not None and place not in self._alone:
            reading = self._until_read(partition)
            self._alone[place] = asyncio.create_task(reading, name=f"{self._group_id}: {_reading(place)}")

    async def _until_read(self, partition: Partition) -> None:
        """Ask for a partition alone until it answers, or is not to be read any more."""
        place, failures = partition.place, 1
        try:
            while True:
                await self._clock.sleep(self._link.pause_s(failures))
                at = partition.scan.position()
                if at is None or self._partitions.get(place) is not partition:
                    return
                try:
                    refusal = (await self._read({place: self._part(partition, at)}, 0.0)).get(place)
                except (OSError, ClientError) as error:
                    refusal = error
                if refusal is None:
                    self._partitions.works("reading")
                    return
                failures += 1
                self._partitions.fails(_reading(place), refusal)
        finally:
            self._alone.pop(place, None)
            self._partitions.works(_reading(place))
            self._partitions.to_read.set()

    async def look_back_loop(self) -> None:
        """See whether a stable offset stands still at what compaction took (`KeyScan.look_back`)."""
        while True:
            await self._clock.sleep(LOOK_BACK_S)
            for partition in self._partitions:
                stable, times = partition.scan.progress.stable, partition.stands[1]
                times = times + 1 if partition.stands[0] == stable else 0
                partition.stands = (stable, times)
                scan = partition.scan
                if times.bit_count() == 1 and scan.look_back():
                    self._partitions.to_read.set()

    async def _read(self, asked: Mapping[Place, FetchPartition], wait_s: float) -> dict[Place, OSError | ClientError]:
        """Fetch once; return why partitions were not read. Raises: ServerError, OSError, ClientError."""
        settings = self._settings
        committed = settings.isolation_level == "read_committed"
        answer = await self._link.send(
            FetchRequest(
                partitions=tuple(asked.values()),
                max_wait_ms=round(min(wait_s, settings.fetch_max_wait) * 1000),
                max_bytes=settings.fetch_max_bytes,
                committed=committed,
            ),
            wait_s=wait_s,
        )
        check(answer.error, answer.message, f"group {self._group_id}: reading")
        refused: dict[Place, OSError | ClientError] = {}
        for log in answer.partitions:
            partition = self._partitions.get((log.topic, log.partition))
            if partition is None:
                continue
            part = asked[partition.place]
            if log.error is ErrorCode.NONE:
                take_in(self._partitions, partition, part, log)
            elif log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                try:
                    await self._out_of_range(partition, part.offset)
                except (OSError, ClientError) as error:
                    refused[partition.place] = error
            else:
                refused[partition.place] = ServerError(log.error, log.message, about=_reading(partition.place))
        self._partitions.changed()
        return refused

    async def _out_of_range(self, partition: Partition, position: int) -> None:
        topic, number = partition.place
        answer = await self._link.send(ListOffsetsRequest(topic=topic, partition=number, timestamp_ms=EARLIEST))
        check(answer.error, answer.message, f"where {partition.text} begins")
        if answer.offset > position:
            self.begins_at(partition, answer.offset)
        else:
            self._partitions.to_hold.set()
            raise ClientError(f"{partition.text} ends before {position}: its log was cut")

    def begins_at(self, partition: Partition, log_start: int) -> None:
        """Treat all unread offsets before the log's start as void: nobody ever saw their records."""
        position = partition.scan.position()
        if position is not None and position < log_start:
            logger.warning("%s begins at %d now: what was not read before it is gone", partition.text, log_start)
            partition.scan.scanned(position, log_start, ())
            self._partitions.to_commit.set()


def _reading(place: Place) -> str:
    return f"reading {place[0]}-{place[1]}"


def take_in(partitions: Partitions, partition: Partition, asked: FetchPartition, log: FetchedLog) -> None:
    """Give a partition's scan what a fetch brought of it."""
    scan, position = partition.scan, asked.offset
    scanned = scan_log(log.records, position, log.aborted, last=partition.last_batch)
    for first, last, why in scanned.damaged:
        if scan.commits_as_void(position, first, last + 1):
            logger.error("record=%s@%d..%d: the stored bytes cannot be read: %s", partition.text, first, last, why)
            partitions.on_damaged(partition, first, last, why)
    if asked.only is None or log.filtered is None:
        scan.scanned(position, scanned.end, scanned.records)
    else:
        voids = voids_of(log.filtered, scanned.records)
        scan.scanned(position, log.filtered.end, scanned.records, keys=asked.only.keys, voids=voids)
    if scan.has_voids:
        partitions.to_commit.set()


class Scanned(NamedTuple):
    """records: (offset, hash, record), ascending, from the asked offset on. end: all before it was looked at. damaged:
    (first, last, why) of what cannot be read and has no records that stand for it."""

    records: list[tuple[int, int, RawRecord]]
    end: int
    damaged: list[tuple[int, int, str]]


def scan_log(
    data: bytes,
    offset: int,
    aborted: Sequence[AbortedTransaction] = (),
    *,
    last: LastBatch | None = None,
) -> Scanned:
    """The records of whole batches from `offset` on, without control records and those of aborted transactions.

    aborted: as of a fetch of committed records. last: keeps the last batch read, for who reads a
    few records of it at a time.
    Raises: DecodeError when the bytes are no sequence of batches at all.
    """
    last = last or LastBatch()
    padded = data + PADDING
    found = Scanned([], offset, [])
    records, _, damaged = found
    end = offset
    transactions = AbortedBatches(aborted)
    headers = list(frames(data, partial_tail=True))
    for header in headers:
        skipped = transactions.skips(header)
        if header.last_offset < end:
            continue
        try:
            final = header is headers[-1]
            read = NOTHING if skipped else last.read(padded, header, SIZE_MAX, WANTED, final=final)
        except DecodeError as error:
            read = NOTHING._replace(damaged=(Unreadable(header.base_offset, header.last_offset, str(error)),))
        damaged += [
            one._replace(first=max(end, one.first)) for one in read.damaged if one.first <= one.last and not one.records
        ]
        batch = with_unreadable(read.records, read.damaged)
        records += [(one.offset, slot_hash_of(one), one) for one in batch if end <= one.offset]
        end = header.last_offset + 1
    return found._replace(end=end)


def voids_of(filtered: Filtered, records: Sequence[tuple[int, int, RawRecord]]) -> list[Pair]:
    """Where no record of any key is, as a server says that left out other keys' (`FetchedLog.filtered`), and as is seen
    in the records that it gave.

    In batches that it could not open it saw nothing, so that it gave them whole.
    """
    if not filtered.unopened:
        return list(filtered.voids)
    offsets = [offset for offset, _, _ in records]
    voids = list(filtered.voids)
    for first, end in filtered.unopened:
        inside = offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]
        voids += holes(first, end, inside)
    return sorted(voids)
