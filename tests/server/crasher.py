"""Run in a process (tests.killing): two members work through a topic that a producer fills, until it is killed.

What happened is said on stdout, a line each: `q first last count` acquired, `t first last` about to be accepted,
`a first last` accepted and confirmed, `p first last` produced and confirmed.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from flowshare.backend.embedded import EmbeddedBackend
from flowshare.client.admin.admin import ShareAdmin
from flowshare.client.producer.producer import Producer
from flowshare.client.session.member import ShareMember
from flowshare.clock import LoopClock
from flowshare.protocol.errors import ErrorCode
from flowshare.share.types import AcknowledgeType, AckRange
from tests.killing import say
from tests.waiting import until

GROUP = "g"
CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "1000000",
    "share.partition.max.record.locks": "100000",
}
OPEN_MAX = 1_000
ACCEPT, RELEASE = bytes((AcknowledgeType.ACCEPT,)), bytes((AcknowledgeType.RELEASE,))


class Worker:
    """Members and producer of one process."""

    def __init__(self, backend: EmbeddedBackend, seed: int) -> None:
        self.backend = backend
        self.clock = LoopClock()
        self.chance = random.Random(seed)
        self.open = 0

    async def connect(self):
        return await self.backend.connect("crasher")

    async def produce(self) -> None:
        """Keep about `OPEN_MAX` records unfinished."""
        producer = Producer(self.connect, clock=self.clock)
        while True:
            if self.open >= OPEN_MAX:
                await until(lambda: self.open < OPEN_MAX, look_s=0.001)
            count = self.chance.randint(1, 60)
            self.open += count
            sent = await producer.send_many("t", [b"v" * self.chance.choice((10, 300, 5_000)) for _ in range(count)])
            for first, last in runs([part.offset for part in sent]):
                say(f"p {first} {last}")

    async def work(self) -> None:
        """Acquire; accept most, in random pieces and order; release the rest."""
        member = ShareMember(self.connect, group_id=GROUP, topics=["t"], clock=self.clock)
        await member.start()
        while True:
            for fetched in await member.fetch(records_max=self.chance.randint(1, 80), max_wait_s=0.05):
                for first, last, count in fetched.acquired:
                    say(f"q {first} {last} {count}")
                pieces = self.split([range(first, last + 1) for first, last, _ in fetched.acquired])
                await asyncio.gather(*(self.end(member, fetched, piece) for piece in pieces))

    async def end(self, member: ShareMember, fetched, piece: range) -> None:
        first, last = piece[0], piece[-1]
        if self.chance.random() < 0.1:
            await member.acknowledge({fetched.tp: [AckRange(first, last, RELEASE)]})
            return
        say(f"t {first} {last}")
        (result,) = await member.acknowledge({fetched.tp: [AckRange(first, last, ACCEPT)]})
        if result.error is ErrorCode.NONE:
            say(f"a {first} {last}")
            self.open -= len(piece)

    def split(self, ranges: list[range]) -> list[range]:
        pieces = []
        for offsets in ranges:
            while offsets:
                size = self.chance.randint(1, 20)
                pieces.append(offsets[:size])
                offsets = offsets[size:]
        self.chance.shuffle(pieces)
        return pieces


def runs(offsets: list[int]) -> list[tuple[int, int]]:
    """Contiguous runs of rising offsets."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] + 1 == offset:
            found[-1] = (found[-1][0], offset)
        else:
            found.append((offset, offset))
    return found


async def main(path: Path, seed: int) -> None:
    """Work until killed."""
    backend = EmbeddedBackend(path)
    await backend.start()
    worker = Worker(backend, seed)
    admin = ShareAdmin(worker.connect, clock=worker.clock)
    await admin.create_topic("t", exist_ok=True)
    await admin.alter_group_configs(GROUP, CONFIGS)
    say("ready")
    await asyncio.gather(worker.produce(), worker.work(), worker.work())
