"""Where a log starts, after any sequence of appends, cuts, compactions and restarts, held against the batches in it."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest

from flowshare.log import keys
from flowshare.log.embedded import EmbeddedStorage
from flowshare.log.memory import MemoryStorage
from flowshare.log.partition import walk
from flowshare.log.retention import INTERVAL_S, SweepTask, kept_from_blocking
from flowshare.log.store import StoreStep
from flowshare.protocol.batches import BatchBuilder
from flowshare.testing.clock import ManualClock
from tests.log.compaction_contract import EAGER
from tests.log.contract import batch
from tests.sim.seeds import drawn

SIZES = (10, 1_000, 20_000, 70_000)
"""Around the 64 KiB after which the time index has an entry."""
STEPS = 40


class World:
    """A storage with one partition that can be restarted."""

    def __init__(self, path, seed: int, configs: dict[str, str]) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self._path, self._configs = path, configs
        self.storage: EmbeddedStorage

    async def start(self) -> None:
        self.storage = await EmbeddedStorage.open(self._path, clock=self.clock)
        if "t" not in self.storage.topics():
            await self.storage.create_topic("t", configs=self._configs)

    async def append(self) -> None:
        builder = BatchBuilder()
        for _ in range(self.chance.choice((1, 1, 3))):
            key, value = b"k%d" % self.chance.randrange(5), bytes(self.chance.choice(SIZES))
            age_ms = self.chance.choice((0, 0, 500, 50_000))
            builder.add(key, value, timestamp_ms=self.clock.now_ms() - age_ms)
        await self.storage.append("t", 0, builder.build())

    async def delete(self) -> None:
        offsets = self.storage.offsets("t", 0)
        await self.storage.delete_records("t", 0, self.chance.randint(offsets.log_start, offsets.high_watermark))

    async def compact(self) -> None:
        await self.storage._compact()

    async def sweep(self) -> None:
        await self.storage._sweep()

    async def restart(self) -> None:
        await self.storage.close()
        await self.start()

    async def wait(self) -> None:
        self.clock.set_wall(self.chance.choice((0.1, 5.0, 40.0)))

    def batches(self) -> list[tuple[int, int, int, int]]:
        """Base offset, last offset, size and largest timestamp of what is there."""
        log = self.storage._partition("t", 0)
        return [
            (one.base_offset, one.last_offset, one.size, one.max_timestamp)
            for one, _ in walk(self.storage._store, log, 0)
        ]

    def check(self) -> None:
        """The bounds are those of the batches, and retention wants what an eye that sees all of them would."""
        log, settings = self.storage._partition("t", 0), self.storage._registry.settings("t")
        left = sum(size for _, _, size, _ in self.batches())
        assert log.end_position - log.start_position == left
        kept = log.log_start
        for _, last, size, timestamp in self.batches():
            left -= size
            over = 0 <= settings.retention_bytes <= left and last + 1 < log.end
            old = 0 <= settings.retention_ms < self.clock.now_ms() - timestamp
            if not over and not old:
                break
            kept = last + 1
        found = kept_from_blocking(self.storage._store, log, settings, log.end_position, log.end, self.clock.now_ms())
        assert max(found, log.log_start) == max(kept, log.log_start)


@pytest.mark.slow
@pytest.mark.parametrize(
    "configs",
    [
        {"retention.ms": "10000"},
        {"retention.bytes": "100000"},
        {"retention.ms": "10000", "retention.bytes": "100000"},
        {**EAGER, "cleanup.policy": "compact,delete", "retention.ms": "10000", "retention.bytes": "100000"},
    ],
    ids=["age", "size", "both", "compacted"],
)
def test_a_log_keeps_what_its_retention_says_whatever_happened_to_it(tmp_path, configs):

    async def run() -> None:
        world = World(tmp_path / "storage", drawn(), configs)
        await world.start()
        acts = [world.append] * 8 + [world.sweep] * 2 + [world.delete, world.compact, world.restart, world.wait]
        for _ in range(STEPS):
            await world.chance.choice(acts)()
            world.check()
        await world.storage.close()

    asyncio.run(run())


class Sweeping(MemoryStorage):
    """Deletes a topic between two steps of a sweep."""

    doomed: str | None = None

    async def alone(self, change):
        result = await super().alone(change)
        if self.doomed is not None:
            topic, self.doomed = self.doomed, None
            await self.delete_topic(topic)
        return result

    async def expired(self, *topics: str) -> None:
        """Make topics whose records are all too old."""
        for topic in topics:
            await self.create_topic(topic, configs={"retention.ms": "1"})
            for _ in range(2):
                await self.append(topic, 0, batch(timestamp_ms=1))


def test_a_topic_that_is_deleted_during_a_sweep_does_not_end_the_sweep_for_the_topics_after_it():
    async def run() -> None:
        storage = Sweeping(ManualClock())
        await storage.expired("a", "b", "c")

        storage.doomed = "b"
        await storage._sweep()

        assert list(storage.topics()) == ["a", "c"]
        assert storage.offsets("c", 0).log_start == 2
        await storage.close()

    asyncio.run(run())


@pytest.mark.parametrize("compacting", [False, True])
def test_a_fault_in_one_partition_is_told_and_costs_no_other_one_its_turn(caplog, monkeypatch, compacting):
    async def run() -> None:
        storage, seen = MemoryStorage(ManualClock()), list[str]()
        for topic in ("bad", "t"):
            await storage.create_topic(topic, configs={"cleanup.policy": "compact,delete", "retention.ms": "1"})
            await storage.append(topic, 0, batch())

        async def step(topic: str, partition: int, settings: object) -> None:
            seen.append(topic)
            if topic == "bad":
                raise struct.error("a fault")

        monkeypatch.setattr(storage._compactor, "compact", step)
        monkeypatch.setattr(storage, "_keep", step)
        await (storage._compact() if compacting else storage._sweep())
        assert seen == ["bad", "t"]
        await storage.close()

    asyncio.run(run())
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "partition 0 of topic bad" in told.message
    assert told.exc_info is not None


def test_a_sweep_that_ends_with_any_error_is_told_and_made_again(caplog):
    async def run() -> None:
        clock, sweeps = ManualClock(), list[int]()

        async def sweep() -> None:
            sweeps.append(len(sweeps))
            if len(sweeps) == 1:
                raise struct.error("a fault")

        task = SweepTask(clock, sweep, "the work was cut short")
        task.ensure()
        for _ in range(2):
            await asyncio.sleep(0)
            await clock.advance(INTERVAL_S)
        assert sweeps == [0, 1]
        await task.close()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == ["the work was cut short; next try in 30 s"]


def test_a_damaged_partition_is_told_once_and_the_others_lose_their_old_records(caplog):
    async def run() -> None:
        storage = Sweeping(ManualClock())
        await storage.expired("bad", "t")
        place = keys.at(keys.batches(storage.topics()["bad"].topic_id, 0), 0)
        await storage._commits.submit(StoreStep([(place, b"no batch")], (), 0))

        await storage._sweep()
        await storage._sweep()

        assert storage.offsets("t", 0).log_start == 2
        assert storage.offsets("bad", 0).log_start == 0
        await storage.close()

    asyncio.run(run())
    (told,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert told.startswith("old records of partition 0 of topic bad stay: ")
