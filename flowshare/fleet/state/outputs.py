"""`SlotOutputs`: a slot's settles with outputs: they wait for a lane, and go through transactions together.

Waiting settles go to the first lane that is READY (`lanes`), as many as one transaction takes; while none is READY
another one is taken, up to a limit. A lane whose coordinator is not reached keeps back only its own settles: others
have other coordinators. An output partition that accepts no outputs is left alone for a while (`Resting`), by all slots
of a process; and by a slot as long as one of its lanes cannot be used for it, so that one partition does not take lane
after lane. A settle that waits too long for a lane is refused; a settle not to blame for a failure comes again.

`slots.prepared` defines the rows in the log, and why no settle can be lost or come twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from flowshare.client.errors import ClientError, ServerError
from flowshare.fleet.state.lane import Blamed, OutputSettings, Piece, pieces_of, together
from flowshare.fleet.state.lanes import Lanes, LaneState, LaneWays, UsedLane
from flowshare.log.base import (
    CorruptBatches,
    LogError,
    NotDecided,
    NotLed,
    OutputRefused,
    StorageError,
    Undecided,
)
from flowshare.protocol.kafka import ApiKey
from flowshare.slots.prepared import Fate, Place, Prepared, lane_entry, rows_prefix

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.state.slot import Slot
    from flowshare.log.base import Output
    from flowshare.slots.prepared import Begun
    from flowshare.slots.records import Entry

TRIES_MAX: Final = 4
"""The most tries of a settle that is not to blame for the failures."""
END_TRIES: Final = 2
"""The requests to commit a transaction before its lane is taken over."""
PRODUCE_MIN: Final = 10
"""The version of Produce that brokers of Kafka 3.7 were the first to have."""
TOO_OLD: Final = (
    "these brokers may leave a transaction open for ever that a worker was cut off from, and readers of committed "
    "records behind it: exactly-once outcomes need Kafka 3.7 or newer; upgrade the brokers, or leave exactly_once out"
)

Follow = Callable[[Sequence[tuple[bytes, bytes]], Sequence[Prepared]], Sequence["Entry"]]
logger = logging.getLogger(__name__)


def ends_transactions(versions: Mapping[int, tuple[int, int]]) -> bool:
    """True if brokers with these versions of APIs make sure that no transaction hangs (KIP-890, its first part).

    Brokers verify since Kafka 3.6, and without known gaps since 3.7, that a batch belongs to a transaction that its
    coordinator knows. No API tells this itself. Brokers of 3.7 are the first with version 10 of Produce (KIP-951).
    """
    return versions.get(ApiKey.PRODUCE, (0, 0))[1] >= PRODUCE_MIN


class Resting:
    """Output partitions that gave no answer, and the times until which they are left alone."""

    def __init__(self, clock: Clock, settings: OutputSettings) -> None:
        self._clock = clock
        self._rest_s = settings.rest_s
        self._until: dict[Place, float] = {}

    def add(self, place: Place) -> None:
        """Note that a partition gave no answer just now."""
        if not self.has(place):
            logger.warning(
                "%s-%d takes no outputs in: settles with outputs to it are refused for %g s; look at its leader and "
                "its replicas (kafka-topics.sh --describe --topic %s)",
                *place,
                self._rest_s,
                place[0],
            )
        self._until[place] = self._clock.monotonic() + self._rest_s

    def has(self, place: Place) -> bool:
        """True if the partition is left alone now."""
        until_s = self._until.get(place)
        if until_s is not None and until_s <= self._clock.monotonic():
            del self._until[place]
            return False
        return until_s is not None

    @property
    def count(self) -> int:
        """The number of partitions left alone now."""
        return sum(self.has(place) for place in tuple(self._until))


@dataclass(eq=False, kw_only=True)
class OutputCounts:
    """Counts of transactions: committed, aborted, and undecided so far."""

    committed: int = 0
    aborted: int = 0
    undecided: int = 0


@dataclass(eq=False, kw_only=True)
class OutputWays(LaneWays):
    """Common parts of the outputs of all slots of a process."""

    counts: OutputCounts = field(default_factory=OutputCounts)

    def __post_init__(self) -> None:
        self.resting = Resting(self.clock, self.settings)


class _Settle:
    """A settle that waits, or is under way."""

    def __init__(self, share: bytes, prepared: Prepared, outputs: Sequence[Output], pieces: Sequence[Piece]) -> None:
        self.share = share
        self.prepared = prepared
        self.outputs = outputs
        self.pieces = pieces
        self.size = sum(len(piece.batch) for piece in pieces)
        self.tries = 0
        self.over_s = 0.0
        self.done: asyncio.Future[Sequence[Entry]] = asyncio.get_running_loop().create_future()

    def fail(self, error: Exception) -> None:
        """Fail the settle."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # retrieved: the waiter may be gone


class SlotOutputs:
    """The settles of one ownership of one slot. All methods are called on one event loop."""

    def __init__(self, slot: Slot, ways: OutputWays) -> None:
        self._slot = slot
        self._ways = ways
        self._clock = ways.clock
        self._settings = ways.settings
        self._counts = ways.counts
        self._lanes = Lanes(slot, ways, on_ready=self._go_on, on_trouble=self._pump)
        self._queue: deque[_Settle] = deque()
        self._flying: Counter[bytes] = Counter()
        """Number of settles under way, by share-partition."""
        self._under_way: dict[UsedLane, list[_Settle]] = {}
        """Settles under way by their lanes."""
        self._waiting: set[asyncio.Future[None]] = set()

    # --- life ---------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Shut the former leaders out of all lanes that were ever used, after the slot was claimed."""
        self._lanes.take_over()

    async def close(self) -> None:
        """Accept no more settles, and wait for those under way, with a limit; the rest is left to the next leader."""
        self._lanes.closed = True
        self._fail_queue()
        busy = [used.task for used in self._under_way if used.task is not None]
        if busy:
            try:
                await self._clock.wait_for(asyncio.wait(busy), self._settings.lay_down_s)
            except TimeoutError:
                logger.info("slot %d is left with undecided transactions", self._slot.slot)
        await self._lanes.end_tasks()
        for used, settles in self._under_way.items():
            error = Undecided if used.state is LaneState.ENDING else NotLed
            for settle in settles:
                settle.fail(error(f"slot {self._slot.slot} is led elsewhere by now"))
        self._tell()
        await self._lanes.close()

    def _fail_queue(self) -> None:
        left, self._queue = self._queue, deque()
        for settle in left:
            settle.fail(NotLed(f"slot {self._slot.slot} is being given to another worker"))

    # --- what is asked ------------------------------------------------------------------------------------------

    async def settle(self, share: bytes, prepared: Prepared, outputs: Sequence[Output]) -> Sequence[Entry]:
        """Commit the outputs; return the entries that the caller writes with the follow-up.

        Raises: OutputRefused, StorageError, NotLed (no output is there, now or later), Undecided.
        """
        settle = _Settle(share, prepared, outputs, await self._pieces(outputs))
        if self._lanes.closed:
            raise NotLed(f"slot {self._slot.slot} is being given to another worker")
        self._check_rest(settle)
        settle.over_s = self._clock.monotonic() + self._settings.queue_s
        timer = self._clock.call_later(self._settings.queue_s, lambda: self._expire(settle))
        settle.done.add_done_callback(
            lambda _: timer.cancel()
        )  # else the timer would keep the settle and its outputs until then
        self._queue.append(settle)
        self._pump()
        return await settle.done

    async def decided(self, share: bytes, follow: Follow) -> None:
        """Write the follow-up of a share-partition's committed settles, while no other task writes its state.

        follow: returns the writes, given its entries and the committed settles. Raises NotDecided, StorageError,
        NotLed.
        """
        until_s = self._clock.monotonic() + self._settings.decide_s
        while True:
            rows = self._lanes.rows(rows_prefix(share))
            fates = {kept.row: self._lanes.fate_of(kept) for kept in rows}
            if not self._flying[share] and Fate.UNDECIDED not in fates.values():
                break
            await self._change(until_s)
        if rows:
            committed = [kept.prepared for kept in rows if fates[kept.row] is Fate.COMMITTED]
            gone: list[Entry] = [(kept.row.key, None) for kept in rows]
            await self._slot.write([*follow(self._slot.scan(share), committed), *gone])

    async def _change(self, until_s: float) -> None:
        """Wait until a transaction was decided. Raises NotDecided, NotLed."""
        if self._lanes.closed:
            raise NotLed(f"slot {self._slot.slot} is led elsewhere by now")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await self._clock.wait_for(waiter, max(0.0, until_s - self._clock.monotonic()))
        except TimeoutError:
            raise NotDecided(
                f"slot {self._slot.slot}: whether outputs of the share-partition were committed is not known yet: the "
                "coordinators of their transactions do not answer; try again later"
            ) from None
        finally:
            self._waiting.discard(waiter)

    def _tell(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _pieces(self, outputs: Sequence[Output]) -> list[Piece]:
        """Return the batches of outputs. Raises OutputRefused, StorageError."""
        refused: dict[int, LogError] = {}
        pieces: list[Piece] = []
        for index, output in enumerate(outputs):
            problem = await self._ways.exists(output, False)
            if isinstance(problem, StorageError):
                raise problem
            if problem is not None:
                refused[index] = problem
                continue
            try:
                pieces += pieces_of(output, index)
            except CorruptBatches as error:
                refused[index] = error
        if refused:
            raise OutputRefused(refused)
        return pieces

    def _check_rest(self, settle: _Settle) -> None:
        """Refuse a settle with outputs to resting partitions, so that it does not hold up others. Raises OutputRefused
        (try later)."""
        if (problem := self._rests(settle)) is not None:
            raise problem

    def _rests(self, settle: _Settle) -> OutputRefused | None:
        waited_for = self._lanes.waited_for()
        resting: dict[int, LogError] = {
            piece.output: StorageError(f"{piece.place[0]}-{piece.place[1]} takes no outputs in now; try again later")
            for piece in settle.pieces
            if self._ways.resting.has(piece.place) or piece.place in waited_for
        }
        return OutputRefused(resting) if resting else None

    # --- the queue ----------------------------------------------------------------------------------------------

    def _expire(self, settle: _Settle) -> None:
        if settle in self._queue:
            self._queue.remove(settle)
            settle.fail(self._no_lane())

    def _no_lane(self) -> StorageError:
        return StorageError(
            f"slot {self._slot.slot} has no lane for a transaction that is free, of {len(self._lanes.used)}: "
            f"{self._lanes.problem or 'all are in use'}; try again later"
        )

    def _go_on(self) -> None:
        """Wake waiters and the queue after a decision."""
        self._tell()
        self._pump()

    def _pump(self) -> None:
        """Give waiting settles to free lanes."""
        while self._queue and not self._lanes.closed and self._busy < self._settings.lanes_max:
            used = self._lanes.ready()
            if used is None:
                self._lanes.grow()
                return
            settles = self._next_settles()
            if settles:
                used.state, self._under_way[used] = LaneState.SENDING, settles
                self._flying.update(settle.share for settle in settles)
                self._lanes.run(used, self._use(used))

    @property
    def _busy(self) -> int:
        return sum(not used.troubled for used in self._under_way)

    def _next_settles(self) -> list[_Settle]:
        """Return as many waiting settles as one transaction takes; settles whose caller is gone are dropped."""
        settles: list[_Settle] = []
        size = 0
        while self._queue and len(settles) < self._settings.joined_max:
            settle = self._queue[0]
            size += settle.size
            if settles and size > self._settings.joined_bytes:
                break
            self._queue.popleft()
            if (problem := self._rests(settle)) is not None:
                settle.fail(problem)
            if not settle.done.done():
                settles.append(settle)
        return settles

    # --- one transaction ----------------------------------------------------------------------------------------

    async def _use(self, used: UsedLane) -> None:
        """Carry settles through a transaction, whatever happens to the lane."""
        try:
            await self._carry(used)
        except Exception as error:
            for settle in self._under_way.get(used, ()):
                settle.fail(Undecided(str(error)))
            raise

    async def _carry(self, used: UsedLane) -> None:
        """Carry settles through a transaction; those that come again may go to another lane at once. Raises: NotLed."""
        settles, book = self._under_way[used], used.lane.book
        begun = book.begin([(settle.share, settle.prepared) for settle in settles])
        try:
            await self._prepare(used, begun)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not committed
            book.undone()
            used.state = LaneState.TAKING
            self._counts.aborted += 1
            if isinstance(error, Blamed):
                used.lane.waits_for.update(error.rest)
            self._landed(used, self._failed(settles, error))
            await self._lanes.take(used)
        else:
            book.prepared()
            self._landed(used, await self._end(used, begun))
        used.ended_s = self._clock.monotonic()
        self._lanes.free(used)
        if len(self._lanes.used) == 1 and self._settings.lanes_max > 1 and not self._lanes.closed:
            self._lanes.add()  # a slot that settles with outputs once does so again

    def _landed(self, used: UsedLane, again: Sequence[_Settle]) -> None:
        """Forget a lane's settles, whose outcome is known; `again`: settles that wait anew."""
        for settle in self._under_way.pop(used):
            self._flying[settle.share] -= 1
        self._flying = +self._flying
        self._queue.extendleft(reversed(again))
        self._go_on()

    async def _prepare(self, used: UsedLane, begun: Begun) -> None:
        """Confirm everything that the transaction's commit needs. Raises the reason against the commit."""
        settles = self._under_way[used]
        pieces = [piece._replace(settle=at) for at, settle in enumerate(settles) for piece in settle.pieces]
        lane = used.lane
        known, note = used.noted, lane.will_write(pieces)
        used.noted = None
        noted = [] if note == known else [lane_entry(self._slot.slot, lane.number, note)]
        row = self._slot.write([*noted, *begun.entries])
        await self._clock.wait_for(together(row, lane.send(begun.number, pieces)), self._settings.answer_s)
        used.noted = note

    async def _end(self, used: UsedLane, begun: Begun) -> list[_Settle]:
        """Commit, and find out if that succeeded; return the settles that come again. Raises NotLed."""
        settles = self._under_way[used]
        used.state = LaneState.ENDING
        self._counts.undecided += 1
        try:
            found = await self._commit(used)
        finally:
            self._counts.undecided -= 1
        if found is not Fate.COMMITTED:
            self._counts.aborted += 1
            return self._again(settles, StorageError("the transaction was aborted; try again"))
        self._counts.committed += 1
        for settle, row in zip(settles, begun.rows, strict=True):
            if not settle.done.done():
                settle.done.set_result([(row.key, None)])
        return []

    async def _commit(self, used: UsedLane) -> Fate | None:
        for _ in range(END_TRIES):
            try:
                await used.lane.end()
            except ServerError as error:
                logger.info("what became of a transaction is found out: %s", error)
                break
            except (OSError, ClientError) as error:
                logger.info("a transaction is asked to be committed again: %s", error)
            else:
                used.lane.book.committed()
                return Fate.COMMITTED
        return await self._lanes.take(used)

    def _failed(self, settles: Sequence[_Settle], error: Exception) -> list[_Settle]:
        """Tell the settles to blame that the transaction is not committed; return the others, which come again."""
        if isinstance(error, Blamed):
            return self._blamed(settles, error)
        if isinstance(error, OSError | ClientError):
            return self._again(settles, StorageError(f"outputs could not be written: {error}"))
        if not isinstance(error, LogError):
            logger.error("a transaction failed unexpectedly", exc_info=error)
            error = StorageError(f"{type(error).__name__}: {error}")
        for settle in settles:
            settle.fail(error)
        return []

    def _blamed(self, settles: Sequence[_Settle], blamed: Blamed) -> list[_Settle]:
        by_settle: dict[int, dict[int, LogError]] = {}
        for piece, error in blamed.errors.items():
            by_settle.setdefault(piece.settle, {})[piece.output] = error
        for place in blamed.rest:
            self._ways.resting.add(place)
        for at, places in by_settle.items():
            settles[at].fail(OutputRefused(places))
        return self._again([one for at, one in enumerate(settles) if at not in by_settle], StorageError(str(blamed)))

    def _again(self, settles: Sequence[_Settle], error: StorageError) -> list[_Settle]:
        """Return the settles that are tried once more; fail the others with the error."""
        again: list[_Settle] = []
        for settle in settles:
            settle.tries += 1
            if self._lanes.closed:
                settle.fail(NotLed(f"slot {self._slot.slot} is being given to another worker"))
            elif settle.tries >= TRIES_MAX or self._clock.monotonic() >= settle.over_s:
                settle.fail(error)
            else:
                again.append(settle)
        return again
