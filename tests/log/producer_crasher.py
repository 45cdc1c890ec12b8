"""Run in a process (tests.killing): producers write for ever, until it is killed; see `test_producer_crash`.

Each producer goes on from what its file says was confirmed, as a client does that was cut off from its broker: the
batch that was under way is sent again.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from flowshare.clock import LoopClock
from flowshare.log.embedded import EmbeddedStorage
from tests.killing import say
from tests.log.producer_contract import produced

PRODUCERS = 4


async def main(path: Path, seed: int, nexts: list[int], fsync: bool) -> None:
    """Lines: `d producer sequence base` for a batch of one record, `m producer committed base` for a marker.

    Producers with odd numbers are transactional and end a transaction every five batches, by turns with an abort.
    """
    chance = random.Random(seed)
    storage = await EmbeddedStorage.open(path, clock=LoopClock(), fsync=fsync)
    if "t" not in storage.topics():
        await storage.create_topic("t")
    say("ready")

    async def write(producer: int) -> None:
        for sequence in range(nexts[producer], 1_000_000):
            transactional = producer % 2 == 1
            if transactional and sequence % 5 == 0:
                committed = sequence % 10 == 0
                done = await storage.append_control("t", 0, producer, 0, committed=committed)
                say(f"m {producer} {int(committed)} {done.base_offset}")
            value = b"%d-%d" % (producer, sequence)
            records = produced(sequence, producer=producer, transactional=transactional, value=value)
            tries = [storage.append("t", 0, records) for _ in range(chance.choice((1, 1, 2)))]
            done = (await asyncio.gather(*tries))[0]
            say(f"d {producer} {sequence} {done.base_offset}")

    await asyncio.gather(*(write(producer) for producer in range(PRODUCERS)))
