"""Run in a process (tests.killing): settles records of two partitions and state for ever, until it is killed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from flowshare.clock import LoopClock
from flowshare.log.base import Output
from flowshare.log.embedded import EmbeddedStorage
from tests.killing import say
from tests.log.contract import batch


async def main(path: Path, seed: int, first: int, fsync: bool) -> None:
    """Lines: the number of a settle that is confirmed, from `first` on. It is the value of its records, of which two
    are in partition 0 and one is in partition 1, and of its state."""
    chance = random.Random(seed)
    storage = await EmbeddedStorage.open(path, clock=LoopClock(), fsync=fsync)
    if "t" not in storage.topics():
        await storage.create_topic("t", partitions=2)
    topic_id = storage.topics()["t"].topic_id

    async def settle(number: int) -> None:
        size = chance.choice((10, 300, 9000))
        outputs = [Output("t", topic_id, n, batch(1, value=(b"%d" % number).ljust(size, b"."))) for n in (0, 1, 0)]
        await storage.settle(outputs, [(b"s%d" % number, b"%d" % number)])
        say(f"{number}")

    say("ready")
    while True:
        count = chance.randint(1, 8)
        await asyncio.gather(*(settle(number) for number in range(first, first + count)))
        first += count
