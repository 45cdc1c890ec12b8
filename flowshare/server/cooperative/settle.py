"""CooperativeSettle, flowshare's own: records are committed one by one, in one step with their outputs.

Invariant: the outputs of an offset are in the log exactly if a settle of it is in the committed set, and then those of
one settle only. It rests on three rules: a settle is decided whole, under claims that are its member's, and only while
none of its offsets is committed or reserved (`CooperativePartition.settle`); outputs are written with what it decided,
in one write, or in a transaction that the state follows (`apart`); and the committed set only grows but for a reset,
which no settle outlives (E). So a request that is sent again, because its answer was lost, writes nothing: the answer
names the offsets that are committed, and the claim's epoch tells the member that nobody else can have done it.

    before                      the request                               becomes
    an output cannot be written any                                       refused, with which and why, undecided
    keys are the member's, no   the first one                             decided, written, answered
      offset is committed
    the same, under way         the same again, or any other with one of  on a path: answered behind the first, as in
                                its offsets                               the next rows; in a fleet CONCURRENT_…
    all offsets are committed   the same again                            refused: `committed` names all of them
    some are                    any                                       refused: `committed` names these, nothing is
                                                                          written, the rest may be settled without
    keys are not the member's   any (a zombie, a lease that ended)        refused: `fenced` names the offsets
    the write failed            the same again                            as the first one: what failed was taken back
    an output was refused by    the same again                            as the first one
      the write
    E is another one            any                                       FENCED_STATE_EPOCH
    decided                     the process ends                          both are there, or neither

An `ordered` one waits before it is decided (`runtime.parked_settles`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowshare.cooperative.ranges import merged
from flowshare.core_errors import FencedStateEpoch, InvalidRequest
from flowshare.log.base import Output, OutputRefused
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import RefusedOutput
from flowshare.protocol.messages.cooperative import CooperativeSettleRequest, CooperativeSettleResponse
from flowshare.server.cooperative.members import check_readable, progress_of
from flowshare.server.cooperative.owner import RANGE_BYTES
from flowshare.server.runtime.connection import IN_PROCESS, Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, failure
from flowshare.share.session import check_ids

if TYPE_CHECKING:
    from flowshare.server.cooperative.coordinator import CooperativeGroups

OFFSETS_MAX: Final = 10_000
"""Ranges of offsets of one settle, and entries."""
OUTPUTS_MAX: Final = 5_000
"""Outputs of one settle."""
LOST: Final = "some of these records are not this member's any more"
DONE: Final = "some of these records are committed already"


class CooperativeSettling(Family):
    """Answers CooperativeSettle."""

    def __init__(self, groups: CooperativeGroups) -> None:
        self._groups = groups
        self._stats = groups.stats

    @handles(CooperativeSettleRequest)
    async def settle(self, request: CooperativeSettleRequest, connection: InProcess) -> CooperativeSettleResponse:
        """Check, decide, write, answer."""
        self._stats.settles += 1
        try:
            answer = await self._settle(request, connection)
        except EXPECTED as error:
            answer = _refused(request, error)
        self._stats.failed_settles += answer.error is not ErrorCode.NONE
        return answer

    async def _settle(self, request: CooperativeSettleRequest, connection: InProcess) -> CooperativeSettleResponse:
        """Raises: EXPECTED."""
        group_id, member = check_ids(request.group_id, request.member_id)
        _check(request)
        party = connection.counts_as()
        place = request.topic_id, request.partition
        group = self._groups.find(group_id, party)
        self._groups.take(party, RANGE_BYTES * sum(len(entry.ranges) for entry in request.entries))
        await check_readable(self._groups, place, connection)
        outputs = [Output(*output) for output in request.outputs]
        source = None if connection.host == IN_PROCESS else connection
        checked = await self._groups.checked(outputs, source=source)
        owner = group.owners.get(place) or await self._groups.open(group, place, party, None)
        if owner is None:
            raise FencedStateEpoch("nothing is kept of the partition: the group was deleted, or never held it")
        answer = await owner.settle(
            member,
            request.reset_epoch,
            request.entries,
            checked,
            generation=request.generation if request.ordered else None,
        )
        error, message = ErrorCode.NONE, None
        if not answer.taken:
            error, message = ErrorCode.INVALID_RECORD_STATE, LOST if answer.fenced else DONE
        return CooperativeSettleResponse(
            **progress_of(owner, answer.progress),
            error=error,
            message=message,
            fenced=answer.fenced,
            committed=answer.committed,
        )


def _refused(request: CooperativeSettleRequest, error: BaseException) -> CooperativeSettleResponse:
    code, message = failure(error)
    outputs: tuple[RefusedOutput, ...] = ()
    if isinstance(error, OutputRefused):
        code = ErrorCode.INVALID_REQUEST
        outputs = tuple(RefusedOutput(index, *failure(why)) for index, why in error.places.items())
    return CooperativeSettleResponse(
        topic_id=request.topic_id, partition=request.partition, error=code, message=message, outputs=outputs
    )


def _check(request: CooperativeSettleRequest) -> None:
    """Raises: InvalidRequest."""
    ranges = [pair for entry in request.entries for pair in entry.ranges]
    if not ranges:
        raise InvalidRequest("a settle names no records")
    if max(len(ranges), len(request.entries)) > OFFSETS_MAX or len(request.outputs) > OUTPUTS_MAX:
        raise InvalidRequest(
            f"a settle has {OFFSETS_MAX} ranges of records and {OUTPUTS_MAX} outputs at most, not {len(ranges)} and "
            f"{len(request.outputs)}: settle them in parts"
        )
    if request.ordered and len(merged(ranges)) > 1:
        raise InvalidRequest("outputs in the partition's order are settled run by run: these offsets have gaps")
