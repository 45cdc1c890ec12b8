"""`Settles`: commits with outputs of one member, each sent until it is known what became of it, or the lease is over.

What is settled stays in flight meanwhile, and so do its keys: the next record of a key begins when the one before is
committed. The same request is sent again after a lost answer, and the server never writes its outputs twice
(`server.cooperative.settle`), so what it says then is read so:

    it says                    nothing was in doubt             an answer was lost before
    done                       written                          written
    all is committed, keys     refused: the log's start passed  written: nobody else holds the keys; what the log's
      are the member's         over it                          start has passed: the outcome is not known
    all is committed, keys     refused                          the outcome is not known
      are not
    else: some is committed,   refused, these                   refused, these: of what was in doubt nothing was
      or not the member's                                       written, or all would be committed
    an output is not taken     refused                          refused
    not now, or not known yet  sent again                       sent again
    the disk failed            refused: to be tried again       sent again
    (the lease ended)          refused: lost                    the outcome is not known
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowshare.client.cooperative.partitions import Partition, Partitions, Record
from flowshare.client.cooperative.scan import CommitPart, Progress
from flowshare.client.errors import NO_COORDINATOR, ClientError, Unsupported
from flowshare.cooperative.ranges import Pair, merged, minus, overlaps
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import (
    CommitEntry,
    CooperativeSettleRequest,
    CooperativeSettleResponse,
    PartitionProgress,
    StartEntry,
)
from flowshare.protocol.messages.share import SETTLE_WAIT_MS
from flowshare.tasks import cancelled

if TYPE_CHECKING:
    from flowshare.client.cooperative.starts import StartPart
    from flowshare.client.net.link import Link
    from flowshare.clock import Clock
    from flowshare.protocol.messages import RefusedOutput, SettleOutput

IN_DOUBT: Final = NO_COORDINATOR | {ErrorCode.NOT_LEADER_OR_FOLLOWER}
"""Who leads the group's state is another one, or about to be: only that one knows what became of it."""
NOT_NOW: Final = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.THROTTLING_QUOTA_EXCEEDED}
)
LOOK_S: Final = 0.05
"""After the end of a lease it is looked whether it was renewed."""
LOST: Final = "the keys are another member's now"
UNKNOWN: Final = "outcome unknown: the lease ended, or the keys were lost, before the settle was answered"


class Settled(NamedTuple):
    """The result of a settle.

    error: if set, nothing was written, except with UNKNOWN. refused: half-open ranges of records that are not the
    member's any more, or were committed before. fenced: records that the server says are not the member's. outputs:
    those that cannot be written.
    """

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    refused: tuple[tuple[int, int], ...] = ()
    fenced: tuple[Record, ...] = ()
    outputs: tuple[RefusedOutput, ...] = ()


class Settles:
    """Those of one member. All methods are called on one event loop."""

    def __init__(self, link: Link, partitions: Partitions, group_id: str, member_id: str, *, clock: Clock) -> None:
        self._link = link
        self._partitions = partitions
        self._group_id = group_id
        self._member_id = member_id
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do this beside; it is ended with the member."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self._group_id}: settle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def ended(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self) -> None:
        """End what is under way; who waits for it is not told."""
        await cancelled(*self._tasks)

    async def settle(
        self,
        partition: Partition,
        records: Sequence[Record],
        outputs: Sequence[SettleOutput],
        *,
        generation: int | None,
    ) -> Settled:
        """Commit records in flight with outputs. generation: in the partition's order, as of this one of the group."""
        scan, lives = partition.scan, partition.scan.lives
        request = CooperativeSettleRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            topic_id=partition.topic_id,
            partition=partition.place[1],
            reset_epoch=scan.progress.reset_epoch,
            entries=tuple(map(entry_of, scan.parts_of(records))),
            outputs=tuple(outputs),
            ordered=generation is not None,
            generation=generation or 0,
        )
        if request.ordered:  # what it waits for must not wait for it, as suspects do, which are begun alone
            for one in records:
                scan.dispatcher.handled(one)
        told = await self._until_told(partition, records, request)
        if told is not None:
            return told
        if any(one.doubted for one in records):
            return Settled(ErrorCode.NETWORK_EXCEPTION, UNKNOWN)
        kept = [] if scan.lives != lives else [one.offset for one in records if scan.dispatcher.holds(one)]
        refused = minus(_ranges(one.offset for one in records), _ranges(kept))
        return Settled(ErrorCode.INVALID_RECORD_STATE, LOST, tuple(refused))

    async def _until_told(
        self, partition: Partition, records: Sequence[Record], request: CooperativeSettleRequest
    ) -> Settled | None:
        """Ask the server until its answer is final; None: the records are not the member's any more."""
        scan, lives, tries = partition.scan, partition.scan.lives, 0
        while scan.lives == lives and all(map(scan.dispatcher.holds, records)):
            if scan.waits(records):
                await self._partitions.next_change()
                continue
            tries += 1
            try:
                answer = await self._asked(partition, request)
            except Unsupported as error:
                return Settled(ErrorCode.UNSUPPORTED_VERSION, str(error))
            except (OSError, ClientError):
                _doubt(records)
                await self._clock.sleep(self._link.pause_s(tries))
                continue
            except asyncio.CancelledError:
                _doubt(records)
                raise
            if answer.error in IN_DOUBT:
                _doubt(records)
            if not _again(answer, records):
                return self._told(partition, records, answer)
            if answer.error is not ErrorCode.REQUEST_TIMED_OUT:
                await self._clock.sleep(self._link.pause_s(tries))
        return None

    async def _asked(self, partition: Partition, request: CooperativeSettleRequest) -> CooperativeSettleResponse:
        """The answer; not waited for past the lease. Raises: TimeoutError, OSError, ClientError."""
        left_s = partition.lease_end_s - self._clock.monotonic()
        sending = self._link.send(request, wait_s=SETTLE_WAIT_MS / 1000 if request.ordered else 0.0)
        return await self._clock.wait_for(sending, max(LOOK_S, left_s))

    def _told(self, partition: Partition, records: Sequence[Record], answer: CooperativeSettleResponse) -> Settled:
        """Turn a final answer into the settle's result, and mark committed records as settled."""
        doubted = all(one.doubted for one in records)
        scan, offsets = partition.scan, _ranges(one.offset for one in records)
        fenced, committed = _pairs(answer.fenced), _pairs(answer.committed)
        if answer.error is ErrorCode.FENCED_STATE_EPOCH:
            fenced = offsets
        all_done = not minus(offsets, committed)
        done = records if answer.error is ErrorCode.NONE else [one for one in records if _is_in(one.offset, committed)]
        if done:
            scan.settled(done, progress_of(answer))
            self._partitions.changed()
        if answer.error is ErrorCode.NONE or (doubted and all_done and not fenced and _is_there(answer, offsets)):
            return Settled()
        lost = tuple(one for one in records if _is_in(one.offset, fenced) and not _is_in(one.offset, committed))
        if doubted and all_done:
            return Settled(ErrorCode.NETWORK_EXCEPTION, UNKNOWN)
        error = ErrorCode.INVALID_RECORD_STATE if lost else answer.error
        return Settled(error, answer.message, tuple(merged([*fenced, *committed])), lost, answer.outputs)


def _doubt(records: Sequence[Record]) -> None:
    """Nobody knows whether these are settled."""
    for one in records:
        one.doubted = True


def _again(answer: CooperativeSettleResponse, records: Sequence[Record]) -> bool:
    """Tell if the same request must be sent again."""
    if answer.error in IN_DOUBT or answer.error in NOT_NOW or answer.error is ErrorCode.REQUEST_TIMED_OUT:
        return True
    in_doubt = any(one.doubted for one in records)
    return in_doubt and answer.error is ErrorCode.KAFKA_STORAGE_ERROR and not answer.outputs


def _is_there(answer: CooperativeSettleResponse, offsets: Sequence[Pair]) -> bool:
    """Tell if the log still has the records: offsets before the log's start also count as committed."""
    return offsets[0][0] >= answer.log_start


def _pairs(ranges: Iterable[Pair]) -> list[Pair]:
    return [(first, end) for first, end in ranges]


def _ranges(offsets: Iterable[int]) -> list[Pair]:
    return merged((offset, offset + 1) for offset in offsets)


def _is_in(offset: int, ranges: Sequence[Pair]) -> bool:
    return bool(overlaps([(offset, offset + 1)], ranges))


def progress_of(part: PartitionProgress) -> Progress:
    """How far a partition is, from an answer."""
    return Progress(part.stable, part.reset_epoch, part.count, part.furthest)


def entry_of(part: CommitPart) -> CommitEntry:
    """A part of a commit, as a server takes it."""
    return CommitEntry(*part)


def start_entry_of(part: StartPart) -> StartEntry:
    """Starts that are told, as a server takes them."""
    return StartEntry(*part)
