"""The pools of agents with an order: when a handler has ended in an accept, the next record of its key may be begun.

They are kinds of their own, so that the other pools check nothing for records without an order. The effect of a
record's end on those behind it is in `agents.handler.chains`; this module only lets the next one go on. The runner of
the record before finds it at the top of the queue. A record that ends otherwise changes nothing here: records that wait
behind it are released when its outcome is acknowledged, never earlier.

A lock that lapses lets the next record of its key begin elsewhere. So no record is begun once its lock may have lapsed,
and an `async def` handler whose lock is lost is cancelled. A `def` handler cannot be cancelled: it keeps its lock as
long as it runs (SG-18.6).
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowshare.agents.handler.batch import BatchRecord, Records
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.delivery import Delivery
from flowshare.agents.handler.outcomes import Outcome, OutcomeKind
from flowshare.agents.run.async_pool import TaskPool
from flowshare.agents.run.batch_pool import BatchPool, Said
from flowshare.agents.run.pool import Environment, Held, Pool, Runner
from flowshare.agents.run.thread_pool import ThreadPool
from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.key_hash import KeyOrder

if TYPE_CHECKING:
    from flowshare.agents.handler.agent import ShareAgent

LAPSED: Final = "its lock lapsed"
NOT_BEGUN: Final = Outcome(OutcomeKind.RELEASE, None, LAPSED, delay_s=1.0, unrun=True)
"""Outcome of a record that is not begun: its lock may lapse first, or a handler without a lock works on its key."""
BESIDE: Final = Outcome(OutcomeKind.RELEASE, None, "another record of its batch has lost its lock", unrun=True)
"""Outcome of a record whose batch was cancelled for another one's sake."""


class _Lapsed(Exception):
    """The record must not be begun: its lock may be gone. Or its batch was cancelled for a lock that is gone."""


class InOrder(Pool):
    """The common part of the three kinds of pool with an order."""

    def __init__(self, agent: ShareAgent, environment: Environment) -> None:
        self._order = KeyOrder.parse(agent.options.key_order or "")
        self._spare_s = agent.options.begins_before_s
        self._strays = False
        """True if handlers may work on records whose locks are gone."""
        super().__init__(agent, environment)

    def lapsed(self, chunk: Chunk, record: RawRecord) -> bool:
        """Tell if this record must not be begun.

        Its lock may be gone already, or may lapse before its handler must have ended; or a handler here still works on
        its key without the lock.
        """
        late = self.clock.monotonic() >= self._begins_before(chunk) or record.offset in chunk.lost
        return late or (self._strays and self._beside(chunk, record))

    def _begins_before(self, chunk: Chunk) -> float:
        """Return the time by which a chunk's record must have begun; a new one may begin, whatever locks its group
        has."""
        return chunk.deadline - min(self._spare_s, (chunk.deadline - chunk.arrived) / 2)

    def _beside(self, chunk: Chunk, record: RawRecord) -> bool:
        """Tell if a handler of this process works on a record of the same key whose lock was lost."""
        assert self._order is not None
        stray = [
            held
            for runner in self.running()
            for held in (runner.held if isinstance(runner.held, list) else [runner.held])
            if held is not None and held[1].offset in held[0].lost
        ]
        self._strays = bool(stray)
        key = self._order.key_of(record)
        return key is not None and any(one.tp == chunk.tp and self._order.key_of(lost) == key for one, lost in stray)

    def lost(self, chunk: Chunk, offsets: Collection[int]) -> None:
        """Cancel running handlers of these offsets, whose locks are gone, if possible. On the handler loop."""
        self._strays = True
        for runner in self.running():
            if runner.task is None or not (self.cancels or runner.waits):
                continue
            held = runner.held if isinstance(runner.held, list) else [runner.held]
            if any(one is not None and one[0] is chunk and one[1].offset in offsets for one in held):
                runner.lost_in = runner.held
                runner.task.cancel()

    def abandoned(self, limit_s: float) -> set[tuple[int, int]]:
        """Always empty: if renewal stopped, the key's next record would run beside the stuck handler."""
        return set()

    def failed(self, chunk: Chunk, record: RawRecord, error: BaseException) -> Outcome:
        """Return the outcome as without an order; a record whose lock is lost is released, whatever its outcome
        here."""
        if record.offset in chunk.lost:
            return Outcome(OutcomeKind.RELEASE, None, LAPSED)
        if isinstance(error, _Lapsed):
            return NOT_BEGUN
        return super().failed(chunk, record, error)

    def finish(self, chunk: Chunk, record: RawRecord, outcome: Outcome) -> None:
        """Record an outcome, and let the next of its key go on after a plain accept."""
        sent = record.offset in chunk.sends
        super().finish(chunk, record, outcome)
        if outcome.kind is OutcomeKind.ACCEPT and not (outcome.has_outputs or sent):
            self.go_on(chunk, record)

    def go_on(self, chunk: Chunk, record: RawRecord) -> None:
        """Let the record behind this accepted one begin next."""
        if chunk.chains is not None and chunk.chains.go_on(record.offset, chunk.records):
            self.queue_first(chunk)

    @abc.abstractmethod
    def queue_first(self, chunk: Chunk) -> None:
        """Put a chunk first in the queue."""


class OrderedTaskPool(InOrder, TaskPool):
    """Runs `async def` handlers in order."""

    def make_call(self) -> Callable[[Held], Awaitable[Any]]:
        """Make the call, with what follows an accept: most accepts never come to `finish`."""
        call, lapsed, monotonic, spare_s = super().make_call(), self.lapsed, self.clock.monotonic, self._spare_s

        async def in_order(held: Held) -> Any:
            chunk, record = held
            if (monotonic() >= chunk.deadline - spare_s or chunk.lost or self._strays) and lapsed(chunk, record):
                raise _Lapsed
            result = await call(held)
            chains = chunk.chains
            if result is None and chains is not None and not chunk.sends and chains.leads(record.offset):
                self.go_on(chunk, record)  # noted before any other task has a turn
            return result

        return in_order

    def queue_first(self, chunk: Chunk) -> None:
        """Put the chunk first: the calling task looks at the queue next."""
        if not self.queue or self.queue[0] is not chunk:
            self.queue.appendleft(chunk)


class OrderedThreadPool(InOrder, ThreadPool):
    """Runs `def` handlers in order."""

    def _make_handle(self) -> Callable[[Any, Held], Any]:
        handle = super()._make_handle()

        def in_order(value: Any, held: Held) -> Any:
            if self.lapsed(*held):
                raise _Lapsed
            return handle(value, held)

        return in_order

    def queue_first(self, chunk: Chunk) -> None:
        """Put the chunk first: the calling thread looks at the queue next."""
        with self._ready:
            if not self.queue or self.queue[0] is not chunk:
                self.queue.appendleft(chunk)


class OrderedBatchPool(InOrder, BatchPool):
    """Runs batch handlers in order: a batch has a key's records in a row, as far as there is room in it.

    A record that is not accepted takes the later records of its key out of the batch: whatever the handler said of
    those, they are released unrun with it. A batch that is cancelled because one of its records has lost its lock has
    not failed: the others cost no attempt.
    """

    def queue_first(self, chunk: Chunk) -> None:
        """Put the chunk first: the calling task looks at the queue next."""
        if chunk not in self.queue:  # twice would count twice for a full batch
            self.queue.appendleft(chunk)

    def startable(self, chunk: Chunk) -> int:
        """Count records without those behind a running one."""
        return chunk.waiting if chunk.chains is None else chunk.chains.startable(chunk.records)

    def take(self) -> list[Held]:
        """Take the records of a batch, each followed by the next ones of its key."""
        taken: list[Held] = []
        while len(taken) < self._batch.size and self.next_chunk(taken):
            chunk = self.queue[0]
            try:
                first = chunk.records.pop()
            except IndexError:
                if not chunk.open():
                    self.queue.popleft()
                continue
            if self.lapsed(chunk, first):
                self.finish(chunk, first, NOT_BEGUN)
                continue
            record: RawRecord | None = first
            while record is not None:
                taken.append((chunk, record))
                chains = chunk.chains if len(taken) < self._batch.size else None
                record = None if chains is None else chains.follow(record.offset)
        return taken

    def decode(self, taken: list[Held]) -> tuple[list[Held], Records[Any]]:
        """Decode as without an order; records behind an unreadable one are not handled."""
        stopped = _Stopped()
        held: list[Held] = []
        records: list[BatchRecord[Any]] = []
        before: dict[tuple[Chunk, int], RawRecord] = {}
        for chunk, record in taken:
            if stopped.has_before(chunk, record):
                continue
            key = 0 if chunk.chains is None else chunk.chains.key(record.offset)
            if key and (earlier := before.get((chunk, key))) is not None and not _readable(chunk, record):
                stopped.at(chunk, earlier)  # not rejected before the earlier one is settled: comes again alone
                stopped.has_before(chunk, record)
                continue
            if (value := self.value(chunk, record)) is None:
                stopped.at(chunk, record)
                continue
            before[chunk, key] = record
            held.append((chunk, record))
            records.append(BatchRecord(value[0], Delivery(chunk, record, self.renew)))  # type: ignore[arg-type]
        stopped.withdraw()
        return held, Records(records)

    def of_timeout(self, runner: Runner, error: BaseException) -> BaseException:
        """Return the error as without an order; `_Lapsed` if a lost lock cancelled the batch."""
        late = super().of_timeout(runner, error)
        return _Lapsed() if runner.lost_in is runner.held and isinstance(late, asyncio.CancelledError) else late

    def settle(self, held: list[Held], said: Sequence[Said], accepted: Outcome, error: BaseException | None) -> None:
        """Settle as without an order; records behind one that is not accepted are released with it."""
        stopped = _Stopped()
        left: list[Held] = []
        left_said: list[Said] = []
        waits: dict[tuple[Chunk, int], RawRecord] = {}
        for (chunk, record), one in zip(held, said, strict=True):
            if stopped.has_before(chunk, record):
                continue
            if record.offset in chunk.lost:
                stopped.at(chunk, record)
                self.finish(chunk, record, Outcome(OutcomeKind.RELEASE, None, LAPSED))
                continue
            if one is None and isinstance(error, _Lapsed):
                stopped.at(chunk, record)
                self.finish(chunk, record, BESIDE)
                continue
            key = 0 if chunk.chains is None else chunk.chains.key(record.offset)
            if one is not None and key and (earlier := waits.get((chunk, key))) is not None:
                stopped.at(chunk, earlier)  # its outputs are confirmed first: this one must wait
                stopped.has_before(chunk, record)
                continue
            if one is not None or error is not None:
                stopped.at(chunk, record)
            elif accepted.shared is not None or record.offset in chunk.sends:
                waits[chunk, key] = record
            left.append((chunk, record))
            left_said.append(one)
        stopped.withdraw()
        super().settle(left, left_said, accepted, error)


def _readable(chunk: Chunk, record: RawRecord) -> bool:
    """Tell if the record's value can be read; reading it again raises the error."""
    try:
        chunk.value(record)
    except BaseException:  # noqa: BLE001 - whatever the decoder raised
        return False
    return True


class _Stopped:
    """Keys that do not go on within one batch, and their records behind the failed one."""

    def __init__(self) -> None:
        self._behind: dict[tuple[Chunk, int], tuple[int, list[RawRecord]]] = {}

    def at(self, chunk: Chunk, record: RawRecord) -> None:
        """Note a record that is not accepted."""
        if chunk.chains is not None and (key := chunk.chains.key(record.offset)):
            self._behind[chunk, key] = (record.offset, [])

    def has_before(self, chunk: Chunk, record: RawRecord) -> bool:
        """Tell if an earlier record of the same key is not accepted; then remember this record."""
        if chunk.chains is None or not self._behind:
            return False
        found = self._behind.get((chunk, chunk.chains.key(record.offset)))
        if found is None:
            return False
        found[1].append(record)
        return True

    def withdraw(self) -> None:
        """Release the remembered records with the record before them, and drop the records that they sent."""
        for (chunk, _), (offset, records) in self._behind.items():
            assert chunk.chains is not None
            for record in records:
                chunk.sends.pop(record.offset, None)
            chunk.chains.withdraw(offset, records)
