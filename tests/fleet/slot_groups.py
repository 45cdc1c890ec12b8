"""Members of a slot group that write down what they are told, for tests."""

from __future__ import annotations

from contextlib import asynccontextmanager

from flowshare.fleet.slot_group import SlotGroup

TOPIC = "__flowshare_state.orders"


class Member:
    """One worker's membership; `maps` and `doubts` are what it was called with."""

    def __init__(self, cluster, clock, number, *, slots=8, instance=None, topic=TOPIC, **options):
        self.cluster = cluster
        self.number = number
        self.claims = {}
        self.maps, self.doubts = [], []
        self.group = SlotGroup(
            cluster,
            topic=topic,
            slots=slots,
            instance=instance or f"worker-{number}",
            node_id=1_000 + number,
            claims=lambda: self.claims,
            on_map=self.maps.append,
            on_doubt=self.doubts.append,
            key=f"a{number}",
            clock=clock,
            **options,
        )

    async def start(self, **options):
        return await self.group.start(f"10.0.0.{self.number}", 9_000 + self.number, **options)

    @property
    def map(self):
        return self.group.map

    @property
    def mine(self):
        """Slots that it was given last."""
        return () if self.map is None else self.map.mine(self.map.node_id)

    async def die(self):
        """As a process that is killed: nothing is said any more."""
        await self.group._stop()
        await self.group._kafka.close()
        await self.group._cluster.close()


@asynccontextmanager
async def members(connect, clock, *numbers, **options):
    """Members of these numbers, not started yet. connect: makes a cluster for one of them."""
    found = []
    try:
        for number in numbers:
            cluster = connect()
            await cluster.start()
            found.append(Member(cluster, clock, number, **options))
        yield found
    finally:
        for member in found:
            await member.group.close()
            await member.cluster.close()


async def agreed(clock, *members, limit_s=30.0):
    """Wait until these and no others share the slots out, and all know it."""
    deadline_s = clock.monotonic() + limit_s
    while not same_map(members):
        assert clock.monotonic() < deadline_s, [member.map for member in members]
        await clock.sleep(0.02)
    return members[0].map


def same_map(members):
    """True if all members have the map of one generation, the map names just these members, and together they have all
    slots."""
    maps = [member.map for member in members]
    if None in maps or len({one.generation for one in maps}) > 1:
        return False
    given = {one.node_id for one in maps}
    return set(maps[0].nodes) == given == set(maps[0].owners.values()) and len(maps[0].owners) == maps[0].slots
