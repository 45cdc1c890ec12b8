"""`SlotLog`: an owner's writes, gathered into records of its slot's log (group commit).

All waiting writes go out in one record, which counts as a whole or not at all; the next record is sent while the last
one is under way, but only when it is worth it (`eager_bytes`), so that many small writes cost few requests. An answer
is given when the record is confirmed (`SlotSender`) and the owner holds its lease; without the lease answers wait, but
for those of the hand-over: a slot that is given away is fenced by its log, and the lease may never come back.

`exclusive` serves steps that need a quiet log (a new claim, the hand-over, writing cold keys again): no other write is
under way inside, and new writes wait. After a loss every waiting write fails with `NotLed`.

`SlotMaintenance` is an owner's work for its slot's log beside writing: new claims in time, and pruning. A claim and its
producer epoch are renewed when they are old (`renew_s`) and before the first write after a long idleness (`idle_s`):
brokers forget idle producers and transactional ids. The log is pruned step by step (`slots.pruning`); writes wait for
each step, and run between two of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from flowshare.client.errors import ServerError
from flowshare.fleet.state.reading import passes
from flowshare.fleet.state.sender import SlotBatch, SlotSender, Written
from flowshare.log.base import LogError, NotLed, StorageError
from flowshare.protocol.messages import DeleteRecordsRequest
from flowshare.slots.pruning import ClaimAgain, Delete, WriteAgain, due, next_step
from flowshare.slots.records import (
    CHUNK_BYTES,
    WRITE_BYTES_MAX,
    Claim,
    Entry,
    HandOver,
    Record,
    Tick,
    encode_entries,
)
from flowshare.slots.records import parts as parts_of
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.fleet.state.reading import SlotReading, SlotRecords
    from flowshare.slots.confirm import Confirming

LEASE_POLL_S: Final = 0.05
"""Time, in s, between two looks at answers that wait for the lease."""


class _Write(NamedTuple):
    body: bytes
    written: Written


class SlotLog:
    """One ownership of one slot, from before the claim to the loss; each ownership has a new one. On one event loop."""

    def __init__(
        self,
        reading: SlotReading,
        confirming: Confirming,
        *,
        lease: Callable[[], bool],
        on_lost: Callable[[str], None],
    ) -> None:
        """lease: True if answers may be given now. on_lost: called once, with the reason."""
        self._sender = SlotSender(reading, confirming, settled=self._settled, give_up=self.give_up)
        self._where = reading.where
        self._clock = reading.clock
        self._settings = reading.settings
        self._lease = lease
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Write] = deque()
        self._queued_bytes = 0
        self._waiting_bytes = 0
        self._held: list[Written] = []
        self._last: set[Written] = set()
        """Writes that give the slot away: their answers stay in this process, and wait for no lease."""
        self._kicked = False
        self._exclusive = False
        self._turn = asyncio.Lock()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False
        self._ended = False
        self.confirming = confirming
        self.claimed_s = self.written_s = self._clock.monotonic()
        """The time of the claim's confirmation, and that of the last sent record."""

    @property
    def busy(self) -> bool:
        """True if writes wait to be confirmed, so that the log's news come with them. Writes that wait for the lease go
        nowhere meanwhile: another owner is heard of only by reading."""
        return self._sender.waiting > 0 or (bool(self._queue) and not self._held)

    # --- writing ------------------------------------------------------------------------------------------------

    def write(self, entries: Iterable[Entry]) -> Written:
        """Queue a write; the future ends when it is confirmed, and raises NotLed when it never will be.

        Raises: NotLed, StorageError (too much waits, or the write is too long); nothing was written then.
        """
        if self._closing or self.confirming.lost is not None:
            raise self._not_led()
        body = encode_entries(entries)
        size = len(body)
        if size > WRITE_BYTES_MAX:
            raise StorageError(f"a write of {size} bytes is longer than {WRITE_BYTES_MAX}; write it in pieces")
        if self._waiting_bytes + size > self._settings.queue_bytes:
            raise StorageError(f"{self._where}: {self._waiting_bytes} bytes wait to be written; try again later")
        return self._put(body)

    @asynccontextmanager
    async def exclusive(self) -> AsyncGenerator[None]:
        """Hold the log quiet: inside, no write is under way, and queued writes wait. Raises NotLed."""
        async with self._turn:
            self._exclusive = True
            try:
                await self._quiet.wait()
                if self.confirming.lost is not None:
                    raise self._not_led()
                yield
            finally:
                self._exclusive = False
                self._kick()

    async def claim(self, make: Callable[[int], Claim]) -> None:
        """Become, or remain, the owner; inside `exclusive`. `make`: makes the claim of an epoch.

        Raises: NotLed (another owner has it), StorageError.
        """
        await self._sender.begin()
        if self.confirming.lost is not None:
            raise self._not_led()
        await self.append(make(self.confirming.reader.epoch + 1))
        self.claimed_s = self._clock.monotonic()

    async def append(self, record: Record) -> None:
        """Write one record and wait until it is confirmed; inside `exclusive`. Raises: NotLed."""
        written: Written = self._loop.create_future()
        if self._closing:
            self._last.add(written)
        self._add(record, (written,), 0)
        await written

    async def append_entries(self, entries: Sequence[Entry]) -> None:
        """Write entries before all that is queued; inside `exclusive`. Raises: NotLed."""
        written: Written = self._loop.create_future()
        body = encode_entries(entries)
        self._waiting_bytes += len(body)
        self._add_body(body, (written,))
        await written

    async def hand_over(self, to: str) -> None:
        """Take no more writes, wait for the earlier ones, and give the slot away. Raises NotLed."""
        self._closing = True
        last = self._put(b"")  # the empty write comes after all others
        self._last.add(last)
        await last
        async with self.exclusive():
            mine = self.confirming.mine
            assert mine is not None
            await self.append(HandOver(epoch=mine.epoch, serial=self.confirming.serial, to=to))

    def give_up(self, reason: str) -> None:
        """Fail all waiting writes with NotLed: nothing is confirmed any more. Safe to call twice."""
        if self._ended:
            return
        self._ended = self._closing = True
        reason = self.confirming.lost or reason
        left = self._sender.end(reason)
        answers = [*self._held, *(one for batch in left for one in batch.answers)]
        answers += [write.written for write in self._queue]
        self._queue.clear()
        self._held.clear()
        self._queued_bytes = self._waiting_bytes = 0
        self._quiet.set()
        for written in answers:
            if not written.done():
                written.set_exception(self._not_led())
                written.exception()  # retrieved: the caller may be gone, and asyncio would report the error
        self._on_lost(reason)

    async def close(self, reason: str) -> None:
        """Give up, and wait until nothing runs any more. Safe to call twice."""
        self.give_up(reason)
        await self._sender.closed()

    def read(self, found: SlotRecords) -> None:
        """Take in records that the log's follower found."""
        self._sender.read(found)

    def recheck(self) -> None:
        """Give the held answers if the lease is back."""
        if self._held and self._lease():
            held, self._held = self._held, []
            _answer(held)
            self._kick()

    # --- the queue ----------------------------------------------------------------------------------------------

    def _put(self, body: bytes) -> Written:
        written: Written = self._loop.create_future()
        self._queue.append(_Write(body, written))
        self._queued_bytes += len(body)
        self._waiting_bytes += len(body)
        if not self._kicked:
            self._kick()
        return written

    def _kick(self) -> None:
        """Look at the queue after all callers that are about to write have written."""
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Make records of the queued writes, as many as may be under way."""
        self._kicked = False
        while self._queue and self._may_add():
            pieces, answers = list[bytes](), list[Written]()
            size = 0
            while self._queue and (not pieces or size + len(self._queue[0].body) <= CHUNK_BYTES):
                body, written = self._queue.popleft()
                pieces.append(body)
                answers.append(written)
                size += len(body)
            self._queued_bytes -= size
            self._add_body(b"".join(pieces), answers)

    def _may_add(self) -> bool:
        if self._exclusive or self._sender.troubled or self.confirming.lost is not None:
            return False
        if self._held and not self._closing:
            return False
        waiting, settings = self._sender.waiting, self._settings
        if waiting < settings.eager_max:
            return True
        return waiting < settings.flying_max and self._queued_bytes >= settings.eager_bytes

    def _add_body(self, body: bytes, answers: Sequence[Written]) -> None:
        mine, serial = self.confirming.mine, self.confirming.serial
        assert mine is not None
        if not body:
            self._add(Tick(epoch=mine.epoch, serial=serial), answers, 0)
            return
        for part in parts_of(mine.epoch, serial, body):
            self._add(part, answers if part.last else (), len(part.body))

    def _add(self, record: Record, answers: Sequence[Written], size: int) -> None:
        self._quiet.clear()
        self.written_s = self._clock.monotonic()
        self._sender.add(record, answers, size)

    # --- the answers --------------------------------------------------------------------------------------------

    def _settled(self, batches: list[SlotBatch]) -> None:
        for batch in batches:
            self._waiting_bytes -= batch.size
            if self._held or not self._lease():
                _answer([one for one in batch.answers if one in self._last])
                self._hold([one for one in batch.answers if one not in self._last])
            else:
                _answer(batch.answers)
        if self._sender.waiting == 0:
            self._quiet.set()
        if self._queue:
            self._kick()

    def _hold(self, answers: Sequence[Written]) -> None:
        if answers and not self._held:
            self._clock.call_later(LEASE_POLL_S, self._poll_lease)
        self._held += answers

    def _poll_lease(self) -> None:
        self.recheck()
        if self._held:
            self._clock.call_later(LEASE_POLL_S, self._poll_lease)

    def _not_led(self) -> NotLed:
        why = self.confirming.lost or "it is being given to another worker"
        return NotLed(f"{self._where} is not led here: {why}")


def _answer(answers: Sequence[Written]) -> None:
    for written in answers:
        if not written.done():
            written.set_result(None)


TEND_S: Final = 1.0

logger = logging.getLogger(__name__)


class SlotMaintenance:
    """The maintenance of one ownership; it ends by itself when the ownership is lost."""

    def __init__(self, log: SlotLog, reading: SlotReading, *, claim: Callable[[int], Claim]) -> None:
        """claim: makes the claim of an epoch."""
        self._log = log
        self._reader = log.confirming.reader
        self._reading = reading
        self._claim = claim
        self._clock = reading.clock
        self._settings = reading.settings
        self._may_prune = True
        self._task: asyncio.Task[None] | None = None
        self._clock.call_later(TEND_S, self._look)

    def begin(self) -> None:
        """Begin the maintenance that is due; it runs before all writes from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._maintain(), name=f"maintenance of slot {self._reading.slot}")

    async def close(self) -> None:
        """Stop."""
        await cancelled(self._task)

    @property
    def _outdated(self) -> bool:
        now_s, settings = self._clock.monotonic(), self._settings
        return now_s - self._log.claimed_s > settings.renew_s or now_s - self._log.written_s > settings.idle_s

    def _look(self) -> None:
        if self._log.confirming.lost is not None:
            return
        old = self._clock.monotonic() - self._log.claimed_s > self._settings.renew_s
        if old or (self._may_prune and due(self._reader, self._settings.prune)):
            self.begin()
        self._clock.call_later(TEND_S, self._look)

    async def _maintain(self) -> None:
        log = self._log
        try:
            if self._outdated:
                async with log.exclusive():
                    await log.claim(self._claim)
            while self._may_prune and await self._prune():
                pass
        except NotLed as error:
            logger.info("slot %d is not maintained any longer: %s", self._reading.slot, error)
        except LogError as error:
            logger.warning("slot %d could not be maintained: %s", self._reading.slot, error)
        finally:
            self._task = None

    async def _prune(self) -> bool:
        """Do one step of pruning; True if there was one to do. Raises NotLed, StorageError."""
        log = self._log
        async with log.exclusive():
            step = next_step(self._reader, self._settings.prune)
            if isinstance(step, ClaimAgain):
                await log.claim(self._claim)
            elif isinstance(step, WriteAgain):
                await log.append_entries(step.entries)
        if isinstance(step, Delete):
            await self._delete(step.before)
        return step is not None

    async def _delete(self, before: int) -> None:
        reading = self._reading
        request = DeleteRecordsRequest(topic=reading.topic, partition=reading.slot, before=before)
        try:
            answer = await reading.tried(request)
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) or (isinstance(cause, ServerError) and passes(cause)):
                raise  # `_look` tries again
            self._may_prune = False
            logger.warning(
                "the log of slot %d of %s is not cut any more: %s; allow this worker to delete records of the topic, "
                "and start it again",
                reading.slot,
                reading.topic,
                error,
            )
            return
        self._reader.cut(max(before, answer.log_start))
