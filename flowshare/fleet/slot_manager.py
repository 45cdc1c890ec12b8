"""`SlotKeeper`: the slots of one worker, from being chosen for one to giving it away.

    (nothing)  ─chosen→ FOLLOWING ─asked the holder, claimed→ LED ─taken up→ SERVED
    FOLLOWING  ─no more chosen, or in doubt→ (nothing)
    LED        ─no more chosen, or in doubt→ laid down → (nothing), FOLLOWING if chosen
    LED        ─asked by the next owner→ laid down, handed over → (nothing)
    LED        ─a higher claim, or a write of unknown outcome→ laid down → (nothing), FOLLOWING if chosen
    SERVED     as LED, but for being no more chosen and in doubt: it is served on

Invariant: groups and share-partitions of a slot are served only between its claim and the first sign of another; what
that sign is decides the slot's log, not the slot group. A slot that others are chosen for is served on until they ask
for it, because nobody else can before. What is laid down is laid down whole, and nothing of the slot is begun again
before. Nobody claims whose session in the slot group is in doubt: others may have been
chosen since, and each would take the slot from the other again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from flowshare.client.errors import ClientError
from flowshare.fleet.directory import Claimed, Place
from flowshare.fleet.errors import NotLed
from flowshare.fleet.slot import Owner
from flowshare.log.base import LogError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.slots.records import Claim

HAND_OVER_S: Final = 3.0
"""How long the present holder of a slot is given to let go of it."""
LEFT_S: Final = 1.0
"""The same when it left the slot group, or was given up there."""
SILENT_S: Final = 1.0
"""For how long slots of a worker that says nothing are gathered before they are logged."""
SILENT_NAMED: Final = 20
PAUSE_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
HAND_OVER: Final = "fleet_hand_over"
"""{"slot", "to"} -> {}: let go of a slot."""
CLAIMED: Final = "fleet_claimed"
"""{"slot", "epoch", "node": [id, host, port]} -> {}: a slot was claimed."""

logger = logging.getLogger(__name__)


class KeptSlot(Protocol):
    """One slot's log at this worker (`fleet.slot.Slot`)."""

    @property
    def epoch(self) -> int:
        """Of the present claim."""
        ...

    @property
    def claim(self) -> Claim | None:
        """The present claim."""
        ...

    @property
    def handed_over_to(self) -> str | None:
        """Whom its owner gave the slot to; None: it did not."""
        ...

    async def standby(self) -> None:
        """Read the log to its end. Raises: LogError, OSError."""

    async def lead(self, owner: Owner) -> None:
        """Claim. Raises: NotLed (somebody else claims), LogError, OSError."""

    async def write(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Raises: NotLed, StorageError."""

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """All entries under a prefix."""
        ...

    async def hand_over(self, to: str) -> None:
        """Write what is queued, then that the slot is given away. Raises: NotLed, LogError."""

    def recheck(self) -> None:
        """The session is not in doubt any more: answers that waited are given."""

    async def close(self) -> None:
        """Stop."""


class Tenant(Protocol):
    """What lives in the slots: groups and share-partitions."""

    async def take_up(self, slot: int, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Serve what is stored in a slot."""

    async def lay_down(self, slot: int) -> None:
        """Serve it no more; what is queued is written, if it still can be."""


class SlotKeeper:
    """All slots of this worker.

    make_slot: (number, what to call when it is lost) -> a slot that nothing is known of yet. sure: whether the session
    in the slot group is not in doubt. instance: names this life of this process.
    """

    def __init__(
        self,
        *,
        directory: Directory,
        peers: Peers,
        make_slot: Callable[[int, Callable[[], object]], KeptSlot],
        tenant: Tenant,
        sure: Callable[[], bool],
        instance: str,
        clock: Clock,
        led: dict[int, KeptSlot] | None = None,
    ) -> None:
        """led: where the slots claimed here are kept."""
        self._directory = directory
        self._peers = peers
        self._make_slot = make_slot
        self._tenant = tenant
        self._sure = sure
        self._instance = instance
        self._clock = clock
        self._following: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[int] = set()
        """Of those, what is not to be claimed any more."""
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._served: set[int] = set()
        self._silent: dict[int, list[int]] = {}
        self._unclaimed: dict[type[Exception], list[int]] = {}
        """Slots that could not be claimed within the last moment, by the kind of trouble: told in one line."""
        self._emptied = asyncio.Event()
        self._closing = False
        self.claimed = 0
        """Claims that counted, since the start."""
        self.lost = 0
        """Slots that ended without being given away."""
        self.led: dict[int, KeptSlot] = {} if led is None else led
        """Slots claimed here."""
        directory.on_change(self.choose)

    # --- what is served -----------------------------------------------------------------------------------------

    def serves(self, slot: int) -> bool:
        """Whether requests for what lies in a slot may be answered here."""
        return slot in self._served and self._sure()

    @property
    def served(self) -> frozenset[int]:
        """Slots that are led and taken up."""
        return frozenset(self._served)

    @property
    def settled(self) -> bool:
        """Whether it serves all slots that it was chosen for."""
        return self._sure() and self._mine() <= self.served

    def claims(self) -> Mapping[int, int]:
        """Epochs of the slots claimed here, for the slot group."""
        return {number: slot.epoch for number, slot in self.led.items()}

    def doubted(self, doubt: bool) -> None:
        """The session came into doubt, or is out of it again."""
        if not doubt:
            for slot in self.led.values():
                slot.recheck()
        self.choose()

    # --- being chosen -------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """The slot group may have chosen anew: follow what is ours to claim, leave what is not."""
        mine = self._mine()
        for number in self._following.keys() - mine:
            self._leave(number)
        if self._closing:
            return
        for number in sorted(mine - self.led.keys() - self._following.keys() - self._ending.keys()):
            task = asyncio.create_task(self._follow(number), name=f"slot {number}")
            self._following[number] = task
            task.add_done_callback(partial(self._followed, number))

    def _mine(self) -> set[int]:
        """Slots that this worker was chosen for, by the group as it is now."""
        slot_map, place = self._directory.map, self._directory.place
        if slot_map is None or place is None or self._closing or not self._sure():
            return set()
        return set(slot_map.mine(place.node_id))

    def _leave(self, number: int) -> None:
        """Follow it no more; what was begun of it is ended."""
        if number in self._following and number not in self._leaving:
            self._leaving.add(number)
            self._following[number].cancel()

    def _followed(self, number: int, task: asyncio.Task[None]) -> None:
        del self._following[number]
        self._leaving.discard(number)
        if not task.cancelled() and task.exception() is not None:
            logger.error("following slot %d failed", number, exc_info=task.exception())
            self._clock.call_later(PAUSE_MAX_S, self.choose)
        else:
            self.choose()  # it may have been lost before it was served, or be ours again

    async def _follow(self, number: int) -> None:
        """Until it is claimed, or others are chosen."""
        pause_s = PAUSE_S
        while True:
            while number in self._ending:
                await asyncio.wait([self._ending[number]])
            slot, claimed = self._make_slot(number, lambda: self._lost(number)), False
            try:
                claimed = await self._claim(number, slot)
                if claimed:
                    return
            except NotLed as error:
                logger.info("slot %d: %s", number, error)
            except (LogError, OSError, ClientError) as error:
                self._not_claimed(number, error)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            except Exception:
                logger.exception("claiming slot %d failed, tried again in %g s", number, pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            finally:
                if not claimed and number not in self._ending:
                    self._begin_end(number, slot, None)
            await self._clock.sleep(pause_s)

    async def _claim(self, number: int, slot: KeptSlot) -> bool:
        place = self._directory.place
        assert place is not None
        await slot.standby()
        claim = slot.claim
        if claim is not None and slot.handed_over_to is None:
            holder = Place(claim.node_id, claim.host, claim.port)
            self._directory.claimed(number, Claimed(slot.epoch, holder))
            if holder.node_id != place.node_id and self._sure():
                await self._ask(number, holder, place)
        if not self._sure():  # a process that stood still comes here before it hears of it
            return False
        await slot.lead(Owner(node_id=place.node_id, instance=self._instance, host=place.host, port=place.port))
        self.led[number] = slot
        self.claimed += 1
        self._directory.claimed(number, Claimed(slot.epoch, place))  # what taking it up tells is of this claim
        await self._tenant.take_up(number, slot.scan(b""))
        if number in self._ending:
            return False
        self._served.add(number)
        self._peers.tell_all(CLAIMED, slot=number, epoch=slot.epoch, node=list(place))
        return True

    async def _ask(self, number: int, holder: Place, place: Place) -> None:
        """Have the holder let go, if it lives."""
        limit_s = HAND_OVER_S if holder.node_id in self._directory.nodes else LEFT_S
        try:
            await self._peers.call(holder.node_id, HAND_OVER, limit_s=limit_s, slot=number, to=str(place.node_id))
        except (OSError, ClientError) as error:
            self._unasked(holder.node_id, number, error)

    def _unasked(self, node_id: int, number: int, error: Exception) -> None:
        """Tell of slots that are claimed without their holder's word, in one line for each holder."""
        slots = self._silent.get(node_id)
        if slots is None:
            slots = self._silent[node_id] = []
            self._clock.call_later(SILENT_S, lambda: self._tell_unasked(node_id, error))
        slots.append(number)

    def _tell_unasked(self, node_id: int, error: Exception) -> None:
        slots = self._silent.pop(node_id)
        logger.info("%s are claimed from worker %d without its word: %s", _named(slots), node_id, error)

    def _not_claimed(self, number: int, error: Exception) -> None:
        """Tell of slots that cannot be claimed, in one line for each kind of trouble."""
        slots = self._unclaimed.get(type(error))
        if slots is None:
            slots = self._unclaimed[type(error)] = []
            self._clock.call_later(SILENT_S, lambda: self._tell_not_claimed(error))
        slots.append(number)

    def _tell_not_claimed(self, error: Exception) -> None:
        slots = self._unclaimed.pop(type(error))
        logger.warning("%s cannot be claimed now, tried again within %g s: %s", _named(slots), PAUSE_MAX_S, error)

    # --- letting go ---------------------------------------------------------------------------------------------

    async def hand_over(self, number: int, to: str) -> None:
        """Let the next owner have a slot; harmless when it is not led here."""
        slot = self.led.get(number)
        if slot is not None:
            await self._end(number, slot, to)
        elif number in self._ending:
            await asyncio.shield(self._ending[number])

    def _lost(self, number: int) -> None:
        slot = self.led.get(number)
        if slot is not None and number not in self._ending:
            self.lost += 1
            self._leave(number)
            self._begin_end(number, slot, None)

    async def _end(self, number: int, slot: KeptSlot, to: str | None) -> None:
        if number not in self._ending:
            self._leave(number)
            self._begin_end(number, slot, to)
        await asyncio.shield(self._ending[number])

    def _begin_end(self, number: int, slot: KeptSlot, to: str | None) -> None:
        """Let go of a slot, in a task of its own that nobody cuts off; nothing of it is begun again before its end."""
        self._served.discard(number)
        self._ending[number] = asyncio.create_task(self._lay_down(number, slot, to), name=f"end of slot {number}")

    async def _lay_down(self, number: int, slot: KeptSlot, to: str | None) -> None:
        try:
            if number in self._leaving:  # it is being taken up
                await asyncio.wait([self._following[number]])
            if self.led.get(number) is slot:
                await self._tenant.lay_down(number)
                if to is not None:
                    await slot.hand_over(to)
        except (LogError, OSError) as error:
            logger.info("slot %d ends without a hand-over: %s", number, error)
        except Exception:
            logger.exception("slot %d ends without a hand-over", number)
        finally:
            try:
                await slot.close()
            finally:
                self.led.pop(number, None)
                del self._ending[number]
                if not self.led:
                    self._emptied.set()
                self.choose()

    # --- the end ------------------------------------------------------------------------------------------------

    async def close(self, *, wait_s: float = 0.0) -> None:
        """Claim nothing more; wait until others have asked for what is led here, then let go of the rest.

        wait_s: how long, after this worker left the slot group. Giving the rest away takes `HAND_OVER_S` at most.
        """
        self._closing = True
        self.choose()
        if self.led and wait_s > 0:
            self._emptied.clear()
            try:
                await self._clock.wait_for(self._emptied.wait(), wait_s)
            except TimeoutError:
                logger.info("%d slots were not asked for by others", len(self.led))
        giving = asyncio.gather(*(self.hand_over(number, "") for number in tuple(self.led)))
        try:
            await self._clock.wait_for(giving, HAND_OVER_S)
        except TimeoutError:
            logger.warning("%s could not be given away in time", _named([*self.led]))
            closing = [slot.close() for slot in self.led.values()]
            await asyncio.gather(*closing, return_exceptions=True)
        await asyncio.gather(*self._following.values(), *self._ending.values(), return_exceptions=True)


def _named(slots: list[int]) -> str:
    """How many slots, and which: `2 slots (1, 5)`."""
    shown = sorted(set(slots))
    named = ", ".join(map(str, shown[:SILENT_NAMED])) + (", …" if len(shown) > SILENT_NAMED else "")
    return f"{len(shown)} slot{'' if len(shown) == 1 else 's'} ({named})"
