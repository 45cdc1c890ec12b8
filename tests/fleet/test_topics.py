"""Topics come, grow, go and come again below a fleet that runs."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

from flowshare.fleet.log.lookups import Lookups
from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import MetadataRequest, ProduceRequest, ShareGroupHeartbeatRequest
from flowshare.server.runtime.state import ShareKey
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka
from tests.fleet.test_lost_records import until
from tests.fleet.test_worker import accept
from tests.fleet.test_worker import take as take_for_ever
from tests.fleet.world import EARLIEST, Fleet

SOON_S = 10.0
"""A look at the topics every few seconds, a heartbeat, and what comes of it."""


def virtually(scenario):
    """Run a scenario that takes a clock on virtual time."""
    return run(scenario(LoopTimeClock()))


LIMIT_S = 60.0


async def take(member, count):
    """Take and accept so many records, within LIMIT_S; their partitions and offsets."""
    async with asyncio.timeout(LIMIT_S):
        got, fetched = await take_for_ever(member, count)
    await accept(member, fetched)
    return got


async def reader(fleet, partitions, **settings):
    """A member that reads a topic with so many partitions, in a group with these settings beside `EARLIEST`."""
    await fleet.topic("orders", partitions)
    await fleet.configure(**(EARLIEST | settings))
    member = fleet.member("orders")
    await member.start()
    return member


def test_partitions_that_a_topic_grows_are_read_from_their_start_within_seconds():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await reader(fleet, 1, **{"share.auto.offset.reset": "latest"})
            await fleet.produce("orders", b"a")
            got = await take(member, 1)

            await fleet.kafka.storage.create_partitions("orders", 6)
            for partition in range(1, 6):
                await fleet.produce("orders", b"first", partition=partition)
            grown_s = clock.monotonic()
            more = await take(member, 5)

            assert got == [(0, 0)]
            assert sorted(more) == [(partition, 0) for partition in range(1, 6)]
            assert clock.monotonic() - grown_s < SOON_S

    virtually(scenario)


def test_a_topic_that_is_made_anew_is_read_from_where_a_group_without_state_begins():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await reader(fleet, 3)
            for partition in range(3):
                await fleet.produce("orders", b"a", b"b", partition=partition)
            await take(member, 6)

            await fleet.kafka.storage.delete_topic("orders")
            await clock.sleep(3.0)
            await fleet.topic("orders", 2)
            for partition in range(2):
                await fleet.produce("orders", b"new", partition=partition)
            made_s = clock.monotonic()
            got = await take(member, 2)

            assert sorted(got) == [(0, 0), (1, 0)]
            assert clock.monotonic() - made_s < 2 * SOON_S

    virtually(scenario)


def test_nothing_stays_stored_of_a_topic_that_was_made_anew():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await reader(fleet, 6)
            old = fleet.kafka.storage.topics()["orders"].topic_id
            for partition in range(6):
                await fleet.produce("orders", b"a", partition=partition)
            await take(member, 6)
            assert fleet.stored(old)

            await fleet.kafka.storage.delete_topic("orders")
            await fleet.topic("orders", 6)
            await fleet.produce("orders", b"new")
            await take(member, 1)
            await clock.sleep(SOON_S)

            assert fleet.stored(old) == []

    virtually(scenario)


def test_the_state_of_a_topic_made_anew_is_forgotten_though_brokers_could_not_say_at_first_that_it_is_gone(monkeypatch):
    ask = Lookups.send

    async def scenario(clock):
        async with Fleet(clock) as fleet:
            member = await reader(fleet, 1)
            old = fleet.kafka.storage.topics()["orders"].topic_id
            await fleet.produce("orders", b"a")
            await take(member, 1)
            until_s = clock.monotonic() + 15

            async def send(self, request, **given):
                if isinstance(request, MetadataRequest) and request.topic_ids and clock.monotonic() < until_s:
                    raise StorageError("a broker is down")
                return await ask(self, request, **given)

            monkeypatch.setattr(Lookups, "send", send)
            await fleet.kafka.storage.delete_topic("orders")
            await fleet.topic("orders", 1)
            await clock.sleep(15 + 2 * SOON_S)

            assert fleet.stored(old) == []

    virtually(scenario)


def test_members_keep_their_partitions_though_their_topics_are_told_late_to_their_next_coordinator(monkeypatch):
    ask = Lookups.send

    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=16) as fleet:
            names = [f"orders-{number}" for number in range(12)]
            for name in names:
                await fleet.topic(name)
            epochs = {name: await join(fleet, name) for name in names}
            known, until_s = list(fleet.machines), clock.monotonic() + 12

            async def late(self, request, **given):
                of_new = all(self is not machine.worker._log._lookups for machine in known)
                if isinstance(request, MetadataRequest) and of_new:
                    await clock.sleep(max(0.0, until_s - clock.monotonic()))
                return await ask(self, request, **given)

            monkeypatch.setattr(Lookups, "send", late)
            adding, told = asyncio.create_task(fleet.add()), []
            while clock.monotonic() < until_s + SOON_S:
                for name in names:
                    told += await assignments(fleet, name, epochs)
                await clock.sleep(0.5)
            await adding
            assert told == []

    virtually(scenario)


async def assignments(fleet, name, epochs):
    """The assignment that a group's member is told by a heartbeat, if any; its epoch is noted."""
    try:
        machine = fleet.coordinator(name)
    except StopIteration:
        return []
    beat = ShareGroupHeartbeatRequest(group_id=name, member_id="m1", member_epoch=epochs[name])
    answer = await machine.serve("m1").send(beat)
    if answer.error is ErrorCode.NONE:
        epochs[name] = answer.member_epoch
    return [] if answer.assignment is None else [answer.assignment]


class BehindKafka(FakeKafka):
    """Looked for by name, `older` tells the id of before; looked for by id, topics are told as they are."""

    older: uuid.UUID | None = None

    async def carry_out(self, connection, request):
        answer = await super().carry_out(connection, request)
        if self.older is None or not isinstance(request, MetadataRequest) or "orders" not in request.topics:
            return answer
        return replace(answer, topics=tuple(replace(one, topic_id=self.older) for one in answer.topics))


def test_stored_state_survives_a_broker_that_tells_an_id_of_before():
    async def scenario(clock):
        fleet = Fleet(clock)
        fleet.kafka = BehindKafka(clock)
        async with fleet:
            member = await reader(fleet, 1)
            await fleet.produce("orders", b"a", b"b")
            await take(member, 2)
            right = fleet.kafka.storage.topics()["orders"].topic_id
            before = fleet.stored(right)

            fleet.kafka.older = uuid.UUID(int=7)
            topics = fleet.living[0].worker._log.topics()
            await until(clock, lambda: topics["orders"].topic_id == fleet.kafka.older)
            await clock.sleep(3 * SOON_S)

            assert before
            assert fleet.stored(right) == before

    virtually(scenario)


def test_a_topic_that_was_made_anew_while_its_leader_died_is_begun_anew_by_the_next_one():
    async def scenario(clock):
        async with Fleet(clock, workers=3, slots=6) as fleet:
            member = await reader(fleet, 1)
            await fleet.produce("orders", b"a", b"b")
            await take(member, 2)

            await fleet.leader("orders", 0).kill()
            await fleet.kafka.storage.delete_topic("orders")
            await fleet.topic("orders", 1)
            await fleet.produce("orders", b"new")
            await fleet.settled()
            got = await take(member, 1)

            assert got == [(0, 0)]

    virtually(scenario)


def test_groups_keep_their_assignments_when_a_worker_that_never_heard_of_their_topics_coordinates_them():
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=64) as fleet:
            names = [f"orders-{number}" for number in range(20)]
            for name in names:
                await fleet.topic(name)
            told = {name: await join(fleet, name) for name in names}

            newcomer = await fleet.add()
            await until(clock, lambda: len(newcomer.worker.served) > 20)
            await fleet.settled()
            moved = [name for name in names if fleet.coordinator(name) is newcomer]
            after = {name: await beat(newcomer, name, told[name]) for name in moved}

            assert moved
            assert after == {name: (ErrorCode.NONE, told[name]) for name in moved}

    virtually(scenario)


def test_a_slot_is_taken_up_soon_though_the_broker_that_is_asked_for_its_topics_stands_still():
    async def scenario(clock):
        async with Fleet(clock) as fleet:
            await fleet.topic()
            share_partition = ShareKey("g", fleet.kafka.storage.topics()["orders"].topic_id, 0)
            worker = fleet.machines[0].worker
            fleet.kafka.hold(MetadataRequest)
            try:
                async with asyncio.timeout(SOON_S):
                    await worker._contents.take_up(1, [(share_partition.prefix, b"")])
            finally:
                fleet.kafka.release(MetadataRequest)
            await until(clock, lambda: worker._service.topics.by_id(share_partition.topic_id) is not None)

    virtually(scenario)


def test_first_states_that_take_long_go_on_while_the_member_asks_again():
    async def scenario(clock):
        async with Fleet(clock, workers=2, slots=8) as fleet:
            await fleet.topic("orders", 16)
            await fleet.configure(**EARLIEST)
            joining = ShareGroupHeartbeatRequest(
                group_id="g", member_id="m1", member_epoch=0, subscribed_topics=("orders",)
            )
            line = fleet.coordinator("g").serve("m1")
            fleet.kafka.hold(ProduceRequest)
            first = await line.send(joining)
            fleet.kafka.release(ProduceRequest)
            second = await line.send(joining)

            assert first.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert second.error is ErrorCode.NONE
            assert len(second.assignment) == 16

    virtually(scenario)


async def join(fleet, group):
    """One member in a group that reads the topic of the same name; its epoch when it has the partition."""
    machine = fleet.coordinator(group)
    answer = await machine.serve("m1").send(
        ShareGroupHeartbeatRequest(group_id=group, member_id="m1", member_epoch=0, subscribed_topics=(group,))
    )
    assert answer.error is ErrorCode.NONE, answer
    assert len(answer.assignment) == 1
    return answer.member_epoch


async def beat(machine, group, epoch):
    """A heartbeat that says nothing new; error and epoch of its answer."""
    answer = await machine.serve("m1").send(
        ShareGroupHeartbeatRequest(group_id=group, member_id="m1", member_epoch=epoch)
    )
    return answer.error, answer.member_epoch
