"""Cooperative agents with exactly_once=True: an output is there exactly if its record is committed, and once."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.app.summary import cooperative_line
from flowshare.agents.feed.backend_limits import check_asked
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.backend.base import WORKERS
from flowshare.protocol.batches import decode_all
from flowshare.protocol.messages import CooperativeOffsetsRequest, CooperativeSettleRequest
from flowshare.testing import run
from tests.agents.cooperative.test_workers import Workers, workers

ONCE: dict[str, Any] = {"exactly_once": True, "retry": fs.Retry(max_attempts=3, delay=1.0)}


def test_what_is_returned_and_sent_is_there_once_with_its_commit_in_the_order_of_each_key() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders", sink="out", **ONCE)
    async def bill(value: dict[str, Any], delivery: fs.Delivery) -> dict[str, Any]:
        delivery.send("sent", value, key=delivery.key)
        if value["n"] % 5 == 0 and delivery.attempt == 1:
            raise ConnectionError("down")
        return value

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(20):
                await bus.send("orders", {"n": number, "key": number % 4}, key=f"c{number % 4}")
            report = await bus.run_until_idle()
            assert (report[bill].accepted, report[bill].retried) == (20, 4)
            for topic in ("out", "sent"):
                values = [one.value for one in bus.records(topic)]
                assert sorted(value["n"] for value in values) == list(range(20))
                for key in range(4):
                    assert [value["n"] for value in values if value["key"] == key] == list(range(key, 20, 4))

    run(story())


def test_a_dead_letter_is_there_with_the_commit_of_its_record_and_without_its_outputs() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders", **ONCE)
    async def bill(value: int, delivery: fs.Delivery) -> None:
        delivery.send("out", value)
        if value == 1:
            raise fs.Reject("odd one")

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(3):
                await bus.send("orders", number, key="c")
            report = await bus.run_until_idle()
            assert (report[bill].accepted, report[bill].dead_lettered) == (2, 1)
            assert [one.value for one in bus.records("out")] == [0, 2]
            assert [letter.reason for letter in bus.dead_letters(bill)] == ["odd one"]

    run(story())


def test_a_batchs_result_is_there_once() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders", sink="sums", batch=fs.Batch(5), concurrency=1, **ONCE)
    async def load(rows: fs.Records[int]) -> list[int]:
        return sorted(rows.values())

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(20):
                await bus.send("orders", number, key=f"c{number}")
            report = await bus.run_until_idle()
            assert report[load].accepted == 20
            assert sorted(n for one in bus.records("sums") for n in one.value) == list(range(20))

    run(story())


def test_an_output_that_cannot_be_written_takes_its_record_to_the_dead_letters_and_nobody_elses() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders", exactly_once=True, retry=fs.Retry(max_attempts=2, delay=1.0))
    async def bill(value: int, delivery: fs.Delivery) -> None:
        delivery.send("out", "x" * 2_000_000 if value == 3 else value)

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(6):
                await bus.send("orders", number, key=f"c{number}")
            report = await bus.run_until_idle()
            assert (report[bill].accepted, report[bill].dead_lettered) == (5, 1)
            assert sorted(one.value for one in bus.records("out")) == [0, 1, 2, 4, 5]

    run(story())


def test_outputs_in_the_partitions_order_are_those_of_its_offsets_however_long_each_takes() -> None:
    app = fs.App("shop")

    orders, out = app.topic("orders", partitions=1), app.topic("out", partitions=1)

    @app.cooperative_agent(orders, sink=out, output_order="partition", concurrency=8, **ONCE)
    async def bill(value: int) -> int:
        await asyncio.sleep((7 * value % 5) / 10)
        return value

    async def story() -> None:
        async with fs.testing.harness(app) as bus:
            for number in range(60):
                await bus.send("orders", number, key=f"c{number % 16}")
            report = await bus.run_until_idle()
            assert report[bill].accepted == 60
            assert [one.value for one in bus.records("out")] == list(range(60))

    run(story())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"output_order": "partition"}, "say exactly_once=True"),
        ({"output_order": "partition", "exactly_once": True, "batch": fs.Batch(5)}, "leave batch out"),
        ({"output_order": "offset", "exactly_once": True}, "takes 'key' or 'partition'"),
    ],
)
def test_options_that_contradict_each_other_are_refused_with_what_to_change(options: Any, why: str) -> None:
    async def bill(value: Any) -> None: ...

    async def bill_all(rows: fs.Records[Any]) -> None: ...

    agent = fs.App("shop").cooperative_agent("orders", **options)
    with pytest.raises(OptionError, match=why):
        agent(bill_all if "batch" in options else bill)


def test_where_outputs_cannot_be_settled_it_is_refused_and_the_summary_tells_of_it() -> None:
    app = fs.App("shop")

    @app.cooperative_agent("orders", exactly_once=True)
    async def bill(value: Any) -> None: ...

    with pytest.raises(UsageError, match=r"older than Kafka 3\.7"):
        check_asked(bill, replace(WORKERS, settling=False))
    check_asked(bill, WORKERS)
    assert cooperative_line(bill).endswith("outputs exactly once")


# --- several workers, in virtual time ---------------------------------------------------------------------------------


async def begin(group: Workers) -> None:
    assert group.backend._storage is not None
    await group.backend._storage.create_topic("out")
    await asyncio.sleep(5)


async def written(group: Workers, topic: str = "out") -> list[bytes]:
    """Return the values in the only partition of a topic."""
    storage = group.backend._storage
    assert storage is not None
    end = storage.offsets(topic, 0).high_watermark
    read = await storage.read(topic, 0, 0, max_bytes=1 << 30)
    return [record.value for record in decode_all(read.records)] if end else []


def check_outputs(values: list[bytes], records: int) -> None:
    """Each offset once, and those of a key in their order."""
    assert Counter(values).most_common(1)[0][1] == 1, Counter(values).most_common(3)
    assert len(values) == records
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for value in values:
        key, _, offset = value.partition(b" ")
        by_key[key].append(int(offset))
    assert all(first < second for offsets in by_key.values() for first, second in pairwise(offsets))


async def send_out(delivery: fs.Delivery) -> None:
    await asyncio.sleep(0.05 + (delivery.offset % 7) / 20)
    delivery.send("out", delivery.key + f" {delivery.offset}".encode(), key=delivery.key, partition=0)


@pytest.mark.parametrize("order", ["key", "partition"])
def test_outputs_are_there_once_and_in_order_while_workers_come_go_and_lose_their_leases(order: str) -> None:
    async def story() -> None:
        async with workers(send_out, concurrency=4, exactly_once=True, output_order=order) as group:
            for name in "abc":
                await group.start(name)
            await begin(group)
            await group.send([f"k{number % 20}" for number in range(200)])
            await group.until(lambda: len(group.ended) > 40)
            group.cut.add("a")  # it reaches nobody: what it had under way is in doubt
            await group.until(lambda: len(group.ended) > 90)
            await group.start("d")
            await group.hosts.pop("b").finish()
            await until_written(group, 200)
            group.cut.clear()  # so that it stops in order
            values = await written(group)
            check_outputs(values, 200)
            if order == "partition":
                assert [int(value.split()[1]) for value in values] == list(range(200))

    run(story())


async def until_written(group: Workers, count: int) -> None:
    end_s = group.now_s() + 600
    while len(await written(group)) < count:
        assert group.now_s() < end_s, {name: host.ready() for name, host in group.hosts.items()}
        await asyncio.sleep(0.1)
    await asyncio.sleep(5)


def test_answers_that_are_lost_repeat_no_output_and_lose_none() -> None:
    async def story() -> None:
        async with workers(send_out, concurrency=4, exactly_once=True) as group:
            lost: list[int] = []

            def drops(request: Any) -> bool:
                if isinstance(request, CooperativeSettleRequest) and len(lost) < 10:
                    lost.append(1)
                    return len(lost) % 2 == 0
                return False

            group.drops = drops
            await group.start("a")
            await begin(group)
            await group.send([f"k{number % 20}" for number in range(100)])
            await until_written(group, 100)
            assert len(lost) == 10
            check_outputs(await written(group), 100)
            assert len(group.ended) == 100, "a lost answer runs no handler again"

    run(story())


def test_what_is_committed_has_its_output_at_every_moment() -> None:
    async def story() -> None:
        async with workers(send_out, concurrency=4, exactly_once=True) as group:
            for name in "ab":
                await group.start(name)
            await begin(group)
            await group.send([f"k{number % 20}" for number in range(100)])
            connection = await group.backend.connect("look")
            seen = set[int]()
            while len(seen) < 100:
                answer = await connection.send(CooperativeOffsetsRequest(group_id="g", ranges_from=0))
                values = await written(group)
                (part,) = answer.partitions
                committed = set(range(part.stable)).union(*(range(*one) for one in part.ranges.pairs()))
                seen = {int(value.split()[1]) for value in values}
                assert committed == seen
                await asyncio.sleep(0.013)

    run(story())


def test_what_a_handler_without_outputs_commits_comes_before_what_its_key_settles_next() -> None:
    """A death between the two would run the first again behind the second."""

    async def body(delivery: fs.Delivery) -> None:
        if delivery.offset % 2:
            delivery.send("out", f"{delivery.offset}".encode(), partition=0)

    async def story() -> None:
        async with workers(body, concurrency=4, exactly_once=True) as group:
            stopped = True
            group.drops = lambda request: stopped and type(request).__name__ == "CooperativeCommitRequest"
            await group.start("a")
            await begin(group)
            await group.send(["k"] * 2)
            await group.until(lambda: len(group.ended) == 1)
            await asyncio.sleep(2)
            before = len(group.ended), await written(group)
            stopped = False
            await until_written(group, 1)
            assert before == (1, []), "the second had begun before the first was committed"

    run(story())
