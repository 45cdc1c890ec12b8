"""Inspection of produced batches: the records must agree with the batch's header.

A header is a claim of the producer. It decides how far a window grows, how much readers reserve and when retention
ends, so nothing of it is believed before the records were read:

| claim | must hold, else | Kafka's error |
|---|---|---|
| count, last offset | so many records with the offsets 0, 1, 2, …; at most `RECORDS_MAX` | INVALID_RECORD |
| lengths | each record ends where it says, the last one where the batch ends | INVALID_RECORD |
| codec | the bytes are of it, and become at most `PLAIN_BYTES_MAX` | INVALID_RECORD |
| timestamps | each is within `message.timestamp.before.max.ms` and `.after.max.ms` | INVALID_TIMESTAMP |
| newest timestamp | that of the newest record: set right if it is not, as Kafka does | |
| attributes | no control batch, no append time, no delete horizon: those are the server's to set | INVALID_RECORD |

`examine` inspects one batch in steps; each step takes a few milliseconds. `Inspector` does the steps of all batches in
one thread beside the loop. The source that has had the least of the thread is next, so a batch of a few records does
not wait for another source's hundred megabytes. Decompressed bytes lie in memory while they are read. So of the batches
that may become large only one is open at a time, and only one of those that stay small:

    WAITING ──its turn──→ OPEN ──step──→ OPEN … ──last step──→ the header, or the reason of its refusal
                           └── a small one that became large ──→ WAITING, as a large one

Invariant: batches of one source for one partition leave in the order in which they came.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from flowshare.log.base import CorruptBatches, InvalidRecord, InvalidTimestamp, RecordsTooLarge, StorageError
from flowshare.protocol.batches import check
from flowshare.protocol.decoding import PADDING, SIZE_MAX, RawReader, RawRecord, unpacked
from flowshare.protocol.headers import APPEND_TIME_MASK, CODEC_MASK, HORIZON_MASK, BatchHeader, DecodeError, check_crc

if TYPE_CHECKING:
    from flowshare.log.topics import TopicSettings

logger = logging.getLogger(__name__)

RECORDS_MAX: Final = 1 << 20
"""Most records of a batch."""
PLAIN_BYTES_MAX: Final = SIZE_MAX
"""Most bytes of a batch without compression: the most that members read."""
SMALL_BYTES: Final = 1 << 20
GROWTH_USUAL: Final = 8
"""Growth of a small batch: a compressed batch is small up to `SMALL_BYTES`, or this many times its size, opened."""
STEP_RECORDS: Final = 16_384
"""Records read in one step: two milliseconds, for which the loop may have to wait for the interpreter."""
FEW_RECORDS: Final = 256
"""Records in memory at a time: so few that Python's collector is not called, which costs more than the reading."""
ON_LOOP_BYTES: Final = 16 << 10
"""Bytes of an uncompressed batch that is inspected at once, on the loop: less work than a turn of the thread."""
TURN_BYTES: Final = 64 << 10
"""Most bytes of such batches in one turn of the loop."""
NO_TIMESTAMP: Final = -1
TIMESTAMP_MAX: Final = 2**63 - 1

_offset: Callable[[RawRecord], int] = attrgetter("offset")
_timestamp: Callable[[RawRecord], int] = attrgetter("timestamp")


class Rules(NamedTuple):
    """The rules for records in a topic. keyed: each record has a key. earliest_ms, latest_ms: bounds of timestamps."""

    keyed: bool
    earliest_ms: int
    latest_ms: int

    @classmethod
    def of(cls, settings: TopicSettings, now_ms: int) -> Rules:
        """Return a topic's rules at this time."""
        keyed = settings.compaction is not None
        if settings.append_time:
            return cls(keyed, -TIMESTAMP_MAX, TIMESTAMP_MAX)
        return cls(keyed, now_ms - settings.timestamp_before_max_ms, now_ms + settings.timestamp_after_max_ms)


class _Grown(Exception):
    """A compressed batch taken for a small one is large, or damaged: opening it as a large one decides."""


class _Kind(enum.IntEnum):
    """The kinds of open batches, by their cost in memory."""

    PLAIN = 0
    SMALL = 1
    LARGE = 2


OPEN_MAX: Final = {_Kind.PLAIN: 8, _Kind.SMALL: 1, _Kind.LARGE: 1}
"""Most open batches of each kind."""


def check_produced(records: bytes, settings: TopicSettings, *, checksums: bool) -> tuple[BatchHeader, ...]:
    """Return the headers of a producer's batches; `checksums`: check those, too.

    Raises: CorruptBatches, RecordsTooLarge.
    """
    try:
        headers = check(records, checksums=checksums)
    except DecodeError as error:
        raise CorruptBatches(str(error)) from error
    size = max(header.size for header in headers)
    if size > settings.max_message_bytes:
        raise RecordsTooLarge(f"a batch of {size} bytes; the topic takes {settings.max_message_bytes}")
    return headers


def check_claims(header: BatchHeader, rules: Rules) -> None:
    """Check the claims that the header alone can disprove. Raises: InvalidRecord, InvalidTimestamp."""
    if header.attributes & HORIZON_MASK:
        raise InvalidRecord("a produced batch says when its tombstones may go: that is for compaction to set")
    if header.attributes & APPEND_TIME_MASK:
        raise InvalidTimestamp("a produced batch says that the log stamped it: producers send CreateTime")
    if header.record_count > RECORDS_MAX:
        raise InvalidRecord(f"a batch of {header.record_count} records; {RECORDS_MAX} are taken: send smaller ones")


def examine(
    records: bytes, header: BatchHeader, rules: Rules, kind: _Kind = _Kind.LARGE
) -> Generator[None, None, BatchHeader]:
    """Read a batch, a step for each `next`; return its header, set right. No records are kept.

    Raises: CorruptBatches (its checksum), InvalidRecord, InvalidTimestamp, MemoryError, _Grown (`kind` SMALL).
    """
    check_claims(header, rules)
    reader = RawReader(_opened(records, header, kind), header)
    if kind is not _Kind.PLAIN:
        yield
    count, newest, full = 0, NO_TIMESTAMP, True
    while full and (few := _read(reader)):
        full = len(few) == FEW_RECORDS
        base = header.base_offset + count
        count += len(few)
        if not all(map(eq, map(_offset, few), range(base, base + len(few)))):
            raise InvalidRecord(f"the offsets of a batch's records are not 0 to {header.record_count - 1}")
        if rules.keyed and any(record.key is None for record in few):
            raise InvalidRecord("a compacted topic takes no record without a key")
        newest = max(newest, _newest(list(map(_timestamp, few)), rules))
        if full and not count % STEP_RECORDS:
            yield
    if count != header.record_count:
        raise InvalidRecord(f"a batch says {header.record_count} records and holds {count}")
    return header if header.max_timestamp == newest else header._replace(max_timestamp=newest)


def _opened(records: bytes, header: BatchHeader, kind: _Kind) -> memoryview:
    try:
        check_crc(records, header)
    except DecodeError as error:
        raise CorruptBatches(str(error)) from error
    one = records[header.position : header.position + header.size] + PADDING
    small_max = max(SMALL_BYTES, GROWTH_USUAL * header.size)
    try:
        return unpacked(memoryview(one)[: header.size], header, small_max if kind is _Kind.SMALL else PLAIN_BYTES_MAX)
    except DecodeError as error:
        if kind is _Kind.SMALL:
            raise _Grown from error
        raise InvalidRecord(str(error)) from error


def _read(reader: RawReader) -> list[RawRecord]:
    try:
        return reader.take(FEW_RECORDS)
    except DecodeError as error:
        raise InvalidRecord(f"a batch does not hold what its header says: {error}") from error


def _newest(times: list[int], rules: Rules) -> int:
    """Return the newest of the timestamps, in ms. Raises: InvalidTimestamp."""
    oldest, newest = min(times), max(times)
    if oldest == NO_TIMESTAMP:
        oldest = min((ms for ms in times if ms != NO_TIMESTAMP), default=newest)
    for timestamp_ms in (oldest, newest):
        if timestamp_ms != NO_TIMESTAMP and not rules.earliest_ms <= timestamp_ms <= rules.latest_ms:
            raise InvalidTimestamp(
                f"a record's timestamp {timestamp_ms} is not from {rules.earliest_ms} to {rules.latest_ms}: the "
                "topic's message.timestamp.before.max.ms and message.timestamp.after.max.ms, counted from now"
            )
    return newest


@dataclass(slots=True, eq=False)
class _Work:
    """One batch to be inspected. steps: set while it is open."""

    source: Hashable
    records: bytes
    header: BatchHeader
    rules: Rules
    kind: _Kind
    done: asyncio.Future[BatchHeader]
    steps: Generator[None, None, BatchHeader] | None = None


class Inspector:
    """Inspects the produced batches of one storage; on its loop."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[_Work]] = {}
        self._had: dict[Hashable, int] = {}
        """Steps that a source with work has had; a new source begins at the count of the source served last."""
        self._floor = 0
        self._open = dict.fromkeys(_Kind, 0)
        self._last: dict[Hashable, asyncio.Future[None]] = {}
        self._on_loop = TURN_BYTES
        self._pool: ThreadPoolExecutor | None = None
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def checked(
        self,
        place: Hashable,
        records: bytes,
        settings: TopicSettings,
        *,
        source: Hashable | None,
        now_ms: int,
    ) -> tuple[BatchHeader, ...]:
        """Return headers of an append's batches, once they may be believed; see `Log.append`.

        Batches made in this process are right, but its application may have chosen the times, and the keys.

        Raises: CorruptBatches, RecordsTooLarge, InvalidRecord, InvalidTimestamp, StorageError.
        """
        own = source is None and settings.compaction is None
        headers = check_produced(records, settings, checksums=own)
        rules = Rules.of(settings, now_ms)
        if not own:
            return await self.inspect(source, place, records, headers, rules)
        for header in headers:
            _newest([header.max_timestamp], rules)
        return headers

    async def inspect(
        self, source: Hashable, place: Hashable, records: bytes, headers: Sequence[BatchHeader], rules: Rules
    ) -> tuple[BatchHeader, ...]:
        """Return the headers of the batches in `records`, set right, one batch after the other.

        source: the sender; the thread's work is divided among senders. Batches of one source for one place come back in
        the order in which they came.

        Raises: CorruptBatches, InvalidRecord, InvalidTimestamp, StorageError.
        """
        before, left = self._last.get((source, place)), asyncio.get_running_loop().create_future()
        self._last[source, place] = left
        try:
            if before is not None:
                await asyncio.wait((before,))
            return tuple(
                [
                    self._at_once(records, header, rules) or await self._beside(source, records, header, rules)
                    for header in headers
                ]
            )
        finally:
            if before is not None and not before.done():  # the caller gave up waiting; the next one waits on
                before.add_done_callback(lambda _: left.set_result(None))
            else:
                left.set_result(None)
            if self._last[source, place] is left:
                del self._last[source, place]

    async def close(self) -> None:
        """Stop the inspector and refuse all batches that are not examined yet."""
        self._closed = True
        if self._running is not None:
            await asyncio.wait((self._running,))
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _at_once(self, records: bytes, header: BatchHeader, rules: Rules) -> BatchHeader | None:
        """Inspect a little batch on the loop, in one step; None: the batch is not little, or this turn has had enough
        of them."""
        if header.attributes & CODEC_MASK or header.size > min(ON_LOOP_BYTES, self._on_loop):
            return None
        if self._on_loop == TURN_BYTES:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._on_loop -= header.size
        return _step(examine(records, header, rules, _Kind.PLAIN))

    def _next_turn(self) -> None:
        self._on_loop = TURN_BYTES

    async def _beside(self, source: Hashable, records: bytes, header: BatchHeader, rules: Rules) -> BatchHeader:
        if self._closed:
            raise StorageError("the storage is closed")
        kind = _Kind.SMALL if header.attributes & CODEC_MASK else _Kind.PLAIN
        work = _Work(source, records, header, rules, kind, asyncio.get_running_loop().create_future())
        if source not in self._queues:
            self._queues[source], self._had[source] = deque(), self._floor
        self._queues[source].append(work)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run(), name="flowshare-inspector")
        return await work.done

    async def _run(self) -> None:
        """Do the steps of all waiting batches, until none waits."""
        try:
            await self._work()
        except Exception:
            logger.exception("the look into produced batches failed")
        finally:
            self._running = None
            for queue in tuple(self._queues.values()):  # none, unless it failed or was cancelled
                for work in tuple(queue):
                    self._end(work, None, StorageError("a produced batch could not be looked into: send it again"))

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="flowshare-inspector")
        while self._queues:
            work = self._next()
            if work.steps is None:
                work.steps = examine(work.records, work.header, work.rules, work.kind)
                self._open[work.kind] += 1
            self._floor = self._had[work.source]
            self._had[work.source] += 1
            try:
                header = await loop.run_in_executor(self._pool, _step, work.steps)
                error: Exception | None = StorageError("the storage is closed") if self._closed else None
            except _Grown:
                self._close(work)
                work.kind = _Kind.LARGE
                continue
            except MemoryError:
                header, error = None, StorageError("there is no memory to read a produced batch in: send it again")
            except Exception as problem:  # noqa: BLE001 - it is the sender's
                header, error = None, problem
            if header is not None or error is not None or work.done.done():
                self._end(work, header, error)

    def _next(self) -> _Work:
        """Return the open, or openable, batch of the source with the fewest steps."""
        heads = (queue[0] for queue in self._queues.values())
        ready = (work for work in heads if work.steps is not None or self._open[work.kind] < OPEN_MAX[work.kind])
        return min(ready, key=lambda work: self._had[work.source])

    def _close(self, work: _Work) -> None:
        if work.steps is not None:
            self._open[work.kind] -= 1
            work.steps = None

    def _end(self, work: _Work, header: BatchHeader | None, error: Exception | None) -> None:
        self._close(work)
        queue = self._queues[work.source]
        queue.popleft()
        if not queue:
            del self._queues[work.source], self._had[work.source]
        if work.done.done():
            return  # the caller gave up
        if error is not None:
            work.done.set_exception(error)
        else:
            assert header is not None
            work.done.set_result(header)


def _step(steps: Generator[None, None, BatchHeader]) -> BatchHeader | None:
    """Do a batch's next step; None: there is more to do. Any thread."""
    try:
        next(steps)
    except StopIteration as end:
        return cast("BatchHeader", end.value)
    return None
