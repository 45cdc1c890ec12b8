"""How tests wait: for conditions, by `until` on a loop and `blocking_until` on a thread.

An event or virtual time is better where there is one. What has none is another process, another thread, a socket, a
real broker: these are looked at again and again, and the limit only says when to give up, so that a loaded machine
makes a test slower and not red. Time itself is waited for by `pause` and `blocking_pause`, which take the reason;
nothing else sleeps but handlers that play slow (test_waiting.py looks).
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
What = str | Callable[[], object]

LIMIT_S = 60.0
LOOK_S = 0.005


async def until(
    look: Callable[[], T | Awaitable[T]],
    what: What = "",
    *,
    good: Callable[[T], object] = bool,
    limit_s: float = LIMIT_S,
    look_s: float = LOOK_S,
    or_last: bool = False,
) -> T:
    """Call `look` until its result is good, and return the result. Raises: AssertionError after the limit, with the
    last result.

    or_last: after the limit return the last result, and the caller judges it; for tests that wait to see that nothing
    comes.
    """
    found: Any = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                looked = look()
                found = await looked if inspect.isawaitable(looked) else looked
                if good(found):
                    return found
                await asyncio.sleep(look_s)
    except TimeoutError:
        if or_last:
            return found
        raise AssertionError(_not_within(limit_s, what, found)) from None


def blocking_until(
    look: Callable[[], T],
    what: What = "",
    *,
    good: Callable[[T], object] = bool,
    limit_s: float = LIMIT_S,
    look_s: float = LOOK_S,
    or_last: bool = False,
) -> T:
    """The same on a thread."""
    deadline = time.monotonic() + limit_s
    while not good(found := look()):
        if time.monotonic() > deadline:
            assert or_last, _not_within(limit_s, what, found)
            break
        time.sleep(look_s)
    return found


async def pause(seconds: float, why: str) -> None:
    """Let real time pass, as nothing else is waited for: `why` says what this time is."""
    assert why
    await asyncio.sleep(seconds)


def blocking_pause(seconds: float, why: str) -> None:
    """The same on a thread."""
    assert why
    time.sleep(seconds)


def _not_within(limit_s: float, what: What, found: object) -> str:
    return f"not within {limit_s:g} s: {what() if callable(what) else what}; the last look: {found!r}"
