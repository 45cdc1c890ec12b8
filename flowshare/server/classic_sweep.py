"""The sweep: removes committed offsets that expired (offsets.retention.minutes), and the groups that go with them.

It looks every offsets.retention.check.interval.ms, in slices with a pause in between in which others run. Between two
slices anything may happen to a group, so each is decided anew, under the lock of the group's `Entry` once there is
something to remove; what has begun is written to the end, the sweep itself ends at any pause.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowshare.clock import ahead_ms
from flowshare.groups.errors import CoordinatorNotAvailable
from flowshare.groups.expiry import expired, group_expires
from flowshare.log.base import LogError
from flowshare.server.turns import TURN, Turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowshare.groups.offsets import Partition
    from flowshare.server.classic import ClassicGroups, Entry

logger = logging.getLogger(__name__)


class Sweep:
    """Looks through all groups of a server, again and again."""

    def __init__(self, groups: ClassicGroups) -> None:
        self._groups = groups

    async def run(self) -> None:
        """For ever."""
        groups = self._groups
        while True:
            await groups.clock.sleep(groups.config.retention_check_interval_ms / 1000)
            await self.once()

    async def once(self) -> None:
        """Remove what has expired."""
        turns = Turns(self._groups.clock)
        for entry in tuple(self._groups.entries.values()):
            try:
                await self._look_at(entry, turns)
            except (CoordinatorNotAvailable, LogError) as error:
                logger.warning("expired offsets could not be removed, tried again: %s", error)
            except Exception:
                logger.exception("a group's expired offsets were left, going on: group=%s", entry.group.group_id)

    async def _look_at(self, entry: Entry, turns: Turns) -> None:
        groups, gone = self._groups, 0
        await turns.take()
        partitions = tuple(entry.offsets.committed)
        for start in range(0, len(partitions), TURN):
            some = partitions[start : start + TURN]
            await turns.take(len(some))
            if self._expired(entry, some):
                gone += await groups.run(self._remove(entry, some))
        if gone:
            logger.info("committed offsets expired: %d group=%s", gone, entry.group.group_id)
        if group_expires(entry.group, entry.offsets):
            await groups.run(self._remove_group(entry))

    def _expired(self, entry: Entry, some: Collection[Partition]) -> tuple[Partition, ...]:
        groups = self._groups
        retention_ms = groups.config.offsets_retention_ms
        return expired(
            entry.group,
            entry.offsets,
            some,
            now_ms=groups.clock.now_ms(),
            retention_ms=retention_ms,
            ahead_ms=ahead_ms(groups.clock),
        )

    async def _remove(self, entry: Entry, some: Collection[Partition]) -> int:
        async with entry.lock:
            if not self._groups.holds(entry):
                return 0
            gone = self._expired(entry, some)
            await self._groups.write_offsets(entry, entry.offsets.expire(gone))
            return len(gone)

    async def _remove_group(self, entry: Entry) -> None:
        async with entry.lock:
            if self._groups.holds(entry) and group_expires(entry.group, entry.offsets):
                await self._groups.delete_locked(entry)
