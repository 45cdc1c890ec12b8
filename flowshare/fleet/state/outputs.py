"""`SlotOutputs`: outputs of a slot's settles, in transactions of its lanes; who led before is dealt with first.

    lane     event                                       next      effect
    TAKING   it was taken over, its ledger read          READY     what was under way in it is known
    READY    settles wait                                SENDING   their rows are written, their outputs sent
    READY    a broker is lost                            TAKING    its last transaction may have ended by halves
    SENDING  all of that is confirmed                    ENDING    its transaction is asked to be committed
    SENDING  anything else                               TAKING    aborted by that: who is not to blame comes again
    ENDING   it is committed                             READY     its settles are decided
    ENDING   no answer, or another one                   TAKING    the ledger says what became of it
    any      the slot is given away or lost              –         ENDING: who leads next finds out

What waits goes to the first lane that is READY, as much of it as one transaction takes; while there is none another one
is taken, up to a limit. A lane whose coordinator is not reached keeps back nothing but its own settles: others have
others. An output partition that takes nothing in is left alone for a while (`Resting`), by all slots of a process; and
by a slot as long as one of its lanes cannot be used for it, so that one partition does not take lane after lane.
Whoever waits too long for a lane is refused.

`slots.prepared` says what a row in the log means, and why nothing of this can be lost or come twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError, ServerError
from flowshare.clock import backoff_s
from flowshare.fleet.state.lane import EMPTY, Blamed, Lane, OutputSettings, Piece, pieces_of, together
from flowshare.log.base import (
    CorruptBatches,
    LogError,
    NotDecided,
    NotLed,
    OutputRefused,
    StorageDamaged,
    StorageError,
    Undecided,
)
from flowshare.protocol.kafka import ApiKey
from flowshare.slots.errors import SlotError
from flowshare.slots.prepared import (
    LEDGER,
    PREPARED,
    Fate,
    Kept,
    LaneNote,
    Place,
    Prepared,
    Row,
    decode_note,
    encode_row,
    fate,
    lane_entry,
    lane_of,
    places_in,
    rows_in,
)
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.net.routing import ClusterConnection
    from flowshare.clock import Clock
    from flowshare.fleet.state.slot import Slot
    from flowshare.log.base import Output
    from flowshare.slots.prepared import Begun
    from flowshare.slots.records import Entry

TRIES_MAX: Final = 4
"""How often a settle is sent that is not to blame for what went wrong."""
END_TRIES: Final = 2
"""How often a transaction is asked to be committed before its lane is taken over."""
TELL_S: Final = 30.0
"""How often it is told again that a lane cannot be taken over."""

PRODUCE_MIN: Final = 10
"""Version of Produce that brokers of Kafka 3.7 were the first to have."""
TOO_OLD: Final = (
    "these brokers may leave a transaction open for ever that a worker was cut off from, and readers of committed "
    "records behind it: exactly-once outcomes need Kafka 3.7 or newer; upgrade the brokers, or leave exactly_once out"
)

Exists = Callable[["Output", bool], Awaitable[LogError | None]]
Follow = Callable[[Sequence[tuple[bytes, bytes]], Sequence[Prepared]], Sequence["Entry"]]
logger = logging.getLogger(__name__)


def ends_transactions(versions: Mapping[int, tuple[int, int]]) -> bool:
    """Whether brokers with these versions of APIs see to it that no transaction hangs (KIP-890, its first part).

    They verify since Kafka 3.6, and without known gaps since 3.7, that a batch belongs to a transaction that its
    coordinator knows of; no API says so itself. Those of 3.7 are the first that have version 10 of Produce (KIP-951).
    """
    return versions.get(ApiKey.PRODUCE, (0, 0))[1] >= PRODUCE_MIN


class Resting:
    """Output partitions that gave no answer, and until when they are left alone."""

    def __init__(self, clock: Clock, settings: OutputSettings) -> None:
        self._clock = clock
        self._rest_s = settings.rest_s
        self._until: dict[Place, float] = {}

    def add(self, place: Place) -> None:
        """It gave no answer just now."""
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
        """Whether it is left alone now."""
        until_s = self._until.get(place)
        if until_s is not None and until_s <= self._clock.monotonic():
            del self._until[place]
            return False
        return until_s is not None

    @property
    def count(self) -> int:
        """How many there are now."""
        return sum(self.has(place) for place in tuple(self._until))


@dataclass(eq=False, kw_only=True)
class OutputCounts:
    """What became of transactions: committed, aborted; and of which that is not known yet."""

    committed: int = 0
    aborted: int = 0
    undecided: int = 0


@dataclass(eq=False, kw_only=True)
class OutputWays:
    """What all slots of a process have in common. connect: opens a connection to the cluster.

    exists: None, or why what an output was made for is not there (any more); True: the brokers are asked anew.
    """

    topic: str
    connect: Callable[[str], ClusterConnection]
    exists: Exists
    clock: Clock
    settings: OutputSettings = field(default_factory=OutputSettings)
    counts: OutputCounts = field(default_factory=OutputCounts)

    def __post_init__(self) -> None:
        self.resting = Resting(self.clock, self.settings)


class _State(Enum):
    TAKING = "taking"
    READY = "ready"
    SENDING = "sending"
    ENDING = "ending"


class _Settle:
    """One that waits, or is under way."""

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
        """It is not done."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # seen: whoever waited may be gone


class _Used:
    """A lane, with what is under way in it."""

    def __init__(self, lane: Lane, noted: LaneNote | None) -> None:
        self.lane = lane
        self.noted = noted
        """What the log says of it; None: nothing, or nobody knows."""
        self.state = _State.TAKING
        self.ended_s = float("-inf")
        """When its last transaction ended. For milliseconds after that a coordinator takes no other one."""
        self.troubled = False
        """Whether it may take long until it is taken over."""
        self.task: asyncio.Task[None] | None = None
        self.settles: list[_Settle] = []


class SlotOutputs:
    """Those of one ownership of one slot. All methods are called on one event loop."""

    def __init__(self, slot: Slot, ways: OutputWays) -> None:
        self._slot = slot
        self._epoch = slot.epoch
        self._ways = ways
        self._clock = ways.clock
        self._settings = ways.settings
        self._counts = ways.counts
        self._lanes: list[_Used] = []
        self._inherited = 0
        """How many lanes others used before."""
        self._queue: deque[_Settle] = deque()
        self._flying: Counter[bytes] = Counter()
        """Settles under way by their share-partitions."""
        self._waiting: set[asyncio.Future[None]] = set()
        self._problem = ""
        """Why a lane could not be taken over the last time."""
        self._closed = False

    # --- life ---------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """The slot was claimed: shut out who led before, in all lanes that were ever used."""
        entries = self._slot.scan(b"")
        rows = places_in(entries)
        noted = self._noted_in(entries)
        self._inherited = max([-1, *noted, *(row.lane for row in rows)]) + 1
        for lane in range(self._inherited):
            self._take_lane([row for row in rows if row.lane == lane], noted.get(lane))

    def _noted_in(self, entries: Sequence[tuple[bytes, bytes]]) -> Mapping[int, LaneNote]:
        """What the log says of lanes; where that cannot be read, of all that there may be."""
        noted: dict[int, LaneNote] = {}
        for key, value in entries:
            try:
                lane = lane_of(key)
                if lane is not None:
                    noted[lane] = decode_note(value)
            except SlotError as error:
                logger.error("slot %d: %s; all lanes are taken over", self._slot.slot, error)  # noqa: TRY400
                for lane in range(self._settings.lanes_max + self._settings.stuck_max):
                    noted.setdefault(lane, LaneNote(last=(LEDGER,)))
        return noted

    async def close(self) -> None:
        """Take nothing more, and wait for what is under way, with a limit; the rest is left to who leads next."""
        self._closed = True
        self._fail_queue()
        busy = [used.task for used in self._lanes if used.settles and used.task is not None]
        if busy:
            try:
                await self._clock.wait_for(asyncio.wait(busy), self._settings.lay_down_s)
            except TimeoutError:
                logger.info("slot %d is left with undecided transactions", self._slot.slot)
        await cancelled(*(used.task for used in self._lanes))
        for used in self._lanes:
            error = Undecided if used.state is _State.ENDING else NotLed
            for settle in used.settles:
                settle.fail(error(f"slot {self._slot.slot} is led elsewhere by now"))
        self._tell()
        await asyncio.gather(*(used.lane.close() for used in self._lanes), return_exceptions=True)

    def _fail_queue(self) -> None:
        left, self._queue = self._queue, deque()
        for settle in left:
            settle.fail(NotLed(f"slot {self._slot.slot} is being given to another worker"))

    # --- what is asked ------------------------------------------------------------------------------------------

    async def settle(self, share: bytes, prepared: Prepared, outputs: Sequence[Output]) -> Sequence[Entry]:
        """Returns when the outputs are committed: what is to be written with what follows from it.

        Raises: OutputRefused, StorageError, NotLed (nothing of it is there, now or later), Undecided.
        """
        settle = _Settle(share, prepared, outputs, await self._pieces(outputs))
        if self._closed:
            raise NotLed(f"slot {self._slot.slot} is being given to another worker")
        self._check_rest(settle)
        settle.over_s = self._clock.monotonic() + self._settings.queue_s
        timer = self._clock.call_later(self._settings.queue_s, lambda: self._expire(settle))
        settle.done.add_done_callback(lambda _: timer.cancel())  # else it would be kept so long, outputs and all
        self._queue.append(settle)
        self._pump()
        return await settle.done

    async def decided(self, share: bytes, follow: Follow) -> None:
        """Write what follows from what is committed of a share-partition, while nobody else writes its state.

        follow: the writes, of its entries and what is committed. Raises: NotDecided, StorageError, NotLed.
        """
        until_s = self._clock.monotonic() + self._settings.decide_s
        while True:
            rows = self._rows(share + PREPARED)
            fates = {kept.row: self._fate(kept) for kept in rows}
            if not self._flying[share] and Fate.UNDECIDED not in fates.values():
                break
            await self._change(until_s)
        if rows:
            committed = [kept.prepared for kept in rows if fates[kept.row] is Fate.COMMITTED]
            gone: list[Entry] = [(kept.row.key, None) for kept in rows]
            await self._slot.write([*follow(self._slot.scan(share), committed), *gone])

    def _rows(self, prefix: bytes) -> list[Kept]:
        """Raises: StorageDamaged."""
        try:
            return rows_in(self._slot.scan(prefix))
        except SlotError as error:
            raise StorageDamaged(f"slot {self._slot.slot} has a settle that cannot be used: {error}") from error

    def _fate(self, kept: Kept) -> Fate:
        if kept.decided:
            return Fate.COMMITTED
        lane = kept.row.lane
        return self._lanes[lane].lane.book.fate_of(kept) if lane < len(self._lanes) else Fate.UNDECIDED

    async def _change(self, until_s: float) -> None:
        """Wait until something was decided. Raises: NotDecided, NotLed."""
        if self._closed:
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
        """The batches of outputs. Raises: OutputRefused, StorageError."""
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
        """Raises: OutputRefused, for those that may be taken in later: what comes with them is not held up."""
        if (problem := self._rests(settle)) is not None:
            raise problem

    def _rests(self, settle: _Settle) -> OutputRefused | None:
        waited_for = {place for one in self._lanes for place in one.lane.waits_for}
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
            f"slot {self._slot.slot} has no lane for a transaction that is free, of {len(self._lanes)}: "
            f"{self._problem or 'all are in use'}; try again later"
        )

    def _pump(self) -> None:
        """Give what waits to lanes that are free."""
        while self._queue and not self._closed and self._busy < self._settings.lanes_max:
            ready = [one for one in self._lanes if one.state is _State.READY]
            used = min(ready, key=lambda one: one.ended_s, default=None)
            if used is None:
                soon = any(one.state is _State.TAKING and not one.troubled for one in self._lanes)
                if not soon and self._may_have_more():
                    self._take_lane()
                return
            settles = self._next_settles()
            if settles:
                used.state, used.settles = _State.SENDING, settles
                self._flying.update(settle.share for settle in settles)
                self._run(used, self._use(used))

    @property
    def _busy(self) -> int:
        return sum(bool(one.settles) and not one.troubled for one in self._lanes)

    def _may_have_more(self) -> bool:
        stuck = sum(one.troubled for one in self._lanes)
        return len(self._lanes) - min(stuck, self._settings.stuck_max) < self._settings.lanes_max

    def _next_settles(self) -> list[_Settle]:
        """As many of those that wait as one transaction takes; whoever is gone waits no more."""
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

    # --- lanes --------------------------------------------------------------------------------------------------

    def _take_lane(self, inherited: Sequence[Row] = (), noted: LaneNote | None = None) -> None:
        """One lane more. inherited: its rows, of who led before. noted: what the log says of it, None: nothing."""
        ways = self._ways
        lane = Lane(
            len(self._lanes),
            topic=ways.topic,
            slot=self._slot.slot,
            epoch=self._epoch,
            connect=ways.connect,
            exists=ways.exists,
            clock=ways.clock,
            settings=ways.settings,
            keep=lambda note: self._keep(used, note),
            note=noted or EMPTY,
        )
        used = _Used(lane, noted)
        lane.on_shaken = lambda: self._take_again(used)
        self._lanes.append(used)
        self._run(used, self._begin(used, inherited))

    def _run(self, used: _Used, work: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            try:
                await work
            except NotLed as error:
                logger.info("a lane of slot %d is used no more: %s", self._slot.slot, error)
                self._lost(used, error)
            except Exception as error:
                logger.exception("a lane of slot %d is used no more", self._slot.slot)
                self._lost(used, error)

        used.task = asyncio.get_running_loop().create_task(whole(), name=f"outputs {used.lane.transactional_id}")

    def _lost(self, used: _Used, error: Exception) -> None:
        """The lane is not ours any more, or nobody knows what became of it."""
        used.troubled = True
        used.lane.waits_for.clear()
        for settle in used.settles:
            settle.fail(Undecided(str(error)))

    async def _begin(self, used: _Used, inherited: Sequence[Row]) -> None:
        """Take a lane for the first time. One that was never used is noted before it is, so that it is found."""
        lane = used.lane
        if used.noted is None:
            await self._note(used)
        await self._take(used, inherited)
        self._mark(inherited)
        if lane.number < self._inherited:
            await lane.hang_up()  # of all slots that are taken over at once few lanes are used soon
        self._free(used)

    async def _note(self, used: _Used) -> None:
        """Have the log say that a lane is used. Raises: NotLed."""
        failures = 0
        while used.noted is None:
            try:
                await self._keep(used, EMPTY)
            except StorageError as error:
                logger.info("slot %d gets no further lane yet: %s", self._slot.slot, error)
                failures += 1
                pause_s = backoff_s(failures, self._settings.retry_backoff, self._settings.retry_backoff_max)
                await self._clock.sleep(pause_s)

    async def _keep(self, used: _Used, note: LaneNote) -> None:
        """Have the log say this of a lane. Raises: StorageError, NotLed."""
        used.noted = None
        await self._slot.write([lane_entry(self._slot.slot, used.lane.number, note)])
        used.noted = note

    def _mark(self, inherited: Sequence[Row]) -> None:
        """Note what a ledger says of rows that others left: groups' offsets do not outlast everything."""
        try:
            there = [kept for row in inherited for kept in self._rows(row.key)]
            found = [kept for kept in there if not kept.decided and self._fate(kept) is Fate.COMMITTED]
            if found:
                self._slot.write([(kept.row.key, encode_row(kept.prepared, decided=True)) for kept in found])
        except LogError as error:
            logger.warning("what is decided of slot %d is not noted: %s", self._slot.slot, error)

    async def _take(self, used: _Used, rows: Sequence[Row] = ()) -> Fate | None:
        """Take a lane over, however long it takes; what became of what was under way in it. Raises: NotLed.

        rows: those that others left in it.
        """
        lane, failures, told_s = used.lane, 0, 0.0
        lane.begin_anew()
        while True:
            try:
                ledger = await lane.take_over()
                break
            except (OSError, ClientError, StorageError) as error:
                failures += 1
                used.troubled, self._problem = True, str(error) or "its coordinator does not answer"
                self._pump()
                now_s = self._clock.monotonic()
                if failures == 1 or now_s - told_s >= TELL_S:
                    told_s = now_s
                    self._tell_trouble(lane, error)
            pause_s = backoff_s(failures, self._settings.retry_backoff, self._settings.retry_backoff_max)
            await self._clock.sleep(pause_s)
        used.troubled = False
        lane.waits_for.clear()
        book, found = lane.book, None
        if book.under_way is not None:
            found = fate(book.under_way.number, ledger)
            if found is Fate.TAKEN:
                raise NotLed(f"{lane.ledger} was moved by another leader of slot {self._slot.slot}")
            (book.committed if found is Fate.COMMITTED else book.undone)()
        book.taken_over(rows, ledger)
        return found

    def _take_again(self, used: _Used) -> None:
        """Take a lane over whose last transaction a broker may have ended by halves, unless it is in use."""

        async def taken() -> None:
            await self._take(used)
            await used.lane.hang_up()  # nothing is in doubt: a connection that is closed for being idle says nothing
            self._free(used)

        if used.state is _State.READY and not self._closed:
            used.state = _State.TAKING
            self._run(used, taken())

    def _tell_trouble(self, lane: Lane, error: Exception) -> None:
        places = ", ".join(f"{topic}-{partition}" for topic, partition in lane.note.places) or "none that is known of"
        if lane.waits_for:
            topic, _ = min(lane.waits_for)
            look = f"leaders and replicas of these partitions: kafka-topics.sh --describe --topic {topic}"
        else:
            look = f"the coordinator: kafka-transactions.sh describe --transactional-id {lane.transactional_id}"
        logger.warning(
            "transactional id %s is taken over later: %s; until then readers of committed records may wait where its "
            "last outputs went (%s). If that lasts, look at %s",
            lane.transactional_id,
            error,
            places,
            look,
        )

    def _free(self, used: _Used) -> None:
        """A lane has nothing under way."""
        used.state = _State.READY
        self._tell()
        if used.lane.shaken:
            self._take_again(used)
        self._pump()

    # --- one transaction ----------------------------------------------------------------------------------------

    async def _use(self, used: _Used) -> None:
        """Carry settles through a transaction; those that come again may go to another lane at once."""
        settles, book = used.settles, used.lane.book
        begun = book.begin([(settle.share, settle.prepared) for settle in settles])
        try:
            await self._prepare(used, begun)
        except Exception as error:  # noqa: BLE001 - whatever it is, it was not committed
            book.undone()
            used.state = _State.TAKING
            self._counts.aborted += 1
            if isinstance(error, Blamed) and error.rest:
                used.lane.waits_for.update(piece.place for piece in error.errors)
            self._landed(used, self._failed(settles, error))
            await self._take(used)
        else:
            book.prepared()
            self._landed(used, await self._end(used, begun))
        used.ended_s = self._clock.monotonic()
        self._free(used)
        if len(self._lanes) == 1 and self._settings.lanes_max > 1 and not self._closed:
            self._take_lane()  # who settles once does so again

    def _landed(self, used: _Used, again: Sequence[_Settle]) -> None:
        """It is known what became of a lane's settles; `again`: they wait anew."""
        for settle in used.settles:
            self._flying[settle.share] -= 1
        self._flying = +self._flying
        used.settles = []
        self._queue.extendleft(reversed(again))
        self._tell()
        self._pump()

    async def _prepare(self, used: _Used, begun: Begun) -> None:
        """All that has to be confirmed before the transaction may be committed. Raises: whatever speaks against it."""
        pieces = [piece._replace(settle=at) for at, settle in enumerate(used.settles) for piece in settle.pieces]
        lane = used.lane
        known, note = used.noted, lane.will_write(pieces)
        used.noted = None
        noted = [] if note == known else [lane_entry(self._slot.slot, lane.number, note)]
        row = self._slot.write([*noted, *begun.entries])
        await self._clock.wait_for(together(row, lane.send(begun.number, pieces)), self._settings.answer_s)
        used.noted = note

    async def _end(self, used: _Used, begun: Begun) -> list[_Settle]:
        """Commit, and find out whether it is; what comes again."""
        used.state = _State.ENDING
        self._counts.undecided += 1
        try:
            found = await self._commit(used)
        except NotLed as error:
            for settle in used.settles:
                settle.fail(Undecided(str(error)))
            raise
        finally:
            self._counts.undecided -= 1
        if found is not Fate.COMMITTED:
            self._counts.aborted += 1
            return self._again(used.settles, StorageError("the transaction was aborted; try again"))
        self._counts.committed += 1
        for settle, row in zip(used.settles, begun.rows, strict=True):
            if not settle.done.done():
                settle.done.set_result([(row.key, None)])
        return []

    async def _commit(self, used: _Used) -> Fate | None:
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
        return await self._take(used)

    def _failed(self, settles: Sequence[_Settle], error: Exception) -> list[_Settle]:
        """A transaction is not committed: tell those who are to blame; the others, which come again."""
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
            if blamed.rest:
                self._ways.resting.add(piece.place)
        for at, places in by_settle.items():
            settles[at].fail(OutputRefused(places))
        return self._again([one for at, one in enumerate(settles) if at not in by_settle], StorageError(str(blamed)))

    def _again(self, settles: Sequence[_Settle], error: StorageError) -> list[_Settle]:
        """Those that are tried once more; the others are told the error."""
        again: list[_Settle] = []
        for settle in settles:
            settle.tries += 1
            if self._closed:
                settle.fail(NotLed(f"slot {self._slot.slot} is being given to another worker"))
            elif settle.tries >= TRIES_MAX or self._clock.monotonic() >= settle.over_s:
                settle.fail(error)
            else:
                again.append(settle)
        return again
