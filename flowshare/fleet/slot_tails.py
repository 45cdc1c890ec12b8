"""`SlotTails`: follows the logs of all slots of a process with one fetch at a time for each broker that leads some.

The fetch waits at the broker until there is something (`WAIT_MS`), so it has a connection of its own. A slot that joins
is followed from the next fetch on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.errors import ClientError, check
from flowshare.fleet.slot_reading import Found, found_in
from flowshare.log.base import LogError
from flowshare.protocol.messages import FetchRequest
from flowshare.protocol.messages.records import FetchedLog, FetchPartition

if TYPE_CHECKING:
    from flowshare.clock import Clock

WAIT_MS: Final = 500
PART_BYTES: Final = 256 << 10
FETCH_BYTES: Final = 1 << 20
PAUSE_S: Final = 0.1
"""While there is nothing to follow for the moment."""
PAUSE_MAX_S: Final = 5.0

logger = logging.getLogger(__name__)


class Follower(NamedTuple):
    """Who follows a slot. position: where to read next, None: not now. found: what was read.

    failed: reading from this position failed.
    """

    position: Callable[[], int | None]
    found: Callable[[Found], None]
    failed: Callable[[int, LogError], None]


class SlotTails:
    """One for each process. `kafka`: a connection to the cluster that nobody else waits on."""

    def __init__(self, kafka: Any, *, topic: str, clock: Clock) -> None:
        self._kafka = kafka
        self._topic = topic
        self._clock = clock
        self._followers: dict[int, Follower] = {}
        self._some = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def follow(self, slot: int, follower: Follower) -> None:
        """From now on; one for each slot."""
        self._followers[slot] = follower
        self._some.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"tails of {self._topic}")

    def unfollow(self, slot: int) -> None:
        """Tell nothing of this slot any more."""
        self._followers.pop(slot, None)

    async def close(self) -> None:
        """Stop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while True:
            if not self._followers:
                self._some.clear()
                await self._some.wait()
            asked = dict(self._followers)
            positions = {slot: one.position() for slot, one in asked.items()}
            parts = tuple(
                FetchPartition(self._topic, slot, position, PART_BYTES)
                for slot, position in positions.items()
                if position is not None
            )
            if not parts:
                await self._clock.sleep(PAUSE_S)
                continue
            try:
                passed = await self._follow(asked, parts)
            except (OSError, ClientError) as error:
                logger.warning("the slots of %s cannot be followed now: %s", self._topic, error)
                passed = False
            except Exception:
                logger.exception("following the slots of %s failed unexpectedly", self._topic)
                passed = False
            failures = 0 if passed else failures + 1
            if failures:
                await self._clock.sleep(min(PAUSE_S * 2.0 ** min(failures, 30), PAUSE_MAX_S))

    async def _follow(self, asked: Mapping[int, Follower], parts: tuple[FetchPartition, ...]) -> bool:
        """One fetch for all; whether it went well. Raises: OSError, ClientError."""
        answer = await self._kafka.send(FetchRequest(partitions=parts, max_wait_ms=WAIT_MS, max_bytes=FETCH_BYTES))
        check(answer.error, answer.message, f"following {self._topic}")
        passed = True
        for part, log in zip(parts, answer.partitions, strict=True):
            passed &= self._deliver(asked[part.partition], part, log)
        return passed

    def _deliver(self, follower: Follower, part: FetchPartition, log: FetchedLog) -> bool:
        """Whether it went well."""
        if self._followers.get(part.partition) is not follower:
            return True
        try:
            found = found_in(log, part.offset)
        except ClientError as error:
            logger.warning("slot %d of %s cannot be followed now: %s", part.partition, self._topic, error)
            return False
        except LogError as error:
            follower.failed(part.offset, error)
            return False
        follower.found(found)
        return True
