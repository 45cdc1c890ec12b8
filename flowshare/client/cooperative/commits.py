"""`Commits`: what a member of a cooperative group tells the server by commits, one request of a kind at a time.

Two things go that way: what is finished, with the voids beside it, and what is to be begun not for the first time
(`starts`). What is answered goes back to the scans; what is not is told again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from flowshare.client.cooperative.partitions import AnyBatch, Partition, Partitions
from flowshare.client.cooperative.scan import COMMIT_MAX
from flowshare.client.cooperative.settles import entry_of, progress_of, start_entry_of
from flowshare.client.errors import ClientError, check
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import CooperativeCommitRequest, PartitionCommit

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from flowshare.client.cooperative.starts import Telling
    from flowshare.client.net.link import Link
    from flowshare.clock import Clock

TOLD_MAX: Final = 4
"""Partitions of which starts are told in one request, of each STARTS_AT_ONCE at most (`starts`)."""
COMMIT_RANGES_MAX: Final = 10_000
"""Ranges of offsets that a server takes in one commit."""


class Commits:
    """Those of one member. They end with its loops' tasks."""

    def __init__(self, link: Link, partitions: Partitions, group_id: str, member_id: str, *, clock: Clock) -> None:
        self._link = link
        self._partitions = partitions
        self._group_id = group_id
        self._member_id = member_id
        self._clock = clock
        self.order = asyncio.Lock()
        """Of what commits and what gives something back, which takes it, too: the server must not see something given
        back before the commits of it."""

    # --- what is finished ---------------------------------------------------------------------------------------

    async def commit_loop(self) -> None:
        """Commit whatever is finished."""
        failures = 0
        while True:
            await self._partitions.to_commit.wait()
            self._partitions.to_commit.clear()
            async with self.order:
                batches = self._batches()
                if not batches:
                    continue
                good = await self._commit(batches)
            failures = 0 if good else failures + 1
            if any(one.scan.uncommitted or one.scan.has_voids for one in self._partitions):
                self._partitions.to_commit.set()
            if failures or any(one.scan.releases for one in self._partitions):
                self._partitions.to_hold.set()
            self._partitions.changed()
            if failures:
                await self._clock.sleep(self._link.pause_s(failures))

    def _batches(self) -> list[tuple[Partition, AnyBatch]]:
        """What goes with one commit."""
        left, batches = COMMIT_RANGES_MAX, list[tuple[Partition, AnyBatch]]()
        for partition in list(self._partitions):
            batch = partition.scan.commit(min(COMMIT_MAX, left // 2)) if left > 1 else None
            if batch is not None:
                batches.append((partition, batch))
                left -= len(batch.offsets) + len(batch.voids)
        return batches

    async def _commit(self, batches: Sequence[tuple[Partition, AnyBatch]]) -> bool:
        """One commit; whether all of it was taken."""
        asked = tuple(
            PartitionCommit(*partition.key, batch.reset_epoch, tuple(map(entry_of, batch.parts)))
            for partition, batch in batches
        )
        request = CooperativeCommitRequest(group_id=self._group_id, member_id=self._member_id, partitions=asked)
        try:
            answer = await self._link.send(request)
            check(answer.error, answer.message, f"group {self._group_id}: committing")
        except (OSError, ClientError) as error:
            self._partitions.fails("committing", error)
            for partition, batch in batches:
                partition.scan.failed(batch)
            return False
        told = {(one.topic_id, one.partition): one for one in answer.partitions}
        good = True
        for partition, batch in batches:
            part = told.get(partition.key)
            if part is not None and part.error is ErrorCode.NONE:
                good = partition.scan.committed(batch, progress_of(part), part.fenced) and good
                continue
            partition.scan.failed(batch)
            good = False
            if part is not None:  # not the partition's trouble, which the next hold ends that goes well
                why = f"{part.error.name} {part.message or ''}".strip()
                self._partitions.lacks("committing", f"committing fails: {partition.text}: {why}")
        if good:
            self._partitions.works("committing")
        return good

    # --- starts -------------------------------------------------------------------------------------------------

    async def tell_loop(self) -> None:
        """Tell of starts that are to be known before they are made."""
        failures = 0
        while True:
            await self._partitions.to_tell.wait()
            self._partitions.to_tell.clear()
            tellings = [(one, telling) for one in self._partitions if (telling := one.scan.telling()) is not None]
            if not tellings:
                continue
            failures = 0 if await self.tell(tellings) else failures + 1
            if failures:
                await self._clock.sleep(self._link.pause_s(failures))
            self._partitions.changed()
            if any(one.scan.starts.tells for one in self._partitions):
                self._partitions.to_tell.set()

    async def tell(self, tellings: Sequence[tuple[Partition, Telling]]) -> bool:
        """Tell what is to be begun, a few partitions at a time; whether all of it is durable."""
        good = True
        for first in range(0, len(tellings), TOLD_MAX):
            good = await self._tell_some(tellings[first : first + TOLD_MAX]) and good
        return good

    async def _tell_some(self, tellings: Sequence[tuple[Partition, Telling]]) -> bool:
        asked = tuple(
            PartitionCommit(*partition.key, telling.reset_epoch, tuple(map(start_entry_of, telling.parts)))
            for partition, telling in tellings
        )
        request = CooperativeCommitRequest(group_id=self._group_id, member_id=self._member_id, partitions=asked)
        fenced: dict[tuple[uuid.UUID, int], Sequence[int]] = {}
        try:
            answer = await self._link.send(request)
            check(answer.error, answer.message, f"group {self._group_id}: telling of starts")
        except (OSError, ClientError) as error:
            self._partitions.fails("telling of starts", error)
        else:
            self._partitions.works("telling of starts")
            for part in answer.partitions:
                if part.error is ErrorCode.NONE:
                    fenced[part.topic_id, part.partition] = part.fenced
        finally:
            for partition, telling in tellings:
                partition.scan.told(telling, fenced.get(partition.key, range(len(telling.parts))))
        return len(fenced) == len(tellings) and not any(fenced.values())
