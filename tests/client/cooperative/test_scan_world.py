"""Several members' scans against the real core as their server: whatever comes in whatever order, each record is
handled, in the order of its key, by one member at a time."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowshare.client.cooperative.dispatch import Found
from flowshare.client.cooperative.scan import Batch, KeyScan, Progress
from flowshare.cooperative.assignor import shares
from flowshare.cooperative.partition import CooperativePartition
from flowshare.cooperative.types import HASHES, CommitEntry, Terms
from flowshare.core_errors import CoreError
from tests.sim.seeds import play, seeds
from tests.sim.timeline import until_quiet

LEASE_MS = 10_000


class Log:
    """Records with few keys, holes (control batches, compaction) between them."""

    def __init__(self, rng: random.Random, size: int, keys: int) -> None:
        self.end = size
        hashes = [rng.randrange(HASHES) for _ in range(keys)]
        self.records = [(offset, rng.choice(hashes)) for offset in range(size) if rng.random() > 0.2]

    def read(self, first: int, count: int) -> tuple[int, list[tuple[int, int, int]]]:
        end = min(self.end, first + count)
        return end, [(offset, hash_, offset) for offset, hash_ in self.records if first <= offset < end]


class Member:
    def __init__(self, name: str) -> None:
        self.name = name
        self.scan: KeyScan[int] = KeyScan(buffer_max=30)
        self.sequence = 0
        self.generation = 0
        self.running: list[Found[int]] = []
        self.commit: Batch | None = None
        self.lease_ms = 0
        self.asleep = False


class World:
    def __init__(self, seed: int, *, deaths: bool, compacted: bool) -> None:
        self.rng = random.Random(seed)
        self.log = Log(self.rng, self.rng.randrange(1, 120), self.rng.randrange(1, 12))
        self.server = CooperativePartition.new(0, reset_epoch=1)
        self.members = [Member(f"m{number}") for number in range(self.rng.randrange(1, 5))]
        self.present: set[str] = set()
        self.generation = 0
        self.now_ms = 0
        self.deaths = deaths
        self.compacted = compacted
        self.began: dict[int, list[int]] = defaultdict(list)
        self.handled: dict[int, int] = defaultdict(int)
        self.at_work: dict[int, str] = {}
        """Hash -> the living member whose lease counts and whose handler is at work on it."""
        self.lost: set[int] = set()

    def rebalance(self) -> None:
        here = [member for member in self.members if member.name in self.present]
        self.generation += 1
        dealt = shares([member.name for member in self.rng.sample(here, len(here))])
        for member in here:
            member.generation = self.generation
            member.scan.set_target([dealt[member.name]])

    def hold(self, member: Member, *, lost_answer: bool = False) -> None:
        if member.commit is not None and member.scan.releases:
            return  # what is given back was committed before
        self.lapse(member)
        asked = member.scan.ask()
        member.sequence += 1
        decision = self.server.hold(
            member.name, member.generation, member.sequence, asked, self.now_ms, terms=Terms(lease_ms=LEASE_MS)
        )
        self.server.confirm(decision)
        if lost_answer:
            return
        answer = decision.answer
        ranges = None if answer.ranges is None else answer.ranges.pairs()
        claims = [(one.first, one.end, one.epoch) for one in answer.held]
        if ranges is None and member.scan.lacks_ranges(claims, answer.progress.reset_epoch):
            ranges = self.server.offsets.ranges()
        lost = member.scan.held(claims, Progress(*answer.progress), ranges)
        self.forget(member, lost)
        member.lease_ms = self.now_ms + LEASE_MS

    def lapse(self, member: Member) -> None:
        if self.now_ms >= member.lease_ms and member.scan.pieces:
            self.comes_again()
            self.forget(member, member.scan.lose())

    def comes_again(self) -> None:
        """Somebody's lease is over: what was handled and not committed may be handled again."""
        self.lost |= {offset for offset, _ in self.log.records if not self.server.offsets.is_committed(offset)}

    def forget(self, member: Member, lost: list[Found[int]]) -> None:
        for found in lost:
            self.lost.add(found.offset)
            if found in member.running:
                member.running.remove(found)
                if self.at_work.get(found.hash) == member.name:
                    del self.at_work[found.hash]

    def read(self, member: Member) -> None:
        position = member.scan.position()
        if position is not None:
            end, records = self.log.read(position, self.rng.randrange(1, 30))
            member.scan.scanned(position, end, records)

    def begin(self, member: Member) -> None:
        if self.now_ms >= member.lease_ms:
            return
        for found in member.scan.take(self.rng.randrange(1, 4), self.now_ms / 1000):
            assert self.at_work.get(found.hash) is None, f"{found} runs beside {self.at_work[found.hash]}"
            before = self.began[found.hash]
            assert not before or found.offset >= before[-1] or found.offset in self.lost or before[-1] in self.lost
            before.append(found.offset)
            self.at_work[found.hash] = member.name
            member.running.append(found)

    def end(self, member: Member) -> None:
        if not member.running:
            return
        found = member.running.pop(self.rng.randrange(len(member.running)))
        del self.at_work[found.hash]
        if self.rng.random() < 0.2:
            later = self.rng.choice([0.0, self.now_ms / 1000 + 0.5])
            assert member.scan.give_back(found, not_before_s=later)
            return
        self.handled[found.offset] += 1
        assert member.scan.finish(found)

    def send_commit(self, member: Member) -> None:
        if member.commit is None:
            member.commit = member.scan.commit(self.rng.choice([2, 1000]))

    def answer_commit(self, member: Member) -> None:
        batch, member.commit = member.commit, None
        if batch is None:
            return
        if self.rng.random() < 0.1:
            member.scan.failed(batch)
            return
        entries = [CommitEntry(part.keys, part.epoch, part.ranges) for part in batch.parts]
        try:
            decision = self.server.commit(member.name, batch.reset_epoch, entries, self.now_ms, log_end=self.log.end)
        except CoreError:
            member.scan.failed(batch)
            return
        self.server.confirm(decision)
        if self.rng.random() < 0.1:
            member.scan.failed(batch)  # it counts, and nobody was told
            return
        member.scan.committed(batch, Progress(*decision.answer.progress), decision.answer.fenced)

    def step(self) -> None:
        self.now_ms += self.rng.choice([0, 0, 10, 200])
        for one in self.members:
            self.lapse(one)  # each has a timer for it
        choice = self.rng.random()
        if choice < 0.02 or not self.present:
            member = self.rng.choice(self.members)
            if member.name in self.present and len(self.present) > 1:
                self.leave(member)
            else:
                self.present.add(member.name)
            self.rebalance()
            return
        member = self.rng.choice([one for one in self.members if one.name in self.present])
        if self.deaths and choice < 0.03 and self.now_ms < member.lease_ms:
            self.die(member)
            return
        if self.compacted and choice > 0.98:
            self.compact()
        self.hold(member, lost_answer=self.rng.random() < 0.05) if choice < 0.3 else None
        self.rng.choice([self.read, self.begin, self.end, self.send_commit, self.answer_commit])(member)

    def compact(self) -> None:
        """Records of which a later one of the key is there are taken, whoever has seen them."""
        last = {hash_: offset for offset, hash_ in self.log.records}
        keeps = self.rng.random()
        self.log.records = [
            (offset, hash_)
            for offset, hash_ in self.log.records
            if offset == last[hash_] or self.handled[offset] or self.rng.random() < keeps
        ]

    def leave(self, member: Member) -> None:
        """In order: what runs ends, is committed, and then everything is given back."""
        member.scan.set_target([])
        while member.running:
            self.end(member)
        while not member.scan.idle and member.scan.pieces:
            self.send_commit(member)
            self.answer_commit(member)
            if member.commit is None and member.scan.releases:
                self.hold(member)
        self.hold(member)
        self.present.discard(member.name)

    def die(self, member: Member) -> None:
        """Killed: the server hears nothing of it any more. What it ran counts as run until its lease ends."""
        self.comes_again()
        self.now_ms = max(self.now_ms, member.lease_ms)
        for one in self.members:
            self.lapse(one)
        self.forget(member, list(member.running))
        self.present.discard(member.name)
        fresh = Member(f"{member.name}'")
        self.members[self.members.index(member)] = fresh
        self.present.add(fresh.name)
        self.rebalance()

    def finish(self) -> None:
        if not self.present:
            self.present.add(self.members[0].name)
            self.rebalance()
        turns = itertools.count()

        def turn() -> None:
            look_back = self.compacted and next(turns) % 100 == 99
            self.now_ms += 50
            for one in self.members:
                self.lapse(one)
            for member in [one for one in self.members if one.name in self.present]:
                self.hold(member)
                if look_back:
                    member.scan.look_back()
                self.read(member)
                self.begin(member)
                self.end(member)
                self.send_commit(member)
                self.answer_commit(member)

        until_quiet(
            lambda: self.server.offsets.stable == self.log.end,
            turn,
            steps_max=3_000,
            stuck=lambda: (
                f"at {self.server.offsets.stable}: {[(m.name, m.scan.pieces, m.running) for m in self.members]}"
            ),
        )


def run(seed: int, *, deaths: bool, compacted: bool = False) -> World:
    world = World(seed, deaths=deaths, compacted=compacted)
    for _ in range(world.rng.randrange(400)):
        world.step()
    world.finish()
    return world


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_record_is_handled_once_in_key_order_and_all_are_committed(seed: int) -> None:
    world = run(seed, deaths=False)
    for offset, _ in world.log.records:
        assert world.handled[offset] >= 1
        assert world.handled[offset] == 1 or offset in world.lost, f"{offset} was handled again, and nobody died"


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_a_death_explains_comes_again_and_nothing_is_lost(seed: int) -> None:
    world = run(seed, deaths=True)
    for offset, _ in world.log.records:
        assert world.handled[offset] >= 1
        assert world.handled[offset] == 1 or offset in world.lost


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_compaction_takes_unseen_holds_nothing_up(seed: int) -> None:
    world = run(seed, deaths=False, compacted=True)
    for offset, _ in world.log.records:
        assert world.handled[offset] >= 1
        assert world.handled[offset] == 1 or offset in world.lost


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_worlds(part: int) -> None:
    play(seeds(1500)[part::2], lambda seed: run(seed, deaths=seed % 2 == 1, compacted=seed % 3 == 1))
