"""The end of a workers backend: every part is closed, whatever fails or gives up on the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowshare.backend.fleet import WorkersBackend
from flowshare.backend.url import parse_broker
from tests.waiting import until

pytestmark = pytest.mark.asyncio

IN_ORDER = ["worker leaves", "listener", "worker", "workers", "cluster"]


class Part:
    """A part of a backend; notes its end in `ends`, and fails if it is the `bad` one."""

    def __init__(self, name: str, ends: list[str], bad: str, may: asyncio.Event) -> None:
        self._name, self._ends, self._bad, self._may = name, ends, bad, may

    async def leave(self) -> None:
        """Leave, when the test lets it."""
        await self._may.wait()
        self._end(f"{self._name} leaves")

    async def close(self) -> None:
        """Close."""
        self._end(self._name)

    def _end(self, name: str) -> None:
        self._ends.append(name)
        if name == self._bad:
            raise OSError(f"{name} failed")


def opened(ends: list[str], *, bad: str = "", may: asyncio.Event | None = None) -> WorkersBackend:
    """Return an open backend of such parts. may: lets the worker leave; None: at once."""
    if may is None:
        may = asyncio.Event()
        may.set()
    backend: Any = WorkersBackend(parse_broker("kafka://a:1?share=workers"))
    for field, name in (
        ("worker", "worker"),
        ("_listener", "listener"),
        ("_workers", "workers"),
        ("_cluster", "cluster"),
    ):
        setattr(backend, field, Part(name, ends, bad, may))
    return backend


@pytest.mark.parametrize("bad", IN_ORDER)
async def test_a_part_that_fails_to_close_keeps_no_other_one_open(bad: str) -> None:
    ends = list[str]()
    backend = opened(ends, bad=bad)

    with pytest.raises(OSError, match=f"^{bad} failed$"):
        await backend.close()
    await backend.close()

    assert ends == IN_ORDER


async def test_a_caller_that_gives_up_does_not_cut_the_closing_short_and_a_second_one_waits_for_it() -> None:
    ends, may = list[str](), asyncio.Event()
    backend = opened(ends, may=may)
    hasty = asyncio.create_task(backend.close())
    await asyncio.sleep(0)
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    second = asyncio.create_task(backend.close())
    await asyncio.sleep(0)
    assert ends == []

    may.set()
    await second

    assert ends == IN_ORDER


async def test_a_backend_that_is_opened_again_is_closed_again_though_the_first_closer_gave_up() -> None:
    ends, may = list[str](), asyncio.Event()
    backend: Any = opened(ends, may=may)
    closing = asyncio.ensure_future(backend.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    may.set()
    await until(lambda: ends == IN_ORDER)
    backend.worker = Part("worker again", ends, "", may)

    await backend.close()

    assert ends[-2:] == ["worker again leaves", "worker again"]
