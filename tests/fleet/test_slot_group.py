"""Workers share slots out through a consumer group: who comes, who goes, who is in doubt."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.client.errors import ClientError, NotConnected
from flowshare.fleet.inspection import describe_fleet
from flowshare.fleet.slot_group import SlotGroupRefused, SlotGroupSettings
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.slots import planning
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka
from tests.fleet.slot_groups import TOPIC, Member, agreed, members
from tests.fleet.test_lost_records import until


def world(scenario, *numbers, **options):
    """Run a scenario with a Kafka and members of these numbers."""

    async def whole(clock):
        async with FakeKafka(clock) as kafka, members(kafka.cluster, clock, *numbers, **options) as found:
            await scenario(kafka, clock, *found)

    run(whole(LoopTimeClock()))


async def all_in(clock, *found):
    await asyncio.gather(*(member.start() for member in found))
    return await agreed(clock, *found)


def test_the_first_worker_has_all_slots():
    async def scenario(kafka, clock, one):
        got = await one.start()

        assert got == one.map
        assert one.mine == tuple(range(8))
        assert got.nodes == {1001: ("10.0.0.1", 9001)}
        assert one.group.sure
        assert one.doubts == [False]

    world(scenario, 1)


def test_whoever_comes_gets_a_share_and_all_know_where_everybody_is():
    async def scenario(kafka, clock, one, two, three):
        await one.start()
        await two.start()
        await three.start()
        got = await agreed(clock, one, two, three)

        assert sorted(len(member.mine) for member in (one, two, three)) == [2, 3, 3]
        assert sorted(one.mine + two.mine + three.mine) == list(range(8))
        assert set(one.mine) <= set(one.maps[0].mine(1001))
        assert set(one.mine) <= set(one.maps[1].mine(1001))
        assert set(two.mine) <= set(two.maps[0].mine(1002))
        assert {node: port for node, (_, port) in got.nodes.items()} == {1001: 9001, 1002: 9002, 1003: 9003}
        assert one.map.keys == two.map.keys == three.map.keys == {1001: "a1", 1002: "a2", 1003: "a3"}
        assert [member.doubts for member in (one, two, three)] == [[False]] * 3

    world(scenario, 1, 2, 3)


def test_claims_reach_everybody():
    async def scenario(kafka, clock, one, two):
        one.claims = {0: 4, 5: 1}
        await all_in(clock, one, two)

        assert two.map.claims == {0: (1001, 4), 5: (1001, 1)}

    world(scenario, 1, 2)


def test_who_leaves_is_replaced_at_the_next_heartbeat_and_keeps_its_lease_for_a_while():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        left_s = clock.monotonic()
        await one.group.leave()
        sure = one.group.sure
        await agreed(clock, two)

        assert clock.monotonic() - left_s <= 0.6
        assert two.mine == tuple(range(8))
        assert sure
        await clock.sleep(6)
        assert not one.group.sure
        assert one.doubts == [False, True]

    world(scenario, 1, 2)


def test_a_look_does_not_wait_for_the_next_heartbeat():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        await clock.sleep(1.1)
        left_s = clock.monotonic()
        await one.group.leave()
        two.group.look()
        await agreed(clock, two)

        assert clock.monotonic() - left_s <= 0.05

    world(scenario, 1, 2)


def test_who_dies_is_replaced_when_its_session_is_over():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        died_s = clock.monotonic()
        await one.die()
        await agreed(clock, two)

        assert 5.0 <= clock.monotonic() - died_s <= 7.5
        assert not one.group.sure

    world(scenario, 1, 2)


def test_who_comes_back_within_its_session_keeps_its_slots_and_its_new_address_is_known():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        before, died_s = one.mine, clock.monotonic()
        await one.die()
        again = Member(one.cluster, clock, 3, instance="worker-1", cached=before)
        await again.start()
        await agreed(clock, again, two)

        assert clock.monotonic() - died_s <= 1.0
        assert again.mine == before
        assert two.map.nodes == {1002: ("10.0.0.2", 9002), 1003: ("10.0.0.3", 9003)}
        await again.group.close()

    world(scenario, 1, 2)


def test_the_groups_leader_comes_back_likewise():
    async def scenario(kafka, clock, one, two):
        await one.start()  # the first is the leader
        await two.start()
        await agreed(clock, one, two)
        await one.die()
        again = Member(one.cluster, clock, 3, instance="worker-1")
        await again.start()
        await agreed(clock, again, two)

        assert again.mine == one.mine
        await again.group.close()

    world(scenario, 1, 2)


def test_of_two_processes_with_one_static_id_the_older_goes_on_under_another(caplog):
    async def scenario(kafka, clock, one, two):
        twin = Member(one.cluster, clock, 3, instance="worker-1")
        await all_in(clock, one, two)
        await twin.start()
        await agreed(clock, one, twin, two)

        assert one.doubts[-2:] == [True, False]
        assert one.group.sure
        await one.group.close()
        await agreed(clock, twin, two)
        assert twin.doubts == [False], "it never noticed"
        await twin.group.close()

    world(scenario, 1, 2)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "another process joined the fleet as worker-1: give each worker a state directory of its own" in line


def test_a_worker_whose_rights_are_taken_away_is_back_when_it_has_them_again(caplog):
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        kafka.refuse(m.HeartbeatRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, count=2)
        kafka.refuse(m.JoinGroupRequest, ErrorCode.GROUP_AUTHORIZATION_FAILED, count=2)
        await clock.sleep(8)
        assert {one.group.sure, two.group.sure} == {False}

        before = one.map.generation
        await until(clock, lambda: one.group.sure and two.group.sure, limit_s=60)
        await agreed(clock, one, two)
        assert one.map.generation > before

    world(scenario, 1, 2)
    assert any("leads nothing until its fleet takes it back" in record.getMessage() for record in caplog.records)


def test_a_worker_whose_heartbeats_are_not_answered_is_in_doubt_before_its_session_ends():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        kafka.hold(m.HeartbeatRequest)
        held_s = clock.monotonic()
        while one.group.sure:
            await clock.sleep(0.01)
        doubted_s = clock.monotonic() - held_s
        kafka.release(m.HeartbeatRequest)
        await clock.sleep(2)
        await agreed(clock, one, two)

        assert 4.0 <= doubted_s <= 5.1
        assert one.doubts == [False, True, False]
        assert one.group.sure

    world(scenario, 1, 2)


def test_a_coordinator_that_stands_still_is_asked_a_third_time_before_the_lease_ends():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        kafka.hold(m.HeartbeatRequest)
        before = kafka.asked[m.HeartbeatRequest]
        await clock.sleep(3.5)
        again = kafka.asked[m.HeartbeatRequest]
        kafka.release(m.HeartbeatRequest)
        await clock.sleep(2)

        assert again - before >= 2 * 3, "each of two members asked three times"
        assert one.doubts == two.doubts == [False]

    world(scenario, 1, 2)


def test_a_worker_that_was_given_up_joins_again():
    async def scenario(kafka, clock, one):
        await one.start()
        kafka.refuse(m.HeartbeatRequest, ErrorCode.UNKNOWN_MEMBER_ID)
        await clock.sleep(0.6)
        await clock.sleep(4)

        assert one.doubts == [False, True, False]
        assert len(one.maps) == 2
        assert one.mine == tuple(range(8))

    world(scenario, 1)


def test_connections_that_break_cost_no_slots():
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        generation = one.map.generation
        for _ in range(5):
            await kafka.cut()
            await clock.sleep(0.7)

        assert one.map.generation == two.map.generation == generation
        assert one.doubts == two.doubts == [False]

    world(scenario, 1, 2)


@pytest.mark.parametrize("kind", [m.JoinGroupRequest, m.SyncGroupRequest, m.HeartbeatRequest])
def test_an_answer_that_is_lost_is_asked_for_again(kind):
    async def scenario(kafka, clock, one, two):
        await one.start()
        kafka.drop_answers(kind, 2)
        await two.start()
        await agreed(clock, one, two)

        assert sorted(one.mine + two.mine) == list(range(8))

    world(scenario, 1, 2)


@pytest.mark.parametrize("error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_moves_is_followed(error):
    async def scenario(kafka, clock, one, two):
        await all_in(clock, one, two)
        kafka.refuse(m.HeartbeatRequest, error, 6)
        await clock.sleep(4)

        assert one.doubts == two.doubts == [False]
        assert one.group.sure

    world(scenario, 1, 2)


def test_a_round_that_is_overtaken_by_the_next_one_is_left():
    async def scenario(kafka, clock, one, two):
        await one.start()
        kafka.refuse(m.SyncGroupRequest, ErrorCode.REBALANCE_IN_PROGRESS, 2)
        await two.start()
        await agreed(clock, one, two)

    world(scenario, 1, 2)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, "READ"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "another name"),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, r"group\.max\.size"),
    ],
)
def test_what_cannot_be_mended_by_trying_again_ends_the_start_and_says_what_to_do(error, advice):
    async def scenario(kafka, clock, one):
        kafka.refuse(m.JoinGroupRequest, error)
        with pytest.raises(SlotGroupRefused, match=advice):
            await one.start()

    world(scenario, 1)


def test_a_fault_of_ours_ends_the_start_and_is_tried_again_by_a_worker_that_was_in(caplog):
    async def scenario(kafka, clock, one, two):
        two.claims = None
        with pytest.raises(ClientError, match=r"left by a fault of flowshare's: TypeError"):
            await two.start()

        await one.start()
        one.claims = None
        kafka.refuse(m.HeartbeatRequest, ErrorCode.REBALANCE_IN_PROGRESS)
        await until(clock, lambda: not one.group.sure)
        one.claims = {}
        await until(clock, lambda: one.group.sure)
        await agreed(clock, one)

    world(scenario, 1, 2)
    faults = [record for record in caplog.records if "a fault of ours" in record.getMessage()]
    assert [record.exc_info[0] for record in faults] == [TypeError, TypeError]


def test_a_session_that_the_broker_does_not_allow_is_refused():
    async def scenario(kafka, clock, one):
        with pytest.raises(SlotGroupRefused, match=r"group\.min\.session\.timeout\.ms"):
            await one.start()

    world(scenario, 1, settings=SlotGroupSettings(session_s=1.0))


def test_a_kafka_that_does_not_answer_ends_the_start_in_time():
    async def scenario(kafka, clock, one):
        kafka.hold(m.JoinGroupRequest)
        with pytest.raises(NotConnected, match="within 20 s"):
            await one.start(limit_s=20)
        assert clock.monotonic() < 30

    world(scenario, 1)


def test_who_may_not_lead_gets_the_map_and_no_slots():
    async def scenario(kafka, clock, one):
        cluster = kafka.cluster()
        await cluster.start()
        reader = Member(cluster, clock, 2, may_lead=False)
        await one.start()
        got = await reader.start()

        assert got.owners == dict.fromkeys(range(8), 1001)
        assert reader.mine == ()
        await reader.group.close()
        await cluster.close()

    world(scenario, 1)


def test_of_two_workers_with_one_node_id_one_gets_another():
    async def scenario(kafka, clock, one):
        twin = Member(one.cluster, clock, 1, instance="worker-2")
        await one.start()
        await twin.start()
        got = await agreed(clock, one, twin)

        assert len({one.map.node_id, twin.map.node_id}) == 2
        assert one.map.node_id == 1001
        assert set(got.nodes) == {one.map.node_id, twin.map.node_id}
        await twin.group.close()

    world(scenario, 1)


def test_a_worker_that_knows_another_number_of_slots_is_refused():
    async def scenario(kafka, clock, one):
        other = Member(one.cluster, clock, 2, slots=16)
        await one.start()
        with pytest.raises(SlotGroupRefused, match="8 slots"):
            await other.start()
        await other.group.close()

    world(scenario, 1)


# --- from outside -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [planning.GROUP_BYTES_MAX, 0])
def test_a_fleet_is_described_from_outside(monkeypatch, bytes_max):
    monkeypatch.setattr(planning, "GROUP_BYTES_MAX", bytes_max)

    async def scenario(kafka, clock, one, two):
        looking = one.cluster.connect("command")
        nobody = await describe_fleet(looking, "orders")
        await all_in(clock, one, two)
        seen = await describe_fleet(looking, "orders")
        await looking.close()

        assert nobody is None
        assert seen.owners == one.map.owners == two.map.owners
        assert seen.nodes == one.map.nodes == two.map.nodes
        assert seen.keys == one.map.keys == {1001: "a1", 1002: "a2"}
        assert one.map.topic == TOPIC

    world(scenario, 1, 2)
