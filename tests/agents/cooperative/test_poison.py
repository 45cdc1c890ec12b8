"""Records that do harm: one that ends its process, real processes and kills; and stored bytes that are no records."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

import flowshare as fs
from flowshare.agents.host.host import Host
from flowshare.testing import run
from tests.agents.cooperative.test_workers import Workers, workers
from tests.agents.processes import Processes

POISON = """
import asyncio, os, signal
import flowshare as fs

app = fs.App("poison", broker=os.environ["URL"])
journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.cooperative_agent("in", concurrency=4, retry=fs.Retry(max_attempts=3, delay=0.1), lease=1)
async def work(n: int, delivery: fs.Delivery) -> None:
    os.write(journal, f"{n} {delivery.attempt}\\n".encode())
    await asyncio.sleep(0.01)
    if n == 7:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_record_that_kills_its_process_is_a_dead_letter_after_its_attempts_and_all_others_end(tmp_path) -> None:
    (tmp_path / "poison_app.py").write_text(POISON)
    world = Processes(tmp_path, f"embedded://{tmp_path}/path")

    async def send() -> None:
        async with fs.Producer(world.url) as producer:
            for n in range(200):
                producer.send_nowait("in", str(n).encode(), key=f"k{n % 10}".encode())

    try:
        asyncio.run(send())
        for _ in range(3):
            worker = world.cli("worker", "poison_app:app")
            worker.wait(60)
            world.started.remove(worker)
        world.cli("worker", "poison_app:app")
        world.wait(lambda: len({note[0] for note in world.notes()}) == 200)

        def done() -> bool:
            return '"backlog":0' in world.run("lag", "--app", "poison_app:app", "--json").replace(" ", "")

        world.wait(done)
        assert [attempt for n, attempt in world.notes() if n == "7"] == ["1", "2", "3"]
    finally:
        world.close()


FREE = """
import asyncio, os, signal
import flowshare as fs

journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
settings = fs.CooperativeSettings(lease=1.0, max_poll_records=4, exact_starts=os.environ["EXACT"] == "yes")

async def main() -> None:
    consumer = fs.CooperativeConsumer(os.environ["URL"], ["in"], group_id="g", settings=settings, free=True)
    async with consumer:
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
    consumer.commit(record)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("exact", ["yes", "no"])
def test_in_free_mode_a_record_that_kills_its_process_is_told_its_attempts_and_all_others_end(tmp_path, exact) -> None:
    (tmp_path / "free.py").write_text(FREE)
    world = Processes(tmp_path, f"embedded://{tmp_path}/path", EXACT=exact)

    async def create() -> None:
        async with fs.Broker(world.url) as broker, fs.ShareAdmin(broker) as admin:
            for topic in ("in", "dead"):
                await admin.create_topic(topic, partitions=1)

    async def unfinished() -> int:
        async with fs.Broker(world.url) as broker, fs.ShareAdmin(broker) as admin:
            return sum(part.unfinished for part in await admin.cooperative.offsets("g"))

    try:
        asyncio.run(create())
        world.send("in", *(str(n).encode() for n in range(200)))
        for _ in range(3):
            consumer = world.start("free.py")
            assert consumer.wait(60) == -signal.SIGKILL
            world.started.remove(consumer)
        world.start("free.py")
        world.wait(lambda: len({note[0] for note in world.notes()}) == 200)
        world.wait(lambda: asyncio.run(unfinished()) == 0)

        tries = defaultdict(list)
        for n, attempt in world.notes():
            tries[n].append(attempt)
        assert tries.pop("7") == ["1", "2", "3", "dead"]
        assert not any("dead" in told for told in tries.values())
        if exact == "yes":  # twice up to four in flight, and four whose commits were under way
            assert sum(told[-1] != "1" for told in tries.values()) <= 16
    finally:
        world.close()


def test_a_damaged_batch_is_a_dead_letter_of_one_member_and_the_rest_is_handled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []

    async def story() -> None:
        async def body(delivery: fs.Delivery) -> None:
            seen.append(delivery.offset)

        async with workers(body) as group:
            for name in "ab":
                await group.start(name)
            await asyncio.sleep(5)
            storage = group.backend._storage
            assert storage is not None
            read = storage.read

            async def damaged(*arguments: Any, **options: Any) -> Any:
                found = await read(*arguments, **options)
                return replace(found, pieces=[found.records.replace(b'"bad"', b'"bxd"')])

            storage.read = damaged
            host = group.hosts["a"]
            for value in (b"1", b'"bad"', b"2"):
                await host.producer.send("orders", value, key=b"k", partition=0)
            await group.until(lambda: len(seen) == 2)
            (part,) = await _finished(host, group)
            assert part.stable == 3
            stats = [one.stats() for member in group.hosts.values() for one in member.runtimes.values()]
            assert sum(one["undecodable"] for one in stats) == sum(one["dead_lettered"] for one in stats) == 1

    run(story())
    assert seen == [0, 2]
    assert caplog.text.count("undecodable: the stored bytes cannot be read: checksum") == 1


async def _finished(host: Host, group: Workers) -> list[Any]:
    while True:
        parts = await host.admin.cooperative.offsets("g")
        if not sum(part.unfinished for part in parts):
            return parts
        assert group.now_s() < 600
        await asyncio.sleep(0.1)
