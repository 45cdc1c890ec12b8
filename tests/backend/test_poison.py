"""A record that ends its process, for a share consumer: real processes on a path, and kills."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict

import pytest

import flowshare as fs
from tests.agents.processes import Processes

PROGRAM = """
import asyncio, os, signal
import flowshare as fs
from flowshare.share.types import AcquireMode

journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
settings = fs.ConsumerSettings(
    acknowledgement_mode="explicit", max_poll_records=4, acquire_mode=AcquireMode.RECORD_LIMIT
)

async def main() -> None:
    async with fs.ShareConsumer(os.environ["URL"], ["in"], group_id="g", settings=settings) as consumer:
        while True:
            await asyncio.gather(*(handle(consumer, record) for record in await consumer.poll(1.0)))

async def handle(consumer, record) -> None:
    if record.attempt > 3:
        os.write(journal, f"{record.value.decode()} dead\\n".encode())
        await consumer.settle([record], {"dead": [record.value]})
        return
    os.write(journal, f"{record.value.decode()} {record.attempt}\\n".encode())
    await asyncio.sleep(0.01)
    if record.value == b"7":
        os.kill(os.getpid(), signal.SIGKILL)
    consumer.acknowledge(record)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_record_that_kills_its_process_is_told_its_attempts_and_all_others_end(tmp_path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    world = Processes(tmp_path, f"embedded://{tmp_path}/path")

    async def create() -> None:
        async with fs.Broker(world.url) as broker, fs.ShareAdmin(broker) as admin:
            for topic in ("in", "dead"):
                await admin.create_topic(topic, partitions=1)
            await admin.alter_group_configs("g", {"share.auto.offset.reset": "earliest"})

    async def unfinished() -> int:
        async with fs.Broker(world.url) as broker, fs.ShareAdmin(broker) as admin:
            return sum(part.lag for part in await admin.group_offsets("g"))

    try:
        asyncio.run(create())
        world.send("in", *(str(n).encode() for n in range(200)))
        for _ in range(3):
            consumer = world.start("program.py")
            assert consumer.wait(60) == -signal.SIGKILL
            world.started.remove(consumer)
        world.start("program.py")
        world.wait(lambda: len({note[0] for note in world.notes()}) == 200)
        world.wait(lambda: asyncio.run(unfinished()) == 0)

        tries = defaultdict(list)
        for n, attempt in world.notes():
            tries[n].append(attempt)
        assert tries.pop("7") == ["1", "2", "3", "dead"]
        assert not any("dead" in told for told in tries.values())
        # Twice up to four in hand, and four whose acknowledgements were under way; then it comes alone.
        assert sum(told[-1] != "1" for told in tries.values()) <= 16
    finally:
        world.close()
