"""Functions around every handler call: logging, tracing, metrics, clean-up.

A middleware takes the delivery (for batch agents the `Records`) and `call_next`, and returns what `call_next` gave:

    @app.middleware
    async def timed(delivery, call_next):
        with timer(delivery.agent):
            return await call_next()

An `async def` one runs on the handler loop, around handlers of both kinds; a `def` handler runs in its thread
meanwhile. A plain `def` one stands around `def` handlers only: it calls `call_next()` without await and gets its
result, in the handler's thread. Around an `async def` handler it is refused: it would be over before that begins.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import named

Middleware = Callable[[Any, Callable[[], Any]], Any]


def check(agent: str, middleware: Sequence[Middleware], *, is_async: bool = False) -> None:
    """Raise UsageError for a middleware that cannot stand around the handler; is_async: which is an `async def`."""
    for one in middleware:
        if not callable(one):
            raise UsageError(f"agent {agent}: middleware {one!r} cannot be called")
        if not _takes_two(one):
            raise UsageError(
                f"agent {agent}: middleware {getattr(one, '__name__', one)!r} must take two arguments: "
                "`async def middleware(delivery, call_next)`, and `return await call_next()`"
            )
        if is_async and not _awaits(one):
            raise UsageError(
                f"agent {agent}: the plain middleware {getattr(one, '__name__', one)!r} cannot stand around an `async "
                "def` handler, of which it would see neither the errors nor the end: write `async def` and `return "
                "await call_next()`, which stands around plain handlers, too"
            )


def _takes_two(middleware: Middleware) -> bool:
    try:
        inspect.signature(middleware).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a callable of C: it does not say
        return True
    return True


def _awaits(middleware: Middleware) -> bool:
    """Whether calling it gives something to await: an `async def`, one below a decorator, an object that is called."""
    called = inspect.unwrap(middleware)
    return inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(getattr(called, "__call__", None))  # noqa: B004


async def call_async(middleware: Sequence[Middleware], subject: Any, handler: Callable[[], Awaitable[Any]]) -> Any:
    """Call an `async def` handler through its middleware."""

    async def step(index: int) -> Any:
        if index == len(middleware):
            return await handler()
        result = middleware[index](subject, functools.partial(step, index + 1))
        return await result if inspect.isawaitable(result) else result

    return await step(0)


def call_sync(
    middleware: Sequence[Middleware],
    subject: Any,
    handler: Callable[[], Any],
    loop: asyncio.AbstractEventLoop | None = None,
) -> Any:
    """Call a `def` handler through its middleware, in this thread; loop: where those run that are `async def`."""

    def step(index: int) -> Any:
        if index == len(middleware):
            return handler()
        one, call_next = middleware[index], functools.partial(step, index + 1)
        if not inspect.iscoroutinefunction(one):
            return one(subject, call_next)
        assert loop is not None
        return _on_loop(loop, functools.partial(one, subject), call_next)

    return step(0)


async def call_inline(middleware: Sequence[Middleware], subject: Any, handler: Callable[[], Any]) -> Any:
    """Call a `def` handler through its middleware on this loop, as the test kit does. Raises: UsageError."""
    if not any(map(inspect.iscoroutinefunction, middleware)):
        return call_sync(middleware, subject, handler)
    first, *others = middleware
    if not inspect.iscoroutinefunction(first):
        raise UsageError(
            f"in the test kit the plain middleware {getattr(first, '__name__', first)!r} cannot stand outside of an "
            "async one around a plain def handler: declare the async one first"
        )
    return await first(subject, lambda: call_inline(others, subject, handler))


def _on_loop(
    loop: asyncio.AbstractEventLoop, around: Callable[[Callable[[], Awaitable[Any]]], Any], inner: Callable[[], Any]
) -> Any:
    """Run an async middleware on a loop and, each time it awaits `call_next`, `inner` in this thread; its result."""
    asked: queue.SimpleQueue[asyncio.Future[Any] | None] = queue.SimpleQueue()

    async def call_next() -> Any:
        wanted: asyncio.Future[Any] = loop.create_future()
        asked.put(wanted)
        return await wanted

    async def run() -> tuple[Any, BaseException | None]:
        try:
            return await around(call_next), None
        except (SystemExit, KeyboardInterrupt) as error:  # a task that ends by one of them ends its loop, too
            return None, error

    running = asyncio.run_coroutine_threadsafe(run(), loop)
    running.add_done_callback(lambda _: asked.put(None))  # also when it is cancelled before its first step
    while (wanted := asked.get()) is not None:
        try:
            result = inner()
        except BaseException as error:  # noqa: BLE001 - the middleware sees what the handler raised
            loop.call_soon_threadsafe(_answer, wanted, None, error)
        else:
            loop.call_soon_threadsafe(_answer, wanted, result, None)
    result, passed = running.result()
    if passed is not None:
        raise passed
    return result


def _answer(wanted: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if wanted.done():  # the middleware was cancelled
        return
    if error is None:
        wanted.set_result(result)
    elif isinstance(error, StopIteration):
        wanted.set_exception(RuntimeError(f"the handler raised {named(error)}"))  # a future cannot carry it
    else:
        wanted.set_exception(error)
