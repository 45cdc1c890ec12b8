"""Reading slots' logs from Kafka, and its settings (`SlotSettings`).

`SlotReading` makes records of bytes, with a bounded number of tries. `SlotReplay` brings a slot's reader to the end of
its log, from the local cache or from the log's start. `SlotTails` follows all slots of a process from there, with one
fetch at a time for each broker that leads some: the fetch waits at the broker for records (`WAIT_MS`), so it has a
connection of its own. A slot that joins is followed from the next fetch on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from flowshare.backoff import QUICK, USUAL, Backoff
from flowshare.client.errors import ClientError, ServerError, check
from flowshare.log.base import LogError, OffsetOutOfRange, StorageDamaged, StorageError
from flowshare.protocol.decoding import PADDING, SIZE_MAX, read_batch
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.headers import DecodeError, frames
from flowshare.protocol.messages import FetchRequest, ListOffsetsRequest
from flowshare.protocol.messages.records import EARLIEST, FetchedLog, FetchPartition
from flowshare.slots.errors import ForeignRecord, SlotError
from flowshare.slots.pruning import PruneLimits
from flowshare.slots.records import Record, checksum_of, decode
from flowshare.slots.replay import SlotReader
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.state.cache import SlotCache
    from flowshare.protocol.messages import Request

R = TypeVar("R")
WAITING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.CORRUPT_MESSAGE,
    }
)
"""Errors that pass by themselves, beside those that are retriable for every client."""

logger = logging.getLogger(__name__)


class LogRecord(NamedTuple):
    """A record of a slot's log with its place and the checksum of its value."""

    offset: int
    record: Record
    checksum: int


class SlotRecords(NamedTuple):
    """Records read from `start` on. position: the offset behind all offsets looked at. log_start, end: the log's
    bounds."""

    start: int
    records: list[LogRecord]
    position: int
    log_start: int
    end: int


def passes(error: ServerError) -> bool:
    """True if the error may be gone at the next try."""
    return error.retriable or error.code in WAITING


def found_in(log: FetchedLog, position: int) -> SlotRecords:
    """Return the records from `position` on in a broker's answer, without those that flowshare did not write.

    Raises: ServerError, OffsetOutOfRange, StorageDamaged
    """
    where = f"{log.topic}-{log.partition}"
    if log.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        raise OffsetOutOfRange(f"{where} has no offset {position} any longer, or not yet")
    check(log.error, log.message, f"reading {where}")
    start, records, foreign = position, list[LogRecord](), list[str]()
    padded = log.records + PADDING
    try:
        for header in frames(log.records, partial_tail=True):
            if header.last_offset < position:
                continue
            raws = read_batch(padded, header, SIZE_MAX).whole()
            records += _own(where, [raw for raw in raws if raw.offset >= position], foreign)
            position = header.last_offset + 1
    except DecodeError as error:
        raise StorageDamaged(f"{where} cannot be read from offset {position} on: {error}") from error
    if foreign:
        logger.warning(
            "%d records of %s are passed over, as no flowshare wrote them, the first at offset %s: take the right to "
            "write to that topic from whoever is no worker of the fleet",
            len(foreign),
            where,
            foreign[0],
        )
    return SlotRecords(start, records, position, log.log_start, log.high_watermark)


def _own(where: str, raws: Iterable[Any], foreign: list[str]) -> Iterator[LogRecord]:
    """Yield the records of a slot's log; place and reason of all others go to `foreign`. Raises StorageDamaged."""
    for raw in raws:
        try:
            yield LogRecord(raw.offset, decode(raw.key, raw.value), checksum_of(raw.value))
        except ForeignRecord as error:
            foreign.append(f"{raw.offset} ({error})")
        except SlotError as error:
            raise StorageDamaged(f"{where} has at offset {raw.offset} what this fleet cannot use: {error}") from error


class SlotReading:
    """The reader of one slot's log from the brokers. `kafka`: a connection to the cluster (`ClusterConnection`)."""

    def __init__(self, kafka: Any, *, topic: str, slot: int, clock: Clock, settings: SlotSettings) -> None:
        self.kafka = kafka
        self.clock = clock
        self.settings = settings
        self.topic = topic
        self.slot = slot
        self.where = f"{topic}-{slot}"

    async def read(self, position: int) -> SlotRecords:
        """Read the slot's log from `position` on. Raises: OffsetOutOfRange, StorageDamaged, StorageError."""
        part = FetchPartition(self.topic, self.slot, position, self.settings.fetch_bytes)

        async def once() -> SlotRecords:
            answer = await self._ask(FetchRequest(partitions=(part,)))
            return found_in(answer.partitions[0], position)

        return await self._tried(once)

    async def log_start(self) -> int:
        """Return the first offset of the log. Raises StorageError."""
        request = ListOffsetsRequest(topic=self.topic, partition=self.slot, timestamp_ms=EARLIEST)
        return max(0, int((await self.tried(request)).offset))

    async def _ask(self, request: Request[Any]) -> Any:
        """Return an answer without error. Raises ServerError, OSError, ClientError."""
        answer = await self.kafka.send(request)
        check(answer.error, answer.message, f"{type(request).__name__} for {self.where}")
        return answer

    async def tried(self, request: Request[Any]) -> Any:
        """Return an answer without error, asked for again while that may help. Raises StorageError."""
        return await self._tried(lambda: self._ask(request))

    async def _tried(self, once: Callable[[], Awaitable[R]]) -> R:
        clock, settings = self.clock, self.settings
        deadline_s = clock.monotonic() + settings.deadline_s
        tries = 0
        while True:
            try:
                return await clock.wait_for(once(), max(0.0, deadline_s - clock.monotonic()))
            except ServerError as error:
                problem: Exception = error
                if not passes(error):
                    raise StorageError(str(error)) from error
            except OSError as error:  # a TimeoutError too
                problem = error
            except ClientError as error:
                raise StorageError(str(error)) from error
            tries += 1
            pause_s = settings.backoff.after(tries)
            if clock.monotonic() + pause_s >= deadline_s:
                raise StorageError(f"{self.where}: no luck for {settings.deadline_s:g} s: {problem}") from problem
            await clock.sleep(pause_s)


LOADS_MAX: Final = 5
SLICE: Final = 500
"""Records that are fed before others run."""


class SlotReplay:
    """Brings a slot's reader to the end of its log. `reader`: the slot's reader, which `load` makes anew."""

    def __init__(self, reading: SlotReading, *, cache: SlotCache | None) -> None:
        self._reading = reading
        self._cache = cache
        self.reader = SlotReader()

    async def load(self) -> None:
        """Go on from the cache, if the log still holds the last record of it; else read everything.

        Raises: StorageError, StorageDamaged, OffsetOutOfRange (the log is cut faster than it is read).
        """
        for _ in range(LOADS_MAX - 1):
            try:
                await self._load()
            except OffsetOutOfRange as error:
                logger.info("slot %d was cut while it was read, which begins again: %s", self._reading.slot, error)
            else:
                return
        await self._load()

    async def _load(self) -> None:
        cache = self._cache
        reader = None if cache is None else await self._resumed(cache)
        if reader is None:
            if cache is not None:
                await cache.drop(self._reading.slot)
            reader = SlotReader(start=await self._reading.log_start())
        self.reader = reader
        if cache is not None:
            cache.attach(self._reading.slot, reader)
        await self._read_on()

    async def _resumed(self, cache: SlotCache) -> SlotReader | None:
        kept = await cache.load(self._reading.slot)
        if kept is None or kept.summary.last is None:
            return None
        last = kept.summary.last
        try:
            found = await self._reading.read(last.offset)
        except (OffsetOutOfRange, StorageDamaged):
            found = None
        if found is None or not found.records or (found.records[0].offset, found.records[0].checksum) != last:
            logger.info(
                "what is kept locally of slot %d is not what %s holds: all is read",
                self._reading.slot,
                self._reading.topic,
            )
            return None
        return SlotReader.resume(kept.summary, kept.table)

    async def catch_up(self) -> None:
        """Read to the present end of the log; from its start if it was cut. Raises: as `load`."""
        try:
            await self._read_on()
        except OffsetOutOfRange as error:
            logger.warning("slot %d is read from its start again: %s", self._reading.slot, error)
            await self.load()

    async def _read_on(self) -> None:
        end = None
        while end is None or self.reader.position < end:
            found = await self._reading.read(self.reader.position)
            end = found.end if end is None else end
            for at in range(SLICE, len(found.records), SLICE):
                some = found.records[at - SLICE : at]
                self.feed(found._replace(records=some, position=some[-1].offset + 1))
                await self._reading.clock.sleep(0)
            self.feed(found)

    def feed(self, found: SlotRecords) -> None:
        """Feed the reader; records that are known already, or leave a gap, change nothing.

        Raises: StorageDamaged.
        """
        reader = self.reader
        if found.start > reader.position:
            return
        try:
            for offset, record, checksum in found.records:
                if offset >= reader.position:
                    reader.feed(offset, record, checksum)
        except SlotError as error:
            raise StorageDamaged(f"slot {self._reading.slot} of {self._reading.topic}: {error}") from error
        reader.skip(found.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSettings:
    """Settings for writing and reading a slot's log.

    deadline_s: how long a record is sent again, and a broker asked again, before the slot is given up.
    backoff: pauses before a new try.
    flying_max: batches without an answer; a broker recognises that many when they come twice.
    eager_max, eager_bytes: with `eager_max` batches under way a new one waits for `eager_bytes`, so that small writes
        gather.
    queue_bytes: most bytes of writes that wait for their confirmation; further writes are refused.
    renew_s, idle_s: age of a claim, and idleness, after which the next write begins with a new claim.
    fetch_bytes: size of one read; it is decoded in one go, while nothing else runs.
    """

    deadline_s: float = 30.0
    backoff: Backoff = QUICK
    flying_max: int = 5
    eager_max: int = 2
    eager_bytes: int = 32 << 10
    queue_bytes: int = 64 << 20
    renew_s: float = 12 * 3600.0
    idle_s: float = 600.0
    fetch_bytes: int = 256 << 10
    prune: PruneLimits = field(default_factory=PruneLimits)


WAIT_MS: Final = 500
PART_BYTES: Final = 256 << 10
FETCH_BYTES: Final = 1 << 20
PAUSE_S: Final = 0.1
"""Pause, in s, while no slot is to be followed."""
APART_S: Final = 0.05
"""Least time, in s, between two fetches at a broker: each goes over its slots, and ends with the first record in
any."""


class Follower(NamedTuple):
    """The callbacks of a slot's follower. position: returns where to read next, None: not now. found: gets the records
    read.

    failed: gets the position from which reading failed, and the error.
    """

    position: Callable[[], int | None]
    found: Callable[[SlotRecords], None]
    failed: Callable[[int, LogError], None]


class SlotTails:
    """Follows the slots of one process, with one fetch at each broker that leads some: a broker that stands still holds
    up no other's slots. `kafka`: a connection to the cluster that no other request waits on."""

    def __init__(self, kafka: Any, *, topic: str, clock: Clock) -> None:
        self._kafka = kafka
        self._topic = topic
        self._clock = clock
        self._followers: dict[int, Follower] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def follow(self, slot: int, follower: Follower) -> None:
        """Follow a slot from now on; one follower per slot."""
        self._followers[slot] = follower
        self._spread()

    def unfollow(self, slot: int) -> None:
        """Follow a slot no more."""
        self._followers.pop(slot, None)

    async def close(self) -> None:
        """Stop."""
        await cancelled(*self._tasks.values())

    def _leader(self, slot: int) -> int:
        return int(self._kafka.cluster.topology.leader(self._topic, slot))

    def _spread(self) -> None:
        """Begin to follow at brokers that have become leaders."""
        for node in {self._leader(slot) for slot in self._followers}:
            if node not in self._tasks or self._tasks[node].done():
                self._tasks[node] = asyncio.create_task(self._run(node), name=f"tails of {self._topic} at {node}")

    async def _run(self, node: int) -> None:
        """Follow the slots that a broker leads (NOBODY: those whose leader is not known) while there are any."""
        failures = 0
        while True:
            self._spread()  # leaders may have moved during any wait; without it nobody would follow their slots
            asked = {slot: one for slot, one in self._followers.items() if self._leader(slot) == node}
            if not asked:
                return
            positions = {slot: one.position() for slot, one in asked.items()}
            parts = tuple(
                FetchPartition(self._topic, slot, position, PART_BYTES)
                for slot, position in positions.items()
                if position is not None
            )
            if not parts:
                await self._clock.sleep(PAUSE_S)
                continue
            asked_s = self._clock.monotonic()
            try:
                passed = await self._follow(asked, parts)
            except (OSError, ClientError) as error:
                logger.warning("the slots of %s cannot be followed now: %s", self._topic, error)
                passed = False
            except Exception:
                logger.exception("following the slots of %s failed unexpectedly", self._topic)
                passed = False
            failures = 0 if passed else failures + 1
            pause_s = USUAL.after(failures)
            await self._clock.sleep(max(pause_s, asked_s + APART_S - self._clock.monotonic()))

    async def _follow(self, asked: Mapping[int, Follower], parts: tuple[FetchPartition, ...]) -> bool:
        """Send one fetch for these slots; return True if it succeeded. Raises OSError, ClientError."""
        answer = await self._kafka.send(FetchRequest(partitions=parts, max_wait_ms=WAIT_MS, max_bytes=FETCH_BYTES))
        check(answer.error, answer.message, f"following {self._topic}")
        passed = True
        for part, log in zip(parts, answer.partitions, strict=True):
            passed &= self._deliver(asked[part.partition], part, log)
        return passed

    def _deliver(self, follower: Follower, part: FetchPartition, log: FetchedLog) -> bool:
        """Give a follower its part of an answer; False if that part is an error or cannot be used."""
        if self._followers.get(part.partition) is not follower:
            return True
        try:
            found = found_in(log, part.offset)
        except ClientError as error:
            logger.warning("slot %d of %s cannot be followed now: %s", part.partition, self._topic, error)
            return False
        except LogError as error:
            follower.failed(part.offset, error)
            return False
        follower.found(found)
        return True
