"""Membership of a classic group: joins, syncs, heartbeats, leaving, time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowshare.core_errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    RebalanceInProgress,
    StateCorrupt,
    UnknownMemberId,
)
from flowshare.groups.group import ClassicGroup
from flowshare.groups.states import ClassicState
from flowshare.groups.stored import VERSION, decode_group
from flowshare.groups.subscription import all_subscribed_topics, subscribed_topics
from flowshare.groups.types import GroupStep, Supported
from flowshare.sealing import HEADER, seal
from tests.groups.builders import REBALANCE_MS, SESSION_MS, World, subscription


def test_a_single_member_joins_leads_and_gets_what_it_assigned_itself():
    world = World()
    joined = world.answers[world.ask()]
    assert (joined.generation, joined.leader, joined.protocol_name) == (1, joined.member_id, "range")
    assert [(one.member_id, one.metadata) for one in joined.members] == [(joined.member_id, subscription("t"))]
    assert world.group.state is ClassicState.COMPLETING

    ticket = world.sync_ask(joined.member_id, assignments={joined.member_id: b"mine"})

    assert world.answers[ticket].assignment == b"mine"
    assert world.group.state is ClassicState.STABLE


def test_a_first_join_is_told_its_id_and_joins_again_with_it():
    world = World()
    with pytest.raises(MemberIdRequired) as told:
        world.ask(known_id_required=True)
    assert world.group.awaits_member
    joined = world.answers[world.ask(told.value.member_id, known_id_required=True)]
    assert joined.member_id == told.value.member_id
    assert not world.group.awaits_member


def test_a_member_that_never_comes_back_with_its_id_is_forgotten():
    world = World()
    with pytest.raises(MemberIdRequired) as told:
        world.ask(known_id_required=True)
    world.wait(SESSION_MS)
    assert not world.group.awaits_member
    with pytest.raises(UnknownMemberId):
        world.ask(told.value.member_id)


def test_the_first_rebalance_waits_for_more_members_and_longer_when_some_come():
    world = World(initial_rebalance_delay_ms=3_000)
    first = world.ask()
    world.wait(2_999)
    second = world.ask()
    world.wait(1)
    assert first not in world.answers
    world.wait(3_000)
    assert {world.answers[first].generation, world.answers[second].generation} == {1}
    assert len(world.answers[first].members) == 2
    assert world.answers[second].members == ()


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout():
    world = World(initial_rebalance_delay_ms=3_000)
    tickets = [world.ask(rebalance_timeout_ms=5_000)]
    for _ in range(3):
        world.wait(1_900)
        tickets.append(world.ask(rebalance_timeout_ms=5_000))
    assert [ticket in world.answers for ticket in tickets[:3]] == [True] * 3


def test_a_new_member_makes_the_others_join_again():
    world = World()
    (one,) = world.dynamic()
    newcomer = world.ask()
    assert world.group.state is ClassicState.PREPARING
    with pytest.raises(RebalanceInProgress):
        world.beat(one)
    again = world.ask(one)
    assert {world.answers[again].generation, world.answers[newcomer].generation} == {2}
    assert world.answers[again].leader == one


def test_who_does_not_join_again_in_time_is_left_out():
    world = World()
    one, two = world.dynamic(2)
    newcomer = world.ask()
    rejoined = world.ask(one)
    for _ in range(REBALANCE_MS // 5_000):
        world.wait(5_000)
        if world.group.state is ClassicState.PREPARING:
            with pytest.raises(RebalanceInProgress):
                world.beat(two)
    assert world.answers[rejoined].generation == world.answers[newcomer].generation == 3
    with pytest.raises(UnknownMemberId):
        world.beat(two)


def test_the_protocol_is_one_that_all_know_and_most_prefer():
    world = World()
    (one,) = world.dynamic(protocols=("a", "b", "c"))
    tickets = [world.ask(protocols=("c", "b")), world.ask(protocols=("c", "b"))]
    world.ask(one, protocols=("a", "b", "c"))
    assert [world.answers[ticket].protocol_name for ticket in tickets] == ["c", "c"]


def test_the_vote_counts_only_what_all_members_know():
    world = World()
    (one,) = world.dynamic(protocols=("a", "b"))
    other = world.ask(protocols=("b",))
    world.ask(one, protocols=("a", "b"))
    assert world.answers[other].protocol_name == "b"


@pytest.mark.parametrize("fields", [{"kind": "connect"}, {"protocols": ("other",)}, {"protocols": ()}, {"kind": ""}])
def test_a_member_that_has_nothing_in_common_with_the_others_is_refused(fields):
    world = World()
    world.dynamic()
    with pytest.raises(InconsistentGroupProtocol):
        world.ask(**fields)
    assert world.group.state is ClassicState.STABLE


def test_the_only_member_may_change_its_protocols():
    world = World()
    (one,) = world.dynamic()
    again = world.answers[world.ask(one, protocols=("sticky",))]
    assert again.protocol_name == "sticky"


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001, 0, -1])
def test_a_session_timeout_out_of_bounds_is_refused(session_ms):
    with pytest.raises(InvalidSessionTimeout):
        World().ask(session_timeout_ms=session_ms)


def test_a_full_group_takes_no_more_members():
    world = World(size_max=2)
    world.dynamic(2)
    with pytest.raises(GroupMaxSizeReached):
        world.ask()
    assert world.group.state is ClassicState.STABLE


def test_a_member_for_which_there_is_no_room_any_more_is_let_go_when_it_rejoins():
    world = World(size_max=2)
    one, two = world.dynamic(2)
    world.leave(two)
    late, later = world.ask(), world.ask()
    refused = world.ask(one)
    assert refused not in world.answers
    assert {world.answers[late].generation, world.answers[later].generation} == {3}
    assert world.group.member_count == 2


def test_a_lost_join_answer_is_given_again():
    world = World()
    first = world.answers[world.ask()]
    again = world.answers[world.ask(first.member_id)]
    assert again == first


def test_a_follower_that_joins_again_unchanged_gets_the_generation_and_the_leader_starts_a_rebalance():
    world = World()
    leader, follower = world.dynamic(2)
    again = world.answers[world.ask(follower)]
    assert (again.generation, again.members) == (world.group.generation, ())
    assert world.group.state is ClassicState.STABLE
    world.ask(leader)
    assert world.group.state is ClassicState.PREPARING


def test_a_follower_with_another_subscription_starts_a_rebalance():
    world = World()
    _, follower = world.dynamic(2)
    world.ask(follower, topics=("t", "u"))
    assert world.group.state is ClassicState.PREPARING


def test_a_member_that_joins_twice_is_answered_twice():
    world = World()
    one, _ = world.dynamic(2)
    first = world.ask(one, topics=("u",))
    second = world.ask(one, topics=("u",))
    assert isinstance(world.answers[first].error, RebalanceInProgress)
    assert second not in world.answers


def test_the_next_in_order_leads_when_the_leader_goes():
    world = World()
    leader, follower = world.dynamic(2)
    world.leave(leader)
    assert world.answers[world.ask(follower)].leader == follower


def test_a_silent_member_goes_and_the_others_are_told():
    world = World()
    one, _ = world.dynamic(2)
    world.wait(SESSION_MS - 1)
    world.beat(one)
    world.wait(1)
    assert world.group.member_count == 1
    with pytest.raises(RebalanceInProgress):
        world.beat(one)


def test_a_heartbeat_keeps_a_member():
    world = World()
    (one,) = world.dynamic()
    world.wait(5 * SESSION_MS, one)
    assert world.group.state is ClassicState.STABLE


def test_a_new_member_whose_client_is_gone_blocks_the_group_for_five_minutes_at_most():
    world = World(new_member_timeout_ms=300_000)
    (one,) = world.dynamic()
    world.ask(rebalance_timeout_ms=1_000_000)
    ticket = world.ask(one, rebalance_timeout_ms=1_000_000)
    world.ask()
    assert world.answers[ticket].generation == 2
    world.wait(1_000_000)
    assert world.group.state is ClassicState.EMPTY


def test_members_that_never_ask_for_their_assignment_are_removed():
    world = World()
    (one,) = world.dynamic()
    two = world.ask()
    world.ask(one)
    leader = world.sync_ask(one)
    assert world.answers[leader].error is None
    for _ in range(REBALANCE_MS // 5_000):
        world.wait(5_000)
        for member_id in (one, world.answers[two].member_id):
            if world.group.state is ClassicState.STABLE:
                world.beat(member_id)
    assert world.group.member_count == 1
    assert world.group.state is ClassicState.PREPARING


@pytest.mark.parametrize("call", ["beat", "sync_ask"])
def test_requests_of_another_generation_or_of_strangers_are_refused(call):
    world = World()
    (one,) = world.dynamic()
    ask = getattr(world, call)
    with pytest.raises(IllegalGeneration):
        ask(one, 0)
    with pytest.raises(UnknownMemberId):
        ask("stranger")
    with pytest.raises(UnknownMemberId):
        ask(one, instance="nobody")


def test_a_sync_for_another_protocol_is_refused():
    world = World()
    (one,) = world.dynamic()
    with pytest.raises(InconsistentGroupProtocol):
        world.sync_ask(one, protocol_name="sticky")
    with pytest.raises(InconsistentGroupProtocol):
        world.sync_ask(one, protocol_type="connect")


def test_a_sync_in_a_stable_group_gives_the_assignment_again():
    world = World()
    (one,) = world.dynamic()
    assert world.answers[world.sync_ask(one)].assignment == b"a"


def test_followers_wait_for_the_leader_and_a_rebalance_ends_the_wait():
    world = World()
    one, two = world.dynamic(2)
    world.ask(one, topics=("u",))
    world.ask(two, topics=("u",))
    waits = world.sync_ask(two)
    assert waits not in world.answers
    world.ask()
    assert isinstance(world.answers[waits].error, RebalanceInProgress)


def test_assignments_that_cannot_be_written_reach_nobody():
    world = World()
    joined = world.answers[world.ask()]
    step = world.group.sync(
        member_id=joined.member_id,
        instance_id=None,
        generation=1,
        assignments={joined.member_id: b"lost"},
        ticket=99,
        now_ms=world.now_ms,
    )
    assert step.answers == ()
    world.settle(step, durable=False)
    assert isinstance(world.answers[99].error, CoordinatorNotAvailable)
    assert world.group.state is ClassicState.PREPARING


def test_assignments_that_become_durable_when_the_group_rebalances_already_count_for_nothing():
    world = World()
    one = world.answers[world.ask()].member_id
    step = world.group.sync(
        member_id=one, instance_id=None, generation=1, assignments={one: b"old"}, ticket=99, now_ms=world.now_ms
    )
    world.ask()
    assert world.group.assigned(step.assign, world.now_ms) == GroupStep()
    assert isinstance(world.answers[99].error, RebalanceInProgress)
    assert world.group.state is ClassicState.PREPARING


# --- static members ---------------------------------------------------------------------------------------------------


def test_a_static_member_that_comes_back_keeps_its_assignment_without_a_rebalance():
    world = World()
    one, _two = world.members("a", "b")
    back = world.answers[world.ask(instance="a")]
    assert world.group.state is ClassicState.STABLE
    assert back.member_id not in ("", one)
    assert (back.generation, back.leader, back.skip_assignment) == (world.group.generation, back.member_id, True)
    assert len(back.members) == 2
    assert world.answers[world.sync_ask(back.member_id, instance="a")].assignment == b"a"
    assert back.member_id in {member.member_id for member in decode_group(world.stored).members}


def test_a_static_leader_of_an_old_client_is_told_of_its_former_self_so_that_it_assigns_nothing():
    world = World()
    one, _two = world.members("a", "b")
    back = world.answers[world.ask(instance="a", can_skip_assignment=False)]
    assert (back.leader, back.members, back.skip_assignment) == (one, (), False)


def test_the_former_self_of_a_static_member_is_fenced_whatever_it_asks():
    world = World()
    one, _ = world.members("a", "b")
    world.ask(instance="a")
    with pytest.raises(FencedInstanceId):
        world.beat(one, instance="a")
    with pytest.raises(FencedInstanceId):
        world.sync_ask(one, instance="a")
    with pytest.raises(FencedInstanceId):
        world.ask(one, instance="a")
    with pytest.raises(FencedInstanceId):
        world.leave(one, instance="a")
    with pytest.raises(FencedInstanceId):
        world.group.check_commit(member_id=one, instance_id="a", generation=1, now_ms=world.now_ms)


def test_a_waiting_request_of_the_former_self_is_ended():
    world = World()
    world.dynamic()
    waits = world.ask(instance="a")
    world.ask(instance="a")
    assert isinstance(world.answers[waits].error, FencedInstanceId)


def test_a_static_member_that_comes_back_with_other_protocols_starts_a_rebalance():
    world = World()
    world.members("a", "b", protocols=("x", "y"))
    world.ask(instance="a", protocols=("y",))
    assert world.group.state is ClassicState.PREPARING


def test_a_static_member_that_is_away_stays_in_the_next_generation():
    world = World()
    long = {"session_timeout_ms": 500_000}
    one, _away = world.members("a", "b", **long)
    newcomer = world.ask(**long)
    world.ask(one, instance="a", **long)
    world.wait(REBALANCE_MS - 1)
    assert newcomer not in world.answers
    world.wait(1)
    assert world.answers[newcomer].generation == 3
    assert world.group.member_count == 3


def test_a_group_of_static_members_that_are_all_away_waits_until_their_sessions_time_out():
    world = World()
    world.members("a", "b", session_timeout_ms=100_000)
    world.leave(instance="a")
    world.wait(REBALANCE_MS)
    assert (world.group.state, world.group.member_count) == (ClassicState.PREPARING, 1)
    world.wait(100_000 - REBALANCE_MS)
    assert (world.group.state, world.group.member_count) == (ClassicState.EMPTY, 0)


def test_static_members_that_give_others_no_time_to_join_are_still_not_looked_for_without_end():
    world = World()
    world.members("a", "b", rebalance_timeout_ms=0)
    world.leave(instance="a")
    world.settle(world.group.expire(world.now_ms))
    assert world.group.state is ClassicState.PREPARING
    assert world.group.next_deadline_ms() - world.now_ms == 1_000


def test_a_static_member_is_let_go_by_its_instance_id_alone():
    world = World()
    world.members("a", "b")
    world.leave(instance="a")
    assert world.group.member_count == 1
    with pytest.raises(UnknownMemberId):
        world.leave(instance="a")


# --- commits, deletion, the store -------------------------------------------------------------------------------------


def commit(world, member_id="", generation=-1, instance=None, *, transactional=False):
    world.group.check_commit(
        member_id=member_id,
        instance_id=instance,
        generation=generation,
        transactional=transactional,
        now_ms=world.now_ms,
    )


def test_a_group_without_members_takes_commits_from_anybody_and_one_with_members_from_those():
    world = World()
    commit(world)
    (one,) = world.dynamic()
    commit(world, one, 1)
    with pytest.raises(UnknownMemberId):
        commit(world)
    commit(world, transactional=True)
    with pytest.raises(UnknownMemberId):
        commit(world, "stranger", 1)
    with pytest.raises(IllegalGeneration):
        commit(world, one, 7)


def test_a_commit_counts_as_a_heartbeat_and_is_taken_while_members_join_again():
    world = World()
    (one,) = world.dynamic()
    world.ask()
    world.wait(SESSION_MS - 1)
    commit(world, one, 1)
    world.wait(SESSION_MS - 1)
    assert world.group.member_count == 2


def test_a_commit_between_join_and_assignment_is_refused():
    world = World()
    one = world.answers[world.ask()].member_id
    with pytest.raises(RebalanceInProgress):
        commit(world, one, 1)
    commit(world, one, 1, transactional=True)


def test_only_a_group_without_members_can_be_deleted_and_then_takes_nothing_more():
    world = World()
    (one,) = world.dynamic()
    with pytest.raises(NonEmptyGroup):
        world.group.delete()
    world.leave(one)
    world.group.delete()
    with pytest.raises(CoordinatorNotAvailable):
        world.ask()
    with pytest.raises(CoordinatorNotAvailable):
        commit(world)
    with pytest.raises(CoordinatorNotAvailable):
        world.beat(one)


def test_a_group_is_stable_with_its_members_after_a_restart():
    world = World()
    one, two = world.members("a", "b")
    generation, leader = world.group.generation, world.group.leader
    world.restart()
    assert (world.group.state, world.group.generation, world.group.leader) == (ClassicState.STABLE, generation, leader)
    world.beat(two, instance="b")
    assert world.answers[world.sync_ask(one, instance="a")].assignment == b"a"
    world.wait(SESSION_MS)
    assert world.group.state is ClassicState.EMPTY


def test_stored_groups_that_cannot_be_read_are_told_apart_from_good_ones():
    world = World()
    world.dynamic()
    good = world.stored
    with pytest.raises(StateCorrupt, match="cut short"):
        decode_group(good[:3])
    with pytest.raises(StateCorrupt, match="checksum"):
        decode_group(good[:-1] + b"?")
    with pytest.raises(StateCorrupt, match="format 9"):
        decode_group(b"\x09" + good[1:])
    assert len(good) > HEADER.size


@pytest.mark.parametrize(
    "metadata",
    [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\x05", b"\0\0\0\0\0\1\0\x09ab", b"\0\0\0\0\0\1\0\2\xff\xff"],
)
def test_metadata_that_cannot_be_read_say_nothing_about_what_is_read(metadata):
    assert subscribed_topics(metadata) is None
    assert all_subscribed_topics([subscription("t"), metadata]) is None


@pytest.mark.parametrize("version", [0, 1, 2, 3, 9])
def test_the_topics_of_a_subscription_are_read_in_all_versions(version):
    assert subscribed_topics(subscription("t", "u", version=version)) == {"t", "u"}


def test_describing_shows_metadata_and_assignments_of_a_stable_group_only():
    world = World()
    (one,) = world.dynamic(protocols=(Supported("range", subscription("t")),))
    view = world.group.describe()
    assert (view.state, view.protocol_type, view.protocol_name) == ("Stable", "consumer", "range")
    assert [(m.member_id, m.metadata, m.assignment) for m in view.members] == [(one, subscription("t"), b"a")]
    world.ask(one, topics=("u",))
    view = world.group.describe()
    assert (view.state, view.protocol_name) == ("CompletingRebalance", "")
    assert [(m.metadata, m.assignment) for m in view.members] == [(b"", b"")]


# --- memory -------------------------------------------------------------------------------------------------------


def joined(world, member_id="", **fields):
    """A join: its ticket, and by how much it makes memory grow, as it is foretold and as it is."""
    request = world.request(member_id, **fields)
    told, before = world.group.join_growth(request), world.group.size
    return world.join(request), told, world.group.size - before


def test_what_a_new_member_takes_in_memory_is_known_before():
    world = World()

    _, told, grown = joined(world, topics=("t" * 100,))

    assert grown > 1000
    assert told == pytest.approx(grown, abs=200)


def test_what_an_awaited_member_takes_is_known_before_and_counted_until_it_joins():
    world = World()

    told = world.group.join_growth(world.request(known_id_required=True))
    with pytest.raises(MemberIdRequired) as refused:
        world.ask(known_id_required=True)
    assert told == pytest.approx(world.group.size, abs=200)
    _, told, grown = joined(world, refused.value.member_id)

    assert told > grown > 0, "it is counted as awaited no more"


def test_a_member_that_joins_again_takes_as_much_more_as_its_protocols_grew():
    world = World()
    (member_id,) = world.dynamic()

    _, told, grown = joined(world, member_id=member_id, topics=("t", "u" * 300))

    assert told == grown + len(b"a") > 290, "its assignment is one of before"


def test_a_static_member_that_comes_back_is_not_counted_twice():
    world = World()
    world.members("one")

    _, told, grown = joined(world, instance="one", topics=("t",))

    assert told == grown == 0


def test_a_stranger_that_is_refused_takes_nothing():
    world = World()

    assert world.group.join_growth(world.request("stranger")) == 0


def test_assignments_take_what_they_are_longer_than_those_before_and_only_the_leaders_count():
    world = World()
    ticket = world.ask()
    world.wait(3000)
    member_id = world.answers[ticket].member_id
    before = world.group.size

    assert world.group.sync_growth("stranger", {member_id: bytes(500)}) == 0
    told = world.group.sync_growth(member_id, {member_id: bytes(500)})
    world.sync_ask(member_id, assignments={member_id: bytes(500)})

    assert told == world.group.size - before == 500
    assert world.group.sync_growth(member_id, {member_id: bytes(900)}) == 0, "it is stable"


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"generation": "x"}'])
def test_a_stored_group_that_says_something_else_is_refused(body):
    with pytest.raises(StateCorrupt, match="cannot be read"):
        decode_group(seal(body, VERSION))


def test_a_stored_group_with_a_member_twice_or_without_its_protocol_is_refused():
    world = World()
    world.members("one")
    state = decode_group(world.stored)
    (member,) = state.members

    for members in ((member, member), (replace(member, protocols=(Supported("other", b""),)),)):
        with pytest.raises(StateCorrupt, match="twice or without its protocol"):
            ClassicGroup("g", config=world.config, state=replace(state, members=members), now_ms=0)


# --- between two generations ----------------------------------------------------------------------------------------


def test_who_asks_for_its_assignment_while_the_group_prepares_joins_again():
    world = World()
    (member_id,) = world.dynamic()
    world.ask()
    assert world.group.state is ClassicState.PREPARING

    with pytest.raises(RebalanceInProgress):
        world.sync_ask(member_id)


def test_a_group_without_members_takes_commits_of_who_has_an_id_and_no_generation():
    World().group.check_commit(member_id="m", instance_id=None, generation=-1, now_ms=0)


def test_as_many_are_awaited_as_there_may_be_members():
    world = World(size_max=2)
    for _ in range(2):
        with pytest.raises(MemberIdRequired):
            world.ask(known_id_required=True)

    with pytest.raises(GroupMaxSizeReached):
        world.ask(known_id_required=True)


def test_an_awaited_member_for_which_there_is_no_room_any_more_is_awaited_no_longer():
    world = World(size_max=2)
    (one,) = world.dynamic()
    with pytest.raises(MemberIdRequired) as told:
        world.ask(known_id_required=True)
    world.ask()
    world.ask(one)

    step = world.group.join(world.request(told.value.member_id), ticket=99, new_id="x", now_ms=world.now_ms)

    assert isinstance(step.refusal, GroupMaxSizeReached)
    assert not world.group.awaits_member
