"""`Lanes`: the lanes of one slot's leader: taken over from the former leader, kept, and taken over again.

    lane     event                                       next      effect
    TAKING   it was taken over, its ledger read          READY     the outcome of its open transaction is known
    READY    settles wait                                SENDING   their rows are written, their outputs sent
    READY    a broker is lost                            TAKING    its last transaction may have ended by halves
    SENDING  all of that is confirmed                    ENDING    its transaction is asked to be committed
    SENDING  anything else                               TAKING    aborted by that: blameless settles come again
    ENDING   it is committed                             READY     its settles are decided
    ENDING   no answer, or another one                   TAKING    the ledger tells the outcome
    any      the slot is given away or lost              –         ENDING: the next leader finds out

The user of a READY lane carries it through SENDING and ENDING (`outputs`); this module makes it READY again. A lane
that cannot be taken over is tried for ever, and others are taken in its place, up to a limit. `slots.prepared` defines
the rows of a lane, `lane` how one is taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from flowshare.client.errors import ClientError
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
"""Time, in s, between two warnings that a lane cannot be taken over."""

Exists = Callable[["Output", bool], Awaitable[LogError | None]]
logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class LaneWays:
    """Common parts of the lanes of all slots of a process. connect: opens a connection to the cluster.

    exists: returns None if an output's topic exists, else the error; True: the brokers are asked anew.
    """

    topic: str
    connect: Callable[[str], ClusterConnection]
    exists: Exists
    clock: Clock
    settings: OutputSettings = field(default_factory=OutputSettings)


class LaneState(Enum):
    """The states in the table above."""

    TAKING = "taking"
    READY = "ready"
    SENDING = "sending"
    ENDING = "ending"


class UsedLane:
    """A lane with its state."""

    def __init__(self, lane: Lane, noted: LaneNote | None) -> None:
        self.lane = lane
        self.noted = noted
        """The log's note on the lane; None: no note, or not known."""
        self.state = LaneState.TAKING
        self.ended_s = float("-inf")
        """The time at which its last transaction ended. For milliseconds after that a coordinator accepts no other
        one."""
        self.troubled = False
        """True if taking the lane over may take long."""
        self.task: asyncio.Task[None] | None = None


class Lanes:
    """The lanes of one ownership of one slot. All methods are called on one event loop."""

    def __init__(
        self, slot: Slot, ways: LaneWays, *, on_ready: Callable[[], None], on_trouble: Callable[[], None]
    ) -> None:
        """on_ready: called when a lane may be used, and the outcome of its open transaction is known. on_trouble:
        called when a lane cannot be taken over now, so that another one may be added."""
        self._slot = slot
        self._epoch = slot.epoch
        self._ways = ways
        self._clock = ways.clock
        self._settings = ways.settings
        self._on_ready = on_ready
        self._on_trouble = on_trouble
        self._inherited = 0
        """The number of lanes that former leaders used."""
        self.used: list[UsedLane] = []
        self.closed = False
        """True if the slot is being given away: no lane is taken over again."""
        self.problem = ""
        """The reason why a lane could not be taken over the last time."""

    # --- life ---------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Shut the former leaders out of all lanes that were ever used, after the slot was claimed."""
        entries = self._slot.scan(b"")
        rows = places_in(entries)
        noted = self._noted_in(entries)
        self._inherited = max([-1, *noted, *(row.lane for row in rows)]) + 1
        for lane in range(self._inherited):
            self.add([row for row in rows if row.lane == lane], noted.get(lane))

    def _noted_in(self, entries: Sequence[tuple[bytes, bytes]]) -> Mapping[int, LaneNote]:
        """Return the log's notes on lanes. If one cannot be read, return notes on all possible lanes."""
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
        """Cancel all tasks in lanes, whatever their outcome."""
        await cancelled(*(used.task for used in self.used))

    async def close(self) -> None:
        """Close the lanes' connections."""
        await asyncio.gather(*(used.lane.close() for used in self.used), return_exceptions=True)

    # --- what is asked ------------------------------------------------------------------------------------------

    def ready(self) -> UsedLane | None:
        """Return the READY lane that ended longest ago; None: none."""
        ready = [one for one in self.used if one.state is LaneState.READY]
        return min(ready, key=lambda one: one.ended_s, default=None)

    def grow(self) -> None:
        """Add a lane, unless one is about to be READY or the limit is reached."""
        soon = any(one.state is LaneState.TAKING and not one.troubled for one in self.used)
        if not soon and self._may_have_more():
            self.add()

    def _may_have_more(self) -> bool:
        stuck = sum(one.troubled for one in self.used)
        return len(self.used) - min(stuck, self._settings.stuck_max) < self._settings.lanes_max

    def waited_for(self) -> set[Place]:
        """Return the partitions that keep lanes from being used."""
        return {place for one in self.used for place in one.lane.waits_for}

    def rows(self, prefix: bytes) -> list[Kept]:
        """Return the rows in the slot's log. Raises StorageDamaged."""
        try:
            return rows_in(self._slot.scan(prefix))
        except SlotError as error:
            raise StorageDamaged(f"slot {self._slot.slot} has a settle that cannot be used: {error}") from error

    def fate_of(self, kept: Kept) -> Fate:
        """Return the fate of a row's settle, as far as it is known."""
        if kept.decided:
            return Fate.COMMITTED
        lane = kept.row.lane
        return self.used[lane].lane.book.fate_of(kept) if lane < len(self.used) else Fate.UNDECIDED

    # --- taking them over ---------------------------------------------------------------------------------------

    def add(self, inherited: Sequence[Row] = (), noted: LaneNote | None = None) -> None:
        """Add one lane. inherited: rows of former leaders in it. noted: the log's note on it; None: no note."""
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
        """Run `work` in a lane. If it raises, the lane is used no more: another leader owns it, or its outcome is not
        known."""

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
        """Take a lane for the first time. A lane never used before is noted first, so that a successor finds it."""
        lane = used.lane
        if used.noted is None:
            await self._note(used)
        await self.take(used, inherited)
        self._mark(inherited)
        if lane.number < self._inherited:
            await lane.hang_up()  # many slots are taken over at once, and few of their lanes are used soon
        self.free(used)

    async def _note(self, used: UsedLane) -> None:
        """Write to the log that a lane is used. Raises NotLed."""
        failures = 0
        while used.noted is None:
            try:
                await self._keep(used, EMPTY)
            except StorageError as error:
                logger.info("slot %d gets no further lane yet: %s", self._slot.slot, error)
                failures += 1
                await self._clock.sleep(self._settings.backoff.after(failures))

    async def _keep(self, used: UsedLane, note: LaneNote) -> None:
        """Write a lane's note to the log. Raises StorageError, NotLed."""
        used.noted = None
        await self._slot.write([lane_entry(self._slot.slot, used.lane.number, note)])
        used.noted = note

    def _mark(self, inherited: Sequence[Row]) -> None:
        """Write the ledger's decisions on inherited rows to the log, because groups' offsets do not last for ever."""
        try:
            there = [kept for row in inherited for kept in self.rows(row.key)]
            found = [kept for kept in there if not kept.decided and self.fate_of(kept) is Fate.COMMITTED]
            if found:
                self._slot.write([(kept.row.key, encode_row(kept.prepared, decided=True)) for kept in found])
        except LogError as error:
            logger.warning("what is decided of slot %d is not noted: %s", self._slot.slot, error)

    async def take(self, used: UsedLane, rows: Sequence[Row] = ()) -> Fate | None:
        """Take a lane over, however long it takes; return the outcome of its open transaction. Raises NotLed.

        rows: rows that others left in it.
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
            await self._clock.sleep(self._settings.backoff.after(failures))
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
        """Take over a lane whose last transaction a broker may have ended by halves, unless the lane is in use."""

        async def taken() -> None:
            await self.take(used)
            await used.lane.hang_up()  # nothing is in doubt: losing an idle connection means nothing
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
        """Make a lane READY; it has no open transaction."""
        used.state = LaneState.READY
        if used.lane.shaken:
            self._take_again(used)
        self._on_ready()
