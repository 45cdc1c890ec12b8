"""ShareSettle, flowshare's own (SG-19): records are accepted or rejected in one step with their outputs.

The outputs are checked first (SG-19.2), which may take a while and changes nothing. Then the records are decided and
PENDING (SG-19.3), and from there on it is one write: durable and answered, or not there at all.

    nothing decided   an output cannot be written            refused, with the outputs and reasons
    nothing decided   a record is not the member's           refused, with the records
    nothing decided   `ordered`, and records before it are   waits for its turn (`runtime.parked_settles`), or is
                      not finished                           refused: ask again
    decided           the write is durable                   accepted, outputs visible
    decided           an output is refused by the write      refused, the records stay the member's
    decided           the write fails, known not to be there KAFKA_STORAGE_ERROR, the records stay the member's
    decided           the process ends                       the next leader finds both or neither; the member asks
                                                             it for its records, and sends again only those left
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from flowshare.core_errors import InvalidRecordState, InvalidRequest, UnknownTopicOrPartition
from flowshare.log.base import Output, OutputRefused
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import RefusedOutput, ShareSettleRequest, ShareSettleResponse
from flowshare.server.runtime.connection import IN_PROCESS, Family, InProcess, handles
from flowshare.server.runtime.failures import EXPECTED, failure
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.acknowledge import check_batches, check_readable
from flowshare.server.share.duties import NOT_KNOWN
from flowshare.share.ranges import merged
from flowshare.share.session import check_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowshare.log.base import CheckedOutput, Storage
    from flowshare.server.runtime.topic_index import TopicIndex
    from flowshare.server.share.duties import Duties
    from flowshare.server.share.owner import PartitionOwner
    from flowshare.server.share.partitions import Partitions
    from flowshare.server.share.stats import Stats

OUTPUTS_MAX: Final = 5_000
"""Most outputs of one settle."""
OFFSETS_MAX: Final = 10_000
"""Most records of one settle (SG-19.6)."""
VERSION: Final = 2
"""Version of the acknowledge types that a settle may have (RENEW is refused by the core)."""


class ShareSettling(Family):
    """Answers ShareSettle."""

    def __init__(
        self,
        *,
        storage: Storage,
        partitions: Partitions,
        topics: TopicIndex,
        stats: Stats,
        duties: Duties,
        settled_late: Callable[[str], object],
    ) -> None:
        """settled_late: called with the group after a settle in a share-partition that nobody had loaded."""
        self._settled_late = settled_late
        self._late: Counter[str] = Counter()
        """Such settles under way, by group."""
        self._storage = storage
        self._partitions = partitions
        self._topics = topics
        self._stats = stats
        self._duties = duties

    @handles(ShareSettleRequest)
    async def settle(self, request: ShareSettleRequest, connection: InProcess) -> ShareSettleResponse:
        """Check, decide, write, answer."""
        self._stats.settles += 1
        try:
            await self._settle(request, connection)
        except EXPECTED as error:
            self._stats.failed_settles += 1
            return self._refused(request, error)
        lock_ms = self._duties.config_of(request.group_id).record_lock_duration_ms
        return ShareSettleResponse(lock_timeout_ms=lock_ms)

    async def _settle(self, request: ShareSettleRequest, connection: InProcess) -> None:
        """Settle. Raises: EXPECTED."""
        group_id, member_id = check_ids(request.group_id, request.member_id)
        check_readable(self._topics.by_id(request.topic_id), connection.may_read)
        _check(request)
        key = ShareKey(group_id, request.topic_id, request.partition)
        self._partitions.check_led(key)
        outputs = [Output(*output) for output in request.outputs]
        source = None if connection.host == IN_PROCESS else connection
        checked = await self._storage.checked(outputs, source=source)
        topic = self._topics.find(request.topic_id, request.partition)
        owner = self._partitions.get(key)
        if owner is None and self._partitions.knows(key):
            await self._settle_late(key, member_id, request, checked)
            return
        if owner is None:
            self._partitions.check_led(key)
            raise UnknownTopicOrPartition(f"{topic.name}-{request.partition} is not loaded for group {group_id}")
        await self._settle_at(owner, member_id, request, checked)

    async def _settle_at(
        self, owner: PartitionOwner, member_id: str, request: ShareSettleRequest, checked: Sequence[CheckedOutput]
    ) -> None:
        if request.ordered:
            await owner.turn(member_id, request.acks)
        await owner.settle(member_id, request.acks, checked)

    async def _settle_late(
        self, key: ShareKey, member_id: str, request: ShareSettleRequest, checked: Sequence[CheckedOutput]
    ) -> None:
        """Settle where the last reader has gone: the state tells what it holds no more. Raises: EXPECTED."""
        self._late[key.group_id] += 1
        try:
            await self._settle_at(await self._partitions.open(key), member_id, request, checked)
        finally:
            self._late[key.group_id] -= 1
            if not self._late[key.group_id]:  # others may have the same share-partition in hand
                del self._late[key.group_id]
                self._settled_late(key.group_id)

    def _refused(self, request: ShareSettleRequest, error: BaseException) -> ShareSettleResponse:
        code, message = failure(error)
        if isinstance(error, OutputRefused):
            outputs = tuple(RefusedOutput(index, *failure(why)) for index, why in error.places.items())
            return ShareSettleResponse(error=ErrorCode.INVALID_REQUEST, message=message, outputs=outputs)
        if isinstance(error, InvalidRecordState):
            return ShareSettleResponse(error=code, message=message, refused=error.ranges)
        if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return ShareSettleResponse(error=code, message=message)
        leader = self._duties.leader_of(request.topic_id, request.partition)
        endpoints = {} if leader is NOT_KNOWN or leader.address is None else {leader.current[0]: leader.address}
        return ShareSettleResponse(error=code, message=message, current_leader=leader.current, node_endpoints=endpoints)


def _check(request: ShareSettleRequest) -> None:
    """Check. Raises: InvalidRequest."""
    if not request.acks:
        raise InvalidRequest("a settle names no records")
    check_batches(request.acks, version=VERSION, renew_allowed=False)
    offsets = sum(ack.last - ack.first + 1 for ack in request.acks)
    if offsets > OFFSETS_MAX or len(request.outputs) > OUTPUTS_MAX:
        raise InvalidRequest(
            f"a settle has {OFFSETS_MAX} records and {OUTPUTS_MAX} outputs at most, not {offsets} and "
            f"{len(request.outputs)}: settle them in parts"
        )
    if request.ordered and len(merged((ack.first, ack.last) for ack in request.acks)) > 1:
        raise InvalidRequest("outputs in the partition's order are settled run by run: these offsets have gaps")
