"""A server under random members, faults and restarts: nothing is lost, nothing accepted comes again.

Every seed is one run on a clock that stands still between steps; the same seed gives the same run.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from flowshare.log.base import StorageError
from flowshare.protocol.errors import ErrorCode
from flowshare.protocol.messages import TopicPartition
from flowshare.share.types import AckRange
from tests.server.world import World, world
from tests.sim.seeds import seeds

SEEDS = seeds(12)
STEPS = 150
ACCEPT, RELEASE = 1, 2
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.partition.max.record.locks": "100",
    "share.delivery.count.limit": "1000",
    "share.record.lock.duration.ms": "5000",
}
IN_FLIGHT_MAX = 20


class Run:
    """One seed's members and what they saw. controlled: the group is limited, paused and resumed meanwhile."""

    def __init__(self, w: World, seed: int, *, controlled: bool) -> None:
        self.controlled = controlled
        self.w = w
        self.random = random.Random(seed)
        self.fault_rate = self.random.choice([0.0, 0.05, 0.3])
        self.produced = 0
        self.accepted: set[int] = set()
        self.members: dict[str, tuple[object, dict[int, int]]] = {}
        self.count = 0

    async def maybe_fail(self) -> None:
        """Fail some writes while the run lasts."""
        if self.random.random() < self.fault_rate:
            raise StorageError("a fault")

    async def step(self, at: TopicPartition) -> None:
        """Do one random thing."""
        choices = [self.produce, self.fetch, self.fetch, self.acknowledge, self.acknowledge, self.pass_time]
        choices += [self.join, self.vanish] if self.random.random() < 0.3 else []
        choices += [self.restart] if self.random.random() < 0.1 else []
        choices += [self.pause] if self.controlled and self.random.random() < 0.2 else []
        await self.random.choice(choices)(at)

    async def produce(self, _: TopicPartition) -> None:
        """Add records; a refused batch is not counted."""
        count = self.random.randint(1, 30)
        self.w.storage.before_write = None
        assert await self.w.produce(count) == self.produced
        self.produced += count
        self.w.storage.before_write = self.maybe_fail

    async def join(self, _: TopicPartition) -> None:
        """One member more."""
        self.count += 1
        self.members[f"m{self.count}"] = (self.w.member(f"m{self.count}"), {})

    async def vanish(self, _: TopicPartition) -> None:
        """A member's connection ends."""
        if self.members:
            member, _held = self.members.pop(self.random.choice(sorted(self.members)))
            await member.connection.close()

    async def pass_time(self, _: TopicPartition) -> None:
        """Let locks lapse, perhaps."""
        await self.w.clock.advance(self.random.choice([0.1, 1, 6]))

    async def restart(self, _: TopicPartition) -> None:
        """The process dies: nothing is released, nobody says good-bye."""
        self.members.clear()
        self.w.storage.before_write = None
        self.w.server.share.partitions.release_member = lambda *_, **__: None
        await self.w.restart()
        self.w.storage.before_write = self.maybe_fail

    async def pause(self, _: TopicPartition) -> None:
        """Pause or resume the group."""
        self.w.storage.before_write = None
        await self.w.configure({"share.paused": self.random.choice(["true", "false", "false"])})
        self.w.storage.before_write = self.maybe_fail

    async def fetch(self, at: TopicPartition) -> None:
        """A member fetches; no record that was accepted may come, none that another's live lock covers."""
        if not self.members:
            return
        member, held = self.members[self.random.choice(sorted(self.members))]
        answer = await member.fetch(
            *(() if member.epoch else (at,)),
            max_records=self.random.choice([1, 7, 100]),
            acquire_mode=self.random.choice([0, 1]),
        )
        assert answer.error is ErrorCode.NONE
        now_ms = self.w.clock.now_ms()
        if self.controlled:
            assert sum(owner.partition.acquired_count for owner in self.w.server.share.partitions.owners()) <= (
                IN_FLIGHT_MAX
            )
        for partition in answer.partitions:
            for first, last, _count in partition.acquired:
                for offset in range(first, last + 1):
                    assert offset not in self.accepted, f"{offset} was accepted"
                    for _, others in self.members.values():
                        assert others.get(offset, 0) <= now_ms, f"{offset} is held by another"
                    held[offset] = now_ms + 5000

    async def acknowledge(self, at: TopicPartition) -> None:
        """A member accepts or releases some of what it holds, in two requests at once, each all or nothing."""
        if not self.members:
            return
        member, held = self.members[self.random.choice(sorted(self.members))]
        now_ms = self.w.clock.now_ms()
        live = sorted(offset for offset, until_ms in held.items() if until_ms > now_ms)
        if not live or not member.epoch:
            return
        chosen = self.random.sample(live, self.random.randint(1, len(live)))
        cut = self.random.randint(0, len(chosen))
        await asyncio.gather(*(self.settle(member, held, at, sorted(part)) for part in (chosen[:cut], chosen[cut:])))

    async def settle(self, member, held: dict[int, int], at: TopicPartition, chosen: list[int]) -> None:
        """One request of two that are under way at once."""
        kinds = {offset: self.random.choice([ACCEPT, ACCEPT, RELEASE]) for offset in chosen}
        answer = await member.acknowledge({at: [AckRange(o, o, bytes([kind])) for o, kind in kinds.items()]})
        (result,) = answer.partitions
        assert result.error in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR), result
        if result.error is ErrorCode.NONE:
            self.accepted.update(offset for offset, kind in kinds.items() if kind == ACCEPT)
            for offset in chosen:
                del held[offset]

    async def finish(self, at: TopicPartition) -> None:
        """Without faults, one member gets all that is left."""
        self.fault_rate = 0.0
        await self.w.configure({"share.paused": None})
        await self.w.clock.advance(40)
        member = self.w.member("last")
        for _ in range(2 * self.produced + 10):
            answer = await member.fetch(*(() if member.epoch else (at,)))
            ranges = [part for partition in answer.partitions for part in partition.acquired]
            if not ranges:
                break
            for first, last, _count in ranges:
                assert self.accepted.isdisjoint(range(first, last + 1))
                self.accepted.update(range(first, last + 1))
            await member.acknowledge({at: [AckRange(first, last, b"\x01") for first, last, _ in ranges]})
        assert self.accepted == set(range(self.produced))
        (owner,) = self.w.server.share.partitions.owners()
        assert owner.partition.start_offset == self.produced


async def live(seed: int, configs: dict[str, str], *, controlled: bool) -> None:
    """One run, from the first member to the last record."""
    async with world(configs=configs) as w:
        at = TopicPartition(await w.topic(), 0)
        run = Run(w, seed, controlled=controlled)
        await run.join(at)
        w.storage.before_write = run.maybe_fail
        for _ in range(STEPS):
            await run.step(at)
        await run.finish(at)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_and_nothing_accepted_comes_again(seed: int) -> None:
    await live(seed, CONFIGS, controlled=False)


@pytest.mark.asyncio
@pytest.mark.parametrize("priority", ["redeliveries", "mixed", "new"])
@pytest.mark.parametrize("seed", SEEDS[: max(1, len(SEEDS) // 3)])
async def test_nothing_is_lost_in_a_group_that_is_limited_paused_and_resumed(seed: int, priority: str) -> None:
    controls = {"share.max.in.flight": str(IN_FLIGHT_MAX), "share.delivery.priority": priority}
    await live(seed, {**CONFIGS, **controls}, controlled=True)
