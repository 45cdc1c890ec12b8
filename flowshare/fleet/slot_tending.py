"""`SlotTending`: what an owner does for its slot's log beside writing: new claims in time, and pruning.

A claim and the producer epoch that goes with it are renewed when they are old (`renew_s`) and before the first write
after a long idleness (`idle_s`): brokers forget idle producers and transactional ids. The log is pruned step by step
(`slots.pruning`); writes wait for each step, and run between two of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from flowshare.log.base import LogError, NotLed, StorageError
from flowshare.protocol.messages import DeleteRecordsRequest
from flowshare.slots.pruning import ClaimAgain, Delete, WriteAgain, due, next_step

if TYPE_CHECKING:
    from flowshare.clock import Clock
    from flowshare.fleet.slot_log import SlotLog
    from flowshare.fleet.slot_reading import SlotReading
    from flowshare.fleet.slot_settings import SlotSettings
    from flowshare.slots.records import Claim
    from flowshare.slots.replay import SlotReader

TEND_S: Final = 1.0

logger = logging.getLogger(__name__)


class SlotTending:
    """For one ownership; it ends by itself when that is lost."""

    def __init__(
        self,
        log: SlotLog,
        reader: SlotReader,
        reading: SlotReading,
        *,
        claim: Callable[[int], Claim],
        clock: Clock,
        settings: SlotSettings,
    ) -> None:
        """claim: makes the claim of an epoch."""
        self._log = log
        self._reader = reader
        self._reading = reading
        self._claim = claim
        self._clock = clock
        self._settings = settings
        self._may_prune = True
        self._task: asyncio.Task[None] | None = None
        clock.call_later(TEND_S, self._look)

    def begin(self) -> None:
        """Do what is to be done, before anything that is written from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._tend(), name=f"tending slot {self._reading.slot}")

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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

    async def _tend(self) -> None:
        log = self._log
        try:
            if self._outdated:
                async with log.exclusive():
                    await log.claim(self._claim)
            while self._may_prune and await self._prune():
                pass
        except NotLed as error:
            logger.info("slot %d is not tended any longer: %s", self._reading.slot, error)
        except LogError as error:
            logger.warning("slot %d could not be tended: %s", self._reading.slot, error)
        finally:
            self._task = None

    async def _prune(self) -> bool:
        """One step; whether there was one to do. Raises: NotLed, StorageError."""
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
