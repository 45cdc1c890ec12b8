"""The sweep: removes committed offsets that expired (offsets.retention.minutes), and groups that expired with them.

The sweep looks every offsets.retention.check.interval.ms, in slices with a pause in between in which others run.
Between two slices anything may happen to a group, so each is decided anew, under the lock of the group's `GroupEntry`
once there is something to remove; a begun write is finished, the sweep itself ends at any pause.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flowshare.clock import ahead_ms
from flowshare.core_errors import CoordinatorNotAvailable
from flowshare.groups.expiry import expired, group_expires
from flowshare.log.base import LogError
from flowshare.server.runtime.turns import TURN, Turns

if TYPE_CHECKING:
    from collections.abc import Collection

    from flowshare.groups.offsets import OffsetPartition
    from flowshare.server.groups.coordinator import ConsumerGroups
    from flowshare.server.groups.entry import GroupEntry

logger = logging.getLogger(__name__)


async def run(groups: ConsumerGroups) -> None:
    """Run for ever."""
    while True:
        await groups.clock.sleep(groups.config.retention_check_interval_ms / 1000)
        await once(groups)


async def once(groups: ConsumerGroups) -> None:
    """Remove expired offsets."""
    turns = Turns(groups.clock)
    for entry in tuple(groups.entries.values()):
        try:
            await _look_at(groups, entry, turns)
        except (CoordinatorNotAvailable, LogError) as error:
            logger.warning("expired offsets could not be removed, tried again: %s", error)
        except Exception:
            logger.exception("a group's expired offsets were left, going on: group=%s", entry.group.group_id)


async def _look_at(groups: ConsumerGroups, entry: GroupEntry, turns: Turns) -> None:
    gone = 0
    await turns.take()
    partitions = tuple(entry.offsets.committed)
    for start in range(0, len(partitions), TURN):
        some = partitions[start : start + TURN]
        await turns.take(len(some))
        if _expired(groups, entry, some):
            gone += await groups.run(_remove(groups, entry, some))
    if gone:
        logger.info("committed offsets expired: %d group=%s", gone, entry.group.group_id)
    if group_expires(entry.group, entry.offsets):
        await groups.run(_remove_group(groups, entry))


def _expired(
    groups: ConsumerGroups, entry: GroupEntry, some: Collection[OffsetPartition]
) -> tuple[OffsetPartition, ...]:
    retention_ms, clock = groups.config.offsets_retention_ms, groups.clock
    now_ms, ahead = clock.now_ms(), ahead_ms(clock)
    old = expired(entry.group, entry.offsets, some, now_ms=now_ms, retention_ms=retention_ms, ahead_ms=ahead)
    group_id, committed = entry.group.group_id, entry.offsets.committed
    return tuple(one for one in old if not groups.in_use(group_id, committed[one].topic_id, one.number))


async def _remove(groups: ConsumerGroups, entry: GroupEntry, some: Collection[OffsetPartition]) -> int:
    async with entry.lock:
        if not groups.holds(entry):
            return 0
        gone = _expired(groups, entry, some)
        await groups.write_offsets(entry, entry.offsets.expire(gone))
        groups.offsets_expired += len(gone)
        return len(gone)


async def _remove_group(groups: ConsumerGroups, entry: GroupEntry) -> None:
    async with entry.lock:
        if groups.holds(entry) and group_expires(entry.group, entry.offsets):
            await groups.delete_locked(entry)
