"""Tests that handlers' exceptions are not kept after they were reported: their frames may hold much memory, and the
garbage collector runs seldom."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

import flowshare as fs
import flowshare.testing


class Boom(Exception):
    pass


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("options", [{}, {"exactly_once": True}, {"at_most_once": True}, {"dead_letter": None}])
@pytest.mark.parametrize("kind", ["share_agent", "cooperative_agent"])
def test_no_exception_of_a_handler_is_kept_in_a_cycle(kind, options, batch):
    app = fs.App("t", broker="memory://")
    if "at_most_once" not in options:
        options = {**options, "retry": fs.Retry(max_attempts=2, delay=1)}
    if batch and kind == "cooperative_agent":
        pytest.skip("has no batches")

    async def one(value: str) -> None:
        raise Boom

    async def many(values: fs.Records[str]) -> None:
        raise Boom

    getattr(app, kind)("in", **options, **({"batch": fs.Batch(2)} if batch else {}))(many if batch else one)

    async def main() -> int:
        async with fs.testing.harness(app) as bus:
            for _ in range(6):
                await bus.send("in", "x")
            logging.disable(logging.CRITICAL)  # pytest keeps what is logged
            gc.collect()
            gc.disable()
            try:
                await bus.run_until_idle()
                await bus.advance(1)
                return sum(isinstance(one, Boom) for one in gc.get_objects())
            finally:
                gc.enable()
                logging.disable(logging.NOTSET)

    assert asyncio.run(main()) == 0
