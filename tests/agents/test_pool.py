"""How handlers run: inside real tasks, with fresh context variables, beside each other."""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import flowshare as fs
from flowshare.agents.handler.chunk import Chunk
from flowshare.agents.handler.delivery import current
from flowshare.agents.handler.retry_headers import RetryOrigin
from flowshare.agents.run import logs
from flowshare.protocol.messages import TopicPartition
from flowshare.testing import Bus
from tests.agents.agents_kit import one_agent, run_agent, run_app

request_id: ContextVar[str] = ContextVar("request_id", default="none")


def test_asyncio_timeout_inside_a_handler_works():
    caught: list[str] = []

    async def handler(value: bytes) -> None:
        try:
            async with asyncio.timeout(2):
                await asyncio.sleep(50)
        except TimeoutError:
            caught.append("timeout")

    seen = run_agent(handler, [1, 2])

    assert caught == ["timeout", "timeout"]
    assert seen.report.accepted == 2


def test_task_groups_and_their_errors_work_inside_a_handler():
    async def handler(value: int, delivery: fs.Delivery) -> None:
        async def child() -> None:
            await asyncio.sleep(1)
            if delivery.attempt == 1:
                raise ValueError("child")

        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(asyncio.sleep(100))

    seen = run_agent(handler, [1])

    assert seen.outcomes == ["retried", "accepted"]
    assert "ExceptionGroup" in seen.report.reasons[0]


def test_anyio_works_inside_a_handler():
    got: list[str] = []

    async def handler(value: int) -> None:
        with anyio.move_on_after(1) as scope:
            await anyio.sleep(100)
        got.append(str(scope.cancelled_caught))
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 1)
        with anyio.fail_after(5):
            await anyio.sleep(1)

    seen = run_agent(handler, [1])

    assert got == ["True"]
    assert seen.report.accepted == 1


def test_the_handler_runs_in_a_task_that_is_the_current_one():
    tasks: list[Any] = []

    async def handler(value: int) -> None:
        tasks.append(asyncio.current_task())

    run_agent(handler, [1])

    assert tasks[0].get_name().startswith("agent-")


def test_cancelling_the_own_task_is_a_failure_and_the_pool_goes_on():
    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    seen = run_agent(handler, [1, 2, 3], concurrency=1)

    assert sorted(seen.outcomes) == ["accepted"] * 3 + ["retried"] * 3


def test_context_variables_of_one_record_are_gone_for_the_next():
    found: list[str] = []

    async def handler(value: int) -> None:
        found.append(request_id.get())
        request_id.set(f"record {value}")

    run_agent(handler, [1, 2, 3], concurrency=1)

    assert found == ["none", "none", "none"]


def test_context_variables_set_before_the_start_are_seen():
    found: list[str] = []

    async def handler(value: int) -> None:
        found.append(request_id.get())

    token = request_id.set("from outside")
    try:
        run_agent(handler, [1])
    finally:
        request_id.reset(token)

    assert found == ["from outside"]


def test_concurrency_is_kept_and_used():
    running = most = 0

    async def handler(value: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    seen = run_agent(handler, list(range(40)), concurrency=8)

    assert most == 8
    assert seen.report.accepted == 40


def test_a_slow_record_holds_up_nothing_but_its_slot():
    ended: list[int] = []

    async def handler(value: int) -> None:
        await asyncio.sleep(1000 if value == 0 else 1)
        ended.append(value)

    async def during(bus: Bus) -> None:
        await bus.advance(100)
        assert sorted(ended) == list(range(1, 60))

    run_agent(handler, list(range(60)), concurrency=4, during=during)

    assert ended[-1] == 0


def test_a_lock_is_renewed_as_long_as_the_handler_runs():
    runs: list[int] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        runs.append(delivery.attempt)
        await asyncio.sleep(200)

    seen = run_agent(handler, [1], lock_duration=5)

    assert runs == [1]
    assert seen.outcomes == ["accepted"]
    assert seen.stats["renewed"] > 20


def test_a_handler_can_renew_its_lock_itself():
    held: list[bool] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        await asyncio.sleep(4)
        held.append(await delivery.renew())
        await asyncio.sleep(4)

    seen = run_agent(handler, [1], lock_duration=9, timeout=8.5, renew=False)

    assert held == [True]
    assert seen.outcomes == ["accepted"]


def test_a_timed_out_handler_that_cleans_up_ends_before_its_slot_is_used_again():
    events: list[str] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        if delivery.attempt > 1 or value == 2:
            events.append(f"run {value}")
            return
        try:
            await asyncio.sleep(100)
        finally:
            events.append("cleaned")

    seen = run_agent(handler, [1, 2], concurrency=1, timeout=3)

    assert events[0] == "cleaned"
    assert seen.report.accepted == 2


def test_the_attempt_after_a_timed_out_one_is_timed_as_exactly():
    async def handler(value: int) -> None:
        await asyncio.sleep(100)

    seen = run_agent(handler, [1], timeout=0.2, retry=fs.Retry(max_attempts=3, delay=0.1))

    assert seen.outcomes == ["retried", "retried", "dead_lettered"]
    assert seen.elapsed_s < 1.5


def test_a_timeout_says_how_long_it_was_and_where_the_handler_waited(caplog: pytest.LogCaptureFixture):
    async def patient(value: int) -> None:
        await asyncio.sleep(100)

    seen = run_agent(patient, [1], timeout=2, retry=fs.Retry(max_attempts=2, delay=0.1))

    [again] = [one.getMessage() for one in caplog.records if "tried again in" in one.getMessage()]
    assert "TimeoutError: the handler took longer than its timeout of 2 s (test_pool.py:" in again
    assert "in patient)" in again
    [letter] = seen.dead
    assert letter.reason.endswith("TimeoutError: the handler took longer than its timeout of 2 s")
    assert "in patient" in letter.header("trace")


def test_middleware_stands_around_every_call_the_apps_outermost():
    calls: list[str] = []

    async def handler(value: int) -> None:
        calls.append("handler")

    async def inner(delivery: fs.Delivery, call_next: Any) -> Any:
        calls.append("inner")
        return await call_next()

    app = one_agent(handler, middleware=[inner])

    @app.middleware
    async def outer(delivery: fs.Delivery, call_next: Any) -> Any:
        calls.append(f"outer {delivery.offset}")
        try:
            return await call_next()
        finally:
            calls.append("after")

    run_app(app, [1])

    assert calls == ["outer 0", "inner", "handler", "after"]


def test_a_middleware_can_decide_the_outcome():
    async def handler(value: int) -> None:
        raise AssertionError("must not run")

    async def refuse(delivery: fs.Delivery, call_next: Any) -> Any:
        raise fs.Reject("not today")

    seen = run_agent(handler, [1], middleware=[refuse])

    assert seen.outcomes == ["dead_lettered"]


def test_log_lines_of_a_handler_name_agent_record_and_attempt(caplog: pytest.LogCaptureFixture):
    log = logging.getLogger("shop")

    async def handler(value: int, delivery: fs.Delivery) -> None:
        log.warning("working")
        await asyncio.create_task(child())
        if delivery.attempt == 1:
            raise ValueError("again")

    async def child() -> None:
        log.warning("child")

    run_agent(handler, [1])

    lines = [record for record in caplog.records if record.name == "shop"]
    assert [line.flowshare_record for line in lines] == ["in-0@0"] * 4
    assert [line.flowshare_attempt for line in lines] == [1, 1, 2, 2]
    assert lines[0].flowshare_agent == "agent"
    assert lines[0].flowshare == "[agent in-0@0 attempt 1] "


def test_a_log_line_names_the_place_that_a_record_of_the_retry_topic_came_from(caplog: pytest.LogCaptureFixture):
    origin = RetryOrigin("in", uuid.UUID(int=1), 3, 70, attempts=2, due_ms=0)
    record: Any = SimpleNamespace(offset=0, headers=())
    chunk = Chunk(
        "agent",
        "in",
        TopicPartition(uuid.UUID(int=2), 0),
        [([record], 1)],
        decode=None,
        deadline=0.0,
        generation=0,
        arrived=0.0,
        origins={0: origin},
    )
    logs.install()
    token = current.set((chunk, record))
    try:
        logging.getLogger("shop").warning("working")
    finally:
        current.reset(token)

    assert caplog.records[0].flowshare == "[agent in-3@70 attempt 3] "


@pytest.mark.flowshare
async def test_trace_context_goes_from_headers_into_what_is_produced():
    parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found: list[str | None] = []

    async def handler(value: int) -> Any:
        found.append(fs.tracing.traceparent())
        if value == 2:
            with fs.tracing.use("00-" + "1" * 32 + "-" + "2" * 16 + "-01"):
                await app.topic("out").send(value=5)
            return None
        return fs.Send("out", value)

    app = one_agent(handler)

    async with fs.testing.harness(app) as bus:
        await bus.send("in", 1, headers={"traceparent": parent, "tracestate": b"a=b"})
        await bus.send("in", 2)
        await bus.send("in", 3, headers={"traceparent": b"nonsense"})
        await bus.run_until_idle()
        by_value = {record.value: record.headers for record in bus.records("out")}
        assert by_value[1] == {"traceparent": parent, "tracestate": b"a=b"}
        assert by_value[5]["traceparent"].startswith(b"00-1111")
        assert by_value[3] == {}

    assert found == [parent.decode(), None, None]


def test_a_paused_agent_begins_nothing_until_it_is_resumed():
    got: list[int] = []

    async def handler(value: int) -> None:
        got.append(value)

    async def during(bus: Bus) -> None:
        runtime = bus.host.runtimes["agent"]
        await bus.advance(1)
        runtime.pause()
        await bus.advance(1)
        got.clear()
        await bus.send("in", 7)
        await bus.advance(20)
        assert got == []
        assert runtime.paused
        runtime.resume()

    seen = run_agent(handler, [1], during=during)

    assert got == [7]
    assert seen.report.accepted == 2


def test_a_rate_limit_holds_over_time():
    times: list[float] = []

    async def handler(value: int) -> None:
        times.append(asyncio.get_running_loop().time())

    run_agent(handler, list(range(30)), rate_limit="5/s")

    assert times[-1] - times[0] >= 5


def test_what_is_buffered_behind_a_stuck_handler_goes_back_without_costing_an_attempt():
    attempts: dict[int, int] = {}

    async def handler(value: int, delivery: fs.Delivery) -> None:
        attempts[value] = delivery.attempt
        await asyncio.sleep(20)

    async def during(bus: Bus) -> None:
        await bus.advance(10)
        assert bus.host.runtimes["agent"].stats()["unrun"] >= 1
        [offsets] = await bus.host.admin.group_offsets("t.agent")
        assert offsets.in_flight == 1

    seen = run_agent(handler, [1, 2, 3], concurrency=1, during=during)

    assert attempts == {1: 1, 2: 1, 3: 1}
    assert seen.report.accepted == 3


def test_in_flight_names_record_age_and_lock():
    rows: list[Any] = []

    async def handler(value: int) -> None:
        await asyncio.sleep(10)

    async def during(bus: Bus) -> None:
        await bus.advance(5)
        rows.extend(bus.host.runtimes["agent"].in_flight())

    run_agent(handler, [1], during=during)

    [row] = rows
    assert (row.agent, row.topic, row.partition, row.offset, row.attempt) == ("agent", "in", 0, 0, 1)
    assert 4 < row.age_s < 6
    assert 20 < row.lock_left_s <= 30
    assert row.task is not None


@pytest.mark.flowshare
async def test_draining_waits_for_handlers_and_gives_the_rest_back():
    ended: list[int] = []

    async def handler(value: int) -> None:
        await asyncio.sleep(5)
        ended.append(value)

    app = one_agent(handler, concurrency=2)

    async with fs.testing.harness(app) as bus:
        for value in range(10):
            await bus.send("in", value)
        await bus.advance(1)
        runtime = bus.host.runtimes["agent"]
        assert await runtime.drain(20)
        assert sorted(ended) == [0, 1]
        [part] = await bus.host.admin.group_offsets("t.agent")
        assert (part.lag, part.in_flight) == (8, 0)


@pytest.mark.flowshare
async def test_while_handlers_finish_the_agents_partitions_are_others():
    async def handler(value: int) -> None:
        await asyncio.sleep(5)

    app = one_agent(handler)

    async with fs.testing.harness(app) as bus:
        await bus.send("in", 1)
        await bus.advance(1)
        runtime = bus.host.runtimes["agent"]
        draining = asyncio.ensure_future(runtime.drain(20))
        await bus.advance(1)
        group = await bus.host.admin.describe_group("t.agent")
        assert [dict(member.assignment) for member in group.members] == [{}]
        assert runtime.stats()["running"] == 1
        await bus.advance(10)
        assert await draining
        assert runtime.stats()["accepted"] == 1


@pytest.mark.flowshare
async def test_handlers_past_the_drain_deadline_are_cancelled_and_their_records_released():
    attempts: list[int] = []

    async def handler(value: int, delivery: fs.Delivery) -> None:
        attempts.append(delivery.attempt)
        await asyncio.sleep(500)

    app = one_agent(handler, concurrency=1)

    async with fs.testing.harness(app) as bus:
        await bus.send("in", 1)
        await bus.advance(1)
        runtime = bus.host.runtimes["agent"]
        assert not await runtime.drain(3)
        [part] = await bus.host.admin.group_offsets("t.agent")
        assert (part.lag, part.in_flight) == (1, 0)
        assert runtime.stats()["cancelled"] == 1

    assert attempts == [1]
