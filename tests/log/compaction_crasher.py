"""Run in a process (tests.killing): appends to a compacted topic and compacts it all the time, until it is killed."""

from __future__ import annotations

import random
from pathlib import Path

from flowshare.log.embedded import EmbeddedStorage
from tests.killing import say
from tests.log.compaction_world import built
from tests.sim.clock import HastyClock

KEYS = 30


async def main(path: Path, seed: int) -> None:
    """Lines: `offset key value` for a record that is confirmed."""
    chance = random.Random(seed)
    storage = await EmbeddedStorage.open(path, clock=HastyClock(0.001), tail_bytes=20_000)
    if "t" not in storage.topics():
        await storage.create_topic("t", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    storage._compactor.keys_max = 10
    say("ready")
    for _ in range(1_000_000):
        pairs = [
            (b"k%d" % chance.randrange(KEYS), b"%d" % chance.getrandbits(40) * chance.choice((1, 800)))
            for _ in range(chance.randint(1, 4))
        ]
        done = await storage.append("t", 0, built(pairs, codec=chance.choice(("none", "zstd"))))
        for number, (key, value) in enumerate(pairs):
            say(f"{done.base_offset + number} {key.decode()} {value[:20].decode()}")
