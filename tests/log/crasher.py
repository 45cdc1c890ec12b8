"""Run in a process (tests.killing): appends and writes state for ever and says what was confirmed until a kill."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from flowshare.clock import LoopClock
from flowshare.log.embedded import EmbeddedStorage
from tests.killing import say
from tests.log.contract import batch


async def main(path: Path, seed: int, fsync: bool) -> None:
    """Lines: `a first last value` for an append, `s key value` for a state write."""
    chance = random.Random(seed)
    storage = await EmbeddedStorage.open(path, clock=LoopClock(), fsync=fsync)
    if "t" not in storage.topics():
        await storage.create_topic("t")

    async def append() -> None:
        size, value = chance.choice((10, 300, 9000)), b"%d" % chance.getrandbits(40)
        done = await storage.append("t", 0, batch(chance.randint(1, 5), value=value.ljust(size, b".")))
        say(f"a {done.base_offset} {done.last_offset} {value.decode()}")

    async def write(key: int, value: int) -> None:
        await storage.write([(b"k%d" % key, b"%d" % value), (b"twin%d" % key, b"%d" % value)])
        say(f"s {key} {value}")

    say("ready")
    for number in range(1_000_000):
        await asyncio.gather(append(), append(), *(write(key, number) for key in range(chance.randint(1, 8))))
