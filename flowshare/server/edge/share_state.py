"""The state APIs of a share coordinator; all of them need CLUSTER_ACTION on the cluster (share-groups.md §3.10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.kafka import ApiKey
from flowshare.protocol.messages import (
    DeleteShareGroupStateRequest,
    InitializeShareGroupStateRequest,
    ReadShareGroupStateRequest,
    ReadShareGroupStateSummaryRequest,
    ShareGroupStateResponse,
    WriteShareGroupStateRequest,
)
from flowshare.server.answers import fitting
from flowshare.server.edge.base import Api, Call, Operation
from flowshare.server.edge.forms import LEADER_EPOCH, Form, form, may_cluster, once
from flowshare.share.errors import InvalidRequest
from flowshare.share.types import PartitionState, RecordState, StateRun

if TYPE_CHECKING:
    import uuid

    from flowshare.protocol.messages import Request
    from flowshare.server.failures import Refused

Build = Callable[[str, "uuid.UUID", Any], "Request[ShareGroupStateResponse]"]
Extra = Callable[[Form, PartitionState | None], dict[str, Any]]

DELIVERIES_MAX: Final = 2**15 - 1
STORED_STATES: Final = frozenset(RecordState) - {RecordState.ACQUIRED}
REFUSED: Final = ShareGroupStateResponse(
    error=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, message="this needs CLUSTER_ACTION on the cluster"
)
NO_TOPIC: Final = ShareGroupStateResponse(error=ErrorCode.INVALID_REQUEST, message="the topic id is missing")


class ShareStateEdge:
    """Answers the state APIs."""

    def apis(self) -> Sequence[Api]:
        """The five APIs."""
        return (
            Api(key=ApiKey.INITIALIZE_SHARE_GROUP_STATE, lowest=0, highest=0, answer=self.initialize),
            Api(key=ApiKey.READ_SHARE_GROUP_STATE, lowest=0, highest=0, answer=self.read),
            Api(key=ApiKey.WRITE_SHARE_GROUP_STATE, lowest=0, highest=1, answer=self.write),
            Api(key=ApiKey.DELETE_SHARE_GROUP_STATE, lowest=0, highest=0, answer=self.delete),
            Api(key=ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, lowest=0, highest=1, answer=self.summary),
        )

    async def initialize(self, call: Call) -> Any:
        """Start share-partitions anew."""
        return await _each(call, "initialize_share_group_state", "InitializeState", _initialize)

    async def read(self, call: Call) -> Any:
        """States for a new leader."""
        return await _each(call, "read_share_group_state", "ReadState", _read, _whole)

    async def write(self, call: Call) -> Any:
        """A leader's changes."""
        return await _each(call, "write_share_group_state", "WriteState", _write)

    async def delete(self, call: Call) -> Any:
        """Forget share-partitions."""
        return await _each(call, "delete_share_group_state", "DeleteState", _delete)

    async def summary(self, call: Call) -> Any:
        """Start offsets, whoever leads."""
        return await _each(call, "read_share_group_state_summary", "ReadStateSummary", _summary, _short)


def _nothing(_: Form, __: PartitionState | None) -> dict[str, Any]:
    return {}


async def _each(call: Call, name: str, stem: str, build: Build, extra: Extra = _nothing) -> Any:
    """Ask for each share-partition of a request and list the results below their topics."""
    make = form(name, call.version)
    allowed = may_cluster(call.peer, Operation.CLUSTER_ACTION)
    topics: list[Any] = []
    named = await once(call.peer.turns, call.request.topics, "topic_id", "partition")
    for topic_id, parts in named.items():
        results: list[Any] = []
        for number, part in parts.items():
            await call.peer.turns.take()
            answer = REFUSED if not allowed else NO_TOPIC
            if allowed and topic_id is not None:
                answer = await _ask(call, build, topic_id, part)
            results.append(
                fitting(
                    partial(_result, make, number, answer, extra),
                    partial(_no_result, make, number, extra),
                )
            )
        topics.append(make(f"{stem}Result", topic_id=topic_id, partitions=tuple(results)))
    return make(f"{name.replace('_', ' ').title().replace(' ', '')}Response", results=tuple(topics))


def _result(make: Form, number: int, answer: ShareGroupStateResponse, extra: Extra) -> Any:
    return make(
        "PartitionResult",
        partition=number,
        error_code=answer.error,
        error_message=answer.message,
        **extra(make, answer.state),
    )


def _no_result(make: Form, number: int, extra: Extra, error: Refused) -> Any:
    return _result(make, number, ShareGroupStateResponse(error=error.code, message=str(error)), extra)


async def _ask(call: Call, build: Build, topic_id: uuid.UUID, part: Any) -> ShareGroupStateResponse:
    try:
        request = build(call.request.group_id, topic_id, part)
    except InvalidRequest as error:
        return ShareGroupStateResponse(error=ErrorCode.INVALID_REQUEST, message=str(error))
    return await call.peer.connection.send(request)


def _initialize(group_id: str, topic_id: uuid.UUID, part: Any) -> InitializeShareGroupStateRequest:
    if part.state_epoch < 0 or part.start_offset < -1:
        raise InvalidRequest(f"state epoch {part.state_epoch} or start offset {part.start_offset} is negative")
    return InitializeShareGroupStateRequest(
        group_id=group_id,
        topic_id=topic_id,
        partition=part.partition,
        state_epoch=part.state_epoch,
        start_offset=part.start_offset,
    )


def _read(group_id: str, topic_id: uuid.UUID, part: Any) -> ReadShareGroupStateRequest:
    return ReadShareGroupStateRequest(
        group_id=group_id, topic_id=topic_id, partition=part.partition, leader_epoch=part.leader_epoch
    )


def _write(group_id: str, topic_id: uuid.UUID, part: Any) -> WriteShareGroupStateRequest:
    return WriteShareGroupStateRequest(
        group_id=group_id,
        topic_id=topic_id,
        partition=part.partition,
        state_epoch=part.state_epoch,
        leader_epoch=part.leader_epoch,
        start_offset=part.start_offset,
        delivery_complete_count=getattr(part, "delivery_complete_count", -1),  # from version 1 on
        runs=tuple(_run(batch) for batch in part.state_batches),
    )


def _run(batch: Any) -> StateRun:
    """Raises: InvalidRequest."""
    first, last, count = batch.first_offset, batch.last_offset, batch.delivery_count
    if not 0 <= first <= last or count < 0 or batch.delivery_state not in STORED_STATES:
        raise InvalidRequest(
            f"state batch {first}-{last} with state {batch.delivery_state} and delivery count {count} cannot be stored"
        )
    return StateRun(first, last, RecordState(batch.delivery_state), count)


def _delete(group_id: str, topic_id: uuid.UUID, part: Any) -> DeleteShareGroupStateRequest:
    return DeleteShareGroupStateRequest(group_id=group_id, topic_id=topic_id, partition=part.partition)


def _summary(group_id: str, topic_id: uuid.UUID, part: Any) -> ReadShareGroupStateSummaryRequest:
    return ReadShareGroupStateSummaryRequest(group_id=group_id, topic_id=topic_id, partition=part.partition)


def _whole(make: Form, state: PartitionState | None) -> dict[str, Any]:
    if state is None:
        return {"state_epoch": 0, "start_offset": -1, "state_batches": ()}
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": tuple(
            make(
                "StateBatch",
                first_offset=run.first,
                last_offset=run.last,
                # Records in the hands of members stand as available in Kafka's state: a new leader gives them again.
                delivery_state=int(RecordState.AVAILABLE if run.state is RecordState.ACQUIRED else run.state),
                delivery_count=min(run.delivery_count, DELIVERIES_MAX),
            )
            for run in state.runs
        ),
    }


def _short(_: Form, state: PartitionState | None) -> dict[str, Any]:
    if state is None:
        return {"state_epoch": 0, "leader_epoch": LEADER_EPOCH, "start_offset": -1, "delivery_complete_count": -1}
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.delivery_complete_count,
    }
