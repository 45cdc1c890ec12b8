"""Members, a server that dies and a storage that fails, at random: what was answered stays, no two hold one key.

Judged from outside. C: what was answered as committed is committed, and nothing else is that nobody tried, in every
epoch of resets. O: what was committed with outputs, and in no other way, has its outputs once, and nothing else has
any. K: who was told that it holds keys, and by its own clock does so still, is the only one.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest

from flowshare.cooperative.types import HASHES
from flowshare.log.base import StorageError
from flowshare.testing.clock import settle
from tests.server.cooperative.test_storage import killed
from tests.server.cooperative.world import LEASE_MS, NONE, WHOLE, cooperative
from tests.server.test_settle import output, there
from tests.sim.seeds import seeds

pytestmark = pytest.mark.asyncio
STEPS = 120
RECORDS = 200
SLOTS = 8


class Judge:
    """The members' view of the world, and the checks of it."""

    def __init__(self, w, seed: int) -> None:
        self.w = w
        self.random = random.Random(seed)
        self.members = {}
        self.count = 0
        self.generation = 1
        self.done: dict[int, set[int]] = {}
        self.tried: dict[int, set[int]] = {}
        self.until_ms: dict[str, int] = {}
        """Until when a member holds what it was told, by its own clock."""
        self.fails = False
        self.plain: dict[int, set[int]] = {}
        """Offsets that were tried without outputs."""
        self.waits: set[asyncio.Task[None]] = set()
        self.out = w.topic_id
        self.written = w.storage.write

    async def maybe_fail(self) -> None:
        await asyncio.sleep(0)
        if self.fails and self.random.random() < 0.5:
            raise StorageError("as asked")

    async def write(self, writes) -> None:
        """As the storage writes; sometimes it fails and has written all the same."""
        await self.written(writes)
        if self.fails and self.w.storage.before_write is not None and self.random.random() < 0.3:
            raise StorageError("as asked, though it is stored")

    def keys(self):
        """A random share, made of slots."""
        cut = sorted(self.random.sample(range(SLOTS + 1), 2))
        size = HASHES // SLOTS
        return ((cut[0] * size, cut[1] * size),)

    # --- steps

    async def join(self) -> None:
        self.count += 1
        self.generation += 1
        member = self.w.member(f"m{self.count}")
        self.members[member.name] = member

    async def vanish(self) -> None:
        if self.members:
            name = self.random.choice(sorted(self.members))
            del self.members[name]

    async def hold(self) -> None:
        chosen = self.random.sample(sorted(self.members), min(len(self.members), 3))
        await asyncio.gather(*(self.hold_one(self.members[name]) for name in chosen))
        self.check_k()

    async def hold_one(self, member) -> None:
        member.generation = self.random.choice([self.generation, member.generation])
        sent_ms = self.w.clock.steady_ms()
        keys = self.random.choice([WHOLE, self.keys(), (), tuple(tuple(one[:2]) for one in member.held.get(0, ()))])
        kept = [one for one in member.held.get(0, ()) if any(a <= one[0] and one[1] <= b for a, b in keys)]
        member.held[0] = tuple(kept)  # it stops handlers of the others before it says so
        answer = await member.asks({0: keys} if keys else {})
        if answer.error is NONE and all(part.error is NONE for part in answer.partitions):
            self.until_ms[member.name] = sent_ms + LEASE_MS
            if not keys:
                member.held[0] = ()

    async def commit(self) -> None:
        chosen = self.random.sample(sorted(self.members), min(len(self.members), 3))
        await asyncio.gather(*(self.commit_one(self.members[name]) for name in chosen))

    async def commit_one(self, member) -> None:
        held = member.held.get(0, ())
        if not held:
            return
        first, end, epoch = self.random.choice(held)
        ranges = []
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(RECORDS - 10)
            ranges.append((at, at + self.random.randint(1, 10)))
        reset_epoch = member.epochs[0]
        offsets = {offset for one in ranges for offset in range(*one)}
        self.tried.setdefault(reset_epoch, set()).update(offsets)
        self.plain.setdefault(reset_epoch, set()).update(offsets)
        told = await member.commits(member.entry(*ranges, keys=(first, end), epoch=epoch))
        if told.error is NONE and not told.fenced:
            self.done.setdefault(reset_epoch, set()).update(offsets)

    async def settle(self) -> None:
        chosen = self.random.sample(sorted(self.members), min(len(self.members), 3))
        await asyncio.gather(*(self.settle_one(self.members[name]) for name in chosen))

    async def settle_one(self, member) -> None:
        held = member.held.get(0, ())
        if not held:
            return
        first, end, epoch = self.random.choice(held)
        at, ordered = self.random.randrange(RECORDS - 10), self.random.random() < 0.3
        offsets = list(range(at, at + self.random.randint(1, 5)))
        reset_epoch = member.epochs[0]
        made = output(self.out, *(f"{reset_epoch} {offset}" for offset in offsets))
        entry = member.entry((offsets[0], offsets[-1] + 1), keys=(first, end), epoch=epoch)
        self.tried.setdefault(reset_epoch, set()).update(offsets)

        async def settled() -> None:
            answer = await member.settles([entry], made, ordered=ordered, reset_epoch=reset_epoch)
            if answer.error is NONE:
                self.done.setdefault(reset_epoch, set()).update(offsets)

        if not ordered:
            await settled()
            return
        task = asyncio.create_task(settled())
        self.waits.add(task)
        task.add_done_callback(self.waits.discard)
        await asyncio.sleep(0)

    async def pause(self) -> None:
        await self.w.clock.advance(self.random.choice([0.1, 1, LEASE_MS / 2_000, LEASE_MS / 1_000 + 1]))
        await settle()

    async def disk(self) -> None:
        self.fails = not self.fails

    async def die(self) -> None:
        await killed(self.w, *self.members.values())
        self.w.storage.before_write = self.maybe_fail

    async def reset(self) -> None:
        self.w.storage.before_write = None
        if self.random.random() < 0.3:
            await self.w.set_offset(self.random.randrange(RECORDS))
        self.w.storage.before_write = self.maybe_fail

    # --- what must hold

    def check_k(self) -> None:
        now_ms = self.w.clock.steady_ms()
        living = [
            (one[0], one[1], name)
            for name, member in self.members.items()
            if self.until_ms.get(name, 0) > now_ms
            for one in member.held.get(0, ())
        ]
        living.sort()
        for before, after in itertools.pairwise(living):
            assert before[1] <= after[0], (before, after)

    async def check_c(self) -> None:
        self.w.storage.before_write = None
        await settle()  # what was being written, and fails, is behind us
        told = await self.w.told()
        self.w.storage.before_write = self.maybe_fail
        if told is None:
            return
        assert told.error is NONE, told
        found = set(range(told.stable)).union(*(range(*one) for one in told.ranges.pairs()))
        begun = self.begun.setdefault(told.reset_epoch, told.stable)
        done, tried = self.done.get(told.reset_epoch, set()), self.tried.get(told.reset_epoch, set())
        assert done <= found, sorted(done - found)
        assert found - set(range(begun)) <= tried, sorted(found - tried)
        outputs = Counter(tuple(map(int, one.split())) for one in await there(self.w))
        assert not outputs or max(outputs.values()) == 1, outputs.most_common(3)
        with_outputs = {offset for reset_epoch, offset in outputs if reset_epoch == told.reset_epoch}
        assert with_outputs <= found, sorted(with_outputs - found)
        plain = self.plain.get(told.reset_epoch, set())
        missing = found - set(range(begun)) - plain - with_outputs
        assert not missing, sorted(missing)

    begun: dict[int, int]
    """Where each epoch began, at the latest."""

    async def run(self) -> None:
        self.begun = {}
        self.w.storage.write = self.write
        self.out = await self.w.topic("out")
        self.w.storage.before_write = self.maybe_fail
        for _ in range(3):
            await self.join()
        steps = [self.hold] * 6 + [self.commit] * 4 + [self.settle] * 8 + [self.pause] * 2
        steps += [self.join, self.vanish, self.disk, self.disk, self.die, self.reset]
        for _ in range(STEPS):
            await self.random.choice(steps)()
            await self.check_c()
        self.w.storage.before_write = None
        await self.w.clock.advance(60)
        await asyncio.gather(*self.waits)
        await self.check_c()


@pytest.mark.parametrize("seed", seeds(6, 1))
async def test_at_random_nothing_that_was_answered_is_lost_and_no_key_has_two_holders(seed: int):
    async with cooperative(RECORDS) as w:
        await Judge(w, seed).run()
