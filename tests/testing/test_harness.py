"""The harness as a user meets it: outcomes, attempts, delays, sinks, dead letters, time by hand, on any loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.errors import UsageError

app = fs.App("kit", broker="embedded:///nowhere/kit")
orders = app.topic("orders", value_type=dict)
paid = app.topic("paid", value_type=dict)


class Ledger:
    async def charge(self, order: dict) -> None: ...


ledger = Ledger()


@app.share_agent(orders, sink=[paid], retry=fs.Retry(max_attempts=3, delay=fs.exponential(60)))
async def bill(order: dict) -> dict:
    if order["id"] < 0:
        raise fs.Reject("negative")
    if order["id"] == 1000:
        raise fs.Release(delay=3600)
    await ledger.charge(order)
    return {"paid": order["id"]}


@app.share_agent("slow", timeout=5, retry=fs.Retry(max_attempts=2, delay=fs.exponential(1)))
async def hang(value: str) -> None:
    await asyncio.Event().wait()


@app.share_agent("plain")
def plain(value: str) -> None:
    seen.append(value)


seen: list[str] = []


async def retried_twice() -> tuple[list[int], int, list[object]]:
    async with fs.testing.harness(app) as bus:
        await bus.send(orders, {"id": 7})
        with bus.failing(ledger, "charge", TimeoutError, times=2):
            report = await bus.run_until_idle()
        return report[bill].attempts, report[bill].accepted, [record.value for record in bus.records(paid)]


@pytest.mark.flowshare
async def test_a_retried_record_shows_every_attempt_and_its_output_once() -> None:
    assert await retried_twice() == ([1, 2, 3], 1, [{"paid": 7}])


@pytest.mark.asyncio
async def test_the_same_works_under_pytest_asyncio() -> None:
    assert await retried_twice() == ([1, 2, 3], 1, [{"paid": 7}])


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_same_works_under_anyio() -> None:
    assert await retried_twice() == ([1, 2, 3], 1, [{"paid": 7}])


@pytest.mark.asyncio
async def test_used_up_attempts_and_rejects_end_as_dead_letters_with_their_reason() -> None:
    async with fs.testing.harness(app) as bus:
        await bus.send(orders, {"id": 1}, key="k")
        await bus.send(orders, {"id": -1})
        with bus.failing(ledger, "charge", ConnectionError("down"), times=99):
            report = await bus.run_until_idle()
        letters = {letter.origin[2]: letter for letter in bus.dead_letters(bill)}

    assert report[bill].dead_lettered == 2
    assert letters[0].attempts == 3
    assert "down" in letters[0].reason
    assert letters[0].key == b"k"
    assert (letters[1].attempts, letters[1].reason) == (1, "negative")


@pytest.mark.asyncio
async def test_a_handler_that_hangs_is_timed_out_by_the_harness_clock() -> None:
    async with fs.testing.harness(app) as bus:
        await bus.send("slow", "x")
        before = bus.clock.monotonic()
        report = await bus.run_until_idle()
        passed = bus.clock.monotonic() - before

    assert report[hang].attempts == [1, 2]
    assert report[hang].dead_lettered == 1
    assert passed >= 10


@pytest.mark.asyncio
async def test_time_by_hand_brings_a_delayed_record_back_when_it_is_due_and_not_before() -> None:
    async with fs.testing.harness(app) as bus:
        await bus.send(orders, {"id": 1000})
        report = await bus.advance(10)
        assert report[bill].attempts == [1]
        await bus.advance(3500)
        assert report[bill].attempts == [1]
        await bus.advance(100)
        assert report[bill].attempts == [1, 2]

    assert report[bill].delays == [3600, 3600]


@pytest.mark.asyncio
async def test_def_handlers_run_inline() -> None:
    seen.clear()
    async with fs.testing.harness(app) as bus:
        await bus.send("plain", "a")
        report = await bus.run_until_idle()

    assert seen == ["a"]
    assert report["plain"].accepted == 1


@pytest.mark.asyncio
async def test_a_run_that_cannot_end_says_what_is_left() -> None:
    async with fs.testing.harness(app) as bus:
        await bus.send(orders, {"id": 1000})

        with pytest.raises(fs.testing.NotIdle, match="orders"):
            await bus.run_until_idle(limit=60)


def test_what_is_no_app_is_refused():
    async def main():
        async with fs.testing.harness("shop:app"):
            pass

    with pytest.raises(UsageError, match=r"harness takes a flowshare.App, not 'shop:app'"):
        fs.testing.run(main())


@pytest.mark.flowshare
async def test_one_app_has_one_harness_at_a_time():
    app = fs.App("t")

    async with fs.testing.harness(app):
        with pytest.raises(UsageError, match="runs already"):
            async with fs.testing.harness(app):
                pass


@pytest.mark.flowshare
async def test_asking_for_an_agent_that_is_not_there_is_no_silent_zero():
    app = fs.App("t")

    @app.share_agent("in")
    async def bill(value: dict) -> None: ...

    @app.share_agent("in", dead_letter=None)
    async def audit(value: dict) -> None: ...

    async with fs.testing.harness(app) as bus:
        report = await bus.run_until_idle()
        for ask in (lambda: report["bil"], lambda: bus.dead_letters("bil")):
            with pytest.raises(UsageError, match=r"'bil' is no share agent of the app under test. Did you mean 'bill'"):
                ask()
        with pytest.raises(UsageError, match="is no share agent"):
            bus.dead_letters(app.topic("in"))
        with pytest.raises(UsageError, match="audit has dead_letter=None"):
            bus.dead_letters(audit)
        assert bus.dead_letters(bill) == bus.dead_letters("bill") == bus.dead_letters("t.bill.dlq") == []
        assert report["audit"].accepted == 0


@dataclass(frozen=True)
class Bill:
    """Value that the agent below sends."""

    customer: str
    cents: int


@pytest.mark.asyncio
async def test_keys_and_values_have_the_types_of_their_topics():
    app = fs.App("typed", broker="memory://")
    orders = app.topic("orders", key_type=str, value_type=int)
    bills = app.topic("bills", key_type=str, value_type=Bill)
    keys: list[Any] = []

    @app.share_agent(orders)
    async def bill(cents: int, delivery: fs.Delivery) -> fs.Send:
        keys.append(delivery.key)
        return fs.Send(bills, Bill(delivery.key, cents), key=delivery.key)

    async with fs.testing.harness(app) as bus:
        await bus.send(orders, 5, key="ann")
        await bus.run_until_idle()

        assert keys == ["ann"]
        [sent] = bus.records(bills)
        assert (sent.key, sent.value) == ("ann", Bill("ann", 5))
        assert [record.value for record in bus.records("orders")] == [5]


@pytest.mark.asyncio
async def test_a_key_that_does_not_fit_its_type_is_a_dead_letter_for_who_looks_at_it():
    app = fs.App("typed", broker="memory://")
    orders = app.topic("orders", key_type=int, value_type=int)

    @app.share_agent(orders)
    async def bill(cents: int, delivery: fs.Delivery) -> None:
        assert delivery.key

    async with fs.testing.harness(app) as bus:
        await bus.send("orders", 5, key="ann")
        await bus.run_until_idle()

        [letter] = bus.dead_letters(bill)
        assert "the key b'ann' does not fit the topic's key_type" in letter.reason


@pytest.mark.asyncio
async def test_an_app_with_fausts_agents_and_tables_is_tested_without_them():
    app = fs.App("tables", broker="kafka://nowhere:1")
    orders, good = app.topic("orders", value_type=int), app.topic("good", value_type=int)
    counts = app.Table("counts", default=int)

    @app.share_agent(orders)
    async def check(value: int) -> fs.Send:
        return fs.Send(good, value)

    @app.agent(good)
    async def count(stream: Any) -> None:
        async for value in stream:
            counts[value] += 1

    with pytest.warns(UserWarning, match="does not run Faust's own agent .*count, table counts"):  # noqa: PT031
        async with fs.testing.harness(app) as bus:
            await bus.send(orders, 5)
            await bus.run_until_idle()
            assert [record.value for record in bus.records(good)] == [5]


@pytest.mark.flowshare
async def test_a_kmq_queue_is_tracked_and_what_fails_comes_again_until_it_is_undelivered():
    app = fs.App("till")

    @app.kmq_agent("payments", markers="payments-markers", redeliver_after=600, sink=["booked"])
    async def book(payment: dict, delivery: fs.Delivery) -> int:
        if payment["n"] < 0 or (payment["n"] == 5 and delivery.attempt < 3):
            raise TimeoutError("not now")
        return payment["n"]

    async with fs.testing.harness(app) as bus:
        for n in (1, -2, 5):
            await bus.send("payments", {"n": n})
        report = await bus.run_until_idle()
        with pytest.raises(UsageError, match=r"bus.records\('payments__undelivered'\)"):
            bus.dead_letters(book)

    assert report[book].accepted == 2
    assert sorted(report[book].attempts) == [1, 1, 1, 2, 2, 3, 3, 4]
    assert report[book].reasons == ["TimeoutError: not now"] * 6
    assert [record.value for record in bus.records("booked")] == [1, 5]
    assert [record.value for record in bus.records("payments__undelivered")] == [{"n": -2}]


@pytest.mark.flowshare
async def test_a_release_of_an_hour_ends_and_so_does_one_of_a_day():
    app, begun = fs.App("t", broker="memory://"), []

    @app.share_agent("in")
    async def wait(value: str) -> None:
        begun.append(value)
        if begun.count(value) == 1:
            raise fs.Release(delay={"hour": 3600, "day": 86_400}[value])

    async with fs.testing.harness(app) as bus:
        await bus.send("in", "hour")
        report = await bus.run_until_idle()
        await bus.send("in", "day")
        await bus.run_until_idle()

    assert report[wait].delays == [3600, 86_400]
    assert report[wait].accepted == 2


@pytest.mark.parametrize("kind", ["share_agent", "cooperative_agent"])
def test_an_hour_that_nothing_happens_in_wakes_nobody_often(kind):
    app, fired = fs.App("t", broker="memory://"), []

    @getattr(app, kind)("in")
    async def wait(value: str) -> None: ...

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.run_until_idle()
            call_later = bus.clock.call_later

            def counted(delay_s, callback):
                return call_later(delay_s, lambda: (fired.append(delay_s), callback()))

            bus.clock.call_later = counted
            await bus.advance(3600)

    asyncio.run(main())

    assert len(fired) < {"share_agent": 400, "cooperative_agent": 9000}[kind]


def test_faust_agents_that_the_kit_does_not_run_are_told():
    app = fs.App("t", broker="embedded:///nowhere")

    @app.agent(app.topic("in"))
    async def count(stream):
        async for _ in stream:
            pass

    async def main() -> None:
        async with fs.testing.harness(app):
            pass

    with pytest.warns(UserWarning, match=r"the test kit does not run Faust's own agent .*count"):
        asyncio.run(main())


def test_a_task_that_fails_fails_the_test():
    app = fs.App("t", broker="memory://")

    @app.task
    async def poll() -> None:
        raise ConnectionError("bank is closed")

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.advance(1)

    with pytest.raises(fs.errors.AppFailed, match="task poll failed: ConnectionError: bank is closed"):
        asyncio.run(main())
