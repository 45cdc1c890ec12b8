"""Outputs and the state of their records on a Kafka: visible if and only if the records are settled, whoever dies."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import nullcontext

import pytest

from flowshare.fleet.state.lane import OutputSettings
from flowshare.fleet.state.outputs import ends_transactions
from flowshare.fleet.storage import FleetStorage
from flowshare.log.base import (
    LogError,
    NotAllowed,
    NotDecided,
    Output,
    OutputRefused,
    RecordsTooLarge,
    StorageDamaged,
    StorageError,
    Undecided,
    UnknownTopic,
)
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.server.runtime.state import ShareKey
from flowshare.server.share.leaders import LocalLeaders
from flowshare.share.types import PartitionState
from flowshare.slots.prepared import LEDGER, LaneNote, Prepared, Row, decode_note, lane_entry, lane_of
from flowshare.transactions.coordinator import TransactionConfig
from tests.fleet.kafka import refusal
from tests.fleet.outputs_world import NOTHING, OUTPUT, Leader, on_outputs, out, written
from tests.fleet.slots import TOPIC


def test_a_settle_writes_outputs_and_state():
    async def scenario(world):
        leader = await world.leader("a")
        assert await leader.take(2) == {0: 1, 1: 1}

        await leader.settle(0, b"out-0")
        await leader.owner.close()

        assert await world.visible() == [b"out-0"]
        assert not world.held_up()
        assert await leader.stored() == (1, [(1, 1, "ACQUIRED", 1)])
        assert leader.rows() == []
        assert leader.stats.acks["accept"] == 1

    on_outputs(scenario)


def test_settles_at_the_same_time_share_transactions_and_lanes():
    async def scenario(world):
        leader = await world.leader("a", take=6)

        await asyncio.gather(*(leader.settle(n, b"out-%d" % n) for n in range(6)))
        await leader.owner.close()

        assert sorted(await world.visible()) == [b"out-%d" % n for n in range(6)]
        assert await leader.stored() == (6, [])
        assert world.kafka.asked[m.EndTxnRequest] < 6
        assert leader.storage.counts()["output_transactions"] == world.kafka.asked[m.EndTxnRequest]

    on_outputs(scenario)


# --- deaths -------------------------------------------------------------------------------------------------------


async def settled_by_the_next(world, outputs):
    """Another worker leads: what was committed is settled, and nothing is left of the rest."""
    second = await world.leader("b")
    taken = await second.take(6)
    assert await world.visible() == outputs
    assert not world.held_up()
    assert second.rows() == []
    return second, taken


@pytest.mark.parametrize("step", range(12))
@pytest.mark.parametrize("carried_out", [False, True])
def test_outputs_are_visible_if_and_only_if_the_record_is_settled_wherever_the_leader_dies(step, carried_out):
    async def scenario(world):
        first = await world.leader("a", take=1)
        first.dies(**{"after" if carried_out else "before": step})
        told = first.settle(0, b"first")
        await world.until(lambda: told.done() or first.dead)
        if not first.dead:
            await first.owner.close()
            await first.kill()

        second = await world.leader("b")
        taken = await second.take()
        seen = await world.visible()
        assert seen == ([] if 0 in taken else [b"first"])
        if told.done() and told.exception() is None:
            assert seen == [b"first"]
        if 0 in taken:
            assert taken[0] == 2
            await second.settle(0, b"second")
        await second.owner.close()
        assert await world.visible() == [b"second" if 0 in taken else b"first"]
        assert second.rows() == []
        assert not world.held_up()

    on_outputs(scenario)


@pytest.mark.parametrize("step", range(10))
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_successor_that_dies_while_it_takes_over_loses_nothing(step, carried_out):
    async def scenario(world):
        first = await world.leader("a", take=1)
        await first.die_committed(0, b"first")

        second = Leader(world, "b")
        world.leaders.append(second)
        second.dies(**{"after" if carried_out else "before": step})
        beginning = asyncio.ensure_future(second.begin())
        await world.until(lambda: second.dead or beginning.done())
        await second.kill()
        beginning.cancel()

        third = await world.leader("c")
        assert 0 not in await third.take(6)
        assert await world.visible() == [b"first"]
        assert third.rows() == []

    on_outputs(scenario)


def test_a_leader_that_dies_when_only_its_row_is_written_has_settled_nothing():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.kafka.hold(m.AddPartitionsToTxnRequest)
        leader.settle(0, b"out-0")
        await world.until(leader.rows)
        await leader.kill()
        world.kafka.release(m.AddPartitionsToTxnRequest)

        second, taken = await settled_by_the_next(world, [])
        assert taken[0] == 2  # its delivery counts
        await second.settle(0, b"again")
        assert await world.visible() == [b"again"]

    on_outputs(scenario)


@pytest.mark.parametrize("late", [False, True])
def test_a_leader_that_dies_before_it_commits_has_settled_nothing(late):
    async def scenario(world):
        leader = await world.leader("a", take=1)
        await leader.ending(0, b"out-0", late=late)
        assert world.held_up()
        await leader.kill()
        go_on = world.kafka.hold_later_ones_no_more(m.EndTxnRequest)

        second = await world.leader("b")
        await world.until(lambda: not world.held_up())
        go_on.set()
        taken = await second.take(6)
        await world.clock.sleep(1)  # what came late was carried out
        assert taken[0] == 2
        assert await world.visible() == []
        await second.settle(0, b"again")
        assert await world.visible() == [b"again"]

    on_outputs(scenario)


def test_a_leader_that_dies_before_it_hears_that_it_has_committed_has_settled():
    async def scenario(world):
        leader = await world.leader("a", take=2)
        settled = await leader.die_committed(0, b"out-0")

        second, taken = await settled_by_the_next(world, [b"out-0"])
        assert taken[1] == 2
        assert 0 not in taken
        assert await second.stored() == (1, [(1, 1, "ACQUIRED", 2), (2, 5, "ACQUIRED", 1)])
        assert not settled.done()

    on_outputs(scenario)


def test_a_leader_that_dies_before_it_writes_what_follows_has_settled():
    async def scenario(world):
        leader = await world.leader("a", take=2)
        settled = leader.settle(1, b"out-1")
        world.kafka.hold(m.EndTxnRequest)
        await world.asked(m.EndTxnRequest)
        world.kafka.hold(m.ProduceRequest)
        world.kafka.release(m.EndTxnRequest)
        await settled
        assert len(leader.rows()) == 1
        await leader.kill()
        world.kafka.release(m.ProduceRequest)

        _, taken = await settled_by_the_next(world, [b"out-1"])
        assert taken[0] == 2
        assert 1 not in taken

    on_outputs(scenario)


def test_what_was_committed_is_known_when_two_leaders_died_one_after_another():
    async def scenario(world):
        first = await world.leader("a", take=1)
        await first.die_committed(0, b"out-0")
        second = await world.unloaded("b")
        await world.until(lambda: [kept.decided for kept in second.rows()] == [True])
        await second.kill()

        _, taken = await settled_by_the_next(world, [b"out-0"])
        assert 0 not in taken

    on_outputs(scenario)


def test_the_open_transaction_of_a_dead_leader_holds_no_reader_up():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        await leader.ending(0, b"out-0")
        await leader.kill()
        begun_s = world.clock.monotonic()

        await world.unloaded("b")
        await world.until(lambda: not world.held_up())

        assert world.clock.monotonic() - begun_s < 5  # far below the transaction's own time

    on_outputs(scenario)


# --- answers that are lost, zombies -------------------------------------------------------------------------------


def test_a_lost_answer_to_a_commit_is_asked_for_again():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.kafka.drop_answers(m.EndTxnRequest)

        await leader.settle(0, b"out-0")
        await leader.owner.close()

        assert await world.visible() == [b"out-0"]
        assert await leader.stored() == (1, [])

    on_outputs(scenario)


@pytest.mark.parametrize("lost", [2, 3])
def test_the_ledger_says_what_no_answer_does(lost):
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.kafka.drop_answers(m.EndTxnRequest, lost)

        await leader.settle(0, b"out-0")
        await leader.owner.close()

        assert await world.visible() == [b"out-0"]
        assert await leader.stored() == (1, [])
        assert leader.storage.counts()["output_transactions_undecided"] == 0

    on_outputs(scenario)


def test_a_commit_that_never_arrived_is_made_again():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.kafka.hold(m.EndTxnRequest)
        settled = leader.settle(0, b"out-0")
        await world.asked(m.EndTxnRequest, 2)
        await world.asked(m.InitProducerIdRequest, world.kafka.asked[m.InitProducerIdRequest] + 1)
        world.kafka.release(m.EndTxnRequest)

        await settled
        await leader.owner.close()

        assert await world.visible() == [b"out-0"]
        assert await leader.stored() == (1, [])

    on_outputs(scenario)


def test_a_zombie_commits_nothing_and_takes_nothing_from_its_successor():
    async def scenario(world):
        zombie = await world.leader("a", take=1)
        late = await zombie.ending(0, b"late")
        go_on = world.kafka.hold_later_ones_no_more(m.EndTxnRequest)

        second = await world.leader("b")
        taken = await second.take()
        go_on.set()
        await second.settle(0, b"out-0")
        with pytest.raises(LogError):
            await late
        await second.owner.close()

        assert taken == {0: 2}
        assert await world.visible() == [b"out-0"]
        assert (await second.stored())[0] == 1

    on_outputs(scenario)


def test_a_zombie_does_not_take_what_a_later_leader_has_committed_for_its_own():
    """The leader between them has deleted its row, and used no number itself."""

    async def scenario(world):
        zombie = await world.leader("a", take=1)
        late = await zombie.ending(0, b"late")
        go_on = world.kafka.hold_later_ones_no_more(m.EndTxnRequest)
        await (await world.leader("b")).kill()
        third = await world.leader("c", take=1)
        await third.settle(0, b"out-0")

        go_on.set()
        with pytest.raises(Undecided):
            await late
        assert await world.visible() == [b"out-0"]

    on_outputs(scenario)


def test_a_ledger_is_read_when_nothing_of_it_is_open():
    async def scenario(world):
        read = []
        answered = world.refusal

        def seen(request):
            read.extend([request.require_stable] if isinstance(request, m.OffsetFetchRequest) else ())
            return answered(request)

        world.refusal = seen
        leader = await world.leader("a", take=1)
        await leader.settle(0, b"out-0")

        assert read
        assert all(read)

    on_outputs(scenario)


# --- what cannot be written ---------------------------------------------------------------------------------------


async def refused(leader, durable):
    """A settle is refused for its output; the record is the member's still, and can be settled otherwise."""
    with pytest.raises(OutputRefused) as caught:
        await durable
    assert list(caught.value.places) == [0]
    await leader.settle(0, b"otherwise")
    await leader.owner.close()
    assert (await leader.stored())[0] >= 1
    return caught.value.places[0]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ({"topic": "gone", "topic_id": uuid.uuid4()}, "gone"),
        ({"topic_id": uuid.uuid4()}, "made anew"),
        ({"partition": 7}, "7"),
    ],
    ids=["no topic", "a topic made anew", "no partition"],
)
def test_outputs_for_what_is_not_there_are_refused(where, why):
    async def scenario(world):
        leader = await world.leader("a", take=1)

        error = await refused(leader, leader.settle(0, b"x", **where))

        assert isinstance(error, UnknownTopic)
        assert why in str(error)
        assert await world.visible() == [b"otherwise"]

    on_outputs(scenario)


def test_outputs_that_are_too_large_are_refused_and_their_neighbours_are_written():
    async def scenario(world):
        leader = await world.leader("a", take=3)
        await world.kafka.storage.create_topic("small", configs={"max.message.bytes": "200"})
        one = leader.settle(1, b"small enough", topic="small")
        large = leader.settle(0, bytes(1000), topic="small")
        other = leader.settle(2, b"out-2")

        assert isinstance(await refused(leader, large), RecordsTooLarge)
        await asyncio.gather(one, other)
        assert sorted([*await world.visible(), *await world.visible("small")]) == [
            b"otherwise",
            b"out-2",
            b"small enough",
        ]
        assert not world.held_up()
        assert not world.held_up("small")

    on_outputs(scenario)


def test_all_outputs_that_are_too_large_are_found_with_one_transaction():
    async def scenario(world):
        leader = await world.leader("a", take=5)
        await world.kafka.storage.create_topic("small", configs={"max.message.bytes": "200"})
        values = [bytes(1000), b"1", bytes(1000), b"3", bytes(1000)]
        settles = [leader.settle(offset, value, topic="small") for offset, value in enumerate(values)]

        found = await asyncio.gather(*settles, return_exceptions=True)

        assert [type(one.places[0]) for one in found if isinstance(one, OutputRefused)] == [RecordsTooLarge] * 3
        assert [found[1], found[3]] == [None, None]
        assert sorted(await world.visible("small")) == [b"1", b"3"]
        assert leader.storage.counts()["output_transactions_aborted"] == 1

    on_outputs(scenario)


def test_all_outputs_that_are_too_large_are_found_with_one_transaction_wherever_they_go():
    async def scenario(world):
        leader = await world.leader("a", take=6)
        names = [f"small-{number}" for number in range(5)]
        for name in names:
            await world.kafka.storage.create_topic(name, configs={"max.message.bytes": "200"})
        large = [leader.settle(offset, bytes(1000), topic=name) for offset, name in enumerate(names)]
        good = leader.settle(5, b"good")

        found = await asyncio.gather(*large, good, return_exceptions=True)

        assert [type(one.places[0]) for one in found[:5]] == [RecordsTooLarge] * 5
        assert found[5] is None
        assert leader.storage.counts()["output_transactions_aborted"] == 1

    on_outputs(scenario)


def test_all_outputs_to_where_the_workers_may_not_write_are_found_with_one_transaction():
    async def scenario(world):
        leader = await world.leader("a", take=4)
        await world.kafka.storage.create_topic("other")
        world.forbidden.add((m.ProduceRequest, OUTPUT))
        closed = [leader.settle(offset, b"x") for offset in range(3)]
        good = leader.settle(3, b"good", topic="other")

        found = await asyncio.gather(*closed, good, return_exceptions=True)

        world.forbidden.clear()
        assert [type(one.places[0]) for one in found[:3]] == [NotAllowed] * 3
        assert found[3] is None
        assert leader.storage.counts()["output_transactions_aborted"] == 1

    on_outputs(scenario)


def test_a_partition_that_gives_no_answer_hides_nothing_of_what_others_refuse():
    async def scenario(world):
        leader = await world.leader("a", take=2)
        await world.kafka.storage.create_topic("small", configs={"max.message.bytes": "200"})
        await world.kafka.storage.create_topic("silent")
        world.still.add(("silent", 0))
        large = leader.settle(0, bytes(1000), topic="small")
        silent = leader.settle(1, b"x", topic="silent")

        found = await asyncio.gather(large, silent, return_exceptions=True)

        assert [type(one.places[0]) for one in found] == [RecordsTooLarge, StorageError]
        assert leader.storage.counts()["output_transactions_aborted"] == 1

    on_outputs(scenario)


@pytest.mark.parametrize("kind", [m.AddPartitionsToTxnRequest, m.ProduceRequest])
def test_outputs_to_where_the_workers_may_not_write_are_refused(kind):
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.forbidden.add((kind, OUTPUT))
        durable = leader.settle(0, b"x")
        await world.until(durable.done)
        world.forbidden.clear()

        problem = await refused(leader, durable)
        assert isinstance(problem, NotAllowed)
        assert str(problem).startswith(f"the workers' user needs WRITE on topic {OUTPUT};")
        assert await world.visible() == [b"otherwise"]

    on_outputs(scenario)


def test_bytes_that_are_no_batch_are_refused():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        output = Output(OUTPUT, world.kafka.storage.topics()[OUTPUT].topic_id, 0, b"no batch")

        with pytest.raises(OutputRefused):
            await leader.storage.settle_apart(leader.key.prefix, b"", (), [output])

        assert leader.rows() == []

    on_outputs(scenario)


# --- what stands still --------------------------------------------------------------------------------------------


def test_a_partition_that_gives_no_answer_rests_and_others_go_on():
    async def scenario(world):
        leader = await world.leader("a", take=4)
        world.still.add((OUTPUT, 1))
        begun_s = world.clock.monotonic()
        stuck = leader.settle(0, b"stuck", partition=1)
        other = leader.settle(1, b"out-1")

        with pytest.raises(OutputRefused, match="took no outputs in"):
            await stuck
        assert 1.9 < world.clock.monotonic() - begun_s < 3
        await other
        with pytest.raises(OutputRefused, match="takes no outputs in now"):
            await leader.settle(0, b"too soon", partition=1)
        assert world.clock.monotonic() - begun_s < 3
        assert leader.storage.counts()["output_partitions_resting"] == 1
        await leader.settle(2, b"out-2")

        world.still.clear()
        await world.clock.sleep(6)
        await leader.settle(0, b"out-0", partition=1)
        assert await world.visible() == [b"out-1", b"out-2"]
        assert await world.visible(partition=1) == [b"out-0"]
        assert leader.storage.counts()["output_partitions_resting"] == 0

    on_outputs(scenario)


def test_a_partition_that_gives_no_answer_for_minutes_takes_a_few_lanes_and_nothing_of_its_neighbours():
    async def scenario(world):
        leader = await world.leader("a")
        world.still.add((OUTPUT, 1))
        world.kafka.unmarked.add((OUTPUT, 1))  # what is open there cannot be aborted there either
        slowest_s = 0.0
        for number in range(90):
            stuck = asyncio.ensure_future(written(leader, out(world, b"stuck", 1)))
            await world.clock.sleep(1)
            begun_s = world.clock.monotonic()
            await written(leader, out(world, b"out-%d" % number))
            slowest_s = max(slowest_s, world.clock.monotonic() - begun_s)
            await asyncio.wait([stuck])
            with pytest.raises(OutputRefused):
                await stuck

        assert slowest_s < 0.1
        assert len(leader.lanes) <= 4
        assert await world.visible() == [b"out-%d" % number for number in range(90)]
        world.still.clear()
        world.kafka.unmarked.clear()
        await world.until(lambda: all(used.state.name == "READY" for used in leader.lanes))
        await world.clock.sleep(6)
        await written(leader, out(world, b"at last", 1))
        assert await world.visible(partition=1) == [b"at last"]

    on_outputs(scenario)


def test_when_many_lanes_cannot_be_used_others_take_their_place():
    async def scenario(world):
        leader = await world.leader("a", take=3, settings=OutputSettings(lanes_max=2, stuck_max=3, queue_s=60))
        world.still.update(f"{TOPIC}.0.outputs.{lane}" for lane in range(3))

        await leader.settle(0, b"out-0")

        assert await world.visible() == [b"out-0"]
        assert 4 <= len(leader.lanes) <= 5

    on_outputs(scenario)


def test_a_coordinator_that_gives_no_answer_keeps_back_its_own_lane_alone():
    async def scenario(world):
        leader = await world.leader("a", take=6)
        await leader.settle(0, b"out-0")
        await world.until(lambda: len(leader.lanes) == 2 and leader.lanes[1].state.name == "READY")
        world.still.add(f"{TOPIC}.0.outputs.1")  # it is the next one's
        stuck = leader.settle(1, b"out-1")

        await asyncio.gather(*(leader.settle(n, b"out-%d" % n) for n in (2, 3, 4)))
        assert not stuck.done()
        world.still.clear()
        await stuck
        assert sorted(await world.visible()) == [b"out-%d" % n for n in range(5)]

    on_outputs(scenario)


def test_when_all_lanes_stand_still_settles_are_refused_after_a_while():
    async def scenario(world):
        leader = await world.leader("a", take=3, settings=OutputSettings(lanes_max=2, stuck_max=0, queue_s=5))
        world.still.update(f"{TOPIC}.0.outputs.{lane}" for lane in range(2))
        begun_s = world.clock.monotonic()

        with pytest.raises(StorageError, match="no lane"):
            await leader.settle(0, b"stuck")

        assert world.clock.monotonic() - begun_s < 6
        world.still.clear()
        await leader.settle(0, b"out-0")
        assert await world.visible() == [b"out-0"]

    on_outputs(scenario)


def test_a_slot_that_is_given_away_leaves_what_is_undecided_to_the_next_leader():
    async def scenario(world):
        first = await world.leader("a", take=1)
        told = await first.ending(0, b"out-0", late=True)
        begun_s = world.clock.monotonic()
        await first.give_away("b")
        assert world.clock.monotonic() - begun_s < 2
        with pytest.raises(Undecided):
            await told
        world.kafka.release(m.EndTxnRequest)
        await world.until(lambda: not world.held_up())

        second = await world.leader("b")
        taken = await second.take()
        assert await world.visible() == ([] if 0 in taken else [b"out-0"])

    on_outputs(scenario)


def test_a_slot_that_is_given_away_waits_for_what_is_about_to_be_committed():
    async def scenario(world):
        first = await world.leader("a", take=1)
        told = first.settle(0, b"out-0")
        await world.asked(m.AddPartitionsToTxnRequest)
        await first.give_away("b")
        await told

        second = await world.leader("b")
        assert 0 not in await second.take()
        assert await world.visible() == [b"out-0"]

    on_outputs(scenario)


# --- the state beside ---------------------------------------------------------------------------------------------


def test_a_snapshot_that_was_made_meanwhile_takes_nothing_from_a_settle():
    async def scenario(world):
        leader = await world.leader("a", take=6)
        settled = await leader.ending(1, b"out-1")
        leader.owner._writer._journal.snapshot_due = True
        await leader.accept(0)
        assert await leader.stored() == (1, [(1, 5, "ACQUIRED", 1)])
        world.kafka.release(m.EndTxnRequest)
        await settled
        await leader.owner.close()

        assert await leader.stored() == (2, [(2, 5, "ACQUIRED", 1)])

    on_outputs(scenario)


def test_what_could_not_be_written_after_a_commit_is_written_with_the_next_snapshot():
    async def scenario(world):
        leader = await world.leader("a", take=2)
        leader.fail_writes = 1
        await leader.settle(0, b"out-0")
        await world.until(lambda: not leader.fail_writes)
        await world.clock.sleep(2)

        assert await leader.stored() == (1, [(1, 1, "ACQUIRED", 1)])
        assert leader.rows() == []

    on_outputs(scenario)


def test_a_share_partition_that_is_loaded_again_has_what_its_owner_could_not_write():
    async def scenario(world):
        leader = await world.leader("a", take=2)
        leader.fail_writes = 1000
        await leader.settle(0, b"out-0")
        await leader.owner.close()
        assert len(leader.rows()) == 1
        leader.fail_writes = 0

        await leader.load()

        assert leader.rows() == []
        assert 0 not in await leader.take(6)

    on_outputs(scenario)


def test_a_share_partition_is_not_loaded_before_its_settles_are_decided():
    async def scenario(world):
        first = await world.leader("a", take=1)
        await first.die_committed(0, b"out-0")
        world.still.add(f"{TOPIC}.0.outputs.0")
        second = await world.unloaded("b")

        with pytest.raises(StorageError, match="not known yet"):
            await second.load()
        world.still.clear()
        await second.load()

        assert 0 not in await second.take(6)

    on_outputs(scenario)


def test_who_asks_what_a_member_holds_waits_for_no_coordinator_without_end():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        told = await leader.ending(0, b"out-0")
        world.still.update(used.lane.transactional_id for used in leader.lanes)
        begun_s = world.clock.monotonic()

        with pytest.raises(NotDecided):
            await leader.owner.all_known()
        assert world.clock.monotonic() - begun_s < 5

        world.still.clear()
        world.kafka.release(m.EndTxnRequest)
        await told
        await leader.owner.all_known()

    on_outputs(scenario)


def test_a_record_whose_settle_is_refused_after_its_lock_lapsed_goes_to_others():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.kafka.hold(m.EndTxnRequest)
        world.still.add((OUTPUT, 1))
        stuck = leader.settle(0, b"stuck", partition=1)
        leader.owner.release_member("m")
        with pytest.raises(OutputRefused):
            await stuck
        world.kafka.release(m.EndTxnRequest)

        assert (await leader.take())[0] == 2

    on_outputs(scenario)


# --- order by key -------------------------------------------------------------------------------------------------


def test_the_next_of_a_key_waits_until_the_settle_is_committed():
    async def scenario(world):
        leader = await world.leader("a", key_order="key")
        assert set(await leader.take(6)) == {0, 1}
        settled = await leader.ending(0, b"out-0")
        assert await leader.take(6) == {}
        world.kafka.release(m.EndTxnRequest)
        await settled

        assert set(await leader.take(6)) == {2}

    on_outputs(scenario, keys=(b"k", b"l") * 3)


def test_the_next_of_a_key_stays_where_it_is_when_the_settle_is_refused():
    async def scenario(world):
        leader = await world.leader("a", take=6, key_order="key")
        with pytest.raises(OutputRefused):
            await leader.settle(0, b"x", topic_id=uuid.uuid4())
        assert await leader.take(6) == {}

        await leader.settle(0, b"out-0")
        assert set(await leader.take(6)) == {2}

    on_outputs(scenario, keys=(b"k", b"l") * 3)


# --- coordinators and brokers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [m.AddPartitionsToTxnRequest, m.InitProducerIdRequest])
def test_a_coordinator_that_still_ends_the_transaction_before_is_asked_again_within_milliseconds(kind):
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.kafka.refuse(kind, ErrorCode.CONCURRENT_TRANSACTIONS, 3)
        begun_s = world.clock.monotonic()

        await leader.settle(0, b"out-0")

        assert 0.001 <= world.clock.monotonic() - begun_s < 0.02

    on_outputs(scenario)


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.UNKNOWN_PRODUCER_ID]
)
@pytest.mark.parametrize("kind", [m.AddPartitionsToTxnRequest, m.TxnOffsetCommitRequest, m.EndTxnRequest])
def test_a_producer_that_brokers_have_forgotten_is_taken_anew(kind, error):
    async def scenario(world):
        leader = await world.leader("a", take=2)
        await leader.settle(0, b"out-0")
        world.refused[kind] = error

        await leader.settle(1, b"out-1")
        await leader.owner.close()

        assert await world.visible() == [b"out-0", b"out-1"]
        assert (await leader.stored())[0] == 2
        assert not world.held_up()

    on_outputs(scenario)


def test_an_output_that_its_broker_has_already_is_written():
    async def scenario(world):
        opened, told = world.kafka.open_node, []

        async def open_node(*args):
            connection = await opened(*args)
            send = connection.send

            async def answered(request):
                answer = await send(request)
                if isinstance(request, m.ProduceRequest) and request.topic == OUTPUT and not told:
                    told.append(request)
                    return refusal(request, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
                return answer

            connection.send = answered
            return connection

        world.kafka.open_node = open_node
        leader = await world.leader("a", take=1)
        await leader.settle(0, b"out-0")

        assert await world.visible() == [b"out-0"]
        assert (len(told), world.kafka.asked[m.EndTxnRequest]) == (1, 1)

    on_outputs(scenario)


def test_brokers_that_allow_no_long_transactions_get_short_ones():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        await leader.settle(0, b"out-0")

        assert await world.visible() == [b"out-0"]

    on_outputs(scenario, transactions=TransactionConfig(timeout_max_ms=20_000))


def test_old_brokers_end_no_transactions_by_themselves():
    assert ends_transactions({0: (0, 10)})
    assert not ends_transactions({0: (0, 9)})
    assert not ends_transactions({})


def test_a_worker_on_old_brokers_says_why_it_settles_nothing():
    async def scenario(world):
        leader = await world.leader("a")
        storage = FleetStorage(leader.log, {0: leader.slot}, 1)

        with pytest.raises(StorageError, match=r"Kafka 3\.7 or newer"):
            await storage.settle_apart(leader.key.prefix, b"", (), ())

    on_outputs(scenario)


def test_a_row_that_cannot_be_read_stops_its_own_share_partition_alone():
    async def scenario(world):
        leader = await world.leader("a")
        await leader.slot.write([(Row(leader.key.prefix, 2, 1).key, b"damaged")])
        await leader.slot.write([(lane_entry(0, 0, LaneNote())[0], b"damaged, too")])
        await leader.give_away("b")
        second = await world.unloaded("b")

        with pytest.raises(StorageDamaged):
            await second.load()
        other = ShareKey("other", leader.key.topic_id, 0)
        await second.storage.decided(other.prefix)

    on_outputs(scenario)


def test_what_waits_for_a_partition_that_gives_no_answer_is_refused_with_it():
    async def scenario(world):
        leader = await world.leader("a", take=4, settings=OutputSettings(lanes_max=1))
        await leader.settle(0, b"out-0")
        world.still.add((OUTPUT, 1))
        stuck = leader.settle(1, b"stuck", partition=1)
        await world.asked(m.ProduceRequest, world.kafka.asked[m.ProduceRequest] + 1)
        begun_s = world.clock.monotonic()
        behind, other = leader.settle(2, b"behind", partition=1), leader.settle(3, b"out-3")

        for durable in (stuck, behind):
            with pytest.raises(OutputRefused):
                await durable
        await other
        assert world.clock.monotonic() - begun_s < 3
        assert await world.visible() == [b"out-0", b"out-3"]

    on_outputs(scenario)


def test_a_slot_that_may_have_no_lane_says_why():
    async def scenario(world):
        leader = await world.leader("a", take=1, settings=OutputSettings(queue_s=3))
        world.kafka.refuse(m.InitProducerIdRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 1000)

        with pytest.raises(StorageError, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            await leader.settle(0, b"x")

    on_outputs(scenario)


def test_lanes_that_are_only_taken_over_keep_no_connection():
    async def scenario(world):
        first = await world.leader("a", take=6)
        await asyncio.gather(*(first.settle(n, b"out-%d" % n) for n in range(6)))
        await first.kill()
        second = await world.unloaded("b")
        await world.until(lambda: all(used.state.name == "READY" for used in second.lanes))

        assert second.lanes
        assert all(not used.lane._coordinators._nodes for used in second.lanes)
        await second.load()
        taken = await second.take(6)
        assert taken == {}

    on_outputs(scenario)


def test_nothing_is_committed_before_the_slots_own_log_has_the_row():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        await leader.storage.write([(b"g/x", b"1")])
        await leader.outputs.settle(leader.key.prefix, Prepared(NOTHING), ())  # the lanes are there
        asked = world.kafka.asked[m.EndTxnRequest]
        world.still.add((TOPIC, 0))
        settled = leader.settle(0, b"out-0")
        await world.asked(m.TxnOffsetCommitRequest, world.kafka.asked[m.TxnOffsetCommitRequest] + 1)
        await world.clock.sleep(4)
        assert world.kafka.asked[m.EndTxnRequest] == asked
        assert not settled.done()
        await leader.kill()
        world.still.clear()

        assert (await (await world.leader("b")).take())[0] == 2
        assert await world.visible() == []

    on_outputs(scenario)


def notes(leader):
    """Those of all lanes that the slot's log names."""
    return {lane_of(key): decode_note(value) for key, value in leader.slot.scan(b"") if lane_of(key) is not None}


def test_a_lane_is_noted_with_where_its_last_two_transactions_wrote_to():
    async def scenario(world):
        leader = await world.leader("a", take=3, settings=OutputSettings(lanes_max=1))

        await leader.settle(0, b"out-0")
        await leader.settle(1, b"out-1", partition=1)
        second = notes(leader)
        await leader.settle(2, b"out-2", partition=1)

        assert second[0] == LaneNote(((OUTPUT, 0), LEDGER), ((OUTPUT, 1), LEDGER))
        assert notes(leader)[0] == LaneNote(((OUTPUT, 1), LEDGER), ((OUTPUT, 1), LEDGER))

    on_outputs(scenario)


def test_no_transaction_begins_in_a_lane_that_the_slots_own_log_does_not_know_of():
    async def scenario(world):
        leader = await world.leader("a", take=1)
        world.still.add((TOPIC, 0))
        leader.settle(0, b"out-0")
        await world.clock.sleep(4)
        assert world.kafka.asked[m.AddPartitionsToTxnRequest] == 0
        await leader.kill()
        world.still.clear()

        assert (await (await world.leader("b")).take())[0] == 2
        assert not world.held_up()

    on_outputs(scenario)


def test_a_share_partition_is_not_loaded_while_a_settle_of_its_last_owner_is_under_way():
    """Its row may come at any moment, and be committed."""

    async def scenario(world):
        leader = await world.leader("a", take=1, settings=OutputSettings(answer_s=60, decide_s=1))
        await leader.outputs.settle(leader.key.prefix, Prepared(NOTHING), ())
        await leader.storage.decided(leader.key.prefix)
        world.still.add((TOPIC, 0))
        told = leader.settle(0, b"out-0")
        await world.asked(m.TxnOffsetCommitRequest, world.kafka.asked[m.TxnOffsetCommitRequest] + 1)
        await leader.owner.close()
        with pytest.raises(Undecided):
            await told
        assert leader.rows() == []

        with pytest.raises(StorageError, match="not known yet"):
            await leader.load()

    on_outputs(scenario)


class NothingLoaded:
    """Of share-partitions: none is loaded, and all have state."""

    topic_ids = None

    def knows(self, key):
        return True

    def know(self, key):
        pass

    async def settled(self, keys):
        pass

    def held(self, keys):
        return nullcontext()

    async def drop(self, keys):
        pass

    async def forget(self, keys):
        pass


def test_offsets_are_not_set_anew_before_what_is_under_way_is_decided():
    """Its row would come after the new state, and settle records that run again."""

    async def scenario(world):
        leader = await world.leader("a", settings=OutputSettings(answer_s=60, decide_s=1))
        parts = dict.fromkeys(("topics", "sessions", "loader", "duties", "clock"))
        leaders = LocalLeaders(store=leader.storage, partitions=NothingLoaded(), **parts)
        anew = {leader.key: PartitionState(state_epoch=1, start_offset=0)}
        await leader.take()
        told = await leader.ending(0, b"out-0")
        await leader.owner.close()
        with pytest.raises(Undecided):
            await told

        with pytest.raises(NotDecided):
            async with leaders.replacing(anew):
                pass

        world.kafka.release(m.EndTxnRequest)
        async with leaders.replacing(anew) as writes:
            await leader.storage.write(writes)
        assert await world.visible() == [b"out-0"]
        assert await leader.stored() == (0, [])
        assert leader.rows() == []

    on_outputs(scenario)
