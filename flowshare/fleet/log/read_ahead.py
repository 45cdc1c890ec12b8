"""A lane: what of one partition is in memory for one isolation level, and how it is to go on.

One run, the *tail*, is what the parked fetch of the partition's leader fills: its end is the lane's read position.

    OFF       no tail: nobody reads this isolation level at the log's end
    WATCHED   the tail's end is asked about all the time
    PAUSED    the tail is full of what nobody has read yet; it goes on when a quarter of its share is left unread

OFF → WATCHED when a read comes to the log's end; back when nobody has read for a while. WATCHED → PAUSED only when more
than half of the share is unread, so all readers are behind the tail's end and nobody waits there for what is next.
PAUSED → WATCHED also when somebody comes to the tail's end by another way, because memory for all ran short and the
tail was emptied.
The other runs are *cold*: older places where some group reads, filled one stretch ahead of it. When a cold run comes to
the log's end it becomes the tail, unless a tail is there that goes on from where the run ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.fleet.log.run import Run

if TYPE_CHECKING:
    from flowshare.fleet.log.chunk import Chunk, Piece
    from flowshare.fleet.log.memory import Memory

COLD_MAX: Final = 4
"""Older places of one partition at which groups read."""
COLD_STRETCHES: Final = 3
"""Stretches that a cold run holds: one that is read, one ahead, and what others may still want."""


class Lane:
    """Runs of one partition and isolation level.

    used_s: when it was read last. rests_until_s: it is not asked about before. failures: in a row. damaged_at: where
    damaged records were met, −1: nowhere. starved: the last answer had no room for the batch that comes next.
    """

    def __init__(
        self, topic: str, partition: int, *, committed: bool, memory: Memory, stretch_bytes: int, now_s: float
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.committed = committed
        self.tail: Run | None = None
        self.cold: list[Run] = []
        self.paused = False
        self.used_s = now_s
        self.rests_until_s = 0.0
        self.failures = 0
        self.damaged_at = -1
        self.starved = False
        self._memory = memory
        self._cold_bytes = COLD_STRETCHES * stretch_bytes
        self._stretch_bytes = stretch_bytes

    def read(self, offset: int, max_bytes: int) -> Piece | None:
        """Batches from the one that holds `offset`, or the next one, on; None when they are not here."""
        run = self._covering(offset)
        if run is None:
            return None
        self._memory.used(run)
        piece = run.read(offset, max_bytes)
        self.given(piece)
        return piece

    def given(self, piece: Piece) -> None:
        """Somebody has this, from wherever: a paused tail goes on when its readers come near its end."""
        tail = self.tail
        if not self.paused or tail is None or not piece.batches:
            return
        end = piece.batches[-1].last + 1
        if end >= tail.end or (end > tail.start and tail.ahead < self._memory.allowance // 4):
            self.paused = False

    def wants_more(self, end: int) -> Run | None:
        """The cold run that was read last, if it should be filled further; `end`: where the log ends."""
        if not self.cold:
            return None
        run = self.cold[0]
        known = run.end >= end or (self.tail is not None and self.tail.covers(run.end))
        if known or run.filling is not None or run.ahead >= 2 * self._stretch_bytes:
            return None
        return run

    def run_for(self, offset: int) -> Run:
        """The run that is to be filled so that `offset` can be read: one that ends there, else a new one."""
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
        run = Run(offset)
        self.cold.insert(0, run)
        return run

    def add(self, run: Run, chunk: Chunk) -> None:
        """The run goes on. More of the tail than its share is not asked for until it is read."""
        allowance = self._memory.allowance
        tail = run is self.tail
        self._memory.add(run, chunk, kept=allowance if tail else self._cold_bytes)
        if tail and run.ahead >= allowance // 2:
            self.paused = True

    def reached_end(self, run: Run) -> bool:
        """A run has come to the log's end; whether it has become the tail by that."""
        tail = self.tail
        if run is tail or run not in self.cold:
            return False
        if tail is not None and tail.start <= run.end <= tail.end:
            if tail.end == run.end and tail.epoch < 0:
                tail.epoch = run.epoch  # so that the brokers can tell when what lies before the tail was lost
            return False
        self.cold.remove(run)
        self.watch_from(run)
        return True

    def watch_from(self, run: Run) -> None:
        """Make this run the tail; what was the tail goes on as a place where somebody may read."""
        if self.tail is not None:
            self.cold.insert(0, self.tail)
            for surplus in self.cold[COLD_MAX:]:
                self._forget(surplus)
        self.tail = run
        self.paused = False

    def holds(self, run: Run) -> bool:
        """Whether the run is still one of these."""
        return run is self.tail or run in self.cold

    def unwatch(self) -> None:
        """Nobody reads here; forget everything."""
        self.clear()
        self.tail = None

    def cut(self, log_start: int, end: int) -> None:
        """Nothing is there at `end` and behind, nor before the log start: go on from within."""
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
            self.tail = Run(end)
        self.paused = False

    def clear(self) -> None:
        """Forget what is in memory."""
        for run in tuple(self.cold):
            self._forget(run)
        if self.tail is not None:
            self._memory.forget(self.tail)
            self.tail = Run(self.tail.end)
        self.paused = False

    def _covering(self, offset: int) -> Run | None:
        tail = self.tail
        if tail is not None and tail.covers(offset):
            return tail
        for index, run in enumerate(self.cold):
            if run.covers(offset):
                if index:
                    self.cold.insert(0, self.cold.pop(index))
                return run
        return None

    def _forget(self, run: Run) -> None:
        self.cold.remove(run)
        self._memory.forget(run)
