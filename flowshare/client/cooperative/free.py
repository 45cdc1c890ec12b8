"""`FreeMember`: a member of a cooperative group that takes records one by one, whatever their keys.

Each call renews the spans that it has and asks for as many more as it lacks (`CooperativeTakeRequest`); where there is
nothing it waits at the server. Any member takes of any partition, so a round of the group deals out nothing here; it
keeps others out, and shows the members to tools.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from flowshare.client.cooperative.assigning import Place
from flowshare.client.cooperative.partitions import Partition, Record
from flowshare.client.cooperative.settles import progress_of
from flowshare.client.cooperative.shell import RENEWALS, TOPICS_S, CooperativeShell
from flowshare.client.cooperative.spans import SpanScan
from flowshare.client.errors import ClientError, check
from flowshare.client.groups.membership import Generation
from flowshare.client.net.link import Connect
from flowshare.client.settings import CooperativeSettings
from flowshare.cooperative.attempts import Begun
from flowshare.cooperative.spans import TAKE_MAX
from flowshare.cooperative.types import KeyRanges
from flowshare.protocol.decoding import RawRecord
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import (
    TAKE_WAIT_MS_MAX,
    CooperativeTakeRequest,
    SpanEpochs,
    TakenFrom,
    TakenPartition,
)

if TYPE_CHECKING:
    from flowshare.clock import Clock

LOOK_S: Final = 10.0
"""How often it is looked whether topics have more partitions now."""
RECORD_BYTES: Final = 1_024
FETCH_BYTES_MIN: Final = 16 << 10
REFUSED_S: Final = 0.5
NOTHING_S: Final = 0.02
"""How soon it asks again that got nothing and could not wait at the server."""


class FreeMember(CooperativeShell):
    """One member; as `CooperativeMember`. ahead: records to have taken that nobody has begun."""

    def __init__(
        self,
        connect: Connect,
        *,
        group_id: str,
        clock: Clock,
        topics: Sequence[str],
        settings: CooperativeSettings | None = None,
        member_id: str | None = None,
        on_ready: Callable[[], object] = lambda: None,
        on_lost: Callable[[Partition, list[Record]], object] = lambda partition, lost: None,
    ) -> None:
        super().__init__(
            connect,
            group_id=group_id,
            clock=clock,
            topics=topics,
            joins=True,
            settings=settings,
            member_id=member_id,
            on_ready=on_ready,
            on_lost=on_lost,
        )
        self.ahead = self._settings.max_poll_records
        self._turns: deque[Partition] = deque()
        self._looked_s: float | None = None
        self._renewed_s = 0.0

    @property
    def held(self) -> dict[Place, KeyRanges]:
        """Keys that it holds: none."""
        return {}

    def _waits_for(self) -> str | None:
        return None if self._turns else "the partitions are not known yet"

    def _assigned(self, generation: Generation) -> None:
        self._generation = generation.number

    def take(
        self, count: int, *, keys: int = 0, chain: int = 1, in_order: bool = False
    ) -> list[tuple[Partition, list[Record]]]:
        """Begin up to `count` records."""
        taken = super().take(count, keys=keys, chain=chain, in_order=in_order)
        if taken:
            self.partitions.to_hold.set()
        return taken

    def drain(self) -> None:
        """Take nothing more, and give back what nobody has begun."""
        self._draining = True
        self.partitions.to_hold.set()

    # --- taking -------------------------------------------------------------------------------------------------

    async def _hold_loop(self) -> None:
        failures = 0
        while True:
            self.partitions.to_hold.clear()
            try:
                waits_s = await self._take()
                await self._look_for_doubted()
                failures = 0
                self.partitions.works("taking")
            except (OSError, ClientError) as error:
                failures += 1
                self.partitions.fails("taking", error)
                await self._clock.sleep(self._link.pause_s(failures))
            else:
                if waits_s:
                    await self._event(self.partitions.to_hold, waits_s)

    async def _take(self) -> float:
        """Renew, give back, take; how long there is nothing to do then. Raises: ServerError, OSError, ClientError."""
        await self._look()
        renewal_s = self._settings.lease / RENEWALS
        now_s = self._clock.monotonic()
        lacks = 0 if self._draining else self.ahead - sum(self._spans(one).ahead for one in self.partitions)
        back = self._unbegun() if self._draining else ()
        due_s = self._renewed_s + renewal_s - now_s
        if lacks < max(1, self.ahead // 2) and not back and due_s > 0:
            return due_s
        wait_s = min(TAKE_WAIT_MS_MAX / 1000, renewal_s) if lacks > 0 and not self._in_hand() else 0.0
        answer = await self._link.send(
            CooperativeTakeRequest(
                group_id=self.group_id,
                member_id=self.member_id,
                count=min(max(0, lacks), TAKE_MAX),
                max_wait_ms=round(wait_s * 1000),
                lease_ms=round(self._settings.lease * 1000),
                auto_offset_reset=self._settings.auto_offset_reset,
                exact_starts=self._settings.exact_starts,
                partitions=await self._asked() if lacks > 0 else (),
                renew=tuple(
                    SpanEpochs(*one.key, self._spans(one).epochs) for one in self.partitions if self._spans(one).epochs
                ),
                give_back=back,
            ),
            wait_s=wait_s,
        )
        check(answer.error, answer.message, f"group {self.group_id}: taking records")
        self._renewed_s = now_s
        for lost in answer.lost:
            partition = self.partitions.of(lost.topic_id, lost.partition)
            if partition is not None:
                self.partitions.lost(partition, self._spans(partition).lose_spans(lost.epochs))
        for partition in self.partitions:
            partition.lease_end_s = now_s + answer.lease_ms / 1000 - self.lease_spare_s
        got = [self._taken(part) for part in answer.partitions]
        self._turns.rotate(-1)
        self._sequence += 1
        self._heard()
        if any(part.error is not ErrorCode.NONE for part in answer.partitions):
            return REFUSED_S
        return 0.0 if any(got) or wait_s else min(renewal_s, NOTHING_S)

    async def _asked(self) -> tuple[TakenFrom, ...]:
        """All partitions, with what is committed the ordinary way of those that are new."""
        new = [one.place for one in self._turns if not one.begun]
        there = await self._ordinary.committed(new) if new else {}
        return tuple(TakenFrom(*one.key, there.get(one.place)) for one in self._turns)

    def _mirrors(self, partition: Partition) -> bool:
        return partition.begun

    def _taken(self, part: TakenPartition) -> int:
        partition = self.partitions.of(part.topic_id, part.partition)
        if partition is None:
            return 0
        if part.error is not ErrorCode.NONE:
            if part.error is ErrorCode.UNKNOWN_TOPIC_ID:
                self._doubted[partition] = None
            partition.trouble = f"{partition.text}: {part.error.name} {part.message or ''}".strip()
            return 0
        partition.trouble, partition.begun = None, True
        scan = self._spans(partition)
        begun = Begun(part.reaches, part.starts, part.abandoned)
        lost = scan.taken([(one.first, one.end, one.epoch) for one in part.spans], progress_of(part), begun)
        self.partitions.lost(partition, lost)
        self.partitions.to_read.set()
        return len(part.spans)

    def _unbegun(self) -> tuple[SpanEpochs, ...]:
        found = ((one, self._spans(one).unbegun()) for one in self.partitions)
        return tuple(SpanEpochs(*one.key, tuple(epochs)) for one, epochs in found if epochs)

    def _in_hand(self) -> bool:
        """Tell if the member holds any span: then somebody waits for commits or for records, and no call may stay
        parked at the server."""
        return any(one.scan.pieces for one in self.partitions)

    async def _look(self) -> None:
        """See which partitions there are, now and then."""
        now_s = self._clock.monotonic()
        if self._looked_s is not None and now_s < self._looked_s + LOOK_S:
            return
        while True:
            topics = await self._seen(self._topics)
            if topics or self._turns:
                break
            await self._clock.sleep(TOPICS_S)
        for name, topic in topics.items():
            for number in range(topic.partitions):
                if self.partitions.get((name, number)) is None and topic.topic_id is not None:
                    partition = Partition((name, number), topic.topic_id, self._new_scan())
                    self.partitions.add(partition)
                    self._turns.append(partition)
        self._looked_s = now_s

    def _begin_anew(self) -> None:
        self._turns = deque(one for one in self._turns if self.partitions.get(one.place) is one)
        self._looked_s = None
        self.partitions.to_hold.set()

    def _new_scan(self) -> SpanScan[RawRecord]:
        return SpanScan(exact_starts=self._settings.exact_starts)

    @staticmethod
    def _spans(partition: Partition) -> SpanScan[RawRecord]:
        assert isinstance(partition.scan, SpanScan)
        return partition.scan

    def _fetch_bytes(self, partition: Partition) -> int:
        """About what the spans hold: of the rest of the partition nothing is this member's."""
        wanted = 2 * self._spans(partition).ahead * RECORD_BYTES
        return min(self._settings.partition_fetch_bytes, max(FETCH_BYTES_MIN, wanted))
