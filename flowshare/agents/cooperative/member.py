"""`CooperativeFeed` is an agent's member of a cooperative group, with the interface that the feed needs.

It decides for itself as a share group's server does for a member: which records come next, in the order of each key,
how late a released record comes again, and whether an acknowledged record is still the member's.

    the feed says         here
    ask                   records are begun, as soon as there are some (`CooperativeMember.take`), of a key one, and the
                          next when that is committed
    ACCEPT, REJECT, GAP   the record is finished; answered when it is committed. Of an agent with at_most_once what is
                          accepted is about to run, and keeps its key until it has (`ended`)
    RELEASE               it waits for its time, its key with it
    a settle              the records are finished in one step with their outputs (`CooperativeMember.settle`)
    RENEW                 answered at once: the keys are renewed as long as the process lives
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from flowshare.client.cooperative.member import CooperativeMember
from flowshare.client.session.arrivals import Arrivals
from flowshare.client.session.ranges import AckResult, Fetched, TopicIdPartition
from flowshare.client.session.shell import answered
from flowshare.protocol.decoding import RawDecoded
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AcknowledgeType, AcquiredRange

if TYPE_CHECKING:
    from flowshare.agents.cooperative.agent import CooperativeAgent
    from flowshare.agents.feed.members import Unrun
    from flowshare.agents.feed.settle_units import Unit
    from flowshare.client.cooperative.partitions import Partition, Record
    from flowshare.client.cooperative.settles import Settled
    from flowshare.client.net.link import Connect
    from flowshare.client.session.share_session import Plan
    from flowshare.client.session.shell import Late, Told
    from flowshare.clock import Clock, TimerHandle
    from flowshare.protocol.messages import SettleOutput
    from flowshare.share.types import AckRange

WAIT_MIN_S: Final = 0.001
LOST: Final = "the keys are another member's now"
ENDED: Final = (ErrorCode.NONE, ErrorCode.NETWORK_EXCEPTION)
"""Answers after which a settle's records are done, well or with an unknown outcome."""
UNKNOWN: Final = "outcome unknown: the lease ended, or the keys were lost, before the commit was answered"


class _Answer:
    """Answer to a call, given when all of its commits are answered."""

    __slots__ = ("pending", "results", "told")

    def __init__(self, told: Told) -> None:
        self.told = told
        self.results: list[AckResult] = []
        self.pending: list[tuple[Partition, int, set[int]]] = []


class CooperativeFeed:
    """One member of a cooperative group. Everything runs on the service loop."""

    def __init__(
        self,
        connect: Connect,
        agent: CooperativeAgent,
        *,
        clock: Clock,
        member_id: str | None = None,
        on_damaged: Callable[[int], object] = lambda count: None,
        wait_s: float | None = None,
    ) -> None:
        """on_damaged: called with the number of offsets whose bytes are no records.

        wait_s: seconds that the server may hold a fetch that finds nothing; None: as usual.
        """
        self._clock = clock
        self._early = agent.options.at_most_once
        self._settings = agent.member_settings
        if wait_s is not None:
            self._settings = replace(self._settings, fetch_max_wait=wait_s)
        self._member = CooperativeMember(
            connect,
            group_id=agent.group,
            clock=clock,
            topics=agent.topics,
            settings=self._settings,
            member_id=member_id,
            on_ready=self._changed,
            on_lost=self._lost,
        )
        self._member.partitions.on_damaged = lambda partition, first, last, why: on_damaged(last - first + 1)
        self._member.partitions.on_unanswered = self._unanswered
        self.on_accepted_lost: Callable[[TopicPartition, Collection[int]], object] = lambda tp, offsets: None
        """Called with records that were accepted before they run, and whose keys are another member's now."""
        self._accepted: dict[tuple[TopicPartition, int], tuple[Partition, Record]] = {}
        """With at_most_once: records that run, or are about to."""
        self._arrivals = Arrivals()
        self._plan: Plan | None = None
        self._ends: TimerHandle | None = None
        self._due: TimerHandle | None = None
        self._looks = False
        self._in_hand: dict[tuple[TopicPartition, int], tuple[Partition, Record]] = {}
        self._answers: list[_Answer] = []
        self._losses = 0
        self._serial = 0
        """Serial of the next delivery: fences rise by it within the epoch of a claim."""
        self._ordered = agent.ordered_outputs
        self._batches = agent.options.batch is not None

    # --- what is known ------------------------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        """Id by which the server knows the member."""
        return self._member.member_id

    @property
    def assignment(self) -> frozenset[TopicIdPartition]:
        """Partitions of which this member holds keys."""
        return frozenset(
            TopicIdPartition(*one.place, one.topic_id) for one in self._member.partitions if one.scan.pieces
        )

    @property
    def lock_timeout_ms(self) -> int:
        """Milliseconds that the member's keys stay its own without an answer of the server."""
        return round(self._settings.lease * 1000)

    @property
    def generation(self) -> int:
        """Number that changes when a held record was lost."""
        return self._losses

    @property
    def trouble(self) -> str | None:
        """Reason why nothing arrives, in words."""
        return self._member.trouble

    def holds(self, tp: TopicPartition, generation: int) -> bool:
        """Tell if records begun in this life of the partition can still be the member's."""
        partition = self._member.partitions.of(*tp)
        return partition is not None and partition.scan.lives == generation

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to join; a caller that waits for records waits for that, too. Raises: Closed."""
        self._member.start()

    async def confirm(self) -> None:
        """Wait until the server has told which keys are still held. Raises: Closed."""
        await self._member.confirm()

    def unsubscribe(self) -> None:
        """Begin no new records, and give back finished keys."""
        self._member.drain()

    async def close(self, *, unrun: Unrun | None = None) -> None:
        """Release records that did not run, commit the rest, leave the group."""
        self._end_plan()
        for tp, ranges in (unrun or {}).items():
            for offset in (offset for first, last in ranges for offset in range(first, last + 1)):
                found = self._in_hand.pop((tp, offset), None)
                if found is not None:
                    self._member.give_back(*found, unrun=True)
        await self._member.close()

    async def leave_to_locks(self, *, unrun: Unrun) -> None:
        """Close as `close` while handlers go on that cannot be ended: their keys are free when the lease ends."""
        del unrun
        self._end_plan()
        await self._member.close(release=False)

    # --- records ------------------------------------------------------------------------------------------------

    def ask(self, plan: Plan) -> None:
        """Begin records as soon as some arrive, or report none when the plan's time is over."""
        self._plan = plan
        self._ends = self._clock.call_later(plan.max_wait_s, self._nothing)
        self._look()

    def on_fetched(self, listener: Callable[[], object] | None) -> None:
        """Set the listener, as `ShareMember.on_fetched`."""
        self._arrivals.listener = listener
        if listener is not None and self._arrivals.ready:
            listener()

    def take_fetched(self) -> list[Fetched]:
        """Return the records of the last `ask`."""
        return self._arrivals.take()

    async def last_fetch(self) -> list[Fetched]:
        """Return the records of the last `ask`, for a member that stops: no more are begun."""
        self._end_plan()
        return self._arrivals.take()

    def _changed(self) -> None:
        """Go on after records were read, held, lost or committed."""
        if self._answers:
            self._settle()
        if self._plan is not None:
            self._look()

    def _look(self) -> None:
        """Serve the plan in the next turn of the loop: the caller may be in the middle of its work."""
        if not self._looks:
            self._looks = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._looks = False
        plan = self._plan
        if plan is None:
            return
        # No chains: what had ended when a lease or a process was lost, and was not committed, begins again, and nothing
        # of its key may have begun behind it. What one call takes at once begins at once.
        chain = plan.chain if self._batches else 1
        taken = self._member.take(plan.records_max, keys=plan.heads, chain=chain)
        if taken:
            self._end_plan()
            self._arrivals.put(
                [self._fetched(partition, one) for partition, found in taken for one in _by_epoch(found)]
            )
            return
        due_s = self._member.next_s()
        if due_s is not None:
            if self._due is not None:
                self._due.cancel()
            self._due = self._clock.call_later(max(WAIT_MIN_S, due_s - self._clock.monotonic()), self._look)

    def _nothing(self) -> None:
        if self._plan is not None:
            self._end_plan()
            self._arrivals.put([])

    def _end_plan(self) -> None:
        self._plan = None
        for timer in (self._ends, self._due):
            if timer is not None:
                timer.cancel()
        self._ends = self._due = None

    def _fetched(self, partition: Partition, found: list[Record]) -> Fetched:
        """Put records into the form that a server sends; all are of claims of one epoch."""
        found.sort(key=lambda one: one.offset)
        tp = TopicPartition(*partition.key)
        for one in found:
            self._in_hand[tp, one.offset] = (partition, one)
        acquired: list[AcquiredRange] = []
        for one in found:
            last = acquired[-1] if acquired else None
            if last is not None and last.last + 1 == one.offset and last.delivery_count == one.attempt:
                acquired[-1] = last._replace(last=one.offset)
            else:
                acquired.append(AcquiredRange(one.offset, one.offset, one.attempt))
        runs = [([one.record for one in ones], count) for count, ones in _by_attempt(found)]
        return Fetched(
            topic=partition.place[0],
            topic_id=partition.topic_id,
            partition=partition.place[1],
            records=b"",
            acquired=tuple(acquired),
            lock_deadline=self._deadline_s(partition),
            generation=partition.scan.lives,
            fence=self._fence(found),
            read=RawDecoded(runs=runs),
        )

    def _fence(self, found: list[Record]) -> tuple[int, int]:
        """Return the epoch of the records' claim, and the first one's serial less its offset. Each delivery of a key
        has a higher fence than all before it, by serial within this member, by epoch across members. The serial grows
        by the span of the offsets."""
        first, last = found[0].offset, found[-1].offset
        shift = self._serial - first
        self._serial += last - first + 1
        return found[0].epoch, shift

    def _deadline_s(self, partition: Partition) -> float:
        """Time when nothing may run any more. The member has lost all records before, so that both agree on the
        loss."""
        return partition.lease_end_s + self._member.lease_spare_s

    def given_up(self, tp: TopicPartition, offsets: Collection[int]) -> None:
        """Begin records again that the feed gave up, as far as they are still the member's."""
        for offset in offsets:
            found = self._in_hand.pop((tp, offset), None)
            if found is not None:
                self._member.give_back(*found)

    def _lost(self, partition: Partition, lost: list[Record]) -> None:
        self._losses += 1
        tp = TopicPartition(*partition.key)
        for one in lost:
            self._in_hand.pop((tp, one.offset), None)
        accepted = [one.offset for one in lost if self._accepted.pop((tp, one.offset), None) is not None]
        if accepted:
            self.on_accepted_lost(tp, accepted)

    def ended(self, tp: TopicPartition, offsets: Collection[int]) -> None:
        """Free the keys of records that were accepted before and have run, or run nowhere: their next records may
        come."""
        for offset in offsets:
            found = self._accepted.pop((tp, offset), None)
            if found is not None:
                self._member.land(*found)

    # --- acknowledging ------------------------------------------------------------------------------------------

    async def acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        *,
        generation: int | None = None,
        on_late: Late | None = None,
    ) -> list[AckResult]:
        """Settle records; answers when that is committed."""
        return await answered(lambda told: self.begin_acknowledge(acks, told, generation=generation, on_late=on_late))

    def begin_acknowledge(
        self,
        acks: Mapping[TopicPartition, Sequence[AckRange]],
        told: Told,
        *,
        generation: int | None = None,
        on_late: Late | None = None,
        rides: bool = False,
    ) -> None:
        """As `acknowledge`; `told` is called once."""
        del on_late, rides
        answer = _Answer(told)
        for tp, batches in acks.items():
            answer.results.append(self._acknowledge(tp, batches, generation, answer))
        self._answers.append(answer)
        self._settle()

    def _acknowledge(
        self, tp: TopicPartition, batches: Sequence[AckRange], generation: int | None, answer: _Answer
    ) -> AckResult:
        partition = self._member.partitions.of(*tp)
        topic = "" if partition is None else partition.place[0]
        result = AckResult(topic, tp.topic_id, tp.partition, tuple(batches), ErrorCode.NONE, None, 0.0)
        if partition is None or (generation is not None and partition.scan.lives != generation):
            return result._replace(error=ErrorCode.INVALID_RECORD_STATE, message=LOST)
        finished, refused = set[int](), list[tuple[int, int]]()
        renews = False
        for batch in batches:
            renews = renews or batch.types[0] == AcknowledgeType.RENEW
            for offset in range(batch.first, batch.last + 1):
                if not self._said(tp, offset, batch, finished):
                    refused.append((offset, offset))
        if finished:
            answer.pending.append((partition, partition.scan.lives, finished))
        if renews:
            result = result._replace(lock_deadline=self._deadline_s(partition))
        if refused:
            result = result._replace(refused=tuple(refused), refusal=ErrorCode.INVALID_RECORD_STATE, message=LOST)
        return result

    def _said(self, tp: TopicPartition, offset: int, batch: AckRange, finished: set[int]) -> bool:
        """Carry out the acknowledgement of one record; False if the member no longer has the record."""
        type_ = batch.types[0] if len(batch.types) == 1 else batch.types[offset - batch.first]
        found = self._in_hand.get((tp, offset))
        if found is None or (batch.attempt and found[1].attempt != batch.attempt):
            return False
        if type_ == AcknowledgeType.RENEW:
            return True
        del self._in_hand[tp, offset]
        if type_ == AcknowledgeType.RELEASE:
            if self._plan is not None:
                self._look()
            return self._member.give_back(*found, delay_s=batch.delay_ms / 1000, unrun=batch.unrun)
        finished.add(offset)
        if self._early and type_ == AcknowledgeType.ACCEPT:
            self._accepted[tp, offset] = found
            return self._member.accept(*found)
        return self._member.finish(*found)

    def handled(self, unit: Unit) -> None:
        """Note that handlers ended of records that are settled in turn."""
        for chunk, record in unit.records:
            found = self._in_hand.get((chunk.tp, record.offset))
            if found is not None:
                found[0].scan.dispatcher.handled(found[1])
        self._changed()

    # --- settling -----------------------------------------------------------------------------------------------

    def begin_settle(
        self,
        tp: TopicPartition,
        acks: Sequence[AckRange],
        outputs: Sequence[SettleOutput],
        told: Told,
        *,
        generation: int | None = None,
    ) -> None:
        """Settle as `ShareMember.begin_settle`: accepted and rejected records are committed, in one step with the
        outputs."""
        partition = self._member.partitions.of(*tp)
        topic = "" if partition is None else partition.place[0]
        result = AckResult(topic, tp.topic_id, tp.partition, tuple(acks), ErrorCode.NONE, None, 0.0)
        refused: list[tuple[int, int]] = []
        found: list[Record] = []
        for batch in acks:
            for offset in range(batch.first, batch.last + 1):
                one = self._in_hand.get((tp, offset))
                if one is None or (batch.attempt and one[1].attempt != batch.attempt):
                    refused.append((offset, offset))
                else:
                    found.append(one[1])
        gone = partition is None or (generation is not None and partition.scan.lives != generation)
        if partition is None or gone or refused:
            lost = () if gone else tuple(refused)
            told([result._replace(error=ErrorCode.INVALID_RECORD_STATE, message=LOST, refused=lost)])
            return
        told_once = partial(self._settled_with, result, found, told)
        self._member.begin_settle(partition, found, outputs, told_once, ordered=self._ordered)

    def _settled_with(self, result: AckResult, records: list[Record], told: Told, settled: Settled) -> None:
        gone = {offset for first, end in settled.refused for offset in range(first, end)}
        for one in records:
            if settled.error in ENDED or one.offset in gone:
                self._in_hand.pop((result.tp, one.offset), None)
        refused = tuple((first, end - 1) for first, end in settled.refused)
        told([result._replace(error=settled.error, message=settled.message, refused=refused, outputs=settled.outputs)])

    def _settle(self) -> None:
        """Answer the calls whose commits were answered."""
        left: list[_Answer] = []
        answers, self._answers = self._answers, []
        for answer in answers:
            pending = [one for one in answer.pending if not self._settled(answer, *one)]
            answer.pending = pending
            if pending:
                left.append(answer)
            else:
                answer.told(answer.results)
        self._answers = left + self._answers

    def _unanswered(self, partition: Partition, offsets: Collection[int]) -> None:
        """Answer "unknown" to callers that wait for these offsets: nobody knows if they are committed."""
        tp = TopicPartition(*partition.key)
        for answer in self._answers:
            for at, _, pending in answer.pending:
                unknown = pending.intersection(offsets) if at is partition else set[int]()
                if unknown:
                    pending -= unknown
                    answer.results = [_in_doubt(one, unknown) if one.tp == tp else one for one in answer.results]

    def _settled(self, answer: _Answer, partition: Partition, lives: int, offsets: set[int]) -> bool:
        if partition.scan.lives != lives:
            tp = TopicPartition(*partition.key)
            answer.results = [
                one._replace(error=ErrorCode.NETWORK_EXCEPTION, message=UNKNOWN, refused=()) if one.tp == tp else one
                for one in answer.results
            ]
            return True
        offsets.difference_update([offset for offset in offsets if partition.scan.is_settled(offset)])
        return not offsets


def _in_doubt(result: AckResult, offsets: Collection[int]) -> AckResult:
    """Return the result with these offsets refused, as their outcome is unknown."""
    refused = (*result.refused, *((offset, offset) for offset in sorted(offsets)))
    return result._replace(refused=refused, refusal=ErrorCode.NETWORK_EXCEPTION, message=UNKNOWN)


def _by_epoch(found: Sequence[Record]) -> Iterable[list[Record]]:
    """Group records by their claim's epoch: a later claim of a key has a higher epoch, and its fence needs that."""
    by_epoch: dict[int, list[Record]] = {}
    for one in found:
        by_epoch.setdefault(one.epoch, []).append(one)
    return by_epoch.values()


def _by_attempt(found: Sequence[Record]) -> list[tuple[int, list[Record]]]:
    """Group neighbouring records of one attempt."""
    return [(attempt, list(ones)) for attempt, ones in groupby(found, key=lambda one: one.attempt)]
