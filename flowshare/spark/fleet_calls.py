"""What the workers of a fleet say over the control channel, and what follows from it.

A worker is dead when its connection ended and it did not call again within AWAY_S, or when it was silent and did not
for STILL_S more: its record locks have lapsed by then. Its members leave their groups then (`leaving.py`), and the
other workers are told to ask their groups at once for the partitions that are free.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from flowshare.spark.control import Listener, Message, Peer
from flowshare.spark.figures import Figures
from flowshare.spark.fleet_slot import Slot
from flowshare.spark.task import Ended, WorkerTask

logger = logging.getLogger("flowshare.spark")

AWAY_S: Final = 0.25
STILL_S: Final = 20.0
ASK_S: Final = 2.0
"""How long workers may take to say what is in flight."""
PROBLEMS_MAX: Final = 10

Rows = list[dict[str, Any]]


class Calls:
    """The driver's side of all connections. On the driver's loop.

    spawn: starts a task that the fleet keeps. leave: takes the members of a worker out of their groups. cancel: has
    Spark end a worker. on_ready: told when a worker has become ready.
    """

    def __init__(
        self,
        slots: Mapping[int, Slot],
        figures: Figures,
        *,
        spawn: Callable[[Callable[[], Awaitable[None]], str], asyncio.Task[None] | None],
        leave: Callable[[str], Awaitable[None]],
        cancel: Callable[[WorkerTask], Awaitable[None]],
        on_ready: Callable[[], None],
    ) -> None:
        self._slots = slots
        self._figures = figures
        self._spawn = spawn
        self._leave = leave
        self._cancel = cancel
        self._on_ready = on_ready
        self._asked: dict[int, asyncio.Future[Rows]] = {}
        self._numbers = itertools.count(1)
        self.drain_order: Message = {"do": "drain"}
        """What a worker is told that is to drain."""
        self.listener = Listener(opened=self._opened, heard=self._heard, closed=self._closed)
        """For the control server."""

    # --- orders -----------------------------------------------------------------------------------------------------

    async def in_flight(self, *, stacks: bool) -> Rows:
        """What all handlers work on, oldest first, each row with its `worker`; without workers that do not answer."""
        asked: dict[int, tuple[int, asyncio.Future[Rows]]] = {}
        for slot in tuple(self._slots.values()):
            if slot.peer is not None:
                number = next(self._numbers)
                future = self._asked[number] = asyncio.get_running_loop().create_future()
                asked[slot.number] = number, future
                slot.send({"do": "in flight", "number": number, "stacks": stacks})
        if asked:
            await asyncio.wait([future for _, future in asked.values()], timeout=ASK_S)
        rows: Rows = []
        for slot_number, (number, future) in asked.items():
            del self._asked[number]
            if future.done():
                rows += [{"worker": slot_number, **row} for row in future.result()]
        return sorted(rows, key=lambda row: -float(row.get("age_s", 0.0)))

    async def give_up(self, slot: Slot) -> None:
        """A worker is dead: its members leave, and others take what is free. Once a run; waits for its end."""
        worker = slot.worker
        if worker is None:
            return
        if slot.giving is None:
            slot.giving = self._spawn(lambda: self._give_up(slot, worker), f"give up worker {slot.number}")
        if slot.giving is not None:
            await asyncio.wait({slot.giving})

    def tell_others(self, gone: Slot) -> None:
        """A worker has left: the others ask their groups for its partitions."""
        for slot in tuple(self._slots.values()):
            if slot is not gone:
                slot.send({"do": "heartbeat"})

    async def _give_up(self, slot: Slot, worker: WorkerTask) -> None:
        self._figures.ended(slot.number)
        await self._leave(worker.member_id)
        self.tell_others(slot)

    async def _away(self, slot: Slot, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        slot.away = None  # what follows is not to be stopped
        if slot.peer is None and slot.bye is None:
            await self.give_up(slot)

    # --- the channel ------------------------------------------------------------------------------------------------

    def _opened(self, peer: Peer) -> bool:
        slot, who = self._slots.get(peer.who.slot), peer.who
        known = slot is not None and slot.worker is not None and slot.worker.run == who.run
        if slot is None or not known or who.attempt < slot.attempt:
            logger.warning("a worker that is not kept any more called, and is told to end: %s", who)
            return False
        before, slot.peer = slot.peer, peer
        if before is not None:
            if before.who != who:
                before.send({"do": "end"})
            before.close()
        slot.stop_waiting()
        slot.giving = None
        if who.attempt != slot.attempt:
            slot.attempt, slot.called, slot.bye = who.attempt, True, None
            logger.info("worker %d is process %d on %s", slot.number, who.pid, who.host)
            if slot.state != "draining":
                slot.become("starting")
        if slot.state == "draining":
            peer.send(self.drain_order)
        return True

    def _closed(self, peer: Peer, silent: bool) -> None:
        slot = self._slots.get(peer.who.slot)
        if slot is None or slot.peer is not peer:
            return
        slot.peer = None
        slot.since_s = time.monotonic()
        if slot.bye is None:
            if silent:
                logger.warning("worker %d does not answer; its process may stand still", slot.number)
            limit_s = STILL_S if silent else AWAY_S
            slot.away = self._spawn(lambda: self._away(slot, limit_s), f"worker {slot.number} is away")

    def _heard(self, peer: Peer, message: Message) -> None:
        slot = self._slots.get(peer.who.slot)
        if slot is None or slot.peer is not peer:
            return
        match message.get("say"):
            case "figures":
                self._figures.take(slot.number, (peer.who.run, peer.who.attempt), message.get("agents"))
                slot.problems = [str(one) for one in message.get("problems") or ()][:PROBLEMS_MAX]
            case "ready":
                slot.fetched, slot.ready_s = True, time.monotonic()
                if slot.state == "starting":
                    slot.become("ready")
                    self._on_ready()
            case "in flight":
                self._answered(message)
            case "bye":
                self._said_bye(slot, message)
            case _:
                pass  # of a later version

    def _answered(self, message: Message) -> None:
        future = self._asked.get(message.get("number") or 0)
        rows = message.get("rows")
        if future is not None and not future.done() and isinstance(rows, list):
            future.set_result([row for row in rows if isinstance(row, dict)])

    def _said_bye(self, slot: Slot, message: Message) -> None:
        code = message.get("code")
        slot.bye = Ended(
            code=code if isinstance(code, int) else None,
            why=str(message.get("why")),
            refused=bool(message.get("refused")),
        )
        worker = slot.worker
        if message.get("stuck") and worker is not None:
            self._spawn(lambda: self._cancel(worker), f"end worker {slot.number}")
