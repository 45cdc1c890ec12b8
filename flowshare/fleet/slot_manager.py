"""`SlotManager`: the slots of one worker, from being chosen for one to giving it away.

    (nothing)  ─chosen→ FOLLOWING ─asked the holder, claimed→ LED ─taken up→ SERVED
    FOLLOWING  ─no more chosen, or in doubt→ (nothing)
    LED        ─no more chosen, or in doubt→ laid down → (nothing), FOLLOWING if chosen
    LED        ─asked by the next owner→ laid down, handed over → (nothing)
    LED        ─a higher claim, or a write of unknown outcome→ laid down → (nothing), FOLLOWING if chosen
    SERVED     as LED, but for being no more chosen and in doubt: it is served on

Invariant: groups and share-partitions of a slot are served only between its claim and the first sign of another; the
slot's log decides on that sign, not the slot group. A slot that others are chosen for is served on until they ask for
it, because no other worker can serve it before. A slot is laid down whole, and nothing of the slot is begun again
before. A worker whose session in the slot group is in doubt claims nothing: others may have been chosen since, and each
would take the slot from the other again and again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from flowshare.backoff import USUAL
from flowshare.client.errors import ClientError
from flowshare.fleet.directory import Claimed, WorkerAddress
from flowshare.fleet.messages import HandOver, SlotClaimed
from flowshare.fleet.state.slot import SlotOwner
from flowshare.log.base import LogError, NotLed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from flowshare.clock import Clock
    from flowshare.fleet.directory import Directory
    from flowshare.fleet.peers import Peers
    from flowshare.fleet.state.slot import Slot

HAND_OVER_S: Final = 3.0
"""Time, in s, that the present holder of a slot has to release it."""
LEFT_S: Final = 1.0
"""The same time for a holder that left the slot group, or was given up there."""
SILENT_S: Final = 1.0
"""Time, in s, for which slots with the same fate are gathered into one log line."""
SILENT_NAMED: Final = 20

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class SlotManager:
    """All slots of this worker.

    make_slot: (number, callback for its loss) -> a new slot without content. take_up: serves the stored content of a
    slot. lay_down: serves it no more; queued writes are written, if possible. sure: True if the session in the slot
    group is not in doubt. instance: names this life of this process. led: the slots claimed here.
    """

    directory: Directory
    peers: Peers
    make_slot: Callable[[int, Callable[[], object]], Slot]
    take_up: Callable[[int, Sequence[tuple[bytes, bytes]]], Awaitable[None]]
    lay_down: Callable[[int], Awaitable[None]]
    sure: Callable[[], bool]
    instance: str
    clock: Clock
    led: dict[int, Slot] = field(default_factory=dict[int, "Slot"])

    def __post_init__(self) -> None:
        self._following: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[int] = set()
        """Followed slots that are not to be claimed any more."""
        self._ending: dict[int, asyncio.Task[None]] = {}
        self._served: set[int] = set()
        self._untold: dict[object, list[int]] = {}
        """Slots of the last moment by their fate, a silent holder or a kind of trouble: told in one log line."""
        self._emptied = asyncio.Event()
        self._closing = False
        self.claimed = 0
        """The number of claims that counted, since the start."""
        self.lost = 0
        """The number of slots that ended without being given away."""
        self.directory.on_change(self.choose)

    # --- what is served -----------------------------------------------------------------------------------------

    def serves(self, slot: int) -> bool:
        """True if this worker may answer requests for the content of a slot."""
        return slot in self._served and self.sure()

    @property
    def served(self) -> frozenset[int]:
        """Slots that are led and taken up."""
        return frozenset(self._served)

    @property
    def settled(self) -> bool:
        """True if this worker serves all slots that it was chosen for."""
        return self.sure() and self._mine() <= self.served

    def claims(self) -> Mapping[int, int]:
        """Return the epochs of the slots claimed here, for the slot group."""
        return {number: slot.epoch for number, slot in self.led.items()}

    def doubted(self, doubt: bool) -> None:
        """Note that the session came into doubt, or is out of it again."""
        if not doubt:
            for slot in self.led.values():
                slot.recheck()
        self.choose()

    # --- being chosen -------------------------------------------------------------------------------------------

    def choose(self) -> None:
        """Follow the slots that the group chose this worker for, leave the others."""
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
        """Return the slots that this worker is chosen for, by the group as it is now."""
        slot_map, place = self.directory.map, self.directory.place
        if slot_map is None or place is None or self._closing or not self.sure():
            return set()
        return set(slot_map.mine(place.node_id))

    def _leave(self, number: int) -> None:
        """Stop following a slot; work begun on it is cancelled."""
        if number in self._following and number not in self._leaving:
            self._leaving.add(number)
            self._following[number].cancel()

    def _followed(self, number: int, task: asyncio.Task[None]) -> None:
        del self._following[number]
        self._leaving.discard(number)
        if not task.cancelled() and task.exception() is not None:
            logger.error("following slot %d failed", number, exc_info=task.exception())
            self.clock.call_later(USUAL.most, self.choose)
        else:
            self.choose()  # the slot may have been lost before it was served, or be ours again

    async def _follow(self, number: int) -> None:
        """Follow a slot until it is claimed, or others are chosen."""
        failures = 0
        while True:
            while number in self._ending:
                await asyncio.wait([self._ending[number]])
            slot, claimed = self.make_slot(number, lambda: self._lost(number)), False
            try:
                claimed = await self._claim(number, slot)
                if claimed:
                    return
            except NotLed as error:
                logger.info("slot %d: %s", number, error)
            except (LogError, OSError, ClientError) as error:
                text = "%s cannot be claimed now, tried again within %g s: %s"
                self._tell_soon(type(error), number, logger.warning, text, USUAL.most, error)
                failures += 1
            except Exception:
                failures += 1
                logger.exception("claiming slot %d failed, tried again in %g s", number, USUAL.after(failures))
            finally:
                if not claimed and number not in self._ending:
                    self._begin_end(number, slot, None)
            await self.clock.sleep(USUAL.after(max(failures, 1)))

    async def _claim(self, number: int, slot: Slot) -> bool:
        place = self.directory.place
        assert place is not None
        await slot.standby()
        claim = slot.claim
        if claim is not None and slot.handed_over_to is None:
            holder = WorkerAddress(claim.node_id, claim.host, claim.port)
            self.directory.claimed(number, Claimed(slot.epoch, holder))
            if holder.node_id != place.node_id and self.sure():
                await self._ask(number, holder, place)
        if not self.sure():  # a process that stood still comes here before it hears of the doubt
            return False
        await slot.lead(SlotOwner(node_id=place.node_id, instance=self.instance, host=place.host, port=place.port))
        self.led[number] = slot
        self.claimed += 1
        self.directory.claimed(number, Claimed(slot.epoch, place))  # messages of the taking up belong to this claim
        await self.take_up(number, slot.scan(b""))
        if number in self._ending:
            return False
        self._served.add(number)
        self.peers.tell_all(SlotClaimed(slot=number, epoch=slot.epoch, node=place))
        return True

    async def _ask(self, number: int, holder: WorkerAddress, place: WorkerAddress) -> None:
        """Ask the holder to release the slot, if it lives."""
        limit_s = HAND_OVER_S if holder.node_id in self.directory.nodes else LEFT_S
        try:
            asked = HandOver(slot=number, to=str(place.node_id))
            await self.peers.call(holder.node_id, asked, limit_s=limit_s)
        except (OSError, ClientError) as error:
            text = "%s are claimed from worker %d without its word: %s"
            self._tell_soon(holder.node_id, number, logger.info, text, holder.node_id, error)

    def _tell_soon(self, key: object, number: int, log: Callable[..., None], text: str, *about: object) -> None:
        """Log all slots with the same fate within a moment in one line; `text` begins with their names."""
        if key not in self._untold:
            self._untold[key] = []
            self.clock.call_later(SILENT_S, lambda: log(text, _named(self._untold.pop(key)), *about))
        self._untold[key].append(number)

    # --- letting go ---------------------------------------------------------------------------------------------

    async def hand_over(self, number: int, to: str) -> None:
        """Give a slot to the next owner; harmless when it is not led here."""
        slot = self.led.get(number)
        if slot is not None:
            await self._end(number, slot, to)
        elif number in self._ending:
            await asyncio.shield(self._ending[number])

    def _lost(self, number: int) -> None:
        """Lay a slot down, because another owner claimed it or a write's outcome is not known. No worker is told from
        here; the next owner tells all (`SlotClaimed`)."""
        slot = self.led.get(number)
        if slot is not None and number not in self._ending:
            self.lost += 1
            self._leave(number)
            self._begin_end(number, slot, None)

    async def _end(self, number: int, slot: Slot, to: str | None) -> None:
        if number not in self._ending:
            self._leave(number)
            self._begin_end(number, slot, to)
        await asyncio.shield(self._ending[number])

    def _begin_end(self, number: int, slot: Slot, to: str | None) -> None:
        """Release a slot, in a task of its own that is never cancelled; nothing of the slot is begun again before its
        end."""
        self._served.discard(number)
        self._ending[number] = asyncio.create_task(self._finish(number, slot, to), name=f"end of slot {number}")

    async def _finish(self, number: int, slot: Slot, to: str | None) -> None:
        try:
            if number in self._leaving:  # the slot is being taken up
                await asyncio.wait([self._following[number]])
            if self.led.get(number) is slot:
                await self.lay_down(number)
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
        """Claim nothing more; wait until others have asked for the slots led here, then release the rest.

        wait_s: the wait in seconds, after this worker left the slot group. Giving the rest away takes `HAND_OVER_S` at
        most.
        """
        self._closing = True
        self.choose()
        if self.led and wait_s > 0:
            self._emptied.clear()
            try:
                await self.clock.wait_for(self._emptied.wait(), wait_s)
            except TimeoutError:
                logger.info("%d slots were not asked for by others", len(self.led))
        giving = asyncio.gather(*(self.hand_over(number, "") for number in tuple(self.led)))
        try:
            await self.clock.wait_for(giving, HAND_OVER_S)
        except TimeoutError:
            logger.warning("%s could not be given away in time", _named([*self.led]))
            closing = [slot.close() for slot in self.led.values()]
            await asyncio.gather(*closing, return_exceptions=True)
        await asyncio.gather(*self._following.values(), *self._ending.values(), return_exceptions=True)


def _named(slots: list[int]) -> str:
    """Return number and names of slots: `2 slots (1, 5)`."""
    shown = sorted(set(slots))
    named = ", ".join(map(str, shown[:SILENT_NAMED])) + (", …" if len(shown) > SILENT_NAMED else "")
    return f"{len(shown)} slot{'' if len(shown) == 1 else 's'} ({named})"
