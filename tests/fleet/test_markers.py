"""Transactions that brokers call ended without telling their partitions so (KAFKA-20734), on the fake Kafka.

A broker that is killed and comes again finds decided transactions in its log while its partitions have no leader: it
passes over them. Nobody but the producer's successors, or an operator, ends what stays open there.
"""

from __future__ import annotations

import asyncio

import pytest

from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from tests.fleet.outputs_world import ONE, OUTPUT, Leader, committed_in, on_outputs, out, written

OTHER = (OUTPUT, 1)


async def dies_with_its_broker(world, leader, *, after, kept=()):
    """The leader's next settle comes as far as that request, and the broker that comes again forgets the rest."""
    leader.dies(after=after)
    world.kafka.forget_markers(kept=kept)
    leader.settle(0, b"first")
    await world.until(lambda: leader.dead)


def test_outputs_that_were_committed_are_visible_when_the_next_leader_has_told_their_partitions():
    async def scenario(world):
        first = await world.leader("a", take=1)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        assert world.held_up()

        second = await world.leader("b")

        assert 0 not in await second.take(6)
        assert await world.visible() == [b"first"]
        assert not world.held_up()
        assert second.rows() == []

    on_outputs(scenario)


def test_outputs_of_a_transaction_that_the_next_leader_aborts_stay_away_when_the_abort_is_forgotten():
    async def scenario(world):
        first = await world.leader("a", take=1)
        await dies_with_its_broker(world, first, after=m.TxnOffsetCommitRequest)

        second = await world.leader("b")
        assert 0 in await second.take()
        await second.settle(0, b"second")
        await second.owner.close()

        assert await world.visible() == [b"second"]
        assert not world.held_up()

    on_outputs(scenario)


def test_a_transaction_that_only_some_partitions_were_told_of_is_told_to_the_others():
    async def scenario(world):
        first = await world.leader("a", take=2)
        first.settle(1, b"beside", partition=1)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest, kept=[OTHER])

        second = await world.leader("b")
        taken = await second.take(6)

        seen = [*await committed_in(world.kafka, OUTPUT, 0), *await committed_in(world.kafka, *OTHER)]
        assert sorted(seen) == [value for offset, value in ((1, b"beside"), (0, b"first")) if offset not in taken]
        assert not world.held_up()
        assert not world.held_up(*OTHER)

    on_outputs(scenario)


def test_a_lane_whose_broker_was_lost_tells_how_its_last_transaction_ended_before_it_is_used_again():
    async def scenario(world):
        leader = await world.leader("a", take=3)
        world.kafka.forget_markers()
        await leader.settle(0, b"first")
        await world.kafka.cut()

        world.forbidden.add((m.ProduceRequest, OUTPUT))
        refused = leader.settle(1, b"not allowed")  # it is aborted, and takes nothing that was committed with it
        await asyncio.wait([refused])
        assert refused.exception() is not None
        world.forbidden.clear()
        await leader.settle(2, b"third")
        await leader.owner.close()

        assert await world.visible() == [b"first", b"third"]
        assert not world.held_up()

    on_outputs(scenario)


def test_partitions_that_are_gone_keep_nobody_from_telling_the_others():
    async def scenario(world):
        await world.kafka.storage.create_topic("gone")
        first = await world.leader("a")
        await first.log.refresh(("gone",))
        await first.take(2)
        await first.settle(1, b"lost", topic="gone")
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        await world.kafka.storage.delete_topic("gone")

        second = await world.leader("b")

        assert await second.take() == {2: 1}
        assert await world.visible() == [b"first"]
        assert not world.held_up()

    on_outputs(scenario)


@pytest.mark.parametrize("kind", [m.AddPartitionsToTxnRequest, m.AddOffsetsToTxnRequest, m.EndTxnRequest])
@pytest.mark.parametrize("carried_out", [False, True])
def test_a_take_over_whose_connection_breaks_goes_on_where_it_was(kind, carried_out):
    async def scenario(world):
        first = await world.leader("a", take=1)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)

        if carried_out:
            world.kafka.drop_answers(kind)
        else:
            world.kafka.refuse(kind, ErrorCode.COORDINATOR_NOT_AVAILABLE, 3)
        second = await world.leader("b")

        assert 0 not in await second.take(6)
        assert await world.visible() == [b"first"]
        assert second.rows() == []

    on_outputs(scenario)


def test_a_broker_that_is_lost_while_a_transaction_begins_costs_nothing_of_the_one_before():
    """It waits for its coordinator meanwhile, and then it is refused."""

    async def scenario(world):
        leader = await world.leader("a", take=3, settings=ONE)
        world.kafka.forget_markers()
        await leader.settle(0, b"first")
        world.kafka.refuse(m.AddPartitionsToTxnRequest, ErrorCode.CONCURRENT_TRANSACTIONS, 5)
        refused = leader.settle(1, b"too large")
        await world.until(lambda: leader.lanes[0].state.name == "SENDING")
        await world.asked(m.AddPartitionsToTxnRequest, world.kafka.asked[m.AddPartitionsToTxnRequest] + 2)
        await world.kafka.cut()
        world.refused[m.ProduceRequest] = ErrorCode.MESSAGE_TOO_LARGE
        await asyncio.wait([refused])
        await leader.owner.close()
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


@pytest.mark.parametrize("lost", [True, False])
def test_a_transaction_that_is_aborted_takes_nothing_of_the_one_before_it_elsewhere(lost):
    async def scenario(world):
        leader = await world.leader("a", take=3, settings=ONE)
        world.kafka.forget_markers()
        await leader.settle(0, b"first")
        world.kafka.hold(m.AddPartitionsToTxnRequest)
        refused = leader.settle(1, b"too large", partition=1)
        await world.until(lambda: leader.lanes[0].state.name == "SENDING")
        if lost:
            leader.lanes[0].lane._brokers._on_lost()
        world.forbidden.add((m.ProduceRequest, OUTPUT))
        world.kafka.release(m.AddPartitionsToTxnRequest)
        await asyncio.wait([refused])
        await world.clock.sleep(1)
        await leader.owner.close()
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_a_transaction_that_a_successor_aborts_takes_nothing_of_the_one_before_it_elsewhere():
    async def scenario(world):
        first = await world.leader("a", take=2, settings=ONE)
        world.kafka.forget_markers()
        await first.settle(0, b"first")
        first.dies(after=m.TxnOffsetCommitRequest)
        first.settle(1, b"second", partition=1)
        await world.until(lambda: first.dead)
        await world.leader("b", settings=ONE)
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_outputs_of_an_open_transaction_that_the_log_does_not_name_stay_away():
    """The leader and the broker die when the partition has the output, and the slot's log not yet the note."""

    async def scenario(world):
        first = await world.leader("a", take=2, settings=ONE)
        write = first.slot.write

        def lost(entries):
            entries = list(entries)
            if any(key.startswith(b"y/") for key, _ in entries):
                return asyncio.get_running_loop().create_future()
            return write(entries)

        await written(first, out(world, b"zero", 1))
        first.slot.write = lost
        first.settle(0, b"first")
        await world.until(lambda: world.kafka.storage.offsets(OUTPUT, 0).high_watermark > 0)
        world.kafka.forget_markers()
        await first.kill()
        second = await world.leader("b", settings=ONE)
        await world.clock.sleep(5)
        held = world.held_up()
        assert 0 in await second.take(1)
        await second.settle(0, b"second")
        await second.owner.close()
        assert await world.visible() == [b"second"]
        assert not held

    on_outputs(scenario)


@pytest.mark.parametrize("again", [False, True])
def test_a_transaction_that_is_committed_while_a_successor_fences_its_leader_is_told_so(again):
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await first.ending(0, b"first")
        go_on = world.kafka.hold_later_ones_no_more(m.EndTxnRequest)
        coordinator = world.kafka.server._transactions

        async def passed(ended, place, left, *, committed):  # the output's partition alone is passed over
            left.discard(place)
            del coordinator._mark

        coordinator._mark = passed
        fence, waits, tried = asyncio.Event(), asyncio.Event(), []
        real = world.kafka.carry_out

        async def carry_out(connection, request):
            if isinstance(request, m.InitProducerIdRequest) and ".outputs." in (request.transactional_id or ""):
                waits.set()
                await fence.wait()
                if again and not tried:
                    tried.append(request)
                    raise ConnectionError("the question whether it is fenced is lost")
            return await real(connection, request)

        world.kafka.carry_out = carry_out
        second = Leader(world, "b", settings=ONE)
        world.leaders.append(second)
        await second.lead()
        await waits.wait()
        go_on.set()
        await world.clock.sleep(0.1)
        await first.kill()
        fence.set()
        await second.load()
        taken = await second.take(6)
        assert (0 in taken) != (await world.visible() == [b"first"])

    on_outputs(scenario)


@pytest.mark.parametrize("committed", [True, False])
def test_how_a_transaction_ended_is_known_to_who_comes_after_a_successor_that_could_not_tell_it(committed):
    async def scenario(world):
        first = await world.leader("a", take=1)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest if committed else m.TxnOffsetCommitRequest)
        world.kafka.not_led.add((OUTPUT, 0))
        second = Leader(world, "b")
        world.leaders.append(second)
        await second.lead()
        await world.clock.sleep(3)  # it has fenced, and waits for the leader
        await second.storage.lay_down(0)  # graceful: the slot moves
        await second.slot.hand_over("c")
        world.kafka.not_led.clear()
        third = Leader(world, "c")
        world.leaders.append(third)
        await third.lead()
        await asyncio.wait_for(third.load(), 60)
        assert not world.held_up()
        assert await world.visible() == ([b"first"] if committed else [])

    on_outputs(scenario)


def test_who_lost_the_slot_and_takes_its_lane_again_keeps_nothing_from_being_told():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        world.kafka.forget_markers()
        await first.settle(0, b"first")
        assert world.held_up()
        world.kafka.hold(m.AddPartitionsToTxnRequest)
        second = Leader(world, "b", settings=ONE)
        world.leaders.append(second)
        asked = world.kafka.asked[m.AddPartitionsToTxnRequest]
        await second.lead()
        await world.asked(m.AddPartitionsToTxnRequest, asked + 1)  # it has fenced and knows: committed
        for connection in list(first.connections):
            await connection.break_off()
        await world.clock.sleep(0.5)
        await first.kill()
        world.kafka.release(m.AddPartitionsToTxnRequest)
        await world.clock.sleep(30)
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_who_lost_the_slot_and_takes_its_lane_again_aborts_nothing_that_is_being_told():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        world.kafka.forget_markers()
        await first.settle(0, b"first")
        world.kafka.hold(m.EndTxnRequest)
        second = Leader(world, "b", settings=ONE)
        world.leaders.append(second)
        asked = world.kafka.asked[m.EndTxnRequest]
        await second.lead()
        await world.asked(m.EndTxnRequest, asked + 1)
        for connection in list(first.connections):
            await connection.break_off()
        await world.clock.sleep(0.5)
        await first.kill()
        world.kafka.release(m.EndTxnRequest)
        await world.clock.sleep(30)
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


@pytest.mark.parametrize("kind", [m.InitProducerIdRequest, m.AddPartitionsToTxnRequest, m.AddOffsetsToTxnRequest])
@pytest.mark.parametrize("committed", [True, False])
def test_who_dies_while_partitions_are_told_leaves_the_rest_to_the_next_one(kind, committed):
    async def scenario(world):
        first = await world.leader("a", take=2, settings=ONE)
        await written(first, out(world, b"zero", 1))
        await dies_with_its_broker(world, first, after=m.EndTxnRequest if committed else m.TxnOffsetCommitRequest)
        second = Leader(world, "b", settings=ONE)
        world.leaders.append(second)
        second.dies(after=kind)
        beginning = asyncio.ensure_future(second.begin())
        await world.until(lambda: second.dead)
        beginning.cancel()

        third = await world.leader("c", settings=ONE)

        assert (0 not in await third.take(6)) is committed
        assert await world.visible() == ([b"first"] if committed else [])
        assert await world.visible(partition=1) == [b"zero"]
        assert not world.held_up()

    on_outputs(scenario)


async def takes_over(world, name):
    """It leads the slot; returned when it has begun to tell how the last transaction ended, or waits to."""
    leader = Leader(world, name, settings=ONE)
    world.leaders.append(leader)
    await leader.lead()
    await world.clock.sleep(2)
    return leader


def state_of(leader):
    """That of its only lane."""
    (used,) = leader.lanes
    return used.state.name


def test_partitions_are_told_when_they_have_a_leader():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        world.kafka.not_led.add((OUTPUT, 0))
        asked = world.kafka.asked[m.AddPartitionsToTxnRequest]

        second = await takes_over(world, "b")
        assert state_of(second) == "TAKING"
        assert world.kafka.asked[m.AddPartitionsToTxnRequest] == asked
        world.kafka.not_led.clear()
        await world.until(lambda: state_of(second) == "READY")

        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_partitions_that_get_a_new_leader_while_they_are_told_are_told_again():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        world.kafka.hold(m.EndTxnRequest)
        asked = world.kafka.asked[m.AddPartitionsToTxnRequest]

        second = await takes_over(world, "b")
        world.kafka.elections += 1
        world.kafka.forget_markers()  # they had no leader just then
        world.kafka.release(m.EndTxnRequest)
        await world.until(lambda: state_of(second) == "READY")

        assert world.kafka.asked[m.AddPartitionsToTxnRequest] == asked + 2
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_a_lane_is_used_when_all_partitions_are_told():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        world.kafka.unmarked.add((OUTPUT, 0))

        second = await takes_over(world, "b")
        assert state_of(second) == "TAKING"
        world.kafka.unmarked.clear()
        await world.until(lambda: state_of(second) == "READY")

        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_what_was_told_is_told_once():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        second = await takes_over(world, "b")
        assert state_of(second) == "READY"
        await second.kill()
        asked = world.kafka.asked[m.AddPartitionsToTxnRequest]

        third = await takes_over(world, "c")

        assert state_of(third) == "READY"
        assert world.kafka.asked[m.AddPartitionsToTxnRequest] == asked
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_who_lost_the_slot_while_it_told_an_end_ends_nothing_of_its_successors():
    """It stood still; the next leader is in the middle of a transaction when it goes on."""

    async def scenario(world):
        first = await world.leader("a", take=2, settings=ONE)
        await dies_with_its_broker(world, first, after=m.EndTxnRequest)
        world.kafka.hold(m.AddPartitionsToTxnRequest)
        asked = world.kafka.asked[m.AddPartitionsToTxnRequest]
        second = Leader(world, "b", settings=ONE)
        world.leaders.append(second)
        await second.lead()
        await world.asked(m.AddPartitionsToTxnRequest, asked + 1)  # it has fenced, knows: committed, and stands still
        go_on = world.kafka.hold_later_ones_no_more(m.AddPartitionsToTxnRequest)

        third = await world.leader("c", take=1, settings=ONE)
        world.kafka.hold(m.TxnOffsetCommitRequest)
        settled = third.settle(1, b"second")
        await world.until(world.held_up)  # its output is there, and not in the ledger yet
        go_on.set()
        await world.clock.sleep(2)
        world.kafka.release(m.TxnOffsetCommitRequest)
        await settled
        await third.owner.close()

        assert await world.visible() == [b"first", b"second"]

    on_outputs(scenario)


def test_a_broker_that_coordinates_the_ledger_no_more_and_does_not_know_is_not_believed():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await first.die_committed(0, b"first")
        real, believed = world.kafka.carry_out, [True]

        async def carry_out(connection, request):
            if believed[0] and isinstance(request, m.OffsetFetchRequest) and ".ledger." in request.group_id:
                ((topic, partition),) = request.partitions
                return m.OffsetFetchResponse(partitions=(m.FetchedOffset(topic, partition),))  # as before the first
            if believed[0] and isinstance(request, m.TxnOffsetCommitRequest):
                believed[0] = False  # the client looks for the coordinator again
                ((topic, partition, *_),) = request.offsets
                result = m.OffsetResult(topic, partition, ErrorCode.NOT_COORDINATOR)
                return m.OffsetCommitResponse(partitions=(result,))
            return await real(connection, request)

        world.kafka.carry_out = carry_out
        second = await world.leader("b", settings=ONE)

        assert 0 not in await second.take(6)
        assert await world.visible() == [b"first"]

    on_outputs(scenario)


def test_a_ledger_that_has_not_heard_of_the_abort_yet_is_read_again_and_nothing_more_is_written():
    async def scenario(world):
        first = await world.leader("a", take=1, settings=ONE)
        await first.die_committed(0, b"first")
        real, late, written_to = world.kafka.carry_out, [3], []

        async def carry_out(connection, request):
            if isinstance(request, m.TxnOffsetCommitRequest):
                written_to.append(request)
            if late[0] and written_to and isinstance(request, m.OffsetFetchRequest) and ".ledger." in request.group_id:
                late[0] -= 1
                ((topic, partition),) = request.partitions
                unstable = m.FetchedOffset(topic, partition, error=ErrorCode.UNSTABLE_OFFSET_COMMIT)
                return m.OffsetFetchResponse(partitions=(unstable,))
            return await real(connection, request)

        world.kafka.carry_out = carry_out
        second = await world.leader("b", settings=ONE)

        assert 0 not in await second.take(6)
        assert len(written_to) == 1

    on_outputs(scenario)
