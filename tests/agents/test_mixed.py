"""All kinds of agents over one topic on embedded, with random outcomes: every record ends once in each group."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import flowshare as fs
from tests.agents.agents_kit import positions

RECORDS = 1500
LIMIT_S = 60


class Failure(Exception):
    """Error that the handlers raise."""


def make_app(path: Path, seed: int) -> fs.App:  # noqa: C901 - three agents and the dice they share
    dice = random.Random(seed)
    app = fs.App("mixed", broker=f"embedded://{path}/broker")
    numbers = app.topic("numbers", value_type=int)
    retry = fs.Retry(max_attempts=50, delay=fs.exponential(0.01, cap=0.1))

    def outcome(value: int) -> int:
        roll = dice.random()
        if roll < 0.05:
            raise Failure
        if roll < 0.08:
            raise fs.Release(delay=dice.choice((0, 0.1)))
        if roll < 0.10:
            raise fs.Reject("no")
        return value

    @app.share_agent(numbers, concurrency=20, timeout=0.3, retry=retry, sink=[app.topic("out")])
    async def one_by_one(value: int) -> int:
        if dice.random() < 0.003:
            await asyncio.Event().wait()  # the timeout ends it
        return outcome(value)

    @app.share_agent(numbers, concurrency=4, retry=retry)
    def in_threads(value: int) -> None:
        outcome(value)

    @app.share_agent(numbers, batch=fs.Batch(50, within=0.05), concurrency=3, retry=retry)
    async def in_batches(rows: fs.Records[int]) -> None:
        for row in rows:
            roll = dice.random()
            if roll < 0.02:
                rows.reject(row, "no")
            elif roll < 0.05:
                rows.release(row, delay=0.05)
        if dice.random() < 0.1:
            raise Failure

    return app


async def run_until_done(app: fs.App) -> dict[str, tuple[float, float]]:
    async with app.running():
        await asyncio.gather(*(app.topic("numbers", value_type=int).send(value=n) for n in range(RECORDS)))
        async with asyncio.timeout(LIMIT_S):
            while True:
                rows = await app.host.service.call(lambda: positions(app.host))
                if [row.backlog for row in rows] == [0, 0, 0]:
                    break
                await asyncio.sleep(0)
        stats = {name: runtime.stats() for name, runtime in app.host.runtimes.items()}
    return {name: (one["accepted"], one["dead_lettered"]) for name, one in stats.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_record_ends_once_in_each_group_whatever_its_handlers_do(seed: int, tmp_path: Path) -> None:
    ended = asyncio.run(run_until_done(make_app(tmp_path, seed)))

    assert {name: sum(counts) for name, counts in ended.items()} == dict.fromkeys(ended, RECORDS)
    assert all(rejected > 0 for _, rejected in ended.values())
