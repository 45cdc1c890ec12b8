"""One share group: epochs, members, assignment, administration, persistence (scenarios G01 to G14, G22, G24 to G26)."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from flowshare.core_errors import (
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    NonEmptyGroup,
    StateCorrupt,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from flowshare.sealing import seal
from flowshare.share.config import GroupConfig
from flowshare.share.group import ShareGroup, ToInitialize, TopicInfo, check_heartbeat, subscription_growth
from flowshare.share.group_state import VERSION, GroupState, decode_group, encode_group

FOO = TopicInfo("foo", UUID(int=1), 3)
BAR = TopicInfo("bar", UUID(int=2), 2)


class World:
    """A group, the topics that exist and the time."""

    def __init__(self, *topics, **config):
        self.topics = {topic.name: topic for topic in topics}
        self.group = ShareGroup("g", config=GroupConfig(**config))
        self.now_ms = 10_000

    def beat(self, member, epoch, *subscribed, rack=None, client="client"):
        return self.group.heartbeat(
            member_id=member,
            member_epoch=epoch,
            rack_id=rack,
            subscribed_topics=subscribed or None,
            client_id=client,
            client_host="host",
            topics=self.topics,
            now_ms=self.now_ms,
        )

    def restart(self):
        self.group = ShareGroup.decode(self.group.encode(), group_id="g", config=self.group.config, now_ms=self.now_ms)


def partitions(answer):
    assert answer.assignment is not None
    return {partition for _, partition in answer.assignment}


def keys(topic, *numbers):
    return tuple((topic.topic_id, number) for number in numbers or range(topic.partitions))


# --- requests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "member", "epoch", "rack", "subscribed"),
    [
        ("g", "m", 0, None, ()),
        ("g", "m", 0, None, None),
        ("g", "m", -2, None, ("foo",)),
        ("g", "m", 0, "", ("foo",)),
        ("g", "", 0, None, ("foo",)),
        ("", "m", 0, None, ("foo",)),
    ],
)
def test_g01_g02_a_heartbeat_that_contradicts_the_rules_is_refused(group, member, epoch, rack, subscribed):
    with pytest.raises(InvalidRequest):
        check_heartbeat(group, member, epoch, rack, subscribed)


def test_a_refused_heartbeat_changes_nothing():
    world = World(FOO)

    with pytest.raises(InvalidRequest):
        world.beat("a", 0)

    assert world.group.state == "Empty"
    assert world.group.group_epoch == 1


# --- joining ----------------------------------------------------------------------------------------------------


def test_the_first_member_sees_epoch_2_and_has_its_assignment_at_once():
    world = World(FOO)

    answer = world.beat("a", 0, "foo")

    assert answer.member_epoch == 2
    assert answer.assignment == keys(FOO)
    assert answer.to_initialize == tuple(ToInitialize(FOO.topic_id, p, -1, 2) for p in range(3))
    assert answer.changed
    assert not answer.left
    assert world.group.state == "Stable"


def test_g03_a_missing_topic_gives_an_empty_assignment():
    world = World()

    answer = world.beat("a", 0, "foo")

    assert answer.member_epoch == 2
    assert answer.assignment == ()
    assert answer.to_initialize == ()


def test_g04_a_topic_created_later_is_assigned_with_a_higher_epoch_and_then_unchanged():
    world = World()
    world.beat("a", 0, "foo")
    world.topics["foo"] = FOO
    world.now_ms += 5_000

    created = world.beat("a", 2)
    after = world.beat("a", created.member_epoch)

    assert created.member_epoch == 3
    assert created.assignment == keys(FOO)
    assert {item.start_offset for item in created.to_initialize} == {-1}
    assert after.assignment is None
    assert not after.changed


def test_g05_two_members_have_all_partitions_between_them():
    world = World(FOO)
    world.beat("a", 0, "foo")

    second = world.beat("b", 0, "foo")
    first = world.beat("a", 2)

    assert second.to_initialize == ()
    assert partitions(first) | partitions(second) == {0, 1, 2}
    assert first.member_epoch == second.member_epoch == 3


def test_members_beyond_the_partitions_share_them():
    world = World(TopicInfo("foo", FOO.topic_id, 1))

    answers = [world.beat(f"m{i}", 0, "foo") for i in range(16)]

    assert all(partitions(answer) == {0} for answer in answers)


def test_g07_a_member_that_never_joined_is_unknown():
    world = World(FOO)

    with pytest.raises(UnknownMemberId):
        world.beat("a", 5)
    with pytest.raises(UnknownMemberId):
        world.beat("a", -1)


def test_g08_the_current_and_the_previous_epoch_are_accepted():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")
    world.beat("a", 2)
    world.beat("c", 0, "foo")
    world.beat("a", 3)
    member = world.group.members["a"]
    assert (member.epoch, member.previous_epoch) == (4, 3)

    assert world.beat("a", 3).member_epoch == 4
    assert world.beat("a", 4).member_epoch == 4
    for epoch in (2, 9):
        with pytest.raises(FencedMemberEpoch):
            world.beat("a", epoch)


def test_a_jump_to_the_target_is_no_reason_to_write_before_the_answer():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")

    jumped, still = world.beat("a", 2), world.beat("a", 3)

    assert (jumped.member_epoch, jumped.changed, jumped.jumped) == (3, False, True)
    assert (still.changed, still.jumped) == (False, False)


def test_a_group_from_the_store_believes_a_member_that_has_jumped_further_than_is_written():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")
    world.restart()

    assert world.beat("a", 3).member_epoch == 3
    assert (world.group.members["a"].epoch, world.group.members["a"].previous_epoch) == (3, 2)


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_group_from_the_store_believes_no_epoch_that_nobody_was_told(epoch):
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")
    world.restart()

    with pytest.raises(FencedMemberEpoch):
        world.beat("a", epoch)


def test_a_group_from_the_store_believes_only_a_members_first_word():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")
    world.restart()
    world.beat("c", 0, "foo")
    world.group.members["a"].epoch = 2
    world.beat("a", 2)
    world.group.members["a"].epoch = 2

    with pytest.raises(FencedMemberEpoch):
        world.beat("a", 3)


def test_a_member_that_lost_the_last_answer_is_told_its_assignment_again():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")
    lost = world.beat("a", 2)

    assert world.beat("a", 2).assignment == lost.assignment


def test_g09_epoch_0_of_a_member_keeps_its_epoch_and_tells_the_whole_assignment():
    world = World(FOO)
    world.beat("a", 0, "foo")

    again = world.beat("a", 0, "foo")

    assert again.member_epoch == 2
    assert again.assignment == keys(FOO)
    assert not again.changed


def test_a_repeated_subscription_is_answered_with_the_assignment():
    world = World(FOO)
    world.beat("a", 0, "foo")

    assert world.beat("a", 2, "foo").assignment == keys(FOO)
    assert world.beat("a", 2).assignment is None


# --- leaving and expiry -----------------------------------------------------------------------------------------


def test_g10_a_member_that_left_may_join_again_two_epochs_later():
    world = World(FOO)
    world.beat("a", 0, "foo")

    left = world.beat("a", -1)
    again = world.beat("a", 0, "foo")

    assert (left.member_epoch, left.left, left.assignment, left.changed) == (-1, True, None, True)
    assert again.member_epoch == 4
    assert again.assignment == keys(FOO)
    assert again.to_initialize == ()


def test_what_a_member_leaves_goes_to_the_others_at_their_next_heartbeat():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")
    world.beat("a", 2)
    world.now_ms += 1_000

    world.beat("b", -1)

    assert partitions(world.beat("a", 3)) == {0, 1, 2}


def test_g11_a_silent_member_is_removed_at_its_session_timeout():
    world = World(FOO)
    world.beat("a", 0, "foo")
    assert world.group.next_deadline_ms() == 55_000

    assert world.group.expire(54_999) == ()
    assert world.group.expire(55_000) == ("a",)

    with pytest.raises(UnknownMemberId):
        world.beat("a", 2)
    assert world.group.next_deadline_ms() is None
    assert world.beat("a", 0, "foo").member_epoch == 4


def test_a_heartbeat_puts_off_the_session_timeout():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.now_ms += 44_000
    world.beat("a", 2)

    assert world.group.expire(55_000) == ()
    assert world.group.next_deadline_ms() == 99_000


def test_g12_a_full_group_takes_nobody_but_keeps_its_members():
    world = World(FOO, group_max_size=2)
    world.beat("a", 0, "foo")
    world.beat("b", 0, "foo")

    with pytest.raises(GroupMaxSizeReached):
        world.beat("c", 0, "foo")

    assert world.beat("a", 2).member_epoch == 3
    assert world.beat("b", 0, "foo").member_epoch == 3
    assert set(world.group.members) == {"a", "b"}


# --- changes ----------------------------------------------------------------------------------------------------


def test_g14_a_wider_subscription_is_assigned_at_once():
    world = World(FOO, BAR)
    world.beat("a", 0, "foo")

    answer = world.beat("a", 2, "foo", "bar")

    assert answer.member_epoch == 3
    assert answer.assignment is not None
    assert set(answer.assignment) == {*keys(FOO), *keys(BAR)}
    assert {(item.topic_id, item.start_offset) for item in answer.to_initialize} == {(BAR.topic_id, -1)}


def test_a_narrower_subscription_takes_partitions_away():
    world = World(FOO, BAR)
    world.beat("a", 0, "foo", "bar")

    assert world.beat("a", 2, "bar").assignment == keys(BAR)


def test_a_member_has_only_partitions_of_its_own_topics():
    world = World(FOO, BAR)
    world.beat("a", 0, "foo")

    assert world.beat("b", 0, "bar").assignment == keys(BAR)
    assert world.beat("a", 2).assignment is None


def test_a_new_rack_raises_the_epoch_and_a_new_client_id_does_not():
    world = World(FOO)
    world.beat("a", 0, "foo")

    renamed = world.beat("a", 2, client="other")
    moved = world.beat("a", 2, rack="r1")

    assert (renamed.member_epoch, renamed.changed) == (2, True)
    assert (moved.member_epoch, moved.assignment) == (3, None)
    assert world.beat("a", 3, rack="r1").member_epoch == 3


def test_g22_within_the_assignment_interval_members_keep_the_old_epoch():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.topics["foo"] = FOO._replace(partitions=4)
    world.now_ms += 999

    early = world.beat("a", 2)
    world.now_ms += 1
    late = world.beat("a", 2)

    assert (early.member_epoch, early.assignment) == (2, None)
    assert [item.partition for item in early.to_initialize] == [3]
    assert late.member_epoch == 3
    assert partitions(late) == {0, 1, 2, 3}


def test_g22_a_second_member_does_not_wait_for_the_interval():
    world = World(FOO)
    world.beat("a", 0, "foo")

    answer = world.beat("b", 0, "foo")

    assert answer.member_epoch == 3
    assert answer.assignment


def test_a_clock_that_went_back_does_not_stop_assignments():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.topics["foo"] = FOO._replace(partitions=4)
    world.now_ms -= 5_000

    assert world.beat("a", 2).member_epoch == 3


def test_o21_partitions_added_to_a_known_topic_start_at_offset_0():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.topics["foo"] = FOO._replace(partitions=5)
    world.now_ms += 5_000

    answer = world.beat("a", 2)

    assert answer.to_initialize == (ToInitialize(FOO.topic_id, 3, 0, 3), ToInitialize(FOO.topic_id, 4, 0, 3))


def test_partitions_added_while_the_group_was_empty_start_at_offset_0_too():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("a", -1)
    world.restart()
    world.topics["foo"] = FOO._replace(partitions=4)

    answer = world.beat("b", 0, "foo")

    assert [(item.partition, item.start_offset) for item in answer.to_initialize] == [(3, 0)]


def test_a_state_that_could_not_be_written_comes_again_with_its_start_offset():
    world = World(FOO)
    first = world.beat("a", 0, "foo")
    world.group.initialize_failed(first.to_initialize[1:2])
    assert (FOO.topic_id, 1) not in world.group.initialized

    again = world.beat("a", 2)
    world.topics["foo"] = FOO._replace(partitions=4)
    added = world.beat("a", 2)
    world.group.initialize_failed(added.to_initialize)
    readded = world.beat("a", 2)

    assert [(item.partition, item.start_offset) for item in again.to_initialize] == [(1, -1)]
    assert [(item.partition, item.start_offset) for item in added.to_initialize] == [(3, 0)]
    assert [(item.partition, item.start_offset) for item in readded.to_initialize] == [(3, 0)]


def test_a_deleted_topic_is_taken_from_the_members_and_its_states_are_to_be_deleted():
    world = World(FOO, BAR)
    world.beat("a", 0, "foo", "bar")
    del world.topics["foo"]
    world.now_ms += 5_000

    deleted = world.group.topic_deleted(FOO.topic_id)
    answer = world.beat("a", 2)

    assert deleted == keys(FOO)
    assert answer.member_epoch == 3
    assert answer.assignment == keys(BAR)
    assert world.group.initialized == set(keys(BAR))


def test_a_topic_made_anew_under_its_name_starts_as_a_new_one():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.group.topic_deleted(FOO.topic_id)
    new = FOO._replace(topic_id=UUID(int=9), partitions=1)
    world.topics["foo"] = new
    world.now_ms += 5_000

    answer = world.beat("a", 2)

    assert answer.assignment == keys(new)
    assert answer.to_initialize == (ToInitialize(new.topic_id, 0, -1, 3),)


# --- administration ---------------------------------------------------------------------------------------------


def test_g24_offsets_of_a_group_with_members_cannot_be_changed():
    world = World(FOO)
    world.beat("a", 0, "foo")

    with pytest.raises(NonEmptyGroup):
        world.group.prepare_reset(FOO, 0)
    with pytest.raises(NonEmptyGroup):
        world.group.require_empty()


def test_g25_a_topic_without_state_has_nothing_to_forget():
    assert World(FOO).group.topic_deleted(FOO.topic_id) == ()


def test_g26_offsets_can_be_set_before_the_first_member_comes():
    world = World(FOO)

    epoch = world.group.prepare_reset(FOO, 0)
    world.group.reset([(FOO, 0)], now_ms=7)
    answer = world.beat("a", 0, "foo")

    assert epoch == 2
    assert [(item.partition, item.start_offset) for item in answer.to_initialize] == [(1, -1), (2, -1)]
    assert answer.assignment == keys(FOO)
    assert answer.member_epoch == 3


def test_every_reset_has_a_higher_state_epoch_than_all_before():
    world = World(FOO)
    joined = world.beat("a", 0, "foo").to_initialize[0].state_epoch
    world.beat("a", -1)

    epochs = [joined, world.group.prepare_reset(FOO, 0), world.group.prepare_reset(FOO, 0)]

    assert epochs == sorted(set(epochs))


def test_a_reset_that_could_not_be_written_leaves_those_without_a_state_as_they_were():
    world = World(FOO)
    world.group.prepare_reset(FOO, 0)
    assert world.group.initialized == frozenset(), "others may write the group before the states are written"
    world.group.reset([(FOO, 0)], now_ms=1)

    fresh = world.group.reset([(FOO, 0), (FOO, 1)], now_ms=2)
    world.group.initialize_failed(fresh)

    assert world.group.initialized == {(FOO.topic_id, 0)}


@pytest.mark.parametrize("partition", [-1, 3])
def test_a_partition_that_does_not_exist_cannot_be_reset(partition):
    world = World(FOO)

    with pytest.raises(UnknownTopicOrPartition):
        world.group.prepare_reset(FOO, partition)

    assert world.group.initialized == frozenset()
    assert world.group.group_epoch == 1


def test_o20_after_its_offsets_were_deleted_a_topic_starts_by_the_reset_policy():
    world = World(FOO)
    world.beat("a", 0, "foo")
    world.beat("a", -1)

    assert world.group.topic_deleted(FOO.topic_id) == keys(FOO)
    answer = world.beat("a", 0, "foo")

    assert [item.start_offset for item in answer.to_initialize] == [-1, -1, -1]


def test_a_group_is_empty_since_its_last_member_went():
    world = World(FOO)
    assert world.group.empty_since_ms is None
    world.beat("a", 0, "foo")
    world.now_ms = 20_000
    world.beat("a", -1)
    assert world.group.empty_since_ms == 20_000

    world.beat("b", 0, "foo")
    assert world.group.empty_since_ms is None
    world.group.expire(100_000)
    assert world.group.empty_since_ms == 100_000
    world.group.reset([(FOO, 0)], now_ms=150_000)
    assert world.group.empty_since_ms == 150_000


def test_describe_shows_what_members_were_told():
    world = World(FOO)
    world.beat("a", 0, "foo", rack="r1")
    world.beat("b", 0, "foo")

    view = world.group.describe()

    assert (view.group_id, view.state, view.group_epoch, view.assignment_epoch, view.assignor) == (
        "g",
        "Stable",
        3,
        3,
        "simple",
    )
    assert [(m.member_id, m.epoch, m.rack_id, m.subscribed) for m in view.members] == [
        ("a", 2, "r1", ("foo",)),
        ("b", 3, None, ("foo",)),
    ]
    assert view.members[0].assignment == keys(FOO)
    view.members[0].epoch = 99
    assert world.group.members["a"].epoch == 2


# --- persistence ------------------------------------------------------------------------------------------------


def test_g13_after_a_restart_members_go_on_with_their_epochs():
    world = World(FOO)
    world.beat("a", 0, "foo", rack="r1")
    world.now_ms += 40_000

    world.restart()
    answer = world.beat("a", 2)

    assert (answer.member_epoch, answer.assignment, answer.changed) == (2, None, False)
    assert answer.to_initialize == ()
    assert world.group.next_deadline_ms() == world.now_ms + 45_000


def test_everything_durable_survives_encoding():
    world = World(FOO, BAR)
    world.beat("a", 0, "foo", rack="r1")
    world.beat("b", 0, "bar", "missing")
    world.beat("é", 0, "foo", "bar")
    world.group.topic_deleted(UUID(int=77))
    state = world.group._state

    decoded = decode_group(encode_group(state))

    assert decoded == replace(
        state, members={name: replace(member, deadline_ms=0) for name, member in state.members.items()}
    )
    assert list(decoded.members) == ["a", "b", "é"]
    assert decode_group(encode_group(GroupState())) == GroupState()


def test_a_member_whose_answers_are_lost_again_and_again_is_not_fenced():
    """As when the group cannot be written: it says the last epoch that it heard of, while the group goes on."""
    world = World(FOO)
    heard = world.beat("a", 0, "foo").member_epoch
    for number in range(3):
        world.beat(f"b{number}", 0, "foo")
        lost = world.beat("a", heard)
        assert lost.member_epoch > heard
        assert lost.assignment is not None

    told = world.beat("a", heard)

    assert world.beat("a", told.member_epoch).member_epoch == told.member_epoch


def test_a_damaged_group_is_refused():
    world = World(FOO)
    world.beat("a", 0, "foo")
    data = world.group.encode()

    damaged = [b"", data[:3], data[:-1], bytes([data[0] + 1]) + data[1:], data[:30] + bytes([data[30] ^ 1]) + data[31:]]

    for content in damaged:
        with pytest.raises(StateCorrupt):
            decode_group(content)


@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b"1", b"\xff", b'{"topics": ["zz"]}', b'{"topics": [], "members": [[1]]}']
)
def test_a_group_with_a_right_checksum_but_wrong_content_is_refused(body):

    with pytest.raises(StateCorrupt, match="cannot be read"):
        decode_group(seal(body, VERSION))


def test_members_of_a_worker_are_found_and_those_whose_connection_is_gone_time_out_sooner():
    world = World(FOO)
    for member in ("a", "b", "c"):
        world.beat(member, 0, "foo")
    for member, worker in (("a", 1), ("b", 2)):
        world.group.members[member].worker = worker

    gone = world.group.at_workers(lambda worker: worker == 1)
    for member in (*gone, "stranger"):
        world.group.expect_by(member, world.now_ms + 100)

    assert gone == ("a",)
    assert world.group.expire(world.now_ms + 99) == ()
    assert world.group.expire(world.now_ms + 100) == ("a",)
    assert world.group.subscribed == {"foo"}


def test_an_earlier_end_of_a_session_is_not_put_off_by_a_lost_connection():
    world = World(FOO)
    world.beat("a", 0, "foo")
    due_ms = world.group.members["a"].deadline_ms

    world.group.expect_by("a", due_ms + 1)

    assert world.group.members["a"].deadline_ms == due_ms


def test_sessions_that_ran_out_while_nobody_listened_are_put_off_and_the_others_stay():
    world = World(FOO)
    world.beat("a", 0, "foo")
    due_ms = world.group.members["a"].deadline_ms
    world.now_ms += 10
    world.beat("b", 0, "foo")

    world.group.put_off(due_ms, 500)

    assert [one.deadline_ms for one in world.group.members.values()] == [due_ms + 500, due_ms + 10]


def test_what_a_subscription_takes_in_memory_is_known_before():
    world = World(FOO, BAR)
    before = world.group.size

    told = subscription_growth(None, ("foo",))
    world.beat("a", 0, "foo")
    assert told == world.group.size - before > 0

    member, before = world.group.members["a"], world.group.size
    assert subscription_growth(member, None) == 0
    told = subscription_growth(member, ("foo", "bar"))
    world.beat("a", member.epoch, "foo", "bar")
    assert told == world.group.size - before > 0
