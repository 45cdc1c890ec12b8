"""KIP-211: when committed offsets expire, scenario by scenario (numbers of the catalogue).

Scenario 25 is about the client, 26 about share groups (`tests/share/test_retention.py`); 17 and 20 are also seen
through the server in `tests/server/test_classic.py`, 22 in `tests/server/test_consumer_protocol.py`.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from flowshare.core_errors import InvalidProducerEpoch
from flowshare.groups.expiry import expired, group_expires
from flowshare.groups.group import ClassicGroup
from flowshare.groups.offsets import (
    Committed,
    OffsetChange,
    OffsetPartition,
    Offsets,
    TransactionalProducer,
    decode_offset,
    encode_offset,
)
from flowshare.groups.stored import decode_group
from tests.groups.builders import SESSION_MS, Supported, World, subscription
from tests.groups.consumer_world import ConsumerWorld, topic

R = 60_000
"""The retention."""
KEPT = (set(), False)


@pytest.fixture
def world():
    return World(offsets_retention_minutes=1)


def rejoin(world, member_id, **fields):
    """A member joins again and the group becomes Stable with it alone."""
    world.ask(member_id, **fields)
    world.synced(member_id)


def test_scenario_01_nothing_of_a_stable_group_expires_as_long_as_it_is_subscribed(world):
    (one,) = world.dynamic()
    world.commit()
    world.wait(3 * R, one)
    assert world.sweep() == KEPT


def test_scenario_02_offsets_go_a_retention_after_the_last_member_and_the_group_with_them(world):
    (one,) = world.dynamic()
    world.commit()
    world.leave(one)
    world.wait(R - 1)
    assert world.sweep() == KEPT
    world.wait(1)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_03_an_old_commit_is_kept_a_whole_retention_after_the_group_became_empty(world):
    (one,) = world.dynamic()
    world.commit()
    world.wait(R - 1, one)
    world.leave(one)
    world.wait(R - 1)
    assert world.sweep() == KEPT


def test_scenario_04_a_member_that_comes_and_goes_starts_the_time_anew(world):
    (one,) = world.dynamic()
    world.commit()
    world.leave(one)
    world.wait(R * 9 // 10)
    (two,) = world.dynamic()
    world.leave(two)
    world.wait(R - 1)
    assert world.sweep() == KEPT
    world.wait(1)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_05_nothing_expires_while_the_group_rebalances(world):
    (one,) = world.dynamic(rebalance_timeout_ms=10 * R)
    world.commit("other")
    world.ask(rebalance_timeout_ms=10 * R)
    world.group._phases.members.get(one).session_timeout_ms = 10 * R
    with pytest.raises(Exception, match="join again"):
        world.beat(one)
    world.wait(2 * R)
    assert world.group.state.value == "PreparingRebalance"
    assert world.sweep() == KEPT


def test_scenario_06_a_topic_that_no_member_subscribes_to_any_more_expires_by_its_commit(world):
    (one,) = world.dynamic(topics=("t", "u"))
    world.commit("t")
    world.commit("u")
    rejoin(world, one, topics=("t",))
    world.wait(R - 1, one)
    assert world.sweep() == KEPT
    world.wait(1, one)
    assert world.sweep() == ({("u", 0)}, False)


def test_scenario_06_all_members_must_have_dropped_the_topic(world):
    one = world.ask(instance="a", topics=("t", "u"))
    world.ask(instance="b", topics=("t",))
    world.ask(world.answers[one].member_id, instance="a", topics=("t", "u"))
    assert world.group.subscribed == {"t", "u"}


def test_scenario_07_a_topic_that_is_subscribed_to_again_in_time_is_kept(world):
    (one,) = world.dynamic(topics=("t", "u"))
    world.commit("u")
    rejoin(world, one, topics=("t",))
    world.wait(R - 1, one)
    rejoin(world, one, topics=("t", "u"))
    world.wait(R, one)
    assert world.sweep() == KEPT


def test_scenario_08_a_commit_to_an_unsubscribed_topic_starts_its_time_anew(world):
    (one,) = world.dynamic(topics=("t",))
    world.commit("u")
    world.wait(R - 1, one)
    world.commit("u")
    world.wait(R - 1, one)
    assert world.sweep() == KEPT
    world.wait(1, one)
    assert world.sweep() == ({("u", 0)}, False)


def test_scenario_09_a_pattern_that_no_longer_matches_is_a_topic_unsubscribed(world):
    (one,) = world.dynamic(topics=("logs-1", "logs-2"))
    world.commit("logs-1")
    world.commit("logs-2")
    rejoin(world, one, topics=("logs-2",))
    world.wait(R, one)
    assert world.sweep() == ({("logs-1", 0)}, False)


def test_scenario_10_groups_of_other_protocol_types_keep_everything_until_they_are_empty(world):
    (one,) = world.dynamic(kind="connect")
    world.commit()
    world.wait(3 * R, one)
    assert world.sweep() == KEPT
    world.leave(one)
    world.wait(R - 1)
    assert world.sweep() == KEPT
    world.wait(1)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_11_a_subscription_that_cannot_be_read_keeps_everything_while_members_are_there(world):
    (one,) = world.dynamic(protocols=(Supported("range", b"?"),))
    world.commit()
    world.wait(3 * R, one)
    assert world.sweep() == KEPT


def test_scenario_12_a_simple_consumers_offsets_expire_by_their_commits_each_on_its_own(world):
    for _ in range(6):
        world.commit(number=0)
        world.commit(number=1)
        world.wait(R // 2)
        assert world.sweep() == KEPT
    world.commit(number=1)
    world.wait(R // 2)
    assert world.sweep() == ({("t", 0)}, False)
    world.wait(R // 2)
    assert world.sweep() == ({("t", 1)}, True)


def test_scenario_13_a_simple_consumers_group_that_gets_members_follows_their_rules(world):
    world.commit()
    (one,) = world.dynamic()
    world.wait(2 * R, one)
    assert world.sweep() == KEPT
    world.leave(one)
    world.wait(R - 1)
    assert world.sweep() == KEPT


def test_scenario_14_commits_with_a_time_of_their_own_go_by_it_when_the_group_is_empty(world):
    (one,) = world.dynamic()
    world.commit(number=0, retention_ms=1)
    world.commit(number=1, retention_ms=3)
    world.commit(number=2)
    world.wait(2, one)
    assert world.sweep() == KEPT
    world.leave(one)
    assert world.sweep() == ({("t", 0)}, False)
    world.wait(1)
    assert world.sweep() == ({("t", 1)}, False)
    world.wait(R - 1)
    assert world.sweep() == ({("t", 2)}, True)


def test_scenario_15_an_offset_that_a_transaction_is_about_to_replace_is_kept_until_it_is_aborted(world):
    world.commit()
    world.commit(offset=9, producer=TransactionalProducer(4, 0))
    world.wait(R)
    assert world.sweep() == KEPT
    world.complete(4, committed=False)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_15_a_committed_transaction_gives_the_offset_a_new_time(world):
    world.commit()
    world.wait(R // 2)
    world.commit(offset=9, producer=TransactionalProducer(4, 0))
    world.wait(R // 2)
    world.complete(4, committed=True)
    assert world.sweep() == KEPT
    assert world.offsets.committed[OffsetPartition("t", 0)].offset == 9
    world.wait(R // 2)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_16_an_open_transaction_keeps_the_group_but_not_the_expired_offsets(world):
    world.commit(number=0)
    world.commit(number=1, producer=TransactionalProducer(4, 0))
    world.wait(R)
    assert world.sweep() == ({("t", 0)}, False)
    world.complete(4, committed=False)
    assert world.sweep() == (set(), True)


def test_scenario_17_a_restart_does_not_start_the_time_anew(world):
    (one,) = world.dynamic()
    world.commit()
    world.leave(one)
    world.wait(R // 2)
    world.restart()
    world.wait(R // 2 - 1)
    assert world.sweep() == KEPT
    world.wait(1)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_18_a_stored_group_without_the_time_goes_by_its_commits(world):
    (one,) = world.dynamic()
    world.commit()
    world.wait(R - 2, one)
    world.leave(one)
    state = replace(decode_group(world.stored), state_since_ms=None)
    world.group = ClassicGroup("g", config=world.config, state=state, now_ms=world.now_ms)
    world.wait(1)
    assert world.sweep() == KEPT
    world.wait(1)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_19_a_group_whose_static_member_is_away_is_not_empty(world):
    world.members("a", session_timeout_ms=10 * R)
    world.commit()
    world.wait(10 * R - 1)
    assert world.sweep() == KEPT


def test_scenario_20_the_offsets_of_a_deleted_topic_go_and_those_of_the_new_one_stay(world):
    new = UUID(int=8)
    world.commit("t")
    world.commit("t", 1, topic_id=new)
    world.commit("t", 2, producer=TransactionalProducer(4, 0))
    world.offsets.apply(world.offsets.forget_topics(lambda topic_id: topic_id == new))
    assert set(world.offsets.committed) == {OffsetPartition("t", 1)}
    assert not world.offsets._pending


def test_scenario_21_offsets_of_a_topic_that_members_read_are_told_apart(world):
    (one,) = world.dynamic(topics=("t",))
    assert world.group.reads("t")
    assert not world.group.reads("u")
    world.leave(one)
    assert not world.group.reads("t")


def test_scenario_24_exactly_the_retention_is_expired_and_a_millisecond_less_is_not(world):
    world.commit()
    world.wait(R - 1)
    assert world.sweep() == KEPT
    world.wait(1)
    assert world.sweep() == ({("t", 0)}, True)


def test_scenario_27_a_group_that_never_committed_goes_at_the_first_sweep(world):
    (one,) = world.dynamic()
    assert world.sweep() == KEPT
    world.leave(one)
    assert world.sweep() == (set(), True)


def test_a_group_whose_member_is_about_to_come_back_with_its_id_is_kept(world):
    with pytest.raises(Exception, match="join again"):
        world.ask(known_id_required=True)
    assert world.sweep() == KEPT
    world.wait(SESSION_MS)
    assert world.sweep() == (set(), True)


# --- transactions -----------------------------------------------------------------------------------------------------


def test_a_transaction_does_not_replace_an_offset_that_was_committed_later():
    world = World()
    world.commit(offset=1)
    world.commit(offset=2, producer=TransactionalProducer(4, 0))
    world.commit(offset=3)
    world.complete(4, committed=True)
    assert world.offsets.committed[OffsetPartition("t", 0)].offset == 3
    assert not world.offsets._pending


def test_a_producer_that_was_replaced_commits_nothing_and_ends_nothing():
    world = World()
    world.commit(offset=2, producer=TransactionalProducer(4, 1))
    with pytest.raises(InvalidProducerEpoch):
        world.commit(offset=9, producer=TransactionalProducer(4, 0))
    world.complete(4, committed=True, epoch=0)
    assert world.offsets.unstable(OffsetPartition("t", 0))
    world.complete(4, committed=False, epoch=2)
    assert not world.offsets.unstable(OffsetPartition("t", 0))
    assert not world.offsets


def test_an_offset_is_read_as_it_was_stored():
    world = World()
    world.commit(retention_ms=5)
    value = replace(world.offsets.committed[OffsetPartition("t", 0)], metadata="später", leader_epoch=3)
    assert decode_offset(encode_offset(value)) == value
    assert not list(Offsets().clear())


def test_topics_are_read_from_the_chosen_protocols_metadata():
    world = World()
    world.dynamic(protocols=(Supported("range", subscription("a", "b")),))
    assert world.group.subscribed == {"a", "b"}


# --- the consumer protocol (KIP-848) ----------------------------------------------------------------------------------


class Today:
    """A group of the consumer protocol with offsets of topics t and u."""

    def __init__(self, *members):
        self.world = ConsumerWorld()
        self.world.topics["u"] = topic("u", 1)
        self.offsets = Offsets()
        for name, topics in members:
            self.world.beat(self.world.client(name, topics=topics))
        for name in ("t", "u"):
            self.commit(name, 0)

    def commit(self, name, commit_ms, **fields):
        value = Committed(offset=1, commit_ms=commit_ms, topic_id=UUID(int=7), **fields)
        self.offsets.apply([OffsetChange(OffsetPartition(name, 0), value)])

    def sweep(self, now_ms):
        """Topics whose offsets go, and whether the group goes then."""
        group = self.world.group
        gone = expired(group, self.offsets, self.offsets.committed, now_ms=now_ms, retention_ms=R)
        self.offsets.apply([OffsetChange(partition, None) for partition in gone])
        return {partition.topic for partition in gone}, group_expires(group, self.offsets)


def test_scenario_22_what_was_committed_long_ago_goes_at_once_when_the_last_member_has_left():
    today = Today(("a", ("t", "u")))
    assert today.sweep(3 * R) == KEPT
    today.world.leave(today.world.clients["a"])
    today.commit("u", 3 * R)  # kept alive by its own
    assert today.sweep(3 * R) == ({"t"}, False)
    assert today.sweep(4 * R - 1) == KEPT
    assert today.sweep(4 * R) == ({"u"}, True)


def test_scenario_23_the_topics_of_one_who_left_are_looked_at_though_others_stay():
    today = Today(("a", ("t",)), ("b", ("u",)))
    today.world.leave(today.world.clients["b"])
    assert today.sweep(R - 1) == KEPT
    assert today.sweep(R) == ({"u"}, False)


def test_scenario_27_a_group_that_never_committed_goes_when_it_is_empty():
    today = Today(("a", ("t",)))
    today.offsets = Offsets()
    assert today.sweep(R) == KEPT
    today.world.leave(today.world.clients["a"])
    assert today.sweep(R) == (set(), True)
