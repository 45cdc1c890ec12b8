"""The share coordinator's shard (scenarios P01 to P10 and P21 to P23)."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowshare.share.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, UnknownTopicOrPartition
from flowshare.share.shard import ShardKey, StateShard
from flowshare.share.types import PartitionState, PartitionUpdate, RecordState, StateRun

TOPIC = UUID(int=1)
KEY = ShardKey("g", TOPIC, 0)
OTHER = ShardKey("g", TOPIC, 1)


class Store:
    """A shard with the log of what it wrote."""

    def __init__(self, **options):
        self.options = options
        self.shard = StateShard(**options)
        self.log = []

    def keep(self, record):
        self.log.append(record)
        self.shard.apply(record)
        return record

    def initialize(self, key=KEY, *, state_epoch=1, start=-1, now_ms=0):
        return self.keep(self.shard.initialize(key, state_epoch=state_epoch, start_offset=start, now_ms=now_ms))

    def write(self, key=KEY, *content, state_epoch=1, leader_epoch=0, start=0, complete=0, now_ms=0):
        return self.keep(
            self.shard.write(
                key,
                state_epoch=state_epoch,
                leader_epoch=leader_epoch,
                start_offset=start,
                delivery_complete_count=complete,
                runs=content,
                now_ms=now_ms,
            )
        )

    def read(self, key=KEY, *, leader_epoch=0):
        state, record = self.shard.read(key, leader_epoch=leader_epoch)
        if record is not None:
            self.keep(record)
        return state

    def fail_over(self):
        """The shard as another coordinator loads it."""
        other = Store(**self.options)
        for record in self.log:
            other.keep(record)
        return other


def run(first, last, state, count):
    return StateRun(first, last, RecordState(state), count)


def test_p01_a_key_never_initialised_can_be_neither_written_nor_read():
    store = Store()

    with pytest.raises(InvalidRequest):
        store.write()
    with pytest.raises(InvalidRequest):
        store.read()


@pytest.mark.parametrize("key", [ShardKey("g", None, 0), ShardKey("g", TOPIC, -1), ShardKey("", TOPIC, 0)])
def test_a_key_must_be_whole(key):
    store = Store()

    for operation in (store.initialize, store.write, store.read, store.shard.summary, store.shard.delete):
        with pytest.raises(InvalidRequest):
            operation(key)


def test_p02_a_lower_leader_epoch_is_fenced():
    store = Store()
    store.initialize()
    store.write(leader_epoch=5)

    with pytest.raises(FencedLeaderEpoch):
        store.write(leader_epoch=4)
    with pytest.raises(FencedLeaderEpoch):
        store.read(leader_epoch=4)
    assert store.write(leader_epoch=5)


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
    with pytest.raises(FencedLeaderEpoch):
        store.fail_over().write(leader_epoch=3)


def test_a_read_with_the_known_leader_epoch_writes_nothing():
    store = Store()
    store.initialize()

    assert store.shard.read(KEY, leader_epoch=0)[1] is None


def test_p05_after_so_many_updates_the_next_write_is_a_snapshot():
    store = Store(updates_max=3)
    first = store.initialize()
    updates = [store.write(KEY, run(i, i, 2, 1)) for i in range(3)]

    snapshot = store.write(KEY, run(3, 3, 2, 1))
    after = store.write(KEY, run(4, 4, 2, 1))

    assert first.snapshot_epoch == 0
    assert all(isinstance(record.value, PartitionUpdate) and record.snapshot_epoch == 0 for record in updates)
    assert isinstance(snapshot.value, PartitionState)
    assert snapshot.snapshot_epoch == 1
    assert snapshot.value.runs == (run(0, 3, 2, 1),)
    assert isinstance(after.value, PartitionUpdate)
    assert after.snapshot_epoch == 1


def test_with_no_updates_allowed_every_write_is_a_snapshot():
    store = Store(updates_max=0)
    store.initialize()

    assert [store.write().snapshot_epoch for _ in range(2)] == [1, 2]


def test_p06_the_summary_of_a_key_never_initialised_is_no_error():
    store = Store()
    assert store.shard.summary(KEY) == (-1, -1)

    store.initialize(start=4)
    store.write(start=6, complete=2)

    assert store.shard.summary(KEY) == (6, 2)


def test_p07_initialising_again_starts_anew():
    store = Store()
    store.initialize(state_epoch=1, start=0)
    store.write(KEY, run(0, 9, 0, 1), leader_epoch=2, complete=3)

    record = store.initialize(state_epoch=2, start=40)
    state = store.read(leader_epoch=2)

    assert (state.state_epoch, state.start_offset, state.runs, state.delivery_complete_count) == (2, 40, (), 0)
    assert record.snapshot_epoch == 1
    with pytest.raises(FencedStateEpoch):
        store.write(state_epoch=1, leader_epoch=2)
    with pytest.raises(FencedLeaderEpoch):
        store.write(state_epoch=2, leader_epoch=1)


def test_p08_deleting_an_unknown_key_is_no_error():
    store = Store()
    assert store.shard.delete(KEY) is None

    store.initialize()
    record = store.shard.delete(KEY)
    assert record is not None
    store.keep(record)

    assert record.value is None
    assert store.shard.summary(KEY) == (-1, -1)


def test_p09_a_deleted_topic_leaves_tombstones_for_its_keys():
    store = Store()
    elsewhere = ShardKey("g", UUID(int=2), 0)
    for key in (KEY, OTHER, elsewhere):
        store.initialize(key)

    records = store.shard.topic_deleted(TOPIC)

    assert {(record.key, record.value) for record in records} == {(KEY, None), (OTHER, None)}


def test_p10_only_cold_keys_with_updates_get_a_snapshot_and_only_once():
    store = Store(cold_ms=100)
    store.initialize(KEY, now_ms=0)
    store.initialize(OTHER, now_ms=0)
    store.write(KEY, run(0, 3, 2, 1), now_ms=10)
    store.write(OTHER, run(0, 3, 2, 1), now_ms=195)

    (record,) = store.shard.snapshot_cold(now_ms=200)
    store.keep(record)

    assert record.key == KEY
    assert isinstance(record.value, PartitionState)
    assert record.value.runs == (run(0, 3, 2, 1),)
    assert record.snapshot_epoch == 1
    assert store.shard.snapshot_cold(now_ms=200) == ()


def test_nothing_is_cold_while_nothing_is_active():
    store = Store(cold_ms=100)
    store.initialize()
    store.write(now_ms=10)

    assert store.shard.snapshot_cold(now_ms=1_000) == ()


def test_p21_after_a_fail_over_of_the_leader_counts_are_those_last_written():
    store = Store()
    store.initialize(start=0)
    store.write(KEY, run(0, 4, 2, 1), run(5, 9, 0, 2), leader_epoch=1)

    state = store.read(leader_epoch=2)

    assert state.runs == (run(0, 4, 2, 1), run(5, 9, 0, 2))


def test_p22_after_a_fail_over_of_the_coordinator_everything_is_as_before():
    store = Store(updates_max=2)
    store.initialize(start=0)
    store.initialize(OTHER, start=5)
    for i in range(7):
        store.write(KEY, run(i, i, 2 if i % 2 else 0, 1), leader_epoch=1, complete=i // 2)
    record = store.shard.delete(OTHER)
    assert record is not None
    store.keep(record)

    other = store.fail_over()

    assert other.read(leader_epoch=1) == store.read(leader_epoch=1)
    assert other.shard.summary(KEY) == store.shard.summary(KEY)
    assert other.shard.summary(OTHER) == (-1, -1)


def test_an_update_left_over_from_a_deleted_key_is_passed_over():
    store = Store()
    store.initialize()
    update = store.write(KEY, run(0, 1, 2, 1))

    other = StateShard()
    other.apply(update)

    assert other.summary(KEY) == (-1, -1)


def test_p23_a_lower_start_offset_is_not_taken():
    store = Store()
    store.initialize(start=40)
    store.write(start=50, complete=3)

    store.write(start=45, complete=1)

    assert store.shard.summary(KEY) == (50, 3)


def test_the_count_follows_the_start_offset_and_does_not_go_back_at_the_same_one():
    store = Store()
    store.initialize(start=0)
    store.write(start=0, complete=5)
    store.write(start=0, complete=4)
    assert store.shard.summary(KEY) == (0, 5)

    store.write(start=10, complete=1)
    assert store.shard.summary(KEY) == (10, 1)


def test_a_topic_or_partition_that_is_gone_is_refused():
    topics = {TOPIC: 1}
    store = Store(topics=topics)
    store.initialize()

    with pytest.raises(UnknownTopicOrPartition):
        store.initialize(OTHER)
    topics.clear()
    with pytest.raises(UnknownTopicOrPartition):
        store.write()
    with pytest.raises(UnknownTopicOrPartition):
        store.read()
