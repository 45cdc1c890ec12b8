"""A worker that is older than its fleet does not join it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from flowshare.backend.fleet import WorkersBackend
from flowshare.backend.url import parse_broker
from flowshare.fleet.state.topic import StateTopicRefused, state_topic
from flowshare.protocol import messages as m
from flowshare.protocol.batches import BatchBuilder
from flowshare.slots.records import VERSION
from flowshare.testing.clock import LoopTimeClock
from flowshare.testing.virtual import run
from tests.fleet.slots import sealed_as
from tests.fleet.world import Fleet

APP = """
import flowshare as fs
app = fs.App("shop", broker={url!r})
@app.share_agent("orders")
async def handle(order: str):
    pass
"""


def newer() -> bytes:
    """A batch with a record of a later format."""
    builder = BatchBuilder()
    assert builder.add(*sealed_as(VERSION + 1), [], timestamp_ms=1_000)
    return builder.build()


def test_a_worker_refuses_a_fleet_whose_state_is_of_a_newer_format():
    async def scenario(clock):
        async with Fleet(clock, workers=1, slots=4) as fleet:
            await fleet.kafka.storage.append(state_topic(fleet.name), 2, newer())

            with pytest.raises(
                StateTopicRefused, match=r"shop-2 was written by a newer flowshare: .*start this worker"
            ):
                await fleet.add()
            await fleet.machines.pop().worker.close()

    run(scenario(LoopTimeClock()))


def test_a_worker_joins_a_fleet_whose_slots_were_written_by_its_own_release():
    async def scenario(clock):
        async with Fleet(clock, workers=1, slots=4) as fleet:
            machine = await fleet.add()
            async with asyncio.timeout(60):
                while len(machine.worker.served) < 2:
                    await clock.sleep(0.1)
            await fleet.settled()

            assert [len(machine.worker.served) for machine in fleet.machines] == [2, 2]

    run(scenario(LoopTimeClock()))


@pytest.mark.java
@pytest.mark.asyncio
async def test_the_command_line_says_that_a_worker_is_too_old_for_its_fleet(kafka, unique, tmp_path: Path):
    fleet = unique("newer")
    url = f"kafka://{kafka.bootstrap}?share=workers&fleet={fleet}&slots=2&listen=127.0.0.1:0"
    backend = WorkersBackend(parse_broker(url))
    await backend.start()
    connection = await backend.connect("newer")
    await backend.worker.leave()
    await connection.send(m.ProduceRequest(topic=state_topic(fleet), partition=1, records=newer()))
    await connection.close()
    await backend.close()
    (tmp_path / "app.py").write_text(APP.format(url=url))

    command = [sys.executable, "-m", "flowshare.cli", "worker", "app:app"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode != 0
    assert "was written by a newer flowshare: it has format 2, this release reads up to 1" in done.stderr
    assert "Traceback" not in done.stderr
