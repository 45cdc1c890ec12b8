"""Workers of a cooperative group with exactly_once=True on an embedded path, of which some are killed: each record's
outputs are there once, and none is missing."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path

import orjson
import pytest

import flowshare as fs
from flowshare.client.producer.message import Message
from tests.agents.processes import Processes
from tests.sim.seeds import drawn
from tests.waiting import blocking_until

RECORDS = 3_000
KEYS = 80
LEASE_S = 6.0
SCRIPT = str(Path(__file__).with_name("once_worker.py"))
LEFT_S = 180.0
"""How long what is left may take: a lease that has to end, and processes that have to begin."""
KILLS = 3
WORKERS = 3


class Workers(Processes):
    """Processes on one path."""

    def __init__(self, tmp_path: Path, rng: random.Random) -> None:
        super().__init__(tmp_path, f"embedded://{tmp_path / 'path'}")
        self._rng = rng
        self.running: dict[int, subprocess.Popen[bytes]] = {}

    def add(self) -> None:
        number = len(self.started)
        self.running[number] = self.start(SCRIPT, self.url, str(self.journal_of(number)), str(LEASE_S), "0.02")

    def journal_of(self, number: int) -> Path:
        return self.folder / f"{number}.journal"

    def begun(self, number: int) -> int:
        """How many records it has begun."""
        path = self.journal_of(number)
        return path.stat().st_size if path.exists() else 0

    def all_begun(self) -> int:
        return sum(map(self.begun, range(len(self.started))))

    def at_work(self) -> list[int]:
        """Those that have begun something: it takes a process seconds to begin."""
        return [number for number in self.running if self.begun(number)]

    def kill_one(self) -> None:
        process = self.running.pop(self._rng.choice(self.at_work()))
        process.kill()
        process.wait()

    def end_all(self) -> None:
        for process in self.running.values():
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for process in self.running.values():
                process.wait(30)
        self.close()


async def produce(broker: str) -> None:
    async with fs.Broker(broker) as one:
        await fs.ShareAdmin(one).create_topic("churn", partitions=2)
        messages = [Message(b"1", key=b"k%d" % (number % KEYS)) for number in range(RECORDS)]
        await fs.Producer(one).send_many("churn", messages)


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
    rng = random.Random(drawn())
    workers = Workers(tmp_path, rng)
    asyncio.run(produce(workers.url))
    try:
        for _ in range(WORKERS):
            workers.add()
        for _ in range(KILLS):
            begun = workers.all_begun() + RECORDS // 8
            blocking_until(
                lambda begun=begun: len(workers.at_work()) >= 2 and workers.all_begun() >= begun,
                "two are at work",
                limit_s=LEFT_S,
                or_last=True,
            )
            workers.kill_one()
            workers.add()
        found = asyncio.run(outputs(workers.url, 2 * RECORDS))
    finally:
        workers.end_all()

    judge(found)
    print(f"{workers.all_begun() - RECORDS} handlers ran again")


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
