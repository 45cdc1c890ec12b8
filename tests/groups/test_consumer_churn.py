"""Churn of twenty members: lost answers, writes that fail, kills of the server between any two steps, static members,
patterns, topics that come and grow. No partition has two owners, epochs rise, and all is well when it is over."""

from __future__ import annotations

import random

import pytest

from flowshare.groups.consumer_types import LEAVE, LEAVE_FOR_NOW
from tests.groups.consumer_world import REBALANCE_MS, SESSION_MS, ConsumerWorld, topic
from tests.sim.seeds import named, seeds

SEEDS = seeds(60, 848_000)
FEW = 3
STEPS = 250
MEMBERS_MAX = 20


class Churn:
    def __init__(self, seed) -> None:
        self.random = random.Random(seed)
        self.world = ConsumerWorld(partitions=self.random.randint(1, 30), assignment_interval_ms=seed % 2 * 500)
        self.made = 0

    def run(self):
        steps = (
            (self.beat, 30),
            (self.flush, 10),
            (self.come, 4),
            (self.go, 2),
            (self.come_back, 2),
            (self.pass_time, 5),
            (self.subscribe, 2),
            (self.grow, 1),
            (self.stall, 3),
        )
        for _ in range(STEPS):
            self.random.choices([one for one, _ in steps], [weight for _, weight in steps])[0]()
        self.world.flush()
        return self.world.converge()

    def living(self):
        return [client for client in self.world.clients.values() if not client.gone]

    def somebody(self):
        found = self.living()
        return self.random.choice(found) if found else None

    def beat(self):
        waiting = {id(client) for client, _, _ in self.world.deciding}
        free = [client for client in self.living() if id(client) not in waiting]
        if free:
            self.world.decide(self.random.choice(free))

    def flush(self):
        chance = self.random.random()
        if chance < 0.08:
            self.world.write_fails()
        elif chance < 0.16:
            self.world.restart()
        elif chance < 0.24:
            self.world.flush(deliver=False)
            self.world.restart()
        else:
            self.world.flush(deliver=self.random.random() < 0.85)

    def come(self):
        if len(self.living()) < MEMBERS_MAX:
            self.made += 1
            static = f"i{self.made}" if self.random.random() < 0.3 else None
            pattern = self.random.choice((None, None, "t.*"))
            topics = self.random.choice((("t",), ("t", "t2"), ("u",))) if pattern is None else ()
            assignor = self.random.choice((None, "range", "uniform"))
            self.world.client(f"m{self.made}", instance_id=static, topics=topics, pattern=pattern, assignor=assignor)

    def go(self):
        client = self.somebody()
        if client is None:
            return
        if self.random.random() < 0.4 or client.epoch == 0:  # killed: the group finds out by its session
            client.gone = True
            return
        self.world.flush()
        if client.epoch > 0 and client.member_id in self.world.group.members:
            for_now = client.instance_id is not None and self.random.random() < 0.7
            self.world.leave(client, LEAVE_FOR_NOW if for_now else LEAVE)

    def come_back(self):
        """A static member's next process, under another id."""
        taken = {client.instance_id for client in self.living()}
        gone = [c for c in self.world.clients.values() if c.gone and c.instance_id and c.instance_id not in taken]
        if gone and len(self.living()) < MEMBERS_MAX:
            former = self.random.choice(gone)
            self.made += 1
            self.world.client(
                f"m{self.made}", instance_id=former.instance_id, topics=former.topics, pattern=former.pattern
            )

    def pass_time(self):
        self.world.flush()
        self.world.pass_ms(self.random.choice((100, 1_000, SESSION_MS // 3, REBALANCE_MS // 2)))

    def subscribe(self):
        client = self.somebody()
        if client is not None and client.pattern is None:
            client.subscribe(*self.random.choice((("t",), ("t", "t2"), ("u",), ("u", "t2"))))

    def grow(self):
        name = self.random.choice(("t", "t2", "u", "t3"))
        count = self.world.topics.get(name, (name, None, 0))[2]
        self.world.topics[name] = topic(name, count + self.random.randint(1, 4))
        if self.random.random() < 0.2:
            self.world.topics.pop(self.random.choice(list(self.world.topics)))

    def stall(self):
        client = self.somebody()
        if client is not None:
            client.slow = not client.slow


def check(seed):
    with named(seed):
        living = Churn(seed).run()
    if len({(client.topics, client.pattern) for client in living}) == 1 and {c.assignor for c in living} == {None}:
        loads = [len(client.using) for client in living]
        assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("seed", SEEDS[:FEW])
def test_no_partition_has_two_owners_whatever_happens_to_twenty_members(seed) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[FEW:])
def test_no_partition_has_two_owners_in_many_more_runs(seed) -> None:
    check(seed)
