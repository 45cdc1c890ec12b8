"""Runs scenarios beside each other on one real Kafka."""

from __future__ import annotations

import asyncio
import uuid

import flowshare as fs
from tests.scenarios import differences, runner
from tests.scenarios.kafka import KafkaSubject
from tests.scenarios.language import Scenario

AT_ONCE = 6
LIMIT_S = 200.0


async def run(address: str, name: str, scenario: Scenario, turn: asyncio.Semaphore) -> str | None:
    """Run a scenario, and return its failure; None: there is none."""
    async with turn:
        subject = KafkaSubject(address, scenario)
        try:
            async with asyncio.timeout(LIMIT_S):
                failure = await runner.run_steps(subject, differences.on_kafka(name, scenario))
        except Exception as error:  # noqa: BLE001 - the others go on
            failure = runner.Failure(-1, f"{type(error).__name__}: {error}")
        finally:
            await subject.close()
    return None if failure is None else f"{name}: step {failure.step}: {failure.message}"


async def begin(address: str) -> None:
    """Wait until the broker serves share groups: scenarios' bare requests do not wait for its coordinators to load."""
    name = f"begin-{uuid.uuid4().hex[:8]}"
    async with fs.Broker(f"kafka://{address}") as broker, asyncio.timeout(LIMIT_S):
        admin = fs.ShareAdmin(broker)
        await admin.create_topic(name, partitions=1)
        await admin.alter_group_configs(name, {"share.auto.offset.reset": "earliest"})
        await fs.Producer(broker).send(name, b"")
        consumer = fs.ShareConsumer(broker, [name], group_id=name)
        while not await consumer.poll(1.0):
            pass


async def run_all(address: str, chosen: list[tuple[str, Scenario]]) -> list[str]:
    """Run these scenarios, a few at a time, and return the failures.

    Locks run out in real time: a pause of the machine for a second may make a scenario fail. So a scenario that failed
    runs once more, alone, and that result counts.
    """
    await begin(address)
    turn = asyncio.Semaphore(AT_ONCE)
    first = await asyncio.gather(*(run(address, name, scenario, turn) for name, scenario in chosen))
    found = []
    for before, (name, scenario) in zip(first, chosen, strict=True):
        if before is not None:
            print(f"run again alone: {before}")
            found.append(await run(address, name, scenario, turn))
    return [message for message in found if message is not None]
