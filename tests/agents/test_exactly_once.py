"""Agents with exactly_once=True: outputs and dead letters are there if and only if their records are settled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.app.summary import line
from flowshare.agents.feed.backend_limits import asked_of, check_asked
from flowshare.agents.handler.errors import OptionError, UsageError
from flowshare.backend.base import EMBEDDED, NATIVE, WORKERS
from flowshare.log.base import StorageError
from tests.agents.agents_kit import one_agent, run_agent, run_app

ONCE: dict[str, Any] = {"exactly_once": True, "retry": fs.Retry(max_attempts=3, delay=1.0)}


def outputs(seen: Any, topic: str = "out") -> list[Any]:
    return [record.value for record in seen.records(topic)]


def test_what_is_returned_is_there_once_for_each_accepted_record():
    async def double(n: int) -> int:
        return 2 * n

    seen = run_agent(double, range(50), sink="out", **ONCE)

    assert outputs(seen) == [2 * n for n in range(50)]
    assert seen.report.accepted == 50
    assert seen.stats["sent"] == 50


def test_an_attempt_that_fails_leaves_nothing_of_what_it_sent():
    async def work(n: int, delivery: fs.Delivery) -> fs.Send:
        delivery.send("out", {"sent": n, "attempt": delivery.attempt})
        if delivery.attempt < 3:
            raise ConnectionError("down")
        return fs.Send("out", {"returned": n})

    seen = run_agent(work, range(3), **ONCE)

    assert sorted(map(str, outputs(seen))) == sorted(
        str(one) for n in range(3) for one in ({"sent": n, "attempt": 3}, {"returned": n})
    )


def test_a_rejected_record_has_its_letter_and_none_of_its_outputs():
    async def work(n: int, delivery: fs.Delivery) -> None:
        delivery.send("out", n)
        if n == 1:
            raise fs.Reject("odd one")

    seen = run_agent(work, range(3), **ONCE)

    assert outputs(seen) == [0, 2]
    assert [letter.reason for letter in seen.dead] == ["odd one"]
    assert (seen.report.accepted, seen.report.dead_lettered) == (2, 1)


def test_a_released_record_leaves_nothing_until_it_is_accepted():
    async def work(n: int, delivery: fs.Delivery) -> None:
        fs.current_delivery().send("out", [n, delivery.attempt])
        if delivery.attempt == 1:
            raise fs.Release(5)

    seen = run_agent(work, [7], **ONCE)

    assert outputs(seen) == [[7, 2]]


def test_outputs_have_what_a_send_says_of_them():
    async def work(n: int) -> list[fs.Send]:
        return [
            fs.Send("out", n, key=f"k{n}", headers={"h": b"1"}, partition=0, timestamp=1_234.5),
            fs.Send("other", b"raw", key=None),
        ]

    seen = run_agent(work, [1], **ONCE)

    [record] = [one for one in seen.out if one.topic == "out"]
    assert (record.key, record.value, record.headers) == (b"k1", 1, {"h": b"1"})
    assert outputs(seen, "other") == [b"raw"]


def test_a_plain_def_handler_settles_as_well():
    def work(n: int, delivery: fs.Delivery) -> int:
        delivery.send("out", -n)
        return n

    seen = run_agent(work, range(1, 11), sink="out", **ONCE)

    assert sorted(outputs(seen)) == [*range(-10, 0), *range(1, 11)]


def test_a_batchs_result_is_there_once_with_all_that_it_accepted():
    async def load(rows: fs.Records[int]) -> list[int]:
        for row in rows:
            row.delivery.send("out", row.value)
            if row.value % 10 == 3:
                rows.reject(row, "three")
            if row.value % 10 == 4 and row.delivery.attempt == 1:
                rows.retry(row, ConnectionError("down"))
        return sorted(value for value in rows.values() if value % 10 not in (3, 4))

    seen = run_agent(load, range(20), sink="sums", batch=fs.Batch(10), concurrency=1, **ONCE)

    assert sorted(outputs(seen)) == sorted(n for n in range(20) if n % 10 != 3)
    sums = [n for one in outputs(seen, "sums") for n in one]
    assert sorted(sums) == [n for n in range(20) if n % 10 not in (3, 4)]
    assert len(seen.dead) == 2


def test_a_batch_is_of_one_partition_and_none_waits_for_ever_behind_another():
    batches: list[set[tuple[str, int]]] = []

    async def load(rows: fs.Records[int]) -> int:
        batches.append({(row.delivery.topic, row.delivery.partition) for row in rows})
        return len(rows)

    app = fs.App("t")
    topics = [app.topic(name, partitions=1) for name in ("in", "in2", "in3")]
    app.share_agent(*topics, name="agent", sink="out", batch=fs.Batch(8, within=0.5), concurrency=2, **ONCE)(load)

    async def more(bus: Any) -> None:
        for n in range(20):
            await bus.send("in2", n)
            await bus.send("in3", n)

    seen = run_app(app, range(20), during=more)

    assert all(len(one) == 1 for one in batches)
    assert sum(outputs(seen)) == 60
    assert seen.report.accepted == 60


def test_with_an_order_outputs_of_a_key_are_in_its_order():
    async def work(n: int, delivery: fs.Delivery) -> None:
        if n % 5 == 2 and delivery.attempt == 1:
            raise ConnectionError("down")
        delivery.send("out", n, key=delivery.key)

    app = one_agent(work, order="key", **ONCE)

    async def keyed(bus: Any) -> None:
        for n in range(40):
            await bus.send("in", n, key=f"k{n % 4}")

    seen = run_app(app, (), during=keyed)

    for key in range(4):
        assert [n for n in outputs(seen) if n % 4 == key] == list(range(key, 40, 4))


def test_what_a_topic_sends_by_itself_is_refused_in_such_a_handler():
    errors: list[str] = []
    app = fs.App("t")
    out = app.topic("out")

    @app.share_agent("in", name="agent", exactly_once=True)
    async def work(n: int) -> None:
        for send in (lambda: out.send(value=n), lambda: asyncio.sleep(0, out.send_soon(value=n))):
            try:
                await send()
            except UsageError as error:
                errors.append(str(error))

    seen = run_app(app, [1])

    assert len(errors) == 2
    assert "return fs.Send('out', value)" in errors[0]
    assert outputs(seen) == []


def test_an_output_that_is_too_large_takes_its_own_record_to_the_letters():
    async def work(n: int) -> bytes:
        return b"x" * (3_000_000 if n == 1 else 10)

    seen = run_agent(work, range(3), sink="out", **ONCE)

    assert len(outputs(seen)) == 2
    [letter] = seen.dead
    assert "max_request_size" in letter.reason
    assert letter.origin[2] == 1


def test_an_output_for_a_partition_that_is_not_there_fails_as_an_exception_would():
    async def work(n: int) -> fs.Send:
        return fs.Send("out", n, partition=7 if n == 1 else 0)

    seen = run_agent(work, range(3), **ONCE)

    assert outputs(seen) == [0, 2]
    [letter] = seen.dead
    assert letter.attempts == 3
    assert "there is no partition 7" in letter.reason


def test_an_output_for_a_partition_that_was_added_since_goes_there_at_its_first_attempt():
    async def work(n: int) -> fs.Send:
        return fs.Send("out", n, partition=n)

    async def during(bus: Any) -> None:
        await bus.advance(1)
        await bus.host.admin.create_partitions("out", 2)
        await bus.send("in", 1)

    seen = run_agent(work, [0], during=during, **ONCE)

    assert [(one.partition, one.value) for one in seen.out] == [(0, 0), (1, 1)]
    assert seen.report.retried == 0
    assert seen.dead == []


def test_a_disk_that_fails_for_a_while_delays_and_doubles_nothing():
    async def work(n: int) -> int:
        return n

    app = one_agent(work, sink="out", **ONCE)

    async def failing(bus: Any) -> None:
        storage = bus.host.backend._storage
        real, left = storage.settle, 3

        async def settle(checked: Any, writes: Any) -> None:
            nonlocal left
            if left:
                left -= 1
                raise StorageError("no room")
            await real(checked, writes)

        storage.settle = settle
        for n in range(5):
            await bus.send("in", n)

    seen = run_app(app, (), during=failing)

    assert sorted(outputs(seen)) == [0, 1, 2, 3, 4]
    assert seen.report.attempts == [1] * 5


def test_without_it_what_a_delivery_sends_is_confirmed_before_the_accept():
    async def work(n: int, delivery: fs.Delivery) -> int:
        delivery.send("out", -n)
        if delivery.attempt == 1 and n == 2:
            raise ConnectionError("down")
        return n

    seen = run_agent(work, range(1, 4), sink="out", retry=fs.Retry(max_attempts=3, delay=1.0))

    assert sorted(outputs(seen)) == [-3, -2, -1, 1, 2, 3]


def test_rows_that_go_back_behind_another_of_their_key_have_sent_nothing(caplog: pytest.LogCaptureFixture):
    async def load(rows: fs.Records[int]) -> None:
        for row in rows:
            row.delivery.send("out", row.value)
            if row.value == 3 and row.delivery.attempt == 1:
                rows.retry(row, ConnectionError("down"))

    app = one_agent(load, order="key", batch=fs.Batch(12, within=0.5), retry=fs.Retry(max_attempts=3, delay=1.0))

    async def keyed(bus: Any) -> None:
        for n in range(12):
            await bus.send("in", n, key=f"k{n % 2}")

    assert sorted(outputs(run_app(app, (), during=keyed))) == list(range(12))
    assert "after the handler had ended" not in caplog.text


@pytest.mark.parametrize("given", [1, "yes", None])
def test_the_option_takes_true_or_false(given):
    with pytest.raises(OptionError, match="exactly_once takes True or False"):
        one_agent(print, exactly_once=given)


def test_brokers_refuse_it_with_what_to_do_and_auto_chooses_the_workers():
    async def work(n: int) -> int:
        return n

    agent = one_agent(work, sink="out", exactly_once=True).share_agents["agent"]

    assert line(agent).endswith("outputs exactly once")
    with pytest.raises(UsageError, match="share=auto, which chooses them"):
        check_asked(agent, NATIVE)
    with pytest.raises(UsageError, match=r"older than Kafka 3\.7"):
        check_asked(agent, replace(WORKERS, settling=False))
    check_asked(agent, EMBEDDED)
    check_asked(agent, WORKERS)
    assert asked_of([agent]) == {"t.agent": ["outputs in one step with their inputs (exactly_once=True)"]}
