"""Faults below a fleet's cooperative group: topics that are deleted and made anew, brokers that write nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from flowshare.client.cooperative import ordinary
from flowshare.client.cooperative.consumer import CooperativeConsumer
from flowshare.client.settings import CooperativeSettings
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages.cooperative import GroupOffset, stable_metadata
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.kafka import FakeKafka
from tests.fleet.test_cooperative import NOTHING, members, scenario, stored, told
from tests.fleet.world import Fleet, batch
from tests.server.cooperative.world import NONE, SWEEP, WHOLE

FORGOTTEN_S = 5.0
"""Seconds until a worker has asked, and asked again, whether a topic is gone, and has forgotten its state."""
SETTINGS = CooperativeSettings(lease=10.0, session_timeout=10.0, heartbeat_interval=0.5)


class Readers:
    """Consumers of one group with a loop each, and what they handled."""

    def __init__(self, fleet) -> None:
        self.fleet = fleet
        self.values: Counter[bytes] = Counter()
        self.consumers: list = []
        self.duration_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, name: str, topics=("orders",), *, manual=None) -> None:
        async def connect():
            connection = self.fleet.connection(name)
            await connection.cluster.start()
            return connection

        consumer = CooperativeConsumer(connect, group_id="g", clock=self.fleet.clock, settings=SETTINGS, member_id=name)
        if manual is None:
            consumer.subscribe(list(topics))
        else:
            consumer.assign(manual)
        self.consumers.append(consumer)
        self._tasks.append(asyncio.create_task(self._read(consumer)))

    async def _read(self, consumer) -> None:
        while True:
            for record in await consumer.poll(1.0):
                await self.fleet.clock.sleep(self.duration_s)
                self.values[record.value] += 1
                consumer.commit(record)

    async def handled(self, values, limit_s: float = 90.0) -> None:
        clock = self.fleet.clock
        end_s = clock.monotonic() + limit_s
        while not set(values) <= set(self.values):
            missing = sorted(set(values) - set(self.values))
            assert clock.monotonic() < end_s, f"{missing[:5]} of {len(missing)}: {[c.trouble for c in self.consumers]}"
            await clock.sleep(0.1)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for consumer in self.consumers:
            await consumer.close()


@asynccontextmanager
async def readers(fleet):
    found = Readers(fleet)
    try:
        yield found
    finally:
        await found.close()


async def send(fleet, name: str, count: int, topic: str = "orders") -> list[bytes]:
    values = [b"%s %d" % (name.encode(), number) for number in range(count)]
    for first in range(0, count, 7):
        await fleet.kafka.storage.append(topic, 0, batch(*values[first : first + 7]))
    return values


async def delete(fleet, topic: str = "orders") -> None:
    broker = fleet.kafka.server.connect(client_id="admin")
    answer = await broker.send(m.DeleteTopicRequest(name=topic))
    assert answer.error is NONE, answer.message


async def stable(fleet, limit_s: float = 60.0, *, at: int):
    """Until the state says that all before this offset is committed."""
    end_s = fleet.clock.monotonic() + limit_s
    while (part := await told(fleet)) is None or part.stable != at:
        assert fleet.clock.monotonic() < end_s, part
        await fleet.clock.sleep(0.5)


@pytest.mark.parametrize("pause_s", [0.0, 3.0, 60.0])
def test_all_records_of_a_topic_that_was_made_anew_are_handled_from_its_start(pause_s):
    async def play(fleet):
        async with readers(fleet) as found:
            await fleet.topic("orders")
            old = await send(fleet, "old", 40)
            for name in "ab":
                found.add(name)
            await found.handled(old)
            await fleet.clock.sleep(3.0)  # its ordinary offset is written
            await delete(fleet)
            await fleet.clock.sleep(pause_s)
            await fleet.topic("orders")
            new = await send(fleet, "new", 90)

            await found.handled(new)
            await stable(fleet, at=90)
            topic_id = fleet.kafka.storage.topics()["orders"].topic_id
            await fleet.clock.sleep(FORGOTTEN_S)
            assert all(topic_id.bytes in key for keys in stored(fleet).values() for key in keys)

    scenario(play)


def test_what_is_in_flight_of_a_topic_that_was_made_anew_does_no_harm():
    async def play(fleet):
        async with readers(fleet) as found:
            await fleet.topic("orders")
            await send(fleet, "old", 40)
            found.duration_s = 5.0
            found.add("a")
            await fleet.clock.sleep(12.0)
            await delete(fleet)
            await fleet.topic("orders")
            new = await send(fleet, "new", 60)
            found.duration_s = 0.0
            found.add("b")

            await found.handled(new)
            await stable(fleet, at=60)

    scenario(play)


def test_other_topics_go_on_while_one_is_gone(caplog):
    async def play(fleet):
        async with readers(fleet) as found:
            await fleet.topic("orders")
            await fleet.topic("other")
            old = await send(fleet, "old", 40)
            for name in "ab":
                found.add(name, ("orders", "other"))
            await found.handled(old)
            await delete(fleet)
            for number in range(30):
                await found.handled(await send(fleet, f"other {number}", 10, "other"), limit_s=6.0)
                await fleet.clock.sleep(1.0)
            assert any("there is no topic orders" in str(one.trouble) for one in found.consumers)
            assert caplog.text.count("was deleted, and is gone") <= 2

            await fleet.topic("orders")
            await found.handled(await send(fleet, "new", 20))

    scenario(play)


def test_a_group_that_is_deleted_together_with_its_topic_begins_anew():
    async def play(fleet):
        await fleet.topic("orders")
        async with readers(fleet) as found:
            found.add("a")
            await found.handled(await send(fleet, "old", 40))
        admin = fleet.admin()
        await asyncio.gather(delete(fleet), admin.cooperative.delete("g"))
        await admin.close()
        await fleet.topic("orders")
        async with readers(fleet) as found:
            found.add("b")
            await found.handled(await send(fleet, "new", 60))

    scenario(play)


def test_a_stable_offset_of_the_topic_that_had_the_name_before_hides_no_record():
    async def play(fleet):
        (a,) = await members(fleet, "a")
        await a.hold(WHOLE, committed=NOTHING)
        await a.commit((0, 50))
        late = GroupOffset(50, stable_metadata(a.epochs[0], a.topic_id))
        await delete(fleet)
        await fleet.clock.sleep(10.0)
        (b,) = await members(fleet, "b")
        assert b.topic_id != a.topic_id

        assert (await b.hold(WHOLE, committed=late)).stable == 0
        await b.commit((0, 3))
        await b.leaves()
        assert (await b.hold(WHOLE, committed=late)).stable == 3
        for one in (a, b):
            await one.connection.close()

    scenario(play, workers=1)


def test_brokers_that_cannot_write_lose_nothing_that_was_answered():
    """Their disks are full: whatever is produced, slots' state included, is refused."""

    async def play(fleet):
        async with readers(fleet) as found:
            await fleet.topic("orders")
            for name in "ab":
                found.add(name)
            await found.handled(await send(fleet, "first", 40))
            fleet.kafka.refuse(m.ProduceRequest, ErrorCode.KAFKA_STORAGE_ERROR, 1_000_000)
            later = await send(fleet, "later", 40)
            await fleet.clock.sleep(25.0)
            fleet.kafka.refuse_no_more(m.ProduceRequest)
            await found.handled(later)
            await stable(fleet, at=80)
        answered = found.values.copy()
        async with readers(fleet) as again:
            again.add("c")
            await again.handled(await send(fleet, "last", 10))
            assert set(again.values) == {b"last %d" % number for number in range(10)}
        assert set(answered.values()) <= {1, 2}, "what was in flight when a lease ended comes again, once"

    scenario(play)


def test_the_ordinary_offset_of_who_is_no_member_does_not_expire_while_nothing_is_committed(monkeypatch):
    """A consumer that chose its partitions is in no round of the group, so Kafka counts from its last commit."""
    monkeypatch.setattr(ordinary, "REFRESH_S", 20.0)

    async def all_of_it(clock):
        fleet = Fleet(clock)
        fleet.kafka = FakeKafka(clock, classic=SWEEP)
        async with fleet:
            await fleet.topic("orders")
            old = await send(fleet, "old", 30)
            for lives in range(2):
                async with readers(fleet) as found:
                    found.add(f"life {lives}", manual={("orders", 0): ()})
                    if not lives:
                        await found.handled(old)
                    await clock.sleep(150.0)
                    if lives:
                        await found.handled(await send(fleet, "new", 1))
                        assert set(found.values) == {b"new 0"}

    run(all_of_it(LoopTimeClock()))
