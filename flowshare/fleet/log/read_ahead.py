"""`ReadBuffer`: the records of one partition in memory for one isolation level, and the plan for reading on.

One run, the *tail*, is filled by the parked fetch of the partition's leader: its end is the buffer's read position.

    OFF       no tail: this isolation level has no reader at the log's end
    WATCHED   the tail's end is asked about all the time
    PAUSED    the tail is full of unread records; it goes on when a quarter of its share is left unread

OFF → WATCHED when a read comes to the log's end; back when there was no read for a while. WATCHED → PAUSED only when
more than half of the share is unread, so all readers are behind the tail's end and none waits there for the next
record. PAUSED → WATCHED also when a reader comes to the tail's end by another way, because memory for all ran short and
the tail was emptied.
The other runs are *cold*: older places where some group reads, filled one stretch ahead of it. When a cold run comes to
the log's end it becomes the tail, unless a tail goes on from the run's end.

A `BufferedRun` is a stretch of one partition's log in memory, read at its front and filled at its end. Chunks go at the
front only, so that a run never has a hole of its own:

    start ≤ given ≤ end        offsets; [start, end) is here but for offsets missing in the log itself
    ahead                      bytes behind `given`, the furthest that any reader has read

All partitions together keep no more than a bound in memory (`Memory`): the runs that were read longest ago go first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from flowshare.fleet.log.chunk import ChunkSlice

if TYPE_CHECKING:
    import asyncio

    from flowshare.fleet.log.chunk import LogChunk
    from flowshare.fleet.log.settings import LogSettings

COLD_MAX: Final = 4
"""The most older places of one partition at which groups read."""
COLD_STRETCHES: Final = 3
"""Stretches that a cold run holds: one that is read, one ahead, and one for other readers."""


class ReadBuffer:
    """Runs of one partition and isolation level.

    used_s: time of the last read. rests_until_s: time before which no broker is asked about it. failures: in a row.
    damaged_at: the offset of damaged records, −1: none. starved: the last answer had no room for the next batch.
    """

    def __init__(
        self, topic: str, partition: int, *, committed: bool, memory: Memory, stretch_bytes: int, now_s: float
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.committed = committed
        self.tail: BufferedRun | None = None
        self.cold: list[BufferedRun] = []
        self.paused = False
        self.used_s = now_s
        self.rests_until_s = 0.0
        self.failures = 0
        self.damaged_at = -1
        self.starved = False
        self._memory = memory
        self._cold_bytes = COLD_STRETCHES * stretch_bytes
        self._stretch_bytes = stretch_bytes

    def read(self, offset: int, max_bytes: int) -> ChunkSlice | None:
        """Return batches from the one that holds `offset`, or the next one, on; None when they are not in memory."""
        run = self._covering(offset)
        if run is None:
            return None
        self._memory.used(run)
        piece = run.read(offset, max_bytes)
        self.given(piece)
        return piece

    def given(self, piece: ChunkSlice) -> None:
        """Note that a reader has this piece, from memory or not: a paused tail goes on when its readers come near its
        end."""
        tail = self.tail
        if not self.paused or tail is None or not piece.batches:
            return
        end = piece.batches[-1].last + 1
        if end >= tail.end or (end > tail.start and tail.ahead < self._memory.allowance // 4):
            self.paused = False

    def wants_more(self, end: int) -> BufferedRun | None:
        """Return the cold run that was read last, if it should be filled further; `end`: the log's end."""
        if not self.cold:
            return None
        run = self.cold[0]
        known = run.end >= end or (self.tail is not None and self.tail.covers(run.end))
        if known or run.filling is not None or run.ahead >= 2 * self._stretch_bytes:
            return None
        return run

    def run_for(self, offset: int) -> BufferedRun:
        """Return the run to fill so that `offset` can be read: one that ends there, else a new one."""
        if self.tail is not None and self.tail.end == offset:
            return self.tail
        for run in self.cold:
            if run.end == offset:
                return run
        for run in self.cold:
            if run.start == run.end and run.filling is None:
                self._forget(run)
                break
        if len(self.cold) >= COLD_MAX:
            self._forget(self.cold[-1])
        run = BufferedRun(offset)
        self.cold.insert(0, run)
        return run

    def add(self, run: BufferedRun, chunk: LogChunk) -> None:
        """Add a chunk to the run. A tail beyond its share pauses until it is read."""
        allowance = self._memory.allowance
        tail = run is self.tail
        self._memory.add(run, chunk, kept=allowance if tail else self._cold_bytes)
        if tail and run.ahead >= allowance // 2:
            self.paused = True

    def reached_end(self, run: BufferedRun) -> bool:
        """Handle a run that came to the log's end; True if it became the tail."""
        tail = self.tail
        if run is tail or run not in self.cold:
            return False
        if tail is not None and tail.start <= run.end <= tail.end:
            if tail.end == run.end and tail.epoch < 0:
                tail.epoch = run.epoch  # so that the brokers can tell when records before the tail were lost
            return False
        self.cold.remove(run)
        self.watch_from(run)
        return True

    def watch_from(self, run: BufferedRun) -> None:
        """Make this run the tail; the former tail goes on as a cold run."""
        if self.tail is not None:
            self.cold.insert(0, self.tail)
            for surplus in self.cold[COLD_MAX:]:
                self._forget(surplus)
        self.tail = run
        self.paused = False

    def holds(self, run: BufferedRun) -> bool:
        """True if the buffer still has this run."""
        return run is self.tail or run in self.cold

    def unwatch(self) -> None:
        """Forget everything, because there are no readers."""
        self.clear()
        self.tail = None

    def cut(self, log_start: int, end: int) -> None:
        """Forget the records from `end` on and before the log start; go on from within."""
        for run in tuple(self.cold):
            self._memory.cut(run, end)
            if run.end <= log_start or run.start == run.end:
                self._forget(run)
        tail = self.tail
        if tail is None:
            return
        self._memory.cut(tail, end)
        if not log_start <= tail.end:
            self._memory.forget(tail)
            self.tail = BufferedRun(end)
        self.paused = False

    def clear(self) -> None:
        """Forget all records in memory."""
        for run in tuple(self.cold):
            self._forget(run)
        if self.tail is not None:
            self._memory.forget(self.tail)
            self.tail = BufferedRun(self.tail.end)
        self.paused = False

    def _covering(self, offset: int) -> BufferedRun | None:
        tail = self.tail
        if tail is not None and tail.covers(offset):
            return tail
        for index, run in enumerate(self.cold):
            if run.covers(offset):
                if index:
                    self.cold.insert(0, self.cold.pop(index))
                return run
        return None

    def _forget(self, run: BufferedRun) -> None:
        self.cold.remove(run)
        self._memory.forget(run)


class Memory:
    """The memory bound of all buffers. size: bytes of all runs, at most `ahead_bytes` after each call. buffers: their
    number."""

    def __init__(self, settings: LogSettings) -> None:
        self._settings = settings
        self._by_use: OrderedDict[BufferedRun, None] = OrderedDict()
        self.size = 0
        self.buffers = 0

    @property
    def allowance(self) -> int:
        """Bytes that one buffer's run at the log's end may hold."""
        settings = self._settings
        share = settings.ahead_bytes // max(1, self.buffers)
        return max(settings.ahead_least_bytes, min(share, settings.ahead_partition_bytes))

    def used(self, run: BufferedRun) -> None:
        """Note that a run is being read."""
        self._by_use[run] = None
        self._by_use.move_to_end(run)

    def add(self, run: BufferedRun, chunk: LogChunk, *, kept: int) -> None:
        """Add a chunk to the run; read chunks go as long as it is larger than `kept`."""
        run.add(chunk)
        self.size += chunk.size
        if run not in self._by_use:
            self.used(run)
        while run.size > kept and (size := run.drop(given_only=True)):
            self.size -= size
        while self.size > self._settings.ahead_bytes and self._by_use:
            oldest = next(iter(self._by_use))
            size = oldest.drop(given_only=False)
            self.size -= size
            if not size:
                del self._by_use[oldest]

    def cut(self, run: BufferedRun, end: int) -> None:
        """Forget the run's records from `end` on."""
        self.size -= run.cut(end)

    def forget(self, run: BufferedRun) -> None:
        """Forget a run that is not needed any more."""
        while size := run.drop(given_only=False):
            self.size -= size
        self._by_use.pop(run, None)


class BufferedRun:
    """Consecutive chunks.

    epoch: leader epoch of the batch before `end`, −1: not known. filling: the task that reads the next chunk, if any.
    """

    __slots__ = ("_chunks", "_ends", "_past", "_through", "ahead", "end", "epoch", "filling", "given", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = self.given = start
        self.size = self.ahead = 0
        self.epoch = -1
        self.filling: asyncio.Task[LogChunk | None] | None = None
        self._chunks: list[LogChunk] = []
        self._ends: list[int] = []
        self._through: list[int] = []
        """Bytes ever added, up to and including each chunk."""
        self._past = 0

    def covers(self, offset: int) -> bool:
        """True if the run holds the batches from `offset` on."""
        return self.start <= offset < self.end

    def read(self, offset: int, max_bytes: int) -> ChunkSlice:
        """Return batches from the one that holds `offset`, or the next one, on: at least one; `offset` must be
        covered."""
        index = bisect_right(self._ends, offset)
        piece = self._chunks[index].read(offset, max_bytes)
        end = piece.batches[-1].last + 1
        left = max_bytes - len(piece.records)
        if end == self._ends[index]:
            index += 1
            if left > 0 and index < len(self._chunks):
                piece, index = self._longer(piece, index, left)
                end = piece.batches[-1].last + 1
        if end > self.given:
            self.given = end
            self.ahead = self._past - (self._through[index - 1] if index else self._past - self.size)
        return piece

    def _longer(self, piece: ChunkSlice, index: int, left: int) -> tuple[ChunkSlice, int]:
        """Return the piece extended by fitting batches of the chunks from `index` on, and the index behind the last
        used-up chunk."""
        pieces = [piece]
        while index < len(self._chunks) and left > 0:
            chunk = self._chunks[index]
            more = chunk.read(chunk.batches[0].first, left)
            if len(more.records) > left:
                break
            pieces.append(more)
            left -= len(more.records)
            if more.batches[-1].last + 1 < chunk.end:
                break
            index += 1
        whole = ChunkSlice(
            b"".join([one.records for one in pieces]),
            tuple([batch for one in pieces for batch in one.batches]),
            tuple([batch for one in pieces for batch in one.aborted]),
            pieces[-1].epoch,
        )
        return whole, index

    def add(self, chunk: LogChunk) -> None:
        """Add a chunk at the end."""
        self._chunks.append(chunk)
        self._ends.append(chunk.end)
        self._past += chunk.size
        self._through.append(self._past)
        self.size += chunk.size
        self.ahead += chunk.size
        self.end = chunk.end
        self.epoch = chunk.epoch

    def drop(self, *, given_only: bool) -> int:
        """Forget the first chunk (`given_only`: only if all of it was read); return its bytes, else 0."""
        if not self._chunks or (given_only and self._ends[0] > self.given):
            return 0
        chunk = self._chunks.pop(0)
        self.start = self._ends.pop(0)
        del self._through[0]
        self.size -= chunk.size
        if self.given < self.start:
            self.given = self.start
        self.ahead = min(self.ahead, self.size)
        return chunk.size

    def cut(self, end: int) -> int:
        """Forget the records from `end` on; return the number of bytes."""
        before = self.size
        while self._chunks and self._chunks[-1].end > end:
            # The part of the chunk that stays is read again on need.
            chunk = self._chunks.pop()
            self._ends.pop()
            self._through.pop()
            self._past -= chunk.size
            self.size -= chunk.size
        self.ahead = min(self.ahead, self.size)
        if self.end > end:
            self.end = self._ends[-1] if self._ends else min(self.start, end)
            self.epoch = self._chunks[-1].epoch if self._chunks else -1
        self.start = min(self.start, self.end)
        self.given = min(self.given, self.end)
        return before - self.size
