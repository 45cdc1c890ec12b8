"""`Lanes`: those of one slot's leader: taken over from who led before, kept, and taken over again.

    lane     event                                       next      effect
    TAKING   it was taken over, its ledger read          READY     what was under way in it is known
    READY    settles wait                                SENDING   their rows are written, their outputs sent
    READY    a broker is lost                            TAKING    its last transaction may have ended by halves
    SENDING  all of that is confirmed                    ENDING    its transaction is asked to be committed
    SENDING  anything else                               TAKING    aborted by that: who is not to blame comes again
    ENDING   it is committed                             READY     its settles are decided
    ENDING   no answer, or another one                   TAKING    the ledger says what became of it
    any      the slot is given away or lost              –         ENDING: who leads next finds out

Who uses a lane that is READY carries it through SENDING and ENDING (`outputs`); how it is READY again is here. A lane
that cannot be taken over is tried for ever, and others are taken in its place, up to a limit. `slots.prepared` says
what the rows of a lane mean, `lane` how one is taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
from flowshare.clock import backoff_s
from flowshare.fleet.state.lane import EMPTY, Lane, OutputSettings
from flowshare.log.base import LogError, NotLed, StorageDamaged, StorageError
from flowshare.slots.errors import SlotError
from flowshare.slots.prepared import (
    LEDGER,
    Fate,
    Kept,
    LaneNote,
    Place,
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

TELL_S: Final = 30.0
"""How often it is told again that a lane cannot be taken over."""

Exists = Callable[["Output", bool], Awaitable[LogError | None]]
logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class LaneWays:
    """What lanes of all slots of a process have in common. connect: opens a connection to the cluster.

    exists: None, or why what an output was made for is not there (any more); True: the brokers are asked anew.
    """

    topic: str
    connect: Callable[[str], ClusterConnection]
    exists: Exists
    clock: Clock
    settings: OutputSettings = field(default_factory=OutputSettings)


class LaneState(Enum):
    """As in the table above."""

    TAKING = "taking"
    READY = "ready"
    SENDING = "sending"
    ENDING = "ending"


class UsedLane:
    """A lane, and how far it is."""

    def __init__(self, lane: Lane, noted: LaneNote | None) -> None:
        self.lane = lane
        self.noted = noted
        """What the log says of it; None: nothing, or nobody knows."""
        self.state = LaneState.TAKING
        self.ended_s = float("-inf")
        """When its last transaction ended. For milliseconds after that a coordinator takes no other one."""
        self.troubled = False
        """Whether it may take long until it is taken over."""
        self.task: asyncio.Task[None] | None = None


class Lanes:
    """Those of one ownership of one slot. All methods are called on one event loop."""

    def __init__(
        self, slot: Slot, ways: LaneWays, *, on_ready: Callable[[], None], on_trouble: Callable[[], None]
    ) -> None:
        """on_ready: called when a lane may be used, and what was under way in it is known. on_trouble: when one cannot
        be taken over now, so that there may be another one."""
        self._slot = slot
        self._epoch = slot.epoch
        self._ways = ways
        self._clock = ways.clock
        self._settings = ways.settings
        self._on_ready = on_ready
        self._on_trouble = on_trouble
        self._inherited = 0
        """How many lanes others used before."""
        self.used: list[UsedLane] = []
        self.closed = False
        """Whether the slot is being given away: no lane is taken over again."""
        self.problem = ""
        """Why a lane could not be taken over the last time."""

    # --- life ---------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """The slot was claimed: shut out who led before, in all lanes that were ever used."""
        entries = self._slot.scan(b"")
        rows = places_in(entries)
        noted = self._noted_in(entries)
        self._inherited = max([-1, *noted, *(row.lane for row in rows)]) + 1
        for lane in range(self._inherited):
            self.add([row for row in rows if row.lane == lane], noted.get(lane))

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

    async def end_tasks(self) -> None:
        """End what is under way in lanes, whatever became of it."""
        await cancelled(*(used.task for used in self.used))

    async def close(self) -> None:
        """End their connections."""
        await asyncio.gather(*(used.lane.close() for used in self.used), return_exceptions=True)

    # --- what is asked ------------------------------------------------------------------------------------------

    def ready(self) -> UsedLane | None:
        """The one that is to be used next."""
        ready = [one for one in self.used if one.state is LaneState.READY]
        return min(ready, key=lambda one: one.ended_s, default=None)

    def grow(self) -> None:
        """One lane more, unless one is about to be READY or there are as many as there may be."""
        soon = any(one.state is LaneState.TAKING and not one.troubled for one in self.used)
        if not soon and self._may_have_more():
            self.add()

    def _may_have_more(self) -> bool:
        stuck = sum(one.troubled for one in self.used)
        return len(self.used) - min(stuck, self._settings.stuck_max) < self._settings.lanes_max

    def waited_for(self) -> set[Place]:
        """Partitions that keep lanes from being used."""
        return {place for one in self.used for place in one.lane.waits_for}

    def rows(self, prefix: bytes) -> list[Kept]:
        """Rows in the slot's log. Raises: StorageDamaged."""
        try:
            return rows_in(self._slot.scan(prefix))
        except SlotError as error:
            raise StorageDamaged(f"slot {self._slot.slot} has a settle that cannot be used: {error}") from error

    def fate_of(self, kept: Kept) -> Fate:
        """What became of a row's settle, as far as that is known."""
        if kept.decided:
            return Fate.COMMITTED
        lane = kept.row.lane
        return self.used[lane].lane.book.fate_of(kept) if lane < len(self.used) else Fate.UNDECIDED

    # --- taking them over ---------------------------------------------------------------------------------------

    def add(self, inherited: Sequence[Row] = (), noted: LaneNote | None = None) -> None:
        """One lane more. inherited: its rows, of who led before. noted: what the log says of it, None: nothing."""
        ways = self._ways
        lane = Lane(
            len(self.used),
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
        used = UsedLane(lane, noted)
        lane.on_shaken = lambda: self._take_again(used)
        self.used.append(used)
        self.run(used, self._begin(used, inherited))

    def run(self, used: UsedLane, work: Coroutine[Any, Any, None]) -> None:
        """Have `work` done in a lane. If it raises, the lane is used no more: it is not ours any more, or nobody knows
        what became of it."""

        async def whole() -> None:
            try:
                await work
            except NotLed as error:
                logger.info("a lane of slot %d is used no more: %s", self._slot.slot, error)
            except Exception:
                logger.exception("a lane of slot %d is used no more", self._slot.slot)
            else:
                return
            used.troubled = True
            used.lane.waits_for.clear()

        used.task = asyncio.get_running_loop().create_task(whole(), name=f"outputs {used.lane.transactional_id}")

    async def _begin(self, used: UsedLane, inherited: Sequence[Row]) -> None:
        """Take a lane for the first time. One that was never used is noted before it is, so that it is found."""
        lane = used.lane
        if used.noted is None:
            await self._note(used)
        await self.take(used, inherited)
        self._mark(inherited)
        if lane.number < self._inherited:
            await lane.hang_up()  # of all slots that are taken over at once few lanes are used soon
        self.free(used)

    async def _note(self, used: UsedLane) -> None:
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

    async def _keep(self, used: UsedLane, note: LaneNote) -> None:
        """Have the log say this of a lane. Raises: StorageError, NotLed."""
        used.noted = None
        await self._slot.write([lane_entry(self._slot.slot, used.lane.number, note)])
        used.noted = note

    def _mark(self, inherited: Sequence[Row]) -> None:
        """Note what a ledger says of rows that others left: groups' offsets do not outlast everything."""
        try:
            there = [kept for row in inherited for kept in self.rows(row.key)]
            found = [kept for kept in there if not kept.decided and self.fate_of(kept) is Fate.COMMITTED]
            if found:
                self._slot.write([(kept.row.key, encode_row(kept.prepared, decided=True)) for kept in found])
        except LogError as error:
            logger.warning("what is decided of slot %d is not noted: %s", self._slot.slot, error)

    async def take(self, used: UsedLane, rows: Sequence[Row] = ()) -> Fate | None:
        """Take a lane over, however long it takes; what became of what was under way in it. Raises: NotLed.

        rows: those that others left in it.
        """
        lane, failures, told_s = used.lane, 0, 0.0
        lane.begin_anew()
        while True:
            try:
                ledger = await lane.take_over(in_doubt=bool(rows) or lane.book.under_way is not None)
                break
            except (OSError, ClientError, StorageError) as error:
                failures += 1
                used.troubled, self.problem = True, str(error) or "its coordinator does not answer"
                self._on_trouble()
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

    def _take_again(self, used: UsedLane) -> None:
        """Take a lane over whose last transaction a broker may have ended by halves, unless it is in use."""

        async def taken() -> None:
            await self.take(used)
            await used.lane.hang_up()  # nothing is in doubt: a connection that is closed for being idle says nothing
            self.free(used)

        if used.state is LaneState.READY and not self.closed:
            used.state = LaneState.TAKING
            self.run(used, taken())

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

    def free(self, used: UsedLane) -> None:
        """A lane has nothing under way."""
        used.state = LaneState.READY
        if used.lane.shaken:
            self._take_again(used)
        self._on_ready()
