"""Functions around every handler call: logging, tracing, metrics, clean-up.

A middleware takes the delivery (for batch agents the `Records`) and `call_next`, and returns what `call_next` gave:

    @app.middleware
    async def timed(delivery, call_next):
        with timer(delivery.agent):
            return await call_next()

An `async def` middleware runs on the handler loop, around handlers of both kinds; a `def` handler runs in its thread
meanwhile, in the middleware's context. A plain `def` middleware stands around `def` handlers only: it calls
`call_next()` without await and gets its result, in the handler's thread. Around an `async def` handler a plain
middleware is refused: it would end before the handler begins.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import queue
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context, copy_context
from typing import Any

from flowshare.agents.handler.awaiting import awaited, awaited_on, dispose, gives_coroutine, is_awaitable
from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import named

Middleware = Callable[[Any, Callable[[], Any]], Any]


def check(agent: str, middleware: Sequence[Middleware], *, is_async: bool = False) -> None:
    """Check that each middleware fits the handler. is_async: the handler is an `async def`. Raises: UsageError."""
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
    except ValueError:  # a callable of C has no signature
        return True
    return True


def _awaits(middleware: Middleware) -> bool:
    """Tell if a call of the middleware returns an awaitable.

    Such as an `async def`, also below a decorator, or as the `__call__` of an object.
    """
    try:
        return _known_to_await(middleware)
    except TypeError:  # the middleware has no hash
        return _is_seen_to_await(middleware)


def _is_seen_to_await(middleware: Middleware) -> bool:
    return gives_coroutine(middleware) or gives_coroutine(inspect.unwrap(middleware))


_known_to_await = functools.lru_cache(maxsize=256)(_is_seen_to_await)  # asked for each record


async def call_async(middleware: Sequence[Middleware], subject: Any, handler: Callable[[], Awaitable[Any]]) -> Any:
    """Call an `async def` handler through its middleware."""

    async def step(index: int) -> Any:
        if index == len(middleware):
            return await awaited(handler())
        return await awaited(middleware[index](subject, functools.partial(step, index + 1)))

    return await step(0)


def call_sync(
    middleware: Sequence[Middleware],
    subject: Any,
    handler: Callable[[], Any],
    loop: asyncio.AbstractEventLoop | None = None,
) -> Any:
    """Call a `def` handler through its middleware, in this thread.

    loop: where `async def` middleware runs, and where an awaitable that the handler returns is awaited; None: this is
    that loop's thread, and the caller awaits. Raises: UsageError for a plain middleware around an awaitable.
    """

    def step(index: int) -> Any:
        if index == len(middleware):
            result = handler()
            if result is None or not is_awaitable(result):
                return result
            _refuse_plain(middleware, result)
            return result if loop is None else awaited_on(loop, result)
        one, call_next = middleware[index], functools.partial(step, index + 1)
        if _awaits(one):
            assert loop is not None
            return _on_loop(loop, functools.partial(one, subject), call_next)
        result = one(subject, call_next)
        if is_awaitable(result):
            _refuse_plain([one], result)
        return result

    return step(0)


async def call_inline(middleware: Sequence[Middleware], subject: Any, handler: Callable[[], Any]) -> Any:
    """Call a `def` handler through its middleware on this loop, as the test kit does. Raises: UsageError.

    The middleware does not see context variables that the handler sets, as with a thread.
    """
    if not any(map(_awaits, middleware)):
        return await awaited(copy_context().run(call_sync, middleware, subject, handler))
    first, *others = middleware
    if not _awaits(first):
        raise UsageError(
            f"in the test kit the plain middleware {getattr(first, '__name__', first)!r} cannot stand outside of an "
            "async one around a plain def handler: declare the async one first"
        )
    return await awaited(first(subject, lambda: call_inline(others, subject, handler)))


def _refuse_plain(middleware: Sequence[Middleware], result: Any) -> None:
    """Refuse plain middleware around an awaitable, as it would see neither errors nor the end. Raises: UsageError."""
    plain = next((one for one in middleware if not _awaits(one)), None)
    if plain is None:
        return
    dispose(result)
    raise UsageError(
        f"the plain middleware {getattr(plain, '__name__', plain)!r} stands around a {type(result).__name__} that is "
        "still to be awaited, of which it would see neither the errors nor the end: write `async def` and `return "
        "await call_next()`, which stands around plain handlers, too"
    )


def _on_loop(
    loop: asyncio.AbstractEventLoop, around: Callable[[Callable[[], Awaitable[Any]]], Any], inner: Callable[[], Any]
) -> Any:
    """Run an async middleware on a loop and return its result; each time it awaits `call_next`, run `inner` in this
    thread.

    `inner` runs in the middleware's context: a context variable or span bound there is bound in `inner`, too.
    """
    asked: queue.SimpleQueue[tuple[asyncio.Future[Any], Context] | None] = queue.SimpleQueue()

    async def call_next() -> Any:
        wanted: asyncio.Future[Any] = loop.create_future()
        asked.put((wanted, copy_context()))
        return await wanted

    async def run() -> tuple[Any, BaseException | None]:
        try:
            return await awaited(around(call_next)), None
        except (SystemExit, KeyboardInterrupt) as error:  # a task that ends by one of them ends its loop, too
            return None, error

    running = asyncio.run_coroutine_threadsafe(run(), loop)
    running.add_done_callback(lambda _: asked.put(None))  # also when the task is cancelled before its first step
    while (one := asked.get()) is not None:
        wanted, context = one
        try:
            result = context.run(inner)
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
        wanted.set_exception(RuntimeError(f"the handler raised {named(error)}"))  # no future carries StopIteration
    else:
        wanted.set_exception(error)
