"""The share coordinator's rules for stored state (scenarios P01 to P04, P07, P21 and P23)."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowshare.core_errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, UnknownTopicOrPartition
from flowshare.share.shard import StateEntry
from flowshare.share.types import RecordState, StateRun


class Store:
    """One share-partition's entry; what is decided is stored at once."""

    def __init__(self):
        self.state = None
        self.exists = True

    @property
    def entry(self):
        return StateEntry("g", UUID(int=1), 0, self.state, self.exists)

    @property
    def summary(self):
        return self.state.start_offset, self.state.delivery_complete_count

    def initialize(self, *, state_epoch=1, start=-1):
        self.state = self.entry.initialize(state_epoch=state_epoch, start_offset=start)

    def write(self, *content, state_epoch=1, leader_epoch=0, start=0, complete=0):
        self.state = self.entry.write(
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start,
            delivery_complete_count=complete,
            runs=content,
        )

    def read(self, *, leader_epoch=0):
        self.state = self.entry.read(leader_epoch=leader_epoch)
        return self.state


def run(first, last, state, count):
    return StateRun(first, last, RecordState(state), count)


def test_p01_a_key_never_initialised_can_be_neither_written_nor_read():
    store = Store()

    with pytest.raises(InvalidRequest):
        store.write()
    with pytest.raises(InvalidRequest):
        store.read()


def test_p02_a_lower_leader_epoch_is_fenced():
    store = Store()
    store.initialize()
    store.write(leader_epoch=5)

    with pytest.raises(FencedLeaderEpoch):
        store.write(leader_epoch=4)
    with pytest.raises(FencedLeaderEpoch):
        store.read(leader_epoch=4)
    store.write(leader_epoch=5)


def test_p03_a_lower_state_epoch_is_fenced():
    store = Store()
    store.initialize(state_epoch=1)

    with pytest.raises(FencedStateEpoch):
        store.write(state_epoch=0)
    with pytest.raises(FencedStateEpoch):
        store.initialize(state_epoch=0)


def test_negative_epochs_are_refused():
    store = Store()
    store.initialize()

    with pytest.raises(InvalidRequest):
        store.write(leader_epoch=-1)
    with pytest.raises(InvalidRequest):
        store.write(state_epoch=-1)


def test_p04_a_read_with_a_higher_leader_epoch_fences_the_leader_before():
    store = Store()
    store.initialize()
    store.write(leader_epoch=3)

    assert store.read(leader_epoch=7).leader_epoch == 7

    with pytest.raises(FencedLeaderEpoch):
        store.write(leader_epoch=3)


def test_a_read_with_the_known_leader_epoch_writes_nothing():
    store = Store()
    store.initialize()

    assert store.entry.read(leader_epoch=0) is store.state


def test_p07_initialising_again_starts_anew():
    store = Store()
    store.initialize(state_epoch=1, start=0)
    store.write(run(0, 9, 0, 1), leader_epoch=2, complete=3)

    store.initialize(state_epoch=2, start=40)
    state = store.read(leader_epoch=2)

    assert (state.state_epoch, state.start_offset, state.runs, state.delivery_complete_count) == (2, 40, (), 0)
    with pytest.raises(FencedStateEpoch):
        store.write(state_epoch=1, leader_epoch=2)
    with pytest.raises(FencedLeaderEpoch):
        store.write(state_epoch=2, leader_epoch=1)


def test_p21_after_a_fail_over_of_the_leader_counts_are_those_last_written():
    store = Store()
    store.initialize(start=0)
    store.write(run(0, 4, 2, 1), run(5, 9, 0, 2), leader_epoch=1)

    state = store.read(leader_epoch=2)

    assert state.runs == (run(0, 4, 2, 1), run(5, 9, 0, 2))


def test_p23_a_lower_start_offset_is_not_taken():
    store = Store()
    store.initialize(start=40)
    store.write(start=50, complete=3)

    store.write(start=45, complete=1)

    assert store.summary == (50, 3)


def test_the_count_follows_the_start_offset_and_does_not_go_back_at_the_same_one():
    store = Store()
    store.initialize(start=0)
    store.write(start=0, complete=5)
    store.write(start=0, complete=4)
    assert store.summary == (0, 5)

    store.write(start=10, complete=1)
    assert store.summary == (10, 1)


def test_a_topic_or_partition_that_is_gone_is_refused():
    store = Store()
    store.initialize()
    store.exists = False

    for operation in (store.initialize, store.write, store.read):
        with pytest.raises(UnknownTopicOrPartition):
            operation()
