"""Commits with outputs of a fleet's cooperative groups: outputs in Kafka, commits in the group's slot, both or neither.

The numbers are those of the reference's scenarios (queue-systems, §5.6)."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.cooperative.pending import WAITING_MAX
from flowshare.fleet.state.topic import state_topic
from flowshare.log.base import StorageError
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import SettleOutput
from tests.fleet.outputs_world import committed_in
from tests.fleet.test_cooperative import NOTHING, members, scenario, stored, told
from tests.fleet.test_lost_records import until
from tests.fleet.world import batch
from tests.server.cooperative.world import LOWER, NONE, UPPER, WHOLE

NOT_HELD = ErrorCode.INVALID_RECORD_STATE
NOT_KNOWN = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
STEPS = (
    m.ProduceRequest,
    m.AddPartitionsToTxnRequest,
    m.AddOffsetsToTxnRequest,
    m.TxnOffsetCommitRequest,
    m.EndTxnRequest,
)


async def begin(fleet, *names):
    """A topic of outputs, and members, of which the first ones share the keys."""
    await fleet.topic("paid")
    found = await members(fleet, *names)
    for one, keys in zip(found, (LOWER, UPPER) if len(names) > 1 else (WHOLE,), strict=False):
        await one.hold(keys, committed=NOTHING, lease_ms=120_000)
    return found


def out(fleet, *values: str) -> SettleOutput:
    topic_id = fleet.kafka.storage.topics()["paid"].topic_id
    return SettleOutput("paid", topic_id, 0, batch(*(value.encode() for value in values)))


async def visible(fleet) -> list[str]:
    return [value.decode() for value in await committed_in(fleet.kafka, "paid")]


async def state(fleet):
    part = await told(fleet)
    return part.stable, [tuple(one) for one in part.ranges.pairs()]


async def until_known(fleet, member, *ranges, output, **fields):
    """The last word on a settle, which is asked again until there is one."""
    while True:
        try:
            answer = await member.settle(*ranges, output=output, **fields)
        except OSError:
            await fleet.clock.sleep(0.1)
            continue
        if answer.error not in NOT_KNOWN:
            return answer
        await fleet.clock.sleep(0.1)


async def closed(*found):
    for one in found:
        await one.connection.close()


def test_43_outputs_are_visible_and_offsets_committed_and_the_same_again_writes_nothing():
    async def play(fleet):
        a, b = await begin(fleet, "a", "b")
        answer = await a.settle((0, 3), (5, 6), output=out(fleet, "x", "y"))
        assert (answer.error, answer.stable, answer.count) == (NONE, 3, 1)
        assert await visible(fleet) == ["x", "y"]
        assert await state(fleet) == (3, [(5, 6)])

        second = await a.settle((0, 3), (5, 6), output=out(fleet, "x", "y"))
        assert (second.error, [tuple(one) for one in second.committed]) == (NOT_HELD, [(0, 3), (5, 6)])
        assert (await b.settle((3, 4))).error is NONE  # without outputs there is nothing to be written apart
        assert await visible(fleet) == ["x", "y"]
        assert not [key for keys in stored(fleet).values() for key in keys if key[-12:-11] == b"\x11"]
        await closed(a, b)

    scenario(play)


def test_43_a_refused_output_leaves_neither():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        topic_id = fleet.kafka.storage.topics()["paid"].topic_id
        gone = SettleOutput("gone", topic_id, 0, batch(b"x"))
        answer = await a.settles([a.entry((0, 3))], out(fleet, "y"), gone)
        assert answer.error is ErrorCode.INVALID_REQUEST
        assert [(one.place, one.error) for one in answer.outputs] == [(1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        assert (await visible(fleet), await state(fleet)) == ([], (0, []))
        assert (await a.settle((0, 3), output=out(fleet, "y"))).error is NONE
        await closed(a)

    scenario(play)


def test_no_output_is_written_into_the_state_of_the_fleet_itself():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        name = state_topic(fleet.name)
        own = SettleOutput(name, fleet.kafka.storage.topics()[name].topic_id, 0, batch(b"x"))
        answer = await a.settles([a.entry((0, 3))], own)
        assert [(one.place, one.error) for one in answer.outputs] == [(0, ErrorCode.INVALID_TOPIC_EXCEPTION)]
        assert (await a.settle((0, 3), output=out(fleet, "y"))).error is NONE
        await closed(a)

    scenario(play)


def test_46_48_what_is_not_decided_is_reserved_unstable_and_granted_to_nobody():
    async def play(fleet):
        a, b = await begin(fleet, "a", "b")
        await a.settle((0, 1), output=out(fleet, "0"))
        fleet.kafka.hold(m.EndTxnRequest)
        asked = fleet.kafka.asked[m.EndTxnRequest]
        first = asyncio.ensure_future(a.settle((1, 3), output=out(fleet, "x")))
        await until(fleet.clock, lambda: fleet.kafka.asked[m.EndTxnRequest] > asked)

        part = await told(fleet)
        assert (part.unstable, part.stable) == (True, 1)
        assert (await a.settle((2, 4), output=out(fleet, "z"))).error is ErrorCode.CONCURRENT_TRANSACTIONS
        assert (await b.commit((5, 6))) == (1, 1, 6)  # nobody else waits
        await a.leaves()
        b.sequence = 10
        held = await b.hold(WHOLE, committed=NOTHING)
        assert [(one.first, one.end) for one in held.blocked] == list(LOWER)
        assert [tuple(one) for one in held.pending] == [(1, 3)]

        fleet.kafka.release(m.EndTxnRequest)
        assert (await first).error is NONE
        assert (await told(fleet)).unstable is False
        assert not (await b.hold(WHOLE, committed=NOTHING)).blocked
        assert (await visible(fleet), await state(fleet)) == (["0", "x"], (3, [(5, 6)]))
        await closed(a, b)

    scenario(play)


@pytest.mark.parametrize("late", [False, True], ids=["before it is carried out", "before it is answered"])
@pytest.mark.parametrize("kind", STEPS, ids=lambda kind: kind.__name__)
def test_a_worker_that_dies_at_any_step_leaves_both_or_neither(kind, late):
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        await a.settle((0, 1), output=out(fleet, "0"))
        asked = fleet.kafka.asked[kind]
        fleet.kafka.hold(kind, late=late)
        sent = asyncio.ensure_future(a.settle((1, 3), output=out(fleet, "x")))
        await until(fleet.clock, lambda: fleet.kafka.asked[kind] > asked)
        dies = asyncio.ensure_future(fleet.coordinator("g").kill())
        await fleet.clock.sleep(0.5)
        fleet.kafka.release(kind)
        await dies
        await fleet.settled()
        await asyncio.wait([sent])
        sent.exception()

        offsets = (await state(fleet))[0]
        assert (offsets, await visible(fleet)) in ((1, ["0"]), (3, ["0", "x"]))
        answer = await until_known(fleet, a, (1, 3), output=out(fleet, "x"))
        written = offsets == 3
        assert (answer.error, len(answer.committed)) == ((NOT_HELD, 1) if written else (NONE, 0))
        assert (await visible(fleet), await state(fleet)) == (["0", "x"], (3, []))
        await closed(a)

    scenario(play)


def test_the_end_of_a_transaction_that_is_not_answered_is_found_out_by_the_next_worker():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        await a.settle((0, 1), output=out(fleet, "0"))
        asked = fleet.kafka.asked[m.EndTxnRequest]
        fleet.kafka.drop_answers(m.EndTxnRequest, 1_000)
        sent = asyncio.ensure_future(a.settle((1, 3), output=out(fleet, "x")))
        await until(fleet.clock, lambda: fleet.kafka.asked[m.EndTxnRequest] > asked)
        await fleet.coordinator("g").kill()
        fleet.kafka.drop_no_more(m.EndTxnRequest)
        await fleet.settled()
        await asyncio.wait([sent])
        sent.exception()

        answer = await until_known(fleet, a, (1, 3), output=out(fleet, "x"))
        assert (answer.error, [tuple(one) for one in answer.committed]) == (NOT_HELD, [(1, 3)])
        assert (await visible(fleet), await state(fleet)) == (["0", "x"], (3, []))
        await closed(a)

    scenario(play)


def test_a_worker_that_stops_in_order_leaves_an_undecided_transaction_to_the_next_one():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        await a.settle((0, 1), output=out(fleet, "0"))
        fleet.kafka.hold(m.EndTxnRequest)
        asked = fleet.kafka.asked[m.EndTxnRequest]
        sent = asyncio.ensure_future(a.settle((1, 3), output=out(fleet, "x")))
        await until(fleet.clock, lambda: fleet.kafka.asked[m.EndTxnRequest] > asked)
        stops = asyncio.ensure_future(fleet.coordinator("g").stop())
        await fleet.clock.sleep(10)
        fleet.kafka.release(m.EndTxnRequest)
        await stops
        await fleet.settled()
        await asyncio.wait([sent])
        sent.exception()

        there = await visible(fleet)
        assert there in (["0"], ["0", "x"])
        await fleet.coordinator("g").worker._log.exists(a.topic_id)  # tools ask it for a topic that it has heard of
        assert (await state(fleet))[0] == (1 if there == ["0"] else 3)
        await until_known(fleet, a, (1, 3), output=out(fleet, "x"))
        assert (await visible(fleet), await state(fleet)) == (["0", "x"], (3, []))
        await closed(a)

    scenario(play)


def test_47_what_a_worker_decided_before_it_lost_the_slot_is_not_written_by_it_any_more():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        await a.settle((0, 1), output=out(fleet, "0"))
        victim = fleet.coordinator("g")
        await victim.cut_off()
        direct = victim.serve("a")
        zombie = asyncio.ensure_future(_settle_at(a, direct, out(fleet, "zombie")))
        await fleet.clock.sleep(15)
        await fleet.settled()
        assert (await until_known(fleet, a, (1, 2), output=out(fleet, "1"))).error is NONE
        victim.apart = False
        await fleet.clock.sleep(15)
        await asyncio.wait([zombie])
        zombie.exception()

        assert (await visible(fleet), await state(fleet)) == (["0", "1"], (2, []))
        await closed(a)

    scenario(play)


async def _settle_at(member, connection, output):
    send, member.send = member.send, connection.send
    try:
        return await member.settle((1, 2), output=output)
    finally:
        member.send = send


def test_44_outputs_in_the_partitions_order_wait_for_all_before_them():
    async def play(fleet):
        a, b = await begin(fleet, "a", "b")
        asked = [
            asyncio.ensure_future((a, b)[at % 2].settle((at, at + 1), output=out(fleet, str(at)), ordered=True))
            for at in (3, 1, 2)
        ]
        await fleet.clock.sleep(0.5)
        assert await visible(fleet) == []
        await a.settle((0, 1), output=out(fleet, "0"), ordered=True)

        assert [(await one).error for one in asked] == [NONE] * 3
        assert await visible(fleet) == ["0", "1", "2", "3"]
        await closed(a, b)

    scenario(play)


def test_45_an_aborted_transaction_lets_what_waits_behind_it_wait_on():
    async def play(fleet):
        a, b = await begin(fleet, "a", "b")
        second = asyncio.ensure_future(b.settle((1, 2), output=out(fleet, "1"), ordered=True))
        await fleet.clock.sleep(0.1)
        bad = SettleOutput("paid", fleet.kafka.storage.topics()["paid"].topic_id, 7, batch(b"x"))
        refused = await a.settles([a.entry((0, 1))], bad, ordered=True)
        assert refused.error is ErrorCode.INVALID_REQUEST
        await fleet.clock.sleep(0.1)
        assert not second.done()
        assert (await a.settle((0, 1), output=out(fleet, "0"), ordered=True)).error is NONE

        assert (await second).error is NONE
        assert await visible(fleet) == ["0", "1"]
        await closed(a, b)

    scenario(play)


def test_49_a_rebalance_the_time_limit_a_lost_claim_and_a_dead_worker_fail_whoever_waits_and_nothing_is_written():
    async def play(fleet):
        a, b = await begin(fleet, "a", "b")

        async def waiting():
            waits = asyncio.ensure_future(b.settle((5, 6), output=out(fleet, "5"), ordered=True))
            await fleet.clock.sleep(0.5)
            assert not waits.done()
            return waits

        waits = await waiting()
        a.generation = 2
        await a.hold(LOWER, committed=NOTHING, lease_ms=120_000)
        assert (await waits).error is ErrorCode.REBALANCE_IN_PROGRESS
        assert (await (await waiting())).error is ErrorCode.REQUEST_TIMED_OUT
        waits = await waiting()
        await fleet.coordinator("g").kill()
        await fleet.settled()
        assert (await waits).error in (*NOT_KNOWN, ErrorCode.REQUEST_TIMED_OUT)  # asked again where it is led now
        waits = await waiting()
        await b.leaves()
        answer = await waits
        assert (answer.error, [tuple(one) for one in answer.fenced]) == (NOT_HELD, [(5, 6)])
        assert (await visible(fleet), await state(fleet)) == ([], (0, []))
        await closed(a, b)

    scenario(play)


def test_49_at_the_bound_the_next_ones_are_told_to_wait_and_whose_turn_it_is_goes_all_the_same():
    async def play(fleet):
        await fleet.topic("paid")
        a, b = await members(fleet, "a", "b", records=2 * WAITING_MAX)
        for one, keys in ((a, LOWER), (b, UPPER)):
            await one.hold(keys, committed=NOTHING, lease_ms=120_000)
        b.send = fleet.coordinator("g").serve("b").send  # a thousand requests on one connection wait for each other
        waits = [asyncio.ensure_future(b.settle((at, at + 1), ordered=True)) for at in range(1, WAITING_MAX + 1)]
        await fleet.clock.sleep(0.5)
        late = await b.settle((WAITING_MAX + 1, WAITING_MAX + 2), output=out(fleet, "late"), ordered=True)
        assert late.error is ErrorCode.THROTTLING_QUOTA_EXCEEDED

        assert (await a.settle((0, 1), output=out(fleet, "0"), ordered=True)).error is NONE
        assert {(await one).error for one in waits} == {NONE}
        assert (await visible(fleet), await state(fleet)) == (["0"], (WAITING_MAX + 1, []))
        await closed(a)

    scenario(play)


def test_50_a_range_that_was_committed_plainly_stays_when_a_settle_of_it_is_refused():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        await a.commit((0, 2))
        answer = await a.settle((0, 2), output=out(fleet, "x"))
        assert (answer.error, [tuple(one) for one in answer.committed]) == (NOT_HELD, [(0, 2)])
        assert (await visible(fleet), await state(fleet)) == ([], (2, []))
        await closed(a)

    scenario(play)


@pytest.mark.parametrize("dies", [False, True], ids=["refused", "its worker dies"])
def test_50_a_range_that_is_committed_plainly_stays_when_the_transaction_of_a_settle_of_it_is_aborted(dies):
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        await a.settle((0, 1), output=out(fleet, "0"))
        asked = fleet.kafka.asked[m.ProduceRequest]
        fleet.kafka.hold(m.ProduceRequest)
        settles = asyncio.ensure_future(a.settle((1, 3), output=out(fleet, "x")))
        await until(fleet.clock, lambda: fleet.kafka.asked[m.ProduceRequest] > asked)
        commits = asyncio.ensure_future(a.commits(a.entry((1, 3), (5, 6))))
        if dies:
            await fleet.clock.sleep(0.5)
            await fleet.coordinator("g").kill()
        else:
            fleet.kafka.refuse(m.ProduceRequest, ErrorCode.MESSAGE_TOO_LARGE)
        fleet.kafka.release(m.ProduceRequest)
        await fleet.settled()
        await asyncio.wait([settles, commits])
        assert settles.exception() is not None or settles.result().error is not NONE
        if commits.exception() is not None or commits.result().error is not NONE:
            assert (await a.commit((1, 3), (5, 6))) == (3, 1, 6)  # nobody was told that it is done

        assert (await visible(fleet), await state(fleet)) == (["0"], (3, [(5, 6)]))
        answer = await until_known(fleet, a, (1, 3), output=out(fleet, "x"))
        assert (answer.error, [tuple(one) for one in answer.committed]) == (NOT_HELD, [(1, 3)])
        assert await visible(fleet) == ["0"]
        await closed(a)

    scenario(play)


def test_a_commit_beside_an_undecided_settle_that_cannot_be_written_takes_nothing_of_it_along():
    async def play(fleet):
        (a,) = await begin(fleet, "a")
        fleet.kafka.hold(m.EndTxnRequest)
        asked = fleet.kafka.asked[m.EndTxnRequest]
        first = asyncio.ensure_future(a.settle((1, 3), output=out(fleet, "x")))
        await until(fleet.clock, lambda: fleet.kafka.asked[m.EndTxnRequest] > asked)
        worker = fleet.coordinator("g").worker
        (owner,) = worker._cooperative.groups["g"].owners.values()
        write, failures = owner._writer._beside.write, [1]

        async def failing(*args):
            if failures[0]:
                failures[0] -= 1
                raise StorageError("not now")
            await write(*args)

        owner._writer._beside.write = failing
        a.send = fleet.coordinator("g").serve("a").send  # which asks nobody twice
        assert (await a.commits(a.entry((5, 6)))).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await told(fleet)).unstable is True
        failures[0] = 2
        fleet.kafka.release(m.EndTxnRequest)

        assert (await first).error is NONE  # its state was written the second time
        assert (await visible(fleet), await state(fleet)) == (["x"], (0, [(1, 3)]))
        await closed(a)

    scenario(play)
