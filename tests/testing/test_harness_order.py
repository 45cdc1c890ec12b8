"""Tests of assertions about the order in which an application's handlers ran."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError
from flowshare.testing import AgentReport


def app_with(handler: Any, topic: str = "in", **options: Any) -> fs.App:
    app = fs.App("t")
    app.share_agent(app.topic(topic, key_type=str), name="work", **options)(handler)
    return app


async def flaky(value: int, delivery: fs.Delivery) -> None:
    await asyncio.sleep(10 - value % 10)
    if value == 0 and delivery.attempt < 3:
        raise ConnectionError("down")


def ran(handler: Any, keys: Sequence[str | None], **options: Any) -> AgentReport:
    async def main() -> AgentReport:
        async with fs.testing.harness(app_with(handler, **options)) as bus:
            for value, key in enumerate(keys):
                await bus.send(bus.app.topic("in", key_type=str), value, key=key)
            report = await bus.run_until_idle()
            return report["work"]

    return fs.testing.run(main())


@pytest.mark.parametrize("batch", [None, fs.Batch(3, within=0.1)])
def test_an_agent_with_an_order_is_in_order_through_its_retries(batch: fs.Batch | None):
    async def many(rows: fs.Records[int]) -> None:
        for row in rows:
            if row.value == 0 and row.delivery.attempt < 3:
                rows.retry(row, ConnectionError("down"))

    report = ran(flaky if batch is None else many, "abcabcabc", order="key", batch=batch, retry=fs.Retry(delay=60))

    report.assert_in_order()
    order = report.order_of("a")
    assert order == report.order_of(b"a")
    assert [offset for at, offset in enumerate(order) if offset not in order[:at]] == [0, 3, 6]
    assert order.count(0) == 3
    assert report.order_of("b") == [1, 4, 7]


def test_a_retry_that_later_records_of_its_key_passed_is_named():
    report = ran(flaky, "aab", concurrency=1, retry=fs.Retry(delay=60))

    with pytest.raises(AssertionError) as caught:
        report.assert_in_order()

    assert str(caught.value) == (
        "not in order: key 'a': in-0@0 (attempt 2) began after in-0@1, which is later in the log; "
        "those of this key began in the order 0, 1, 0"
    )


def test_records_of_one_key_that_ran_side_by_side_are_named():
    async def handler(value: int) -> None:
        await asyncio.sleep(1)

    report = ran(handler, "aba", concurrency=4)

    with pytest.raises(AssertionError, match=r"key 'a': in-0@2 began while in-0@0 was running; .* in the order 0, 2"):
        report.assert_in_order()


def test_records_side_by_side_are_told_apart_from_those_one_after_the_other_when_no_time_passes():
    second = asyncio.Event()

    async def waits(value: int) -> None:
        if value == 1:
            second.set()
        await second.wait()

    async def handler(value: int) -> None: ...

    beside = ran(waits, "aa", concurrency=4)
    after = ran(handler, "aaaa", concurrency=4, order="key")

    with pytest.raises(AssertionError, match="in-0@1 began while in-0@0 was running"):
        beside.assert_in_order()
    after.assert_in_order()
    assert {run.ended for run in after.runs} == {run.began for run in after.runs}


def test_a_header_is_the_key_where_it_orders():
    async def handler(value: int) -> None:
        await asyncio.sleep(1)

    async def main() -> AgentReport:
        async with fs.testing.harness(app_with(handler, order=fs.Header("customer"))) as bus:
            for value in range(6):
                await bus.send("in", value, key="same", headers={"customer": b"ab"[value % 2 :][:1]})
            return (await bus.run_until_idle())["work"]

    report = fs.testing.run(main())

    report.assert_in_order()
    assert report.order_of("a") == [0, 2, 4]


def test_what_would_assert_nothing_is_an_error():
    async def handler(value: int) -> None: ...

    without = ran(handler, [None, None])
    with_keys = ran(handler, "ab")

    with pytest.raises(UsageError, match="no order to assert"):
        without.assert_in_order()
    with pytest.raises(UsageError, match=r"no handler has begun a record of key 'c'; keys that came: 'a', 'b'"):
        with_keys.order_of("c")


def test_plain_handlers_are_noted_too():
    def handler(value: int) -> None: ...

    report = ran(handler, "aab", order="key")

    report.assert_in_order()
    assert [(run.offset, run.attempt, run.key) for run in report.runs if run.key == "a"] == [(0, 1, "a"), (1, 1, "a")]


async def withdrawn() -> AgentReport:
    """A batch whose first record is tried again: the others of its key go back unrun with it."""

    async def load(rows: fs.Records[int]) -> None:
        for row in rows:
            if row.value == 0 and row.delivery.attempt == 1:
                rows.retry(row, ConnectionError("down"))

    app = fs.App("t")
    app.share_agent("in", name="agent", order="key", batch=fs.Batch(10, within=0.1))(load)
    async with fs.testing.harness(app) as bus:
        bus.host.runtimes["agent"].pause()
        await bus.advance(1)
        for number in range(3):
            await bus.send("in", number, key="k")
        await bus.advance(1)
        bus.host.runtimes["agent"].resume()
        return (await bus.run_until_idle())["agent"]


def test_records_that_went_back_unrun_with_a_failed_one_of_their_batch_are_in_order():
    report = fs.testing.run(withdrawn())

    report.assert_in_order()
    assert report.order_of("k") == [0, 0, 1, 2]
