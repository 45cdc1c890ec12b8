"""Following many slots with one fetch."""

from __future__ import annotations

import pytest

from flowshare.fleet.state.reading import Follower
from flowshare.log.base import OffsetOutOfRange
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.log.faulty import PairKafka
from tests.fleet.slots import TOPIC, Fleet, on_virtual_time


def follower(position=0):
    """A follower, what it found and what failed."""
    found, failed = [], []
    at = [position]

    def take(one):
        found.append(one)
        at[0] = one.position

    return Follower(lambda: at[0], take, lambda place, error: failed.append((place, error))), found, failed


def test_all_slots_of_a_process_share_one_fetch():
    async def scenario(fleet):
        leading = fleet.process("a")
        slots = [await leading.slot(number) for number in range(2)]
        await leading.tails.close()
        follow = fleet.process("b")
        followers = [follower() for _ in slots]
        for number, (one, _, _) in enumerate(followers):
            follow.tails.follow(number, one)
        await fleet.clock.sleep(1)
        fleet.kafka.asked.clear()
        for slot in slots:
            await slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(5)

        for _, found, failed in followers:
            assert sum(len(one.records) for one in found) == 2
            assert failed == []
        assert fleet.kafka.asked[m.FetchRequest] < 20

    on_virtual_time(scenario)


def test_a_slot_that_cannot_be_read_does_not_keep_the_others_from_it():
    async def scenario(fleet):
        slot = await fleet.process("a").slot(0)
        follow = fleet.process("b")
        good, found, _ = follower()
        bad, nothing, failed = follower(position=50)
        follow.tails.follow(0, good)
        follow.tails.follow(1, bad)
        await slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(3)

        assert sum(len(one.records) for one in found) == 2
        assert nothing == []
        place, error = failed[0]
        assert place == 50
        assert isinstance(error, OffsetOutOfRange)

    on_virtual_time(scenario)


@pytest.mark.parametrize("trouble", ["dead", "slow"])
def test_a_broker_that_does_not_answer_keeps_no_slot_of_another_from_being_followed(trouble):
    async def scenario(clock):
        async with PairKafka(clock) as kafka:
            await kafka.storage.create_topic(TOPIC, partitions=2, internal=True)
            cluster = kafka.cluster()
            await cluster.start()
            fleet = Fleet(clock, kafka, cluster)
            first = fleet.process("a")
            for number in range(2):
                await first.slot(number)
            await clock.sleep(1)

            if trouble == "dead":
                await kafka.kill(2)
            kafka.slow.add(2)
            await clock.sleep(1)
            await fleet.process("b").slot(0)
            await clock.sleep(1)

            assert len(first.lost) == 1
            kafka.slow.clear()
            for process in fleet.processes:
                await process.close()
            await cluster.close()

    run(scenario(LoopTimeClock()))


class RefusingKafka(PairKafka):
    """Brokers that refuse a produce to a partition that they do not lead."""

    async def carry_out(self, connection, request):
        if isinstance(request, m.ProduceRequest) and self.leader(request.partition) != self.of_node[connection]:
            return m.ProduceResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return await super().carry_out(connection, request)


def test_a_slot_is_followed_at_its_new_leader_though_only_its_writer_has_heard_of_that():
    async def scenario(clock):
        async with RefusingKafka(clock) as kafka:
            await kafka.storage.create_topic(TOPIC, partitions=2, internal=True)
            clusters = [kafka.cluster() for _ in range(2)]
            for cluster in clusters:
                await cluster.start()
            first, second = (
                Fleet(clock, kafka, cluster).process(name) for name, cluster in zip("ab", clusters, strict=True)
            )
            slot = await first.slot(0)
            await clock.sleep(1)
            for number in range(40):
                if number == 10:
                    kafka.leaders[0] = 2
                await slot.write([(b"g/a", b"%d" % number)])
                await clock.sleep(0.05)
            await second.slot(0)
            await clock.sleep(10)

            assert len(first.lost) == 1
            for process in (first, second):
                await process.close()
            for cluster in clusters:
                await cluster.close()

    run(scenario(LoopTimeClock()))


def test_following_goes_on_after_a_fault_and_after_a_follower_that_fails(caplog):
    async def scenario(fleet):
        slot = await fleet.process("a").slot(0)
        follow = fleet.process("b")
        good, found, _ = follower()
        trouble = [ValueError("a fault of ours")]

        def once(one):
            if trouble:
                raise trouble.pop()
            good.found(one)

        follow.tails.follow(0, good._replace(found=once))
        fleet.kafka.refuse(m.FetchRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
        await fleet.kafka.cut()
        await fleet.clock.sleep(3)
        await slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(3)

        assert sum(len(one.records) for one in found) == 2

    on_virtual_time(scenario)
    assert "failed unexpectedly" in caplog.text


def test_a_slot_that_is_not_followed_any_more_hears_nothing():
    async def scenario(fleet):
        slot = await fleet.process("a").slot(0)
        follow = fleet.process("b")
        one, found, _ = follower()
        follow.tails.follow(0, one)
        await fleet.clock.sleep(1)
        follow.tails.unfollow(0)
        before = len(found)
        await slot.write([(b"g/a", b"1")])
        await fleet.clock.sleep(3)

        assert len(found) == before
        assert fleet.end() == 2
        assert slot.topic == TOPIC

    on_virtual_time(scenario)


def test_an_owner_that_writes_again_and_again_does_not_follow_its_own_writes():
    async def scenario(fleet):
        process = fleet.process("a")
        slot = await process.slot(0)
        await slot.write([(b"g/a", b"0")])
        await fleet.clock.sleep(0.6)  # what was asked before is answered
        fleet.kafka.asked.clear()
        for number in range(200):
            await slot.write([(b"g/a", b"%d" % number)])
            await fleet.clock.sleep(0.01)

        assert fleet.kafka.asked[m.FetchRequest] == 0

    on_virtual_time(scenario)


def test_an_owner_that_wrote_lately_hears_soon_that_another_worker_has_claimed_its_slot():
    async def scenario(fleet):
        first = fleet.process("a")
        slot = await first.slot(0)
        await slot.write([(b"g/a", b"0")])
        await fleet.process("b").slot(0)
        await fleet.clock.sleep(2)

        assert len(first.lost) == 1

    on_virtual_time(scenario)


def test_who_follows_a_slot_that_is_written_to_all_the_time_asks_twenty_times_a_second_at_most():
    async def scenario(fleet):
        slot = await fleet.process("a").slot(0)
        follow = fleet.process("b")
        one, found, _ = follower()
        follow.tails.follow(0, one)
        fleet.kafka.asked.clear()
        for number in range(200):
            await slot.write([(b"g/a", b"%d" % number)])
            await fleet.clock.sleep(0.01)
        assert fleet.kafka.asked[m.FetchRequest] <= 50
        await fleet.clock.sleep(1)

        assert sum(len(part.records) for part in found) == 201

    on_virtual_time(scenario)
