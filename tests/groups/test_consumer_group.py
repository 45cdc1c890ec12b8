"""A group of Kafka's consumer protocol, step by step: the table in `consumer_group`, KIP-848's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowshare.core_errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    FencedMemberEpoch,
    GroupMaxSizeReached,
    InvalidRequest,
    NonEmptyGroup,
    StaleMemberEpoch,
    StateCorrupt,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
    UnsupportedVersion,
)
from flowshare.groups.consumer_group import EPOCHS, ConsumerGroup
from flowshare.groups.consumer_member import MemberState
from flowshare.groups.consumer_stored import (
    GroupEpochs,
    StoredConsumerGroup,
    decode_epochs,
    decode_member,
    encode_member,
)
from flowshare.groups.consumer_types import JOIN, LEAVE, LEAVE_FOR_NOW, Beat, check_beat
from flowshare.groups.stored import VERSION
from flowshare.sealing import seal
from tests.groups.consumer_world import REBALANCE_MS, SESSION_MS, ConsumerWorld, keys, topic, topic_id

UNIFORM = ("uniform", "range")


@pytest.fixture
def world():
    return ConsumerWorld(partitions=4)


def raw(member_id, epoch, **fields):
    return Beat(member_id=member_id, member_epoch=epoch, **fields)


def joining(member_id, **fields):
    return replace(raw(member_id, JOIN, rebalance_timeout_ms=REBALANCE_MS, topics=("t",), owned=()), **fields)


def two(world):
    """Two members that have two partitions each."""
    one, other = world.client("a"), world.client("b")
    for _ in range(4):
        world.beat(one)
        world.beat(other)
    return one, other


# --- coming and going -------------------------------------------------------------------------------------------------


def test_the_first_member_has_everything_with_its_first_answer(world) -> None:
    answer = world.beat(world.client("a"))

    assert (answer.member_epoch, set(answer.assignment)) == (2, keys("t", 0, 1, 2, 3))
    assert (world.group.state, world.group.group_epoch, world.group.assignment_epoch) == ("Stable", 2, 2)


def test_a_second_member_waits_until_the_first_one_gave_its_part_up(world) -> None:
    first, second = world.client("a"), world.client("b")
    world.beat(first)
    waits = world.beat(second)
    assert (waits.assignment, waits.waits, world.group.state) == ((), True, "Reconciling")

    told = world.beat(first)
    assert (set(told.assignment), told.waits, told.member_epoch) == (keys("t", 0, 1), True, 2)
    assert world.beat(second).assignment is None

    done = world.beat(first)
    assert (done.member_epoch, done.waits) == (3, False)
    assert set(world.beat(second).assignment) == keys("t", 2, 3)
    assert world.group.state == "Stable"


def test_what_a_member_never_took_over_is_not_free_before_it_has_heard_that_it_is_not_its_own(world) -> None:
    first, second = world.client("a"), world.client("b")
    world.beat(first)
    first.slow = True  # it was given all four, and is about to use them
    world.beat(second)
    world.decide(first)
    world.flush(deliver=False)
    assert world.beat(second).waits

    again = world.beat(first)
    assert again.waits
    assert set(again.assignment) == keys("t", 0, 1)
    assert world.beat(second).waits
    world.beat(first)
    assert set(world.beat(second).assignment) == keys("t", 2, 3)


def test_a_member_that_leaves_frees_what_it_had(world) -> None:
    first, second = two(world)
    world.leave(second)

    assert set(world.beat(first).assignment) == keys("t", 0, 1, 2, 3)
    world.leave(first)
    assert (world.group.state, world.store.keys()) == ("Empty", {EPOCHS})


def test_a_silent_member_is_removed_and_fenced_when_it_comes_again(world) -> None:
    first, second = two(world)
    world.pass_ms(SESSION_MS - 1)
    world.beat(first)
    assert world.pass_ms(1) == ("b",)

    with pytest.raises(UnknownMemberId):
        world.beat(second)
    assert world.group.state == "Assigning"
    assert set(world.beat(first).assignment) == keys("t", 0, 1, 2, 3)


def test_who_does_not_give_up_in_time_is_removed(world) -> None:
    first, second = world.client("a"), world.client("b")
    world.beat(first)
    world.beat(second)
    first.adopt()
    first.slow = True
    world.beat(first)
    assert world.group.next_deadline_ms() == world.now_ms + SESSION_MS
    for _ in range(2):
        world.pass_ms(REBALANCE_MS // 3)
        world.beat(first)
        world.beat(second)
    assert world.pass_ms(REBALANCE_MS // 3) == ("a",)
    assert set(world.beat(second).assignment) == keys("t", 0, 1, 2, 3)


def test_members_get_more_time_when_nobody_listened(world) -> None:
    first, second = world.client("a"), world.client("b")
    world.beat(first)
    world.beat(second)
    first.adopt()
    first.slow = True
    world.beat(first)
    world.now_ms += REBALANCE_MS
    world.group.put_off(world.now_ms, 1_000)
    assert world.pass_ms(999) == ()
    assert world.pass_ms(1) == ("a", "b")


def test_a_full_group_takes_nobody_more() -> None:
    world = ConsumerWorld(size_max=1)
    world.beat(world.client("a"))
    with pytest.raises(GroupMaxSizeReached):
        world.beat(world.client("b"))


# --- epochs -----------------------------------------------------------------------------------------------------------


def test_the_epoch_before_is_taken_once_more_and_everything_told_again(world) -> None:
    first = world.client("a")
    world.beat(first)
    world.topics["t"] = topic("t", 5)
    world.decide(first)
    world.flush(deliver=False)

    answer = world.beat(first, beat=raw("a", 2, owned=tuple(keys("t", 0, 1, 2, 3)), heard=False))
    assert (answer.member_epoch, set(answer.assignment)) == (3, keys("t", 0, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("epoch", "owned"),
    [(1, None), (4, None), (2, tuple(keys("t", 0, 7)))],
    ids=["old", "new", "owns what is not its own"],
)
def test_another_epoch_is_fenced(world, epoch, owned) -> None:
    first = world.client("a")
    world.beat(first)
    world.topics["t"] = topic("t", 5)
    world.beat(first)
    with pytest.raises(FencedMemberEpoch):
        world.beat(first, beat=raw("a", epoch, owned=owned))
    assert not world.group.to_write


def test_a_member_that_is_not_known_has_to_join(world) -> None:
    with pytest.raises(UnknownMemberId):
        world.beat(world.client("a"), beat=raw("a", 3))


def test_a_member_that_joins_again_keeps_what_it_had_and_uses_nothing(world) -> None:
    first, second = two(world)
    world.client("c")
    world.beat(world.clients["c"])
    world.beat(first)  # it is to give one up
    first.fenced()
    answer = world.beat(first)

    assert answer.member_epoch == world.group.assignment_epoch
    assert set(answer.assignment) <= keys("t", 0, 1)
    assert not world.group.members["a"].revoking
    assert second.epoch > 0


def test_a_member_is_told_again_what_it_has_when_it_says_something_else(world) -> None:
    first = world.client("a")
    world.beat(first)
    answer = world.beat(first, beat=raw("a", 2, owned=()))
    assert set(answer.assignment) == keys("t", 0, 1, 2, 3)


# --- subscriptions ----------------------------------------------------------------------------------------------------


def test_a_topic_that_comes_grows_or_goes_is_seen_at_the_next_heartbeat(world) -> None:
    first = world.client("a", topics=("t", "late"))
    world.beat(first)
    world.topics["late"] = topic("late", 1)
    assert set(world.beat(first).assignment) == keys("t", 0, 1, 2, 3) | keys("late", 0)
    del world.topics["t"]
    assert set(world.beat(first).assignment) == keys("late", 0)


def test_a_member_that_subscribes_to_something_else_gives_the_rest_up(world) -> None:
    first, second = two(world)
    world.topics["u"] = topic("u", 1)
    first.subscribe("u")
    told = world.beat(first)
    assert (told.assignment, told.waits) == ((), True)
    assert world.group.members["a"].state is MemberState.UNREVOKED
    assert set(world.beat(first).assignment) == keys("u", 0)
    assert set(world.beat(second).assignment) == keys("t", 0, 1, 2, 3)


def test_a_subscription_that_changes_while_something_is_given_up_takes_more_away() -> None:
    world = ConsumerWorld(partitions=4, assignment_interval_ms=10_000)
    world.topics["u"] = topic("u", 2)
    first = world.client("a", topics=("t", "u"))
    world.beat(first)
    world.pass_ms(10_000)
    world.beat(world.client("b"))
    world.beat(first)
    assert world.group.members["a"].revoking
    first.slow = True
    first.subscribe("t")
    world.beat(first)
    assert keys("u", 0, 1) <= world.group.members["a"].revoking
    assert not {key for key in world.group.members["a"].assigned if key[0] == topic_id("u")}


def test_an_unchanged_target_is_kept_to_while_the_interval_lasts() -> None:
    world = ConsumerWorld(partitions=4, assignment_interval_ms=10_000)
    first = world.client("a")
    world.beat(first)
    second = world.client("b")
    assert world.beat(second).assignment == ()
    assert world.group.state == "Assigning"
    world.pass_ms(10_000)
    world.beat(first)
    world.beat(first)
    assert set(world.beat(second).assignment) == keys("t", 2, 3)


def test_a_large_group_is_not_assigned_anew_all_the_time() -> None:
    world = ConsumerWorld(partitions=999)
    first, second = world.client("a"), world.client("b")
    world.beat(first)
    waits = world.beat(second)
    assert (waits.assignment, waits.waits, world.group.state) == ((), True, "Assigning")
    world.pass_ms(100)
    world.beat(second)
    assert world.group.state == "Reconciling"


def test_a_pattern_takes_in_what_matches_beside_names(world) -> None:
    world.topics |= {"u": topic("u", 1), "tt": topic("tt", 1)}
    first = world.client("a", topics=("u",), pattern="t.*")
    assert set(world.beat(first).assignment) == keys("t", 0, 1, 2, 3) | keys("u", 0) | keys("tt", 0)
    assert world.group.reads("tt")

    world.beat(first, beat=raw("a", first.epoch, pattern=""))
    assert not world.group.reads("tt")
    assert world.group.describe().members[0].pattern == ""


def test_the_assignor_that_most_ask_for_is_used(world) -> None:
    assert world.group.assignor == "uniform"
    first = world.client("a", assignor="range")
    world.beat(first)
    assert world.group.assignor == "range"
    epoch = world.group.group_epoch
    world.beat(first, beat=raw("a", first.epoch, assignor="uniform"))
    assert (world.group.assignor, world.group.group_epoch) == ("uniform", epoch + 1)


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_that_left_for_now_has_its_partitions_when_it_is_back(world) -> None:
    first, second = world.client("a", instance_id="i"), world.client("b")
    for _ in range(4):
        world.beat(first)
        world.beat(second)
    mine, epoch = set(first.using), world.group.group_epoch
    assert world.leave(first, LEAVE_FOR_NOW).member_epoch == LEAVE_FOR_NOW
    assert world.beat(second).assignment is None

    back = world.client("c", instance_id="i")
    answer = world.beat(back)
    assert (set(answer.assignment), answer.member_epoch, world.group.group_epoch) == (mine, epoch, epoch)
    assert [one.member_id for one in world.group.describe().members] == ["b", "c"]


def test_what_a_static_member_is_not_to_have_any_more_is_free_while_it_is_away(world) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    world.leave(first, LEAVE_FOR_NOW)
    answer = world.beat(world.client("b"))
    assert set(answer.assignment) == keys("t", 2, 3)


def test_a_static_member_that_does_not_come_back_in_time_is_removed(world) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    world.leave(first, LEAVE_FOR_NOW)
    assert world.pass_ms(SESSION_MS) == ("a",)


def test_an_instance_id_belongs_to_one_process(world) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    with pytest.raises(UnreleasedInstanceId):
        world.beat(world.client("b", instance_id="i"))
    with pytest.raises(FencedInstanceId):
        world.beat(world.clients["b"], beat=raw("b", 2, instance_id="i"))
    with pytest.raises(UnknownMemberId):
        world.beat(world.clients["b"], beat=raw("b", 2, instance_id="j"))
    with pytest.raises(FencedInstanceId):
        world.beat(first, beat=joining("a", instance_id="j"))
    with pytest.raises(FencedInstanceId):
        world.beat(world.clients["b"], beat=raw("b", LEAVE, instance_id="i"))
    assert world.beat(first, beat=joining("a", instance_id="i")).member_epoch == 2


def test_a_member_that_is_away_speaks_with_a_join_only(world) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    world.leave(first, LEAVE_FOR_NOW)
    with pytest.raises(FencedMemberEpoch):
        world.beat(first, beat=raw("a", 2, instance_id="i"))
    assert set(world.beat(first, beat=joining("a", instance_id="i")).assignment) == keys("t", 0, 1, 2, 3)


def test_another_member_cannot_take_the_place_of_one_that_is_away(world) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    world.beat(world.client("b"))
    world.leave(first, LEAVE_FOR_NOW)
    with pytest.raises(FencedInstanceId):
        world.beat(world.clients["b"], beat=joining("b", instance_id="i"))


def test_who_leaves_has_to_be_there(world) -> None:
    with pytest.raises(UnknownMemberId):
        world.beat(world.client("a"), beat=raw("a", LEAVE))


# --- what a heartbeat must say ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beat", "error"),
    [
        (joining(""), InvalidRequest),
        (joining("a", instance_id=" "), InvalidRequest),
        (joining("a", rack_id=""), InvalidRequest),
        (raw("a", -3), InvalidRequest),
        (raw("a", LEAVE_FOR_NOW), InvalidRequest),
        (joining("a", rebalance_timeout_ms=-1), InvalidRequest),
        (joining("a", owned=None), InvalidRequest),
        (joining("a", owned=tuple(keys("t", 0))), InvalidRequest),
        (joining("a", topics=None), InvalidRequest),
        (joining("a", assignor="sticky"), UnsupportedAssignor),
    ],
)
def test_a_heartbeat_that_lacks_what_it_needs_is_refused(beat, error) -> None:
    with pytest.raises(error):
        check_beat("g", beat, UNIFORM)


def test_a_heartbeat_that_says_enough_is_taken() -> None:
    for beat in (
        joining("a", rack_id="r", instance_id="i", assignor="range"),
        joining("a", topics=None, pattern="t"),
        raw("a", 1),
    ):
        check_beat("g", beat, UNIFORM)
    with pytest.raises(InvalidRequest):
        check_beat("", raw("a", 1), UNIFORM)


# --- offsets ----------------------------------------------------------------------------------------------------------


def commit(world, member_id="a", epoch=2, *, instance_id=None, partitions=(("t", 0),), **fields):
    world.group.check_commit(
        member_id=member_id, instance_id=instance_id, generation=epoch, partitions=partitions, now_ms=0, **fields
    )


def test_a_member_commits_with_its_epoch(world) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    commit(world)
    commit(world, instance_id="i")
    commit(world, transactional=True, version=0)
    with pytest.raises(StaleMemberEpoch):
        commit(world, epoch=3)
    with pytest.raises(UnknownMemberId):
        commit(world, "b")
    with pytest.raises(UnsupportedVersion):
        commit(world, version=8)
    with pytest.raises(FencedInstanceId):
        commit(world, instance_id="j")


def test_offsets_are_set_from_outside_while_there_are_no_members(world) -> None:
    commit(world, "", -1)
    world.beat(world.client("a"))
    with pytest.raises(UnknownMemberId):
        commit(world, "", -1)
    commit(world, "", -1, transactional=True)  # a producer without a consumer


def test_an_older_epoch_will_do_for_what_the_member_had_since(world) -> None:
    first = world.client("a")
    world.beat(first)
    world.topics["t"] = topic("t", 5)
    world.beat(first)
    assert first.epoch == 3
    commit(world, epoch=2, partitions=[("t", 0), ("t", 3)])
    for partitions in ((("t", 4),), (("t", 0), ("t", 4)), (("u", 0),), ()):
        with pytest.raises(StaleMemberEpoch):
            commit(world, epoch=2, partitions=partitions)
    with pytest.raises(StaleMemberEpoch):
        commit(world, epoch=-1)


def test_offsets_are_read_in_the_name_of_a_member_at_its_epoch(world) -> None:
    world.beat(world.client("a"))
    world.group.check_fetch(None, -1)
    world.group.check_fetch("a", -1)
    world.group.check_fetch("a", 2)
    with pytest.raises(StaleMemberEpoch):
        world.group.check_fetch("a", 1)
    with pytest.raises(UnknownMemberId):
        world.group.check_fetch("b", 2)


# --- administration and the store -------------------------------------------------------------------------------------


def test_only_a_group_without_members_is_deleted(world) -> None:
    first = world.client("a")
    world.beat(first)
    with pytest.raises(NonEmptyGroup):
        world.group.delete()
    world.leave(first)
    world.group.delete()
    with pytest.raises(CoordinatorNotAvailable):
        world.beat(first, beat=joining("a"))
    with pytest.raises(CoordinatorNotAvailable):
        commit(world, "", -1)
    revived = world.group.revive(["a"])
    assert (revived.group_epoch, revived.empty) == (world.group.group_epoch, True)
    assert revived.unwritten() == {"a": None}
    assert revived.next_deadline_ms() is None


def test_a_group_takes_as_much_room_as_it_says_that_it_will(world) -> None:
    before = world.group.size
    grows = world.group.growth(joining("a"))
    assert world.group.growth(raw("a", 3, topics=("t",))) == world.group.growth(raw("a", LEAVE)) == 0
    world.beat(world.client("a"))
    assert before + grows <= world.group.size
    assert world.group.growth(raw("a", 2)) == 0
    assert world.group.growth(raw("a", 2, topics=("t", "a longer name"))) > 0


def test_what_is_stored_is_read_as_it_was(world) -> None:
    first, _ = two(world)
    world.client("c", instance_id="i", pattern="t.*", assignor="range")
    world.beat(world.clients["c"])
    world.beat(first)
    before = world.group.describe()
    world.restart()
    assert world.group.describe() == replace_order(before, world)
    assert world.group.members["a"].revoke_due_ms == world.now_ms + REBALANCE_MS


def replace_order(view, world):
    """Members come in the order of their entries."""
    by_id = {one.member_id: one for one in view.members}
    return view._replace(members=tuple(by_id[name] for name in world.group.members))


def test_a_write_that_fails_is_made_with_the_next_one(world) -> None:
    first = world.client("a")
    world.decide(first)
    world.write_fails()
    assert world.group.to_write
    assert set(world.beat(first).assignment) == keys("t", 0, 1, 2, 3)
    assert set(world.store) == {EPOCHS, "a"}


@pytest.mark.parametrize("entry", [b"", seal(b"{}", VERSION), seal(b"[]", VERSION), seal(b"no json", VERSION)])
def test_entries_that_make_no_sense_are_refused(entry) -> None:
    for decode in (decode_epochs, decode_member):
        with pytest.raises(StateCorrupt):
            decode(entry)


@pytest.mark.parametrize("twice", ["partition", "instance"])
def test_members_that_contradict_each_other_are_refused(world, twice) -> None:
    first = world.client("a", instance_id="i")
    world.beat(first)
    member = world.group.members["a"]
    changed = {"instance_id": None} if twice == "partition" else {"assigned": {}}
    other = replace(member, member_id="b", **changed)
    members = [decode_member(encode_member(one)) for one in (member, other)]
    stored = StoredConsumerGroup(epochs=GroupEpochs(), members=members)
    with pytest.raises(StateCorrupt):
        ConsumerGroup("g", config=world.config, stored=stored)
