"""A topic is deleted, and made anew under its name or not, while members of a cooperative group work on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from flowshare.client.producer.producer import Message
from flowshare.testing.virtual import run
from tests.client.cooperative.worlds import CoopWorld, coop_world

GONE = "was deleted, and is gone"


def values(count: int, name: str) -> list[Message]:
    return [Message(f"{name} {number}".encode(), key=b"k%d" % (number % 7), partition=0) for number in range(count)]


class Seen:
    """Values of records: which handlers began, and ended."""

    def __init__(self, duration_s: float = 0.01) -> None:
        self.begun: list[bytes] = []
        self.ended: list[bytes] = []
        self.duration_s = duration_s

    async def handle(self, record: Any) -> None:
        self.begun.append(record.value)
        await asyncio.sleep(self.duration_s)
        self.ended.append(record.value)

    def all_of(self, messages: Sequence[Message]) -> bool:
        return {one.value for one in messages} <= set(self.ended)


async def made_anew(coop: CoopWorld, pause_s: float) -> None:
    await coop.world.admin.delete_topic("orders")
    await asyncio.sleep(pause_s)
    await coop.world.admin.create_topic("orders", partitions=1)


@pytest.mark.parametrize("pause_s", [0.0, 3.0, 60.0])
def test_all_records_of_a_topic_that_was_made_anew_are_handled_from_its_start(pause_s, caplog):
    async def play() -> None:
        async with coop_world() as coop:
            seen, old, new = Seen(), values(50, "old"), values(80, "new")
            await coop.world.producer.send_many("orders", old)
            for name in "ab":
                coop.worker(name, seen.handle)
            await coop.until(lambda: coop.stable() == 50)

            await made_anew(coop, pause_s)
            await coop.world.producer.send_many("orders", new)
            await coop.until(lambda: seen.all_of(new), limit_s=60.0)
            await coop.until(lambda: coop.stable() == 80)

    run(play())
    assert 1 <= caplog.text.count("was deleted, and is") <= 2, "each member says it once"


def test_what_was_in_flight_of_a_topic_that_is_gone_does_no_harm():
    async def play() -> None:
        async with coop_world() as coop:
            seen, old, new = Seen(20.0), values(30, "old"), values(40, "new")
            await coop.world.producer.send_many("orders", old)
            coop.worker("a", seen.handle)
            await coop.until(lambda: bool(seen.begun))

            await made_anew(coop, 0.0)
            await coop.world.producer.send_many("orders", new)
            await coop.until(lambda: bool(seen.ended))
            seen.duration_s = 0.01
            await coop.until(lambda: seen.all_of(new))
            await coop.until(lambda: coop.stable() == 40)

    run(play())


def test_a_group_that_is_deleted_together_with_its_topic_begins_anew():
    async def play() -> None:
        async with coop_world() as coop:
            seen, old, new = Seen(), values(50, "old"), values(80, "new")
            await coop.world.producer.send_many("orders", old)
            first = coop.worker("a", seen.handle)
            await coop.until(lambda: coop.stable() == 50)
            await first.stop()
            await asyncio.gather(coop.world.admin.delete_topic("orders"), coop.world.admin.cooperative.delete("g"))
            await coop.world.admin.create_topic("orders", partitions=1)
            await coop.world.producer.send_many("orders", new)

            coop.worker("b", seen.handle)
            await coop.until(lambda: coop.stable() == 80)
            assert sorted(seen.ended) == sorted(one.value or b"" for one in (*old, *new))

    run(play())


def test_other_topics_go_on_while_one_is_gone_which_is_said_once(caplog):
    async def play() -> None:
        async with coop_world() as coop:
            seen = Seen()
            await coop.world.admin.create_topic("other", partitions=1)
            await coop.world.producer.send_many("orders", values(20, "old"))
            for name in "ab":
                coop.worker(name, seen.handle, topics=["orders", "other"])
            await coop.until(lambda: coop.stable() == 20 or len(seen.ended) >= 20)
            await coop.world.admin.delete_topic("orders")
            for number in range(60):
                more = values(10, f"other {number}")
                await coop.world.producer.send_many("other", more)
                await coop.until(lambda more=more: seen.all_of(more), limit_s=3.0)
                await asyncio.sleep(1.0)
            assert any("there is no topic orders" in str(one.consumer.trouble) for one in coop.workers)
            assert caplog.text.count(GONE) <= 2

            await coop.world.admin.create_topic("orders", partitions=1)
            new = values(30, "new")
            await coop.world.producer.send_many("orders", new)
            await coop.until(lambda: seen.all_of(new), limit_s=30.0)

    run(play())


def test_a_member_with_partitions_of_its_own_choice_goes_on_with_the_new_topic():
    async def play() -> None:
        async with coop_world() as coop:
            seen, consumer = Seen(0.0), coop.consumer(member_id="a")
            consumer.assign({("orders", 0): ()})
            await coop.world.producer.send_many("orders", values(10, "old"))
            while len(seen.ended) < 10:
                for record in await consumer.poll(1.0):
                    await seen.handle(record)
                    consumer.commit(record)
            await made_anew(coop, 0.0)
            new = values(15, "new")
            await coop.world.producer.send_many("orders", new)
            async with asyncio.timeout(60):
                while not seen.all_of(new):
                    for record in await consumer.poll(1.0):
                        await seen.handle(record)
                        consumer.commit(record)
            await consumer.close()

    run(play())
