"""Functions around every handler call: logging, tracing, metrics, clean-up.

A middleware takes the delivery (for batch agents the `Records`) and `call_next`, and returns what `call_next` gave:

    @app.middleware
    async def timed(delivery, call_next):
        with timer(delivery.agent):
            return await call_next()

For `def` handlers, which run in threads, it is a plain `def` that calls `call_next()` without await.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowshare.agents.errors import UsageError

Middleware = Callable[[Any, Callable[[], Any]], Any]


def check(agent: str, middleware: Sequence[Middleware], *, handler_is_async: bool) -> None:
    """Raise UsageError for a middleware that cannot stand around the handler."""
    for one in middleware:
        if not callable(one):
            raise UsageError(f"agent {agent}: middleware {one!r} cannot be called")
        if not _takes_two(one):
            raise UsageError(
                f"agent {agent}: middleware {getattr(one, '__name__', one)!r} must take two arguments: "
                "`async def middleware(delivery, call_next)`, and `return await call_next()`"
            )
        if inspect.iscoroutinefunction(one) and not handler_is_async:
            raise UsageError(
                f"agent {agent}: its handler is a plain def and runs in threads, so the async middleware "
                f"{getattr(one, '__name__', one)!r} cannot stand around it; write the middleware as a plain def"
            )


def _takes_two(middleware: Middleware) -> bool:
    try:
        inspect.signature(middleware).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a callable of C: it does not say
        return True
    return True


async def call_async(middleware: Sequence[Middleware], subject: Any, handler: Callable[[], Awaitable[Any]]) -> Any:
    """Call an `async def` handler through its middleware."""

    async def step(index: int) -> Any:
        if index == len(middleware):
            return await handler()
        result = middleware[index](subject, functools.partial(step, index + 1))
        return await result if inspect.isawaitable(result) else result

    return await step(0)


def call_sync(middleware: Sequence[Middleware], subject: Any, handler: Callable[[], Any]) -> Any:
    """Call a `def` handler through its middleware."""

    def step(index: int) -> Any:
        if index == len(middleware):
            return handler()
        return middleware[index](subject, functools.partial(step, index + 1))

    return step(0)
