"""The loop on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from flowshare.testing.virtual import run


def test_what_is_given_to_a_thread_is_done_in_its_place_and_takes_no_virtual_time():
    async def body():
        begun = asyncio.get_running_loop().time()
        found = await asyncio.to_thread(sum, [1, 2])
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 / 0)
        return found, asyncio.get_running_loop().time() - begun

    assert run(body()) == (3, 0.0)
