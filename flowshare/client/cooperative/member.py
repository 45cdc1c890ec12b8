"""`CooperativeMember`: a member of a cooperative group that shares partitions by ranges of keys.

It says what it wants to hold (`CooperativeHoldRequest`): what the newest round of the group gives it, and what it held
before and has not finished. Each answer renews all that it holds.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.backoff import Backoff
from flowshare.client.cooperative.assigning import Place, target_of
from flowshare.client.cooperative.partitions import Partition, Record
from flowshare.client.cooperative.scan import KeyScan
from flowshare.client.cooperative.settles import progress_of
from flowshare.client.cooperative.shell import RENEWALS, TOPICS_S, CooperativeShell
from flowshare.client.errors import ClientError, check
from flowshare.client.groups.membership import Generation
from flowshare.client.net.link import Connect
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.attempts import Begun
from flowshare.cooperative.ranges import Pair, assigned, merged
from flowshare.cooperative.types import KeyRange, KeyRanges
from flowshare.core_errors import CoreError
from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import CooperativeOffsetsRequest, HeldPartition, WantedKeys
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.clock import Clock

AGAIN: Final = Backoff(0.1, 0.5)
"""Pauses between two holds while others hold what the member waits for."""
BOUND_S: Final = 0.5
"""The same while it waits for the stable offset."""

logger = logging.getLogger(__name__)


class CooperativeMember(CooperativeShell):
    """One member.

    topics: subscribed. manual: instead of them, ranges of keys by topic and partition; none: the whole partition.
    on_ready: called when there may be records to begin. on_lost: told of records in flight that are not the member's
    any more; what becomes of them does not count.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        topics: Sequence[str] = (),
        manual: Mapping[Place, Sequence[Pair]] | None = None,
        settings: CooperativeSettings | None = None,
        member_id: str | None = None,
        on_ready: Callable[[], object] = lambda: None,
        on_lost: Callable[[Partition, list[Record]], object] = lambda partition, lost: None,
    ) -> None:
        """Raises: InvalidRequest (ranges of a partition overlap)."""
        super().__init__(
            connect,
            group_id=group_id,
            clock=clock,
            topics=topics,
            joins=manual is None,
            settings=settings,
            member_id=member_id,
            on_ready=on_ready,
            on_lost=on_lost,
        )
        self._manual = None if manual is None else {place: assigned(list(keys)) for place, keys in manual.items()}
        self._applying: asyncio.Task[None] | None = None
        self._waited = 0
        """Holds in a row that left the member waiting for others."""

    @property
    def held(self) -> dict[Place, KeyRanges]:
        """The key ranges that the member holds, by partition."""
        found = {one.place: _joined(one) for one in self.partitions if self.partitions.live(one)}
        return {place: keys for place, keys in found.items() if keys}

    def _waits_for(self) -> str | None:
        if not self._targets:
            return "no partition is assigned yet"
        blocked = [f"{one.text} by {', '.join(one.blocked)}" for one in self.partitions if one.blocked]
        return f"keys are held by members that have not finished: {'; '.join(blocked)}" if blocked else None

    def start(self) -> None:
        """Begin; harmless when that was done. Raises: Closed."""
        super().start()
        if self._manual is not None and not self._targets:
            self._targets = dict(self._manual)
            self._apply()

    def drain(self) -> None:
        """Begin nothing new, and give back what is finished: for a member that stops. It stays in the group."""
        self._draining = True
        for partition in self.partitions:
            partition.scan.set_target(())
        self.partitions.to_hold.set()

    async def _stop_tasks(self) -> None:
        await cancelled(self._applying)
        await super()._stop_tasks()

    async def _release_all(self) -> None:
        for partition in self.partitions:
            partition.scan.set_target(())
        await super()._release_all()

    def _mirrors(self, partition: Partition) -> bool:
        return any(not piece.first for piece in partition.scan.pieces)

    # --- the group ----------------------------------------------------------------------------------------------

    def _assigned(self, generation: Generation) -> None:
        try:
            self._targets = target_of(generation.partitions, generation.user_data)
        except CoreError as error:
            logger.exception(
                "group=%s: the assignment of generation %d makes no sense", self.group_id, generation.number
            )
            self.partitions.lacks("assignment", f"the assignment makes no sense: {error}")
            return
        self.partitions.works("assignment")
        self._generation = generation.number
        self._apply()

    def _apply(self) -> None:
        if self._applying is not None:
            self._applying.cancel()
        self._applying = asyncio.create_task(self._apply_targets(), name=f"{self.group_id}: topics")

    async def _apply_targets(self) -> None:
        """Tell the scans what they are to have; the ids of new topics are looked up first."""
        for partition in self.partitions:
            if partition.place not in self._targets:
                partition.scan.set_target(())
            else:
                self._set_target(partition)
        self.partitions.to_hold.set()
        unknown = [place for place in self._targets if self.partitions.get(place) is None]
        while unknown:
            topics = await self._seen(sorted({place[0] for place in unknown}))
            for place in [place for place in unknown if place[0] in topics]:
                unknown.remove(place)
                self._set_target(self._new(place, topics[place[0]].topic_id))
            self.partitions.to_hold.set()
            if unknown:
                await self._clock.sleep(TOPICS_S)
        self.partitions.changed()

    def _set_target(self, partition: Partition) -> None:
        partition.scan.set_target(() if self._draining else self._targets[partition.place])

    def _begin_anew(self) -> None:
        self._apply()

    def _new(self, place: Place, topic_id: uuid.UUID | None) -> Partition:
        assert topic_id is not None, "only topics with ids are described"
        partition = Partition(place, topic_id, self._new_scan())
        self.partitions.add(partition)
        return partition

    def _new_scan(self) -> KeyScan[RawRecord]:
        return KeyScan(buffer_max=self._settings.buffer_records, exact_starts=self._settings.exact_starts)

    # --- holding ------------------------------------------------------------------------------------------------

    async def _hold_loop(self) -> None:
        failures = 0
        while True:
            self.partitions.to_hold.clear()
            try:
                await self._hold()
                await self._look_for_doubted()
                failures = 0
                self.partitions.works("holding")
            except (OSError, ClientError) as error:
                failures += 1
                self.partitions.fails("holding", error)
            pause_s = self._link.pause_s(failures) if failures else self._hold_pause_s()
            if failures:
                await self._clock.sleep(pause_s)
            else:
                await self._event(self.partitions.to_hold, pause_s)

    def _hold_pause_s(self) -> float:
        waits = any(one.scan.missing for one in self.partitions)
        bound = any(one.scan.at_bound for one in self.partitions)
        renewal_s = self._settings.lease / RENEWALS
        if waits:
            self._waited += 1
            return min(renewal_s, AGAIN.after(self._waited))
        self._waited = 0
        return min(renewal_s, BOUND_S) if bound else renewal_s

    async def _hold(self) -> None:
        """Say what the member wants, once. Raises: ServerError, OSError, ClientError."""
        if any(one.scan.releases for one in self.partitions):
            async with self._commits.order:
                await self._held_by(self._asked())
        else:
            await self._held_by(self._asked())

    def _asked(self) -> list[WantedKeys]:
        wanted: list[WantedKeys] = []
        for partition in list(self.partitions):
            keys = partition.scan.ask()
            if keys:
                wanted.append(WantedKeys(*partition.key, keys))
            elif not partition.scan.pieces and partition.place not in self._targets:
                self.partitions.forget(partition)
        return wanted

    async def _with_ordinary(self, wanted: Sequence[WantedKeys]) -> list[WantedKeys]:
        """The same, with what is committed the ordinary way where the member begins with a partition."""
        new = {one.key: one.place for one in self.partitions if not one.begun}
        asked = [new[one[:2]] for one in wanted if one[:2] in new]
        if not asked:
            return list(wanted)
        there = await self._ordinary.committed(asked)
        return [
            one if one[:2] not in new else one._replace(committed=there[new[one.topic_id, one.partition]])
            for one in wanted
        ]

    async def _held_by(self, wanted: Sequence[WantedKeys]) -> None:
        """Say it, and take in what became of it. Raises: ServerError, OSError, ClientError."""
        if not wanted and not self._sequence:
            self._answered = 1  # nothing was ever asked for, so there is nothing to know
            self._told.set()
            return
        told = await self._with_ordinary(wanted)
        sent_s = self._clock.monotonic()
        answer = await self._say(told)
        for part in answer.partitions:
            partition = self.partitions.of(part.topic_id, part.partition)
            if partition is not None:
                await self._held(partition, part, sent_s + answer.lease_ms / 1000 - self.lease_spare_s)
        self._heard()

    async def _held(self, partition: Partition, part: HeldPartition, lease_end_s: float) -> None:
        """Take in the answer to a hold for one partition. After an error nothing was done there: its lease goes on."""
        if part.error is not ErrorCode.NONE:
            if part.error is ErrorCode.UNKNOWN_TOPIC_ID:
                self._doubted[partition] = None
            partition.trouble = f"{partition.text}: {part.error.name} {part.message or ''}".strip()
            return
        partition.trouble, partition.begun = None, True
        partition.blocked = tuple(sorted({one.holder for one in part.blocked}))
        scan, progress = partition.scan, progress_of(part)
        claims = [(one.first, one.end, one.epoch) for one in part.held]
        ranges: Sequence[Pair] | None = None if part.ranges is None else part.ranges.pairs()
        begun = None if ranges is None else Begun(part.reaches, part.starts)
        if ranges is None and scan.lacks_ranges(claims, progress.reset_epoch):
            ranges, begun = await self._ranges(partition)
        partition.lease_end_s = lease_end_s
        lost = scan.held(claims, progress, ranges)
        scan.starts.hold(part.horizon, begun)
        if part.log_start > progress.stable:
            self._reader.begins_at(partition, part.log_start)
        self.partitions.lost(partition, lost)
        if scan.uncommitted:
            self.partitions.to_commit.set()

    async def _ranges(self, partition: Partition) -> tuple[list[Pair], Begun]:
        """R of a partition, read page by page, and what others may have begun there. Raises: ServerError, OSError,
        ClientError."""
        topic, number = partition.place
        found: list[Pair] = []
        start = 0
        while True:
            answer = await self._link.send(
                CooperativeOffsetsRequest(group_id=self.group_id, topics={topic: (number,)}, ranges_from=start)
            )
            check(answer.error, answer.message, f"group {self.group_id}: committed ranges of {partition.text}")
            (part,) = answer.partitions
            check(part.error, part.message, f"group {self.group_id}: committed ranges of {partition.text}")
            found += [] if part.ranges is None else part.ranges.pairs()
            if not part.more or part.ranges is None or not part.ranges.firsts:
                return found, Begun(part.reaches, part.starts)
            start = found[-1][1]


def _joined(partition: Partition) -> KeyRanges:
    return tuple(KeyRange(*pair) for pair in merged(piece[:2] for piece in partition.scan.pieces))
