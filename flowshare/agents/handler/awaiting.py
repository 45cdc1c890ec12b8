"""Awaitable results: a function of the application returned something that must still be awaited.

An `async def` below a plain wrapper (a decorator, `functools.partial`, a `def` that returns a coroutine) looks like a
plain function, and its call has done nothing yet. An awaitable is awaited before its result means anything; a result
that nobody could run (a generator, coroutines in a list) is refused. An unrun handler is never an accept.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import itertools
from collections.abc import Callable, Generator
from typing import Any, Final

from flowshare.agents.handler.errors import UsageError
from flowshare.agents.handler.texts import said

DEPTH_MAX: Final = 8
"""Limit of awaitables that give awaitables in turn."""
LOOKED_AT_MAX: Final = 100
"""Most elements of a returned list that are looked at."""
_LAZY: Final = (map, filter, zip, enumerate, reversed)
"""Iterators that call nothing before they are iterated; those of `itertools` are such, too."""


class _SentLater:
    """Result of `Delivery.send`, which refuses to be awaited: the record is not sent yet."""

    def __await__(self) -> Generator[object, None, None]:
        raise UsageError(
            "delivery.send(…) is not awaited: it only notes the record, which goes out when the handler ends in an "
            "accept; leave `await` out (what is to be confirmed at once is sent by its topic: await topic.send(…))"
        )


SENT_LATER: Final = _SentLater()
"""Result of `Delivery.send`, ignored when a handler returns it."""
_NEVER: Final = frozenset({bytes, str, int, bool, float, dict, list, tuple, type(SENT_LATER)})
"""The most frequent types of results; none of them can be awaited."""


def function_below(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that is called in the end: below `functools.partial`, and an object's `__call__`."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    return fun if inspect.isroutine(fun) else getattr(fun, "__call__", fun)  # noqa: B004 - its kind, not if it is


def gives_coroutine(fun: Callable[..., Any]) -> bool:
    """Tell if a call is known to return a coroutine: `async def`, also below `functools.partial` or as `__call__`."""
    return inspect.iscoroutinefunction(fun) or inspect.iscoroutinefunction(function_below(fun))


def is_awaitable(result: Any) -> bool:
    """Tell if a result must still be awaited; a thread's future (`concurrent.futures`) counts."""
    return type(result) not in _NEVER and (inspect.isawaitable(result) or isinstance(result, concurrent.futures.Future))


async def awaited(result: Any) -> Any:
    """Await a result to its end. Raises: its errors; UsageError after `DEPTH_MAX` awaitables in a row."""
    for _ in range(DEPTH_MAX):
        if not is_awaitable(result):
            return result
        result = await (asyncio.wrap_future(result) if isinstance(result, concurrent.futures.Future) else result)
    dispose(result)
    raise UsageError(
        f"what was returned gave something to await {DEPTH_MAX} times over, the last one a {type(result).__name__}: "
        "await it where it is made"
    )


def awaited_on(loop: asyncio.AbstractEventLoop, result: Any) -> Any:
    """Await a result on a loop, in this thread's context, while this thread waits."""

    async def run() -> tuple[Any, BaseException | None]:
        try:
            return await awaited(result), None
        except BaseException as error:  # noqa: BLE001 - its thread raises it: some would end the loop, or change on the way
            return None, error

    made, error = asyncio.run_coroutine_threadsafe(run(), loop).result()
    if error is not None:
        raise error
    return made


def dispose(result: Any) -> None:
    """Close a result that nobody awaits."""
    if inspect.iscoroutine(result):
        result.close()


def refusal_of_unrun(result: Any) -> str | None:
    """Say why a result without a sink is no plain value that may be dropped; None: it may."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return (
            "the handler yields, so that nothing of it ran: it is called once per record (or batch) and returns; "
            "return fs.Send(topic, value), or a list of them, to produce several records"
        )
    # Other iterators have run: the cursor of a query, a file.
    if isinstance(result, _LAZY) or type(result).__module__ == "itertools":
        return f"the handler returned a {type(result).__name__}, of which nothing ran: go through it in the handler"
    elements = result.values() if isinstance(result, dict) else result
    if isinstance(elements, (list, tuple, set, frozenset, type({}.values()))):
        unawaited = [one for one in itertools.islice(elements, LOOKED_AT_MAX) if is_awaitable(one)]
        for one in unawaited:
            dispose(one)
        if unawaited:
            return (
                f"the handler returned a {type(result).__name__} in which a {said(type(unawaited[0]).__name__)} is "
                "still to be awaited: await it in the handler (`await asyncio.gather(*all_of_them)`)"
            )
    return None
