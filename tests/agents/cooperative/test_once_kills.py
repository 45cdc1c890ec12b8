"""Workers of a cooperative group with exactly_once=True on an embedded path, of which some are killed: each record's
outputs are there once, and none is missing."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import orjson
import pytest

import flowshare as fs
from tests.agents.cooperative.test_churn import LEFT_S, RECORDS, Workers, produce

KILLS = 3
WORKERS = 3


async def outputs(broker: str, wanted: int) -> list[dict[str, object]]:
    """All that lies in the topic of outputs, as far as it comes in time."""
    found: list[dict[str, object]] = []
    async with (
        fs.Broker(broker) as one,
        fs.CooperativeConsumer(one, group_id=f"reader {time.monotonic_ns()}") as reader,
    ):
        reader.subscribe(["paid"])
        quiet = 0
        while len(found) < wanted or quiet < 2:  # and nothing comes behind them
            records = await reader.poll(2.0)
            for record in records:
                found.append(orjson.loads(record.value or b""))
                reader.commit(record)
            quiet = 0 if records else quiet + 1
            if quiet > 10:
                break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("order", ["key", "partition"])
def test_outputs_of_workers_that_are_killed_are_there_once_and_none_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    monkeypatch.setenv("OUTPUT_ORDER", order)
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng = random.Random(seed)
    workers = Workers(tmp_path, rng, "once_worker.py")
    asyncio.run(produce(workers.broker))
    try:
        for _ in range(WORKERS):
            workers.start()
        for _ in range(KILLS):
            begin_by, begun = time.monotonic() + LEFT_S, _begun(workers)
            while (
                len(workers.at_work()) < 2 or _begun(workers) < begun + RECORDS // 8
            ) and time.monotonic() < begin_by:
                time.sleep(0.02)
            workers.end(kill=True)
            workers.start()
        found = asyncio.run(outputs(workers.broker, 2 * RECORDS))
    finally:
        workers.end_all()

    judge(found)
    print(f"{_begun(workers) - RECORDS} handlers ran again")


def _begun(workers: Workers) -> int:
    journals = [workers.journal(number) for number in range(workers.started)]
    return sum(one.stat().st_size for one in journals if one.exists())


def judge(found: list[dict[str, object]]) -> None:
    for sent in (False, True):
        places = Counter((one["partition"], one["offset"]) for one in found if bool(one.get("sent")) is sent)
        assert [place for place, count in places.items() if count > 1] == [], "outputs that are there twice"
        assert len(places) == RECORDS, f"outputs of {RECORDS - len(places)} records are missing"
    by_key: dict[object, list[int]] = defaultdict(list)
    for one in found:
        if one.get("sent"):  # what is returned has no key, and goes to any partition
            by_key[one["key"]].append(int(str(one["offset"])))
    for key, offsets in by_key.items():
        assert offsets == sorted(offsets), f"outputs of {key} are out of order"
