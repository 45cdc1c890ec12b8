"""Handlers that do not look like what they are: an `async def` behind a plain wrapper, and results that nobody ran."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import io
import itertools
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from contextvars import ContextVar
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.handler.awaiting import refusal_of_unrun
from flowshare.errors import OptionError, UsageError
from tests.agents.agents_kit import run_agent, run_app
from tests.agents.test_threads import app_of, threaded

ONCE = fs.Retry(max_attempts=1)
BOUND: ContextVar[str] = ContextVar("bound", default="nothing")


def wrapped(fun: Callable[..., Any]) -> Callable[..., Any]:
    """As decorators of libraries do: a plain def that gives what the function gives."""

    @functools.wraps(fun)
    def around(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    return around


class Called:
    def __init__(self, ran: list[Any]) -> None:
        self.ran = ran

    async def __call__(self, value: int) -> None:
        await asyncio.sleep(0)
        self.ran.append(value)


class Later:
    """Something to await that is no coroutine."""

    def __init__(self, ran: list[Any]) -> None:
        self.ran = ran

    def __await__(self) -> Iterator[None]:
        yield
        self.ran.append("later")


def hidden(ran: list[Any]) -> dict[str, Callable[..., Any]]:
    """The same `async def` in all the ways in which it looks like something else."""

    async def handler(value: int) -> None:
        await asyncio.sleep(0)
        ran.append(value)

    async def with_more(before: str, value: int) -> None:
        await handler(value)

    async def forgets_to_await(value: int) -> Any:
        return handler(value)

    def makes_something_else(value: int) -> Any:
        return Later(ran)

    return {
        "wrapped": wrapped(handler),
        "twice": wrapped(wrapped(handler)),
        "partial": functools.partial(with_more, "x"),
        "partial of wrapped": functools.partial(wrapped(handler)),
        "wrapped partial": wrapped(functools.partial(with_more, "x")),
        "object": Called(ran),
        "forgets to await": forgets_to_await,
        "no coroutine": makes_something_else,
    }


NAMES = sorted(hidden([]))


@pytest.mark.parametrize("options", [{}, {"at_most_once": True}, {"order": "key"}], ids=["plain", "once", "order"])
@pytest.mark.parametrize("name", NAMES)
def test_an_async_handler_that_does_not_look_like_one_is_awaited(name: str, options: dict[str, Any]):
    ran: list[Any] = []
    app = fs.App("t")
    app.share_agent(app.topic("in", value_type=int), name="agent", **options)(hidden(ran)[name])

    seen = run_app(app, [1, 2])

    assert len(ran) == 2
    assert seen.outcomes == ["accepted"] * 2


@pytest.mark.parametrize("name", ["wrapped", "no coroutine"])
@pytest.mark.parametrize("options", [{}, {"order": "key"}], ids=["plain", "order"])
def test_in_a_thread_it_is_awaited_on_the_loop_and_what_it_raises_counts(name: str, options: dict[str, Any]):
    ran: list[Any] = []
    app = fs.App("t", broker="memory://")
    app.share_agent(app.topic("in", value_type=int), name="agent", **options)(hidden(ran)[name])

    threaded(app, [1, 2], lambda stats: stats["accepted"] == 2)

    assert len(ran) == 2


def test_the_outcome_in_a_thread_is_that_of_what_was_awaited():
    threads: list[bool] = []

    async def handler(value: int) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        assert fs.current_delivery().offset == value
        if value == 1:
            raise fs.Reject("no")
        return fs.Send("out", value)

    app = app_of(wrapped(handler), concurrency=1)
    _, stats = threaded(app, [0, 1], lambda stats: stats["accepted"] == 1 and stats["dead_lettered"] == 1)

    assert stats["sent"] == 1
    assert threads == [True, True]  # on the loop, not in its thread


def test_a_future_of_a_thread_is_waited_for():
    ran: list[Any] = []
    with concurrent.futures.ThreadPoolExecutor(1) as executor:

        def handler(value: int) -> Any:
            return executor.submit(ran.append, value)

        seen = run_agent(handler, [1])

    assert (ran, seen.outcomes) == ([1], ["accepted"])


def test_a_batch_behind_a_plain_wrapper_is_awaited_inline_and_in_threads():
    ran: list[Any] = []

    async def handler(rows: fs.Records[int]) -> None:
        await asyncio.sleep(0)
        ran.extend(rows.values())

    run_agent(wrapped(handler), [1, 2], batch=fs.Batch(2, within=0.01))
    threaded(app_of(wrapped(handler), batch=fs.Batch(1)), [3], lambda stats: stats["accepted"] == 1)

    assert ran == [1, 2, 3]


def test_cooperative_and_kmq_agents_await_what_is_hidden_too():
    ran: list[Any] = []
    app = fs.App("t")
    topic = app.topic("in", value_type=int)
    handlers = hidden(ran)
    app.cooperative_agent(topic, name="coop")(handlers["wrapped"])
    app.kmq_agent(topic, name="queue", markers="marks")(handlers["partial"])

    async def main() -> None:
        async with fs.testing.harness(app) as bus:
            await bus.send("in", 1)
            await bus.run_until_idle()

    fs.testing.run(main())
    assert ran == [1, 1]


def test_the_log_says_once_what_a_plain_wrapper_costs(caplog: pytest.LogCaptureFixture):
    run_agent(wrapped(hidden([])["wrapped"]), [1, 2])

    assert [one.message for one in caplog.records if "returned a coroutine" in one.message] == [
        "agent agent: its handler is a plain def that returned a coroutine, which is awaited on the handler loop while "
        "a thread waits, so that `timeout` cannot end it. Make what stands outermost around the handler an `async def`."
    ]


async def nothing() -> None:
    return None


async def yields(value: int) -> AsyncIterator[int]:
    yield value


def yields_plainly(value: int) -> Iterator[int]:
    yield value


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: [nothing(), nothing()], "list in which a coroutine is still to be awaited"),
        (lambda: {"a": nothing()}, "dict in which a coroutine is still to be awaited"),
        (lambda: yields(1), "the handler yields"),
        (lambda: yields_plainly(1), "the handler yields"),
        (lambda: map(print, [1]), "returned a map, of which nothing ran"),
    ],
    ids=["list", "dict", "async generator", "generator", "map"],
)
@pytest.mark.parametrize("options", [{}, {"at_most_once": True}, {"batch": fs.Batch(1)}])
def test_what_nobody_could_run_is_never_an_accept(made: Callable[[], Any], why: str, options: dict[str, Any]):
    def one(value: Any) -> Any:
        return made()

    def several(rows: fs.Records[Any]) -> Any:
        return made()

    seen = run_agent(several if "batch" in options else one, [1], retry=ONCE, **options)

    assert seen.report.rejected == 1
    assert why in seen.dead[0].reason


@pytest.mark.parametrize(
    "made",
    [
        map(print, [1]),
        filter(print, [1]),
        zip(map(print, [1])),
        enumerate(map(print, [1])),
        reversed("ab"),
        itertools.starmap(print, [(1,)]),
        itertools.chain.from_iterable([[1]]),
        itertools.islice(map(print, [1]), 1),
    ],
    ids=lambda made: type(made).__name__,
)
def test_what_the_language_runs_only_when_somebody_goes_through_it_has_not_run(made: Any):
    assert f"returned a {type(made).__name__}, of which nothing ran" in (refusal_of_unrun(made) or "")


class Found:
    """Rows of a query that was run, as a driver gives them."""

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        raise StopIteration


class Streamed:
    """Rows of a query that was run, as a driver for asyncio gives them."""

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        raise StopAsyncIteration


def cursor() -> sqlite3.Cursor:
    with closing(sqlite3.connect(":memory:")) as db:
        return db.execute("create table done (it)")


RAN: dict[str, Callable[[], Any]] = {
    "cursor": cursor,
    "file": lambda: io.StringIO("written"),
    "rows": Found,
    "rows to await": Streamed,
    "iterator of a list": lambda: iter([1]),
}


@pytest.mark.parametrize("made", RAN.values(), ids=list(RAN))
@pytest.mark.parametrize("options", [{}, {"batch": fs.Batch(1)}])
def test_what_can_be_gone_through_and_has_run_already_is_an_accept_with_a_warning(
    made: Callable[[], Any], options: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    def one(value: Any) -> Any:
        return made()

    def several(rows: fs.Records[Any]) -> Any:
        return made()

    seen = run_agent(several if "batch" in options else one, [1], retry=ONCE, **options)

    assert seen.outcomes == ["accepted"]
    assert f"returned a value of type {type(made()).__name__} but has no sink" in caplog.text


@pytest.mark.parametrize("made", [yields, yields_plainly, lambda value: map(print, [value])])
def test_a_sink_takes_nothing_that_nobody_ran_either(made: Callable[[int], Any]):
    def handler(value: int) -> Any:
        return made(value)

    seen = run_agent(handler, [1], retry=ONCE, sink=["out"])

    assert (seen.report.rejected, seen.out) == (1, [])


def test_what_gives_itself_to_await_for_ever_is_refused():
    class Again:
        def __await__(self) -> Iterator[None]:
            yield from ()
            return self  # type: ignore[return-value]

    def handler(value: int) -> Any:
        return Again()

    seen = run_agent(handler, [1], retry=ONCE)

    assert "gave something to await 8 times over" in seen.dead[0].reason


def test_generators_below_a_partial_are_refused_at_import():
    async def handler(more: int, value: int) -> AsyncIterator[int]:
        yield value

    with pytest.raises(fs.errors.AnnotationError, match="the handler yields"):
        run_agent(functools.partial(handler, 1))


def test_a_plain_middleware_around_something_to_await_is_refused_in_the_kit_and_in_threads():
    ran: list[Any] = []

    def plain(delivery: fs.Delivery, call_next: Any) -> Any:
        return call_next()

    async def handler(value: int) -> None:
        ran.append(value)

    seen = run_agent(wrapped(handler), [1], middleware=[plain], retry=ONCE)
    app = app_of(wrapped(handler), middleware=[plain], retry=ONCE)
    threaded(app, [1], lambda stats: stats["dead_lettered"] == 1)

    assert "plain middleware 'plain' stands around a coroutine" in seen.dead[0].reason
    assert ran == []


def test_a_middleware_whose_coroutine_is_hidden_stands_around_plain_handlers():
    calls: list[Any] = []

    class Timed:
        async def __call__(self, delivery: fs.Delivery, call_next: Any) -> Any:
            calls.append("before")
            return await call_next()

    def handler(value: int) -> None:
        calls.append(value)

    run_agent(handler, [1], middleware=[Timed()])
    threaded(app_of(handler, middleware=[Timed()]), [2], lambda stats: stats["accepted"] == 1)

    assert calls == ["before", 1, "before", 2]


def test_a_plain_middleware_that_gives_a_coroutine_is_never_an_accept():
    async def real(delivery: fs.Delivery, call_next: Any) -> Any:
        return await call_next()

    def handler(value: int) -> None: ...

    seen = run_agent(handler, [1], middleware=[lambda delivery, call_next: real(delivery, call_next)], retry=ONCE)

    assert "write `async def`" in seen.dead[0].reason


def bound_by_middleware(seen: list[str]) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    async def around(subject: Any, call_next: Any) -> Any:
        token = BOUND.set("by middleware")
        try:
            with fs.tracing.use("00-" + "a" * 32 + "-" + "b" * 16 + "-01"):
                result = await call_next()
            seen.append(f"after: {BOUND.get()}")
            return result
        finally:
            BOUND.reset(token)

    def note() -> None:
        seen.append(f"{BOUND.get()}, {str(fs.tracing.traceparent())[:6]}")
        BOUND.set("by the handler")

    def one(value: int) -> None:
        note()

    def several(rows: fs.Records[int]) -> None:
        note()

    return around, one, several


@pytest.mark.parametrize("batch", [None, fs.Batch(1)], ids=["one", "batch"])
def test_what_an_async_middleware_binds_a_def_handler_sees_in_the_kit_and_in_threads(batch: fs.Batch | None):
    seen: list[str] = []
    around, one, several = bound_by_middleware(seen)
    handler = one if batch is None else several

    run_agent(handler, [1], middleware=[around], batch=batch)
    threaded(app_of(handler, middleware=[around], batch=batch), [1], lambda stats: stats["accepted"] == 1)

    assert seen == ["by middleware, 00-aaa", "after: by middleware"] * 2


def test_a_retry_delay_and_a_codec_that_are_async_are_refused_at_import():
    async def delay(attempt: int) -> float:
        return 1.0

    class Codec:
        async def decode(self, raw: bytes, headers: Any) -> Any:
            return raw

        def encode(self, value: Any) -> bytes:
            return bytes(value)

    with pytest.raises(OptionError, match="a plain function"):
        fs.Retry(delay=delay)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"decode of .* is an `async def`"):
        fs.App("t").topic("in", value_codec=Codec())


def test_a_pipelines_function_of_which_nothing_ran_fails_its_batch():
    app = fs.App("t")

    async def write(batch: Any) -> None: ...

    pipeline = app.share_pipeline("in", name="one")(wrapped(write))

    with pytest.raises(UsageError, match="returned a coroutine, so that nothing of it ran for this batch"):
        pipeline.refuse_unrun(pipeline.fun(None))
    with pytest.raises(UsageError, match="cannot be async and cannot yield"):
        app.share_pipeline("in", name="two")(yields)
    pipeline.refuse_unrun(None)
    for ran in RAN.values():
        pipeline.refuse_unrun(ran())
