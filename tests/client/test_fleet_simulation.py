"""A member of a fleet whose workers die, freeze, hand over, lose connections and tell old news, by seeds.

Judged all the time: nothing that the member works on is given out again or handed back, and an acknowledgement that
is confirmed was written. In the end everything is accepted, and everything once.
"""

from __future__ import annotations

import asyncio
import os
import random
from itertools import count

import pytest

from flowshare.client.member import ShareMember
from flowshare.protocol import messages as m
from flowshare.protocol.errors import ErrorCode
from flowshare.testing.clock import ManualClock, settle
from tests.client.fakes import ORDERS
from tests.client.workers import FakeFleet, Worker, runs

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]
FIRST, SEEDS = int(os.environ.get("SIM_SEED_FIRST", "1")), int(os.environ.get("SIM_SEEDS", "20"))
PARTITIONS, STEPS = 4, 60
ACCEPT, RELEASE, RENEW = b"\x01", b"\x02", b"\x04"


class World:
    """A member that works on what it is given, and a fleet that has a hard time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.fleet = FakeFleet(
            self.clock, [1 + index % 3 for index in range(PARTITIONS)], fresh_addresses=self.addresses
        )
        self.fleet.on_stray = self.handed_back
        self.member = ShareMember(self.fleet.connect, group_id="g", topics=["orders"], clock=self.clock, member_id="m1")
        self.ids = count(10)
        self.working: dict[tuple[int, int], int] = {}
        self.sent: set[tuple[int, int]] = set()
        self.runs: dict[tuple[int, int], int] = {}
        self.again: dict[tuple[int, int], int] = {}
        self.tasks: set[asyncio.Task] = set()
        self.faults = 0

    async def addresses(self):
        return [f"worker:{node}" for node in self.living]

    # --- the member ---------------------------------------------------------------------------------------------

    async def fetch(self):
        while True:
            for part in await self.member.fetch(records_max=self.random.randint(1, 20)):
                for run in part.acquired:
                    for offset in range(run.first, run.last + 1):
                        at = part.partition, offset
                        assert at not in self.working, f"{at} is given out while it is worked on"
                        self.working[at] = part.generation
                        self.runs[at] = self.runs.get(at, 0) + 1

    def handed_back(self, partition, offset):
        assert (partition, offset) not in self.working, f"{partition, offset} is handed back while it is worked on"
        self.again[partition, offset] = self.again.get((partition, offset), 0) + 1

    def acknowledge(self, share):
        """Say something of some of what is worked on."""
        chosen = [at for at in self.working if at not in self.sent and self.random.random() < share]
        types = self.random.choices((ACCEPT, RELEASE, RENEW), (8, 1, 1))[0]
        by_generation = {}
        for partition, offset in chosen:
            offsets = by_generation.setdefault(self.working[partition, offset], {})
            offsets.setdefault(m.TopicPartition(ORDERS, partition), []).append(offset)
        self.sent.update(chosen)
        if types == RELEASE:  # it may come again before the answer does
            for at in chosen:
                del self.working[at]
                self.again[at] = self.again.get(at, 0) + 1
        for generation, parts in by_generation.items():
            acks = {
                tp: [m.AckBatch(first, last, types) for first, last in runs(offsets)] for tp, offsets in parts.items()
            }
            task = asyncio.ensure_future(self._acknowledge(acks, types, generation))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _acknowledge(self, acks, types, generation):
        on_late = self.random.choice((None, lambda result: self.outcome(result, types)))
        for result in await self.member.acknowledge(acks, generation=generation, on_late=on_late):
            self.outcome(result, types)

    def outcome(self, result, types):
        path = self.fleet.paths[result.partition]
        offsets = [offset for one in result.acks for offset in range(one.first, one.last + 1)]
        for offset in offsets:
            at = result.partition, offset
            self.sent.discard(at)
            if types == RENEW:
                assert result.error in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE), result
                continue
            assert result.error is ErrorCode.NONE or "outcome unknown" in result.message, result
            if types == ACCEPT:
                assert path.done[offset] == 1, "confirmed, or in doubt because it was written"
                del self.working[at]

    # --- the fleet ----------------------------------------------------------------------------------------------

    @property
    def living(self):
        return [node for node, worker in self.fleet.workers.items() if not worker.down and not worker.frozen]

    def append(self):
        self.fleet.append(self.random.randrange(PARTITIONS), self.random.randint(1, 10))

    def die(self):
        if len(self.living) > 1:
            self.fleet.die(self.random.choice(self.living))
            self._join()

    def freeze(self):
        if len(self.living) > 1:
            node = self.random.choice(self.living)
            self.fleet.workers[node].frozen = True
            if self.fleet.coordinator == node:
                self.fleet.coordinator = self.random.choice(self.living)
            for index, path in enumerate(self.fleet.paths):
                if path.leader == node:
                    self.fleet.lead(index, -1)
            self._join()

    def _join(self):
        node = next(self.ids)
        self.fleet.workers[node] = Worker(self.fleet, node)

    def hand_over(self):
        self.fleet.lead(self.random.randrange(PARTITIONS), self.random.choice([*self.living, -1]))

    def claim(self):
        for worker in self.fleet.workers.values():
            worker.left = worker.down or worker.frozen
        for index, path in enumerate(self.fleet.paths):
            if path.leader not in self.living:
                self.fleet.lead(index, self.random.choice(self.living))

    def cut(self):
        connections = self.fleet.workers[self.random.choice(self.living)].connections
        if connections:
            self.random.choice(connections).break_off()

    def swallow(self):
        kind = self.random.choice((m.ShareAcknowledgeRequest, m.ShareFetchRequest, m.ShareResumeRequest))
        worker = self.fleet.workers[self.random.choice(self.living)]
        worker.swallow(kind, carried_out=self.random.random() < 0.5)

    def tell_old_news(self):
        self.fleet.old_maps[self.random.choice(self.living)] = self.fleet.map()

    def tell_news(self):
        self.fleet.old_maps.clear()

    def talk(self):
        self.fleet.hints = self.random.random() < 0.5

    async def live(self):
        await self.member.start()
        fetching = asyncio.ensure_future(self.fetch())
        faults = (self.die, self.freeze, self.hand_over, self.cut, self.swallow, self.tell_old_news, self.talk)
        for _ in range(STEPS):
            self.append()
            self.acknowledge(self.random.random())
            if self.random.random() < 0.5:
                self.faults += 1
                self.random.choice(faults)()
            if self.random.random() < 0.4:
                self.claim()
            if self.random.random() < 0.2:
                self.tell_news()
            await self.clock.advance(self.random.choice((0.0, 0.01, 0.3, 1.0, 3.0)))
            self.check(fetching)
        await self.end(fetching)

    async def end(self, fetching):
        self.tell_news()
        self.claim()
        for worker in self.fleet.workers.values():
            worker.unanswered.clear()
        for _ in range(60):
            await self.clock.advance(1)
            self.check(fetching)
            self.acknowledge(1.0)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        closing = asyncio.ensure_future(self.member.close())
        await self.clock.advance(12)
        await closing
        await self.fleet.cluster.close()

    def check(self, fetching):
        if fetching.done():
            fetching.result()
        for task in tuple(self.tasks):
            if task.done():
                task.result()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
async def test_what_a_member_works_on_stays_its_own_through_all_of_it(seed):
    world = World(seed)

    await world.live()
    await settle()

    assert not world.working
    assert not world.tasks
    for index, path in enumerate(world.fleet.paths):
        assert (path.held, set(path.done)) == ({}, set(range(path.end))), f"partition {index}"
        for offset in range(path.end):
            extra = world.again.get((index, offset), 0)
            assert world.runs[index, offset] <= 1 + extra, (
                f"{index, offset} was given more often than it was given back"
            )
    assert world.faults > STEPS / 4
