"""Plain `def` handlers in their threads: real threads, real time, so kept small."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import flowshare as fs
from flowshare.agents.host.host import Host
from tests.agents.agents_kit import run_agent
from tests.waiting import LIMIT_S, blocking_until, until


def threaded(app: fs.App, values: list[Any], done: Callable[[dict[str, float]], bool], look: Any = None) -> Any:
    """Run the app on two loops until its agent's counters satisfy `done`; returns what `look` saw then."""

    async def main() -> Any:

        host = Host(app)
        await host.start()
        try:
            for value in values:
                await app.topic("in").send(value=value)
            runtime = host.runtimes["agent"]
            await until(runtime.stats, good=done)
            return (await look(runtime) if look else None), runtime.stats()
        finally:
            await host.drain(5)
            await host.stop()

    return asyncio.run(main())


def app_of(fun: Any, **options: Any) -> fs.App:
    app = fs.App("t", broker="memory://")
    app.share_agent("in", name="agent", **options)(fun)
    return app


def test_def_handlers_run_in_threads_of_their_own_at_the_same_time():
    barrier = threading.Barrier(4, timeout=LIMIT_S)
    names: set[str] = set()

    def handler(value: int) -> None:
        names.add(threading.current_thread().name)
        barrier.wait()

    threaded(app_of(handler, concurrency=4), [1, 2, 3, 4], lambda stats: stats["accepted"] == 4)

    assert len(names) == 4
    assert all(name.startswith("agent-") for name in names)


def test_outcomes_of_def_handlers_are_those_of_any_handler():
    def handler(value: int, delivery: fs.Delivery) -> Any:
        if value == 1 and delivery.attempt == 1:
            raise ConnectionError("down")
        if value == 2:
            raise fs.Reject("no")
        return fs.Send("out", value) if value == 3 else None

    _, stats = threaded(
        app_of(handler, retry=fs.Retry(delay=0.01)),
        [1, 2, 3, "text"],
        lambda stats: stats["accepted"] == 2 and stats["dead_lettered"] == 2,
    )

    assert (stats["retried"], stats["sent"], stats["undecodable"]) == (1, 1, 1)


def test_a_def_handler_past_its_timeout_keeps_slot_and_lock_and_makes_the_agent_unhealthy():
    go_on = threading.Event()
    runs: list[int] = []

    def handler(value: int, delivery: fs.Delivery) -> None:
        runs.append(delivery.attempt)
        go_on.wait(LIMIT_S)

    async def look(runtime: Any) -> Any:
        await until(lambda: runtime.stats()["renewed"] >= 2)
        seen = (list(runtime.problems()), [row.thread_id for row in runtime.in_flight()])
        go_on.set()
        await until(lambda: runtime.stats()["accepted"])
        return seen

    (problems, thread_ids), stats = threaded(
        app_of(handler, concurrency=2, timeout=0.1, lock_duration=2),
        [1],
        lambda stats: stats["timed_out"] == 1,
        look,
    )

    assert "past its timeout" in problems[0]
    assert thread_ids[0] is not None
    assert runs == [1]
    assert stats["lock_lost"] == 0


def test_a_def_handler_can_send_and_wait_for_the_confirmation():
    places: list[int] = []

    def handler(value: int) -> None:
        places.append(app.topic("out").send_soon(value=value).result(LIMIT_S).offset)

    app = app_of(handler)
    threaded(app, [1], lambda stats: stats["accepted"] == 1)

    assert places == [0]


def test_a_def_handler_goes_on_while_the_handler_loop_is_blocked():
    ended: list[float] = []

    def handler(value: int) -> None:
        ended.append(time.monotonic())

    async def look(runtime: Any) -> float:
        producer = app.host.producer
        app.host.service.submit(lambda: producer.send("in", b"2"))
        blocking_until(lambda: len(ended) == 2, "the handler loop is blocked meanwhile")
        return time.monotonic()

    app = app_of(handler)
    blocked_until, _ = threaded(app, [1], lambda stats: stats["accepted"] == 1, look)

    assert len(ended) == 2
    assert ended[1] < blocked_until


def test_context_variables_and_current_delivery_are_per_record():
    found: list[Any] = []

    def handler(value: int) -> None:
        found.append(fs.current_delivery().offset)

    threaded(app_of(handler, concurrency=1), [1, 2], lambda stats: stats["accepted"] == 2)

    assert found == [0, 1]


def test_async_middleware_stands_around_a_def_handler():
    calls: list[Any] = []

    def handler(value: int) -> None:
        calls.append(threading.current_thread() is threading.main_thread())
        if len(calls) == 2:
            raise ValueError("no")

    async def around(delivery: fs.Delivery, call_next: Any) -> Any:
        await asyncio.sleep(0)
        calls.append(fs.current_delivery().offset)
        try:
            return await call_next()
        except ValueError as error:
            raise fs.Reject(f"seen around: {error}") from error

    def inside(delivery: fs.Delivery, call_next: Any) -> Any:
        calls.append("inside")
        return call_next()

    threaded(app_of(handler, middleware=[around, inside], concurrency=1), [1], lambda stats: stats["accepted"] == 1)
    assert calls == [0, "inside", False]

    calls.clear()
    run_agent(handler, [1], middleware=[around, inside])
    assert calls == [0, "inside", True]

    calls.clear()
    seen = run_agent(handler, [1], middleware=[around])
    assert calls == [0, True]
    assert seen.outcomes == ["dead_lettered"]


def test_async_middleware_stands_around_a_def_batch_in_a_thread():
    calls: list[Any] = []

    def handler(rows: fs.Records[int]) -> None:
        calls.append(threading.current_thread() is threading.main_thread())

    async def around(rows: fs.Records[int], call_next: Any) -> Any:
        calls.append([row.value for row in rows])
        return await call_next()

    app = app_of(handler, batch=fs.Batch(1), middleware=[around])
    threaded(app, [1], lambda stats: stats["accepted"] == 1)

    assert calls == [[1], False]


def test_plain_middleware_stands_around_a_def_handler():
    calls: list[str] = []

    def handler(value: int) -> None:
        calls.append("handler")

    def around(delivery: fs.Delivery, call_next: Any) -> Any:
        calls.append("before")
        return call_next()

    run_agent(handler, [1], middleware=[around])
    threaded(app_of(handler, middleware=[around]), [1], lambda stats: stats["accepted"] == 1)

    assert calls == ["before", "handler"] * 2


def test_a_def_batch_runs_in_a_thread():
    names: list[str] = []

    def handler(rows: fs.Records[int]) -> None:
        names.append(threading.current_thread().name)

    threaded(app_of(handler, batch=fs.Batch(2, within=0.01)), [1, 2], lambda stats: stats["accepted"] == 2)

    assert names
    assert all(name.startswith("agent") for name in names)


def test_what_a_def_batch_works_on_at_the_drain_deadline_is_not_given_back_but_accepted_when_it_ends():
    begun, free = threading.Event(), threading.Event()

    def handler(rows: fs.Records[int]) -> None:
        begun.set()
        free.wait(LIMIT_S)

    async def look(runtime: Any) -> dict[str, float]:
        await asyncio.to_thread(begun.wait, LIMIT_S)
        await runtime._pool.cancel()
        await asyncio.sleep(0)
        seen = runtime.stats()
        free.set()
        await until(runtime.stats, good=lambda stats: stats["accepted"] == 1)
        return seen

    app = app_of(handler, batch=fs.Batch(2, within=0.01))
    seen, stats = threaded(app, [1], lambda stats: stats["running"] == 1, look)

    assert (seen["running"], seen["outstanding"], seen["released"]) == (1, 1, 0)
    assert (stats["accepted"], stats["cancelled"]) == (1, 0)
