"""Records that do harm: one that ends its process, real processes and kills; and stored bytes that are no records."""

from __future__ import annotations

import asyncio
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
