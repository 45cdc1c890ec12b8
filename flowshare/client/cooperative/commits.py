"""`Commits`: what a member of a cooperative group tells the server by commits, one request of a kind at a time.

Two things go that way: what is finished, with the voids beside it, and what is to be begun not for the first time
(`starts`). What is answered goes back to the scans; what is not is told again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from flowshare.client.cooperative.partitions import Partition, Partitions
from flowshare.client.cooperative.scan import COMMIT_MAX, Batch
from flowshare.client.cooperative.settles import entry_of, progress_of, start_entry_of
from flowshare.client.errors import ClientError, check
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import CommittedPartition, CooperativeCommitRequest, PartitionCommit

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

    def _batches(self) -> list[tuple[Partition, Batch]]:
        """Collect the batches of the next commit request."""
        left, batches = COMMIT_RANGES_MAX, list[tuple[Partition, Batch]]()
        for partition in list(self._partitions):
            batch = partition.scan.commit(min(COMMIT_MAX, left // 2)) if left > 1 else None
            if batch is not None:
                batches.append((partition, batch))
                left -= len(batch.offsets) + len(batch.voids)
        return batches

    async def _commit(self, batches: Sequence[tuple[Partition, Batch]]) -> bool:
        """One commit; whether all of it was taken."""
        asked = [
            PartitionCommit(*partition.key, batch.reset_epoch, tuple(map(entry_of, batch.parts)))
            for partition, batch in batches
        ]
        good = True
        for (partition, batch), part in zip(batches, await self._ask("committing", asked), strict=True):
            if part is None:
                partition.scan.failed(batch)
                good = False
            else:
                good = partition.scan.committed(batch, progress_of(part), part.fenced) and good
        return good

    async def _ask(self, what: str, asked: Sequence[PartitionCommit]) -> Sequence[CommittedPartition | None]:
        """Send one request and return the answer for each entry; None: it was refused. A partition may be there twice.

        what: names the request in the member's error messages.
        """
        request = CooperativeCommitRequest(group_id=self._group_id, member_id=self._member_id, partitions=tuple(asked))
        try:
            answer = await self._link.send(request)
            check(answer.error, answer.message, f"group {self._group_id}: {what}")
        except (OSError, ClientError) as error:
            self._partitions.fails(what, error)
            return [None] * len(asked)
        answers: dict[tuple[uuid.UUID, int], deque[CommittedPartition]] = {}
        for part in answer.partitions:
            answers.setdefault((part.topic_id, part.partition), deque()).append(part)
        rows = [answers.get((one.topic_id, one.partition)) for one in asked]
        told = [row.popleft() if row else None for row in rows]
        refused = ((one, part) for one, part in zip(asked, told, strict=True) if part is None or part.error)
        first = next(refused, None)
        if first is None:
            self._partitions.works(what)
        else:  # not the partition's own trouble, which the next hold ends that goes well
            self._partitions.lacks(what, f"{what} fails: {self._why(*first)}")
        return [part if part is not None and part.error is ErrorCode.NONE else None for part in told]

    def _why(self, asked: PartitionCommit, part: CommittedPartition | None) -> str:
        """Why a partition's commit was not taken."""
        at = self._partitions.of(asked.topic_id, asked.partition)
        where = "" if at is None else f"{at.text}: "
        if part is None:
            return f"{where}the server has not answered for it"
        return f"{where}{part.error.name} {part.message or ''}".strip()

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
        asked = [
            PartitionCommit(*partition.key, telling.reset_epoch, tuple(map(start_entry_of, telling.parts)))
            for partition, telling in tellings
        ]
        told: Sequence[CommittedPartition | None] = [None] * len(asked)
        try:
            told = await self._ask("telling of starts", asked)
        finally:
            for (partition, telling), part in zip(tellings, told, strict=True):
                partition.scan.told(telling, range(len(telling.parts)) if part is None else part.fenced)
        return all(part is not None and not part.fenced for part in told)
