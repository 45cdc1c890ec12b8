"""Decisions of a share coordinator about the durable state of one share-partition, fenced by epochs (SG-14.4).

Every rule returns the state to be stored afterwards; deleting the state needs no rule, as it is always allowed. Updates
are combined as Kafka does it (`records.combine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from flowshare.core_errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, UnknownTopicOrPartition
from flowshare.share.records import combine
from flowshare.share.types import PartitionState, PartitionUpdate, StateRun


@dataclass(frozen=True, slots=True)
class StateEntry:
    """The stored state of a share-partition, as the state APIs read and write it.

    state: None if it was never initialised.
    exists: True if its topic has this partition.
    """

    group_id: str
    topic_id: UUID
    partition: int
    state: PartitionState | None
    exists: bool = True

    def initialize(self, *, state_epoch: int, start_offset: int) -> PartitionState:
        """Return the state that starts anew at an offset (−1: not resolved yet), whatever is stored.

        Raises FencedStateEpoch, UnknownTopicOrPartition.
        """
        leader_epoch = 0
        if self.state is not None:
            _check_state_epoch(self.state, state_epoch)
            leader_epoch = self.state.leader_epoch
        self._check_exists()
        return PartitionState(state_epoch=state_epoch, leader_epoch=leader_epoch, start_offset=start_offset)

    def read(self, *, leader_epoch: int) -> PartitionState:
        """Return the state for a new leader, which fences former leaders; the stored object itself if nothing changes.

        Raises InvalidRequest, FencedLeaderEpoch, UnknownTopicOrPartition.
        """
        state = self._found()
        _check_leader_epoch(state, leader_epoch)
        self._check_exists()
        return state if leader_epoch == state.leader_epoch else replace(state, leader_epoch=leader_epoch)

    def write(
        self,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        runs: Sequence[StateRun],
    ) -> PartitionState:
        """Return the state with a leader's changes. The start offset never goes back.

        Raises InvalidRequest, FencedLeaderEpoch, FencedStateEpoch, UnknownTopicOrPartition.
        """
        state = self._found()
        if state_epoch < 0:
            raise InvalidRequest(f"state epoch {state_epoch} is negative")
        _check_leader_epoch(state, leader_epoch)
        _check_state_epoch(state, state_epoch)
        self._check_exists()
        update = PartitionUpdate(
            start_offset=start_offset, delivery_complete_count=delivery_complete_count, runs=tuple(runs)
        )
        return replace(_updated(state, update), leader_epoch=leader_epoch)

    def _found(self) -> PartitionState:
        if self.state is None:
            raise InvalidRequest(
                f"share-partition {self.topic_id}-{self.partition} of {self.group_id} was not initialised"
            )
        return self.state

    def _check_exists(self) -> None:
        if not self.exists:
            raise UnknownTopicOrPartition(f"there is no partition {self.partition} of topic {self.topic_id}")


def _check_state_epoch(state: PartitionState, state_epoch: int) -> None:
    if state_epoch < state.state_epoch:
        raise FencedStateEpoch(f"state epoch {state_epoch} is below {state.state_epoch}")


def _check_leader_epoch(state: PartitionState, leader_epoch: int) -> None:
    if leader_epoch < 0:
        raise InvalidRequest(f"leader epoch {leader_epoch} is negative")
    if leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(f"leader epoch {leader_epoch} is below {state.leader_epoch}")


def _updated(state: PartitionState, update: PartitionUpdate) -> PartitionState:
    """Return the state after an update; an older start offset changes neither start offset nor count."""
    start = max(state.start_offset, update.start_offset)
    complete = state.delivery_complete_count
    if update.start_offset > state.start_offset:
        complete = update.delivery_complete_count
    elif update.start_offset == state.start_offset or update.start_offset == -1:
        complete = max(complete, update.delivery_complete_count)
    runs = combine(state.runs, update.runs, max(start, 0))
    return replace(state, start_offset=start, delivery_complete_count=complete, runs=runs)
