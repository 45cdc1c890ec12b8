"""`Slot`: one slot in this process: followed, claimed, led, given away.

Invariant: `scan` shows exactly the counting entries of the slot's log up to the reader's position; a write returns only
when its record counts and this process was the owner at that place of the log.

    state        event                                     next       effect
    NEW          standby                                   STANDBY    the log is read to its end, then followed
    STANDBY      lead                                      CLAIMING
    CLAIMING     the claim counts                          LED
    CLAIMING     it does not, or cannot be written         STANDBY    `lead` tries again a few times, then raises
    LED          another's claim, a refusal, the deadline  STANDBY    waiting writes fail with NotLed; on_lost is told
    LED          hand_over                                 GIVING     no more writes are taken
    GIVING       the hand-over counts, or the slot is lost STANDBY
    any but NEW  the log's content cannot be used          BROKEN     as when it is lost; `lead` refuses with the reason
    any          close                                     CLOSED

While it is led the slot is maintained: a claim is renewed when it is old, or when the slot was idle before a write, and
the log is pruned (`slots.pruning`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from flowshare.fleet.state.reading import Follower, SlotReading, SlotRecords, SlotReplay, SlotSettings
from flowshare.fleet.state.writing import SlotLog, SlotMaintenance
from flowshare.log.base import LogError, NotLed, StorageDamaged, StorageError
from flowshare.slots.confirm import Confirming
from flowshare.slots.records import Claim, Entry
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.state.cache import SlotCache
    from flowshare.fleet.state.reading import SlotTails
    from flowshare.fleet.state.sender import Written

CLAIMS_MAX: Final = 3
"""The most tries to claim; each fails only when another worker's claim came in between."""
QUIET_S: Final = 0.25
"""Time without writes, in s, after which an owner follows its slot: each of its writes would end the fetch for all."""

logger = logging.getLogger(__name__)


class SlotState(Enum):
    """State of the slot in this process."""

    NEW = "new"
    STANDBY = "standby"
    CLAIMING = "claiming"
    LED = "led"
    GIVING = "giving"
    BROKEN = "broken"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """The worker that claims. instance: names this life of this process. host, port: its address for clients."""

    node_id: int
    instance: str
    host: str
    port: int


@dataclass(eq=False)
class Slot:
    """One slot. All methods are called on one event loop.

    kafka: a connection to the cluster. slot: its number. cache: the local copy of the state. lease: True if answers may
    be given now; else they wait. on_lost: called with the reason when the slot is led here no longer, without having
    been given away by this process.
    """

    kafka: Any
    _: KW_ONLY
    topic: str
    slot: int
    clock: Clock
    tails: SlotTails
    cache: SlotCache | None = None
    settings: SlotSettings = field(default_factory=SlotSettings)
    lease: Callable[[], bool] = lambda: True
    on_lost: Callable[[str], object] = lambda reason: None

    def __post_init__(self) -> None:
        self._reading = SlotReading(
            self.kafka, topic=self.topic, slot=self.slot, clock=self.clock, settings=self.settings
        )
        self._replay = SlotReplay(self._reading, cache=self.cache)
        self._log: SlotLog | None = None
        self._owner: SlotOwner | None = None
        self._maintenance: SlotMaintenance | None = None
        self._restarting: asyncio.Task[None] | None = None
        self.state = SlotState.NEW
        self.trouble: str | None = None
        """The reason why the slot is BROKEN."""

    @property
    def claim(self) -> Claim | None:
        """The claim that counts at the reader's position."""
        return self._replay.reader.claim

    @property
    def epoch(self) -> int:
        """The claim's epoch, 0 without one; metadata shows it as the leader epoch."""
        return self._replay.reader.epoch

    @property
    def handed_over_to(self) -> str | None:
        """The instance to which the present owner gave the slot; None: to none."""
        return self._replay.reader.handed_over_to

    # --- following ----------------------------------------------------------------------------------------------

    async def standby(self) -> None:
        """Read the log to its end and follow it from there on. Raises: StorageError, StorageDamaged."""
        assert self.state is SlotState.NEW, f"the slot is {self.state.value} already"
        await self._replay.load()
        if self.state is SlotState.NEW:
            self.state = SlotState.STANDBY
            self.tails.follow(self.slot, Follower(self._position, self._found, self._astray))

    # --- what the tail says -------------------------------------------------------------------------------------

    def _position(self) -> int | None:
        """Return the offset to follow from. An owner that writes, or wrote just now, hears of others by its own writes:
        None."""
        log = self._log
        if self._restarting is not None:
            return None
        if log is not None and (log.busy or self.clock.monotonic() - log.written_s < QUIET_S):
            return None
        return self._replay.reader.position

    def _found(self, found: SlotRecords) -> None:
        try:
            if self._log is not None:
                self._log.read(found)
            else:
                self._replay.feed(found)
        except StorageDamaged as error:
            self._break(error)

    def _astray(self, position: int, error: LogError) -> None:
        """Handle a log that cannot be read at `position`; ignored if the reader has moved on since."""
        if position != self._replay.reader.position or self._restarting is not None:
            return
        if isinstance(error, StorageDamaged):
            self._break(error)
            return
        logger.warning("slot %d is read from its start again: %s", self.slot, error)
        self._lose_log(str(error))
        self._restarting = asyncio.create_task(self._restart())

    async def _restart(self) -> None:
        try:
            await self._replay.load()
        except StorageDamaged as error:
            self._break(error)
        except LogError as error:
            logger.warning("slot %d: %s", self.slot, error)  # the tail finds out again
        finally:
            self._restarting = None

    def _break(self, error: StorageDamaged) -> None:
        self.trouble = str(error)
        logger.error("slot %d of %s cannot be used: %s", self.slot, self.topic, error)
        self.tails.unfollow(self.slot)
        self._lose_log(str(error))
        if self.state is not SlotState.CLOSED:
            self.state = SlotState.BROKEN

    # --- leading ------------------------------------------------------------------------------------------------

    async def lead(self, owner: SlotOwner) -> None:
        """Claim the slot; returns when the claim counts. Raises NotLed (others claim it too), StorageError."""
        if self.state is not SlotState.STANDBY:
            raise StorageError(self.trouble or f"slot {self.slot} is {self.state.value} and cannot be claimed now")
        self.state = SlotState.CLAIMING
        self._owner = owner
        try:
            for _ in range(CLAIMS_MAX):
                if self._restarting is not None:
                    await asyncio.shield(self._restarting)
                await self._replay.catch_up()
                before = self.epoch
                try:
                    await self._claim_once()
                except NotLed as error:
                    if self.epoch == before:
                        raise StorageError(str(error)) from error
                    logger.info("slot %d was claimed by another worker meanwhile: %s", self.slot, error)
                else:
                    break
            else:
                raise NotLed(f"slot {self.slot} is claimed by others again and again; leave it to them for now")
        except BaseException:
            if self.state is SlotState.CLAIMING:
                self.state = SlotState.STANDBY
            raise
        self.state = SlotState.LED
        assert self._log is not None
        self._maintenance = SlotMaintenance(self._log, self._reading, claim=self._new_claim)

    async def _claim_once(self) -> None:
        confirming = Confirming(self._replay.reader)
        log = self._log = SlotLog(self._reading, confirming, lease=self.lease, on_lost=self._lost)
        try:
            async with log.exclusive():
                await log.claim(self._new_claim)
            if self._log is not log:
                raise NotLed(f"slot {self.slot} was lost as soon as it was claimed: {log.confirming.lost}")
        except BaseException:
            self._log = None
            await log.close("the claim was given up")
            raise

    def _new_claim(self, epoch: int) -> Claim:
        owner = self._owner
        assert owner is not None
        now_ms = self.clock.now_ms()
        return Claim(
            epoch=epoch, node_id=owner.node_id, owner=owner.instance, host=owner.host, port=owner.port, time_ms=now_ms
        )

    def write(self, entries: Iterable[Entry]) -> Written:
        """Put (None: delete) all or none, in order of calls; the future ends when the write is confirmed.

        Raises: NotLed (if in the future: it may have been written all the same), StorageError (nothing was written).
        """
        log = self._log
        if log is None or self.state is not SlotState.LED:
            raise NotLed(f"slot {self.slot} is not led here")
        if self.clock.monotonic() - log.written_s > self.settings.idle_s and self._maintenance is not None:
            self._maintenance.begin()
        return log.write(entries)

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all entries under a prefix, in key order, confirmed writes included."""
        return self._replay.reader.table.scan(prefix)

    def recheck(self) -> None:
        """Give answers that wait for the lease, if the lease is back."""
        if self._log is not None:
            self._log.recheck()

    async def hand_over(self, to: str) -> None:
        """Take no more writes, confirm the earlier ones, and write to the log which worker is next. Raises NotLed."""
        log = self._log
        if log is None or self.state is not SlotState.LED:
            raise NotLed(f"slot {self.slot} is not led here")
        self.state = SlotState.GIVING
        try:
            await log.hand_over(to)
        finally:
            if self.state is SlotState.GIVING:
                self.state = SlotState.STANDBY
            self._log = None
            await log.close(f"it was given to {to}")

    async def close(self) -> None:
        """Let the slot go at once: waiting writes fail with NotLed. Nothing is written to the log (`hand_over` does
        that)."""
        self.state = SlotState.CLOSED
        self.tails.unfollow(self.slot)
        log, self._log = self._log, None
        if log is not None:
            await log.close("it was closed")
        if self._maintenance is not None:
            await self._maintenance.close()
        await cancelled(self._restarting)
        if self.cache is not None:
            await self.cache.detach(self.slot)

    def _lose_log(self, reason: str) -> None:
        if self._log is not None:
            self._log.give_up(reason)

    def _lost(self, reason: str) -> None:
        """Note that this process owns the slot no more, by the log."""
        led = self.state is SlotState.LED
        self._log = None
        if led:
            self.state = SlotState.STANDBY
            logger.warning("slot %d of %s is not led here any longer: %s", self.slot, self.topic, reason)
            self.on_lost(reason)
